"""Random correction heads of every kind, drafts for them, and how far apart two trees are."""

from __future__ import annotations

import torch
from attrs import evolve, frozen
from torch import Tensor
from torch.nn import functional as F

from specforge.correction.domino import DominoCorrection, input_table
from specforge.correction.markov import (
    Affine,
    GatedMarkovCorrection,
    MarkovCorrection,
    RecurrentMarkovCorrection,
)
from specforge.interfaces import CorrectionHead, Draft, Round
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.tree import DraftTree

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KINDS = ("domino", "domino with a table", "vanilla", "gated", "rnn")


@frozen
class Problem:
    """A random head and a draft of ``depth`` positions for it."""

    kind: str = "domino"
    dtype: torch.dtype = torch.float32
    hidden: int = 20
    state: int = 33
    inner: int = 17
    vocab: int = 90
    candidates: int = 13
    first_corrected: int = 0
    temperature: float = 1.0
    depth: int = 3
    seed: int = 0

    def head(self) -> CorrectionHead:
        generator = torch.Generator().manual_seed(self.seed)

        def tensor(*shape: int) -> Tensor:
            return (torch.randn(*shape, generator=generator) * shape[-1] ** -0.5).to(DEVICE, self.dtype)

        rank, joint = self.inner, 2 * self.inner + self.hidden
        if self.kind.startswith("domino"):
            embedding = tensor(self.vocab, self.hidden) * self.hidden**0.5
            head = DominoCorrection(
                lambda tokens: F.embedding(tokens, embedding),
                tensor(3 * self.state, self.hidden),
                tensor(3 * self.state, self.state),
                tensor(self.inner, self.hidden + self.state),
                3 * tensor(self.vocab, self.inner),
                self.first_corrected,
            )
            table = input_table(head.embed, head.input_weight, self.vocab)
            return evolve(head, input_table=table if "table" in self.kind else None)
        codes, up = tensor(self.vocab, rank) * rank**0.5, 3 * tensor(self.vocab, rank)
        if self.kind == "gated":
            return GatedMarkovCorrection(codes, up, Affine(tensor(rank, self.hidden + rank), tensor(rank)))
        if self.kind == "rnn":
            return RecurrentMarkovCorrection(codes, up, Affine(tensor(3 * rank, joint), tensor(3 * rank)))
        return MarkovCorrection(codes, up)

    def draft(self, head: CorrectionHead, number: int = 0) -> Draft:
        """Return a draft, another one for each ``number``."""
        generator = torch.Generator().manual_seed(self.seed + 1 + 1000 * number)
        hidden = torch.randn(self.depth, self.hidden, generator=generator).to(DEVICE, self.dtype)
        logits = 2 * torch.randn(self.depth, self.vocab, generator=generator)
        return Draft(self.depth, hidden, logits.to(DEVICE), head)


def round_of(root: int = 3, max_depth: int = 99, device: torch.device = DEVICE) -> Round:
    return Round(torch.tensor([1, root], device=device), max_depth, SamplingParams(), KeyedUniforms(0))


def scores_by_path(tree: DraftTree) -> dict[tuple[int, ...], float]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True):
        paths.append(() if parent < 0 else (*paths[parent], token))
    return dict(zip(paths, tree.log_probs.tolist(), strict=True))


def deciding_gap(one: DraftTree, other: DraftTree) -> float:
    """Return how far apart in score the nodes are that only one of two trees has; 0 for the same nodes."""
    first, second = scores_by_path(one), scores_by_path(other)
    only = [first[path] for path in first.keys() - second.keys()]
    only += [second[path] for path in second.keys() - first.keys()]
    return max(only) - min(only) if only else 0.0


def assert_identical(one: DraftTree, other: DraftTree) -> None:
    """Check that two trees are the same, bit for bit and node for node."""
    assert one.token_ids.tolist() == other.token_ids.tolist()
    assert one.parents.tolist() == other.parents.tolist()
    assert one.log_probs.tobytes() == other.log_probs.tobytes()
