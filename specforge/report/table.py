"""A comparison as a table for the terminal and as one JSON object."""

from __future__ import annotations

import math
from typing import Any

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table

from specforge.report.compare import Comparison, Row

_ROUND_STAGES = ("draft", "build", "verify", "commit")


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return ``{"results": [...], "settings": {...}}`` with one row a pipeline; NaN becomes ``None``."""
    return {"results": [_row_json(row) for row in comparison.rows], "settings": comparison.settings}


def _row_json(row: Row) -> dict[str, Any]:
    figures = attrs.asdict(row)
    divergences = [{**attrs.asdict(d), "tie": d.tie} for d in row.divergences]
    named = {"preset": figures.pop("name"), **figures, "divergences": divergences}
    return {key: _json_value(value) for key, value in named.items()}


def _json_value(value: Any) -> Any:
    """JSON knows neither NaN nor infinity."""
    if isinstance(value, dict):
        return {key: _json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_table(comparison: Comparison) -> Table:
    """Return a table: τ, tokens/s, speed-up over ``ar``, milliseconds a round by stage, lossless or not."""
    table = Table(
        box=SIMPLE_HEAD, padding=0, show_edge=False, caption="ms are a round's, by stage", caption_justify="left"
    )
    table.add_column("pipeline", no_wrap=True, vertical="bottom")
    for name in ("τ", "tokens\n/s", "speed-\nup", *(f"{stage}\nms" for stage in _ROUND_STAGES)):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    table.add_column("lossless", no_wrap=True, vertical="bottom")
    best = max((row.speedup for row in comparison.rows if row.speedup == row.speedup), default=None)
    for row in comparison.rows:
        stages = [
            _number(1e3 * row.stage_seconds[stage] / row.rounds if row.rounds else None) for stage in _ROUND_STAGES
        ]
        figures = [_number(row.acceptance_length), _number(row.tokens_per_second, 1), _number(row.speedup) + "x"]
        table.add_row(row.name, *figures, *stages, lossless_word(row), style="bold" if row.speedup == best else None)
    return table


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
