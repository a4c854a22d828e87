"""Whether the outputs are those of plain decoding, and where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import asdict, frozen

from specforge.report.measures import Place
from specforge.report.runfolder import Generation, RunData


@frozen(eq=False)
class Outputs:
    """How one pipeline's outputs compare with those of ``ar``, on one prompt set at one temperature.

    An output is one turn of one prompt; of its repeats the worst counts.

    Attributes:
        place: which.
        outputs: how many.
        identical: equal to ``ar``'s, token by token.
        ties: part from it where rounding decides: the margin is within the noise.
        differing: part from it otherwise.
        distributional: not compared, since only the distribution is the target's.
        parted: those that part, the ones that rounding does not explain first.
    """

    place: Place
    outputs: int
    identical: int
    ties: int
    differing: int
    distributional: int
    parted: tuple[Generation, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the counts with their place."""
        counts = ("outputs", "identical", "ties", "differing", "distributional")
        return {**asdict(self.place), **{name: getattr(self, name) for name in counts}}


def outputs(run: RunData) -> list[Outputs]:
    """Return one entry a pipeline but ``ar``, prompt set and temperature, in the order they were run."""
    worst: dict[Place, dict[tuple[str, int], Generation]] = {}
    for generation in run.generations:
        if generation.lossless is None:
            continue
        case = generation.case
        turns = worst.setdefault(Place(generation.pipeline, case.prompt_set, case.temperature), {})
        known = turns.setdefault((case.prompt, case.turn), generation)
        if _badness(generation) > _badness(known):
            turns[case.prompt, case.turn] = generation
    return [_outputs(place, list(turns.values())) for place, turns in worst.items()]


def _badness(generation: Generation) -> int:
    if generation.divergence is None:
        return 0
    return 1 if generation.divergence.tie else 2


def _outputs(place: Place, turns: Sequence[Generation]) -> Outputs:
    counts = [sum(_badness(g) == badness for g in turns) for badness in range(3)]
    distributional = sum(isinstance(g.lossless, str) for g in turns)
    parted = sorted((g for g in turns if g.divergence is not None), key=_badness, reverse=True)
    return Outputs(place, len(turns), counts[0] - distributional, counts[1], counts[2], distributional, tuple(parted))
