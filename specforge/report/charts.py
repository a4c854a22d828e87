"""All figures of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from specforge.report.budget_charts import budget_charts
from specforge.report.chart import Chart, LeftOut, View
from specforge.report.depth_charts import depth_charts
from specforge.report.measures import Place, temperatures
from specforge.report.reliability_chart import reliability_chart
from specforge.report.runfolder import RunData
from specforge.report.stage_chart import stage_chart
from specforge.report.summary import Sample

_MAKERS: tuple[Callable[[View], Sequence[Chart | LeftOut]], ...] = (
    stage_chart,
    depth_charts,
    budget_charts,
    reliability_chart,
)


def charts(run: RunData, samples: Mapping[Place, Sample]) -> list[Chart | LeftOut]:
    """Return every figure, or why there is none: each kind at all temperatures, then the next kind."""
    views = [View.of(run, samples, temperature) for temperature in temperatures(run)]
    found = [entry for make in _MAKERS for view in views for entry in make(view)]
    order = list(dict.fromkeys(entry.kind for entry in found))
    return sorted(found, key=lambda entry: order.index(entry.kind))
