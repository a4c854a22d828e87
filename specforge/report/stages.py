"""Where a round's time goes."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from specforge.report.measures import ROUND_STAGES, Place, Totals


@frozen(eq=False)
class StageBar:
    """What one round of a pipeline takes: the mean over the rounds of all prompt sets.

    Attributes:
        pipeline: its name.
        seconds: by stage, in the order of the loop.
        rounds: how many rounds there were.
    """

    pipeline: str
    seconds: Mapping[str, float]
    rounds: int

    @property
    def total(self) -> float:
        """Seconds of a whole round."""
        return sum(self.seconds.values())


def stage_bars(totals: Mapping[Place, Totals], temperature: float) -> list[StageBar]:
    """Return one bar a pipeline that has rounds at this temperature."""
    found = []
    for pipeline in dict.fromkeys(place.pipeline for place in totals):
        mine = [t for place, t in totals.items() if (place.pipeline, place.temperature) == (pipeline, temperature)]
        rounds = sum(float(t.rounds.sum()) for t in mine)
        if rounds:
            seconds = {s: sum(float(t.stage_seconds[s].sum()) for t in mine) / rounds for s in ROUND_STAGES}
            found.append(StageBar(pipeline, seconds, round(rounds)))
    return found
