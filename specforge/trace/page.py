"""A trace as one HTML file that needs nothing else."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path
from string import Template

from specforge.errors import ConfigError
from specforge.trace.view import Trace


def write_page(trace: Trace, path: str | Path) -> None:
    """Write the page.

    Raises:
        ConfigError: when the file cannot be written.
    """
    try:
        Path(path).write_text(page(trace), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def page(trace: Trace) -> str:
    """Return the page: styles, script and data inline; whatever a model or a user wrote is escaped."""
    return Template(_part("trace.html")).substitute(
        title=html.escape(f"{trace.pipeline} on {trace.target}"),
        style=_part("trace.css"),
        script=_part("trace.js"),
        text=html.escape("".join(emission.text for emission in trace.emissions)),
        data=_data(trace),
    )


def _part(name: str) -> str:
    return (files("specforge") / "data" / name).read_text(encoding="utf-8")


def _data(trace: Trace) -> str:
    """Return JSON in which nothing can end the element that holds it."""
    return json.dumps(trace.to_dict(), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
