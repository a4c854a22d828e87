"""Where a best-first search gets the candidates below a node from: one row a depth, or one a node, made in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from attrs import define, field, frozen
from torch import Tensor

from specforge.children import as_edges
from specforge.interfaces import Candidates, Draft, Round, Scorer, State
from specforge.strategies.host import to_host

Array = npt.NDArray[Any]

Calibrate = Callable[[int, Tensor], Tensor]
"""Maps a draft position and raw edge log-probabilities to those that the search goes by."""

Place = tuple[int, int]
"""A batch and a row of it: where a node's candidates are kept."""


@frozen(eq=False)
class HostRow:
    """The candidates of one node, best first.

    Attributes:
        tokens: token ids.
        edges: the log-probabilities to search by, at most 0; ``-inf`` marks an entry that is no candidate.
        raw: the log-probabilities as the scorer gave them; the same list as ``edges`` where uncalibrated.
    """

    tokens: list[int]
    edges: list[float]
    raw: list[float]

    @classmethod
    def of(cls, tokens: Array, edges: Array, raw: Array) -> HostRow:
        """Take one row of arrays."""
        kept = edges.tolist()
        return cls(tokens.tolist(), kept, kept if raw is edges else raw.tolist())


class Rows(Protocol):
    """The rows of a tree that is being searched."""

    def root(self) -> Place:
        """Return the root's place."""
        ...

    def row(self, place: Place) -> HostRow:
        """Return the candidates below the node at ``place``."""
        ...

    def child(self, place: Place, rank: int) -> Place:
        """Return the place of the candidate that ranks ``rank`` below the node at ``place``."""
        ...


def search_edges(candidates: Candidates, depth: int, calibrate: Calibrate | None) -> tuple[Tensor, Tensor]:
    """Return the ``[n, K]`` log-probabilities to search by and the raw ones; one tensor where uncalibrated.

    Both are at most 0; entries that are no candidates are ``-inf`` in both.
    """
    raw = as_edges(candidates.log_probs)
    return raw if calibrate is None else calibrate(depth, raw), raw


class DepthRows:
    """The rows of a path-independent scorer: each depth is expanded once, and all are copied to the host together."""

    def __init__(self, draft: Draft, scorer: Scorer, round: Round, limit: int, calibrate: Calibrate | None) -> None:
        depths = _one_row_a_depth(draft, scorer, round, limit)
        self._arrays: list[tuple[Array, Array, Array]] = []
        self._rows: dict[int, HostRow] = {}
        if not depths:
            return
        sizes = [candidates.tokens.shape[1] for candidates in depths]
        # Every operation costs its launch, so all depths go through each together, as one row.
        raw = as_edges(torch.cat([candidates.log_probs[0] for candidates in depths]))
        tensors = [torch.cat([candidates.tokens[0] for candidates in depths]), raw]
        if calibrate is not None:
            tensors.append(torch.cat([calibrate(depth, row) for depth, row in enumerate(raw.split(sizes))]))
        tokens, raw_rows, *others = (np.split(array, np.cumsum(sizes)[:-1]) for array in to_host(tensors))
        self._arrays = list(zip(tokens, others[0] if others else raw_rows, raw_rows, strict=True))

    def root(self) -> Place:
        """Return depth 0."""
        return (0, 0)

    def row(self, place: Place) -> HostRow:
        """Return the row of a depth; it becomes lists when a node first asks for it."""
        depth = place[0]
        if depth not in self._rows:
            self._rows[depth] = HostRow.of(*self._arrays[depth]) if depth < len(self._arrays) else HostRow([], [], [])
        return self._rows[depth]

    def child(self, place: Place, rank: int) -> Place:
        """Return the next depth."""
        return (place[0] + 1, 0)


def _one_row_a_depth(draft: Draft, scorer: Scorer, round: Round, limit: int) -> list[Candidates]:
    """Return the candidates of all depths down to the first that has none."""
    found: list[Candidates] = []
    state = scorer.begin(draft, round)
    only = torch.zeros(1, dtype=torch.int64, device=round.history.device)
    for depth in range(limit):
        candidates = scorer.expand(draft, depth, state)
        if candidates.tokens.shape[1] == 0:
            break
        found.append(candidates)
        if depth + 1 < limit:
            state = scorer.advance(draft, depth, state, only, candidates.tokens[0, :1])
    return found


@define(eq=False)
class Batch:
    """Nodes of one depth that were expanded together, in the total order.

    Attributes:
        depth: their depth.
        state: the scorer's state on their paths.
        tokens: ``[n, K]`` int64 candidates below them.
        edges: ``[n, K]`` float32 log-probabilities to search by.
        raw: ``[n, K]`` float32 log-probabilities as the scorer gave them.
        totals: ``[n, K]`` float32 path scores of the candidates.
        unexpanded: ``totals`` with ``-inf`` where a candidate has been expanded.
        children: the places of those that have.
    """

    depth: int
    state: State
    tokens: Array
    edges: Array
    raw: Array
    totals: Array
    unexpanded: Array = field(init=False)
    children: dict[Place, Place] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.unexpanded = self.totals.copy()


class PathRows:
    """The rows of a path-dependent scorer, a node at a time or a few ahead of need.

    When a node must be expanded, up to ``lookahead - 1`` others are expanded in the same call: the best unexpanded
    candidates below the nodes that were expanded together with its parent, as long as they are not below ``budget``
    candidates that are known. Some will be wanted soon; the others cost a row in a batch. What is wanted does not
    depend on what is at hand, so the tree is the same for any ``lookahead``.
    """

    def __init__(
        self, draft: Draft, scorer: Scorer, round: Round, budget: int, calibrate: Calibrate | None, lookahead: int
    ) -> None:
        """Expand the root.

        Args:
            draft: the round's draft.
            scorer: scores the candidates.
            round: the round.
            budget: the most nodes that will be taken.
            calibrate: maps edge log-probabilities to those that the search goes by; ``None``: by those given.
            lookahead: the most nodes to expand in one call.
        """
        self._draft = draft
        self._scorer = scorer
        self._calibrate = calibrate
        self._lookahead = lookahead
        self._batches: list[Batch] = []
        self._budget = budget
        self._best_known = np.empty(0, dtype=np.float32)
        self._add_batch(0, scorer.begin(draft, round), np.zeros(1, dtype=np.float32))

    def root(self) -> Place:
        """Return the root's place."""
        return (0, 0)

    def row(self, place: Place) -> HostRow:
        """Return the candidates below the node at ``place``."""
        batch, row = self._batches[place[0]], place[1]
        edges = batch.edges[row]
        return HostRow.of(batch.tokens[row], edges, edges if batch.raw is batch.edges else batch.raw[row])

    def child(self, place: Place, rank: int) -> Place:
        """Return the candidate's place; expand it, and others with it, where that was not done yet."""
        batch = self._batches[place[0]]
        wanted = (place[1], rank)
        if wanted not in batch.children:
            self._expand(batch, wanted)
        return batch.children[wanted]

    def _expand(self, batch: Batch, wanted: Place) -> None:
        batch.unexpanded[wanted] = np.inf
        best = np.argsort(-batch.unexpanded, axis=None, kind="stable")[: self._lookahead]
        totals = batch.unexpanded.flat[best]
        out_of_reach = self._best_known.min() if len(self._best_known) == self._budget else -np.inf
        best = best[(totals > -np.inf) & (totals >= out_of_reach)]
        rows, ranks = np.divmod(best, batch.unexpanded.shape[1])
        batch.unexpanded[rows, ranks] = -np.inf
        state = self._scorer.advance(
            self._draft,
            batch.depth,
            batch.state,
            torch.from_numpy(rows).to(self._device),
            torch.from_numpy(batch.tokens[rows, ranks]).to(self._device),
        )
        places = zip(rows.tolist(), ranks.tolist(), strict=True)
        batch.children.update({place: (len(self._batches), row) for row, place in enumerate(places)})
        self._add_batch(batch.depth + 1, state, batch.totals[rows, ranks])

    def _add_batch(self, depth: int, state: State, scores: Array) -> None:
        candidates = self._scorer.expand(self._draft, depth, state)
        edges, raw = search_edges(candidates, depth, self._calibrate)
        self._device = edges.device
        tokens, edge_rows, *others = to_host([candidates.tokens, edges] + ([] if edges is raw else [raw]))
        with np.errstate(over="ignore"):
            totals = scores[:, None] + edge_rows
        known = np.append(self._best_known, totals)
        first = max(0, len(known) - self._budget)
        self._best_known = np.partition(known, first)[first:] if first else known
        self._batches.append(Batch(depth, state, tokens, edge_rows, others[0] if others else edge_rows, totals))
