"""Online calibration: it starts as the identity, keeps the order, and ends at the truth."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import define
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specforge.cost_model import CostModel
from specforge.errors import ConfigError
from specforge.interfaces import Verdict
from specforge.strategies import calibration as calibration_module
from specforge.strategies.budget import BudgetPolicy
from specforge.strategies.calibration import Calibration, Counts, Curve, range_centres, range_edges, raw_edges
from specforge.tree import DraftTree

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

log_probs = st.one_of(
    st.floats(-30, 0, width=32), st.floats(-0.0009765625, 0, width=32), st.sampled_from([0.0, -float("inf"), -100.0])
)
rows = st.lists(log_probs, min_size=1, max_size=30).map(lambda r: torch.tensor(sorted(r, reverse=True))[None])
outcomes = st.lists(st.tuples(log_probs, st.booleans(), st.integers(1, 40)), min_size=1, max_size=30)


def learned(seen: list[tuple[float, bool, int]]) -> Calibration:
    """Return a calibration of draft position 0 that saw edges with these outcomes, so many times each."""
    counts = Counts()
    for log_prob, accepted, times in seen:
        probability = np.exp(np.float64(log_prob))
        counts.add(np.full(times, probability), np.full(times, accepted))
    return Calibration(depths=[counts])


def in_order(row: Tensor) -> bool:
    return bool((row[..., 1:] <= row[..., :-1]).all())


@given(rows, st.integers(0, 20))
def test_nothing_seen_changes_nothing(row: Tensor, depth: int) -> None:
    assert Calibration().apply(depth, row) is row
    elsewhere = learned([(-1.0, False, 9)])
    assert elsewhere.apply(depth + 1, row) is row


@settings(max_examples=300, deadline=None)
@given(outcomes, rows)
def test_order_is_never_contradicted(seen: list[tuple[float, bool, int]], row: Tensor) -> None:
    calibrated = learned(seen).apply(0, row)
    assert calibrated.shape == row.shape
    assert calibrated.dtype == row.dtype
    assert bool((calibrated <= 0).all())
    assert in_order(calibrated)
    assert torch.equal(torch.isneginf(calibrated), torch.isneginf(row))


def test_without_isotonic_regression_the_order_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [(-0.1, False, 500), (-2.0, True, 500)]
    row = torch.linspace(0, -6, 60)[None]
    assert in_order(learned(seen).apply(0, row))

    class AsItIs:
        def __init__(self, y: np.ndarray, **kwargs: object) -> None:
            self.x = y

    monkeypatch.setattr(calibration_module, "isotonic_regression", AsItIs)
    assert not in_order(learned(seen).apply(0, row))


@settings(max_examples=100, deadline=None)
@given(rows)
def test_kept_promises_change_little(row: Tensor) -> None:
    """What is accepted as often as promised stays where it is, whatever the number of observations."""
    counts = Counts()
    counts.seen += 1e5
    counts.promised += 1e5 * range_centres()
    counts.accepted += 1e5 * range_centres()
    calibrated = Calibration(depths=[counts]).apply(0, row)
    finite = torch.isfinite(row)
    torch.testing.assert_close(calibrated[finite], row[finite], rtol=1e-5, atol=1e-6)


def test_minus_infinity_and_nan_are_kept() -> None:
    row = torch.tensor([[-0.5, float("-inf"), float("nan")]])
    calibrated = learned([(-0.5, False, 100)]).apply(0, row)
    assert calibrated[0, 0] < -1
    assert torch.isneginf(calibrated[0, 1])
    assert torch.isnan(calibrated[0, 2])


def test_ranges_hold_their_centres() -> None:
    assert np.array_equal(
        np.searchsorted(range_edges(), range_centres(), side="right"), np.arange(len(range_centres()))
    )


def test_every_child_of_every_accepted_node_is_one_observation() -> None:
    #  0 ── 1 ── 3 ── 6        accepted: 0, 1, 4; so 1 and 4 kept their promise, 2, 3 and 7 did not;
    #  │    └─── 4 ── 7        5 and 6 hang on rejected nodes and say nothing
    #  └─── 2 ── 5
    probabilities = np.array([1, 0.6, 0.3, 0.5, 0.2, 0.9, 0.8, 0.7])
    tree = DraftTree(range(8), [-1, 0, 0, 1, 1, 2, 3, 4], edge_log_probs=np.log(probabilities))
    calibration = Calibration()
    calibration.observe(tree, Verdict((0, 1, 4), 99))
    per_depth = [(c.seen.sum(), c.promised.sum(), c.accepted.sum()) for c in calibration.depths]
    assert per_depth == [(2, pytest.approx(0.9), 1), (2, pytest.approx(0.7), 1), (1, pytest.approx(0.7), 0)]
    edges = range_edges()
    assert calibration.depths[0].accepted[np.searchsorted(edges, 0.6)] == 1
    assert calibration.depths[0].accepted[np.searchsorted(edges, 0.3)] == 0
    assert calibration.depths[1].accepted[np.searchsorted(edges, 0.2)] == 1


def test_trees_without_children_of_accepted_nodes_teach_nothing() -> None:
    calibration = Calibration()
    calibration.observe(DraftTree.root_only(5), Verdict((0,), 6))
    assert calibration.depths == []


def test_raw_edges_are_the_trees_own_or_differences_of_its_scores() -> None:
    scores = np.array([0, -0.5, -2.0, -0.75], dtype=np.float32)
    tree = DraftTree(range(4), [-1, 0, 0, 1], log_probs=scores)
    assert raw_edges(tree).tolist() == [0, -0.5, -2.0, -0.25]
    tree = DraftTree(range(4), [-1, 0, 0, 1], log_probs=scores, edge_log_probs=[0, -0.25, -1.0, -0.125])
    assert raw_edges(tree).tolist() == [0, -0.25, -1.0, -0.125]


SHAPE = [-1, 0, 0, 0, 1, 1, 2, 3, 4, 4]


def true_probability(depth: int, raw: np.ndarray) -> np.ndarray:
    """What the simulated target accepts: less than promised, and less and less with depth."""
    return raw ** (1.5 + 0.5 * depth)


def simulated_round(generator: np.random.Generator) -> tuple[DraftTree, Verdict]:
    """Return a tree with random edges and a verdict in which each child is accepted with its true probability."""
    edges = np.ones(len(SHAPE))
    for node in range(len(SHAPE)):
        children = [c for c, parent in enumerate(SHAPE) if parent == node]
        if children:
            edges[children] = generator.dirichlet(np.full(len(children) + 1, 0.7))[:-1].clip(1e-4, 1)
    tree = DraftTree(range(len(SHAPE)), SHAPE, edge_log_probs=np.log(edges))
    path = [0]
    while True:
        children = list(tree.children(path[-1]))
        marks = np.cumsum(true_probability(int(tree.depths[path[-1]]), edges[children]))
        chosen = int(np.searchsorted(marks, generator.random(), side="right"))
        if chosen == len(children):
            return tree, Verdict(tuple(path), 0)
        path.append(children[chosen])


def worst_error(calibration: Calibration, depth: int) -> float:
    raw = np.linspace(0.05, 0.95, 19)
    calibrated = calibration.apply(depth, torch.from_numpy(np.log(raw))).exp().numpy()
    return float(np.abs(calibrated - true_probability(depth, raw)).max())


@pytest.fixture(scope="module")
def rounds() -> list[tuple[DraftTree, Verdict]]:
    generator = np.random.default_rng(5)
    return [simulated_round(generator) for _ in range(12_000)]


def taught(calibration: Calibration, rounds: list[tuple[DraftTree, Verdict]]) -> Calibration:
    for tree, verdict in rounds:
        calibration.observe(tree, verdict)
    return calibration


def test_over_confident_edges_converge_to_the_truth(rounds: list[tuple[DraftTree, Verdict]]) -> None:
    few, many = taught(Calibration(), rounds[:300]), taught(Calibration(), rounds)
    for depth in (0, 1):
        assert worst_error(Calibration(), depth) > 0.14
        assert worst_error(many, depth) < 0.04
        assert worst_error(many, depth) < worst_error(few, depth)


@define(eq=False)
class EveryNode(Calibration):
    """A mutant that also counts nodes whose parent was rejected."""

    def observe(self, tree: DraftTree, verdict: Verdict) -> None:
        accepted = np.isin(np.arange(len(tree)), verdict.path)
        for node in range(1, len(tree)):
            self._counts(int(tree.depths[node]) - 1).add(np.exp(raw_edges(tree)[[node]]), accepted[[node]])


@define(eq=False)
class Survivors(Calibration):
    """A mutant that counts siblings of accepted nodes only, and so forgets where the path ended."""

    def observe(self, tree: DraftTree, verdict: Verdict) -> None:
        accepted = np.isin(np.arange(len(tree)), verdict.path)
        for parent in verdict.path[:-1]:
            children = list(tree.children(parent))
            self._counts(int(tree.depths[parent])).add(np.exp(raw_edges(tree)[children]), accepted[children])


@pytest.mark.parametrize("mutant", [EveryNode, Survivors])
def test_wrong_counting_does_not_converge(mutant: type[Calibration], rounds: list[tuple[DraftTree, Verdict]]) -> None:
    calibration = taught(mutant(), rounds[:6000])
    assert max(worst_error(calibration, depth) for depth in (0, 1)) > 0.1


def chosen_budget(calibration: Calibration | None, raw: np.ndarray, cap: int) -> int:
    """Return the nodes a cost-aware chain of edges ``raw`` gets."""
    costs = CostModel(0.5, (0,), (0, cap), ((1.0, 1.0 + 0.2 * cap),))
    policy = BudgetPolicy.of(cap, costs, calibration)
    edges = [torch.tensor([np.log(p)]) for p in raw]
    if policy.calibrate is not None:
        edges = [policy.calibrate(depth, edge) for depth, edge in enumerate(edges)]
    return policy.best_size(torch.cumsum(torch.cat(edges), 0), 0)


def test_calibrated_budget_falls_below_the_cap_that_the_raw_one_hits() -> None:
    """A chain that promises 0.95 an edge and keeps 0.4: the raw promise fills the cap, the calibrated one does not."""
    cap, generator = 12, np.random.default_rng(2)
    promised = np.full(cap, 0.95)
    calibration = Calibration()
    assert chosen_budget(None, promised, cap) == chosen_budget(calibration, promised, cap) == cap
    edges = np.concatenate([[0.0], np.log(promised)])
    for _ in range(500):
        kept = min(int(generator.geometric(0.6)) - 1, cap)
        tree = DraftTree(range(cap + 1), np.arange(cap + 1) - 1, edge_log_probs=edges)
        calibration.observe(tree, Verdict(tuple(range(kept + 1)), 0))
    assert 1 <= chosen_budget(calibration, promised, cap) <= 3


def test_saving_and_loading_keeps_every_bit(tmp_path: Path, rounds: list[tuple[DraftTree, Verdict]]) -> None:
    calibration = taught(Calibration(prior=3.7), rounds[:200])
    calibration.bind("tiny")
    path, again = tmp_path / "calibration.json", tmp_path / "again.json"
    calibration.save(path)
    loaded = Calibration.of(str(path))
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()
    assert loaded.target == "tiny"
    row = torch.linspace(0, -12, 500)
    for depth in range(len(calibration.depths)):
        assert torch.equal(loaded.apply(depth, row), calibration.apply(depth, row))


def test_a_saved_calibration_is_used_as_it_is_unless_told_to_go_on(
    tmp_path: Path, rounds: list[tuple[DraftTree, Verdict]]
) -> None:
    path = tmp_path / "calibration.json"
    taught(Calibration(), rounds[:50]).save(path)
    frozen, going_on = Calibration.of(path), Calibration.load(path, learning=True)
    for loaded in (frozen, going_on):
        taught(loaded, rounds[50:100])
    assert frozen.to_dict() == Calibration.of(path).to_dict()
    assert going_on.to_dict() == taught(Calibration(), rounds[:100]).to_dict()


def test_learning_is_seen_at_once() -> None:
    calibration, tree = Calibration(), DraftTree.from_chain([1, 2], [0.0, -0.125])
    values = []
    for _ in range(3):
        calibration.observe(tree, Verdict((0,), 3))
        values.append(float(calibration.apply(0, torch.tensor([-0.125]))))
    assert values[0] > values[1] > values[2]


def saved(**changes: object) -> dict:
    return {**learned([(-1.0, True, 3)]).to_dict(), **changes}


def spoiled(**changes: object) -> dict:
    contents = saved()
    contents["depths"][0].update(changes)
    return contents


ZEROS = [0.0] * len(range_centres())


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({}, "has no keys"),
        (saved(extra=1), "it must have prior, target, depths"),
        (saved(prior=0), "prior is 0.0"),
        (saved(prior="x"), "prior is 'x'"),
        (saved(target=3), "target is 3"),
        (saved(depths={}), "it must have"),
        (saved(depths=[3]), r"depths\[0\] must be an object"),
        (spoiled(seen=[1.0]), r"depths\[0\].seen must be"),
        (spoiled(seen=[-1.0, *ZEROS[1:]]), r"depths\[0\].seen must be"),
        (spoiled(seen=ZEROS), "more accepted or promised than seen"),
        (spoiled(extra=ZEROS), r"depths\[0\] must be an object"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, contents: dict, message: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(contents))
    with pytest.raises(ConfigError, match=message) as refused:
        Calibration.of(path)
    assert "calibration.json" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("option", [3, True, ["online"]])
def test_options_are_online_or_a_path(option: object) -> None:
    with pytest.raises(ConfigError, match="it must be 'online' or a path"):
        Calibration.of(option)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot read calibration"):
        Calibration.of("offline")


def test_knots_are_what_was_promised_and_what_was_kept() -> None:
    """One range, by hand: 0.3 and 0.34 promised, one of the two kept, and a prior of 2 accepted drafts."""
    counts = Counts()
    counts.add(np.array([0.3, 0.34]), np.array([False, True]))
    (index,) = np.flatnonzero(counts.seen)
    centre = range_centres()[index]
    x, y = (0.64 + 2) / (2 + 2 / centre), (1 + 2) / (2 + 2 / centre)
    curve = Curve.of(counts, 2.0)
    assert float(curve.knots[index].exp()) == pytest.approx(x)
    assert float(curve(curve.knots)[index].exp()) == pytest.approx(y)
    others = np.arange(len(range_centres())) != index
    np.testing.assert_allclose(curve(curve.knots).exp().numpy()[others], range_centres()[others])


def test_outside_the_knots_the_ratio_is_kept_up_to_certainty() -> None:
    calibration = learned([(-12.0, True, 5), (-0.0001, False, 50)])
    lowest, highest = torch.tensor([-20.0, -25.0]), torch.tensor([-0.0001, 0.0])
    low, high = calibration.apply(0, lowest) - lowest, calibration.apply(0, highest) - highest
    torch.testing.assert_close(low[0], low[1])
    assert float(low[0]) > 0.5
    assert float(high[1]) < -1
    assert float(learned([(-0.0001, True, 500)]).apply(0, torch.tensor([0.0]))) == 0.0


def test_the_study_reports_reliability_budgets_and_speed(
    tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("calibration_study", BENCHMARKS / "calibration_study.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    costs = tmp_path / "cost.json"
    costs.write_text(json.dumps(json.loads((tiny_folder / "golden.json").read_text())["cost_model"]))
    given = ["--target", tiny_folder / "target", "--checkpoint", tiny_folder / "domino", "--dtype", "float32"]
    given += ["--prompts", tiny_folder / "golden.json", "--limit", 2, "--sampled", 2, "--cost-model", costs]
    given += ["--max-new-tokens", 12, "--repeats", 1, "--builder", "depthwise", "--device", "cpu"]
    assert script.main([str(argument) for argument in given]) == 0
    report = capsys.readouterr().out
    for row in ("0.9 to 0.99", "raw", "calibrated", "adaptive, calibrated", "ar", "fixed 8", "fixed 64"):
        assert f"| {row} |" in report
    assert script.main(["--target", str(tmp_path), *map(str, given[2:])]) == 2
    assert capsys.readouterr().err.count("\n") == 1
