"""The figures of what verified nodes buy."""

from __future__ import annotations

from collections.abc import Sequence

from specforge.report.budgets import BudgetPoint, budget_points, cost_models
from specforge.report.chart import Chart, LeftOut, View
from specforge.report.datatable import Cell, DataTable, interval_cell, number_cell, text_cell
from specforge.report.plots import acceptance_figure, speed_figure
from specforge.report.records import BASELINE
from specforge.report.summary import average

ACCEPTANCE, SPEED = "acceptance-by-budget", "speed-by-budget"
_TITLES = {ACCEPTANCE: "τ against budget", SPEED: "Speed against budget"}
_JOINED = "against the draft nodes verified a round, with 95% intervals; the mean over prompt sets."


def budget_charts(view: View) -> list[Chart | LeftOut]:
    """Return both figures."""
    points = budget_points(view.run.pipelines, view.samples, view.rounds, view.temperature)
    if len({point.nodes for point in points}) < 2:
        reason = "it takes pipelines whose trees differ in size" if points else view.without_drafts()
        return [LeftOut(kind, view.temperature, _TITLES[kind], reason) for kind in (ACCEPTANCE, SPEED)]
    return [_acceptance(points, view), _speed(points, view)]


def _acceptance(points: Sequence[BudgetPoint], view: View) -> Chart:
    words = (f"{view.names[p.pipeline]}: {_number(p.acceptance_length.estimate, 2)} {_nodes(p)}." for p in points)
    rows = tuple((*_cells(p, view), interval_cell(p.acceptance_length)) for p in points)
    return Chart(
        ACCEPTANCE,
        view.temperature,
        _TITLES[ACCEPTANCE],
        f"Tokens a round {_JOINED} Lines join pipelines that differ in the budget only.",
        f"τ against the nodes verified a round. {' '.join(words)}",
        DataTable(_TITLES[ACCEPTANCE], ("pipeline", "budget", "nodes a round", "τ"), rows),
        lambda: acceptance_figure(points, view.names, view.styles),
    )


def _speed(points: Sequence[BudgetPoint], view: View) -> Chart:
    baseline = average(view.samples_of(BASELINE), lambda sample: sample.tokens_per_second).estimate
    words = (
        f"{view.names[p.pipeline]}: {_number(p.tokens_per_second.estimate, 1)} {_nodes(p)}{_predicted(p)}."
        for p in points
    )
    return Chart(
        SPEED,
        view.temperature,
        _TITLES[SPEED],
        f"Tokens a second {_JOINED} {_about_prediction(points, view)}",
        f"Tokens a second against the nodes verified a round. {BASELINE}: {_number(baseline, 1)}. {' '.join(words)}",
        _speed_table(points, view),
        lambda: speed_figure(points, baseline, view.names, view.styles),
    )


def _speed_table(points: Sequence[BudgetPoint], view: View) -> DataTable:
    predicted = any(p.predicted is not None for p in points)
    rows = []
    for p in points:
        cells = (*_cells(p, view), interval_cell(p.tokens_per_second, 1))
        rows.append((*cells, number_cell(p.predicted, 1)) if predicted else cells)
    columns = ("pipeline", "budget", "nodes a round", "tokens/s", *(["predicted"] if predicted else []))
    return DataTable(_TITLES[SPEED], columns, tuple(rows))


def _about_prediction(points: Sequence[BudgetPoint], view: View) -> str:
    missing = cost_models(view.run.pipelines).missing
    if any(p.predicted is not None for p in points):
        words = "Hollow points on dotted lines are what the cost model predicts from drafting and verifying alone; "
        words += "building and committing are not in it."
    elif missing:
        words = "No prediction is drawn:"
    else:
        words = "No prediction is drawn: no pipeline of this run has a cost model."
    return " ".join([words, *(f"{reason}." for reason in missing)])


def _cells(point: BudgetPoint, view: View) -> tuple[Cell, ...]:
    return text_cell(view.names[point.pipeline]), number_cell(point.budget, 0), number_cell(point.nodes, 1)


def _nodes(point: BudgetPoint) -> str:
    return f"with {point.nodes:.3g} nodes"


def _predicted(point: BudgetPoint) -> str:
    return "" if point.predicted is None else f", predicted {point.predicted:.1f}"


def _number(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"
