"""Grids: one pipeline for every combination of some options' values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import attrs
from attrs import frozen

from specforge import registry
from specforge.assembly import option_names
from specforge.config import AUTO, PartConfig, PipelineConfig
from specforge.errors import ConfigError, suggest
from specforge.interfaces import SCORES

PARTS = ("drafter", "scorer", "builder", "verifier")
_FORM = "part.option=value,value, such as builder.budget=8,16,32"


@frozen
class Axis:
    """An option and the values it takes.

    Attributes:
        part: drafter, scorer, builder or verifier.
        option: one of the part's options.
        values: JSON values, each once.

    Raises:
        ConfigError: for another part, no value, or one given twice.
    """

    part: str
    option: str
    values: tuple[Any, ...]

    def __attrs_post_init__(self) -> None:
        if self.part not in PARTS:
            raise ConfigError(f"the grid names the part {self.part!r}; it must be one of {', '.join(PARTS)}")
        if not self.option or not self.values:
            raise ConfigError(f"the grid {self.label!r} lacks an option or a value; it must be {_FORM}")
        words = [_word(value) for value in self.values]
        twice = next((word for word in words if words.count(word) > 1), None)
        if twice is not None:
            raise ConfigError(f"the grid gives {self.label} the value {twice} twice")

    @property
    def label(self) -> str:
        """``part.option``."""
        return f"{self.part}.{self.option}"


def parse_axis(text: str) -> Axis:
    """Read ``builder.budget=8,16,32``; a value that is not JSON is text.

    Raises:
        ConfigError: when it is of another form (see ``Axis`` too).
    """
    label, equals, values = text.partition("=")
    part, dot, option = label.strip().partition(".")
    if not equals or not dot:
        raise ConfigError(f"the grid is {text!r}; it must be {_FORM}")
    return Axis(part, option, tuple(_value(word.strip()) for word in values.split(",") if word.strip()))


def axes_of(grid: Mapping[str, Iterable[Any]] | Sequence[str] | None) -> tuple[Axis, ...]:
    """Read a grid as the command line gives it, a text an axis, or as Python does: ``{"builder.budget": [8, 16]}``.

    Raises:
        ConfigError: for an axis that cannot be used, or one given twice.
    """
    if isinstance(grid, str):
        grid = [grid]
    if isinstance(grid, Mapping):
        axes = tuple(Axis(*label.partition(".")[::2], tuple(values)) for label, values in grid.items())
    else:
        axes = tuple(parse_axis(text) for text in grid or ())
    labels = [axis.label for axis in axes]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ConfigError(f"the grid gives {twice} twice; give all its values at once")
    return axes


def expand(configs: Mapping[str, PipelineConfig], axes: Sequence[Axis]) -> dict[str, PipelineConfig]:
    """Replace each pipeline by one for every combination of the axes whose option it has.

    Pipelines are called ``name[builder.budget=16]``; one that has none of the options stays as it is.

    Raises:
        ConfigError: when no pipeline has an axis's option, naming the options there are.
    """
    for axis in axes:
        if not any(_has(config, axis) for config in configs.values()):
            known = {name for config in configs.values() for name in _options(config, axis.part)}
            raise ConfigError(f"no pipeline's {axis.part} has the option {axis.option!r}{suggest(axis.option, known)}")
    expanded: dict[str, PipelineConfig] = {}
    for name, config in configs.items():
        mine = [axis for axis in axes if _has(config, axis)]
        for values in product(*(axis.values for axis in mine)):
            words = [f"{axis.label}={_word(value)}" for axis, value in zip(mine, values, strict=True)]
            changed = config
            for axis, value in zip(mine, values, strict=True):
                changed = _with(changed, axis, value)
            expanded[f"{name}[{','.join(words)}]" if words else name] = changed
    return expanded


def _with(config: PipelineConfig, axis: Axis, value: Any) -> PipelineConfig:
    part: PartConfig = getattr(config, axis.part)
    changes: dict[str, Any] = {
        axis.part: PartConfig(_part_name(config, axis.part), {**part.options, axis.option: value})
    }
    return attrs.evolve(config, **changes)


def _has(config: PipelineConfig, axis: Axis) -> bool:
    return axis.option in _options(config, axis.part)


def _options(config: PipelineConfig, part: str) -> list[str]:
    name = _part_name(config, part)
    # Which verifier "auto" is hangs on the temperature; it takes no options.
    return [] if name == AUTO else option_names(getattr(registry, f"{part}s").get(name))


def _part_name(config: PipelineConfig, part: str) -> str:
    """Return the part's registered name, that of the default where the config leaves it open."""
    name: str = getattr(config, part).name
    if name != AUTO or part == "verifier":
        return name
    if part == "scorer":
        return registry.drafters.get(config.drafter.name).default_scorer
    scorer = registry.scorers.get(_part_name(config, "scorer"))
    return "chain" if SCORES in scorer.gives else "none"


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except json.JSONDecodeError:
        return word


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
