"""The summary as tables: in the papers' form for a page, one line a result for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specforge.report.datatable import Cell, DataTable, counted, interval_cell, number_cell, text_cell
from specforge.report.outputs import Outputs
from specforge.report.records import BASELINE
from specforge.report.summary import AVERAGE, SummaryRow

_FIGURES = (("acceptance_length", "τ", ""), ("speedup", "speed-up", "×"))


def paper_table(rows: Sequence[SummaryRow], temperature: float, names: Mapping[str, str]) -> DataTable:
    """Return τ and speed-up, a row a pipeline and a pair of columns a prompt set, the average last.

    Args:
        rows: what ``summarise`` returned.
        temperature: which of them.
        names: what to call the pipelines.
    """
    mine = [row for row in rows if row.temperature == temperature]
    sets = list(dict.fromkeys(row.prompt_set for row in mine))
    by_place = {(row.pipeline, row.prompt_set): row for row in mine}
    lines = []
    for pipeline in dict.fromkeys(row.pipeline for row in mine):
        cells = [text_cell(names[pipeline])]
        for prompt_set in sets:
            cells += _figures(by_place[pipeline, prompt_set])
        lines.append(tuple(cells))
    return DataTable(
        f"τ and speed-up over {BASELINE} at temperature {temperature:g}, with 95% intervals",
        ("pipeline", *(label for _ in sets for _, label, _ in _FIGURES)),
        tuple(lines),
        tuple((_set_name(name, by_place), len(_FIGURES)) for name in sets),
    )


def speed_table(rows: Sequence[SummaryRow], temperature: float, names: Mapping[str, str]) -> DataTable:
    """Return tokens a second and seconds to the first token, averaged over prompt sets where there are several."""
    mine = [row for row in rows if row.temperature == temperature]
    averaged = [row for row in mine if row.prompt_set is None] or mine
    lines = tuple(
        (
            text_cell(names[row.pipeline]),
            interval_cell(row.tokens_per_second, 1),
            number_cell(1e3 * row.first_token_seconds, 0),
        )
        for row in averaged
    )
    caption = f"Tokens a second while decoding and milliseconds to the first token, at temperature {temperature:g}"
    return DataTable(caption, ("pipeline", "tokens/s", "first token, ms"), lines)


def terminal_tables(rows: Sequence[SummaryRow], found: Sequence[Outputs], names: Mapping[str, str]) -> list[DataTable]:
    """Return a table a temperature and prompt set, narrow enough for the terminal.

    Args:
        rows: what ``summarise`` returned.
        found: how the outputs compare with ``ar``'s.
        names: what to call the pipelines.
    """
    outputs = {(o.place.pipeline, o.place.prompt_set, o.place.temperature): o for o in found}
    groups: dict[tuple[float, str | None], list[SummaryRow]] = {}
    for row in rows:
        groups.setdefault((row.temperature, row.prompt_set), []).append(row)
    return [_terminal_table(group, outputs, names) for group in groups.values()]


def _terminal_table(
    rows: Sequence[SummaryRow], outputs: Mapping[tuple[str, str, float], Outputs], names: Mapping[str, str]
) -> DataTable:
    lines = tuple(
        (
            text_cell(names[row.pipeline]),
            *_figures(row),
            number_cell(row.tokens_per_second.estimate, 1),
            text_cell(_outputs_word(outputs.get((row.pipeline, row.prompt_set or "", row.temperature)))),
        )
        for row in rows
    )
    where = "average over the prompt sets" if rows[0].prompt_set is None else rows[0].prompt_set
    prompts = counted(rows[0].prompts, "prompt")
    caption = f"{where}, temperature {rows[0].temperature:g}, {prompts}; 95% intervals, best in bold"
    return DataTable(caption, ("pipeline", "τ", "speed-up", "tokens/s", "as ar’s"), lines)


def _figures(row: SummaryRow) -> list[Cell]:
    return [interval_cell(getattr(row, name), 2, unit, strong=name in row.best) for name, _, unit in _FIGURES]


def _set_name(name: str | None, by_place: Mapping[tuple[str, str | None], SummaryRow]) -> str:
    if name is None:
        return AVERAGE
    return f"{name} ({counted(by_place[BASELINE, name].prompts, 'prompt')})"


def _outputs_word(found: Outputs | None) -> str:
    if found is None:
        return ""
    if found.distributional:
        return "in distribution"
    if found.identical == found.outputs:
        return f"all {found.outputs}"
    differing = f", {found.differing} DIFFER" if found.differing else ""
    return f"{found.identical} of {found.outputs}, {found.ties} at ties{differing}"
