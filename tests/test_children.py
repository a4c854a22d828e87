"""The best children against a plain sort, on either side of where the host stops sorting."""

from __future__ import annotations

import attrs
import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from specforge import children
from specforge.children import as_edges, best_children


def problem(seed: int, nodes: int, candidates: int, decimals: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = -torch.rand(nodes, generator=generator).mul(3).round(decimals=decimals).sort().values
    edges = -torch.rand(nodes, candidates, generator=generator).mul(3).round(decimals=decimals).sort(dim=1).values
    edges[torch.rand(nodes, candidates, generator=generator) < 0.1] = float("-inf")
    tokens = torch.stack([torch.randperm(candidates, generator=generator) for _ in range(nodes)])
    return scores, as_edges(edges), torch.rand(nodes, candidates, generator=generator), tokens


def by_sorting(scores: Tensor, edges: Tensor, raw: Tensor, tokens: Tensor, width: int) -> list[tuple[float, ...]]:
    totals = (scores[:, None] + edges).tolist()
    places = [(row, rank) for row in range(edges.shape[0]) for rank in range(edges.shape[1])]
    best = sorted(places, key=lambda place: (-totals[place[0]][place[1]], place))[:width]
    return [(totals[r][k], r, int(tokens[r, k]), float(raw[r, k])) for r, k in best]


@settings(max_examples=60)
@given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2), st.integers(1, 30), st.booleans())
def test_are_the_best_in_the_total_order(
    seed: int, nodes: int, candidates: int, decimals: int, width: int, sorted_on_host: bool
) -> None:
    given_rows = problem(seed, nodes, candidates, decimals)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children, "_FEW_CANDIDATES", 1024 if sorted_on_host else 0)
        found = best_children(*given_rows, width)
    columns = [tensor.tolist() for tensor in attrs.astuple(found, recurse=False)]
    assert list(zip(*columns, strict=True)) == by_sorting(*given_rows, width)


@pytest.mark.parametrize("few", [0, 1024])
def test_keep_dtypes_and_take_rows_that_are_views(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_FEW_CANDIDATES", few)
    scores, edges, _, tokens = problem(1, 1, 5, 2)
    rows = edges.expand(3, -1)
    found = best_children(scores.expand(3), rows, rows, tokens.expand(3, -1), 4)
    assert [found.scores.dtype, found.rows.dtype, found.tokens.dtype, found.edges.dtype] == [
        torch.float32,
        torch.int64,
        torch.int64,
        torch.float32,
    ]
    assert found.rows.tolist() == [0, 1, 2, 0]
