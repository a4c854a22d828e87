"""Prompt sets: JSONL and plain text files, and the handful that ships with the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from attrs import frozen

from specforge.checks import whole
from specforge.errors import ConfigError

_FORMS = '{"turns": ["text", ...]}, {"prompt": "text"} or {"token_ids": [1, 2, ...]}'


@frozen
class PromptItem:
    """One conversation to run.

    Attributes:
        name: file name and line, to find it again.
        turns: user turns in order, each text or a tuple of token ids; a later turn carries the chat on.
    """

    name: str
    turns: tuple[str | tuple[int, ...], ...]


def load_prompts(path: str | Path, limit: int | None = None) -> list[PromptItem]:
    """Read a prompt file: ``.jsonl`` holds one object a line, any other file one prompt a line.

    Args:
        path: the file.
        limit: take only the first so many.

    Raises:
        ConfigError: naming the file, and the line where one cannot be read.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"prompt file {str(path)!r} cannot be read: {reason}") from error
    read = _from_json if path.suffix == ".jsonl" else _from_text
    items = [read(line, f"{path.name}:{number}", f"{path}:{number}") for number, line in _lines(text)]
    if not items:
        raise ConfigError(f"prompt file {str(path)!r} holds no prompt")
    return _first(items, limit)


def demo_prompts(limit: int | None = None) -> list[PromptItem]:
    """Return the prompts that ship with the package, or the first ``limit`` of them."""
    text = files("specforge").joinpath("data/demo.jsonl").read_text(encoding="utf-8")
    items = [_from_json(line, f"demo:{number}", f"demo.jsonl:{number}") for number, line in _lines(text)]
    return _first(items, limit)


def _first(items: list[PromptItem], limit: int | None) -> list[PromptItem]:
    return items if limit is None else items[: whole(limit, "limit", 1)]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    # Not splitlines(): JSON strings may hold U+2028 and its like, which are no line ends there.
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def _from_text(line: str, name: str, where: str) -> PromptItem:
    return PromptItem(name, (line.strip(),))


def _from_json(line: str, name: str, where: str) -> PromptItem:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON ({error.msg} at column {error.colno}); a line is {_FORMS}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON that can be read ({error}); a line is {_FORMS}") from error
    turns = _turns(record)
    if not turns or not all(_is_turn(t) for t in turns):
        raise ConfigError(f"{where}: {_shortened(line)} is no prompt; a line is {_FORMS}, none of them empty")
    return PromptItem(name, tuple(t if isinstance(t, str) else tuple(t) for t in turns))


def _turns(record: Any) -> list[Any]:
    if not isinstance(record, dict):
        return []
    if isinstance(record.get("turns"), list):
        return record["turns"]
    return [record[key] for key in ("prompt", "token_ids") if key in record][:1]


def _is_turn(turn: Any) -> bool:
    if isinstance(turn, str):
        return bool(turn.strip())
    return isinstance(turn, list) and bool(turn) and all(type(t) is int for t in turn)


def _shortened(line: str) -> str:
    return line if len(line) <= 60 else line[:57] + "..."
