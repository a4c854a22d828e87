"""Correction heads whose steps are Triton kernels, one launch for what takes the eager heads a dozen operations.

Each holds the eager head it stands for. What a round does once, and what is one large product anyway (the correction of
the whole vocabulary), is left to that.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from attrs import field, frozen
from torch import Tensor

from specforge.children import Children
from specforge.correction import triton_kernels as kernels
from specforge.correction import triton_ops as ops
from specforge.correction.domino import DominoCorrection, DominoState
from specforge.correction.markov import (
    GatedMarkovCorrection,
    MarkovCorrection,
    MarkovState,
    RecurrentMarkovCorrection,
)
from specforge.interfaces import CorrectionHead, Draft, State

H = TypeVar("H", bound=CorrectionHead)


@frozen(eq=False, repr=False)
class TritonHead(CorrectionHead, Generic[H]):
    """What the heads share: all that is not a kernel is the eager head's.

    Attributes:
        eager: the head this one stands for; its weights are read, not copied.
    """

    eager: H
    first_corrected: int = field(init=False)

    @first_corrected.default
    def _eagers(self) -> int:
        return self.eager.first_corrected

    def begin(self, draft: Draft, root: Tensor) -> State:
        """Return the state after the root, ``[1]`` int64."""
        return self.eager.begin(draft, root)

    def correct(self, draft: Draft, depth: int, state: Any, candidates: Tensor | None) -> Tensor:
        """Return ``[n, M]`` float32 to add to the base logits of ``candidates`` (``[M]``; ``None``: all ``V``)."""
        return self.eager.correct(draft, depth, state, candidates)

    def best_of_slice(
        self, draft: Draft, depth: int, state: State, base: Tensor, candidates: Tensor, temperature: float, width: int
    ) -> tuple[Tensor, Tensor]:
        """Return the ``width`` best of ``slice_log_probs`` and their columns."""
        return ops.best_of_rows(self.slice_log_probs(draft, depth, state, base, candidates, temperature), width)

    def best_children(
        self, scores: Tensor, log_probs: Tensor, tokens: Tensor, width: int, ranked: bool = False
    ) -> Children:
        """Return the ``width`` best children of nodes of path scores ``[n]``."""
        return ops.best_children(scores, log_probs, tokens, width, ranked)


@frozen(eq=False, repr=False)
class TritonDomino(TritonHead[DominoCorrection]):
    """Domino's head: the GRU cell in one kernel, a node's candidates in two."""

    def slice_log_probs(
        self, draft: Draft, depth: int, state: Any, base: Tensor, candidates: Tensor, temperature: float
    ) -> Tensor:
        """Return ``[n, M]`` float32, the log-softmax over ``candidates`` of corrected logits over ``temperature``."""
        paths = ops.inner(kernels.SILU, [(state.recurrent, self.eager.down_state)], state.projected[depth])
        return ops.slice_log_softmax(paths, self.eager.up, candidates, base, temperature)

    def advance(self, draft: Draft, depth: int, state: Any, parent_rows: Tensor, tokens: Tensor) -> DominoState:
        """Return the states after ``tokens`` ``[m]``, each following the path ``parent_rows`` ``[m]``."""
        table, weight = self.eager.input_table, self.eager.state_weight
        if table is None:
            recurrent = ops.gru(state.recurrent, parent_rows, self.eager.from_input(tokens), None, weight)
        else:
            recurrent = ops.gru(state.recurrent, parent_rows, table, tokens, weight)
        return DominoState(recurrent, state.projected, state.slices)


@frozen(eq=False, repr=False)
class TritonMarkov(TritonHead[MarkovCorrection]):
    """DSpark's heads, all three variants."""

    def slice_log_probs(
        self, draft: Draft, depth: int, state: Any, base: Tensor, candidates: Tensor, temperature: float
    ) -> Tensor:
        """Return ``[n, M]`` float32, the log-softmax over ``candidates`` of corrected logits over ``temperature``."""
        return ops.slice_log_softmax(self._paths(depth, state), self.eager.up, candidates, base, temperature)

    def advance(self, draft: Draft, depth: int, state: Any, parent_rows: Tensor, tokens: Tensor) -> MarkovState:
        """Return the states after ``tokens`` ``[m]``, each following the path ``parent_rows`` ``[m]``."""
        head, recurrent = self.eager, None
        if isinstance(head, RecurrentMarkovCorrection):
            shift = state.projected[depth]
            recurrent = ops.markov(state.recurrent, state.code, parent_rows, head.joint.weight, shift)
        return MarkovState(head.codes.index_select(0, tokens), recurrent, state.projected, state.slices)

    def _paths(self, depth: int, state: Any) -> Tensor:
        head, rank = self.eager, state.code.shape[1]
        if isinstance(head, GatedMarkovCorrection):
            return ops.inner(kernels.GATE, [(state.code, head.gate.weight[:, -rank:])], state.projected[depth])
        if isinstance(head, RecurrentMarkovCorrection):
            weight = head.joint.weight[2 * rank :]
            parts = [(state.recurrent, weight[:, :rank]), (state.code, weight[:, rank : 2 * rank])]
            return ops.inner(kernels.TANH, parts, state.projected[depth, 2 * rank :])
        return state.code.float()
