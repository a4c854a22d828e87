"""Builders of one's own in the benchmarks: registered by a plugin, or by a config file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import attrs
import pytest

from specforge import registry
from specforge.strategies.heap import Heap

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

CONFIG = """
from attrs import define

from specforge import PipelineConfig
from specforge.registry import register
from specforge.strategies.heap import Heap

@register.builder("mine")
@define(eq=False)
class Mine(Heap):
    flavour: str = "plain"

config = PipelineConfig(builder={"name": "mine", "budget": 7, "flavour": "strong"})
"""


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the benchmark, with a registry that later tests do not see."""
    registry.load_parts()
    monkeypatch.setattr(registry.builders, "_classes", dict(registry.builders._classes))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = __import__("test_correction_speed")
    monkeypatch.delitem(sys.modules, "test_correction_speed")
    return module


def test_built_in_builders_that_take_a_budget_are_compared(benchmark_module: ModuleType) -> None:
    labels = {entry.label for entry in benchmark_module.entries()}
    assert {"heap", "heap, node by node", "depthwise, pruned", "depthwise, fixed"} <= labels
    assert not {"none", "chain", "sampled"} & labels
    ids = [param.id for param in benchmark_module.combinations()]
    assert len(set(ids)) == len(ids)
    assert "conditional-heap, node by node-eager-32" in ids
    assert "marginal-heap, node by node-eager-32" not in ids


def test_a_registered_builder_joins_every_group(benchmark_module: ModuleType) -> None:
    @attrs.define(eq=False)
    class Plugged(Heap):
        """As a plugin's."""

    @attrs.define(eq=False)
    class Picky(Heap):
        """Needs more than a budget."""

        wish: str = attrs.field(kw_only=True)

    registry.builders.add("plugged", Plugged)
    registry.builders.add("picky", Picky)
    found = [param.id for param in benchmark_module.combinations() if "plugged" in param.id]
    assert {f"{scorer}-plugged-eager-64" for scorer in benchmark_module.SCORERS} <= set(found)
    assert not any("picky" in param.id for param in benchmark_module.combinations())


def test_a_config_file_joins_with_its_options(benchmark_module: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "my_tree.py"
    file.write_text(CONFIG)
    (entry,) = [entry for entry in benchmark_module.entries([str(file)]) if entry.label == "my_tree"]
    builder = entry.builder(32)
    assert (type(builder).__name__, builder.budget, builder.flavour) == ("Mine", 32, "strong")
    assert any(param.id == "conditional-my_tree-eager-64" for param in benchmark_module.combinations([str(file)]))


@pytest.mark.slow
def test_the_groups_run_and_are_saved(tmp_path: Path) -> None:
    file = tmp_path / "my_tree.py"
    file.write_text(CONFIG)
    options = ["--benchmark-only", "--benchmark-group-by=group", "-k", "marginal and 32"]
    options += ["--benchmark-autosave", f"--benchmark-storage={tmp_path / 'saved'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "test_correction_speed.py", "--config", str(file), *options],
        cwd=BENCHMARKS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "benchmark 'marginal, B=32'" in done.stdout
    assert "marginal-my_tree-eager-32" in done.stdout
    assert list((tmp_path / "saved").rglob("*.json"))
