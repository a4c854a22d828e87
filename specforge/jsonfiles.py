"""Reading and writing the small JSON files (cost models, calibrations) that people also edit by hand."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from specforge.errors import ConfigError


def read_object(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        path: the file.
        what: what the file is meant to be, for the message.

    Raises:
        ConfigError: when the file cannot be read or is no JSON object; the message names the file and the reason.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"cannot read {what} {os.fspath(path)!r}: {reason}") from error
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what} {os.fspath(path)!r} is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{what} {os.fspath(path)!r} holds a {type(loaded).__name__}, not a JSON object")
    return loaded


def write_object(path: str | os.PathLike[str], contents: dict[str, Any], what: str) -> None:
    """Write a JSON object atomically: a reader, or a crash, sees the old file or the new one, never half of one.

    Raises:
        ConfigError: when the file cannot be written; the message names ``what``, the file and the reason.
    """
    path = Path(path)
    text = json.dumps(contents, indent=1, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f"cannot write {what} {os.fspath(path)!r}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
