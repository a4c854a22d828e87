"""What building a tree takes: builders x scorers x correction backends x budgets, a group a scorer and budget.

Every registered builder that takes a ``budget``, plugins' too, is in every group, and so is the builder of each
``--config`` file. Random weights: of the bundled target's shapes on a CPU, of Qwen3-4B's on a CUDA device.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import frozen
from random_heads import QWEN3_4B, SMOLLM2, any_round, random_domino, random_draft

from specforge import registry
from specforge.assembly import make_part
from specforge.config import PartConfig, load_config_file
from specforge.correction.backends import run_on, runnable
from specforge.interfaces import Draft, Scorer, TreeBuilder
from specforge.strategies.chain_conditional import ChainConditional
from specforge.strategies.conditional import Conditional
from specforge.strategies.marginal import Marginal

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPE = QWEN3_4B if DEVICE.type == "cuda" else SMOLLM2
BUDGETS = (32, 64)
SCORERS: dict[str, Scorer] = {
    "marginal": Marginal(),
    "chain-conditional": ChainConditional(),
    "conditional": Conditional(64),
}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "heap": {"heap": {}, "heap, node by node": {"lookahead": 1}},
    "depthwise": {"depthwise, pruned": {"width": 12}, "depthwise, fixed": {"mode": "fixed"}},
}
"""Options to compare of a registered builder; any other builder joins with its defaults."""


@frozen
class Entry:
    """A builder in the comparison.

    Attributes:
        label: its name there.
        name: its registered name.
        options: its options; the group's budget is added.
    """

    label: str
    name: str
    options: dict[str, Any]

    def builder(self, budget: int) -> TreeBuilder:
        return make_part(registry.builders, PartConfig(self.name, {**self.options, "budget": budget}))


def entries(config_files: Sequence[str] = ()) -> list[Entry]:
    """Return the registered builders that need a budget and nothing else, and those of config files, as configured."""
    found = []
    # First: running a file may register builders.
    for file in config_files:
        part = load_config_file(file).builder
        found.append(Entry(Path(file).stem, part.name, dict(part.options)))
    for name, cls in registry.builders:
        if needs_only_a_budget(cls):
            variants = VARIANTS.get(name, {name: {}})
            found += [Entry(label, name, options) for label, options in variants.items()]
    return found


def needs_only_a_budget(cls: type) -> bool:
    options = inspect.signature(cls).parameters
    needed = {name for name, option in options.items() if option.default is option.empty}
    return "budget" in options and needed <= {"budget"}


def combinations(config_files: Sequence[str] = ()) -> Iterator[Any]:
    """Yield a test parameter a comparison: scorer, entry, backend, budget."""
    for scorer, part in SCORERS.items():
        for entry in entries(config_files):
            # Where paths do not matter there is nothing to look ahead for; where nothing is corrected, one backend.
            if part.path_independent and "lookahead" in entry.options:
                continue
            for backend in ["eager"] if scorer == "marginal" else runnable(DEVICE):
                for budget in BUDGETS:
                    name = f"{scorer}-{entry.label}-{backend}-{budget}"
                    yield pytest.param(scorer, entry, backend, budget, id=name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "entry" in metafunc.fixturenames:
        files = metafunc.config.getoption("--config")
        metafunc.parametrize(("scorer", "entry", "backend", "budget"), list(combinations(files)))


@lru_cache(maxsize=1)
def eager_head() -> Any:
    return random_domino(SHAPE, torch.bfloat16, DEVICE, table=SHAPE is SMOLLM2)


@lru_cache
def draft_on(backend: str) -> Draft:
    return random_draft(SHAPE, torch.bfloat16, run_on(backend, eager_head(), DEVICE), DEVICE)


def test_build(benchmark: Any, scorer: str, entry: Entry, backend: str, budget: int) -> None:
    benchmark.group = f"{scorer}, B={budget}"
    builder, draft, round = entry.builder(budget), draft_on(backend), any_round(DEVICE)
    tree = benchmark.pedantic(builder.build, (draft, SCORERS[scorer], round), rounds=7, warmup_rounds=2)
    benchmark.extra_info["nodes"] = tree.budget
    assert 0 < tree.budget <= budget
