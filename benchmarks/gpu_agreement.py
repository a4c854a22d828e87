"""How far the Triton kernels are from the eager heads, in log-probabilities and in trees."""

from __future__ import annotations

import torch
from attrs import evolve, frozen
from gpu_builds import paths
from gpu_measuring import Row, judged
from random_heads import MARKOV_KINDS, Shape, any_round, random_domino, random_draft, random_markov
from torch import Tensor

from specforge.correction.backends import run_on
from specforge.interfaces import CorrectionHead, Draft, TreeBuilder
from specforge.strategies.conditional import Conditional

HEADS = ("domino", *MARKOV_KINDS)
TOLERANCE = 1e-5
"""In float32, times 1 plus the absolute value of what is eager."""


@frozen
class Comparison:
    """Triton against eager on one kind of head.

    Attributes:
        kind: one of ``HEADS``.
        shape: its sizes.
        candidates: ``M``.
        nodes: so many are advanced and scored together.
        rounds: different drafts.
        builder: builds the trees that are compared.
        device: where the weights are.
    """

    kind: str
    shape: Shape
    candidates: int
    nodes: int
    rounds: int
    builder: TreeBuilder
    device: torch.device

    def row(self, case: str) -> Row:
        """Return how far apart log-probabilities are, and in how many rounds trees are the same."""
        row = Row("agreement", case, "triton", "")
        worst, same = self.measure(torch.float32)
        row.measured = f"{worst:.1e} of 1 + abs(eager)"
        row.aims.append(judged(f"<= {TOLERANCE:.0e}", worst <= TOLERANCE))
        row.details.append(f"float32: same tree in {same} of {self.rounds}")
        worst, same = self.measure(torch.bfloat16)
        row.details.append(f"bfloat16: same tree in {same} of {self.rounds}, apart by {worst:.1e} at most")
        return row

    def measure(self, dtype: torch.dtype) -> tuple[float, int]:
        """Return the largest difference relative to 1 plus the eager value, and how many trees are the same."""
        eager = self.head(dtype)
        heads = (eager, run_on("triton", eager, self.device))
        scorer, round, worst, same = Conditional(self.candidates), any_round(self.device), 0.0, 0
        for seed in range(self.rounds):
            draft = random_draft(self.shape, dtype, eager, self.device, seed)
            drafts = [evolve(draft, correction=head) for head in heads]
            for one, two in zip(*(log_probs_by_token(draft, scorer, self.nodes) for draft in drafts), strict=True):
                worst = max(worst, float(((two - one).abs() / (1 + one.abs())).max()))
            one, two = (paths(self.builder.build(draft, scorer, round)) for draft in drafts)
            same += one == two
        return worst, same

    def head(self, dtype: torch.dtype) -> CorrectionHead:
        """Return a random eager head."""
        if self.kind == "domino":
            return random_domino(self.shape, dtype, self.device, table=True)
        return random_markov(self.kind, self.shape, dtype, self.device)


def log_probs_by_token(draft: Draft, scorer: Conditional, nodes: int) -> list[Tensor]:
    """Return ``[n, M]`` log-probabilities below the root, ``nodes`` of its children and as many of theirs, by token."""
    assert draft.hidden is not None
    device = draft.hidden.device
    tokens = torch.arange(nodes, device=device)
    state, found = scorer.begin(draft, any_round(device)), []
    for depth, parents in enumerate([torch.zeros_like(tokens), tokens.flip(0), None]):
        row = scorer.expand(draft, depth, state)
        found.append(row.log_probs.gather(-1, row.tokens.sort(dim=-1).indices))
        if parents is not None:
            state = scorer.advance(draft, depth, state, parents, tokens)
    return found
