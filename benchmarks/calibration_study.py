"""Does calibration make the cost-aware budget work? A study on one target, drafter and set of prompts, as markdown.

Half of the prompts teach the calibration, the other half is measured: how reliable the edge and path probabilities are
before and after, which budgets the cost-aware builder chooses with each, and what that is worth against fixed budgets.

    python benchmarks/calibration_study.py --target tests/data/qwen3-tiny-a/target \
        --checkpoint tests/data/qwen3-tiny-a/domino --prompts tests/data/qwen3-tiny-a/golden.json --dtype float32
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen

from specforge import Pipeline, PipelineConfig
from specforge.cost_model import CostModel
from specforge.errors import SpecforgeError
from specforge.profiling import Plan, measure_cost_model
from specforge.report.compare import Comparison, compare
from specforge.report.prompts import PromptItem, load_prompts
from specforge.report.table import lossless_word
from specforge.request import encode_prompt
from specforge.result import RoundRecord
from specforge.strategies.calibration import Calibration, raw_edges
from specforge.target import Target, load_target

RANGES = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0)
FIXED_BUDGETS = (8, 16, 32, 64)

Doubles = npt.NDArray[np.float64]


@frozen(eq=False)
class Setup:
    """What every pipeline of the study shares."""

    target: Target
    drafter: dict[str, Any]
    scorer: dict[str, Any]
    builder: str
    cap: int
    generate: dict[str, Any]

    def pipeline(self, budget: int, **options: Any) -> Pipeline:
        builder = {"name": self.builder, "budget": budget, **options}
        config = PipelineConfig(drafter=self.drafter, scorer=self.scorer, builder=builder)
        return Pipeline.from_config(config, target=self.target)

    def baseline(self) -> Pipeline:
        return Pipeline.from_config(PipelineConfig(), target=self.target)

    def rounds(self, pipeline: Pipeline, prompts: Sequence[PromptItem]) -> list[RoundRecord]:
        """Return every round of the first turn of every prompt."""
        traces = []
        for item in prompts:
            ids = encode_prompt(self.target, item.turns[0])
            traces.extend(pipeline.generate(ids, trace=True, **self.generate).rounds)
        return traces


@frozen(eq=False)
class Edges:
    """Every child of every accepted node, and every whole tree's promise, raw and calibrated.

    Attributes:
        promised: ``[m]`` by ``"raw"`` and ``"calibrated"``: edge probabilities.
        accepted: ``[m]`` 0 or 1.
        expected: ``[rounds]`` by ``"raw"`` and ``"calibrated"``: drafts that the tree expects to have accepted.
        emitted: ``[rounds]`` drafts that were.
    """

    promised: dict[str, Doubles]
    accepted: Doubles
    expected: dict[str, Doubles]
    emitted: Doubles


def collect(rounds: Iterable[RoundRecord], calibration: Calibration) -> Edges:
    """Look at trees that were built with raw probabilities through both eyes."""
    promised: dict[str, list[Doubles]] = {"raw": [], "calibrated": []}
    expected: dict[str, list[float]] = {"raw": [], "calibrated": []}
    accepted, emitted = [], []
    for record in rounds:
        tree, raw = record.tree, raw_edges(record.tree)
        children = np.flatnonzero(np.isin(tree.parents, record.path))
        accepted.append(np.isin(children, record.path).astype(np.float64))
        emitted.append(len(record.path) - 1)
        for name, edges in (("raw", raw), ("calibrated", calibrated_edges(tree.depths, raw, calibration))):
            promised[name].append(np.exp(edges[children]))
            paths = np.zeros(len(tree))
            for node in range(1, len(tree)):
                paths[node] = paths[tree.parents[node]] + edges[node]
            expected[name].append(float(np.exp(paths[1:]).sum()))
    return Edges(
        {name: np.concatenate(parts) for name, parts in promised.items()},
        np.concatenate(accepted),
        {name: np.array(values) for name, values in expected.items()},
        np.array(emitted, dtype=np.float64),
    )


def calibrated_edges(depths: npt.NDArray[np.int64], raw: Doubles, calibration: Calibration) -> Doubles:
    """Return ``[N]`` calibrated edge log-probabilities; 0 for the root."""
    edges = np.zeros(len(raw))
    for depth in np.unique(depths[1:]).tolist():
        here = np.flatnonzero(depths == depth)
        edges[here] = calibration.apply(depth - 1, torch.from_numpy(raw[here])).numpy()
    return edges


def calibration_error(promised: Doubles, accepted: Doubles) -> float:
    """Return the expected calibration error over ``RANGES``."""
    ranges = np.digitize(promised, RANGES[1:-1])
    gaps = [abs(float((promised - accepted)[ranges == r].sum())) for r in range(len(RANGES) - 1)]
    return sum(gaps) / len(promised)


def log_loss(promised: Doubles, accepted: Doubles) -> float:
    """Return the mean negative log-likelihood of what happened, in nats an edge."""
    sure = np.clip(promised, 1e-6, 1 - 1e-6)
    return float(-np.mean(accepted * np.log(sure) + (1 - accepted) * np.log1p(-sure)))


def reliability_table(edges: Edges) -> list[str]:
    """Return the reliability curves, raw and calibrated, a range of the promise a line."""
    lines = [
        "| promised | raw: edges | mean promise | accepted | calibrated: edges | mean promise | accepted |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for low, high in pairwise(RANGES):
        cells = [f"{low:g} to {high:g}"]
        for name in ("raw", "calibrated"):
            promised = edges.promised[name]
            here = (promised >= low) & ((promised < high) | (high == RANGES[-1]))
            cells.append(str(int(here.sum())))
            shown = here.any()
            cells.append(f"{promised[here].mean():.3f}" if shown else "")
            cells.append(f"{edges.accepted[here].mean():.3f}" if shown else "")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def summary_table(edges: Edges) -> list[str]:
    """Return the errors of both, for edges and for whole trees."""
    lines = [
        "| | calibration error | log loss | drafts expected a round | drafts accepted a round |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in ("raw", "calibrated"):
        promised = edges.promised[name]
        figures = (calibration_error(promised, edges.accepted), log_loss(promised, edges.accepted))
        figures = (*figures, float(edges.expected[name].mean()), float(edges.emitted.mean()))
        lines.append(f"| {name} | {' | '.join(f'{figure:.3f}' for figure in figures)} |")
    return lines


def budget_table(rounds: dict[str, list[RoundRecord]], cap: int) -> list[str]:
    """Return the budgets that each adaptive builder chose."""
    lines = [
        "| builder | rounds | mean | 10% | median | 90% | at the cap |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, records in rounds.items():
        budgets = np.array([record.tree.budget for record in records])
        low, middle, high = np.percentile(budgets, [10, 50, 90])
        share = float(np.mean(budgets >= cap))
        lines.append(
            f"| {name} | {len(budgets)} | {budgets.mean():.1f} | {low:.0f} | {middle:.0f} | {high:.0f} | {share:.0%} |"
        )
    return lines


def speed_table(comparison: Comparison) -> list[str]:
    """Return τ and speed of every pipeline."""
    lines = [
        "| builder | τ | tokens/s | speed-up | ms a round: draft | build | verify | lossless |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in comparison.rows:
        stages = [1e3 * row.stage_seconds[stage] / max(row.rounds, 1) for stage in ("draft", "build", "verify")]
        figures = [f"{row.acceptance_length:.2f}", f"{row.tokens_per_second:.1f}", f"{row.speedup:.2f}"]
        figures += [f"{stage:.2f}" for stage in stages]
        lines.append(f"| {row.name} | {' | '.join(figures)} | {lossless_word(row)} |")
    return lines


def study(setup: Setup, costs: CostModel, prompts: Sequence[PromptItem], repeats: int) -> list[str]:
    """Run everything and return the report's lines."""
    lessons, tests = prompts[::2], prompts[1::2]
    online = Calibration()
    setup.rounds(setup.pipeline(setup.cap, cost_model=costs, calibration=online), lessons)
    learned = Calibration.from_dict(online.to_dict())
    raw_adaptive = setup.pipeline(setup.cap, cost_model=costs)
    adaptive = setup.pipeline(setup.cap, cost_model=costs, calibration=learned)
    edges = collect(setup.rounds(setup.pipeline(setup.cap), tests), learned)
    budgets = {
        "adaptive, raw": setup.rounds(raw_adaptive, tests),
        "adaptive, calibrated": setup.rounds(adaptive, tests),
    }
    pipelines = {
        "ar": setup.baseline(),
        **{f"fixed {budget}": setup.pipeline(budget) for budget in FIXED_BUDGETS},
        "adaptive, raw": raw_adaptive,
        "adaptive, calibrated": adaptive,
        "adaptive, online from nothing": setup.pipeline(setup.cap, cost_model=costs, calibration="online"),
    }
    comparison = compare(pipelines, tests, setup.generate, repeats=repeats)
    return [
        f"{len(lessons)} prompts to learn from, {len(tests)} to measure on.",
        "",
        f"Reliability of the edges of trees of {setup.cap} nodes, on prompts the calibration has not seen:",
        "",
        *reliability_table(edges),
        "",
        *summary_table(edges),
        "",
        f"Budgets chosen, of at most {setup.cap}:",
        "",
        *budget_table(budgets, setup.cap),
        "",
        f"Speed, interleaved, medians of {repeats} repeats:",
        "",
        *speed_table(comparison),
    ]


def read_prompts(path: Path) -> list[PromptItem]:
    """Read a prompt file, or the token ids under ``prompts`` of a ``.json`` file."""
    if path.suffix != ".json":
        return load_prompts(path)
    prompts = json.loads(path.read_text(encoding="utf-8"))["prompts"]
    return [PromptItem(f"{path.name}:{number}", (tuple(ids),)) for number, ids in enumerate(prompts, start=1)]


def sampled_prompts(setup: Setup, prompts: Sequence[PromptItem], count: int) -> list[PromptItem]:
    """Return ``count`` prompts: what the target draws after the given ones, in turn, as long as they are."""
    baseline, made = setup.baseline(), []
    for seed in range(count):
        ids = encode_prompt(setup.target, prompts[seed % len(prompts)].turns[0])
        drawn = baseline.generate(ids, max_new_tokens=len(ids), temperature=1.0, seed=seed, stop_token_ids=[])
        made.append(PromptItem(f"sampled:{seed}", (tuple(drawn.token_ids),)))
    return made


def cost_table(costs: CostModel) -> list[str]:
    """Return the cost model in milliseconds."""
    lines = [
        f"Drafting {1e3 * costs.draft_seconds:.2f} ms. Verification in ms by context and draft nodes:",
        "",
        f"| context | {' | '.join(str(n) for n in costs.nodes)} |",
        f"| --- |{' ---: |' * len(costs.nodes)}",
    ]
    for context, row in zip(costs.context_lengths, costs.seconds, strict=True):
        lines.append(f"| {context} | {' | '.join(f'{1e3 * seconds:.2f}' for seconds in row)} |")
    return lines


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", default="domino")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument(
        "--prompts", type=Path, required=True, help=".jsonl, text, or .json with token ids in 'prompts'"
    )
    parser.add_argument("--limit", type=int, help="use the first so many prompts")
    parser.add_argument("--sampled", type=int, default=0, help="use so many prompts that the target makes of these")
    parser.add_argument("--builder", choices=("heap", "depthwise"), default="heap")
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--cap", type=int, default=64)
    parser.add_argument("--cost-model", type=Path, help="measured here where it is not given")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    try:
        target = load_target(given.target, dtype=given.dtype, device=given.device)
        setup = Setup(
            target=target,
            drafter={"name": given.drafter, "checkpoint": given.checkpoint},
            scorer={"name": "conditional", "candidates": min(given.candidates, target.vocab_size)},
            builder=given.builder,
            cap=given.cap,
            generate={"max_new_tokens": given.max_new_tokens, "temperature": given.temperature},
        )
        prompts = read_prompts(given.prompts)[: given.limit]
        if given.sampled:
            prompts = sampled_prompts(setup, prompts, given.sampled)
        if given.cost_model is None:
            drafter = setup.pipeline(1).parts.drafter
            contexts = tuple(c for c in (64, 256, 1024) if c + given.cap < target.context_limit)
            costs = measure_cost_model(target, drafter, Plan(contexts=contexts, nodes=(0, 1, 2, 4, 8, 16, 32, 48, 64)))
        else:
            costs = CostModel.of(given.cost_model)
        report = study(setup, costs, prompts, given.repeats)
    except SpecforgeError as error:
        print(error, file=sys.stderr)
        return 2
    device = f"{target.device}, {str(target.dtype).removeprefix('torch.')}, {torch.get_num_threads()} threads"
    title = f"Target {target.name}, drafter {given.drafter}, builder {given.builder}, {device}."
    print("\n".join([title, "", *cost_table(costs), "", *report]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
