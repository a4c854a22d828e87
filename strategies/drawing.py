"""Trees whose nodes are drawn from the draft distribution, with what rejection verification must know of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from attrs import define, field
from torch import Tensor

from specforge.interfaces import Candidates, Draft, Round, Scorer
from specforge.sampling import draw_rows
from specforge.tree import DraftTree, Proposal


def draw_tree(draft: Draft, scorer: Scorer, round: Round, branching: Sequence[int], temperature: float) -> DraftTree:
    """Draw ``branching[d]`` children, without replacement, for every node at depth ``d``.

    A node whose row holds fewer tokens with mass than that gets all of them. The number of children is a function of
    the node's path alone, never of the children drawn, so the shape below a path is fixed before anything below it is
    drawn; this is what keeps rejection verification lossless.

    Cousins are drawn with the same uniforms, keyed by position and rank among siblings. That is sound: a walk meets
    the children of one node a depth, and which node that is does not depend on the uniforms of the next position. Nor
    do they bias a later round that draws at the same position again: nothing decided in between has looked at them.

    Args:
        draft: the round's draft.
        scorer: q is the softmax of a row's candidates at ``temperature``.
        round: the round; the tree goes no deeper than ``min(draft.depth, round.max_depth)``.
        branching: children a node, by depth.
        temperature: of the draft distribution, above 0.
    """
    growing = _Growing([round.root], [-1], [np.float32(0)], [-1])
    level, rows, state = [0], [0], None
    for depth, wanted in enumerate(branching[: min(draft.depth, round.max_depth)]):
        if state is None:
            state = scorer.begin(draft, round)
        else:
            # One state row a node, or one for all of them where the path does not matter.
            kept = slice(0, 1 if scorer.path_independent else None)
            tokens = round.history.new_tensor([growing.token_ids[node] for node in level[kept]])
            state = scorer.advance(draft, depth - 1, state, round.history.new_tensor(rows[kept]), tokens)
        candidates = scorer.expand(draft, depth, state)
        q = draft_distribution(candidates, temperature)
        uniforms = [round.draws(round.root_position + depth + 1, "draft", rank) for rank in range(wanted)]
        level, rows = growing.add_level(level, candidates, q, draw_without_replacement(q, uniforms))
        if not level:
            break
    return growing.tree()


def draft_distribution(candidates: Candidates, temperature: float) -> Tensor:
    """Return q, ``[n, K]`` float64: the softmax of each row's candidates at ``temperature``, 0 where there is none."""
    usable = candidates.log_probs > float("-inf")
    scores = (candidates.log_probs.double() / temperature).masked_fill(~usable, float("-inf"))
    return torch.where(usable, torch.softmax(scores, dim=-1), 0.0)


def draw_without_replacement(q: Tensor, uniforms: Sequence[float]) -> Tensor:
    """Draw columns of each row of ``q`` ``[n, K]`` in turn, each from what is left of the row.

    Returns:
        ``[n, m]`` int64, ``m`` at most ``len(uniforms)``; ``K`` once a row's mass has run out.
    """
    count = q.shape[1]
    left = torch.nn.functional.pad(q, (0, 1))
    drawn = [torch.empty(q.shape[0], 0, dtype=torch.int64, device=q.device)]
    for uniform in uniforms[:count]:
        drawn.append(draw_rows(left[:, :count], uniform)[:, None])
        left.scatter_(1, drawn[-1], 0.0)
    return torch.cat(drawn, dim=1)


@define(eq=False)
class _Growing:
    """A tree in the making, and the rows that its nodes' children were drawn from."""

    token_ids: list[int]
    parents: list[int]
    log_probs: list[np.float32]
    proposal_rows: list[int]
    blocks: list[tuple[Tensor, Tensor]] = field(factory=list)

    def add_level(
        self, level: list[int], candidates: Candidates, q: Tensor, drawn: Tensor
    ) -> tuple[list[int], list[int]]:
        """Add the children of ``level`` and return them with the row each was drawn from; one row may serve all."""
        first_row = sum(tokens.shape[0] for tokens, _ in self.blocks)
        self.blocks.append((candidates.tokens, q))
        inside = drawn.clamp(max=max(0, q.shape[1] - 1))
        tokens = candidates.tokens.gather(1, inside).tolist()
        log_probs = candidates.log_probs.gather(1, inside).float().clamp(max=0.0).cpu().numpy()
        counts = (drawn < q.shape[1]).sum(dim=1).tolist()
        children: list[int] = []
        rows: list[int] = []
        for index, node in enumerate(level):
            row = min(index, len(counts) - 1)
            if counts[row]:
                self.proposal_rows[node] = first_row + row
            for rank in range(counts[row]):
                children.append(len(self.token_ids))
                rows.append(row)
                self.token_ids.append(tokens[row][rank])
                self.parents.append(node)
                self.log_probs.append(self.log_probs[node] + log_probs[row, rank])
                self.proposal_rows.append(-1)
        return children, rows

    def tree(self) -> DraftTree:
        """Return the tree with its proposal."""
        if len(self.token_ids) == 1:
            return DraftTree.root_only(self.token_ids[0])
        tokens, q = (_stack(blocks) for blocks in zip(*self.blocks, strict=True))
        return DraftTree(
            self.token_ids, self.parents, log_probs=self.log_probs, proposal=Proposal(tokens, q, self.proposal_rows)
        )


def _stack(blocks: Sequence[Tensor]) -> Tensor:
    """Put blocks of rows on top of each other, padded on the right with zeros."""
    width = max(block.shape[1] for block in blocks)
    return torch.cat(
        [b if b.shape[1] == width else torch.nn.functional.pad(b, (0, width - b.shape[1])) for b in blocks]
    )
