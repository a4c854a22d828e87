"""Where a checkpoint's files are, and reading them: JSON and safetensors only, never code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specforge.checkpoints.bundled import BUNDLED_DRAFTER, bundled_drafter_folder
from specforge.errors import CheckpointError

CONFIG_FILE = "config.json"
INDEX_SUFFIX = ".safetensors.index.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "BOOL": "bool"}


@frozen(eq=False)
class StoredTensor:
    """A tensor as its file's header describes it.

    Attributes:
        file: the safetensors file.
        name: its name in the file.
        shape: its shape.
        dtype: its dtype in PyTorch's spelling.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def locate(checkpoint: str) -> Path:
    """Return the folder of a checkpoint: the folder itself, the bundled drafter's, or a hub repository's snapshot.

    Raises:
        CheckpointError: when there is neither, or the hub cannot be reached and holds no local copy.
    """
    path = Path(checkpoint).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(f"checkpoint {checkpoint!r} is a file; it must be the folder that holds {CONFIG_FILE}")
    if checkpoint == BUNDLED_DRAFTER:
        return bundled_drafter_folder()
    if not _HUB_ID.fullmatch(checkpoint):
        raise CheckpointError(f"checkpoint {checkpoint!r} is no folder here, and no hub id (owner/name) either")
    try:
        return Path(snapshot_download(checkpoint, allow_patterns=[CONFIG_FILE, "*.safetensors", "*" + INDEX_SUFFIX]))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"checkpoint {checkpoint!r} is no folder here, and could not be fetched from the hub: {reason}"
        ) from error


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        CheckpointError: when the file is missing, unreadable or holds no object.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{file}: no such file; a checkpoint needs it") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: holds a JSON {type(content).__name__}; it must be an object")
    return content


def list_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a folder's safetensors files by name, from their headers alone.

    Raises:
        CheckpointError: when there are none, a file is unreadable, a name occurs twice, or a shard is missing.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: no *.safetensors file (other formats are not read: unpickling runs code)")
    found: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in _read_header(file).items():
            if name in found:
                raise CheckpointError(
                    f"{file}: tensor {name} is in {found[name].file.name} too; it must be in one file"
                )
            found[name] = tensor
    _check_index(folder, found)
    return found


def _read_header(file: Path) -> dict[str, StoredTensor]:
    def read(opened: Any) -> dict[str, StoredTensor]:
        tensors = {}
        for name in opened.keys():  # noqa: SIM118 - the handle is no mapping
            part = opened.get_slice(name)
            dtype = part.get_dtype()
            tensors[name] = StoredTensor(file, name, tuple(part.get_shape()), _DTYPES.get(dtype, dtype))
        return tensors

    return _with_safetensors(file, read)


def _check_index(folder: Path, found: Mapping[str, StoredTensor]) -> None:
    for index in sorted(folder.glob("*" + INDEX_SUFFIX)):
        listed = read_json(index).get("weight_map")
        if not isinstance(listed, dict):
            raise CheckpointError(f"{index}: weight_map is {listed!r}; it must be an object")
        for name, file in listed.items():
            if name not in found:
                raise CheckpointError(
                    f"{index}: tensor {name} should be in {file}, but it is in none of the files here"
                )


def read_tensors(tensors: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    """Return the tensors, on the CPU and in the dtypes they are stored in.

    Raises:
        CheckpointError: when a file cannot be read.
    """
    values: dict[str, Tensor] = {}
    for file in sorted({t.file for t in tensors.values()}):
        wanted = {name: t.name for name, t in tensors.items() if t.file == file}
        values.update(_with_safetensors(file, partial(_get_tensors, wanted)))
    return values


def _get_tensors(wanted: Mapping[str, str], opened: Any) -> dict[str, Tensor]:
    return {name: opened.get_tensor(stored) for name, stored in wanted.items()}


def _with_safetensors(file: Path, read: Callable[[Any], Any]) -> Any:
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            return read(opened)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not readable as safetensors: {error}") from error


def cast(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Move a tensor; floating ones take ``dtype``, others keep theirs."""
    return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)
