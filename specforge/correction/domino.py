"""Domino's GRU correction (arXiv:2605.29707), the eager reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from attrs import evolve, field, frozen
from torch import Tensor
from torch.nn import functional as F

from specforge.correction.linear import LARGE_WEIGHT, column_major, project, project_at
from specforge.correction.slices import Slices, slice_product
from specforge.interfaces import CorrectionHead, Draft

_TABLE_CHUNK = 4096


@frozen(eq=False)
class DominoState:
    """The head's state on ``n`` paths.

    Attributes:
        recurrent: ``[n, G]`` the GRU's state after the root and the tokens of the path.
        projected: ``[D, E]`` ``W1_z · z_d`` of every draft position, the same for all paths.
        slices: the round's rows of ``W2``, where the candidates are known.
    """

    recurrent: Tensor
    projected: Tensor
    slices: Slices | None = None

    per_path: ClassVar[tuple[str, ...]] = ("recurrent",)
    per_depth: ClassVar[tuple[str, ...]] = ("projected",)

    def select(self, rows: Tensor) -> DominoState:
        """Return the state of the paths ``rows``."""
        return DominoState(self.recurrent.index_select(0, rows), self.projected, self.slices)


@frozen(eq=False, repr=False)
class DominoCorrection(CorrectionHead):
    """``W2 · SiLU(W1 · [z_d ; s])`` with ``s`` a bias-free GRU over the root and the path's tokens.

    Attributes:
        embed: tokens ``[n]`` -> the target's embeddings ``[n, H]``.
        input_weight: ``[3G, H]``, gates in PyTorch's order: reset, update, new.
        state_weight: ``[3G, G]``, of the dtype of recurrent states.
        down: ``W1``, ``[E, H + G]``, of the dtype of the products with it.
        up: ``W2``, ``[V, E]``.
        first_corrected: draft positions below this one keep their base logits.
        input_table: ``[V, 3G]``, every token's embedding times ``input_weight`` (see ``input_table``), which are then
            not read; ``None`` multiplies at every step.
        down_hidden: the columns of ``down`` that meet hidden states, ``[E, H]``.
        down_state: those that meet the recurrent state, ``[E, G]``.
    """

    embed: Callable[[Tensor], Tensor]
    input_weight: Tensor
    state_weight: Tensor
    down: Tensor
    up: Tensor
    first_corrected: int = 0
    input_table: Tensor | None = None
    down_hidden: Tensor = field(init=False)
    down_state: Tensor = field(init=False)

    @down_hidden.default
    def _hidden_columns(self) -> Tensor:
        # A clone of a part is dense and lies as the whole does.
        return self.down[:, : -self.state_weight.shape[1]].clone()

    @down_state.default
    def _state_columns(self) -> Tensor:
        return self.down[:, -self.state_weight.shape[1] :].clone()

    def tuned(self) -> DominoCorrection:
        """Widen small weights on the host, and lay them out by columns.

        The host sets up a 16-bit product for longer than it computes a wider one, and for a few rows it copies a
        weight that lies by rows.
        """
        weight = self.state_weight
        if weight.device.type != "cpu" or max(weight.numel(), self.down.numel()) >= LARGE_WEIGHT:
            return self
        return evolve(self, state_weight=column_major(weight.float()), down=column_major(self.down.float()))

    def begin(self, draft: Draft, root: Tensor) -> DominoState:
        """Return the state after the root, ``[1]`` int64."""
        if draft.hidden is None:
            raise ValueError("the draft has no hidden states; a Domino head reads them")
        return DominoState(self._first_step(root), project(draft.hidden, self.down_hidden))

    def prepare(self, state: Any, candidates: Tensor) -> DominoState:
        """Gather the rows of ``W2`` that belong to ``candidates`` ``[D, M]``."""
        return DominoState(state.recurrent, state.projected, Slices.of(self.up, candidates))

    def correct(self, draft: Draft, depth: int, state: Any, candidates: Tensor | None) -> Tensor:
        """Return ``[n, M]`` float32 to add to the base logits of ``candidates`` (``[M]``; ``None``: all ``V``)."""
        inner = F.silu(project(state.recurrent, self.down_state) + state.projected[depth])
        return slice_product(inner, self.up, state.slices, depth, candidates)

    def advance(self, draft: Draft, depth: int, state: Any, parent_rows: Tensor, tokens: Tensor) -> DominoState:
        """Return the states after ``tokens`` ``[m]``, each following the path ``parent_rows`` ``[m]``."""
        recurrent = self._step(state.recurrent, parent_rows, tokens)
        return DominoState(recurrent, state.projected, state.slices)

    def from_input(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of ``tokens`` ``[m]`` times ``input_weight``, ``[m, 3G]``, in the GRU's dtype."""
        if self.input_table is None:
            found = project_at(self.embed, tokens, self.input_weight)
        else:
            found = self.input_table.index_select(0, tokens)
        return found.to(self.state_weight.dtype)

    def _first_step(self, tokens: Tensor) -> Tensor:
        """Run the GRU over ``tokens`` from the zero state, of which every product is zero."""
        _, update, new = self.from_input(tokens).chunk(3, dim=-1)
        return torch.tanh(new) * torch.sigmoid(-update)

    def _step(self, states: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
        """Run the GRU over ``tokens`` ``[m]``, each from row ``rows`` ``[m]`` of ``states``."""
        from_input = self.from_input(tokens)
        from_state = project_at(lambda distinct: states.index_select(0, distinct), rows, self.state_weight)
        gates = 2 * states.shape[1]
        reset, update = torch.sigmoid(from_input[:, :gates] + from_state[:, :gates]).chunk(2, dim=-1)
        new = torch.tanh(torch.addcmul(from_input[:, gates:], reset, from_state[:, gates:]))
        return torch.lerp(new, states.index_select(0, rows), update)


@torch.no_grad()
def input_table(embed: Callable[[Tensor], Tensor], input_weight: Tensor, vocab_size: int) -> Tensor:
    """Return ``[V, 3G]``: every token's embedding times ``input_weight`` ``[3G, H]``, in its dtype, made in chunks."""
    table = input_weight.new_empty(vocab_size, input_weight.shape[0])
    for tokens in torch.arange(vocab_size, device=input_weight.device).split(_TABLE_CHUNK):
        table[tokens[0] : tokens[-1] + 1] = F.linear(embed(tokens), input_weight)
    return table
