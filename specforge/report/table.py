"""A comparison as a table for the terminal and as one JSON object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import attrs
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from specforge.report.names import short_names
from specforge.report.rows import Row

if TYPE_CHECKING:
    from specforge.report.compare import Comparison

_ROUND_STAGES = ("draft", "build", "verify", "commit")


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return ``{"results": [...], "settings": {...}}`` with one row a pipeline; NaN becomes ``None``.

    With several prompt sets or temperatures there is a row for each of them too, which says so in ``prompt_set`` and
    ``temperature``.
    """
    several = _several(comparison.rows)
    return {"results": [_row_json(row, several) for row in comparison.rows], "settings": comparison.settings}


def _several(rows: Sequence[Row]) -> bool:
    return len({(row.prompt_set, row.temperature) for row in rows}) > 1


def _row_json(row: Row, several: bool) -> dict[str, Any]:
    figures = attrs.asdict(row)
    where = {key: figures.pop(key) for key in ("prompt_set", "temperature")}
    divergences = [{**attrs.asdict(d), "tie": d.tie} for d in row.divergences]
    named = {"preset": figures.pop("name"), **(where if several else {}), **figures, "divergences": divergences}
    return {key: _json_value(value) for key, value in named.items()}


def _json_value(value: Any) -> Any:
    """JSON knows neither NaN nor infinity."""
    if isinstance(value, dict):
        return {key: _json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_table(rows: Sequence[Row]) -> Table:
    """Return a table: τ, tokens/s, speed-up over ``ar``, milliseconds a round by stage, lossless or not.

    Several prompt sets or temperatures make a section each; the fastest of each is in bold.
    """
    table = Table(
        box=SIMPLE_HEAD, padding=0, show_edge=False, caption="ms are a round's, by stage", caption_justify="left"
    )
    # Names of grids are long: they may take several lines, the figures may not.
    table.add_column("pipeline", overflow="fold", vertical="bottom")
    for name in ("τ", "tokens\n/s", "speed-\nup", *(f"{stage}\nms" for stage in _ROUND_STAGES)):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("lossless", no_wrap=True, vertical="bottom")
    several, names = _several(rows), short_names(list(dict.fromkeys(row.name for row in rows)))
    for (prompt_set, temperature), group in groupby(rows, key=lambda row: (row.prompt_set, row.temperature)):
        if several:
            table.add_section()
            table.add_row(f"[italic]{escape(prompt_set)}, T={temperature:g}[/italic]")
        _add_rows(table, list(group), names)
    return table


def _add_rows(table: Table, rows: Sequence[Row], names: Mapping[str, str]) -> None:
    best = max((row.speedup for row in rows if row.speedup == row.speedup), default=None)
    for row in rows:
        stages = [
            _number(1e3 * row.stage_seconds[stage] / row.rounds if row.rounds else None) for stage in _ROUND_STAGES
        ]
        figures = [_number(row.acceptance_length), _number(row.tokens_per_second, 1), _number(row.speedup) + "x"]
        style = "bold" if row.speedup == best else None
        table.add_row(escape(names[row.name]), *figures, *stages, lossless_word(row), style=style)


def lossless_word(row: Row) -> str:
    """Say in a word or two whether a row's outputs are the target's own."""
    if isinstance(row.lossless, str):
        return row.lossless
    if not row.divergences:
        return "yes"
    if row.lossless:
        return f"yes, {len(row.divergences)} of {row.outputs} at a tie"
    return f"no, {sum(not d.tie for d in row.divergences)} of {row.outputs} differ"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None or value != value else f"{value:.{digits}f}"
