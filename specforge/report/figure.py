"""One figure of the report, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specforge.errors import ConfigError, suggest
from specforge.report.runfolder import RunData

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(run: RunData, kind: str, temperature: float | None = None) -> Figure:
    """Draw a figure as the report would.

    Args:
        run: the run.
        kind: which of the report's figures.
        temperature: of the generations that it shows; by default the run's first.

    Raises:
        ConfigError: when there is no such figure, when the data does not allow it, or when matplotlib is missing.
    """
    try:
        from specforge.report.plots import look
    except ImportError as error:
        raise ConfigError("plots need matplotlib: pip install 'specforge-decoding[report]'") from error
    from specforge.report.chart import LeftOut
    from specforge.report.charts import charts
    from specforge.report.summary import sample

    found = charts(run, sample(run))
    chosen = run.settings["temperatures"][0] if temperature is None else temperature
    here = {chart.kind: chart for chart in found if chart.temperature == chosen}
    if not here:
        known = ", ".join(map(str, run.settings["temperatures"]))
        raise ConfigError(f"the run has no generations at temperature {chosen!r}; there are {known}")
    if kind not in here:
        raise ConfigError(f"there is no figure {kind!r}{suggest(kind, here)}")
    chart = here[kind]
    if isinstance(chart, LeftOut):
        raise ConfigError(f"there is no figure {kind!r} of this run: {chart.reason}")
    with look():
        return chart.draw()
