"""The figure of whether path probabilities can be believed."""

from __future__ import annotations

from collections.abc import Sequence

from specforge.report.chart import Chart, LeftOut, View
from specforge.report.datatable import Cell, DataTable, interval_cell, number_cell, text_cell
from specforge.report.plots import reliability_figure
from specforge.report.reliability import Reliability, reliabilities

KIND = "reliability"
_TITLE = "Can the path probabilities be believed?"
_CAPTION = (
    "Of the nodes promised a path probability, the share that was accepted, with 95% intervals. On the diagonal "
    "promises hold; below it the drafter promises too much. Grey bars show where the nodes are. Both scales are square "
    "roots, to give room to small probabilities."
)


def reliability_chart(view: View) -> list[Chart | LeftOut]:
    """Return the figure."""
    found = reliabilities(view.rounds)
    if not found:
        drafted = any(line.nodes for lines in view.rounds.values() for line in lines)
        reason = "no pipeline’s builder keeps path probabilities" if drafted else view.without_drafts()
        return [LeftOut(KIND, view.temperature, _TITLE, reason)]
    words = " ".join(_words(view.names[entry.pipeline], entry) for entry in found)
    figure = Chart(
        KIND,
        view.temperature,
        _TITLE,
        _CAPTION,
        f"Accepted share against promised path probability. {words}",
        _table(found, view),
        lambda: reliability_figure(found, view.names, view.styles),
    )
    return [figure]


def _words(name: str, entry: Reliability) -> str:
    return (
        f"{name}: {entry.expected_drafts:.2f} drafts a round promised, {entry.accepted_drafts:.2f} accepted; "
        f"mean distance from the diagonal {entry.error:.3f}."
    )


def _table(found: Sequence[Reliability], view: View) -> DataTable:
    rows = tuple(
        (
            text_cell(view.names[entry.pipeline]),
            Cell(f"{b.low:g}–{b.high:g}", b.low),
            number_cell(b.nodes, 0),
            number_cell(b.promised, 3),
            interval_cell(b.accepted, 3),
        )
        for entry in found
        for b in entry.bins
    )
    columns = ("pipeline", "promised", "nodes", "mean promise", "accepted")
    return DataTable("Nodes by promised path probability", columns, rows)
