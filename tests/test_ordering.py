"""Exact top-k against a stable sort, with every kind of tie, and the ways to get it wrong."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from specforge import ordering
from specforge.ordering import exact_topk

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Topk = Callable[[Tensor, int, "Tensor | None"], tuple[Tensor, Tensor]]


def reference(scores: Tensor, k: int, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    keys = scores.float() if shift is None else scores.float() - shift
    keys = torch.where(keys.isnan(), float("-inf"), keys) + 0.0
    values, indices = keys.sort(dim=-1, descending=True, stable=True)
    return values[..., :k], indices[..., :k]


def by_composite_keys(scores: Tensor, k: int, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    keys = ordering.comparable(scores.float() if shift is None else scores.float() - shift)
    return ordering._select_by_composite_keys(keys, min(k, keys.shape[1]))


def by_sorting(scores: Tensor, k: int, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    keys = ordering.comparable(scores.float() if shift is None else scores.float() - shift)
    return ordering._select_by_sorting(keys, min(k, keys.shape[1]))


def in_chunks(scores: Tensor, k: int, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    keys = ordering.comparable(scores.float() if shift is None else scores.float() - shift)
    k = min(k, keys.shape[1])
    select = ordering._select_in_chunks if keys.shape[1] >= 2 * k * ordering._CHUNK else ordering._select_whole
    return select(keys, k)


def test_no_rows_have_no_best() -> None:
    values, indices = exact_topk(torch.empty(0, 5000), 3)
    assert values.shape == indices.shape == (0, 3)


def test_zeros_come_back_without_a_sign() -> None:
    values, _ = exact_topk(torch.where(torch.arange(5000) % 2 == 0, -0.0, 0.0)[None], 4)
    assert not values.signbit().any()


def check(topk: Topk, scores: Tensor, k: int, shift: Tensor | None) -> None:
    values, indices = topk(scores, k, shift)
    best, where = reference(scores, k, shift)
    assert torch.equal(indices, where)
    assert torch.equal(values.float(), best)


def rows(seed: int, lines: int, width: int, dtype: torch.dtype, decimals: int, holes: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.randn(lines, width, generator=generator) * 3).round(decimals=decimals)
    kind = torch.rand(lines, width, generator=generator)
    scores[kind < holes] = float("-inf")
    scores[kind > 1 - holes / 4] = float("nan")
    scores[(kind > 0.5) & (kind < 0.5 + holes)] = -0.0
    return scores.to(dtype)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, int, Tensor | None]:
    width = draw(st.integers(1, 400))
    decimals, holes = draw(st.integers(0, 3)), draw(st.sampled_from([0.0, 0.1, 0.9]))
    scores = rows(
        draw(st.integers(0, 2**31)), draw(st.integers(1, 4)), width, draw(st.sampled_from(DTYPES)), decimals, holes
    )
    k = draw(st.sampled_from([1, 2, 3, 7, 50, 1000]))
    return scores, k, torch.logsumexp(scores.float(), -1, keepdim=True) if draw(st.booleans()) else None


@pytest.fixture(params=[2, 32], ids=lambda chunk: f"chunk {chunk}")
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With short chunks, short rows are searched chunk by chunk too."""
    monkeypatch.setattr(ordering, "_CHUNK", request.param)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("topk", [exact_topk, by_composite_keys, by_sorting, in_chunks], ids=lambda topk: topk.__name__)
@settings(max_examples=150, suppress_health_check=[])
@given(problem=problems())
def test_is_a_stable_sort_cut_short(topk: Topk, problem: tuple[Tensor, int, Tensor | None]) -> None:
    check(topk, *problem)


def not_exact(scores: Tensor, k: int, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    scores = ordering.comparable(scores.float() if shift is None else scores.float() - shift)
    return torch.topk(scores, min(k, scores.shape[1]))


def ordered_before_rounding(scores: Tensor, k: int, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    values, indices = exact_topk(scores.float(), k)
    return (values if shift is None else ordering.comparable(values - shift)), indices


def highest_index_first(scores: Tensor, k: int, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    values, indices = exact_topk(scores.flip(-1), k, shift)
    return values, scores.shape[-1] - 1 - indices


def ties_repaired_inside_only(scores: Tensor, k: int, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    values, indices = not_exact(scores, k, shift)
    return ordering._ordered(values, indices)


@pytest.mark.parametrize("mutant", [not_exact, ordered_before_rounding, highest_index_first, ties_repaired_inside_only])
def test_catches(mutant: Topk) -> None:
    wrong = 0
    for seed in range(60):
        scores = rows(seed, 3, 300, torch.float32, seed % 2, 0.1) + (1e4 if seed % 3 == 0 else 0.0)
        # Around 1e4, log-probabilities are rounded to a thousandth: entries tie that did not before.
        scores += torch.rand(3, 300, generator=torch.Generator().manual_seed(seed)) * 1e-3 * (seed % 2)
        shift = torch.full((3, 1), 3e4) if mutant is ordered_before_rounding else None
        check(exact_topk, scores, 40, shift)
        try:
            check(mutant, scores, 40, shift)
        except AssertionError:
            wrong += 1
    assert wrong > 5


def test_catches_chunks_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = rows(3, 4, 2000, torch.float32, 0, 0.0)
    monkeypatch.setattr(ordering, "_CHUNK", 16)
    check(in_chunks, scores, 5, None)
    whole = ordering._select_whole

    def last_chunks_first(keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
        values, indices = whole(keys.flip(-1), k)
        return values, keys.shape[-1] - 1 - indices

    monkeypatch.setattr(ordering, "_select_whole", last_chunks_first)
    with pytest.raises(AssertionError):
        check(in_chunks, scores, 5, None)


def test_catches_a_threshold_without_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries below the threshold may tie with it once shifted, and then rank by index."""
    scores = torch.zeros(1, 4000)
    scores[0, 3000:3100] = 2**-12
    shift = torch.full((1, 1), 65536.0)
    assert exact_topk(scores, 3, shift)[1].tolist() == [[0, 1, 2]]
    assert exact_topk(scores, 1, shift)[1].tolist() == [[0]]
    monkeypatch.setattr(ordering.torch, "finfo", lambda dtype: SimpleNamespace(eps=0.0))
    assert exact_topk(scores, 3, shift)[1].tolist() == [[3000, 3001, 3002]]
    assert exact_topk(scores, 1, shift)[1].tolist() == [[3000]]


def test_keeps_leading_shape_and_dtype() -> None:
    scores = torch.arange(24.0).reshape(2, 3, 4).to(torch.bfloat16)
    values, indices = exact_topk(scores, 9)
    assert values.shape == indices.shape == (2, 3, 4)
    assert values.dtype == torch.bfloat16
    assert indices.dtype == torch.int64
    values, indices = exact_topk(scores, 2, shift=torch.ones(2, 3, 1))
    assert values.dtype == torch.float32
    assert values[0, 0].tolist() == [2.0, 1.0]
    assert exact_topk(scores[0, 0], 1)[1].tolist() == [3]


def test_does_not_write_to_its_input() -> None:
    scores = rows(1, 2, 50, torch.float32, 0, 0.9)
    before = scores.clone()
    exact_topk(scores, 7)
    assert torch.equal(scores.nan_to_num(9.0), before.nan_to_num(9.0))


def test_refuses_what_it_cannot_rank() -> None:
    with pytest.raises(TypeError, match="float64"):
        exact_topk(torch.zeros(1, 3, dtype=torch.float64), 1)
    with pytest.raises(ValueError, match="k is 0"):
        exact_topk(torch.zeros(1, 3), 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [50, 5000, 100_000])
def test_device_agrees_with_host(dtype: torch.dtype, width: int) -> None:
    for seed in range(8):
        scores = rows(seed, 3, width, dtype, seed % 3, 0.1)
        for shift in (None, torch.full((3, 1), 2.5)):
            values, indices = exact_topk(scores.cuda(), 33, None if shift is None else shift.cuda())
            check(lambda *_, v=values, i=indices: (v.cpu(), i.cpu()), scores, 33, shift)
