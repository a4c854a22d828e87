"""No drafting: the scorer and builder of plain decoding."""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from specforge.interfaces import NOTHING, Candidates, Draft, NoState, Round, Scorer, State, TreeBuilder
from specforge.registry import register
from specforge.tree import DraftTree


@register.scorer("none")
@frozen(eq=False)
class NoScores(Scorer):
    """Knows no candidates; for plain decoding."""

    gives = NOTHING

    def begin(self, draft: Draft, round: Round) -> State:
        """Return the empty state."""
        return NoState()

    def expand(self, draft: Draft, depth: int, state: NoState) -> Candidates:  # type: ignore[override]
        """Return rows without entries."""
        return Candidates(torch.empty(state.rows, 0, dtype=torch.int64), torch.empty(state.rows, 0))

    def advance(self, draft: Draft, depth: int, state: State, parent_rows: Tensor, tokens: Tensor) -> State:
        """Return the empty state."""
        return state.select(parent_rows)


@register.builder("none")
@frozen(eq=False)
class RootOnly(TreeBuilder):
    """Drafts nothing: verifying its tree is a plain decoding step."""

    needs = NOTHING

    def build(self, draft: Draft, scorer: Scorer, round: Round) -> DraftTree:
        """Return the root alone."""
        return DraftTree.root_only(round.root)
