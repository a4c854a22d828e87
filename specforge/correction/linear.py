"""Products of a few rows with a weight, whichever way round is faster on the device at hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

FEW_ROWS = 256
"""Above this, ``x W^T`` is the faster way round."""
LARGE_WEIGHT = 1 << 20
"""Weights of fewer entries stay in the cache, and neither way is faster."""
BLOCKED_ROWS = 6
"""Up to this many float32 rows, ``x W^T`` runs over the weight a few rows at a time and packs nothing."""


def project(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``rows [n, in]`` times ``weight [out, in]`` transposed, plus ``bias [out]``: ``[n, out]``, of any strides.

    All is done in the dtype of ``weight``. The host's matrix library packs its right-hand operand at every call.
    ``(W x^T)^T`` makes that operand the few rows and not the weight.
    """
    rows = rows.to(weight.dtype)
    large = rows.device.type == "cpu" and weight.numel() >= LARGE_WEIGHT
    if not large or rows.shape[0] > FEW_ROWS or not _pays(rows):
        return F.linear(rows, weight, bias)
    product = torch.mv(weight, rows[0])[None] if rows.shape[0] == 1 else torch.mm(weight, rows.t()).t()
    return product if bias is None else product.add_(bias)


def project_at(source: Callable[[Tensor], Tensor], index: Tensor, weight: Tensor) -> Tensor:
    """Return ``source(index)`` times ``weight`` transposed, for ``index`` ``[m]``: ``[m, out]``.

    Nodes of a tree share parents and, at one depth, tokens. On the host a large weight meets each of them once; a
    device would have to wait to learn which they are.
    """
    if index.device.type != "cpu" or index.shape[0] == 1 or weight.numel() < LARGE_WEIGHT:
        return project(source(index), weight)
    distinct, place = torch.unique(index, return_inverse=True)
    return project(source(distinct), weight).index_select(0, place)


def _pays(rows: Tensor) -> bool:
    if rows.dtype == torch.bfloat16:
        return rows.shape[0] > 0 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return rows.dtype == torch.float32 and rows.shape[0] > BLOCKED_ROWS


def column_major(weight: Tensor) -> Tensor:
    """Return ``weight`` ``[out, in]`` laid out by columns, as the host's library wants the weight of a few rows."""
    return weight.t().contiguous().t()
