"""What building a tree costs: with random weights of Qwen3-4B's shapes, and as a share of the bundled target's rounds.

Bounds are on medians of interleaved runs in one process; `make bounds` checks them. The groups for `pytest-benchmark`
are in `test_correction_speed.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import pytest
import torch
from random_heads import QWEN3_4B, any_round, random_domino, random_draft

from specforge import Pipeline, PipelineConfig
from specforge.correction.backends import run_on
from specforge.interfaces import Draft
from specforge.strategies.conditional import Conditional
from specforge.strategies.depthwise import DepthWise
from specforge.strategies.heap import Heap
from specforge.strategies.marginal import Marginal
from specforge.target import BUNDLED_TARGET, load_target

CPU = torch.device("cpu")
CANDIDATES = 64
ROUND = any_round(CPU)
DTYPES = [torch.float32, torch.bfloat16]
PROMPT = "Give me five tips for learning to cook at home."
TOP = {"name": "conditional", "candidates": CANDIDATES}
FLAT = {"draft_seconds": 0.01, "context_lengths": [0], "nodes": [0, 64], "seconds": {"0": [0.07, 0.0701]}}
"""A cost model by which nearly every node pays, so that a cost-aware tree is as large as the others."""


def medians(runs: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Return the median seconds of each run, taken in turns after one warm-up."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats + 1):
        for run, taken in zip(runs, seconds, strict=True):
            begin = time.perf_counter()
            run()
            taken.append(time.perf_counter() - begin)
    return [median(taken[1:]) for taken in seconds]


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def domino_draft(request: pytest.FixtureRequest) -> Draft:
    head = random_domino(QWEN3_4B, request.param, CPU)
    return random_draft(QWEN3_4B, request.param, run_on("eager", head, CPU), CPU)


@pytest.mark.parametrize("budget", [64, 1024])
def test_marginal_heap_costs_little_more_than_its_topk(budget: int) -> None:
    draft, scorer, builder = random_draft(QWEN3_4B, torch.float32, None, CPU), Marginal(), Heap(budget)

    def bare() -> None:
        torch.logsumexp(draft.base_logits, dim=-1)
        torch.topk(draft.base_logits, budget)

    floor, heap = medians([bare, lambda: builder.build(draft, scorer, ROUND)], repeats=15)
    print(f"B={budget}: logsumexp + topk {1e3 * floor:.2f} ms, heap {1e3 * heap:.2f} ms, {heap / floor:.2f} times")
    assert heap < 1.3 * floor


def test_depth_by_depth_is_faster_than_node_by_node(domino_draft: Draft) -> None:
    scorer = Conditional(CANDIDATES)
    builders = [Heap(64, lookahead=1), Heap(64), DepthWise(64, width=12)]
    one, ahead, deep = medians([lambda b=b: b.build(domino_draft, scorer, ROUND) for b in builders], repeats=9)
    print(
        f"{domino_draft.hidden.dtype}: node by node {1e3 * one:.1f} ms, with lookahead {1e3 * ahead:.1f} ms, "
        f"depth by depth {1e3 * deep:.1f} ms: {one / deep:.2f} times faster"
    )
    assert one > 4 * deep


SHARES: dict[str, tuple[Any, dict[str, Any], float]] = {
    "heap, marginal": ("marginal", {"name": "heap"}, 0.15),
    "heap, chain-conditional": ("chain-conditional", {"name": "heap"}, 0.15),
    "heap, conditional": (TOP, {"name": "heap"}, 0.15),
    "heap, conditional, calibrated": (TOP, {"name": "heap", "calibration": "online"}, 0.15),
    "heap, conditional, cost-aware": (TOP, {"name": "heap", "cost_model": FLAT}, 0.15),
    "depth by depth, pruned": (TOP, {"name": "depthwise", "width": 12}, 0.06),
    "depth by depth, fixed": (TOP, {"name": "depthwise", "mode": "fixed"}, 0.15),
}
"""Scorer, builder, and what share of a round building may take."""


@pytest.mark.smollm2
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_building_is_a_small_share_of_a_round(dtype: str) -> None:
    """In rounds of decoding with the bundled target and drafter, 32 nodes; medians over the rounds of all repeats."""
    target = load_target(BUNDLED_TARGET, dtype=dtype, device="cpu")
    pipelines = {
        name: Pipeline.from_config(
            PipelineConfig(drafter="domino", scorer=scorer, builder={**builder, "budget": 32}), target=target
        )
        for name, (scorer, builder, _) in SHARES.items()
    }
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in SHARES}
    for repeat in range(4):
        for name, pipeline in pipelines.items():
            result = pipeline.generate(PROMPT, max_new_tokens=40, trace=True)
            rounds[name] += [record.stage_seconds for record in result.rounds] if repeat else []
    shares = {}
    for name, spent in rounds.items():
        stages = {
            stage: median(seconds[stage] for seconds in spent) for stage in ("draft", "build", "verify", "commit")
        }
        shares[name] = stages["build"] / sum(stages.values())
        print(
            f"{dtype} {name}: {1e3 * stages['build']:.1f} ms of {1e3 * sum(stages.values()):.1f} ms, {shares[name]:.1%}"
        )
    assert {name: share for name, share in shares.items() if share > SHARES[name][2]} == {}
