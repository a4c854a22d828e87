"""DSpark's Markov corrections (arXiv:2607.05147), vanilla, gated and recurrent, the eager reference."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor

from specforge.correction.linear import project
from specforge.correction.slices import Slices, slice_product
from specforge.interfaces import CorrectionHead, Draft


@frozen(eq=False)
class Affine:
    """Weight ``[out, in]`` and bias ``[out]``."""

    weight: Tensor
    bias: Tensor


@frozen(eq=False)
class MarkovState:
    """The head's state on ``n`` paths.

    Attributes:
        code: ``[n, R]`` ``W1[previous token]``; the root's at depth 0.
        recurrent: ``[n, R]``, zero at depth 0; ``None`` where the head has no memory.
        projected: ``[D, ...]`` what the head's projection makes of every ``z_d``, bias included, the same for all
            paths; ``None`` where it does not read them.
        slices: the round's rows of ``W2``, where the candidates are known.
    """

    code: Tensor
    recurrent: Tensor | None
    projected: Tensor | None
    slices: Slices | None = None

    per_path: ClassVar[tuple[str, ...]] = ("code", "recurrent")
    per_depth: ClassVar[tuple[str, ...]] = ("projected",)

    def select(self, rows: Tensor) -> MarkovState:
        """Return the state of the paths ``rows``."""
        recurrent = None if self.recurrent is None else self.recurrent.index_select(0, rows)
        return MarkovState(self.code.index_select(0, rows), recurrent, self.projected, self.slices)


@frozen(eq=False, repr=False)
class MarkovCorrection(CorrectionHead):
    """``W2 · W1[previous token]``: a low-rank table of which token follows which.

    Attributes:
        codes: ``W1``, ``[V, R]``.
        up: ``W2``, ``[V, R]``; rows of tokens that the drafter cannot draft are zero.
    """

    codes: Tensor
    up: Tensor

    def begin(self, draft: Draft, root: Tensor) -> MarkovState:
        """Return the state after the root, ``[1]`` int64."""
        return MarkovState(self.codes[root], None, None)

    def prepare(self, state: Any, candidates: Tensor) -> MarkovState:
        """Gather the rows of ``W2`` that belong to ``candidates`` ``[D, M]``."""
        return MarkovState(state.code, state.recurrent, state.projected, Slices.of(self.up, candidates))

    def correct(self, draft: Draft, depth: int, state: Any, candidates: Tensor | None) -> Tensor:
        """Return ``[n, M]`` float32 to add to the base logits of ``candidates`` (``[M]``; ``None``: all ``V``)."""
        return slice_product(self._inner(depth, state), self.up, state.slices, depth, candidates)

    def advance(self, draft: Draft, depth: int, state: Any, parent_rows: Tensor, tokens: Tensor) -> MarkovState:
        """Return the states after ``tokens`` ``[m]``, each following the path ``parent_rows`` ``[m]``."""
        recurrent = self._next_recurrent(depth, state, parent_rows)
        return MarkovState(self.codes[tokens], recurrent, state.projected, state.slices)

    def _inner(self, depth: int, state: MarkovState) -> Tensor:
        return state.code

    def _next_recurrent(self, depth: int, state: MarkovState, parent_rows: Tensor) -> Tensor | None:
        return None


@frozen(eq=False, repr=False)
class GatedMarkovCorrection(MarkovCorrection):
    """``W2 · (σ(Wg · [z_d ; c] + b) * c)`` with ``c = W1[previous token]``.

    Attributes:
        gate: ``Wg`` ``[R, H + R]`` and ``b``.
    """

    gate: Affine

    def begin(self, draft: Draft, root: Tensor) -> MarkovState:
        """Return the state after the root, ``[1]`` int64."""
        hidden = _hidden(draft)
        projected = project(hidden, self.gate.weight[:, : hidden.shape[1]], self.gate.bias)
        return MarkovState(self.codes[root], None, projected)

    def _inner(self, depth: int, state: MarkovState) -> Tensor:
        assert state.projected is not None
        from_code = project(state.code, self.gate.weight[:, -state.code.shape[1] :])
        return torch.sigmoid(state.projected[depth] + from_code) * state.code


@frozen(eq=False, repr=False)
class RecurrentMarkovCorrection(MarkovCorrection):
    """The ``rnn`` variant: gate, new state and output come from one projection of ``[s ; W1[previous] ; z_d]``.

    ``s`` starts at zero; the correction is ``W2 · tanh(output)``, and ``s`` becomes
    ``σ(gate) * s + (1 - σ(gate)) * tanh(new)`` once the position's token is known.

    Attributes:
        joint: ``[3R, 2R + H]`` and its bias; rows in the order gate, new state, output.
    """

    joint: Affine

    def begin(self, draft: Draft, root: Tensor) -> MarkovState:
        """Return the state after the root, ``[1]`` int64."""
        rank = self.codes.shape[1]
        projected = project(_hidden(draft), self.joint.weight[:, 2 * rank :], self.joint.bias)
        return MarkovState(self.codes[root], self.codes.new_zeros(1, rank), projected)

    def _inner(self, depth: int, state: MarkovState) -> Tensor:
        assert state.recurrent is not None
        return torch.tanh(self._project(depth, state.recurrent, state.code, state, 2, 3))

    def _next_recurrent(self, depth: int, state: MarkovState, parent_rows: Tensor) -> Tensor:
        assert state.recurrent is not None
        recurrent = state.recurrent.index_select(0, parent_rows)
        code = state.code.index_select(0, parent_rows)
        gate, new = self._project(depth, recurrent, code, state, 0, 2).chunk(2, dim=-1)
        gate = torch.sigmoid(gate)
        return gate * recurrent + (1 - gate) * torch.tanh(new)

    def _project(
        self, depth: int, recurrent: Tensor, code: Tensor, state: MarkovState, first: int, last: int
    ) -> Tensor:
        assert state.projected is not None
        rank = code.shape[1]
        rows = slice(first * rank, last * rank)
        both = torch.cat([recurrent, code], dim=-1)
        return project(both, self.joint.weight[rows, : 2 * rank]) + state.projected[depth, rows]


MARKOV_HEADS = (MarkovCorrection, GatedMarkovCorrection, RecurrentMarkovCorrection)
"""The published variants."""


def _hidden(draft: Draft) -> Tensor:
    if draft.hidden is None:
        raise ValueError("the draft has no hidden states; this Markov head reads them")
    return draft.hidden
