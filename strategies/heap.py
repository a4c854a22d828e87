"""The best-first builder: DDTree's heap (arXiv:2604.12989), with CaDDTree's cost-aware stop (arXiv:2606.01813).

With a conditional scorer it is DominoTree, and with both CondAdaptive.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING

import torch
from attrs import define, field
from attrs.validators import optional

from specforge.interfaces import Draft, Drafter, Round, Scorer, TreeBuilder, Verdict
from specforge.registry import register
from specforge.strategies.budget import BudgetPolicy, BudgetRun, CalibrationOption, CostModelOption
from specforge.strategies.depthwise import Plan, SameWidth, grow_on_host, replayable
from specforge.strategies.expansion import DepthRows, HostRow, PathRows, Place, Rows
from specforge.strategies.options import whole
from specforge.tree import DraftTree

if TYPE_CHECKING:
    from specforge.target import Target

_NO_CANDIDATE = float("-inf")
_LOOKAHEAD = 16

_Offer = tuple[float, int, int, int]
"""Negated score, depth, parent, rank: tuples in this order are in the total order of nodes, best first.

Nodes are numbered as they are taken, which is best first, so that parents compare by their numbers.
"""


@register.builder("heap")
@define(eq=False)
class Heap(TreeBuilder):
    """Takes the best node there is until the budget is spent: the most likely tree of its size.

    Attributes:
        budget: the most draft nodes.
        cost_model: makes the stop cost-aware: a cost model, its JSON object, a path to one, or ``"auto"`` to measure
            one briefly at start; ``None`` always spends the budget.
        calibration: ``"online"`` learns how far to trust the scorer's probabilities, a path takes what was learned
            before; ``None`` trusts them. The search then goes by calibrated path scores, which the tree keeps as its
            ``log_probs``, next to the scorer's own ``edge_log_probs``.
        lookahead: the most nodes to expand in one scorer call, where the scorer depends on the path. The tree is the
            same for all values; 1 expands one node at a time, when it is needed. ``None`` is 16, and where a
            correction backend replays whole builds, as many as the budget: all nodes of a depth that the tree could
            hold are then expanded together, in one replay and one copy a round.

    Raises:
        ConfigError: naming the option, its value and what it must be.
    """

    budget: int = field(validator=whole(1))
    cost_model: CostModelOption = None
    calibration: CalibrationOption = None
    lookahead: int | None = field(default=None, validator=optional(whole(1)))
    policy: BudgetPolicy = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.policy = BudgetPolicy.of(self.budget, self.cost_model, self.calibration)

    def bind(self, target: Target, drafter: Drafter) -> None:
        """Check or measure the cost model for these parts."""
        self.policy.bind(target, drafter)

    @torch.no_grad()
    def build(self, draft: Draft, scorer: Scorer, round: Round) -> DraftTree:
        """Return the tree of the best nodes, numbered best first."""
        limit = min(draft.depth, round.max_depth)
        if limit < 1:
            return DraftTree.root_only(round.root)
        round = round.limited(self.budget)
        calibrate = self.policy.calibrate
        if self.lookahead is None and calibrate is None and replayable(draft, scorer):
            return self._build_at_once(draft, scorer, round, limit)
        rows: Rows
        if scorer.path_independent:
            rows = DepthRows(draft, scorer, round, limit, calibrate)
        else:
            rows = PathRows(draft, scorer, round, self.budget, calibrate, self.lookahead or _LOOKAHEAD)
        search = BestFirst(rows, round.root, limit, self.budget)
        return search.tree(self.policy.start(round.root_position), calibrate is not None)

    def observe(self, tree: DraftTree, verdict: Verdict) -> None:
        """Let the calibration learn from a verified round."""
        self.policy.observe(tree, verdict)

    def _build_at_once(self, draft: Draft, scorer: Scorer, round: Round, limit: int) -> DraftTree:
        """Cut the tree out of a supertree that is as wide as the budget, which holds every node that it could have.

        Its nodes by score, then depth, then place are those of the search, in the order in which it takes them.
        """
        plan = Plan(limit, SameWidth(self.budget), self.budget)
        grown = grow_on_host(draft, scorer, round, plan, None)
        if grown is None:
            return DraftTree.root_only(round.root)
        return grown.tree(grown.chosen(self.policy, round), edges=False)


class BestFirst:
    """A best-first search for the nodes of one tree.

    A row is best first, so that its best candidate that was not taken yet is the only one that can be next: one offer
    a row is enough.
    """

    def __init__(self, rows: Rows, root: int, limit: int, budget: int) -> None:
        """Start at the root.

        Args:
            rows: where candidates come from.
            root: the root's token.
            limit: the depth that no node exceeds, at least 1.
            budget: the most nodes, at least 1.
        """
        self._rows = rows
        self._limit = limit
        self._budget = budget
        self._tokens, self._parents, self._depths = [root], [-1], [0]
        self._scores, self._raw_edges = [0.0], [0.0]
        self._places: dict[int, Place] = {}
        self._below: dict[int, HostRow] = {}
        self._offers: list[_Offer] = []
        self._single = array("f", [0.0])
        self._open(0, rows.root())

    def tree(self, run: BudgetRun, calibrated: bool) -> DraftTree:
        """Take nodes while ``run`` admits them; keep the scorer's own edges where the search goes by others."""
        offers, tokens = self._offers, self._tokens
        while offers and len(tokens) <= self._budget and run.admit(-offers[0][0]):
            self._take(offers[0])
        edges = self._raw_edges if calibrated else None
        return DraftTree(tokens, self._parents, self._depths, self._scores, edge_log_probs=edges)

    def _take(self, offer: _Offer) -> None:
        negated, depth, parent, rank = offer
        node, row = len(self._tokens), self._below[parent]
        self._tokens.append(row.tokens[rank])
        self._parents.append(parent)
        self._depths.append(depth)
        self._scores.append(-negated)
        self._raw_edges.append(row.raw[rank])
        sibling = self._offer(parent, depth, row.edges, rank + 1)
        if sibling is None:
            heappop(self._offers)
        else:
            heapreplace(self._offers, sibling)
        if depth < self._limit and node < self._budget:
            self._open(node, self._rows.child(self._places[parent], rank))

    def _open(self, node: int, place: Place) -> None:
        """Look below a node."""
        self._places[node] = place
        self._below[node] = row = self._rows.row(place)
        child = self._offer(node, self._depths[node] + 1, row.edges, 0)
        if child is not None:
            heappush(self._offers, child)

    def _offer(self, parent: int, depth: int, edges: list[float], rank: int) -> _Offer | None:
        """Offer the candidate of ``rank`` below ``parent``; where it is none, those behind it are none either."""
        if rank == len(edges):
            return None
        # The float64 sum of two float32 numbers, rounded to float32, is their float32 sum.
        self._single[0] = self._scores[parent] + edges[rank]
        total = self._single[0]
        return None if total == _NO_CANDIDATE else (-total, depth, parent, rank)
