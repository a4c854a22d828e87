"""The budget policy: the stop, its two forms, and that theta's first fall is its only one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from table_scorers import Case, cases, fixed_cases

from specforge.cost_model import CostModel
from specforge.errors import ConfigError, IncompatiblePartsError
from specforge.interfaces import Verdict
from specforge.strategies import budget as budget_module
from specforge.strategies.budget import BudgetPolicy
from specforge.strategies.calibration import Calibration, Counts
from specforge.strategies.heap import Heap
from specforge.tree import DraftTree

GOLDEN = json.loads((Path(__file__).parent / "data/qwen3-tiny-a/golden.json").read_text())["cost_model"]
TARGET = SimpleNamespace(name="tiny", device=torch.device("cpu"), dtype=torch.float32)

scores_best_first = st.lists(
    st.one_of(st.sampled_from([0.0, -0.25, -0.5, -1.0, -2.0, -math.inf]), st.floats(-12, 0, width=32)), max_size=40
).map(lambda scores: sorted(scores, reverse=True))


@st.composite
def convex_models(draw: st.DrawFn) -> CostModel:
    """Cost models that are monotone and convex in n at every context, with flat stretches and kinks."""
    nodes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True).map(lambda n: [0, *sorted(n)]))
    contexts = draw(st.lists(st.integers(0, 100), min_size=1, max_size=3, unique=True).map(sorted))
    rows = {}
    for context in contexts:
        slopes = np.sort(draw(arrays(np.float64, len(nodes) - 1, elements=st.sampled_from([0.0, 0.01, 0.125, 0.5, 1]))))
        start = draw(st.floats(0.25, 4, width=32))
        rows[str(context)] = (start + np.concatenate([[0.0], np.cumsum(slopes * np.diff(nodes))])).tolist()
    draft = draw(st.floats(0, 1, width=32))
    return CostModel.of({"draft_seconds": draft, "context_lengths": contexts, "nodes": nodes, "seconds": rows})


def spend(policy: BudgetPolicy, scores: Sequence[float], context: int) -> int:
    """Count what a best-first search would add."""
    run, taken = policy.start(context), 0
    while taken < len(scores) and run.admit(scores[taken]):
        taken += 1
    return taken


def theta(model: CostModel, scores: Sequence[float], n: int, context: int) -> float:
    """The definition, summed afresh."""
    return (1 + math.fsum(math.exp(s) for s in scores[:n])) / (model.draft_seconds + model.verify_seconds(n, context))


Spender = Callable[[CostModel, Sequence[float], int, int], int]


def by_policy(model: CostModel, scores: Sequence[float], cap: int, context: int) -> int:
    return spend(BudgetPolicy.of(cap, model), scores, context)


def without_accumulating(model: CostModel, scores: Sequence[float], cap: int, context: int) -> int:
    """A mutant that forgets what was added before."""
    taken = 0
    while taken < min(cap, len(scores)):
        here = 1 / (model.draft_seconds + model.verify_seconds(taken, context))
        if (1 + math.exp(scores[taken])) / (model.draft_seconds + model.verify_seconds(taken + 1, context)) <= here:
            break
        taken += 1
    return taken


def without_draft(model: CostModel, scores: Sequence[float], cap: int, context: int) -> int:
    """A mutant that takes drafting for free."""
    free = CostModel.of({**model.to_dict(), "draft_seconds": 0.0})
    return by_policy(free, scores, cap, context)


def one_late(model: CostModel, scores: Sequence[float], cap: int, context: int) -> int:
    """A mutant that adds the node that did not raise theta."""
    return min(by_policy(model, scores, cap, context) + 1, len(scores), cap)


def check_stop_is_the_maximum(spender: Spender, model: CostModel, scores: list[float], cap: int, context: int) -> None:
    stop = spender(model, scores, cap, context)
    values = [theta(model, scores, n, context) for n in range(min(cap, len(scores)) + 1)]
    assert 0 <= stop < len(values)
    assert values[stop] >= max(values) * (1 - 1e-12)
    rises = [b > a * (1 + 1e-12) for a, b in pairwise(values)]
    falls = [b < a * (1 - 1e-12) for a, b in pairwise(values)]
    first_fall = falls.index(True) if True in falls else len(falls)
    assert not any(rises[first_fall:]), "theta rose again after it fell"
    # A node that does not raise theta is not added.
    assert all(b > a * (1 - 1e-12) for a, b in pairwise(values[: stop + 1]))


@settings(max_examples=300, deadline=None)
@given(convex_models(), scores_best_first, st.integers(1, 40), st.integers(0, 120))
def test_stop_is_where_theta_is_largest(model: CostModel, scores: list[float], cap: int, context: int) -> None:
    check_stop_is_the_maximum(by_policy, model, scores, cap, context)


@pytest.mark.parametrize("mutant", [without_accumulating, without_draft, one_late])
def test_wrong_stops_are_caught(mutant: Spender) -> None:
    model = CostModel.of(GOLDEN)
    scores = sorted(np.random.default_rng(3).uniform(-6, 0, size=60).tolist(), reverse=True)
    check_stop_is_the_maximum(by_policy, model, scores, 60, 50)
    with pytest.raises(AssertionError):
        check_stop_is_the_maximum(mutant, model, scores, 60, 50)


def test_costs_that_are_not_convex_break_the_claim() -> None:
    """The property is about convex costs; a step shows that it does not hold, and is not checked, for others."""
    steps = {"draft_seconds": 0.0, "context_lengths": [0], "nodes": [0, 1, 2, 3], "seconds": {"0": [1, 3, 3, 3]}}
    with pytest.raises(AssertionError):
        check_stop_is_the_maximum(by_policy, CostModel.of(steps), [0.0, 0.0, 0.0], 3, 0)


@settings(max_examples=300, deadline=None)
@given(convex_models(), scores_best_first, st.integers(1, 40), st.integers(0, 120))
def test_both_forms_of_the_stop_agree_exactly(model: CostModel, scores: list[float], cap: int, context: int) -> None:
    policy = BudgetPolicy.of(cap, model)
    expected = spend(policy, scores, context)
    assert policy.best_size(scores, context) == expected
    assert policy.best_size(torch.tensor(scores, dtype=torch.float64), context) == expected
    fixed = BudgetPolicy.of(cap)
    assert fixed.best_size(scores, context) == spend(fixed, scores, context) == min(cap, len(scores))


def best_size_in_float32(policy: BudgetPolicy, scores: np.ndarray, context: int) -> int:
    """A mutant that sums at the scores' own precision."""
    assert policy.cost_model is not None
    sums = 1 + np.concatenate([[0], np.cumsum(np.exp(np.float32(scores)), dtype=np.float32)])
    values = sums / policy.cost_model.round_seconds(policy.budget, context)[: len(sums)]
    return next((n for n in range(len(scores)) if not values[n + 1] > values[n]), len(scores))


def test_both_forms_agree_where_the_last_bit_decides() -> None:
    """Theta is flat but for rounding, so the two forms agree only if their sums do, bit by bit."""
    generator = np.random.default_rng(11)
    stops, caught = set(), 0
    for _ in range(400):
        scores = np.sort(np.float32(-generator.exponential(0.5, size=24)))[::-1].astype(np.float64)
        sums = np.concatenate([[1.0], 1.0 + np.cumsum(np.exp(scores))])
        policy = BudgetPolicy.of(24, CostModel(0.0, (0,), tuple(range(25)), (tuple(sums.tolist()),)))
        expected = spend(policy, scores.tolist(), 0)
        assert policy.best_size(scores, 0) == expected
        stops.add(expected)
        caught += best_size_in_float32(policy, scores, 0) != expected
    assert len(stops) > 1
    assert caught > 0


def crooked_calibration() -> Calibration:
    """Return one that learned to trust depths differently: the first less, the second more than they promise."""
    calibration = Calibration(depths=[Counts(), Counts()])
    promised = np.exp(-0.25 * np.arange(12))
    for depth, kept in enumerate((promised**2, promised**0.25)):
        accepted = np.arange(200)[:, None] < 200 * kept
        calibration.depths[depth].add(np.tile(promised, 200), accepted.ravel())
    return calibration


def tree_of(case: Case, calibration: Calibration | None, budget: int, cost_model: CostModel | None) -> DraftTree:
    return Heap(budget, cost_model, calibration).build(case.draft(), case.scorer(), case.round())


@settings(max_examples=150, deadline=None)
@given(cases(), convex_models(), st.booleans())
def test_cost_aware_heap_stops_where_theta_is_largest(case: Case, model: CostModel, calibrated: bool) -> None:
    calibration = crooked_calibration() if calibrated else None
    full = tree_of(case, calibration, 1000, None)
    taken = tree_of(case, calibration, case.budget, model)
    assert np.array_equal(taken.token_ids, full.token_ids[: len(taken)])
    assert np.array_equal(taken.parents, full.parents[: len(taken)])
    scores = full.log_probs[1:].tolist()
    stop = taken.budget
    check_stop_is_the_maximum(lambda *_: stop, model, scores, case.budget, case.round().root_position)


def test_search_by_raw_scores_breaks_the_claim_for_calibrated_ones() -> None:
    """With the raw key, calibrated probabilities come in no order, and theta may rise again after the stop."""
    model = CostModel(0.0, (0,), (0, 1000), ((1.0, 60.0),))
    calibration, broken = crooked_calibration(), 0
    for case in fixed_cases(40):
        raw = tree_of(case, None, 1000, None)
        edges = raw.log_probs[1:] - raw.log_probs[raw.parents[1:]]
        scores = np.zeros(len(raw))
        for node in range(1, len(raw)):
            edge = calibration.apply(int(raw.depths[node]) - 1, torch.tensor(float(edges[node - 1])))
            scores[node] = scores[raw.parents[node]] + float(edge)
        try:
            check_stop_is_the_maximum(by_policy, model, scores[1:].tolist(), 1000, 2)
        except AssertionError:
            broken += 1
    assert broken > 0


def test_equal_theta_stops() -> None:
    model = CostModel(0.0, (0,), (0, 1, 2), ((1.0, 2.0, 3.0),))
    assert spend(BudgetPolicy.of(2, model), [0.0, 0.0], 0) == 0
    assert BudgetPolicy.of(2, model).best_size([0.0, 0.0], 0) == 0


def test_context_prices_the_tree() -> None:
    model = CostModel(0.1, (10, 1000), (0, 8), ((1.0, 1.1), (1.0, 9.0)))
    policy = BudgetPolicy.of(8, model)
    scores = [-0.1 * i for i in range(8)]
    assert spend(policy, scores, 10) == 8
    assert spend(policy, scores, 1000) == 1


@given(st.integers(1, 50), scores_best_first)
def test_fixed_budget_looks_at_no_score(cap: int, scores: list[float]) -> None:
    assert spend(BudgetPolicy.of(cap), scores, 0) == min(cap, len(scores))


@pytest.mark.parametrize("budget", [0, -1, 1.5, True, None, "8"])
def test_budgets_must_be_whole_and_positive(budget: object) -> None:
    with pytest.raises(ConfigError, match="budget is"):
        BudgetPolicy.of(budget)  # type: ignore[arg-type]


def test_options_are_read(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    CostModel.of(GOLDEN).save(path)
    for option in (GOLDEN, path, str(path), CostModel.of(GOLDEN)):
        policy = BudgetPolicy.of(4, option)
        assert policy.cost_aware
        assert policy.cost_model is not None
        assert policy.cost_model.to_dict() == GOLDEN
    assert not BudgetPolicy.of(4).cost_aware
    assert BudgetPolicy.of(4, None, "online").calibration is not None
    with pytest.raises(ConfigError, match="cost_model is 5"):
        BudgetPolicy.of(4, 5)  # type: ignore[arg-type]


def test_models_and_calibrations_of_another_target_are_refused_at_bind() -> None:
    drafter = SimpleNamespace()
    BudgetPolicy.of(4, {**GOLDEN, "target": "tiny", "device": "cpu", "dtype": "float32"}).bind(TARGET, drafter)
    for key, value in (("target", "huge"), ("device", "cuda"), ("dtype", "bfloat16")):
        with pytest.raises(IncompatiblePartsError, match=f"{key} '{value}'"):
            BudgetPolicy.of(4, {**GOLDEN, key: value}).bind(TARGET, drafter)
    with pytest.raises(IncompatiblePartsError, match=r"'huge'.*'tiny'"):
        BudgetPolicy.of(4, None, Calibration(target="huge")).bind(TARGET, drafter)


def test_auto_measures_at_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(target: object, drafter: object, largest: int) -> CostModel:
        asked.append((target, drafter, largest))
        return CostModel.of(GOLDEN)

    monkeypatch.setattr(budget_module, "quick_profile", measure)
    policy = BudgetPolicy.of(12, "auto")
    assert policy.cost_aware
    with pytest.raises(ConfigError, match="bind"):
        policy.start(3)
    drafter = SimpleNamespace()
    policy.bind(TARGET, drafter)
    assert asked == [(TARGET, drafter, 12)]
    assert spend(policy, [-5.0] * 20, 16) == spend(BudgetPolicy.of(12, GOLDEN), [-5.0] * 20, 16)


def test_raw_edges_pass_through_and_nothing_is_learned_without_a_calibration() -> None:
    policy = BudgetPolicy.of(4)
    assert policy.calibrate is None
    policy.observe(DraftTree([1, 2], [-1, 0]), Verdict((0, 1), 3))


def test_observed_rounds_reach_the_calibration() -> None:
    policy = BudgetPolicy.of(4, None, "online")
    tree = DraftTree([1, 2], [-1, 0], log_probs=[0.0, -0.125])
    rows = torch.tensor([[-0.125, -2.0]])
    assert policy.calibrate is not None
    assert torch.equal(policy.calibrate(0, rows), rows)
    for _ in range(50):
        policy.observe(tree, Verdict((0,), 3))
    assert float(policy.calibrate(0, rows)[0, 0]) < -0.75
