"""The summary in the papers' form: τ and speed-up of every pipeline by prompt set and temperature, and on average."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from attrs import evolve, frozen

from specforge.report.measures import Place, Totals, add_up, prompt_sets, temperatures
from specforge.report.records import BASELINE
from specforge.report.runfolder import RunData
from specforge.report.statistics import LEVEL, Doubles, Interval, Resampling, holm, interval, p_value, ratio

AVERAGE = "average"


@frozen
class SummaryRow:
    """One pipeline on one prompt set, or on average, at one temperature.

    Attributes:
        pipeline: its name.
        prompt_set: the prompt set's name, ``None`` for the average over prompt sets.
        temperature: 0 is greedy.
        prompts: how many prompts.
        acceptance_length: τ, tokens a round.
        tokens_per_second: tokens after the first over the seconds they took.
        speedup: its tokens per second over those of ``ar``.
        first_token_seconds: mean over turns.
        best: which of ``"acceptance_length"`` and ``"speedup"`` no other pipeline but ``ar`` surpasses here.
    """

    pipeline: str
    prompt_set: str | None
    temperature: float
    prompts: int
    acceptance_length: Interval
    tokens_per_second: Interval
    speedup: Interval
    first_token_seconds: float
    best: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; ``prompt_set`` is ``null`` for the average."""
        return {
            "pipeline": self.pipeline,
            "prompt_set": self.prompt_set,
            "temperature": self.temperature,
            "prompts": self.prompts,
            "acceptance_length": self.acceptance_length.to_json(),
            "tokens_per_second": self.tokens_per_second.to_json(),
            "speedup": self.speedup.to_json(),
            "first_token_seconds": self.first_token_seconds,
            "best": sorted(self.best),
        }


@frozen(eq=False, slots=False)
class Sample:
    """One pipeline on one prompt set at one temperature, resampled.

    Attributes:
        totals: its sums by prompt.
        baseline: those of ``ar`` on the same prompts, in the same order.
        resampling: the resamples that all pipelines on these prompts share.
    """

    totals: Totals
    baseline: Totals
    resampling: Resampling

    @cached_property
    def acceptance_length(self) -> Doubles:
        """τ, ``[1 + R]``."""
        return ratio(self.resampling.sums(self.totals.tokens), self.resampling.sums(self.totals.rounds))

    @cached_property
    def tokens_per_second(self) -> Doubles:
        """``[1 + R]``."""
        return _speed(self.totals, self.resampling)

    @cached_property
    def speedup(self) -> Doubles:
        """Over ``ar`` on the same resampled prompts, ``[1 + R]``."""
        return ratio(self.tokens_per_second, _speed(self.baseline, self.resampling))

    @property
    def first_token_seconds(self) -> float:
        """Mean over turns."""
        return float(self.totals.first_token_seconds.sum() / self.totals.turns.sum())


def _speed(totals: Totals, resampling: Resampling) -> Doubles:
    return ratio(resampling.sums(totals.tokens), resampling.sums(totals.seconds))


def sample(run: RunData) -> dict[Place, Sample]:
    """Return every pipeline's samples; pipelines on the same prompts share their resamples."""
    totals = add_up(run)
    drawn: dict[tuple[str, int], Resampling] = {}
    found = {}
    for place, mine in totals.items():
        key = (place.prompt_set, len(mine.prompts))
        if key not in drawn:
            drawn[key] = Resampling.of(len(mine.prompts), place.prompt_set)
        baseline = totals[Place(BASELINE, place.prompt_set, place.temperature)]
        found[place] = Sample(mine, baseline, drawn[key])
    return found


def summarise(run: RunData, samples: Mapping[Place, Sample] | None = None) -> list[SummaryRow]:
    """Return one row a pipeline, prompt set and temperature, then, where there are several sets, their averages.

    Args:
        run: a run, finished or not.
        samples: what ``sample`` returned, where it is at hand.
    """
    samples = sample(run) if samples is None else samples
    rows: list[SummaryRow] = []
    for temperature in temperatures(run):
        sets = [name for name in prompt_sets(run) if Place(BASELINE, name, temperature) in samples]
        groups: list[tuple[str | None, list[str]]] = [(name, [name]) for name in sets]
        if len(sets) > 1:
            groups.append((None, sets))
        for label, members in groups:
            rows += _mark_best(
                [
                    _row(pipeline, label, temperature, [samples[Place(pipeline, m, temperature)] for m in members])
                    for pipeline in run.pipelines
                ]
            )
    return rows


def average(samples: Sequence[Sample], statistic: Callable[[Sample], Doubles]) -> Interval:
    """Return the mean over prompt sets of a statistic, every set counting the same."""
    values = np.mean([statistic(s) for s in samples], axis=0)
    return interval(values, min(s.resampling.prompts for s in samples))


def _row(pipeline: str, prompt_set: str | None, temperature: float, samples: Sequence[Sample]) -> SummaryRow:
    return SummaryRow(
        pipeline=pipeline,
        prompt_set=prompt_set,
        temperature=temperature,
        prompts=sum(s.resampling.prompts for s in samples),
        acceptance_length=average(samples, lambda s: s.acceptance_length),
        tokens_per_second=average(samples, lambda s: s.tokens_per_second),
        speedup=average(samples, lambda s: s.speedup),
        first_token_seconds=float(np.mean([s.first_token_seconds for s in samples])),
    )


def _mark_best(rows: Sequence[SummaryRow]) -> list[SummaryRow]:
    best: dict[str, set[str]] = {row.pipeline: set() for row in rows}
    others = [row for row in rows if row.pipeline != BASELINE]
    for name in ("acceptance_length", "speedup"):
        values = {row.pipeline: getattr(row, name).estimate for row in others}
        known = [value for value in values.values() if value is not None]
        for pipeline, value in values.items():
            if known and value is not None and math.isclose(value, max(known), rel_tol=1e-12):
                best[pipeline].add(name)
    return [evolve(row, best=frozenset(best[row.pipeline])) for row in rows]


def fastest_and_rivals(
    samples: Mapping[Place, Sample], rows: Sequence[SummaryRow], temperature: float
) -> tuple[SummaryRow, list[str]] | None:
    """Return the row of the highest speed-up at a temperature, and the pipelines that could be as fast.

    Those are the ones whose difference from it, paired by prompt, is not larger than its noise. Over several prompt
    sets averages are compared. ``None`` where no pipeline but ``ar`` has a speed-up.
    """
    mine = [row for row in rows if row.temperature == temperature]
    averaged = [row for row in mine if row.prompt_set is None] or mine
    others = [row for row in averaged if row.pipeline != BASELINE and row.speedup.estimate is not None]
    if not others:
        return None
    best = max(others, key=lambda row: row.speedup.estimate or 0.0)
    speeds = {row.pipeline: _log_speedup(samples, row.pipeline, temperature) for row in others}
    rivals = [row.pipeline for row in others if row is not best]
    fewest = min(s.resampling.prompts for place, s in samples.items() if place.temperature == temperature)
    p_values = holm([p_value(speeds[best.pipeline] - speeds[name], fewest) for name in rivals])
    return best, [name for name, p in zip(rivals, p_values, strict=True) if p is None or p >= 1.0 - LEVEL]


def _log_speedup(samples: Mapping[Place, Sample], pipeline: str, temperature: float) -> Doubles:
    mine = [s for place, s in samples.items() if (place.pipeline, place.temperature) == (pipeline, temperature)]
    return np.log(np.mean([s.speedup for s in mine], axis=0))
