"""One row of figures a pipeline, prompt set and temperature, from the lines of a run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from attrs import frozen

from specforge.report.divergence import Divergence
from specforge.report.records import BASELINE, DISTRIBUTIONAL
from specforge.report.runfolder import Generation, RunData
from specforge.result import STAGES

Lossless = bool | str


@frozen(eq=False)
class Row:
    """One pipeline's figures over all prompts of a set at a temperature.

    Seconds are medians over the repeats of each prompt, added up over the prompts.

    Attributes:
        name: the pipeline.
        prompt_set: the prompts.
        temperature: 0 is greedy.
        acceptance_length: τ, tokens a round.
        tokens_per_second: tokens after the first over the seconds they took.
        speedup: its tokens per second over those of ``ar``.
        lossless: ``True`` when every output equals ``ar``'s or parts from it where the target's own rounding decides,
            ``"distributional"`` when only the distribution is the target's, else ``False``.
        divergences: where an output differs from ``ar``'s, one for a prompt and turn: one that is no tie, if any.
        outputs: how many outputs were compared.
        seconds_to_first_token: median over all generations.
        stage_seconds: by stage.
        rounds: verification rounds, one repeat.
        tokens: emitted tokens, one repeat.
    """

    name: str
    prompt_set: str
    temperature: float
    acceptance_length: float
    tokens_per_second: float
    speedup: float
    lossless: Lossless
    divergences: tuple[Divergence, ...]
    outputs: int
    seconds_to_first_token: float
    stage_seconds: dict[str, float]
    rounds: int
    tokens: int


# The repeats of each prompt and turn, in order.
_Repeats = Sequence[Sequence[Generation]]


def summarise(run: RunData) -> tuple[Row, ...]:
    """Return the rows of a run, finished or not, by prompt set, temperature and pipeline in the order of the run."""
    groups: dict[tuple[str, float, str], dict[tuple[str, int], list[Generation]]] = {}
    for line in run.generations:
        case = line.case
        prompts = groups.setdefault((case.prompt_set, case.temperature, line.pipeline), {})
        prompts.setdefault((case.prompt, case.turn), []).append(line)
    rows: list[Row] = []
    for prompt_set in run.settings["prompt_sets"]:
        for temperature in run.settings["temperatures"]:
            if (prompt_set, temperature, BASELINE) not in groups:
                continue
            found = {name: list(groups[prompt_set, temperature, name].values()) for name in run.pipelines}
            base = _tokens_per_second(found[BASELINE])
            rows.extend(_row(name, prompt_set, temperature, mine, base) for name, mine in found.items())
    return tuple(rows)


def _row(name: str, prompt_set: str, temperature: float, mine: _Repeats, base: float) -> Row:
    first = [repeats[0] for repeats in mine]
    rounds = sum(len(line.acceptance_lengths) for line in first)
    emitted = sum(sum(line.acceptance_lengths) for line in first)
    speed = _tokens_per_second(mine)
    divergences = tuple(worst for worst in map(_worst_divergence, mine) if worst is not None)
    return Row(
        name=name,
        prompt_set=prompt_set,
        temperature=temperature,
        acceptance_length=emitted / rounds if rounds else float("nan"),
        tokens_per_second=speed,
        speedup=speed / base,
        lossless=_losslessness(mine),
        divergences=divergences,
        outputs=len(mine),
        seconds_to_first_token=median(line.seconds_to_first_token for repeats in mine for line in repeats),
        stage_seconds=_stage_seconds(mine),
        rounds=rounds,
        tokens=sum(len(line.token_ids) for line in first),
    )


def _tokens_per_second(mine: _Repeats) -> float:
    tokens = sum(len(repeats[0].token_ids) - 1 for repeats in mine)
    seconds = sum(median(line.decode_seconds for line in repeats) for repeats in mine)
    return tokens / seconds if tokens and seconds else float("nan")


def _stage_seconds(mine: _Repeats) -> dict[str, float]:
    return {name: sum(median(line.stage_seconds[name] for line in repeats) for repeats in mine) for name in STAGES}


def _worst_divergence(repeats: Sequence[Generation]) -> Divergence | None:
    found = [line.divergence for line in repeats if line.divergence is not None]
    return min(found, key=lambda divergence: divergence.tie, default=None)


def _losslessness(mine: _Repeats) -> Lossless:
    lines = [line for repeats in mine for line in repeats]
    if any(line.lossless == DISTRIBUTIONAL for line in lines):
        return DISTRIBUTIONAL
    return all(line.divergence is None or line.divergence.tie for line in lines)
