"""Timings kept in a file as they are measured, so that an interrupted profile goes on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, define, field, frozen

from specforge.errors import ConfigError


def _seconds(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(map(float, values))


@frozen
class Pass:
    """The seconds of one pass: the drafter, and the target at each number of nodes.

    Attributes:
        context: the context length.
        index: which pass at this context length.
        draft: seconds of the drafter.
        verify: seconds of the target, in the order of the plan's nodes.
    """

    context: int
    index: int
    draft: float = field(converter=float)
    verify: tuple[float, ...] = field(converter=_seconds)


@define
class Journal:
    """Passes by context length and index; with a path, each is on disk before the next is measured.

    The file has one JSON object a line: first what is measured and how, then the passes. A last line that a crash cut
    short is dropped.
    """

    path: Path | None
    passes: dict[tuple[int, int], Pass] = field(factory=dict)

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None, settings: Mapping[str, Any]) -> Journal:
        """Read what the file holds, or start it.

        Args:
            path: the file, or ``None`` to keep passes in memory only.
            settings: what is measured and how, as JSON values; passes measured otherwise must not mix with these.

        Raises:
            ConfigError: when the file holds something else, or measurements made with other settings.
        """
        journal = cls(None if path is None else Path(path))
        if journal.path is None:
            return journal
        lines = _whole_lines(journal.path)
        if not lines:
            journal._append(dict(settings))
            return journal
        _check_settings(journal.path, lines[0], settings)
        for line in lines[1:]:
            journal._keep(_read_pass(journal.path, line))
        return journal

    def _keep(self, measured: Pass) -> None:
        self.passes[measured.context, measured.index] = measured

    def add(self, measured: Pass) -> None:
        """Keep a pass."""
        self._keep(measured)
        self._append(asdict(measured))

    def _append(self, line: dict[str, Any]) -> None:
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise ConfigError(f"cannot write measurements {str(self.path)!r}: {error.strerror or error}") from error


def _whole_lines(path: Path) -> list[Any]:
    """Return the objects of the lines that were written to their end, and cut off what is left of another."""
    if not path.exists():
        return []
    try:
        contents = path.read_bytes()
        whole = contents.rfind(b"\n") + 1
        if whole < len(contents):
            os.truncate(path, whole)
    except OSError as error:
        raise ConfigError(f"cannot use measurements {str(path)!r}: {error.strerror or error}") from error
    try:
        return [json.loads(line) for line in contents[:whole].splitlines()]
    except (ValueError, RecursionError) as error:
        raise _no_measurements(path) from error


def _read_pass(path: Path, line: Any) -> Pass:
    try:
        return Pass(**line)
    except (TypeError, ValueError) as error:
        raise _no_measurements(path) from error


def _no_measurements(path: Path) -> ConfigError:
    return ConfigError(f"{os.fspath(path)!r} holds something other than measurements; delete it or write elsewhere")


def _check_settings(path: Path, found: Any, settings: Mapping[str, Any]) -> None:
    if not isinstance(found, dict):
        raise _no_measurements(path)
    for key, value in settings.items():
        if found.get(key) != value:
            raise ConfigError(
                f"{os.fspath(path)!r} holds measurements with {key} {found.get(key)!r}, these are with {value!r}; "
                "delete it or write elsewhere"
            )
