"""Where two outputs that should be equal part, and whether rounding alone explains it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from attrs import frozen
from torch import Tensor

from specforge.sampling import KeyedUniforms, SamplingParams, processed_distribution, processed_logits
from specforge.target import Target
from specforge.tree import DraftTree

_BLOCKS = (1, 2, 4, 8, 16, 32)


@frozen
class Divergence:
    """The first position where an output differs from ``ar``'s.

    Attributes:
        prompt: which prompt.
        position: index among the new tokens.
        expected: ``ar``'s token there, ``None`` where its output ended.
        got: the other's token there, ``None`` where its output ended.
        margin: how far the choice was from falling the other way: at temperature 0 the gap of the target's top two
            processed logits, above 0 the distance in probability between the uniform and the nearest edge of the drawn
            token's interval of the CDF.
        noise: the largest difference, in the same unit, between the target's own answers for this position when the
            last tokens run through it in blocks of different sizes: the rounding of this dtype on this device.
    """

    prompt: str
    position: int
    expected: int | None
    got: int | None
    margin: float
    noise: float

    @property
    def tie(self) -> bool:
        """Whether rounding alone explains it."""
        return self.margin <= self.noise


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Return the first index where two sequences differ, a missing element included; ``None`` when equal."""
    for index, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return index
    return None if len(expected) == len(got) else min(len(expected), len(got))


@torch.inference_mode()
def explain(
    target: Target,
    prompt_ids: Sequence[int],
    expected: Sequence[int],
    got: Sequence[int],
    sampling: SamplingParams,
    seed: int,
    prompt: str = "",
) -> Divergence | None:
    """Find where ``got`` parts from ``expected`` and measure margin and noise there.

    Args:
        target: the model both came from.
        prompt_ids: the prompt.
        expected: ``ar``'s new tokens.
        got: the other pipeline's new tokens.
        sampling: the options both were made with.
        seed: the seed both were made with.
        prompt: a name to report.

    Returns:
        ``None`` when they are equal.
    """
    position = first_difference(expected, got)
    if position is None:
        return None
    path = torch.tensor([*prompt_ids, *expected[:position]], dtype=torch.int64, device=target.device)
    rows = [_next_logits(target, path, block) for block in _BLOCKS if block < len(path)] or [
        _prefill_logits(target, path)
    ]
    if sampling.greedy:
        margin, noise = _greedy_margin([processed_logits(row, path, sampling) for row in rows])
    else:
        uniform = KeyedUniforms(seed)(len(path), "target")
        margin, noise = _drawn_margin([processed_distribution(row, path, sampling) for row in rows], uniform)
    return Divergence(prompt, position, _at(expected, position), _at(got, position), margin, noise)


def _at(tokens: Sequence[int], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None


def _prefill_logits(target: Target, path: Tensor) -> Tensor:
    return target.prefill(path, target.new_cache(len(path))).logits[0]


def _next_logits(target: Target, path: Tensor, block: int) -> Tensor:
    """Return the logits after ``path`` when its last ``block`` tokens run through the target at once."""
    cache = target.new_cache(len(path))
    target.prefill(path[:-block], cache)
    chain = DraftTree.from_chain(path[-block:])
    return target.verify(chain, cache).logits[-1]


def _greedy_margin(rows: Sequence[Tensor]) -> tuple[float, float]:
    top = rows[0].topk(2).values
    finite = [torch.nan_to_num(row, neginf=0.0) for row in rows]
    noise = max((float((a - b).abs().max()) for a, b in pairwise(finite)), default=0.0)
    return float(top[0] - top[1]), noise


def _drawn_margin(rows: Sequence[Tensor], uniform: float) -> tuple[float, float]:
    edges = [torch.cumsum(row, dim=-1) for row in rows]
    margin = float((edges[0] - uniform).abs().min())
    noise = max((float((a - b).abs().max()) for a, b in pairwise(edges)), default=0.0)
    return margin, noise
