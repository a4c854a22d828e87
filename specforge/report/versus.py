"""Two runs compared: what changed between them, and which changes are larger than their noise.

Prompts that both runs have are resampled together, so that differences are paired by prompt. Every difference is
tested, and the p-values are adjusted for being looked at together (Holm): the chance of calling even one of them
larger than its noise when none is stays at 5%.

What resampling prompts cannot see is a machine that is slower in one run as a whole. That shifts tokens a second, of
``ar`` as of all others; speed-ups compare with ``ar`` in the same run, and stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve, frozen

from specforge.report.facts import flat
from specforge.report.measures import Place, Totals, add_up
from specforge.report.records import BASELINE
from specforge.report.runfolder import RunData
from specforge.report.statistics import LEVEL, Doubles, Interval, Resampling, holm, interval, p_value
from specforge.report.summary import Sample

ACCEPTANCE, SPEEDUP, SPEED = "acceptance_length", "speedup", "tokens_per_second"
QUANTITIES = (ACCEPTANCE, SPEEDUP, SPEED)


@frozen(eq=False)
class Difference:
    """One quantity in both runs.

    Attributes:
        place: pipeline, prompt set and temperature.
        quantity: ``"acceptance_length"``, ``"speedup"`` or ``"tokens_per_second"``.
        first: its value in the first run.
        second: its value in the second run.
        change: of τ second less first, of the others second over first, less 1.
        prompts: how many prompts of each run it rests on.
        paired: whether they are the same prompts.
        p_value: of there being no change, adjusted for all differences together; ``None`` for a single prompt.
    """

    place: Place
    quantity: str
    first: float | None
    second: float | None
    change: Interval
    prompts: tuple[int, int]
    paired: bool
    p_value: float | None

    @property
    def beyond_noise(self) -> bool:
        """Whether the change is larger than its noise."""
        return self.p_value is not None and self.p_value < 1.0 - LEVEL

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        place = {"pipeline": self.place.pipeline, "prompt_set": self.place.prompt_set}
        return {
            **place,
            "temperature": self.place.temperature,
            "quantity": self.quantity,
            "first": self.first,
            "second": self.second,
            "change": self.change.to_json(),
            "prompts": list(self.prompts),
            "paired": self.paired,
            "p_value": self.p_value,
            "beyond_noise": self.beyond_noise,
        }


@frozen
class Change:
    """A setting, version, piece of hardware or option that the runs do not share; ``None`` where a run lacks it."""

    name: str
    first: str | None
    second: str | None


@frozen(eq=False)
class Versus:
    """Two runs compared.

    Attributes:
        differences: of every pipeline, prompt set and temperature that both runs have.
        changes: what else differs.
        only_first: what the second run lacks, in words.
        only_second: what the first run lacks, in words.
        same_text: on how many turns that both runs have ``ar`` wrote the same tokens, and of how many.
    """

    differences: tuple[Difference, ...]
    changes: tuple[Change, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    same_text: tuple[int, int]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "differences": [difference.to_json() for difference in self.differences],
            "changes": [{"name": c.name, "first": c.first, "second": c.second} for c in self.changes],
            "only_first": list(self.only_first),
            "only_second": list(self.only_second),
            "same_text": {"turns": self.same_text[0], "of": self.same_text[1]},
        }


def versus(first: RunData, second: RunData) -> Versus:
    """Compare ``second`` with ``first``."""
    a, b = add_up(first), add_up(second)
    found = [difference for place in a if place in b for difference in _differences(place, a, b)]
    adjusted = holm([difference.p_value for difference in found])
    return Versus(
        tuple(evolve(d, p_value=p) for d, p in zip(found, adjusted, strict=True)),
        tuple(_changes(first, second)),
        tuple(_only(a, b)),
        tuple(_only(b, a)),
        _same_text(first, second),
    )


def _differences(place: Place, a: Mapping[Place, Totals], b: Mapping[Place, Totals]) -> Iterator[Difference]:
    mine, paired = _samples(place, a, b)
    prompts = (mine[0].resampling.prompts, mine[1].resampling.prompts)
    for quantity in QUANTITIES:
        if place.pipeline == BASELINE and quantity != SPEED:
            continue  # both are 1 by definition
        first, second = (getattr(sample, quantity) for sample in mine)
        yield _difference(place, quantity, first, second, prompts, paired)


def _difference(
    place: Place, quantity: str, first: Doubles, second: Doubles, prompts: tuple[int, int], paired: bool
) -> Difference:
    if quantity == ACCEPTANCE:
        change = tested = second - first
    else:
        change, tested = second / first - 1.0, np.log(second / first)
    fewest = min(prompts)
    return Difference(
        place=place,
        quantity=quantity,
        first=interval(first, 1).estimate,
        second=interval(second, 1).estimate,
        change=interval(change, fewest),
        prompts=prompts,
        paired=paired,
        p_value=p_value(tested, fewest),
    )


def _samples(place: Place, a: Mapping[Place, Totals], b: Mapping[Place, Totals]) -> tuple[tuple[Sample, Sample], bool]:
    """Return both runs' samples: of the prompts they share, or, where those are too few, each of its own."""
    baseline = Place(BASELINE, place.prompt_set, place.temperature)
    shared = _shared(a[place], b[place])
    if 2 * len(shared) >= min(len(a[place].prompts), len(b[place].prompts)):
        drawn = Resampling.of(len(shared), place.prompt_set)
        first, second = (
            Sample(_pick(totals[place], shared), _pick(totals[baseline], shared), drawn) for totals in (a, b)
        )
        return (first, second), True
    first, second = (
        Sample(totals[place], totals[baseline], Resampling.of(len(totals[place].prompts), f"{run} {place.prompt_set}"))
        for run, totals in (("first", a), ("second", b))
    )
    return (first, second), False


def _shared(a: Totals, b: Totals) -> list[str]:
    """Return the prompts that both have: same name, same length in tokens."""
    lengths = dict(zip(b.prompts, b.prompt_tokens, strict=True))
    return [name for name, length in zip(a.prompts, a.prompt_tokens, strict=True) if lengths.get(name) == length]


def _pick(totals: Totals, names: Sequence[str]) -> Totals:
    places = {name: place for place, name in enumerate(totals.prompts)}
    chosen = [places[name] for name in names]
    sums = ("turns", "tokens", "rounds", "seconds", "first_token_seconds")
    return Totals(
        prompts=tuple(names),
        prompt_tokens=tuple(totals.prompt_tokens[place] for place in chosen),
        stage_seconds={stage: seconds[chosen] for stage, seconds in totals.stage_seconds.items()},
        **{name: getattr(totals, name)[chosen] for name in sums},
    )


def _changes(first: RunData, second: RunData) -> Iterator[Change]:
    for what in ("settings", "versions", "hardware", "pipelines"):
        a, b = dict(getattr(first, what)), dict(getattr(second, what))
        if what == "pipelines":  # one that a run lacks is no change of an option
            a, b = ({name: config for name, config in x.items() if name in y} for x, y in ((a, b), (b, a)))
        one, other = flat(a), flat(b)
        prefix = "" if what == "settings" else f"{what}."
        for name in dict.fromkeys([*one, *other]):
            if one.get(name) != other.get(name):
                yield Change(f"{prefix}{name}", one.get(name), other.get(name))


def _only(a: Mapping[Place, Totals], b: Mapping[Place, Totals]) -> Iterator[str]:
    """Name what ``a`` has and ``b`` lacks, a whole pipeline, prompt set or temperature at once."""
    for field, word in (("pipeline", "pipeline"), ("prompt_set", "prompt set"), ("temperature", "temperature")):
        other = {getattr(place, field) for place in b}
        for value in dict.fromkeys(getattr(place, field) for place in a):
            if value not in other:
                yield f"{word} {value:g}" if isinstance(value, float) else f"{word} {value}"


def _same_text(first: RunData, second: RunData) -> tuple[int, int]:
    a, b = (
        {g.case: g.token_ids for g in run.generations if g.pipeline == BASELINE and g.case.repeat == 0}
        for run in (first, second)
    )
    shared = [case for case in a if case in b]
    return sum(a[case] == b[case] for case in shared), len(shared)
