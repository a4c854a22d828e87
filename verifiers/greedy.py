"""Greedy verification: the path along which the target's argmax is in the tree."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import frozen
from torch import Tensor

from specforge.errors import ConfigError
from specforge.interfaces import Round, Verdict, Verifier
from specforge.registry import register
from specforge.sampling import SamplingParams
from specforge.tree import DraftTree
from specforge.verifiers.walk import chooser, walk


@register.verifier("greedy")
@frozen(eq=False)
class Greedy(Verifier):
    """Accepts a child that is the argmax of the target's processed logits; temperature 0 only."""

    def check(self, sampling: SamplingParams) -> None:
        """Refuse a temperature above 0."""
        if not sampling.greedy:
            raise ConfigError(
                f"verifier 'greedy' keeps the output exact at temperature 0 only, and temperature is"
                f" {sampling.temperature}; use 'sampling', 'rejection' or 'auto'"
            )

    def verify(self, tree: DraftTree, logits: Tensor, round: Round) -> Verdict:
        """Walk down while the argmax is a child."""
        if logits.is_cuda and round.sampling.unprocessed_argmax:
            return walk(tree, argmax_chooser(logits))
        return walk(tree, chooser(tree, logits, round))


def argmax_chooser(logits: Tensor) -> Callable[[int], int]:
    """Return the function from a node to its argmax; all rows are reduced at once and copied to the host once.

    Worth it where each look at a single row would wait for the device. On a CPU it costs more than the few rows that
    a walk visits.
    """
    return torch.argmax(logits, dim=-1).tolist().__getitem__
