"""The figure of where a round's time goes."""

from __future__ import annotations

from specforge.report.chart import Chart, LeftOut, View
from specforge.report.datatable import DataTable, number_cell, text_cell
from specforge.report.measures import ROUND_STAGES
from specforge.report.plots import stages_figure
from specforge.report.stages import StageBar, stage_bars

KIND = "stages"
_TITLE = "Stages of a round"
_CAPTION = (
    "Mean milliseconds of one round by stage, over all prompts; the number at the end is their sum. A round of plain "
    "decoding (ar) is one token."
)


def stage_chart(view: View) -> list[Chart | LeftOut]:
    """Return the figure."""
    bars = stage_bars({place: sample.totals for place, sample in view.samples.items()}, view.temperature)
    if not bars:
        return [LeftOut(KIND, view.temperature, _TITLE, "no generation got past its first token")]
    alt = "Stacked bars of milliseconds a round. " + " ".join(_words(bar, view) for bar in bars)
    figure = Chart(
        KIND, view.temperature, _TITLE, _CAPTION, alt, _table(bars, view), lambda: stages_figure(bars, view.names)
    )
    return [figure]


def _words(bar: StageBar, view: View) -> str:
    shares = ", ".join(f"{stage} {seconds / bar.total:.0%}" for stage, seconds in bar.seconds.items() if bar.total)
    return f"{view.names[bar.pipeline]}: {1e3 * bar.total:.3g} ms, {shares}."


def _table(bars: list[StageBar], view: View) -> DataTable:
    rows = tuple(
        (
            text_cell(view.names[bar.pipeline]),
            *(number_cell(1e3 * bar.seconds[stage]) for stage in ROUND_STAGES),
            number_cell(1e3 * bar.total),
            number_cell(bar.rounds, 0),
        )
        for bar in bars
    )
    return DataTable("Milliseconds a round by stage", ("pipeline", *ROUND_STAGES, "total", "rounds"), rows)
