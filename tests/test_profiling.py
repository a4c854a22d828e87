"""Profiling: what is measured, in which order, how it survives interruption, and the cost model it makes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from specforge import profiling, registry
from specforge.cost_model import CostModel
from specforge.errors import ConfigError
from specforge.interfaces import Draft, Drafter, DraftSession, Round
from specforge.profiling import Plan, measure_cost_model, profile_to_file, quick_profile, synthetic_tree, tree_depth
from specforge.strategies.budget import BudgetPolicy
from specforge.target import Target
from specforge.tree import DraftTree

TINY = Path(__file__).parent / "data/qwen3-tiny-a"


@define
class FakeCache:
    """Counts committed and pending entries."""

    length: int = 0
    pending: int = 0

    def commit(self, path: tuple[int, ...]) -> None:
        self.length += len(path)
        self.pending = 0


@define(eq=False)
class FakeMachine:
    """A target and a drafter whose calls take as long as they are told, on a clock of their own."""

    verify_seconds: Callable[[int, int], float] = lambda n, context: 1.0 + 0.25 * n + context / 1024
    draft_seconds: float = 0.5
    vocab_size: int = 7
    context_limit: int = 4096
    name: str = "fake"
    device: torch.device = field(factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.bfloat16
    now: float = 0.0
    calls: list[tuple[str, int, int]] = field(factory=list)

    def new_cache(self, capacity: int) -> FakeCache:
        return FakeCache()

    def prefill(self, token_ids: torch.Tensor, cache: FakeCache, taps: tuple[int, ...]) -> SimpleNamespace:
        assert taps == (1,)
        cache.length = len(token_ids)
        return SimpleNamespace(features=torch.zeros(1, len(token_ids), 3))

    def verify(self, tree: DraftTree, cache: FakeCache, taps: tuple[int, ...]) -> None:
        assert taps == (1,)
        assert cache.pending == 0, "the entries of the measurement before were not dropped"
        assert int(tree.token_ids.max()) < self.vocab_size
        self.calls.append(("verify", tree.budget, cache.length))
        cache.pending = len(tree)
        self.now += self.verify_seconds(tree.budget, cache.length)

    @property
    def drafter(self) -> FakeDrafter:
        return FakeDrafter(self)


class FakeDrafter(Drafter):
    taps = (1,)
    checkpoint = "some/checkpoint"

    def __init__(self, machine: FakeMachine) -> None:
        self.machine = machine

    def start(self, prompt_ids: torch.Tensor, features: torch.Tensor | None) -> DraftSession:
        return FakeSession(self.machine, len(prompt_ids))


class FakeSession(DraftSession):
    def __init__(self, machine: FakeMachine, context: int) -> None:
        self.machine, self.context = machine, context

    def draft(self, round: Round) -> Draft:
        assert round.root_position == self.context
        self.machine.calls.append(("draft", 0, self.context))
        self.machine.now += self.machine.draft_seconds
        return Draft(depth=1)

    def commit(self, token_ids: torch.Tensor, features: torch.Tensor | None) -> None:
        assert features is not None
        assert features.shape == (1, len(token_ids), 3)
        self.context += len(token_ids)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    made = FakeMachine()
    monkeypatch.setattr(profiling, "time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


PLAN = Plan(contexts=(10, 100), nodes=(0, 1, 4, 9), repeats=3, warmup=2)


def test_measured_seconds_are_those_of_the_machine(machine: FakeMachine) -> None:
    model = measure_cost_model(machine, machine.drafter, PLAN)
    assert model.draft_seconds == pytest.approx(0.5)
    for context in PLAN.contexts:
        for n in (0, 1, 3, 9, 20):
            assert model.verify_seconds(n, context) == pytest.approx(machine.verify_seconds(n, context))
    assert model.to_dict().keys() == {
        *("target", "drafter", "device", "dtype", "draft_seconds", "context_lengths", "nodes", "seconds")
    }
    assert (model.target, model.drafter) == ("fake", "FakeDrafter some/checkpoint")
    assert (model.device, model.dtype) == ("cpu", "bfloat16")


def test_warm_up_and_outliers_do_not_count(machine: FakeMachine) -> None:
    slow = {0: 50.0, 1: 20.0, 3: 90.0}  # two warm-up passes, and one of three that count
    honest = machine.verify_seconds

    def verify_seconds(n: int, context: int) -> float:
        index = sum(kind == "draft" and there >= context for kind, _, there in machine.calls)
        return honest(n, context) + slow.get(index % PLAN.passes, 0.0)

    machine.verify_seconds = verify_seconds
    model = measure_cost_model(machine, machine.drafter, PLAN)
    assert model.verify_seconds(4, 10) == pytest.approx(honest(4, 10))
    unwarmed = Plan(PLAN.contexts, PLAN.nodes, repeats=5, warmup=0)
    machine.calls.clear()
    assert measure_cost_model(machine, machine.drafter, unwarmed).verify_seconds(4, 10) > 2 * honest(4, 10)


def test_sizes_are_interleaved_in_an_order_shuffled_anew(machine: FakeMachine) -> None:
    measure_cost_model(machine, machine.drafter, PLAN)
    sizes = [n for kind, n, _ in machine.calls if kind == "verify"]
    passes = [tuple(sizes[i : i + 4]) for i in range(0, len(sizes), 4)]
    assert len(passes) == 2 * PLAN.passes
    assert all(sorted(p) == list(PLAN.nodes) for p in passes)
    assert len(set(passes)) > 3


def test_the_same_trees_are_measured_every_time(machine: FakeMachine) -> None:
    measure_cost_model(machine, machine.drafter, PLAN)
    first = list(machine.calls)
    machine.calls.clear()
    measure_cost_model(machine, machine.drafter, PLAN)
    assert machine.calls == first


class Stop(Exception):
    pass


def stop_after(passes: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        assert done <= total
        if done == passes:
            raise Stop

    return progress


@pytest.mark.parametrize("finished", [1, 5, 7])
def test_interrupted_measurements_go_on(machine: FakeMachine, tmp_path: Path, finished: int) -> None:
    expected = measure_cost_model(machine, machine.drafter, PLAN).to_dict()
    machine.calls.clear()
    partial = tmp_path / "partial"
    with pytest.raises(Stop):
        measure_cost_model(machine, machine.drafter, PLAN, progress=stop_after(finished), resume_path=partial)
    machine.calls.clear()
    done = []
    model = measure_cost_model(machine, machine.drafter, PLAN, progress=lambda *p: done.append(p), resume_path=partial)
    assert model.to_dict() == expected
    again = PLAN.warmup if finished % PLAN.passes >= PLAN.warmup else 0
    assert sum(kind == "verify" for kind, _, _ in machine.calls) == 4 * (2 * PLAN.passes - finished + again)
    assert done == [(i + 1, 2 * PLAN.passes) for i in range(2 * PLAN.passes)]
    machine.calls.clear()
    more = Plan(PLAN.contexts, PLAN.nodes, repeats=PLAN.repeats + 1, warmup=PLAN.warmup)
    measure_cost_model(machine, machine.drafter, more, resume_path=partial)
    assert sum(kind == "verify" for kind, _, _ in machine.calls) == 4 * 2 * (1 + PLAN.warmup)


def test_a_resumed_process_is_warmed_up_again(machine: FakeMachine, tmp_path: Path) -> None:
    plan, partial = Plan((16,), (0, 4), repeats=1, warmup=1), tmp_path / "partial"
    with pytest.raises(Stop):
        measure_cost_model(machine, machine.drafter, plan, progress=stop_after(1), resume_path=partial)
    machine.calls.clear()
    machine.verify_seconds = lambda n, context: 9.0 if len(machine.calls) <= 2 else 1.0
    assert measure_cost_model(machine, machine.drafter, plan, resume_path=partial).verify_seconds(
        4, 16
    ) == pytest.approx(1.0)


def test_quick_profile_is_not_misled_by_the_first_pass_of_a_size(machine: FakeMachine) -> None:
    seen: set[int] = set()

    def slow_once(n: int, context: int) -> float:
        first, _ = n not in seen, seen.add(n)
        return 3.0 if first else 0.01

    machine.verify_seconds = slow_once
    assert quick_profile(machine, machine.drafter, 8).nodes == (0, 1, 2, 4, 8)


def test_a_line_cut_short_is_measured_again(machine: FakeMachine, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    expected = measure_cost_model(machine, machine.drafter, PLAN, resume_path=partial).to_dict()
    contents = partial.read_bytes()
    for cut in (2, len(contents.splitlines()[-1]), len(contents) - 5):
        partial.write_bytes(contents[:-cut])
        assert measure_cost_model(machine, machine.drafter, PLAN, resume_path=partial).to_dict() == expected
        assert partial.read_bytes().count(b"\n") == 1 + 2 * PLAN.passes
        assert all(json.loads(line) for line in partial.read_text().splitlines())


def test_measurements_of_something_else_are_refused(machine: FakeMachine, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    measure_cost_model(machine, machine.drafter, PLAN, resume_path=partial)
    machine.name = "other"
    with pytest.raises(ConfigError, match=r"partial.* target 'fake', these are with 'other'"):
        measure_cost_model(machine, machine.drafter, PLAN, resume_path=partial)
    machine.name = "fake"
    with pytest.raises(ConfigError, match="holds measurements with nodes"):
        measure_cost_model(machine, machine.drafter, Plan(PLAN.contexts, (0, 2)), resume_path=partial)


@pytest.mark.parametrize(
    "text",
    [
        "not json\n",
        "[1]\n",
        "{header}\n[1]\n",
        '{header}\n{"context": 1}\n',
        '{header}\n{"context": 10, "index": 0, "draft": "x", "verify": [1, 1, 1, 1]}\n',
        '{header}\n{"context": 10, "index": 0, "draft": 1, "verify": ["x", 1, 1, 1]}\n',
    ],
)
def test_files_that_hold_no_measurements_are_refused(machine: FakeMachine, tmp_path: Path, text: str) -> None:
    partial = tmp_path / "partial"
    measure_cost_model(machine, machine.drafter, PLAN, resume_path=partial)
    partial.write_text(text.replace("{header}", partial.read_text().splitlines()[0]))
    with pytest.raises(ConfigError, match="holds something other than measurements"):
        measure_cost_model(machine, machine.drafter, PLAN, resume_path=partial)


def test_profile_is_written_at_the_end(machine: FakeMachine, tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    with pytest.raises(Stop):
        profile_to_file(machine, machine.drafter, path, PLAN, stop_after(4))
    assert not path.exists()
    machine.calls.clear()
    model = profile_to_file(machine, machine.drafter, path, PLAN)
    assert sum(kind == "draft" for kind, _, _ in machine.calls) == 2 * PLAN.passes - 4 + PLAN.warmup
    assert [p.name for p in tmp_path.iterdir()] == ["cost.json"]
    assert CostModel.of(path).to_dict() == model.to_dict()
    machine.calls.clear()
    with pytest.raises(ConfigError, match="no folder"):
        profile_to_file(machine, machine.drafter, tmp_path / "gone" / "cost.json", PLAN)
    assert machine.calls == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contexts": ()}, "contexts is"),
        ({"contexts": (0, 5)}, "contexts is"),
        ({"contexts": (9, 5)}, "contexts is"),
        ({"nodes": (4, 4)}, "nodes is"),
        ({"nodes": (-1,)}, "nodes is"),
        ({"repeats": 0}, "repeats is 0"),
        ({"warmup": -1}, "warmup is -1"),
    ],
)
def test_plans_that_measure_nothing_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan(**options)


def test_contexts_that_do_not_fit_are_refused_before_anything_runs(machine: FakeMachine) -> None:
    machine.context_limit = 104
    measure_cost_model(machine, machine.drafter, PLAN)
    machine.calls.clear()
    machine.context_limit = 103
    with pytest.raises(ConfigError, match="the largest that does is 99"):
        measure_cost_model(machine, machine.drafter, PLAN)
    assert machine.calls == []


@given(st.integers(0, 300), st.integers(2, 50), st.integers(0, 9))
def test_synthetic_trees_have_their_size_and_depth(nodes: int, vocabulary: int, seed: int) -> None:
    tree = synthetic_tree(nodes, vocabulary, np.random.default_rng(seed))
    assert tree.budget == nodes
    assert int(tree.depths.max()) == tree_depth(nodes)
    assert 0 <= int(tree.token_ids.min()) <= int(tree.token_ids.max()) < vocabulary


def test_quick_profile_doubles_until_it_is_large_enough(machine: FakeMachine, caplog: pytest.LogCaptureFixture) -> None:
    machine.verify_seconds = lambda n, context: 0.01 + 0.001 * n
    with caplog.at_level(logging.INFO, logger="specforge"):
        model = quick_profile(machine, machine.drafter, 100)
    assert model.nodes == (0, 1, 2, 4, 8, 16, 32, 64, 100)
    assert model.context_lengths == profiling.QUICK_CONTEXTS
    assert model.verify_seconds(50, 64) == pytest.approx(0.06)
    assert "no cost model given" in caplog.records[0].getMessage()
    assert caplog.records[0].levelno == logging.WARNING


def test_quick_profile_stops_where_it_gets_slow_and_goes_on_linearly(machine: FakeMachine) -> None:
    machine.verify_seconds = lambda n, context: 0.1 + 0.02 * n
    model = quick_profile(machine, machine.drafter, 1024)
    assert model.nodes == (0, 1, 2, 4, 8)
    assert model.verify_seconds(1024, 64) == pytest.approx(0.1 + 0.02 * 1024)


def test_quick_profile_fits_into_short_contexts(machine: FakeMachine) -> None:
    machine.context_limit = 20
    assert quick_profile(machine, machine.drafter, 8).context_lengths == (16,)


@pytest.mark.parametrize(("name", "options"), [("domino", {"checkpoint": str(TINY / "domino")}), ("ngram", {})])
def test_real_parts_are_measured(tiny_target: Target, name: str, options: dict) -> None:
    drafter = registry.drafters.get(name)(**options)
    drafter.bind(tiny_target)
    model = measure_cost_model(tiny_target, drafter, Plan((8, 32), (0, 2, 8), repeats=2, warmup=1))
    assert model.draft_seconds > 0
    table = np.array(model.seconds)
    assert np.all(table > 0)
    assert np.all(np.diff(table, axis=1) >= 0)
    assert model.drafter is not None
    assert model.drafter.startswith(name)
    assert (model.target, model.dtype) == (tiny_target.name, "float32")
    policy = BudgetPolicy.of(8, model)
    policy.bind(tiny_target, drafter)
    assert 0 <= policy.best_size([-0.1] * 8, 20) <= 8


def test_measuring_leaves_no_entries_behind(tiny_target: Target) -> None:
    drafter = registry.drafters.get("ngram")()
    bench = profiling._Bench.of(tiny_target, drafter, 12)
    for n in (0, 5, 3):
        assert bench.verify(synthetic_tree(n, tiny_target.vocab_size, np.random.default_rng(n))) > 0
        assert (bench.cache.length, bench.cache.pending) == (12, 0)


def test_policies_without_a_cost_model_measure_one_for_themselves(
    tiny_target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = registry.drafters.get("domino")(checkpoint=str(TINY / "domino"))
    drafter.bind(tiny_target)
    policy = BudgetPolicy.of(6, "auto")
    policy.bind(tiny_target, drafter)
    assert policy.cost_model is not None
    assert policy.cost_model.nodes[-1] == 6
    assert "specforge profile" in caplog.text
