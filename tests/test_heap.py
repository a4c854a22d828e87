"""The heap against a fully enumerated tree, exactly, and the ways to get it wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from brute_force import Node, assert_is_tree, assert_same_tree, best_nodes, enumerate_nodes
from hypothesis import given, settings
from table_scorers import Case, DeepDoubt, TableScorer, cases, cost_model, doubted, fixed_cases
from torch import Tensor

from specforge import registry
from specforge.errors import ConfigError
from specforge.interfaces import Candidates, Draft, Scorer, Verdict
from specforge.strategies import expansion, heap
from specforge.strategies.heap import Heap
from specforge.tree import DraftTree

Build = Callable[[Case], DraftTree]


def build(case: Case, lookahead: int = 16, scorer: Scorer | None = None, **options: Any) -> DraftTree:
    builder = Heap(case.budget, lookahead=lookahead, **options)
    return builder.build(case.draft(), scorer or case.scorer(), case.round())


def check(build: Build, case: Case) -> None:
    tree = build(case)
    assert_is_tree(tree, case.budget, case.limit)
    assert_same_tree(tree, best_nodes(enumerate_nodes(case), case.budget))


def caught(build: Build, cases: Sequence[Case]) -> int:
    """Return in how many cases a builder is not the heap."""
    wrong = 0
    for case in cases:
        try:
            check(build, case)
        except (AssertionError, ValueError, KeyError, IndexError):
            wrong += 1
    return wrong


@settings(max_examples=200)
@given(case=cases())
def test_takes_the_best_nodes_in_order(case: Case) -> None:
    for lookahead in (1, 2, 16):
        check(lambda c, ahead=lookahead: build(c, ahead), case)


# --- broken searches


class LastParentFirst(heap.BestFirst):
    """Breaks ties by the later parent."""

    def _offer(self, *given: Any) -> Any:
        offer = super()._offer(*given)
        return None if offer is None else (*offer[:2], -offer[2], offer[3])

    def _take(self, offer: Any) -> None:
        super()._take((*offer[:2], -offer[2], offer[3]))


class DeepestFirst(heap.BestFirst):
    """Breaks ties by the larger depth."""

    def _offer(self, *given: Any) -> Any:
        offer = super()._offer(*given)
        return None if offer is None else (offer[0], -offer[1], *offer[2:])

    def _take(self, offer: Any) -> None:
        super()._take((offer[0], -offer[1], *offer[2:]))


class ParentsFirst(heap.BestFirst):
    """Breaks ties by the parent before the depth."""

    def _offer(self, *given: Any) -> Any:
        offer = super()._offer(*given)
        return None if offer is None else (offer[0], offer[2], offer[1], offer[3])

    def _take(self, offer: Any) -> None:
        super()._take((offer[0], offer[2], offer[1], offer[3]))


class EdgesOnly(heap.BestFirst):
    """Goes by a node's own log-probability, its parent's score forgotten."""

    def _offer(self, parent: int, *given: Any) -> Any:
        kept, self._scores[parent] = self._scores[parent], 0.0
        offer = super()._offer(parent, *given)
        self._scores[parent] = kept
        return offer


class DoublePrecision(heap.BestFirst):
    """Adds in float64: sums that are equal in float32 are not."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._single = [0.0]


class OneDepthMore(heap.BestFirst):
    """Offers no child at the last depth that it may."""

    def __init__(self, rows: Any, root: int, limit: int, budget: int) -> None:
        super().__init__(rows, root, limit - 1, budget)


@pytest.mark.parametrize(
    "mutant", [LastParentFirst, DeepestFirst, ParentsFirst, EdgesOnly, DoublePrecision, OneDepthMore]
)
def test_catches_a_wrong_order(mutant: type[heap.BestFirst], monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [*fixed_cases(60), *fixed_cases(60, step=0.3, levels=8, depth=4, vocab=3, budget=20)]
    assert caught(build, trials) == 0
    monkeypatch.setattr(heap, "BestFirst", mutant)
    assert caught(build, trials) > 5


class TiedSiblingsOutOfOrder(TableScorer):
    """Ranks tied candidates by larger token id."""

    def expand(self, draft: Draft, depth: int, state: Any) -> Candidates:
        rows = super().expand(draft, depth, attrs.evolve(state, width=None))
        flipped = rows.log_probs.nan_to_num(-torch.inf).flip(-1)
        order = flipped.sort(dim=-1, descending=True, stable=True).indices
        found = [tensor.flip(-1).gather(1, order)[:, : state.width] for tensor in (rows.tokens, rows.log_probs)]
        return Candidates(*found)


def test_catches_siblings_out_of_order() -> None:
    assert caught(lambda case: build(case, scorer=TiedSiblingsOutOfOrder(case)), fixed_cases(60)) > 5


def test_catches_scores_above_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = fixed_cases(60, top=0.5)
    assert caught(build, trials) == 0
    monkeypatch.setattr(expansion, "search_edges", lambda candidates, *_: (candidates.log_probs,) * 2)
    assert caught(build, trials) > 5


def test_catches_a_forgotten_parent() -> None:
    class FirstParent(TableScorer):
        def advance(self, draft: Draft, depth: int, state: Any, parent_rows: Tensor, tokens: Tensor) -> Any:
            return super().advance(draft, depth, state, torch.zeros_like(parent_rows), tokens)

    assert caught(lambda case: build(case, scorer=FirstParent(case)), fixed_cases(60, gaps=0.0)) > 5


@pytest.mark.parametrize(
    "wrong",
    [
        lambda mask: np.roll(mask, 1, axis=0),
        lambda mask: np.roll(mask, 1, axis=1),
        lambda mask: mask & ~np.eye(len(mask), dtype=bool),
        lambda mask: np.tril(np.ones_like(mask)),
        lambda mask: mask | mask.T,
    ],
    ids=["one row off", "one column off", "not itself", "all before", "descendants too"],
)
def test_catches_a_wrong_mask(wrong: Callable[[Any], Any]) -> None:
    tree = build(Case(0, 3, 3, 3, 0.0, budget=12))
    assert_is_tree(tree, 12, 3)
    with pytest.raises(AssertionError):
        assert_is_tree(tree, 12, 3, wrong(tree.mask))


# --- how much is asked of the scorer


@pytest.mark.parametrize("budget", [1, 5, 40])
def test_one_expansion_a_depth_where_paths_do_not_matter(budget: int) -> None:
    case = Case(1, 4, 4, 8, 0.0, shared=True, budget=budget)
    scorer = case.scorer()
    build(case, scorer=scorer)
    assert scorer.calls == {"expand": 4, "advance": 3, "rows": 4}


def test_one_expansion_a_node_without_lookahead() -> None:
    case = Case(1, 4, 4, 8, 0.0, budget=9)
    scorer = case.scorer()
    tree = build(case, lookahead=1, scorer=scorer)
    inner = sum(int(depth) < 4 for depth in tree.depths[1:-1])
    assert scorer.calls == {"expand": 1 + inner, "advance": inner, "rows": 1 + inner}


def test_lookahead_saves_calls_and_expands_nothing_twice() -> None:
    expanded: list[tuple[int, ...]] = []

    class Watched(TableScorer):
        def expand(self, draft: Draft, depth: int, state: Any) -> Candidates:
            expanded.extend(state.paths)
            return super().expand(draft, depth, state)

    case = Case(5, 5, 4, 8, 0.0, budget=60)
    plain, ahead = case.scorer(), Watched(case)
    build(case, lookahead=1, scorer=plain)
    build(case, lookahead=16, scorer=ahead)
    assert 3 * ahead.calls["expand"] < plain.calls["expand"]
    assert len(set(expanded)) == len(expanded)
    # Nothing is expanded that could not have been taken when it was.
    assert len(expanded) < 2 * plain.calls["rows"]


def test_asks_for_no_more_children_than_budget() -> None:
    case = Case(1, 5, 2, 8, 0.0, budget=2)
    widths = []

    class Watched(TableScorer):
        def begin(self, draft: Draft, round: Any) -> Any:
            widths.append(round.max_children)
            return super().begin(draft, round)

    build(case, scorer=Watched(case))
    assert widths == [2]


@pytest.mark.parametrize("max_depth", [0, 1, 2])
def test_stays_within_reach(max_depth: int) -> None:
    case = Case(2, 4, 4, 3, 0.0, max_depth=max_depth, budget=30)
    tree = build(case)
    assert tree.depths.max() == max_depth
    assert_is_tree(tree, 30, max_depth)


# --- the shared budget policy


@settings(max_examples=60)
@given(case=cases(levels=8, step=0.3, budget=20))
def test_cost_aware_tree_is_the_start_of_the_whole_one(case: Case) -> None:
    model = cost_model([1.0 + 0.05 * n + 0.01 * n * n for n in range(30)])
    stopped, whole = build(case, cost_model=model), build(case)
    size = Heap(case.budget, model).policy.best_size(whole.log_probs[1:], 2)
    assert stopped.budget == size <= whole.budget
    assert stopped.token_ids.tolist() == whole.token_ids[: size + 1].tolist()
    assert stopped.parents.tolist() == whole.parents[: size + 1].tolist()


def test_cost_aware_stop_is_early_somewhere() -> None:
    model = cost_model([1.0 + 0.05 * n + 0.01 * n * n for n in range(30)])
    sizes = [build(case, cost_model=model).budget for case in fixed_cases(30, levels=8, budget=20, vocab=4)]
    assert 0 < sum(sizes) < 20 * 30
    assert len(set(sizes)) > 3


@settings(max_examples=60)
@given(case=cases(top=0.0))
def test_calibrated_search_goes_by_calibrated_edges(case: Case) -> None:
    for lookahead in (1, 16):
        tree = build(case, lookahead, calibration=DeepDoubt())
        assert_is_tree(tree, case.budget, case.limit)
        nodes = calibrated_nodes(case)
        assert_same_tree(tree, nodes)
        if case.limit == 0:
            continue
        raw = [np.float32(dict(case.row(node.path[:-1]))[node.path[-1]]) for node in nodes]
        assert tree.edge_log_probs.tolist() == [0.0, *map(float, raw)]


def calibrated_nodes(case: Case) -> list[Node]:
    """Return the best nodes by calibrated scores, from the definition."""
    found: list[Node] = []
    level = [Node((), np.float32(0.0), np.float32(0.0), (), None)]
    for depth in range(case.limit):
        below = []
        for parent in level:
            for rank, (token, raw) in enumerate(case.row(parent.path)):
                if raw > -np.inf:
                    edge = np.float32(doubted(depth, torch.tensor(raw, dtype=torch.float32)))
                    score = np.float32(parent.score + edge)
                    order = (-score, depth + 1, parent.order, rank)
                    below.append(Node((*parent.path, token), score, edge, order, parent))
        level = below
        found += level
    return best_nodes(found, case.budget)


def test_uncalibrated_tree_carries_no_edges() -> None:
    assert build(Case(0, 3, 3, 3, 0.0)).edge_log_probs is None


def test_passes_verdicts_to_the_calibration() -> None:
    calibration = DeepDoubt()
    builder = Heap(3, calibration=calibration)
    verdict = Verdict((0,), 1)
    builder.observe(DraftTree.root_only(1), verdict)
    assert calibration.seen == [verdict]


def test_registered() -> None:
    assert registry.builders.get("heap") is Heap


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((option, value) for option in ("budget", "lookahead") for value in (0, -1, 2.5, True, "many")),
        ("budget", None),
    ],
)
def test_refuses_options(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{option} is {value!r}; it must be a whole number"):
        Heap(**{"budget": 4, option: value})
