"""Which pipelines a command line asks for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from specforge import registry
from specforge.assembly import option_names, takes_checkpoint, with_checkpoint, with_drafter_options
from specforge.checkpoints import open_checkpoint
from specforge.config import PipelineConfig, load_config_file
from specforge.errors import ConfigError
from specforge.pipeline import Pipeline
from specforge.presets import preset_config
from specforge.report.records import BASELINE
from specforge.target import load_target

logger = logging.getLogger("specforge")


def named_configs(
    presets: str | None,
    files: Sequence[Path],
    target: str | None,
    checkpoints: Sequence[str],
    device: str | None,
    dtype: str | None,
) -> dict[str, PipelineConfig]:
    """Return the configs to compare by name, ``ar`` always among them.

    Presets take the target, dtype and device of the first config file where the command line names none. For how
    checkpoints are dealt out see ``deal_checkpoints``.

    Raises:
        ConfigError: when nothing is named, two share a name, or a checkpoint has no reader.
    """
    names = [name.strip() for name in (presets or "").split(",") if name.strip()]
    if not names and not files:
        raise ConfigError("nothing to compare; give --presets a,b,c or --config file.py")
    loaded = {file: load_config_file(file) for file in files}
    if BASELINE not in names:
        names.insert(0, BASELINE)
    configs = {name: preset_config(name) for name in names}
    for first in list(loaded.values())[:1]:
        configs = {name: c.override(first.target, first.dtype, first.device) for name, c in configs.items()}
    for file, config in loaded.items():
        if file.stem in configs:
            raise ConfigError(f"two pipelines are called {file.stem!r}; rename the config file {str(file)!r}")
        configs[file.stem] = config
    configs = {name: config.override(target, dtype, device) for name, config in configs.items()}
    return deal_checkpoints(configs, checkpoints) if checkpoints else configs


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
    drafter = registry.drafters.get(config.drafter.name)
    wanted = getattr(drafter, "kind", None)
    fitting = [checkpoint for checkpoint, kind in kinds.items() if kind == wanted]
    found = fitting or list(kinds)
    if len(found) > 1:
        given = ", ".join(f"{checkpoint!r} ({kind})" for checkpoint, kind in kinds.items())
        raise ConfigError(f"pipeline {name!r} could read any of {given}; give one that its drafter was made for")
    config = with_checkpoint(config, found[0])
    if fitting or wanted is None or "ignore_head" not in option_names(drafter):
        return config
    logger.warning("%s drafts with the backbone of %s alone; its %s head is ignored", name, found[0], kinds[found[0]])
    return with_drafter_options(config, ignore_head=True)


def share_target(configs: dict[str, PipelineConfig]) -> dict[str, Pipeline]:
    """Assemble the pipelines on one loaded target.

    Raises:
        ConfigError: when they name different targets, dtypes or devices.
    """
    first = configs[BASELINE]
    for name, config in configs.items():
        for option in ("target", "dtype", "device"):
            if getattr(config, option) != getattr(first, option):
                raise ConfigError(
                    f"{name!r} has {option} {getattr(config, option)!r}, another pipeline {getattr(first, option)!r}; "
                    f"pipelines are compared on one target: give --{option}"
                )
    target = load_target(first.target, dtype=first.dtype, device=first.device)
    return {name: Pipeline.from_config(config, target=target) for name, config in configs.items()}


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
    """
    if (preset is None) == (file is None):
        raise ConfigError("give one of --preset (see `specforge list`) and --config file.py")
    config = preset_config(preset) if preset is not None else load_config_file(file or "")
    config = config.override(target, dtype, device)
    return config if checkpoint is None else with_checkpoint(config, checkpoint)
