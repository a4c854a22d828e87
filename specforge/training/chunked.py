"""A loss over many rows and a wide softmax, computed a few rows at a time, forward and backward together.

The logits of a batch would be hundreds of megabytes that every operation writes to memory and reads back. Chunks whose
logits stay in the processor's cache are several times as fast, and nothing of their size is kept for the backward pass:
each chunk's gradients are taken at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

RowLoss = Callable[..., tuple[Tensor, Tensor]]
"""``(rows, *row inputs, *shared inputs)`` -> the rows' summed loss, and ``[k]`` further sums without gradient."""


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: RowLoss, size: int, by_row: int, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        needed = any(tensor.requires_grad for tensor in inputs)
        leaves = [tensor.detach().requires_grad_(needed) for tensor in inputs]
        gradients = [torch.zeros_like(tensor) for tensor in inputs] if needed else []
        totals: list[Tensor] = []
        others: list[Tensor] = []
        for start in range(0, len(inputs[0]), size):
            rows = slice(start, start + size)
            own = [leaf[rows].detach().requires_grad_(needed) for leaf in leaves[:by_row]]
            with torch.set_grad_enabled(needed):
                total, other = loss(rows, *own, *leaves[by_row:])
            if needed:
                found = torch.autograd.grad(total, [*own, *leaves[by_row:]])
                for index, gradient in enumerate(found):
                    (gradients[index][rows] if index < by_row else gradients[index]).add_(gradient)
            totals.append(total.detach())
            others.append(other.detach())
        ctx.save_for_backward(*gradients)
        further = torch.stack(others).sum(dim=0)
        ctx.mark_non_differentiable(further)
        return torch.stack(totals).sum(), further

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, None, *(upstream[0] * gradient for gradient in ctx.saved_tensors))


def sum_in_chunks(loss: RowLoss, size: int, by_row: list[Tensor], shared: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return what ``loss`` gives over all rows, ``size`` of them at a time.

    Args:
        loss: called as ``loss(rows, *by_row[rows], *shared)``; uses every input.
        size: rows of a chunk.
        by_row: tensors with a first dimension of rows, at least one.
        shared: tensors that every chunk uses whole.
    """
    return _Chunked.apply(loss, size, len(by_row), *by_row, *shared)
