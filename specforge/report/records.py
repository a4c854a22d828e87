"""From what a pipeline returns to the lines of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from specforge.interfaces import PROPOSAL, SCORES
from specforge.pipeline import Pipeline
from specforge.report.divergence import Divergence, explain
from specforge.report.runfolder import Case, Generation, RoundLine
from specforge.request import GenerateOptions
from specforge.result import GenerationResult

BASELINE = "ar"
DISTRIBUTIONAL = "distributional"


def generation_line(
    name: str,
    pipeline: Pipeline,
    case: Case,
    prompt_ids: list[int],
    options: GenerateOptions,
    result: GenerationResult,
    reference: GenerationResult | Generation,
) -> Generation:
    """Make the line of one generation, compared token by token with what ``ar`` made of the same prompt.

    Args:
        name: the pipeline's name.
        pipeline: what made ``result``.
        case: what it was given.
        prompt_ids: the prompt.
        options: what it was made with.
        result: what came out.
        reference: ``ar``'s output in the first repeat.
    """
    divergence: Divergence | None = None
    lossless: bool | str | None = None
    if PROPOSAL in pipeline.parts.verifier_for(options.sampling).needed():
        lossless = DISTRIBUTIONAL
    else:
        divergence = explain(
            pipeline.target,
            prompt_ids,
            reference.token_ids,
            result.token_ids,
            options.sampling,
            options.seed,
            f"{case.prompt}#{case.turn}",
        )
        lossless = None if name == BASELINE else divergence is None or divergence.tie
    return Generation(
        pipeline=name,
        case=case,
        prompt_tokens=result.prompt_tokens,
        token_ids=tuple(result.token_ids),
        text=result.text,
        acceptance_lengths=tuple(result.acceptance_lengths),
        finish_reason=result.finish_reason,
        seconds_to_first_token=result.seconds_to_first_token,
        decode_seconds=result.decode_seconds,
        stage_seconds=result.stage_seconds,
        lossless=lossless,
        divergence=divergence,
    )


def round_lines(name: str, pipeline: Pipeline, case: Case, result: GenerationResult) -> Iterator[RoundLine]:
    """Make the lines of a traced generation's rounds."""
    scored = SCORES in pipeline.parts.builder.needed()
    context = result.prompt_tokens + 1
    for number, record in enumerate(result.rounds):
        probs = [_rounded(math.exp(score)) for score in record.tree.log_probs[1:].tolist()] if scored else None
        yield RoundLine(
            pipeline=name,
            case=case,
            round=number,
            context=context,
            nodes=record.tree.budget,
            depth_counts=tuple(np.bincount(record.tree.depths)[1:].tolist()),
            accepted=record.acceptance_length,
            path=record.path,
            path_probs=None if probs is None else tuple(probs),
            stage_seconds=record.stage_seconds,
        )
        context += record.acceptance_length


def _rounded(probability: float) -> float:
    return float(f"{probability:.4g}")
