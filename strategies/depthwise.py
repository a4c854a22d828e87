"""The depth-wise builder (DARTree): one batched scorer call and one top-k a depth, all on the device."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from attrs import Attribute, define, evolve, field, frozen
from torch import Tensor

from specforge.children import Children, best_children
from specforge.errors import ConfigError
from specforge.interfaces import Draft, Drafter, Round, Scorer, State, TreeBuilder, Verdict
from specforge.ordering import exact_topk
from specforge.registry import register
from specforge.strategies.budget import BudgetPolicy, CalibrationOption, CostModelOption
from specforge.strategies.expansion import Calibrate, search_edges
from specforge.strategies.host import Packed, to_host
from specforge.strategies.options import number, one_of, whole
from specforge.tree import DraftTree

if TYPE_CHECKING:
    from specforge.target import Target

PRUNED = "pruned"
FIXED = "fixed"

Array = npt.NDArray[Any]

Widths = Callable[[int, int], int]
"""Maps a depth (of the parents) and the number of nodes kept above to how many to keep there."""


@frozen
class SameWidth:
    """Keeps ``width`` nodes at every depth."""

    width: int

    def __call__(self, depth: int, kept: int) -> int:
        """Return the width."""
        return self.width


@frozen
class EvenShare:
    """Spreads what is left of ``budget`` evenly over the depths left.

    Attributes:
        budget: the most nodes.
        limit: the number of depths.
        filled: pairs of a depth and how many nodes it turned out to have candidates for.
    """

    budget: int
    limit: int
    filled: tuple[tuple[int, int], ...] = ()

    def __call__(self, depth: int, kept: int) -> int:
        """Return the share of the children of nodes at ``depth``."""
        even = -(-(self.budget - kept) // (self.limit - depth))
        return min(even, dict(self.filled).get(depth, even))


@frozen
class Plan:
    """How to grow a supertree; equal plans grow by the same operations on the same shapes, if they are static.

    Attributes:
        limit: the depth that no node exceeds, at least 1.
        widths: how many nodes to keep at each depth.
        budget: how many nodes will be chosen, by key, in the end; ``None`` for all.
        beta: what a node's key gains a depth over its score, at most 0.
        static: keep all shapes independent of values, so that nothing waits for a device. Otherwise nodes that
            nothing can come of are not followed.
    """

    limit: int
    widths: Widths
    budget: int | None = None
    beta: float = 0.0
    static: bool = True


@frozen(eq=False)
class Supertree:
    """All nodes that were kept, without the root: by depth, and within a depth in the total order.

    Where a depth had fewer candidates than places, the places left over have score ``-inf`` and mean nothing.

    Attributes:
        tokens: ``[S]`` int64.
        rows: ``[S]`` int64, the parent's place at the depth above; 0 below the root.
        scores: ``[S]`` float32 path scores.
        keys: ``[S]`` float32, ``scores`` plus ``beta`` times the depth.
        edges: ``[S]`` float32, each node's log-probability given its parent as the scorer gave it.
        sizes: the number of places at each depth, from depth 1 on.
    """

    tokens: Tensor
    rows: Tensor
    scores: Tensor
    keys: Tensor
    edges: Tensor
    sizes: tuple[int, ...]


@frozen(eq=False)
class Grown:
    """A supertree on the host.

    Attributes:
        sizes: the number of places at each depth, from depth 1 on; this and the next four as in ``Supertree``.
        tokens: ``[S]`` int64.
        rows: ``[S]`` int64.
        scores: ``[S]`` float32.
        edges: ``[S]`` float32.
        order: int64, the nodes that the plan's budget is for, best first by key; all of them, as they lie, without one.
        root: ``[1]`` int64, the root's token.
    """

    sizes: tuple[int, ...]
    tokens: Array
    rows: Array
    scores: Array
    edges: Array
    order: Array
    root: Array

    def chosen(self, policy: BudgetPolicy, round: Round) -> Array:
        """Return the entries that ``policy`` admits, best first by key."""
        scores = self.scores[self.order]
        return self.order[: policy.best_size(scores[scores > -np.inf], round.root_position)]

    def tree(self, chosen: Array, edges: bool) -> DraftTree:
        """Return the tree of the entries ``chosen``, in their order, in which every parent precedes its children.

        Args:
            chosen: int64 indices.
            edges: whether the tree keeps the scorer's own edges.
        """
        # Before the nodes of depth 1 lies what index -1 finds: the last entry, which stays 0, the root's number.
        firsts = [-1, *accumulate((0, *self.sizes))][: len(self.sizes)]
        parents = self.rows + np.repeat(firsts, self.sizes)
        number_of = np.zeros(len(self.tokens) + 1, dtype=np.int64)
        number_of[chosen] = np.arange(1, len(chosen) + 1)
        return DraftTree(
            np.concatenate([self.root, self.tokens[chosen]]),
            np.concatenate([[-1], number_of[parents[chosen]]]),
            log_probs=np.concatenate([[0.0], self.scores[chosen]]),
            edge_log_probs=np.concatenate([[0.0], self.edges[chosen]]) if edges else None,
        )


def replayable(draft: Draft, scorer: Scorer) -> bool:
    """Whether a whole build may be recorded and replayed."""
    return draft.correction is not None and draft.correction.replays and scorer.static


def grow_on_host(draft: Draft, scorer: Scorer, round: Round, plan: Plan, calibrate: Calibrate | None) -> Grown | None:
    """Grow a supertree, rank its nodes, and bring both to the host: in one replay and one copy where that can be.

    Arguments and ``None`` as in ``grow``.
    """
    if calibrate is not None or not replayable(draft, scorer):
        tree = grow(draft, scorer, round, plan, calibrate)
        return None if tree is None else Grown(tree.sizes, *to_host(_columns(tree, plan, round.history[-1:])))

    # A round's own depth limit falls with every round; only the plan's may be part of what is recorded.
    def build(static_draft: Draft, root: Tensor) -> tuple[tuple[int, ...], Packed] | None:
        tree = grow(static_draft, scorer, evolve(round, history=root, max_depth=plan.limit), plan, None)
        return None if tree is None else (tree.sizes, Packed.of(_columns(tree, plan, root)))

    assert draft.correction is not None
    key = ("supertree", scorer, plan, round.max_children)
    grown = draft.correction.replay(key, build, draft, round.history[-1:])
    return None if grown is None else Grown(grown[0], *grown[1].to_host())


def _columns(tree: Supertree, plan: Plan, root: Tensor) -> list[Tensor]:
    """Return the tensors of a ``Grown``; with the root's token, which a copy of its own would wait for."""
    if plan.budget is None:
        order = torch.arange(len(tree.tokens), device=tree.tokens.device)
    else:
        order = prune(tree, plan.budget)
    return [tree.tokens, tree.rows, tree.scores, tree.edges, order, root]


def grow(draft: Draft, scorer: Scorer, round: Round, plan: Plan, calibrate: Calibrate | None) -> Supertree | None:
    """Grow a supertree depth by depth; tensors in and out, one scorer call and one top-k a depth.

    Args:
        draft: the round's draft.
        scorer: scores the candidates of all kept nodes of a depth in one call.
        round: the round.
        plan: how far and how wide.
        calibrate: maps a depth's log-probabilities to those that are summed; ``None`` sums them as they are.

    Returns:
        The supertree, or ``None`` where the root's row is empty.
    """
    state = scorer.begin(draft, round)
    scores = torch.zeros(1, device=round.history.device)
    kept = 0
    levels: list[tuple[Tensor, ...]] = []
    for depth in range(plan.limit):
        width = plan.widths(depth, kept)
        if width == 0:
            break
        children = _children(draft, scorer, state, scores, depth, width, calibrate)
        rows, tokens, scores = children.rows, children.tokens, children.scores
        if rows.shape[0] == 0:
            break
        keys = scores + plan.beta * (depth + 1) if plan.beta else scores
        levels.append((tokens, rows, scores, keys, children.edges))
        kept += rows.shape[0]
        if depth + 1 == plan.limit:
            break
        if plan.static and not scorer.static:
            rows, tokens = _followable(rows, tokens, scores)
        elif not plan.static:
            worth = _worth_following([level[3].numpy() for level in levels], plan.budget)
            if worth == 0:
                break
            rows, tokens, scores = rows[:worth], tokens[:worth], scores[:worth]
        state = scorer.advance(draft, depth, state, rows, tokens)
    if not levels:
        return None
    tokens, rows, scores, keys, edges = (torch.cat(column) for column in zip(*levels, strict=True))
    return Supertree(tokens, rows, scores, keys, edges, tuple(level[0].shape[0] for level in levels))


def _children(
    draft: Draft, scorer: Scorer, state: State, scores: Tensor, depth: int, width: int, calibrate: Calibrate | None
) -> Children:
    """Return the ``width`` best children of nodes of path scores ``[n]``."""
    if calibrate is None:
        return scorer.best_children(draft, depth, state, scores, width)
    candidates = scorer.expand(draft, depth, state)
    edges, raw = search_edges(candidates, depth, calibrate)
    return best_children(scores, edges, raw, candidates.tokens, width, ranked=True)


def _followable(rows: Tensor, tokens: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Put the best node in the places that no candidate took: a scorer need not know how to follow anything else."""
    real = scores > float("-inf")
    return torch.where(real, rows, rows[0]), torch.where(real, tokens, tokens[0])


def _worth_following(keys: list[Array], budget: int | None) -> int:
    """Return how many nodes of the last depth, which are its first ones, may have a descendant that is chosen.

    Where ``budget`` kept nodes have at least the key of a node, they come before all of its descendants, which are
    deeper and of no higher key. A node that takes a place which such a descendant would have taken ranks below it at
    its depth, and is not chosen either.
    """
    last, count = keys[-1], sum(map(len, keys))
    worst = -np.inf
    if budget is not None and count >= budget:
        worst = np.partition(np.concatenate(keys), count - budget)[count - budget]
    return int(np.count_nonzero(last > worst))


def prune(tree: Supertree, budget: int) -> Tensor:
    """Return the ``min(budget, S)`` best nodes by key, best first, as indices into ``tree``.

    Of equal nodes the shallower come first, and at one depth those that come first in the total order: the order in
    which they lie. With ``beta`` at most 0 every parent comes before its children, in float32 too: both terms of the
    key only fall along a path, and rounding keeps that.
    """
    return exact_topk(tree.keys, budget)[1]


@register.builder("depthwise")
@define(eq=False)
class DepthWise(TreeBuilder):
    """Keeps the best nodes of each depth, and of those, when pruned, the best of all.

    ``"pruned"`` grows a supertree ``width`` nodes wide and verifies its ``budget`` best nodes by
    ``score + beta * depth``: the nodes that best-first search with this key would take within the supertree. With
    ``width`` at least ``budget`` that is no restriction, and for ``beta`` 0 it is the heap's tree. ``"fixed"`` spreads
    the budget evenly over the depths and verifies all it kept; what a depth has no candidates for goes to deeper ones.

    Attributes:
        budget: the most draft nodes.
        mode: ``"pruned"`` or ``"fixed"``.
        width: nodes kept at each depth, in mode ``"pruned"``.
        beta: what a node's key gains a depth, at most 0: below 0 prefers shallow nodes.
        cost_model: as for the heap, in mode ``"pruned"`` with ``beta`` 0: along keys with a ``beta``, θ may have
            several peaks.
        calibration: as for the heap.

    Raises:
        ConfigError: naming the option, its value and what it must be.
    """

    budget: int = field(validator=whole(1))
    mode: str = field(default=PRUNED, validator=one_of(PRUNED, FIXED))
    width: int = field(default=12, validator=whole(1))
    beta: float = field(default=0.0)
    cost_model: CostModelOption = None
    calibration: CalibrationOption = None
    policy: BudgetPolicy = field(init=False, repr=False)

    @beta.validator
    def _check_beta(self, attribute: Attribute[float], value: float) -> None:
        if number(value, "beta") > 0.0:
            raise ConfigError(f"beta is {value!r}; it must be at most 0, else children could be kept without parents")

    def __attrs_post_init__(self) -> None:
        if self.mode == FIXED and self.beta != 0.0:
            raise ConfigError(f"beta is {self.beta!r}; mode 'fixed' prunes nothing, it must be 0 there")
        if self.mode == FIXED and self.cost_model is not None:
            raise ConfigError("cost_model is given; mode 'fixed' spends its whole budget, use mode 'pruned'")
        if self.beta != 0.0 and self.cost_model is not None:
            raise ConfigError(f"beta is {self.beta!r}; it must be 0 with a cost_model, which stops by path scores")
        self.policy = BudgetPolicy.of(self.budget, self.cost_model, self.calibration)

    def bind(self, target: Target, drafter: Drafter) -> None:
        """Check or measure the cost model for these parts."""
        self.policy.bind(target, drafter)

    @torch.no_grad()
    def build(self, draft: Draft, scorer: Scorer, round: Round) -> DraftTree:
        """Return the tree of the kept nodes, numbered by depth, best first within a depth."""
        limit = min(draft.depth, round.max_depth)
        if limit < 1:
            return DraftTree.root_only(round.root)
        on_device = round.history.device.type != "cpu"
        static = on_device or (self.policy.calibrate is None and replayable(draft, scorer))
        if self.mode == FIXED:
            return self._build_fixed(draft, scorer, round, limit, static)
        # Of a depth no more can be chosen than the budget, and nothing below the others.
        width = min(self.width, self.budget)
        plan = Plan(limit, SameWidth(width), self.budget, self.beta, static)
        return self._build_pruned(draft, scorer, round.limited(width), plan)

    def observe(self, tree: DraftTree, verdict: Verdict) -> None:
        """Let the calibration learn from a verified round."""
        self.policy.observe(tree, verdict)

    def _build_pruned(self, draft: Draft, scorer: Scorer, round: Round, plan: Plan) -> DraftTree:
        grown = grow_on_host(draft, scorer, round, plan, self.policy.calibrate)
        if grown is None:
            return DraftTree.root_only(round.root)
        return grown.tree(np.sort(grown.chosen(self.policy, round)), self.policy.calibrate is not None)

    def _build_fixed(self, draft: Draft, scorer: Scorer, round: Round, limit: int, static: bool) -> DraftTree:
        """Grow with an even share a depth; once more where a depth turns out to have too few candidates for it.

        Shares depend on how many places the depths above could fill, which a device only tells after the copy.
        """
        round = round.limited(self.budget)
        share = EvenShare(self.budget, limit)
        while True:
            grown = grow_on_host(draft, scorer, round, Plan(limit, share, static=static), self.policy.calibrate)
            if grown is None:
                return DraftTree.root_only(round.root)
            real = grown.scores > -np.inf
            counts = [int(level.sum()) for level in np.split(real, np.cumsum(grown.sizes)[:-1])]
            short = next((depth for depth, count in enumerate(counts) if count < grown.sizes[depth]), None)
            if short is None or short + 1 == limit or counts[short] == 0:
                return grown.tree(np.flatnonzero(real), self.policy.calibrate is not None)
            share = evolve(share, filled=(*share.filled, (short, counts[short])))
