"""The step from one depth of a tree to the next: of all candidates below some nodes, the best."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from specforge import ordering
from specforge.ordering import exact_topk

NO_CANDIDATE = float("-inf")


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
    """Return log-probabilities ``[n, K]`` as edges: at most 0, with NaN as ``-inf``."""
    return torch.nan_to_num(log_probs, nan=NO_CANDIDATE, posinf=0.0, neginf=NO_CANDIDATE).clamp_(max=0.0)


def best_children(
    scores: Tensor, edges: Tensor, raw: Tensor, tokens: Tensor, width: int, ranked: bool = False
) -> Children:
    """Return the ``width`` best children, or all if there are fewer.

    The best are those of the highest path score; of equal ones those of the first parent, then those of the highest
    edge, then those of the first column.

    Args:
        scores: ``[n]`` float32 path scores of the parents, at least one, in the total order.
        edges: ``[n, K]`` float32, what a child's score gains, at most 0; ``-inf``, never NaN, where there is no
            candidate.
        raw: ``[n, K]`` float32, the edges to report.
        tokens: ``[n, K]`` int64.
        width: how many, at least 1.
        ranked: promises that edges fall along a row, which saves a device from sorting.
    """
    if edges.shape[1] == 0:
        nothing = tokens.flatten()
        return Children(edges.flatten(), nothing, nothing, raw.flatten())
    if ordering.on_host(edges):
        return _best_on_host(scores, edges, raw, tokens, width)
    return _best_on_device(scores, edges, raw, tokens, width, ranked)


def _best_on_device(scores: Tensor, edges: Tensor, raw: Tensor, tokens: Tensor, width: int, ranked: bool) -> Children:
    """Do it with a few operations, none of which waits."""
    if not ranked:
        edges, columns = exact_topk(edges, width)
        raw, tokens = raw.gather(1, columns), tokens.gather(1, columns)
    # Row-major order is then the order of ties.
    best, chosen = exact_topk((scores[:, None] + edges).flatten(), width)
    return Children(best, chosen // edges.shape[1], tokens.take(chosen), raw.take(chosen))


def _best_on_host(scores: Tensor, edges: Tensor, raw: Tensor, tokens: Tensor, width: int) -> Children:
    """Do it with NumPy, whose operations take the host a fraction of the time to begin."""
    gains, totals = edges.numpy(), (scores[:, None] + edges).numpy().ravel()
    least = np.partition(totals, -width)[-width] if width < len(totals) else -np.inf
    places = np.flatnonzero(totals >= least)
    rows, columns = np.divmod(places, gains.shape[1])
    best = np.lexsort((-gains[rows, columns], rows, -totals[places]))[:width]
    rows, columns = rows[best], columns[best]
    found = totals[places[best]], rows, tokens.numpy()[rows, columns], raw.numpy()[rows, columns]
    return Children(*(torch.from_numpy(array) for array in found))
