"""Two runs compared, as tables and sentences."""

from __future__ import annotations

from collections.abc import Mapping

from specforge.report.datatable import NOTHING, Cell, DataTable, interval_text, number_cell, text_cell
from specforge.report.statistics import Interval
from specforge.report.versus import ACCEPTANCE, SPEEDUP, Difference, Versus

_NAMES = {ACCEPTANCE: "τ", SPEEDUP: "speed-up"}


def differences_table(found: Versus, names: Mapping[str, str]) -> DataTable:
    """Return every difference; bold are those larger than their noise."""
    rows = tuple(_row(difference, names) for difference in found.differences)
    columns = ("prompt set", "T", "pipeline", "what", "first", "second", "change", "larger than its noise")
    return DataTable("Second run against first, with 95% intervals of the change", columns, rows)


def changes_table(found: Versus) -> DataTable:
    """Return what else differs between the runs."""
    rows = tuple(
        (text_cell(c.name), text_cell(c.first or NOTHING), text_cell(c.second or NOTHING)) for c in found.changes
    )
    return DataTable("Settings, versions, hardware and options that differ", ("name", "first", "second"), rows)


def findings(found: Versus, names: Mapping[str, str]) -> list[str]:
    """Return what the comparison comes to, a sentence each."""
    beyond = [difference for difference in found.differences if difference.beyond_noise]
    lines = [f"{len(beyond)} of {len(found.differences)} differences are larger than their noise."]
    lines += [_sentence(difference, names) for difference in beyond]
    if not found.differences:
        lines = ["The runs share no pipeline, prompt set and temperature."]
    same, turns = found.same_text
    if turns and same < turns:
        lines.append(f"ar wrote the same tokens on {same} of {turns} turns: elsewhere the two runs decode other texts.")
    unpaired = list(dict.fromkeys(d.place.prompt_set for d in found.differences if not d.paired))
    if unpaired:
        lines.append(f"The prompts of {', '.join(unpaired)} are not the same in both runs; nothing is paired there.")
    lines += [f"Only the first run has {what}." for what in found.only_first]
    return lines + [f"Only the second run has {what}." for what in found.only_second]


def _sentence(difference: Difference, names: Mapping[str, str]) -> str:
    place = difference.place
    where = f"{names[place.pipeline]} on {place.prompt_set} at temperature {place.temperature:g}"
    between = interval_text(_scaled(difference), _digits(difference))
    unit = "" if difference.quantity == ACCEPTANCE else "%"
    change = f"{_change_text(difference)} ({between}{unit})" if between else _change_text(difference)
    return f"{_NAMES.get(difference.quantity, 'tokens/s')} of {where}: {change}."


def _row(difference: Difference, names: Mapping[str, str]) -> tuple[Cell, ...]:
    place, strong = difference.place, difference.beyond_noise
    digits = 2 if difference.quantity in _NAMES else 1
    detail = interval_text(_scaled(difference), _digits(difference))
    return (
        text_cell(place.prompt_set),
        Cell(f"{place.temperature:g}", place.temperature),
        text_cell(names[place.pipeline]),
        text_cell(_NAMES.get(difference.quantity, "tokens/s")),
        number_cell(difference.first, digits),
        number_cell(difference.second, digits),
        Cell(_change_text(difference), difference.change.estimate, detail, strong),
        text_cell(_verdict(difference), strong=strong),
    )


def _verdict(difference: Difference) -> str:
    if difference.p_value is None:
        return "unknown: one prompt"
    return "yes" if difference.beyond_noise else "no"


def _scaled(difference: Difference) -> Interval:
    """Return the change in the unit it is shown in: tokens, or percent."""
    factor = 1.0 if difference.quantity == ACCEPTANCE else 100.0
    ends = (None if v is None else v * factor for v in (difference.change.low, difference.change.high))
    estimate = difference.change.estimate
    return Interval(None if estimate is None else estimate * factor, *ends)


def _digits(difference: Difference) -> int:
    return 2 if difference.quantity == ACCEPTANCE else 1


def _change_text(difference: Difference) -> str:
    change = _scaled(difference).estimate
    if change is None:
        return NOTHING
    return f"{change:+.2f}" if difference.quantity == ACCEPTANCE else f"{change:+.1f}%"
