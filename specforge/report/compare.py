"""Run several pipelines on the same prompts in one process, interleaved, and compare them with ``ar``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from attrs import define, field, frozen

from specforge.errors import ConfigError
from specforge.interfaces import PROPOSAL
from specforge.pipeline import Pipeline
from specforge.report.divergence import Divergence, explain
from specforge.report.prompts import PromptItem
from specforge.request import GenerateOptions, encode_prompt, make_request
from specforge.result import STAGES, GenerationResult
from specforge.target import Target

BASELINE = "ar"
Lossless = bool | str


@frozen(eq=False)
class Run:
    """One generation of a comparison.

    Attributes:
        pipeline: which pipeline.
        prompt: which prompt and turn.
        prompt_ids: the tokens it started from.
        result: what came out.
    """

    pipeline: str
    prompt: str
    prompt_ids: tuple[int, ...]
    result: GenerationResult


@frozen(eq=False)
class Row:
    """One pipeline's figures over all prompts.

    Seconds are medians over the repeats of each prompt, added up over the prompts.

    Attributes:
        name: preset or config file.
        acceptance_length: τ, tokens a round.
        tokens_per_second: tokens after the first over the seconds they took.
        speedup: its tokens per second over those of ``ar``.
        lossless: ``True`` when every output equals ``ar``'s or parts from it where the target's own rounding decides,
            ``"distributional"`` when only the distribution is the target's, else ``False``.
        divergences: every output that differs from ``ar``'s.
        outputs: how many outputs were compared.
        seconds_to_first_token: median over all runs.
        stage_seconds: by stage.
        rounds: verification rounds, one repeat.
        tokens: emitted tokens, one repeat.
    """

    name: str
    acceptance_length: float
    tokens_per_second: float
    speedup: float
    lossless: Lossless
    divergences: tuple[Divergence, ...]
    outputs: int
    seconds_to_first_token: float
    stage_seconds: dict[str, float]
    rounds: int
    tokens: int


@frozen(eq=False)
class Comparison:
    """The rows, in the order the pipelines were given, and what they were run with."""

    rows: tuple[Row, ...]
    settings: dict[str, Any] = field(factory=dict)


def compare(
    pipelines: Mapping[str, Pipeline],
    prompts: Sequence[PromptItem],
    options: Mapping[str, Any] | None = None,
    *,
    repeats: int = 1,
    progress: Callable[[str], None] = lambda _name: None,
) -> Comparison:
    """Run every pipeline on every prompt before the next repeat; the order is shuffled with a fixed seed.

    A chat of several turns is carried on with ``ar``'s answers, so that all pipelines see the same prompts.

    Args:
        pipelines: by name; one of them is ``"ar"``, all with the same target.
        prompts: the conversations.
        options: keyword options of ``Pipeline.generate``.
        repeats: how often everything is run, at least 1.
        progress: called with the pipeline's name after each generation.

    Raises:
        ConfigError: when there is no ``ar``, no prompt or no repeat.
    """
    if BASELINE not in pipelines:
        raise ConfigError(f"a comparison needs the pipeline {BASELINE!r}; got {', '.join(pipelines) or 'none'}")
    if repeats < 1:
        raise ConfigError(f"repeats is {repeats}; it must be at least 1")
    options = dict(options or {})
    _warm_up(pipelines, prompts, options)
    runs = list(_run_all(pipelines, prompts, options, repeats, progress))
    rows = tuple(_make_row(name, pipeline, runs, options) for name, pipeline in pipelines.items())
    return Comparison(rows)


def generations(prompts: Sequence[PromptItem], pipelines: int, repeats: int) -> int:
    """Return how often ``compare`` will call its ``progress``."""
    return sum(len(item.turns) for item in prompts) * pipelines * repeats


@define
class _Chat:
    """One conversation, carried on with the baseline's answers."""

    target: Target
    options: GenerateOptions
    messages: list[dict[str, str]] = field(factory=list)
    ids: list[int] = field(factory=list)

    def ask(self, turn: str | Sequence[int]) -> list[int]:
        """Return the prompt of the next turn; what takes no chat template is appended to what came before."""
        if self.options.raw or not isinstance(turn, str) or self.target.tokenizer is None:
            self.ids = [*self.ids, *encode_prompt(self.target, turn, raw=True)]
        else:
            self.messages.append({"role": "user", "content": turn})
            self.ids = encode_prompt(self.target, self.messages, template_args=self.options.template_args)
        return list(self.ids)

    def answer(self, result: GenerationResult) -> None:
        """Take in the baseline's answer."""
        self.messages.append({"role": "assistant", "content": result.text or ""})
        self.ids = [*self.ids, *result.token_ids]


def _warm_up(pipelines: Mapping[str, Pipeline], prompts: Sequence[PromptItem], options: Mapping[str, Any]) -> None:
    if not prompts:
        raise ConfigError("a comparison needs at least one prompt")
    _check_prompts(pipelines[BASELINE].target, prompts, options)
    brief = {**options, "max_new_tokens": min(8, options.get("max_new_tokens", 8))}
    checked = GenerateOptions(**options)
    for pipeline in pipelines.values():
        pipeline.generate(_Chat(pipeline.target, checked).ask(prompts[0].turns[0]), **brief)


def _check_prompts(target: Target, prompts: Sequence[PromptItem], options: Mapping[str, Any]) -> None:
    """Find a prompt that cannot be used before the first generation, and say which one it is."""
    checked = GenerateOptions(**options)
    for item in prompts:
        try:
            make_request(target, _Chat(target, checked).ask(item.turns[0]), checked)
        except ConfigError as error:
            raise ConfigError(f"{item.name}: {error}") from error


def _run_all(
    pipelines: Mapping[str, Pipeline],
    prompts: Sequence[PromptItem],
    options: Mapping[str, Any],
    repeats: int,
    progress: Callable[[str], None],
) -> Iterator[Run]:
    def run(name: str, prompt: str, ids: list[int]) -> Run:
        result = pipelines[name].generate(ids, **options)
        progress(name)
        return Run(name, prompt, tuple(ids), result)

    order = random.Random(0)
    others = [name for name in pipelines if name != BASELINE]
    asked: list[tuple[str, list[int]]] = []
    for item in prompts:
        chat = _Chat(pipelines[BASELINE].target, GenerateOptions(**options))
        for number, turn in enumerate(item.turns, start=1):
            prompt, ids = f"{item.name}#{number}", chat.ask(turn)
            asked.append((prompt, ids))
            # The next turn quotes this answer, so in the first repeat the baseline comes first.
            baseline = run(BASELINE, prompt, ids)
            chat.answer(baseline.result)
            yield baseline
            yield from (run(name, prompt, ids) for name in order.sample(others, len(others)))
    for _ in range(1, repeats):
        for prompt, ids in asked:
            yield from (run(name, prompt, ids) for name in order.sample(list(pipelines), len(pipelines)))


def _make_row(name: str, pipeline: Pipeline, runs: Sequence[Run], options: Mapping[str, Any]) -> Row:
    mine = _by_prompt(runs, name)
    base = _by_prompt(runs, BASELINE)
    first = [repeats[0].result for repeats in mine.values()]
    rounds = sum(len(result.acceptance_lengths) for result in first)
    emitted = sum(sum(result.acceptance_lengths) for result in first)
    speed = _tokens_per_second(mine)
    lossless, divergences = _losslessness(pipeline, mine, base, GenerateOptions(**options))
    return Row(
        name=name,
        acceptance_length=emitted / rounds if rounds else float("nan"),
        tokens_per_second=speed,
        speedup=speed / _tokens_per_second(base),
        lossless=lossless,
        divergences=divergences,
        outputs=len(mine),
        seconds_to_first_token=median(r.result.seconds_to_first_token for rs in mine.values() for r in rs),
        stage_seconds={
            stage: sum(median(r.result.stage_seconds[stage] for r in rs) for rs in mine.values()) for stage in STAGES
        },
        rounds=rounds,
        tokens=sum(len(result.token_ids) for result in first),
    )


def _by_prompt(runs: Sequence[Run], name: str) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.pipeline == name:
            found.setdefault(run.prompt, []).append(run)
    return found


def _tokens_per_second(runs: Mapping[str, Sequence[Run]]) -> float:
    tokens = sum(len(repeats[0].result.token_ids) - 1 for repeats in runs.values())
    seconds = sum(median(run.result.decode_seconds for run in repeats) for repeats in runs.values())
    return tokens / seconds if tokens and seconds else float("nan")


def _losslessness(
    pipeline: Pipeline,
    mine: Mapping[str, Sequence[Run]],
    base: Mapping[str, Sequence[Run]],
    options: GenerateOptions,
) -> tuple[Lossless, tuple[Divergence, ...]]:
    verifier = pipeline.parts.verifier_for(options.sampling)
    if PROPOSAL in verifier.needed():
        return "distributional", ()
    found = []
    for prompt, repeats in mine.items():
        reference = base[prompt][0]
        for run in repeats:
            divergence = explain(
                pipeline.target,
                run.prompt_ids,
                reference.result.token_ids,
                run.result.token_ids,
                options.sampling,
                options.seed,
                prompt,
            )
            if divergence is not None:
                found.append(divergence)
                break
    return all(d.tie for d in found), tuple(found)
