"""Writes the report of a run into its folder."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from specforge.errors import ConfigError
from specforge.report.chart import Chart, LeftOut
from specforge.report.charts import charts
from specforge.report.datatable import DataTable
from specforge.report.html import render
from specforge.report.outputs import outputs
from specforge.report.plots import look
from specforge.report.report_page import Findings, report_page
from specforge.report.runfolder import RunData, read_run
from specforge.report.summary import sample, summarise
from specforge.report.summary_tables import terminal_tables
from specforge.report.svg import inline

PAGE_FILE = "report.html"
PLOTS_FOLDER = "plots"
_PIXELS_AN_INCH = 200


@frozen(eq=False)
class Report:
    """A written report.

    Attributes:
        findings: what it says.
        page: the HTML file.
        plots: the figures' files, a PNG and an SVG each.
    """

    findings: Findings
    page: Path
    plots: tuple[Path, ...]

    def tables(self) -> list[DataTable]:
        """Return the summary, a table a temperature and prompt set."""
        return terminal_tables(self.findings.rows, self.findings.outputs, self.findings.names)

    def to_json(self) -> dict[str, Any]:
        """Return what the report says and where it is, as plain JSON."""
        found = self.findings
        return {
            "report": str(self.page),
            "plots": [str(path) for path in self.plots],
            "summary": [row.to_json() for row in found.rows],
            "outputs": [o.to_json() for o in found.outputs],
            "figures": [_chart_json(c) for c in found.charts if isinstance(c, Chart)],
            "left_out": [_left_out_json(c) for c in found.charts if isinstance(c, LeftOut)],
            **{key: value for key, value in found.run.header().items() if key != "format"},
        }


def find(run: RunData) -> Findings:
    """Return what a report on ``run`` says.

    Raises:
        ConfigError: when nothing of it is finished.
    """
    if not run.generations:
        raise ConfigError("the run has no finished prompt yet; there is nothing to report")
    samples = sample(run)
    return Findings(run, samples, summarise(run, samples), outputs(run), charts(run, samples))


def write_report(folder: str | os.PathLike[str]) -> Report:
    """Read a run's folder and write ``report.html`` and ``plots`` into it, over what is there.

    Args:
        folder: what ``specforge compare --out`` wrote; the run may be unfinished.

    Raises:
        ConfigError: when there is no run, nothing of it is finished, matplotlib is missing, or a file cannot be
            written.
    """
    folder = Path(folder)
    findings = find(read_run(folder))
    with look():
        drawn = {c.file_stem: _pictures(c) for c in findings.charts if isinstance(c, Chart)}
    alts = {c.file_stem: c.alt for c in findings.charts if isinstance(c, Chart)}
    inlined = {stem: inline(svg, stem, alts[stem]) for stem, (svg, _) in drawn.items()}
    try:
        plots = _write_plots(folder / PLOTS_FOLDER, drawn)
        page = folder / PAGE_FILE
        page.write_text(render(report_page(findings, inlined)), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the report in {str(folder)!r}: {error.strerror or error}") from error
    return Report(findings, page, plots)


def _pictures(chart: Chart) -> tuple[str, bytes]:
    """Return a chart as SVG and as PNG."""
    figure = chart.draw()
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    # Laying out takes longer than drawing, and the second file is to look like the first.
    figure.set_layout_engine("none")
    figure.savefig(png, format="png", dpi=_PIXELS_AN_INCH, facecolor="white")
    return svg.getvalue(), png.getvalue()


def _write_plots(folder: Path, drawn: dict[str, tuple[str, bytes]]) -> tuple[Path, ...]:
    folder.mkdir(exist_ok=True)
    written: list[Path] = []
    for stem, (svg, png) in drawn.items():
        written += [folder / f"{stem}.png", folder / f"{stem}.svg"]
        written[-2].write_bytes(png)
        written[-1].write_text(svg, encoding="utf-8")
    return tuple(written)


def _chart_json(chart: Chart) -> dict[str, Any]:
    rows: Sequence[Sequence[Any]] = [
        [cell.text if cell.value is None else cell.value for cell in row] for row in chart.table.rows
    ]
    return {
        "kind": chart.kind,
        "temperature": chart.temperature,
        "title": chart.title,
        "text": chart.alt,
        "columns": list(chart.table.columns),
        "rows": rows,
    }


def _left_out_json(chart: LeftOut) -> dict[str, Any]:
    return {"kind": chart.kind, "temperature": chart.temperature, "reason": chart.reason}
