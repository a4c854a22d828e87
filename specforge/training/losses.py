"""The loss of a batch of blocks: sparse soft targets, position weights, Domino's anchored mixture."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from specforge.training.vocabulary import SoftmaxColumns


@frozen(eq=False)
class SparseTargets:
    """What each of ``R`` rows should predict, as a distribution over a few columns.

    Attributes:
        columns: ``[R, K + 1]`` int64.
        weights: ``[R, K + 1]`` float32; every row sums to 1.
    """

    columns: Tensor
    weights: Tensor

    def __getitem__(self, rows: slice) -> SparseTargets:
        """Return the targets of some rows."""
        return SparseTargets(self.columns[rows], self.weights[rows])


def mix_targets(
    labels: Tensor, top_tokens: Tensor, top_log_probs: Tensor, columns: SoftmaxColumns, distillation: float
) -> SparseTargets:
    """Mix the chosen token with the target's own distribution.

    The distribution is that over its cached best tokens which have an exact column, normalised; where none has one,
    the chosen token gets all the weight.

    Args:
        labels: ``[R]`` int64, tokens with an exact column.
        top_tokens: ``[R, K]`` int64.
        top_log_probs: ``[R, K]`` float32.
        columns: the softmax's columns.
        distillation: weight of the distribution.
    """
    places = columns.column_of[top_tokens]
    soft = top_log_probs.exp() * (places >= 0)
    total = soft.sum(dim=-1, keepdim=True)
    share = distillation * (total > 0)
    soft = share * soft / total.clamp_min(torch.finfo(soft.dtype).tiny)
    return SparseTargets(
        torch.cat([columns.column_of[labels][:, None], places.clamp_min(0)], dim=-1),
        torch.cat([1.0 - share, soft], dim=-1),
    )


def cross_entropy(logits: Tensor, targets: SparseTargets) -> Tensor:
    """Return ``[R]``, the cross entropy of ``logits`` ``[R, M]`` with sparse targets."""
    log_probs = torch.log_softmax(logits, dim=-1)
    return -(log_probs.gather(1, targets.columns) * targets.weights).sum(dim=-1)


def position_weights(depth: int, decay: float, device: torch.device) -> Tensor:
    """Return ``[D]`` float32, ``exp(-d / decay)``: an error early in a block costs all that follows."""
    return torch.exp(-torch.arange(depth, device=device) / decay)


def base_weight(share_done: float, floor: float, until: float) -> float:
    """Return λ: 1 at the start, ``floor`` from the share ``until`` of the run on, linear between."""
    return max(floor, 1.0 - (1.0 - floor) * share_done / until)


def leading_correct(correct: Tensor) -> Tensor:
    """Return ``[n]`` int64, how many positions from the first on are right in a row, of ``[n, D]`` bool."""
    return correct.long().cumprod(dim=-1).sum(dim=-1)
