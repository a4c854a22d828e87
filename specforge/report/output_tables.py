"""Losslessness as tables: how many outputs are plain decoding's, and where the others part from it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence

from specforge.report.datatable import Cell, DataTable, number_cell, text_cell
from specforge.report.outputs import Outputs
from specforge.report.runfolder import Generation

MOST_TIES = 100


def outputs_table(found: Sequence[Outputs], names: Mapping[str, str]) -> DataTable:
    """Return the counts, a row a pipeline, prompt set and temperature."""
    rows = tuple(
        (
            text_cell(names[o.place.pipeline]),
            text_cell(o.place.prompt_set),
            Cell(f"{o.place.temperature:g}", o.place.temperature),
            *(number_cell(count, 0) for count in (o.outputs, o.identical, o.ties)),
            number_cell(o.differing, 0, strong=o.differing > 0),
            number_cell(o.distributional, 0),
        )
        for o in found
    )
    columns = ("pipeline", "prompt set", "T", "outputs", "identical", "part at a tie", "differ", "in distribution only")
    return DataTable("Outputs compared with ar’s, token by token", columns, rows)


def parted_table(found: Sequence[Outputs], names: Mapping[str, str]) -> tuple[DataTable, int]:
    """Return where outputs part, all that rounding does not explain first, and how many ties there was no room for."""
    parted = [(o.place.prompt_set, generation) for o in found for generation in o.parted]
    parted.sort(key=lambda entry: _tie(entry[1]))
    shown = [entry for entry in parted if not _tie(entry[1])]
    ties = parted[len(shown) :]
    rows = tuple(_parted_row(generation, prompt_set, names) for prompt_set, generation in shown + ties[:MOST_TIES])
    columns = (
        "pipeline",
        "prompt set",
        "prompt",
        "T",
        "token",
        "ar",
        "got",
        "margin",
        "noise",
        "explained by rounding",
    )
    table = DataTable("Where outputs part from ar’s", columns, rows)
    return table, max(0, len(ties) - MOST_TIES)


def _tie(generation: Generation) -> bool:
    return generation.divergence is not None and generation.divergence.tie


def _parted_row(generation: Generation, prompt_set: str, names: Mapping[str, str]) -> tuple[Cell, ...]:
    divergence = generation.divergence
    assert divergence is not None
    return (
        text_cell(names[generation.pipeline]),
        text_cell(prompt_set),
        text_cell(divergence.prompt),
        Cell(f"{generation.case.temperature:g}", generation.case.temperature),
        number_cell(divergence.position, 0),
        _token(divergence.expected),
        _token(divergence.got),
        _scientific(divergence.margin),
        _scientific(divergence.noise),
        text_cell("yes" if divergence.tie else "no", strong=not divergence.tie),
    )


def _token(token: int | None) -> Cell:
    return Cell("end") if token is None else Cell(str(token), token)


def _scientific(value: float) -> Cell:
    # A page's script sorts by what it can read as a number.
    return Cell(f"{value:.2e}", value) if math.isfinite(value) else Cell("∞", sys.float_info.max)
