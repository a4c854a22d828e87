"""Domino's GRU correction (arXiv:2605.29707), the eager reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional as F

from specforge.interfaces import CorrectionHead, Draft


@frozen(eq=False)
class DominoState:
    """The head's state on ``n`` paths.

    Attributes:
        recurrent: ``[n, G]`` the GRU's state after the root and the tokens of the path.
        projected: ``[D, E]`` ``W1_z · z_d`` of every draft position, the same for all paths.
    """

    recurrent: Tensor
    projected: Tensor

    def select(self, rows: Tensor) -> DominoState:
        """Return the state of the paths ``rows``."""
        return DominoState(self.recurrent.index_select(0, rows), self.projected)


@frozen(eq=False, repr=False)
class DominoCorrection(CorrectionHead):
    """``W2 · SiLU(W1 · [z_d ; s])`` with ``s`` a bias-free GRU over the root and the path's tokens.

    Attributes:
        embed: tokens ``[n]`` -> the target's embeddings ``[n, H]``.
        input_weight: ``[3G, H]``, gates in PyTorch's order: reset, update, new.
        state_weight: ``[3G, G]``.
        down: ``W1``, ``[E, H + G]``.
        up: ``W2``, ``[V, E]``.
        first_corrected: draft positions below this one keep their base logits.
    """

    embed: Callable[[Tensor], Tensor]
    input_weight: Tensor
    state_weight: Tensor
    down: Tensor
    up: Tensor
    first_corrected: int = 0

    @torch.no_grad()
    def begin(self, draft: Draft, root: Tensor) -> DominoState:
        """Return the state after the root, ``[1]`` int64."""
        if draft.hidden is None:
            raise ValueError("the draft has no hidden states; a Domino head reads them")
        hidden_size = draft.hidden.shape[1]
        zero = self.state_weight.new_zeros(1, self.state_weight.shape[1])
        return DominoState(self._step(zero, root), F.linear(draft.hidden, self.down[:, :hidden_size]))

    @torch.no_grad()
    def correct(self, draft: Draft, depth: int, state: Any, candidates: Tensor | None) -> Tensor:
        """Return ``[n, M]`` float32 to add to the base logits of ``candidates`` (``[M]``; ``None``: all ``V``)."""
        recurrent_part = self.down[:, -self.state_weight.shape[1] :]
        inner = F.silu(F.linear(state.recurrent, recurrent_part) + state.projected[depth])
        return F.linear(inner, self.up if candidates is None else self.up[candidates]).float()

    @torch.no_grad()
    def advance(self, draft: Draft, depth: int, state: Any, parent_rows: Tensor, tokens: Tensor) -> DominoState:
        """Return the states after ``tokens`` ``[m]``, each following the path ``parent_rows`` ``[m]``."""
        parents = state.recurrent.index_select(0, parent_rows)
        return DominoState(self._step(parents, tokens), state.projected)

    def _step(self, state: Tensor, tokens: Tensor) -> Tensor:
        from_input = F.linear(self.embed(tokens), self.input_weight).chunk(3, dim=-1)
        from_state = F.linear(state, self.state_weight).chunk(3, dim=-1)
        reset = torch.sigmoid(from_input[0] + from_state[0])
        update = torch.sigmoid(from_input[1] + from_state[1])
        new = torch.tanh(from_input[2] + reset * from_state[2])
        return (1 - update) * new + update * state
