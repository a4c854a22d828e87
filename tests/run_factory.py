"""Runs of comparisons that nobody ran: made up from known parameters, so that a report can be checked against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import field, frozen

from specforge.report.divergence import Divergence
from specforge.report.runfolder import Case, Generation, RoundLine, RunData, RunFolder
from specforge.result import STAGES

AR_SECONDS = 0.1
HARDWARE = {"cpu": "Imaginary CPU @ 2 GHz", "cores": 2, "memory_gib": 24.0, "system": "Linux x86_64", "gpu": None}
VERSIONS = {"specforge-decoding": "0.1.0", "torch": "2.13.0", "transformers": "5.24.0", "python": "3.11.7"}


@frozen
class Method:
    """How a made-up pipeline behaves.

    Attributes:
        edge: probability that a node's better child is accepted, as the drafter says; 0 drafts nothing.
        depth: levels of the tree; each has a better and a worse child below the best path.
        truth: the better child is really accepted with ``edge ** truth``: 1 is calibrated, above 1 promises too much.
        scored: whether the builder keeps path probabilities.
        node_seconds: what one node adds to the verification.
        draft_seconds: one drafter pass.
        config: the pipeline's config.
        ties: share of outputs that part from ``ar``'s at a tie.
        errors: share that part from it otherwise.
    """

    edge: float = 0.0
    depth: int = 0
    truth: float = 1.0
    scored: bool = True
    node_seconds: float = 0.001
    draft_seconds: float = 0.01
    config: Mapping[str, Any] = field(factory=dict)
    ties: float = 0.0
    errors: float = 0.0


AR = Method(draft_seconds=0.0)


def tree(budget: int, **builder: Any) -> dict[str, Any]:
    return {
        "target": "tiny",
        "drafter": {"name": "domino", "checkpoint": "somewhere"},
        "scorer": {"name": "conditional", "candidates": 64},
        "builder": {"name": "heap", "budget": budget, **builder},
        "verifier": {"name": "auto"},
        "dtype": "float32",
        "device": "cpu",
    }


METHODS: Mapping[str, Method] = {
    "ar": AR,
    "ngram": Method(0.45, 4, scored=False, config={"drafter": {"name": "ngram"}, "builder": {"name": "chain"}}),
    "dominotree": Method(0.8, 6, truth=1.5, config=tree(12)),
}


def make_run(
    methods: Mapping[str, Method] = METHODS,
    prompt_sets: Mapping[str, int] | None = None,
    temperatures: Sequence[float] = (0.0,),
    repeats: int = 1,
    turns: int = 1,
    seed: int = 0,
    slower: float = 1.0,
) -> RunData:
    """Make a run up.

    Args:
        methods: pipelines by name, ``ar`` first.
        prompt_sets: how many prompts each set has; some are easier than others.
        temperatures: what each is run at.
        repeats: of everything.
        turns: of every prompt.
        seed: same seed, same run.
        slower: factor on all seconds.
    """
    prompt_sets = {"gsm8k": 5, "mt-bench": 4} if prompt_sets is None else prompt_sets
    run = _header(methods, prompt_sets, temperatures, repeats)
    for repeat in range(repeats):
        for temperature in temperatures:
            for name, count in prompt_sets.items():
                for index in range(count):
                    for turn in range(1, turns + 1):
                        case = Case(name, f"{name}:{index + 1}", turn, temperature, repeat)
                        _add_case(run, methods, case, seed, slower)
    return run


def write_run(folder: Path, run: RunData) -> Path:
    """Write ``run`` to ``folder``."""
    RunFolder.create(folder, run).append(run.generations, run.rounds)
    return folder


def _header(
    methods: Mapping[str, Method], prompt_sets: Mapping[str, int], temperatures: Sequence[float], repeats: int
) -> RunData:
    settings = {
        "target": "tiny",
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "max_new_tokens": 48,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": 0,
        "order_seed": 0,
        "repeats": repeats,
        "raw": False,
        "template_args": {},
        "temperatures": list(temperatures),
        "prompt_sets": {name: {"source": f"{name}.jsonl", "count": count} for name, count in prompt_sets.items()},
    }
    command = ["specforge", "compare", "--presets", ",".join(methods), "--out", "my run"]
    configs = {name: dict(method.config) for name, method in methods.items()}
    return RunData("2026-01-02T03:04:05+00:00", command, settings, configs, VERSIONS, HARDWARE)


def _add_case(run: RunData, methods: Mapping[str, Method], case: Case, seed: int, slower: float) -> None:
    prompt = np.random.default_rng([seed, *_numbers(case)[:-1]])
    prompt_tokens, new_tokens = int(prompt.integers(20, 60)), int(prompt.integers(24, 49))
    easiness, pace = float(prompt.uniform(0.8, 1.2)), float(prompt.lognormal(0.0, 0.3)) * slower
    tokens = tuple(int(t) for t in prompt.integers(0, 100, new_tokens))
    for number, (name, method) in enumerate(methods.items()):
        noise = np.random.default_rng([seed, number, *_numbers(case)])
        # Repeats draft the same, and take another time for it.
        luck = np.random.default_rng([seed, number, *_numbers(case)[:-1]])
        rounds = _rounds(name, method, case, prompt_tokens, new_tokens, easiness, pace, luck, noise)
        output, divergence = _output(method, tokens, case, luck)
        stages = {stage: sum(r.stage_seconds[stage] for r in rounds) for stage in STAGES[1:]}
        run.rounds.extend(rounds)
        run.generations.append(
            Generation(
                pipeline=name,
                case=case,
                prompt_tokens=prompt_tokens,
                token_ids=output,
                text=f"<b>{name}</b> & {case.prompt}",
                acceptance_lengths=tuple(r.accepted for r in rounds),
                finish_reason="max_new_tokens",
                seconds_to_first_token=0.2 * pace,
                decode_seconds=sum(stages.values()),
                stage_seconds={"prefill": 0.2 * pace, **stages},
                lossless=None if name == "ar" else divergence is None or divergence.tie,
                divergence=divergence,
            )
        )


def _numbers(case: Case) -> list[int]:
    name = sum(map(ord, case.prompt))
    return [len(case.prompt_set), name, case.turn, int(100 * case.temperature), case.repeat]


def _output(
    method: Method, tokens: tuple[int, ...], case: Case, luck: np.random.Generator
) -> tuple[tuple[int, ...], Divergence | None]:
    drawn, position = luck.uniform(), int(luck.integers(1, len(tokens)))
    if drawn >= method.ties + method.errors:
        return tokens, None
    margin = 0.01 if drawn < method.ties else 0.9
    other = (tokens[position] + 1) % 100
    found = Divergence(f"{case.prompt}#{case.turn}", position, tokens[position], other, margin, 0.1)
    return (*tokens[:position], other, *tokens[position + 1 :]), found


def _rounds(
    name: str,
    method: Method,
    case: Case,
    prompt_tokens: int,
    new_tokens: int,
    easiness: float,
    pace: float,
    luck: np.random.Generator,
    noise: np.random.Generator,
) -> list[RoundLine]:
    rounds: list[RoundLine] = []
    emitted = 1
    while emitted < new_tokens:
        left = new_tokens - emitted - 1
        depth = min(method.depth, left)
        path = _walk(method, depth, easiness, luck)
        nodes = 2 * depth
        verify = (AR_SECONDS + method.node_seconds * nodes) * pace * float(noise.lognormal(0.0, 0.05))
        drafting = method.draft_seconds * pace
        rounds.append(
            RoundLine(
                pipeline=name,
                case=case,
                round=len(rounds),
                context=prompt_tokens + emitted,
                nodes=nodes,
                depth_counts=(2,) * depth,
                accepted=len(path),
                path=tuple(path),
                path_probs=_path_probs(method, depth) if method.scored and depth else None,
                stage_seconds={
                    "prefill": 0.0,
                    "draft": drafting,
                    "build": drafting / 2,
                    "verify": verify,
                    "commit": 0.002 * pace,
                },
            )
        )
        emitted += len(path)
    return rounds


def _walk(method: Method, depth: int, easiness: float, luck: np.random.Generator) -> list[int]:
    """Accept better children (odd nodes) as long as they are, then perhaps a worse one, which is a leaf."""
    path = [0]
    better = method.edge ** (method.truth / easiness)
    for level in range(depth):
        drawn = luck.uniform()
        if drawn < better:
            path.append(2 * level + 1)
            continue
        if drawn < better + (1.0 - better) / 2.0:
            path.append(2 * level + 2)
        break
    return path


def _path_probs(method: Method, depth: int) -> tuple[float, ...]:
    pairs = [(method.edge ** (d + 1), method.edge**d * (1.0 - method.edge) / 2.0) for d in range(depth)]
    return tuple(float(f"{p:.4g}") for pair in pairs for p in pair)
