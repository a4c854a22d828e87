"""The product with a head's output rows: of the whole vocabulary, or of the candidates that a round asks about."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from specforge.correction.linear import project


@frozen(eq=False)
class Slices:
    """A round's rows of an output weight, gathered once.

    Attributes:
        rows: ``[D, M, r]`` float32.
    """

    rows: Tensor

    @classmethod
    def of(cls, up: Tensor, candidates: Tensor) -> Slices:
        """Gather the rows of ``up`` ``[V, r]`` that belong to ``candidates`` ``[D, M]``."""
        return cls(up.index_select(0, candidates.flatten()).float().view(*candidates.shape, -1))


def slice_product(inner: Tensor, up: Tensor, slices: Slices | None, depth: int, candidates: Tensor | None) -> Tensor:
    """Return ``inner`` ``[n, r]`` times rows of ``up`` ``[V, r]``: ``[n, M]`` float32.

    Over a slice the product is float32 throughout, whatever the dtype of the weights; over the vocabulary only its
    sums are.

    Args:
        inner: what the head makes of each path.
        up: the output weight.
        slices: its rows at the round's candidates, if they were gathered.
        depth: the draft position.
        candidates: ``[M]`` the tokens to correct, row ``depth`` of those of ``slices``; ``None`` for all ``V``.
    """
    if candidates is None:
        return project(inner, up).float()
    rows = up[candidates].float() if slices is None else slices.rows[depth]
    return inner.float() @ rows.t()
