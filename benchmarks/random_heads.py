"""Drafts with random weights of the published shapes, for measuring what a build costs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional as F

from specforge.correction.domino import DominoCorrection, input_table
from specforge.correction.markov import (
    Affine,
    GatedMarkovCorrection,
    MarkovCorrection,
    RecurrentMarkovCorrection,
)
from specforge.interfaces import CorrectionHead, Draft, Round
from specforge.sampling import KeyedUniforms, SamplingParams


@frozen
class Shape:
    """Sizes of a Domino head and of a draft: H, G, E, V and D."""

    hidden: int
    state: int
    inner: int
    vocab: int
    depth: int


QWEN3_4B = Shape(2560, 1024, 256, 151_936, 15)
QWEN3_8B = Shape(4096, 1024, 256, 151_936, 15)
SMOLLM2 = Shape(576, 256, 128, 49_152, 8)
TINY = Shape(24, 20, 12, 300, 3)
MARKOV_KINDS = ("vanilla", "gated", "rnn")


def random_weights(device: torch.device, dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return a function that draws a matrix of some sizes, whose products with rows of variance 1 have variance 1."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(*sizes: int) -> Tensor:
        return (torch.randn(*sizes, generator=generator, device=device) * sizes[-1] ** -0.5).to(dtype)

    return draw


def random_domino(shape: Shape, dtype: torch.dtype, device: torch.device, table: bool = False) -> DominoCorrection:
    """Return an eager head; ``table`` precomputes the GRU's input products."""
    weights = random_weights(device, dtype)
    embedding = weights(shape.vocab, shape.hidden) * shape.hidden**0.5
    input_weight = weights(3 * shape.state, shape.hidden)
    return DominoCorrection(
        embed=lambda tokens: F.embedding(tokens, embedding),
        input_weight=input_weight,
        state_weight=weights(3 * shape.state, shape.state),
        down=weights(shape.inner, shape.hidden + shape.state),
        up=weights(shape.vocab, shape.inner),
        input_table=input_table(lambda tokens: embedding[tokens], input_weight, shape.vocab) if table else None,
    )


def random_markov(kind: str, shape: Shape, dtype: torch.dtype, device: torch.device) -> MarkovCorrection:
    """Return an eager head of one of ``MARKOV_KINDS``, whose rank is the shape's ``inner``."""
    weights, rank = random_weights(device, dtype), shape.inner
    codes, up = weights(shape.vocab, rank) * rank**0.5, weights(shape.vocab, rank)
    if kind == "gated":
        return GatedMarkovCorrection(codes, up, Affine(weights(rank, shape.hidden + rank), weights(rank)))
    if kind == "rnn":
        joint = Affine(weights(3 * rank, 2 * rank + shape.hidden), weights(3 * rank))
        return RecurrentMarkovCorrection(codes, up, joint)
    return MarkovCorrection(codes, up)


def random_draft(
    shape: Shape, dtype: torch.dtype, head: CorrectionHead | None, device: torch.device, seed: int = 0
) -> Draft:
    """Return a draft whose rows have a few likely tokens each, as a drafter's have."""
    generator = torch.Generator(device).manual_seed(seed)

    def noise(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, device=device)

    logits = noise(shape.depth, shape.vocab) * 2
    likely = torch.randint(0, shape.vocab, (shape.depth, 6), generator=generator, device=device)
    logits.scatter_(1, likely, noise(shape.depth, 6) * 1.5 + 14.0)
    return Draft(shape.depth, noise(shape.depth, shape.hidden).to(dtype), logits, head)


def any_round(device: torch.device) -> Round:
    """Return a round that no limit bears on."""
    return Round(torch.tensor([11, 7], device=device), 99, SamplingParams(), KeyedUniforms(0))
