"""What a run was made with, as names and values: for a page, and to find what differs between two runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from specforge.report.datatable import DataTable, text_cell
from specforge.report.runfolder import RunData

Facts = dict[str, str]


def flat(values: Mapping[str, Any]) -> Facts:
    """Return nested values as ``outer.inner`` names and text; lists stay whole."""
    return dict(_flat(values, ""))


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", plain(value)


def plain(value: Any) -> str:
    """Return a value as a reader would write it."""
    if isinstance(value, str):
        return value
    if value is None or value in ({}, []):
        return "none"
    if isinstance(value, list) and all(isinstance(v, int | float | str) for v in value):
        return ", ".join(map(str, value))
    return json.dumps(value, ensure_ascii=False, default=str)


def facts_table(caption: str, values: Mapping[str, Any]) -> DataTable:
    """Return a table of names and values."""
    rows = tuple((text_cell(name), text_cell(value)) for name, value in flat(values).items())
    return DataTable(caption, ("name", "value"), rows)


def hardware_words(hardware: Mapping[str, Any]) -> str:
    """Return the machine in one line."""
    units = {"cores": "cores", "memory_gib": "GiB"}
    known = ((name, plain(value)) for name, value in hardware.items() if value is not None)
    return ", ".join(f"{value} {units[name]}" if name in units else value for name, value in known)


def command_line(run: RunData) -> str | None:
    """Return the command that makes the run again, quoted for a shell; ``None`` for a run started from Python."""
    return None if run.command is None else shlex.join(run.command)
