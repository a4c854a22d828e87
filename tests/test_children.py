"""The best children against a plain sort, as the host and as a device finds them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from specforge import children, ordering
from specforge.children import Children, as_edges

Finder = Callable[[Tensor, Tensor, Tensor, Tensor, int], Children]
Rows = tuple[Tensor, Tensor, Tensor, Tensor]

ANY_ORDER: list[Finder] = [children._best_on_host, partial(children._best_on_device, ranked=False)]
RANKED: list[Finder] = [*ANY_ORDER, partial(children._best_on_device, ranked=True)]
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 9))


def problem(seed: int, nodes: int, candidates: int, decimals: int) -> Rows:
    """Rows in any order, with ties and with entries that are no candidates."""
    generator = torch.Generator().manual_seed(seed)
    scores = -torch.rand(nodes, generator=generator).mul(3).round(decimals=decimals).sort().values
    edges = -torch.rand(nodes, candidates, generator=generator).mul(3).round(decimals=decimals)
    edges[torch.rand(nodes, candidates, generator=generator) < 0.1] = float("-inf")
    tokens = torch.stack([torch.randperm(candidates, generator=generator) for _ in range(nodes)])
    return scores, edges, torch.rand(nodes, candidates, generator=generator), tokens


def ranked(scores: Tensor, edges: Tensor, raw: Tensor, tokens: Tensor) -> Rows:
    """Sort every row, best first."""
    edges, columns = edges.sort(dim=1, descending=True, stable=True)
    return scores, edges, raw.gather(1, columns), tokens.gather(1, columns)


def by_sorting(scores: Tensor, edges: Tensor, raw: Tensor, tokens: Tensor, width: int) -> list[tuple[float, ...]]:
    totals, gains = (scores[:, None] + edges).tolist(), edges.tolist()
    places = [(row, column) for row in range(edges.shape[0]) for column in range(edges.shape[1])]
    best = sorted(places, key=lambda at: (-totals[at[0]][at[1]], at[0], -gains[at[0]][at[1]], at[1]))[:width]
    return [(totals[r][k], r, int(tokens[r, k]), float(raw[r, k])) for r, k in best]


def lines(found: Children) -> list[tuple[float, ...]]:
    columns = [tensor.tolist() for tensor in attrs.astuple(found, recurse=False)]
    return list(zip(*columns, strict=True))


@settings(max_examples=60)
@given(st.integers(0, 99), SHAPES, st.integers(0, 2), st.integers(1, 30))
def test_are_the_best_in_the_total_order(seed: int, shape: tuple[int, int], decimals: int, width: int) -> None:
    given_rows = problem(seed, *shape, decimals)
    for find in ANY_ORDER:
        assert lines(find(*given_rows, width)) == by_sorting(*given_rows, width)
    in_order = ranked(*given_rows)
    for find in RANKED:
        assert lines(find(*in_order, width)) == by_sorting(*in_order, width)


def test_rounding_makes_ties_that_edges_decide() -> None:
    """Beside a large score small edges differ by less than the sum can show."""
    scores = torch.tensor([-3e8])
    edges = torch.tensor([[-2.0, -1.0, -1.0, -0.5]])
    tokens = torch.tensor([[7, 8, 9, 10]])
    for find in ANY_ORDER:
        found = find(scores, edges, edges, tokens, 3)
        assert found.scores.tolist() == [scores.item()] * 3
        assert found.tokens.tolist() == [10, 8, 9]
    broken = children._best_on_device(scores, edges, edges, tokens, 3, ranked=True)
    assert broken.tokens.tolist() == [7, 8, 9], "a false promise of order shows"


@pytest.mark.parametrize("find", RANKED)
def test_keep_dtypes_and_take_rows_that_are_views(find: Finder) -> None:
    rows, tokens = torch.tensor([[-0.1, -0.4, -0.7]]).expand(3, -1), torch.tensor([[5, 4, 3]]).expand(3, -1)
    found = find(torch.tensor([-0.3]).expand(3), rows, rows, tokens, 4)
    assert [found.scores.dtype, found.rows.dtype, found.tokens.dtype, found.edges.dtype] == [
        torch.float32,
        torch.int64,
        torch.int64,
        torch.float32,
    ]
    assert found.rows.tolist() == [0, 1, 2, 0]
    assert found.tokens.tolist() == [5, 5, 5, 4]


@pytest.mark.parametrize("host", [True, False])
def test_no_candidates_give_no_children(host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "on_host", lambda tensor: host)
    nothing = torch.empty(2, 0)
    found = children.best_children(torch.zeros(2), nothing, nothing, nothing.to(torch.int64), 4)
    assert found.rows.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_edges_are_at_most_zero(dtype: torch.dtype) -> None:
    given_log_probs = torch.tensor([0.5, float("nan"), float("-inf"), -1.5, 0.0, float("inf")], dtype=dtype)
    kept = given_log_probs.clone()
    found = as_edges(given_log_probs)
    assert found.tolist() == [0.0, float("-inf"), float("-inf"), -1.5, 0.0, 0.0]
    assert found.dtype == dtype
    assert torch.equal(given_log_probs.nan_to_num(), kept.nan_to_num())
