"""What building a tree costs, with random weights of the published shapes: V = 151,936, D = 15, Domino head H = 2560.

Time bounds are medians of interleaved runs in one process. The groups for `pytest-benchmark` are in
`test_correction_speed.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from specforge.correction.domino import DominoCorrection, input_table
from specforge.interfaces import Draft, Round
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.strategies.conditional import Conditional
from specforge.strategies.depthwise import DepthWise
from specforge.strategies.heap import Heap
from specforge.strategies.marginal import Marginal
from specforge.target import BUNDLED_TARGET, load_target

VOCAB, DEPTH, HIDDEN, STATE, INNER = 151_936, 15, 2560, 1024, 256
CANDIDATES = 64
ROUND = Round(torch.tensor([11, 7]), 99, SamplingParams(), KeyedUniforms(0))
DTYPES = [torch.float32, torch.bfloat16]


def medians(runs: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Return the median seconds of each run, taken in turns after one warm-up."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats + 1):
        for run, taken in zip(runs, seconds, strict=True):
            begin = time.perf_counter()
            run()
            taken.append(time.perf_counter() - begin)
    return [median(taken[1:]) for taken in seconds]


def logits(dtype: torch.dtype = torch.float32, vocab: int = VOCAB) -> torch.Tensor:
    """Return rows with a few likely tokens each, as a drafter's are."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(DEPTH, vocab, generator=generator) * 2
    likely = torch.randint(0, vocab, (DEPTH, 6), generator=generator)
    rows.scatter_(1, likely, torch.randn(DEPTH, 6, generator=generator) * 1.5 + 14.0)
    return rows.to(dtype)


def weights(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(*shape) * shape[-1] ** -0.5).to(dtype)


def random_draft(dtype: torch.dtype, vocab: int, hidden: int, state: int, inner: int, table: bool = False) -> Draft:
    torch.manual_seed(0)
    embedding = weights(vocab, hidden, dtype=dtype) * hidden**0.5
    input_weight = weights(3 * state, hidden, dtype=dtype)
    head = DominoCorrection(
        embed=lambda tokens: F.embedding(tokens, embedding),
        input_weight=input_weight,
        state_weight=weights(3 * state, state, dtype=dtype),
        down=weights(inner, hidden + state, dtype=dtype),
        up=weights(vocab, inner, dtype=dtype),
        input_table=input_table(lambda tokens: embedding[tokens], input_weight, vocab) if table else None,
    )
    return Draft(
        DEPTH,
        hidden=torch.randn(DEPTH, hidden).to(dtype),
        base_logits=logits(dtype, vocab),
        correction=head,
    )


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def domino_draft(request: pytest.FixtureRequest) -> Draft:
    return random_draft(request.param, VOCAB, HIDDEN, STATE, INNER)


@pytest.mark.parametrize("budget", [64, 1024])
def test_marginal_heap_costs_little_more_than_its_topk(budget: int) -> None:
    draft, scorer, builder = Draft(DEPTH, base_logits=logits()), Marginal(), Heap(budget)

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
        f"{domino_draft.base_logits.dtype}: node by node {1e3 * one:.1f} ms, with lookahead {1e3 * ahead:.1f} ms, "
        f"depth by depth {1e3 * deep:.1f} ms: {one / deep:.2f} times faster"
    )
    assert one > 4 * deep


@pytest.mark.smollm2
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_building_is_a_small_share_of_a_round(dtype: torch.dtype) -> None:
    """Against the verification alone, which is most of a round of the bundled target.

    The table of input products is small enough here for a drafter to make it.
    """
    target = load_target(BUNDLED_TARGET, dtype=str(dtype).removeprefix("torch."), device="cpu")
    draft = random_draft(dtype, target.vocab_size, target.hidden_size, 256, 128, table=True)
    cache = target.new_cache(512)
    target.prefill(torch.zeros(256, dtype=torch.int64), cache)
    marginal, conditional = Marginal(), Conditional(CANDIDATES)
    tree = Heap(32).build(draft, marginal, ROUND)

    def verify() -> None:
        target.verify(tree, cache)
        cache.commit([0])

    runs = {
        "heap, marginal": (0.15, lambda: Heap(32).build(draft, marginal, ROUND)),
        "heap, conditional": (0.15, lambda: Heap(32).build(draft, conditional, ROUND)),
        "depth-wise, conditional": (0.06, lambda: DepthWise(32, width=12).build(draft, conditional, ROUND)),
    }
    verifying, *building = medians([verify, *(run for _, run in runs.values())], repeats=15)
    for (name, _), seconds in zip(runs.items(), building, strict=True):
        print(f"{dtype} {name}: {1e3 * seconds:.1f} ms of {1e3 * verifying:.1f} ms, {seconds / verifying:.1%}")
    for (name, (bound, _)), seconds in zip(runs.items(), building, strict=True):
        assert seconds < bound * verifying, name
