"""Greedy verification: the path along which the target's argmax is in the tree."""

from __future__ import annotations

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
        if round.sampling.repetition_penalty != 1.0:
            return walk(tree, chooser(tree, logits, round))
        best = torch.argmax(logits, dim=-1).tolist()
        return walk(tree, best.__getitem__)
