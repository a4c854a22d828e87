"""The scorer of retrieval drafters: how often each continuation was seen, given the path."""

from __future__ import annotations

import torch
from attrs import evolve, frozen
from torch import Tensor

from specforge.continuations import ContinuationTrie
from specforge.interfaces import CONTINUATIONS, Candidates, Draft, Round, Scorer
from specforge.registry import register


@frozen(eq=False)
class TrieState:
    """The trie node that each path has reached, and how candidate rows are laid out."""

    nodes: tuple[int, ...]
    width: int
    device: torch.device

    def select(self, rows: Tensor) -> TrieState:
        """Return the state of the paths ``rows``."""
        return evolve(self, nodes=tuple(self.nodes[row] for row in rows.tolist()))


@register.scorer("trie")
@frozen(eq=False)
class Trie(Scorer):
    """Scores a token by its share of the continuations seen after the path. Needs a drafter that retrieves text.

    Rows have one width throughout a draft; entries past a node's children are ``-inf``.
    """

    needs = frozenset({CONTINUATIONS})

    def begin(self, draft: Draft, round: Round) -> TrieState:
        """Return the state of the root."""
        width = max(1, _trie(draft).width)
        if round.max_children is not None:
            width = min(width, round.max_children)
        return TrieState((0,), width, round.history.device)

    def expand(self, draft: Draft, depth: int, state: TrieState) -> Candidates:  # type: ignore[override]
        """Return the continuations at each node of ``state``."""
        trie = _trie(draft)
        rows = [trie.ranked(node)[: state.width] for node in state.nodes]
        padded = [row + [(0, float("-inf"))] * (state.width - len(row)) for row in rows]
        tokens = [[token for token, _ in row] for row in padded]
        log_probs = [[log_prob for _, log_prob in row] for row in padded]
        return Candidates(
            torch.tensor(tokens, dtype=torch.int64, device=state.device),
            torch.tensor(log_probs, dtype=torch.float32, device=state.device),
        )

    def advance(  # type: ignore[override]
        self, draft: Draft, depth: int, state: TrieState, parent_rows: Tensor, tokens: Tensor
    ) -> TrieState:
        """Step down the trie."""
        trie = _trie(draft)
        steps = zip(parent_rows.tolist(), tokens.tolist(), strict=True)
        return evolve(state, nodes=tuple(trie.child(state.nodes[row], token) for row, token in steps))


def _trie(draft: Draft) -> ContinuationTrie:
    if not isinstance(draft.payload, ContinuationTrie):
        raise TypeError(f"the draft's payload is {type(draft.payload).__name__}, not a ContinuationTrie")
    return draft.payload
