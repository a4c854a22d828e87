"""Configuration: which parts, with which options, on which target. Also Python config files."""

from __future__ import annotations

import os
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import torch
from attrs import field, frozen

from specforge.errors import ConfigError, SpecforgeError
from specforge.target.bundled import BUNDLED_TARGET

AUTO = "auto"
C = TypeVar("C")

DTYPES = ("auto", "float32", "bfloat16", "float16")


@frozen
class PartConfig:
    """A registered name and the options given to its class's constructor."""

    name: str
    options: Mapping[str, Any] = field(factory=dict, converter=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"name": ..., **options}``."""
        return {"name": self.name, **self.options}


def part_config(value: str | Mapping[str, Any] | PartConfig | None) -> PartConfig:
    """Read ``"heap"``, ``{"name": "heap", "budget": 64}``, or ``None`` for no such part.

    Raises:
        ConfigError: when ``value`` is neither, or names no part.
    """
    if isinstance(value, PartConfig):
        return value
    if value is None:
        return PartConfig("none")
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ConfigError(f"a part is a name or a dict with a 'name', like {{'name': 'chain'}}; got {value!r}")
    return PartConfig(value["name"], {k: v for k, v in value.items() if k != "name"})


def _one_of(allowed: tuple[str, ...]) -> Any:
    def check(_: Any, attribute: attrs.Attribute, value: object) -> None:
        if value not in allowed:
            raise ConfigError(f"{attribute.name} is {value!r}; it must be one of {', '.join(allowed)}")

    return check


def _text(value: object) -> Any:
    """Take paths for folders and torch dtypes for their names."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _dtype_name(value: object) -> Any:
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value


def _non_empty(_: Any, attribute: attrs.Attribute, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{attribute.name} is {value!r}; it must be a non-empty string")


@frozen
class PipelineConfig:
    """One pipeline: a target and the four parts.

    A part is a registered name, a dict ``{"name": ..., **options}``, or ``None`` for none.

    Attributes:
        target: a folder or hub id of a causal LM, or ``"smollm2"``, the bundled one.
        drafter: proposes blocks.
        scorer: ``"auto"`` takes the drafter's own default.
        builder: ``"auto"`` is a chain, or none where there is no drafter.
        verifier: ``"auto"`` is greedy at temperature 0 and sampling above.
        dtype: of the target and the drafter; ``"auto"`` is the one the target was saved in.
        device: ``"auto"`` is CUDA where there is one, else the CPU.

    Raises:
        ConfigError: naming the field and its value.
    """

    target: str = field(default=BUNDLED_TARGET, converter=_text, validator=_non_empty)
    drafter: PartConfig = field(default=PartConfig("none"), converter=part_config)
    scorer: PartConfig = field(default=PartConfig(AUTO), converter=part_config)
    builder: PartConfig = field(default=PartConfig(AUTO), converter=part_config)
    verifier: PartConfig = field(default=PartConfig(AUTO), converter=part_config)
    dtype: str = field(default=AUTO, converter=_dtype_name, validator=_one_of(DTYPES))
    device: str = field(default=AUTO, validator=_non_empty)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts and strings, which make the same config again when passed as keywords."""
        return attrs.asdict(
            self, recurse=False, value_serializer=lambda _i, _a, v: v.to_dict() if isinstance(v, PartConfig) else v
        )

    def override(
        self, target: str | None = None, dtype: str | None = None, device: str | None = None
    ) -> PipelineConfig:
        """Return a copy with what is given replaced."""
        changes = {"target": target, "dtype": dtype, "device": device}
        return attrs.evolve(self, **{name: value for name, value in changes.items() if value is not None})


def load_config_file(path: str | Path) -> PipelineConfig:
    """Run a Python file and return its ``config``.

    Raises:
        ConfigError: when the file is missing, raises, or has no ``config`` that is a ``PipelineConfig``.
    """
    return load_python_file(path, PipelineConfig)


def load_python_file(path: str | Path, kind: type[C]) -> C:
    """Run a Python file and return its ``config``, which must be a ``kind``.

    Raises:
        ConfigError: when the file is missing, raises, or has no ``config`` of that kind.
    """
    if not Path(path).is_file():
        raise ConfigError(f"config file {str(path)!r} does not exist")
    try:
        names = runpy.run_path(str(path), run_name=f"config file {path}")
    except SpecforgeError as error:
        raise ConfigError(f"config file {str(path)!r}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"config file {str(path)!r} raised {type(error).__name__}: {error}") from error
    if "config" not in names:
        raise ConfigError(f"config file {str(path)!r} lacks `config`; it must hold `config = {kind.__name__}(...)`")
    if not isinstance(names["config"], kind):
        found = type(names["config"]).__name__
        raise ConfigError(f"config file {str(path)!r}: `config` is a {found}; it must be a {kind.__name__}")
    return names["config"]
