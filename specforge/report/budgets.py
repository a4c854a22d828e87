"""What verified nodes buy: τ and speed against the size of the tree, and the speed that a cost model predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from attrs import frozen

from specforge.cost_model import CostModel
from specforge.errors import ConfigError
from specforge.report.measures import Place
from specforge.report.names import budget_of, builder_of, family_names
from specforge.report.runfolder import RoundLine
from specforge.report.statistics import Interval
from specforge.report.summary import Sample, average

MEASURED_AT_START = "auto"


@frozen(eq=False)
class BudgetPoint:
    """One pipeline that drafts.

    Attributes:
        pipeline: its name.
        family: what it and those are called that differ from it in the builder's budget only.
        budget: the builder's budget, ``None`` where it has none.
        nodes: draft nodes verified a round, on average.
        acceptance_length: τ, the mean over prompt sets.
        tokens_per_second: likewise.
        predicted: tokens a second if every round took what the cost model says, likewise; ``None`` without a model.
    """

    pipeline: str
    family: str
    budget: int | None
    nodes: float
    acceptance_length: Interval
    tokens_per_second: Interval
    predicted: float | None


@frozen(eq=False)
class CostModels:
    """The cost models of a run.

    Attributes:
        by_pipeline: the model that holds for each pipeline: its own, or that of another one with the same drafter.
        missing: one line a pipeline that names a model which the run does not hold.
    """

    by_pipeline: Mapping[str, CostModel]
    missing: tuple[str, ...]


def cost_models(pipelines: Mapping[str, Mapping[str, Any]]) -> CostModels:
    """Return the cost models that the configs hold or point to."""
    own: dict[str, CostModel] = {}
    missing = []
    for name, config in pipelines.items():
        source = builder_of(config).get("cost_model")
        if source == MEASURED_AT_START:
            missing.append(f"{name} measured its cost model when it started, and the run does not hold it")
        elif source is not None:
            try:
                own[name] = CostModel.of(source)
            except ConfigError as error:
                missing.append(f"{name}: {error}")
    shared = {name: _model_for(name, pipelines, own) for name in pipelines}
    return CostModels({name: model for name, model in shared.items() if model is not None}, tuple(missing))


def _model_for(name: str, pipelines: Mapping[str, Mapping[str, Any]], own: Mapping[str, CostModel]) -> CostModel | None:
    if name in own:
        return own[name]
    drafter = pipelines[name].get("drafter")
    return next((model for other, model in own.items() if pipelines[other].get("drafter") == drafter), None)


def budget_points(
    pipelines: Mapping[str, Mapping[str, Any]],
    samples: Mapping[Place, Sample],
    rounds: Mapping[str, Sequence[RoundLine]],
    temperature: float,
) -> list[BudgetPoint]:
    """Return one point a pipeline that drafts, families together and in them the smallest tree first.

    Args:
        pipelines: the configs by name.
        samples: what was measured.
        rounds: the rounds at this temperature by pipeline.
        temperature: which.
    """
    families, models = family_names(pipelines), cost_models(pipelines).by_pipeline
    points = []
    for name, lines in rounds.items():
        if not any(line.nodes for line in lines):
            continue
        mine = [s for place, s in samples.items() if (place.pipeline, place.temperature) == (name, temperature)]
        points.append(
            BudgetPoint(
                pipeline=name,
                family=families[name],
                budget=budget_of(pipelines[name]),
                nodes=float(np.mean([line.nodes for line in lines])),
                acceptance_length=average(mine, lambda s: s.acceptance_length),
                tokens_per_second=average(mine, lambda s: s.tokens_per_second),
                predicted=predicted_speed(lines, models[name]) if name in models else None,
            )
        )
    order = list(dict.fromkeys(families.values()))
    return sorted(points, key=lambda point: (order.index(point.family), point.nodes))


def predicted_speed(lines: Sequence[RoundLine], model: CostModel) -> float:
    """Return tokens a second if every round took what ``model`` says; the mean over prompt sets."""
    by_set: dict[str, list[RoundLine]] = {}
    for line in lines:
        by_set.setdefault(line.case.prompt_set, []).append(line)
    speeds = []
    for mine in by_set.values():
        # A model's context is what the target's cache holds, and the root is not in it yet.
        seconds = sum(model.draft_seconds + model.verify_seconds(line.nodes, line.context - 1) for line in mine)
        speeds.append(sum(line.accepted for line in mine) / seconds)
    return float(np.mean(speeds))


def by_family(points: Sequence[BudgetPoint]) -> dict[str, list[BudgetPoint]]:
    """Return the points of each family."""
    return {family: list(group) for family, group in groupby(points, key=lambda point: point.family)}
