"""Trees whose nodes are drawn from the draft distribution, with what rejection verification must know of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from specforge.interfaces import Candidates, Draft, Round, Scorer, State
from specforge.sampling import KeyedUniforms, draw
from specforge.tree import DraftTree, Proposal


def draw_tree(draft: Draft, scorer: Scorer, round: Round, branching: Sequence[int], temperature: float) -> DraftTree:
    """Draw ``branching[d]`` children, without replacement, for every node at depth ``d``.

    A node whose row holds fewer tokens with mass than that gets all of them. The number of children is a function of
    the node's path alone, never of the children drawn, so the shape below a path is fixed before anything below it is
    drawn; this is what keeps rejection verification lossless.

    Cousins are drawn with the same uniforms, keyed by position and rank among siblings. That is sound: a walk meets
    the children of one node a depth, and which node that is does not depend on the uniforms of the next position.

    Args:
        draft: the round's draft.
        scorer: q is the softmax of a row's candidates at ``temperature``.
        round: the round; the tree goes no deeper than ``min(draft.depth, round.max_depth)``.
        branching: children a node, by depth.
        temperature: of the draft distribution, above 0.
    """
    growing = _Growing.from_root(round.root)
    level, state = [0], None
    for depth, wanted in enumerate(branching[: min(draft.depth, round.max_depth)]):
        state = scorer.begin(draft, round) if depth == 0 else _advance(growing, level, draft, scorer, depth - 1, state)
        candidates = scorer.expand(draft, depth, state)
        level = growing.draw_level(level, candidates, wanted, temperature, round.draws, round.root_position + depth + 1)
        if not level:
            break
    return growing.tree()


def _advance(
    growing: _Growing, level: list[int], draft: Draft, scorer: Scorer, depth: int, state: State | None
) -> State:
    """Return one state row a node of ``level``, or one in all where the path does not matter."""
    assert state is not None
    kept = level[:1] if scorer.path_independent else level
    device = growing.tokens[-1].device
    parent_rows = torch.tensor([growing.source_rows[node] for node in kept], device=device)
    return scorer.advance(
        draft, depth, state, parent_rows, torch.tensor([growing.token_ids[n] for n in kept], device=device)
    )


@define(eq=False)
class _Growing:
    """A tree in the making, node by node, and the rows its nodes were drawn from."""

    token_ids: list[int]
    parents: list[int]
    log_probs: list[np.float32]
    proposal_rows: list[int]
    source_rows: list[int]
    tokens: list[Tensor] = field(factory=list)
    probabilities: list[Tensor] = field(factory=list)

    @classmethod
    def from_root(cls, root: int) -> _Growing:
        return cls([root], [-1], [np.float32(0)], [-1], [0])

    def draw_level(
        self,
        level: list[int],
        candidates: Candidates,
        wanted: int,
        temperature: float,
        draws: KeyedUniforms,
        position: int,
    ) -> list[int]:
        """Draw the children of ``level``, whose rows ``candidates`` holds in order, and return them."""
        q = draft_distribution(candidates, temperature)
        first_row = sum(block.shape[0] for block in self.tokens)
        self.tokens.append(candidates.tokens)
        self.probabilities.append(q)
        children: list[int] = []
        for index, node in enumerate(level):
            row = min(index, q.shape[0] - 1)
            drawn = draw_without_replacement(q[row], wanted, draws, position)
            if drawn:
                self.proposal_rows[node] = first_row + row
            for column in drawn:
                children.append(len(self.token_ids))
                self.token_ids.append(int(candidates.tokens[row, column]))
                self.parents.append(node)
                self.log_probs.append(
                    self.log_probs[node] + min(np.float32(0), np.float32(candidates.log_probs[row, column]))
                )
                self.proposal_rows.append(-1)
                self.source_rows.append(row)
        return children

    def tree(self) -> DraftTree:
        """Return the tree with its proposal."""
        proposal = (
            Proposal(_stack(self.tokens), _stack(self.probabilities), self.proposal_rows) if self.tokens else None
        )
        return DraftTree(self.token_ids, self.parents, log_probs=self.log_probs, proposal=proposal)


def _stack(blocks: Sequence[Tensor]) -> Tensor:
    """Put blocks of rows on top of each other, padded on the right with zeros."""
    width = max(block.shape[1] for block in blocks)
    return torch.cat([torch.nn.functional.pad(block, (0, width - block.shape[1])) for block in blocks])


def draft_distribution(candidates: Candidates, temperature: float) -> Tensor:
    """Return q, ``[n, K]`` float64: the softmax of each row's candidates at ``temperature``, 0 where there is none."""
    usable = candidates.log_probs > float("-inf")
    scores = (candidates.log_probs.double() / temperature).masked_fill(~usable, float("-inf"))
    return torch.where(usable, torch.softmax(scores, dim=-1), 0.0)


def draw_without_replacement(q: Tensor, count: int, draws: KeyedUniforms, position: int) -> list[int]:
    """Draw ``count`` columns of ``q`` ``[K]`` in turn, each from what is left; fewer when the mass runs out."""
    left = q.clone()
    drawn: list[int] = []
    for rank in range(min(count, int(torch.count_nonzero(q)))):
        drawn.append(draw(left, draws(position, "draft", rank)))
        left[drawn[-1]] = 0.0
    return drawn
