"""Verification that reproduces plain decoding's own draws."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from specforge.interfaces import Round, Verdict, Verifier
from specforge.registry import register
from specforge.tree import DraftTree
from specforge.verifiers.walk import chooser, walk


@register.verifier("sampling")
@frozen(eq=False)
class Sampling(Verifier):
    """Draws from the target at each node and follows the child that was drawn; equals plain decoding token by token.

    The uniform of a draw belongs to the token's position, so that the same tokens come out however the positions are
    grouped into rounds, and for any tree. At temperature 0 the draw is the argmax.
    """

    def verify(self, tree: DraftTree, logits: Tensor, round: Round) -> Verdict:
        """Walk down while the draw is a child."""
        return walk(tree, chooser(tree, logits, round))
