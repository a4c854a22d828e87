"""Loading a target by name or folder, with one clear line for whatever is wrong with either."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from specforge.errors import ConfigError
from specforge.target.bundled import BUNDLED_TARGET, bundled_folder
from specforge.target.model import Target
from specforge.target.support import check_config

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")

T = TypeVar("T")


def load_target(name_or_folder: str, dtype: str = "auto", device: str = "auto") -> Target:
    """Load a causal LM from a folder, from the hub, or the bundled one; no remote code is run.

    Args:
        name_or_folder: a folder, a hub id, or ``"smollm2"`` for the bundled SmolLM2-135M-Instruct.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"``, or ``"auto"`` for that of the checkpoint.
        device: a torch device, or ``"auto"`` for CUDA where there is one, else the CPU.

    Raises:
        ConfigError: when an argument, or the folder or hub repository, cannot be used.
        UnsupportedTargetError: when the model cannot verify trees; found from the config, before weights are read.
    """
    chosen_dtype, chosen_device = parse_dtype(dtype), parse_device(device)
    with _quiet_progress():
        source = str(bundled_folder()) if name_or_folder == BUNDLED_TARGET else _checked_source(name_or_folder)
        config = _attempt(name_or_folder, "config", lambda: AutoConfig.from_pretrained(source))
        check_config(config)
        tokenizer = _load_tokenizer(name_or_folder, source)
        model = _load_model(name_or_folder, source, config, chosen_dtype)
    return Target(model.to(chosen_device), tokenizer, name_or_folder)


def parse_dtype(dtype: str) -> torch.dtype | str:
    """Return the torch dtype called ``dtype``; ``"auto"`` stays as it is."""
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; it must be 'auto' or one of {', '.join(map(repr, DTYPES))}")
    return DTYPES.get(dtype, "auto")


def parse_device(device: str) -> torch.device:
    """Return the torch device called ``device``, after checking that this machine has it."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device is {device!r}, which cannot be used here: {reason}") from None
    return chosen


def _checked_source(name_or_folder: str) -> str:
    """Return the name, or the folder with ``~`` expanded, unless it can be neither: the hub is slow to say no."""
    folder = Path(name_or_folder).expanduser()
    if folder.is_dir():
        return str(folder)
    if folder.is_file():
        raise ConfigError(f"target {name_or_folder!r} is a file; give the folder it lies in, or a hub id")
    if not _HUB_ID.fullmatch(name_or_folder):
        raise ConfigError(f"target folder {name_or_folder!r} does not exist, and a hub id looks like 'owner/name'")
    return name_or_folder


def _load_model(name: str, source: str, config: PreTrainedConfig, dtype: torch.dtype | str) -> PreTrainedModel:
    model, report = _attempt(
        name,
        "weights",
        lambda: AutoModelForCausalLM.from_pretrained(source, config=config, dtype=dtype, output_loading_info=True),
    )
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers fills these with random numbers
        named = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ConfigError(f"cannot load the weights of target {name!r}: {len(missing)} are missing: {named}")
    return model


def _load_tokenizer(name: str, source: str) -> PreTrainedTokenizerBase | None:
    folder = Path(source)
    if folder.is_dir() and not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        return None
    return _attempt(name, "tokenizer", lambda: AutoTokenizer.from_pretrained(source))


def _attempt(name: str, what: str, load: Callable[[], T]) -> T:
    try:
        return load()
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        # transformers raises any of these for files that are missing, cut short or of an unknown kind
        reason = " ".join(str(error).split()) or type(error).__name__
        where = "" if Path(name).expanduser().exists() or name == BUNDLED_TARGET else " (no folder, so a hub id)"
        raise ConfigError(f"cannot load the {what} of target {name!r}{where}: {reason}") from error


@contextmanager
def _quiet_progress() -> Iterator[None]:
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
