"""Speculative sampling: drawn drafts are accepted or rejected so that the target's distribution comes out."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen
from torch import Tensor

from specforge.errors import IncompatiblePartsError
from specforge.interfaces import PROPOSAL, SHAPE_BEFORE_DRAWING, Round, Verdict, Verifier
from specforge.registry import register
from specforge.sampling import KeyedUniforms, draw, processed_distribution
from specforge.tree import DraftTree
from specforge.verifiers.walk import path_ids


@register.verifier("rejection")
@frozen(eq=False)
class Rejection(Verifier):
    """Accepts each drawn child with probability min(1, p/q), and draws from the residual when all are rejected.

    A chain is verified as in speculative sampling (arXiv:2211.17192, arXiv:2302.01318), several siblings drawn
    without replacement by recursive rejection (arXiv:2402.14160). The output has the target's distribution, but is
    not the text that plain decoding draws with the same seed. At temperature 0 the target's distribution is a point,
    and the output is the argmax, as with ``greedy``.

    Only sound for trees whose shape was fixed before drawing: of a candidate that was chosen for its score, q does
    not say how likely it was to be in the tree.
    """

    needs = frozenset({PROPOSAL, SHAPE_BEFORE_DRAWING})

    def verify(self, tree: DraftTree, logits: Tensor, round: Round) -> Verdict:
        """Walk down while a child is accepted."""
        path = [0]
        while True:
            node = path[-1]
            p = processed_distribution(logits[node], path_ids(tree, node, round), round.sampling)
            position = round.root_position + len(path)
            child, p = _accept_child(tree, node, p, round.draws, position)
            if child is None:
                return Verdict(tuple(path), draw(p, round.draws(position, "residual")))
            path.append(child)


def _accept_child(
    tree: DraftTree, node: int, p: Tensor, draws: KeyedUniforms, position: int
) -> tuple[int | None, Tensor]:
    """Return the accepted child of ``node`` or ``None``, and what is left of ``p`` after the rejections."""
    children: Sequence[int] = tree.children(node)
    if not children:
        return None, p
    if tree.proposal is None:
        raise IncompatiblePartsError("verifier 'rejection' needs a tree with a proposal; this one was not drawn")
    q = tree.proposal.distribution(node, like=p)
    for rank, child in enumerate(children):
        token = int(tree.token_ids[child])
        if not q[token] > 0.0:
            raise ValueError(f"node {child} holds token {token}, which its proposal gives no mass after {rank} draws")
        if draws(position, "accept", rank) * float(q[token]) < float(p[token]):
            return child, p
        p = _residual(p, q)
        q = _without(q, token)
    return None, p


def _residual(p: Tensor, q: Tensor) -> Tensor:
    """Return the distribution of the output given that a draw from ``q`` was rejected: ``(p - q)+``, normalised."""
    surplus = (p - q).clamp_(min=0.0)
    total = surplus.sum()
    # A rejection means that p is below q somewhere, so above it elsewhere, unless the two differ by rounding only.
    return surplus / total if total > 0.0 else p


def _without(q: Tensor, token: int) -> Tensor:
    """Return ``q`` given that ``token`` is not drawn; all zeros when it held the whole mass."""
    left = q.clone()
    left[token] = 0.0
    total = left.sum()
    return left / total if total > 0.0 else left
