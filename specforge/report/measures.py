"""What a run measured, added up by prompt: the sums that every figure of a report is a ratio of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

import numpy as np
from attrs import frozen

from specforge.report.runfolder import Generation, RunData
from specforge.report.statistics import Doubles
from specforge.result import STAGES

ROUND_STAGES = tuple(stage for stage in STAGES if stage != "prefill")


@frozen
class Place:
    """Where something was measured: a pipeline, a prompt set and a temperature."""

    pipeline: str
    prompt_set: str
    temperature: float


@frozen(eq=False)
class Totals:
    """One pipeline's sums over one prompt set at one temperature, by prompt; a prompt's turns are added up.

    Seconds are medians over repeats.

    Attributes:
        prompts: ``P`` names.
        prompt_tokens: length of each prompt's first turn, in tokens.
        turns: ``[P]`` turns.
        tokens: ``[P]`` tokens that rounds emitted, that is all but a turn's first.
        rounds: ``[P]`` verification rounds.
        seconds: ``[P]`` seconds of decoding, from the first token to the last.
        first_token_seconds: ``[P]`` seconds to the first token, added up over turns.
        stage_seconds: ``[P]`` seconds of each stage of the rounds.
    """

    prompts: tuple[str, ...]
    prompt_tokens: tuple[int, ...]
    turns: Doubles
    tokens: Doubles
    rounds: Doubles
    seconds: Doubles
    first_token_seconds: Doubles
    stage_seconds: Mapping[str, Doubles]


def temperatures(run: RunData) -> list[float]:
    """Return the temperatures there are finished generations for, in the order they were run."""
    return list(dict.fromkeys(g.case.temperature for g in run.generations))


def prompt_sets(run: RunData) -> list[str]:
    """Return the prompt sets there are finished generations for, in the order they were run."""
    return list(dict.fromkeys(g.case.prompt_set for g in run.generations))


def add_up(run: RunData) -> dict[Place, Totals]:
    """Return the sums of every pipeline, prompt set and temperature, in the order they were run."""
    found: dict[Place, dict[str, dict[int, list[Generation]]]] = {}
    for g in run.generations:
        place = Place(g.pipeline, g.case.prompt_set, g.case.temperature)
        found.setdefault(place, {}).setdefault(g.case.prompt, {}).setdefault(g.case.turn, []).append(g)
    return {place: _totals(prompts) for place, prompts in found.items()}


def _totals(prompts: Mapping[str, Mapping[int, Sequence[Generation]]]) -> Totals:
    turns = [[_turn(repeats) for repeats in by_turn.values()] for by_turn in prompts.values()]
    sums = {name: np.array([sum(turn[name] for turn in prompt) for prompt in turns]) for name in turns[0][0]}
    return Totals(
        prompts=tuple(prompts),
        prompt_tokens=tuple(by_turn[min(by_turn)][0].prompt_tokens for by_turn in prompts.values()),
        turns=np.array([float(len(prompt)) for prompt in turns]),
        stage_seconds={stage: sums.pop(stage) for stage in ROUND_STAGES},
        **sums,
    )


def _turn(repeats: Sequence[Generation]) -> dict[str, float]:
    """Return one turn's figures.

    Repeats emit the same tokens unless something learns from run to run; where they do not, seconds a token are what
    can be compared between them.
    """
    tokens = [sum(g.acceptance_lengths) for g in repeats]
    rounds = [len(g.acceptance_lengths) for g in repeats]
    stages = {stage: _median_rate([g.stage_seconds[stage] for g in repeats], rounds) for stage in ROUND_STAGES}
    return {
        "tokens": fmean(tokens),
        "rounds": fmean(rounds),
        "seconds": _median_rate([g.decode_seconds for g in repeats], tokens),
        "first_token_seconds": median(g.seconds_to_first_token for g in repeats),
        **stages,
    }


def _median_rate(seconds: Iterable[float], units: Sequence[int]) -> float:
    """Return the median of the seconds a unit, times the mean number of units."""
    rates = [s / n for s, n in zip(seconds, units, strict=True) if n]
    return median(rates) * fmean(units) if rates else 0.0
