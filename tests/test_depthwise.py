"""The depth-wise builder against its definition and best-first search, exactly, and the ways to get it wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from attrs import frozen
from brute_force import (
    assert_is_tree,
    assert_same_tree,
    best_nodes,
    by_depth,
    enumerate_nodes,
    fixed_tree,
    paths_of,
    search,
    supertree,
)
from hypothesis import given, settings
from table_scorers import Case, DeepDoubt, TableHead, TableScorer, cases, cost_model, doubted, fixed_cases
from torch import Tensor

from specforge import children, registry
from specforge.errors import ConfigError
from specforge.interfaces import Candidates, Children, Draft, Round, Verdict
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.strategies import depthwise
from specforge.strategies.conditional import Conditional
from specforge.strategies.depthwise import DepthWise, Plan, grow, prune
from specforge.strategies.heap import Heap
from specforge.tree import DraftTree

Build = Callable[[Case], DraftTree]


def pruned(case: Case, scorer: TableScorer | None = None, **options: Any) -> DraftTree:
    builder = DepthWise(**{"budget": case.budget, "width": case.width, "beta": case.beta, **options})
    return builder.build(case.draft(), scorer or case.scorer(), case.round())


def fixed(case: Case, scorer: TableScorer | None = None) -> DraftTree:
    return DepthWise(case.budget, "fixed").build(case.draft(), scorer or case.scorer(), case.round())


def check_pruned(build: Build, case: Case) -> None:
    """Check the definition, entry for entry."""
    tree = build(case)
    assert_is_tree(tree, case.budget, case.limit)
    assert_same_tree(tree, by_depth(best_nodes(supertree(case), case.budget, case.beta)))


def check_lemma(build: Build, case: Case) -> None:
    """Check that the set of nodes is that of a best-first search by the same key."""
    everywhere = case.width >= case.budget
    within = enumerate_nodes(case) if everywhere else supertree(case)
    found = paths_of(build(case))
    assert len(set(found)) == len(found)
    assert set(found) == search(case, within, case.beta)


def check_fixed(build: Build, case: Case) -> None:
    tree = build(case)
    assert_is_tree(tree, case.budget, case.limit)
    assert_same_tree(tree, fixed_tree(case))


def caught(check: Callable[[Build, Case], None], build: Build, trials: Sequence[Case]) -> int:
    """Return in how many cases ``check`` fails."""
    wrong = 0
    for case in trials:
        try:
            check(build, case)
        except (AssertionError, ValueError, KeyError, IndexError):
            wrong += 1
    return wrong


@settings(max_examples=200)
@given(case=cases())
def test_pruned_is_its_definition(case: Case) -> None:
    check_pruned(pruned, case)


@settings(max_examples=100)
@given(case=cases())
def test_pruned_is_best_first_within_the_supertree(case: Case) -> None:
    check_lemma(pruned, case)


@settings(max_examples=100)
@given(case=cases(budget=5, width=5))
def test_wide_supertree_is_no_restriction(case: Case) -> None:
    check_lemma(pruned, case)


@settings(max_examples=60)
@given(case=cases(budget=6, width=7, beta=0.0))
def test_wide_and_without_beta_it_is_the_heap(case: Case) -> None:
    taken = Heap(case.budget).build(case.draft(), case.scorer(), case.round())
    found = pruned(case)
    assert sorted(paths_of(found)) == sorted(paths_of(taken))
    assert sorted(found.log_probs.tolist()) == sorted(taken.log_probs.tolist())


@settings(max_examples=200)
@given(case=cases())
def test_fixed_is_its_definition(case: Case) -> None:
    check_fixed(fixed, case)


@pytest.mark.parametrize("beta", [-1e-3, -0.1, -0.3, -1 / 3, -17.0])
def test_prunes_to_a_tree_whatever_the_rounding(beta: float) -> None:
    for seed in range(40):
        case = Case(seed, 3, 4, 8, 0.0, step=0.1 + seed / 97, budget=11, width=5, beta=beta)
        check_pruned(pruned, case)
        check_lemma(pruned, case)


# --- broken builders

TRIALS = fixed_cases(80)
CHECKS = [check_pruned, check_lemma]


@pytest.mark.parametrize("check", CHECKS)
def test_catches_beta_ignored(check: Callable[[Build, Case], None]) -> None:
    trials = fixed_cases(80, beta=-1.0)
    assert caught(check, pruned, trials) == 0
    assert caught(check, lambda case: pruned(case, beta=0.0), trials) > 5


@pytest.mark.parametrize("check", CHECKS)
def test_catches_beta_the_wrong_way(check: Callable[[Build, Case], None], monkeypatch: pytest.MonkeyPatch) -> None:
    trials = fixed_cases(80, beta=-1.0)
    monkeypatch.setattr(depthwise, "Plan", lambda *given: Plan(*given[:3], -given[3], *given[4:]))
    assert caught(check, pruned, trials) > 5


@pytest.mark.parametrize("check", [*CHECKS, check_fixed])
def test_catches_ties_broken_by_later_entries(
    check: Callable[[Build, Case], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def later_first(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        values, indices = depthwise_topk(scores.flip(-1), k)
        return values, scores.shape[-1] - 1 - indices

    def later_children_first(scores: Tensor, *rows: Any) -> Children:
        *rows, width = rows
        found = best_on_host(scores.flip(0), *(row.flip(0, 1) for row in rows), width)
        return attrs.evolve(found, rows=len(scores) - 1 - found.rows)

    depthwise_topk, best_on_host = depthwise.exact_topk, children._best_on_host
    build = fixed if check is check_fixed else pruned
    assert caught(check, build, TRIALS) == 0
    monkeypatch.setattr(children, "exact_topk", later_first)
    monkeypatch.setattr(children, "_best_on_host", later_children_first)
    monkeypatch.setattr(depthwise, "exact_topk", later_first)
    assert caught(check, build, TRIALS) > 5


@pytest.mark.parametrize("check", CHECKS)
def test_catches_pruning_by_edges(check: Callable[[Build, Case], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own probability a child can be kept without its parent."""
    monkeypatch.setattr(depthwise, "prune", lambda tree, budget: prune(attrs.evolve(tree, keys=tree.edges), budget))
    assert caught(check, pruned, TRIALS) > 5


@pytest.mark.parametrize("check", CHECKS)
def test_catches_another_width(check: Callable[[Build, Case], None]) -> None:
    trials = fixed_cases(80, budget=8, width=2)
    assert caught(check, lambda case: pruned(case, width=3), trials) > 5


@pytest.mark.parametrize(("check", "build"), [*((check, pruned) for check in CHECKS), (check_fixed, fixed)])
def test_catches_a_forgotten_parent(check: Callable[[Build, Case], None], build: Any) -> None:
    class FirstParent(TableScorer):
        def advance(self, draft: Draft, depth: int, state: Any, parent_rows: Tensor, tokens: Tensor) -> Any:
            return super().advance(draft, depth, state, torch.zeros_like(parent_rows), tokens)

    assert caught(check, lambda case: build(case, FirstParent(case)), fixed_cases(80, gaps=0.0, budget=8, beta=0.0)) > 5


def test_catches_an_uneven_share() -> None:
    def rounded_down(case: Case) -> DraftTree:
        return fixed(attrs.evolve(case, budget=max(1, case.budget // case.limit * case.limit)))

    assert caught(check_fixed, rounded_down, fixed_cases(80, budget=7)) > 5


# --- how it works


@pytest.mark.parametrize("build", [pruned, fixed])
def test_one_call_a_depth(build: Any) -> None:
    case = Case(1, 5, 4, 1, 0.0, step=0.0, budget=12, width=3)
    scorer = case.scorer()
    tree = build(case, scorer)
    assert tree.budget == 12
    assert scorer.calls["expand"] == 4
    assert scorer.calls["advance"] == 3
    assert scorer.calls["rows"] == 1 + 3 * 3


@frozen(eq=False)
class FollowsAnything(TableScorer):
    """Has rows for paths that are none."""

    def advance(self, draft: Draft, depth: int, state: Any, parent_rows: Tensor, tokens: Tensor) -> Any:
        steps = zip(parent_rows.tolist(), tokens.tolist(), strict=True)
        return attrs.evolve(state, paths=tuple((*state.paths[row], token) for row, token in steps))


def static(case: Case, mode: str = "pruned") -> DraftTree:
    """Build as on a device, where no shape may depend on a value."""
    plan = depthwise.Plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(depthwise, "Plan", lambda *given, **named: attrs.evolve(plan(*given, **named), static=True))
        scorer = FollowsAnything(case)
        return pruned(case, scorer) if mode == "pruned" else fixed(case, scorer)


@settings(max_examples=100)
@given(case=cases())
def test_static_shapes_give_the_same_tree(case: Case) -> None:
    check_pruned(static, case)
    check_fixed(lambda c: static(c, "fixed"), case)


def test_static_shapes_do_not_depend_on_values() -> None:
    sizes = set()
    for case in [Case(seed, 4, 3, 3, gaps) for gaps in (0.0, 0.5, 1.0) for seed in range(10)]:
        plan = Plan(3, lambda depth, kept: 6, budget=5)
        tree = grow(case.draft(), FollowsAnything(case), case.round(), plan, lambda depth, edges: edges)
        assert tree is not None
        sizes.add((tree.sizes, *(len(column) for column in (tree.tokens, tree.rows, tree.scores, tree.keys))))
    assert sizes == {((4, 6, 6), 16, 16, 16, 16)}


def test_follows_only_what_may_be_chosen() -> None:
    """With a budget of 4 and 3 nodes a depth, most of the third depth is out of reach."""
    rows = {}
    for budget in (4, 1000):
        rows[budget] = 0
        for case in fixed_cases(30, gaps=0.0, budget=budget, width=3, depth=4, levels=8, beta=0.0, vocab=4):
            scorer = case.scorer()
            check_pruned(lambda c, s=scorer: pruned(c, s), case)
            rows[budget] += scorer.calls["rows"]
    assert rows[1000] == 30 * (1 + 3 * 3)
    assert rows[4] < 0.7 * rows[1000]


def test_catches_a_node_given_up_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    worth = depthwise._worth_following
    monkeypatch.setattr(depthwise, "_worth_following", lambda keys, budget: worth(keys, max(1, budget // 2)))
    assert caught(check_pruned, pruned, TRIALS) > 5


def test_fills_places_without_reaching_for_what_is_no_candidate() -> None:
    """The table scorer refuses to follow such entries; the trees are right all the same."""
    filled = 0
    for case in fixed_cases(60, gaps=0.6, width=6, depth=4, budget=20):
        check_pruned(pruned, case)
        check_fixed(fixed, case)
        filled += pruned(case).budget < 20
    assert filled > 10


def test_fixed_passes_on_what_a_depth_cannot_use() -> None:
    case = Case(0, 3, 3, 3, 0.0, budget=12)
    tree = fixed(case)
    assert np.bincount(tree.depths).tolist() == [1, 3, 5, 4]


def test_small_fixed_budget_is_a_chain() -> None:
    tree = fixed(Case(0, 3, 4, 3, 0.0, budget=2))
    assert tree.parents.tolist() == [-1, 0, 1]


def test_refuses_a_cost_model_with_a_beta() -> None:
    """A budget that stops by path scores along keys that are none: A .9, B .05, AA .81 and beta -3 have two peaks."""
    with pytest.raises(ConfigError, match=r"beta is -3\.0; it must be 0 with a cost_model"):
        DepthWise(8, beta=-3.0, cost_model=cost_model([1.0, 1.1, 1.2]))


def test_no_candidates_is_the_root_alone() -> None:
    case = Case(0, 3, 3, 3, 1.0)
    assert len(pruned(case)) == len(fixed(case)) == 1


@pytest.mark.parametrize("build", [pruned, fixed])
@pytest.mark.parametrize("max_depth", [0, 1, 2])
def test_stays_within_reach(build: Any, max_depth: int) -> None:
    tree = build(Case(2, 4, 4, 3, 0.0, max_depth=max_depth, budget=20))
    assert tree.depths.max() == max_depth


# --- the shared budget policy


@settings(max_examples=60)
@given(case=cases(levels=8, step=0.3, budget=20, width=20, beta=0.0))
def test_cost_aware_set_is_the_heaps(case: Case) -> None:
    model = cost_model([1.0 + 0.05 * n + 0.01 * n * n for n in range(30)])
    taken = Heap(case.budget, model).build(case.draft(), case.scorer(), case.round())
    assert sorted(paths_of(pruned(case, cost_model=model))) == sorted(paths_of(taken))


@settings(max_examples=60)
@given(case=cases(top=0.0, budget=9, width=9, beta=0.0))
def test_calibrated_set_is_the_heaps(case: Case) -> None:
    taken = Heap(case.budget, calibration=DeepDoubt()).build(case.draft(), case.scorer(), case.round())
    found = pruned(case, calibration=DeepDoubt())
    assert sorted(paths_of(found)) == sorted(paths_of(taken))
    for node in range(1, len(found)):
        path = found.path_tokens(node)[1:]
        raw = np.float32(dict(case.row(path[:-1]))[path[-1]])
        edge = doubted(len(path) - 1, torch.tensor(raw, dtype=torch.float32))
        assert found.edge_log_probs[node] == raw
        assert found.log_probs[node] == np.float32(found.log_probs[found.parents[node]] + edge.numpy())


def test_passes_verdicts_to_the_calibration() -> None:
    calibration, verdict = DeepDoubt(), Verdict((0,), 1)
    DepthWise(3, calibration=calibration).observe(DraftTree.root_only(1), verdict)
    assert calibration.seen == [verdict]
    assert pruned(Case(0, 3, 3, 3, 0.0)).edge_log_probs is None


# --- options


def test_registered() -> None:
    assert registry.builders.get("depthwise") is DepthWise


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget is 0"),
        ({"width": 0}, "width is 0"),
        ({"width": True}, "width is True"),
        ({"mode": "both"}, "mode is 'both'; it must be 'pruned' or 'fixed'"),
        ({"beta": 0.1}, "beta is 0.1; it must be at most 0"),
        ({"beta": float("-inf")}, "beta is -inf; it must be a finite number"),
        ({"beta": float("nan")}, "beta is nan"),
        ({"beta": "small"}, "beta is 'small'"),
        ({"mode": "fixed", "beta": -0.5}, "beta is -0.5; mode 'fixed' prunes nothing"),
        ({"mode": "fixed", "cost_model": cost_model([1.0, 2.0])}, "cost_model is given; mode 'fixed'"),
    ],
)
def test_refuses_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DepthWise(**{"budget": 4, **options})


# --- on a device


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["pruned", "fixed"])
def test_device_builds_the_tree_of_the_host(mode: str) -> None:
    class OnDevice(TableScorer):
        def expand(self, draft: Draft, depth: int, state: Any) -> Candidates:
            rows = super().expand(draft, depth, state)
            return Candidates(rows.tokens.cuda(), rows.log_probs.cuda())

    for case in fixed_cases(40, gaps=0.0):
        builder = DepthWise(case.budget, mode, case.width, case.beta if mode == "pruned" else 0.0)
        round = attrs.evolve(case.round(), history=case.round().history.cuda())
        found = builder.build(case.draft(), OnDevice(case), round)
        wanted = builder.build(case.draft(), case.scorer(), case.round())
        assert found.token_ids.tolist() == wanted.token_ids.tolist()
        assert found.parents.tolist() == wanted.parents.tolist()
        assert found.log_probs.tolist() == wanted.log_probs.tolist()


def test_builds_with_a_correction_head() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 20, generator=generator)
    draft = Draft(4, base_logits=logits, correction=TableHead(20))
    round = Round(torch.tensor([5, 3]), 99, SamplingParams(), KeyedUniforms(0))
    wide = DepthWise(12, width=12).build(draft, Conditional(6), round)
    taken = Heap(12).build(draft, Conditional(6), round)
    assert sorted(paths_of(wide)) == sorted(paths_of(taken))
    assert wide.depths.max() > 1
