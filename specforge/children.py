"""The step from one depth of a tree to the next: of all candidates below some nodes, the best."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from specforge.ordering import exact_topk

NO_CANDIDATE = float("-inf")
_FEW_CANDIDATES = 1024
"""Most candidates that the host sorts, not selects among."""


@frozen(eq=False)
class Children:
    """Nodes of one depth, in the total order. Entries of score ``-inf`` are no nodes, and mean nothing.

    Attributes:
        scores: ``[m]`` float32 path scores.
        rows: ``[m]`` int64, the row of the parent among those that were expanded.
        tokens: ``[m]`` int64.
        edges: ``[m]`` float32 log-probabilities given the parent, as the scorer gave them, at most 0.
    """

    scores: Tensor
    rows: Tensor
    tokens: Tensor
    edges: Tensor


def as_edges(log_probs: Tensor) -> Tensor:
    """Return log-probabilities that are at most 0, with NaN as ``-inf``."""
    return torch.nan_to_num(log_probs, nan=NO_CANDIDATE, posinf=0.0, neginf=NO_CANDIDATE).clamp_(max=0.0)


def best_children(scores: Tensor, edges: Tensor, raw: Tensor, tokens: Tensor, width: int) -> Children:
    """Return the ``width`` best children, or all if there are fewer: by path score, then by parent, then by rank.

    Args:
        scores: ``[n]`` float32 path scores of the parents, in the total order.
        edges: ``[n, K]`` float32, what a child's score gains, at most 0; ``-inf`` where there is no candidate.
        raw: ``[n, K]`` float32, the edges to report.
        tokens: ``[n, K]`` int64, each row best first.
        width: how many, at least 1.
    """
    # Row-major order is the order of ties: first by parent, then by rank in the parent's row.
    if edges.device.type == "cpu" and edges.numel() <= _FEW_CANDIDATES:
        return _best_on_host(scores, edges, raw, tokens, width)
    best, chosen = exact_topk((scores[:, None] + edges).flatten(), width)
    return Children(best, chosen // edges.shape[1], tokens.take(chosen), raw.take(chosen))


def _best_on_host(scores: Tensor, edges: Tensor, raw: Tensor, tokens: Tensor, width: int) -> Children:
    """Do the same with NumPy, whose operations take the host a fraction of the time to begin."""
    with np.errstate(over="ignore"):
        totals = (scores.numpy()[:, None] + edges.numpy()).ravel()
    chosen = (-totals).argsort(kind="stable")[:width]
    rows, ranks = np.divmod(chosen, edges.shape[1])
    found = totals[chosen], rows, tokens.numpy()[rows, ranks], raw.numpy()[rows, ranks]
    return Children(*(torch.from_numpy(array) for array in found))
