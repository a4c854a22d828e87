"""Which pipelines a command line or a program asks for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from specforge import registry
from specforge.assembly import takes_checkpoint, with_checkpoint
from specforge.checkpoints import open_checkpoint
from specforge.config import AUTO, PipelineConfig, load_config_file
from specforge.errors import ConfigError
from specforge.pipeline import Pipeline
from specforge.presets import preset_config, suited
from specforge.report.grid import Axis, expand
from specforge.report.records import BASELINE
from specforge.target import Target, load_target

Choice = str | os.PathLike[str] | PipelineConfig | Pipeline
"""A preset's name, a config file, a config, or a pipeline."""

Choices = Choice | Iterable[Choice] | Mapping[str, Choice]


@frozen(eq=False)
class Selection:
    """The pipelines to compare, by name.

    Attributes:
        configs: those still to be assembled.
        assembled: those that are.
    """

    configs: dict[str, PipelineConfig]
    assembled: dict[str, Pipeline]


def select(
    choices: Choices,
    *,
    target: str | None = None,
    checkpoints: Sequence[str] = (),
    device: str | None = None,
    dtype: str | None = None,
    axes: Sequence[Axis] = (),
) -> Selection:
    """Return the pipelines to compare, ``ar`` always among them.

    Presets take the target, dtype and device of the first config where none is given. For how checkpoints are dealt
    out see ``deal_checkpoints``; the grid comes last.

    Args:
        choices: presets (several may stand in one text, separated by commas), config files, configs and pipelines; a
            mapping names them.
        target: replaces every config's.
        checkpoints: drafter checkpoints.
        device: replaces every config's.
        dtype: replaces every config's.
        axes: one pipeline for every combination of their values.

    Raises:
        ConfigError: when nothing is named, two share a name, a checkpoint has no reader, or a grid option no pipeline.
    """
    named = _named(choices)
    if not named:
        raise ConfigError("nothing to compare; give --presets a,b,c or --config file.py")
    if BASELINE not in named:
        named = {BASELINE: BASELINE, **named}
    given = {name: config for name, config in named.items() if isinstance(config, PipelineConfig)}
    assembled = {name: pipeline for name, pipeline in named.items() if isinstance(pipeline, Pipeline)}
    presets = {name: preset_config(preset) for name, preset in named.items() if isinstance(preset, str)}
    for pipeline in list(assembled.values())[:1]:
        target = pipeline.target.name if target is None else target
    for first in list(given.values())[:1]:
        presets = {name: c.override(first.target, first.dtype, first.device) for name, c in presets.items()}
    configs = {name: config.override(target, dtype, device) for name, config in {**presets, **given}.items()}
    configs = {name: suited(config) if name in presets else config for name, config in configs.items()}
    configs = deal_checkpoints(configs, checkpoints) if checkpoints else configs
    selection = Selection(expand(configs, axes), assembled)
    _check_baseline(selection)
    return selection


def _named(choices: Choices) -> dict[str, str | PipelineConfig | Pipeline]:
    """Name what is chosen, and read config files."""
    if isinstance(choices, Mapping):
        return {name: _read(choice) for name, choice in choices.items()}
    if isinstance(choices, str | os.PathLike | PipelineConfig | Pipeline):
        choices = [choices]
    named: dict[str, str | PipelineConfig | Pipeline] = {}
    for choice in _split(choices):
        name = _name_of(choice)
        if name in named:
            raise ConfigError(f"two pipelines are called {name!r}; rename a config file, or give a dict of names")
        named[name] = _read(choice)
    return named


def _split(choices: Iterable[Choice]) -> Iterator[Choice]:
    for choice in choices:
        if isinstance(choice, str):
            yield from (name.strip() for name in choice.split(",") if name.strip())
        else:
            yield choice


def _read(choice: Any) -> str | PipelineConfig | Pipeline:
    if isinstance(choice, os.PathLike) or (isinstance(choice, str) and choice.endswith(".py")):
        return load_config_file(os.fspath(choice))
    if isinstance(choice, str | PipelineConfig | Pipeline):
        return choice
    raise ConfigError(
        f"a pipeline is a preset's name, a config file, a PipelineConfig or a Pipeline; got a {type(choice).__name__}"
    )


def _name_of(choice: Any) -> str:
    if isinstance(choice, Pipeline):
        return _name_of(choice.config)
    if isinstance(choice, PipelineConfig):
        parts = (choice.drafter.name, choice.scorer.name, choice.builder.name)
        return "+".join(name for name in parts if name not in (AUTO, "none")) or BASELINE
    if isinstance(choice, os.PathLike) or (isinstance(choice, str) and choice.endswith(".py")):
        return Path(choice).stem
    return str(choice)


def _check_baseline(selection: Selection) -> None:
    made = selection.assembled.get(BASELINE)
    config = made.config if made is not None else selection.configs[BASELINE]
    if config.drafter.name != "none":
        raise ConfigError(
            f"the pipeline called {BASELINE!r} is the baseline, plain decoding; "
            f"this one has the drafter {config.drafter.name!r}, call it something else"
        )


def deal_checkpoints(configs: dict[str, PipelineConfig], checkpoints: Sequence[str]) -> dict[str, PipelineConfig]:
    """Give every drafter that reads a checkpoint the one made for it.

    A drafter that says its ``kind`` gets the checkpoint of that kind. Where there is none, a drafter that can ignore
    a correction head gets a checkpoint that has one, and the log says so. Any other drafter gets the only one.

    Raises:
        ConfigError: when no drafter reads a checkpoint, or it is not clear which one a drafter should read.
        CheckpointError: when a checkpoint cannot be read.
    """
    users = [name for name, config in configs.items() if takes_checkpoint(config)]
    if not users:
        raise ConfigError(f"none of {', '.join(configs)} reads a checkpoint; got {checkpoints[0]!r}")
    kinds = {checkpoint: open_checkpoint(checkpoint).config.kind for checkpoint in checkpoints}
    return {name: _dealt(name, c, kinds) if name in users else c for name, c in configs.items()}


def _dealt(name: str, config: PipelineConfig, kinds: dict[str, str]) -> PipelineConfig:
    wanted = getattr(registry.drafters.get(config.drafter.name), "kind", None)
    found = [checkpoint for checkpoint, kind in kinds.items() if kind == wanted] or list(kinds)
    if len(found) > 1:
        given = ", ".join(f"{checkpoint!r} ({kind})" for checkpoint, kind in kinds.items())
        raise ConfigError(f"pipeline {name!r} could read any of {given}; give one that its drafter was made for")
    return with_checkpoint(config, found[0], kinds[found[0]], name)


def share_target(selection: Selection, target: Target | None = None) -> dict[str, Pipeline]:
    """Assemble the pipelines on one loaded target; those with the same drafter share it too.

    Args:
        selection: what to assemble.
        target: a loaded target to use in place of the configs'; by default that of a pipeline that is assembled.

    Raises:
        ConfigError: when they name different targets, dtypes or devices, or hold different loaded ones.
    """
    loaded = [target] if target is not None else []
    loaded += [pipeline.target for pipeline in selection.assembled.values()]
    if any(other is not loaded[0] for other in loaded):
        raise ConfigError(
            f"pipelines are compared on one target, and there are several loaded ones: "
            f"{', '.join(other.name for other in loaded)}; make the pipelines with one Target"
        )
    shared = loaded[0] if loaded else _load(selection.configs)
    drafters = [(pipeline.config.drafter, pipeline.parts.drafter) for pipeline in selection.assembled.values()]
    pipelines = {}
    for name, config in selection.configs.items():
        known = next((drafter for made_from, drafter in drafters if made_from == config.drafter), None)
        pipelines[name] = Pipeline.from_config(config, target=shared, drafter=known)
        if known is None:
            drafters.append((config.drafter, pipelines[name].parts.drafter))
    return {**pipelines, **selection.assembled}


def _load(configs: Mapping[str, PipelineConfig]) -> Target:
    first = configs[BASELINE]
    for name, config in configs.items():
        for option in ("target", "dtype", "device"):
            if getattr(config, option) != getattr(first, option):
                raise ConfigError(
                    f"{name!r} has {option} {getattr(config, option)!r}, another pipeline {getattr(first, option)!r}; "
                    f"pipelines are compared on one target: give --{option}"
                )
    return load_target(first.target, dtype=first.dtype, device=first.device)


def one_config(
    preset: str | None,
    file: Path | None,
    target: str | None,
    checkpoint: str | None,
    device: str | None,
    dtype: str | None,
) -> PipelineConfig:
    """Return the config of one preset or one file, with what is given replaced.

    Raises:
        ConfigError: unless exactly one is named.
        CheckpointError: when the checkpoint cannot be read.
    """
    if (preset is None) == (file is None):
        raise ConfigError("give one of --preset (see `specforge list`) and --config file.py")
    config = preset_config(preset) if preset is not None else load_config_file(file or "")
    config = config.override(target, dtype, device)
    config = config if preset is None else suited(config)
    return config if checkpoint is None else with_checkpoint(config, checkpoint, name=preset)
