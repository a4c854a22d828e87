"""Prompt sets: JSONL and plain text files, texts given from Python, and the handful that ships with the package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
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


@frozen
class PromptSet:
    """Prompts that are reported together.

    Attributes:
        name: what tables call it.
        source: where it came from, for people.
        items: the conversations, no two of one name, at least one.

    Raises:
        ConfigError: when there is none, or two share a name.
    """

    name: str
    source: str
    items: tuple[PromptItem, ...]

    def __attrs_post_init__(self) -> None:
        if not self.items:
            raise ConfigError(f"prompt set {self.name!r} is empty; a comparison needs at least one prompt")
        names = [item.name for item in self.items]
        twice = next((name for name in names if names.count(name) > 1), None) if len({*names}) < len(names) else None
        if twice is not None:
            raise ConfigError(f"prompt set {self.name!r} has two prompts called {twice!r}; give them different names")

    def describe(self) -> dict[str, Any]:
        """Return ``{"source", "count", "sha256"}``; the digest covers names and turns, in order."""
        turns = [[item.name, item.turns] for item in self.items]
        digest = hashlib.sha256(json.dumps(turns, ensure_ascii=True).encode()).hexdigest()
        return {"source": self.source, "count": len(self.items), "sha256": digest}


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


def texts(prompts: Sequence[Any], limit: int | None = None) -> list[PromptItem]:
    """Make items, named by their number from 1, of what a program holds.

    Args:
        prompts: each a ``PromptItem``, a text, a sequence of token ids, or a dict as in a line of a prompt file.
        limit: take only the first so many.

    Raises:
        ConfigError: naming the first that is none of these.
    """
    return _first([_from_python(prompt, f"{number}") for number, prompt in enumerate(prompts, start=1)], limit)


def _from_python(prompt: Any, name: str) -> PromptItem:
    if isinstance(prompt, PromptItem):
        return prompt
    turns = _turns(prompt) if isinstance(prompt, dict) else [prompt]
    plain = [turn if isinstance(turn, str) or not isinstance(turn, Sequence) else list(turn) for turn in turns]
    if not plain or not all(_is_turn(turn) for turn in plain):
        raise ConfigError(f"prompt {name} is {_shortened(repr(prompt))}; a prompt is a text, token ids, or {_FORMS}")
    return PromptItem(name, tuple(turn if isinstance(turn, str) else tuple(turn) for turn in plain))


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
