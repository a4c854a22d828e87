"""Exact top-k: which entries are best, and in what order, down to the last tie.

``torch.topk`` leaves it open which of several equal entries it returns and in what order. Trees must not depend on
that: in bf16, ties among the best logits are common, and builders are compared entry by entry.
"""

from __future__ import annotations

from math import isnan
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_Floats = npt.NDArray[np.float32]
_Indices = npt.NDArray[np.int64]
_Bits = TypeVar("_Bits", Tensor, npt.NDArray[np.int32])

_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_SMALL_ROW = 4096
"""Longest row that a stable sort on the device serves at least as fast as a selection."""
_FEW_ENTRIES = 256
"""Most entries that the host sorts faster than it selects among them."""
_CHUNK = 32
"""Entries that share a maximum in the first pass over a long row."""
_FEW_CHUNKS = 32
"""A search of ``k`` chunks is faster than a pass over all entries if there are so many times more of them."""


def on_host(tensor: Tensor) -> bool:
    """Whether ``tensor`` may be read without waiting, so that NumPy can serve: it begins faster than PyTorch does."""
    return tensor.device.type == "cpu"


def exact_topk(scores: Tensor, k: int, shift: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the ``k`` highest entries of each row, highest first; among equals, smaller indices come first.

    That holds for the choice as for the order: of entries equal to the last one chosen, those with the smallest
    indices are in. NaN counts as ``-inf``. On a CUDA device nothing waits for the host.

    Args:
        scores: ``[..., V]`` bfloat16, float16 or float32.
        k: how many, at least 1; a row of fewer entries gives all of them.
        shift: ``[..., 1]`` float32 subtracted, in float32, before entries are compared: rounding may then make
            different entries equal.

    Returns:
        values ``[..., min(k, V)]``, float32 where a ``shift`` was given, else of the dtype of ``scores``; and their
        int64 indices.

    Raises:
        TypeError: for another dtype.
        ValueError: for ``k`` below 1.
    """
    if scores.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise TypeError(f"exact_topk takes bfloat16, float16 or float32, not {scores.dtype}")
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    rows = scores.reshape(-1, scores.shape[-1])
    # The host compares 16-bit floats slowly. Shifted ones are compared in float32 everywhere.
    rows = rows.float() if on_host(rows) or shift is not None else rows
    k = min(k, rows.shape[1])
    values, indices = _select(rows, k, None if shift is None else shift.reshape(-1, 1))
    values = values.to(scores.dtype) if shift is None else values
    if scores.ndim == 2:
        return values, indices
    shape = (*scores.shape[:-1], k)
    return values.reshape(shape), indices.reshape(shape)


def exact_topk_columns(scores: Tensor, k: int) -> Tensor:
    """Return the indices that ``exact_topk`` chooses, ascending: ``[n, min(k, V)]`` int64 of ``[n, V]``."""
    return exact_topk(scores, k)[1].sort(dim=-1).values


def _select(rows: Tensor, k: int, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    long = 2 * (k + 1) * _CHUNK <= rows.shape[1]
    if on_host(rows) and k == 1:
        return _select_first(rows, shift)
    if on_host(rows):
        return _select_above_threshold(rows, k, shift) if long else _select_on_host(rows, k, shift)
    keys = comparable(rows if shift is None else rows - shift)
    return _select_in_chunks(keys, k) if long else _select_whole(keys, k)


def _select_above_threshold(rows: Tensor, k: int, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """Select among the entries that reach the ``k``-th highest of the chunks' maxima, which ``k`` entries do.

    One cheap pass over the rows finds the thresholds; the few entries above them are in the few chunks that reach
    them, or, where those are no longer few, found by a second pass.
    """
    maxima = _spread_maxima(rows)
    highest = np.partition(maxima, (-k, -1), axis=1)[:, -k:]
    # A maximum keeps NaN, and NumPy ranks it above all numbers.
    if any(map(isnan, highest[:, -1].tolist())) or not (shift is None or bool(shift.isfinite().all())):
        return _select_above_threshold(comparable(rows if shift is None else rows - shift), k, None)
    thresholds, shifts = highest[:, :1], None if shift is None else shift.numpy()
    if shifts is not None:
        thresholds = np.where(np.isinf(thresholds), thresholds, thresholds - _slack(thresholds, shifts))
    entries = rows.numpy()
    few = _FEW_CHUNKS * k <= maxima.shape[1]
    lines, columns = _search_chunks(entries, maxima, thresholds) if few else _places(entries >= thresholds)
    falling = (np.float32(0) if shifts is None else shifts[lines, 0]) - entries[lines, columns] + np.float32(0)
    keys = (_in_order(falling.view(np.int32)).astype(np.int64) << _INDEX_BITS) | columns
    # The host sorts plain integers several times as fast as it ranks entries by two arrays.
    ends = np.searchsorted(lines, np.arange(len(entries)), side="right").tolist()
    best = np.empty((len(entries), k), dtype=np.int64)
    for row, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        best[row] = np.sort(keys[start:end])[:k]
    values = 0 - _in_order((best >> _INDEX_BITS).astype(np.int32)).view(np.float32)
    return torch.from_numpy(values), torch.from_numpy(best & _INDEX_MASK)


def _select_first(rows: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """Select one entry a row, which NumPy finds in a pass; of those before it, one may be equal once shifted."""
    entries = rows.numpy()
    columns = entries.argmax(axis=1)[:, None]
    highest = torch.from_numpy(np.take_along_axis(entries, columns, axis=1))
    values = (highest if shift is None else highest - shift) + 0.0
    if bool(values.isnan().any()) or not (shift is None or bool(values.isfinite().all())):
        return _select_first(comparable(rows if shift is None else rows - shift), None)
    if shift is not None:
        shifts, found = shift.numpy(), values.numpy()
        least = highest.numpy() - _slack(highest.numpy(), shifts)
        for line, column in enumerate(columns[:, 0].tolist()):
            near = np.flatnonzero(entries[line, :column] >= least[line])
            tied = near[entries[line, near] - shifts[line] == found[line]]
            columns[line] = tied[0] if len(tied) else column
    return values, torch.from_numpy(columns)


def _slack(values: _Floats, shifts: _Floats) -> _Floats:
    """Return how far below ``values`` an entry may be that equals them once shifted: a rounding or two."""
    return np.float32(4 * torch.finfo(torch.float32).eps) * (np.abs(values) + np.abs(shifts))


def _search_chunks(entries: _Floats, maxima: _Floats, thresholds: _Floats) -> tuple[_Indices, _Indices]:
    """Return the lines, ascending, and the columns of the entries that reach their line's threshold."""
    chunks = maxima.shape[1]
    lines, chosen = _places(maxima >= thresholds)
    columns = chosen[:, None] + chunks * np.arange(-(-entries.shape[1] // chunks))
    within = columns < entries.shape[1]
    values = entries[lines[:, None], np.where(within, columns, 0)]
    places, members = _places(within & (values >= thresholds[lines]))
    return lines[places], columns[places, members]


def _places(true: npt.NDArray[np.bool_]) -> tuple[_Indices, _Indices]:
    """Return the rows, ascending, and the columns of what is true; ``np.nonzero`` would take several times as long."""
    return np.divmod(np.flatnonzero(true), true.shape[1])


def _in_order(bits: _Bits) -> _Bits:
    """Map the int32 bits of floats to integers in their order, or back.

    As integers floats order by their bits, negative ones the wrong way round, until their magnitude is inverted.
    """
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _spread_maxima(rows: Tensor) -> _Floats:
    """Return the maxima of chunks of at least ``_CHUNK`` entries that lie far apart, ``[n, V // _CHUNK]``.

    Chunk ``c`` of ``C`` is the columns ``c, c + C, c + 2C, ...``: those are compared a vector of columns at a time.
    """
    count = rows.shape[1] // _CHUNK
    whole = rows.shape[1] // count
    maxima = rows[:, : whole * count].unflatten(1, (whole, count)).amax(dim=1).numpy()
    if whole * count < rows.shape[1]:
        rest = rows[:, whole * count :].numpy()
        first = maxima[:, : rest.shape[1]]
        np.maximum(first, rest, out=first)
    return maxima


def _select_in_chunks(keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Select among the ``k`` chunks of highest maximum, which hold all of the ``k`` highest entries.

    An entry outside them has ``k`` entries before it, one a chosen chunk: higher, or equal and of a smaller index,
    since chunks are runs of indices. One cheap pass over the row replaces a selection over it.
    """
    chunks = keys.unfold(1, _CHUNK, _CHUNK)
    chosen = _select_whole(chunks.amax(dim=-1), k)[1].sort(dim=-1).values
    lines = torch.arange(keys.shape[0], device=keys.device)[:, None]
    rest = keys[:, chunks.shape[1] * _CHUNK :]
    entries = chunks[lines, chosen].flatten(1)
    entries = torch.cat([entries, rest], dim=1) if rest.shape[1] else entries
    values, places = _select_whole(entries, k)
    # The entries after the last whole chunk follow the chosen ones, as if they were one chunk more.
    chosen = torch.nn.functional.pad(chosen, (0, 1), value=chunks.shape[1])
    return values, chosen.gather(1, places // _CHUNK) * _CHUNK + places % _CHUNK


def _select_whole(keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return _select_by_sorting(keys, k) if keys.shape[1] <= _SMALL_ROW else _select_by_composite_keys(keys, k)


def comparable(scores: Tensor) -> Tensor:
    """Return ``scores`` with NaN as ``-inf`` and without negative zeros, so that equal entries have equal bits."""
    return torch.where(scores.isnan(), float("-inf"), scores) + 0.0


def _select_by_sorting(keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, indices = keys.sort(dim=-1, descending=True, stable=True)
    return values[:, :k], indices[:, :k]


def _select_by_composite_keys(keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Select on int64 keys that hold the value above and the index, reversed, below: no two are equal."""
    ordered = _in_order(keys.float().view(torch.int32)).to(torch.int64)
    reversed_index = _INDEX_MASK - torch.arange(keys.shape[1], device=keys.device)
    best = torch.topk((ordered << _INDEX_BITS) | reversed_index, k).values
    indices = _INDEX_MASK - (best & _INDEX_MASK)
    return keys.gather(1, indices), indices


def _select_on_host(rows: Tensor, k: int, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    """Select with a sort where entries are few, else with ``torch.topk``, repairing what ties may have spoilt.

    ``torch.topk`` ranks NaN first, so one look at the result tells whether there are any.
    """
    if rows.numel() <= _FEW_ENTRIES:
        return _select_by_host_sort(rows if shift is None else rows - shift, k)
    values, indices = torch.topk(rows, min(k + 1, rows.shape[1]))
    if shift is not None:
        values = values - shift
    found = values.numpy()
    if np.isnan(found).any():
        return _select_on_host(comparable(rows if shift is None else rows - shift), k, None)
    if not (found[:, 1:] == found[:, :-1]).any():
        return values[:, :k], indices[:, :k]
    chosen = indices[:, :k].clone()
    if values.shape[1] > k:
        for row in torch.nonzero(values[:, k - 1] == values[:, k])[:, 0].tolist():
            last = values[row, k - 1]
            above = int((values[row, :k] > last).sum())
            entries = rows[row] if shift is None else rows[row] - shift[row]
            chosen[row, above:] = torch.nonzero(entries == last)[: k - above, 0]
    return _ordered(values[:, :k], chosen)


def _select_by_host_sort(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, indices = _sort_on_host(rows, k)
    if not (values[:, -1] > -np.inf).all():
        # NaN, which sorts last, may have to come before some of the chosen -inf.
        values, indices = _sort_on_host(comparable(rows), k)
    return torch.from_numpy(values), torch.from_numpy(indices)


def _sort_on_host(rows: Tensor, k: int) -> tuple[_Floats, _Indices]:
    entries = rows.numpy()
    indices = (-entries).argsort(axis=1, kind="stable")[:, :k]
    return np.take_along_axis(entries, indices, axis=1), indices


def _ordered(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Order entries by falling value, then by rising index. ``values`` fall already; equal ones may swap indices."""
    # Indices are below 2**32 and equal values have equal ranks, so one integer sort orders by (rank, index).
    rank = torch.zeros_like(indices)
    rank[:, 1:] = (values[:, 1:] != values[:, :-1]).cumsum(1)
    return values, ((rank << _INDEX_BITS) | indices).sort(dim=-1).values & _INDEX_MASK
