"""One path: the best candidate at each depth, or a draw."""

from __future__ import annotations

import numpy as np
import torch
from attrs import frozen

from specforge.checks import flag, number, whole
from specforge.errors import ConfigError, IncompatiblePartsError
from specforge.interfaces import (
    CONFIDENCE,
    PROPOSAL,
    SHAPE_BEFORE_DRAWING,
    Capabilities,
    Draft,
    Round,
    Scorer,
    TreeBuilder,
)
from specforge.registry import register
from specforge.strategies.drawing import draw_tree
from specforge.tree import DraftTree


@register.builder("chain")
@frozen(eq=False)
class Chain(TreeBuilder):
    """Drafts one path: the best candidate at each depth, or with ``sample`` a draw, whose q is kept for rejection.

    Attributes:
        length: the most draft tokens; ``None`` for as many as the draft speaks of.
        sample: draw from the scorer's candidates instead of taking the best.
        temperature: of the draft distribution that ``sample`` draws from.
        min_confidence: end the chain before the first position that the drafter is less confident of than this;
            needs a drafter with a confidence head.

    Raises:
        ConfigError: naming the option, its value and what would be right.
    """

    may_give = frozenset({PROPOSAL, SHAPE_BEFORE_DRAWING})

    length: int | None = None
    sample: bool = False
    temperature: float = 1.0
    min_confidence: float | None = None

    def __attrs_post_init__(self) -> None:
        if self.length is not None:
            whole(self.length, "length", 1)
        flag(self.sample, "sample")
        if number(self.temperature, "temperature of the draft") <= 0.0:
            raise ConfigError(f"temperature of the draft is {self.temperature!r}; it must be above 0")
        if self.temperature != 1.0 and not self.sample:
            raise ConfigError(f"temperature of the draft is {self.temperature!r} without sample=True; nothing is drawn")
        if self.min_confidence is not None and not 0.0 <= number(self.min_confidence, "min_confidence") <= 1.0:
            raise ConfigError(f"min_confidence is {self.min_confidence!r}; it must be in [0, 1], or None")

    def given(self) -> Capabilities:
        """Return what a drawn chain gives for rejection; a greedy one gives nothing."""
        return self.may_give if self.sample else self.gives

    def needed(self) -> Capabilities:
        """Return the scorer, and the confidence where the chain is cut by it."""
        return self.needs if self.min_confidence is None else self.needs | {CONFIDENCE}

    def build(self, draft: Draft, scorer: Scorer, round: Round) -> DraftTree:
        """Return the path; it ends early where the best candidate is none."""
        length = self._length(draft, round)
        if self.sample:
            return draw_tree(draft, scorer, round, (1,) * length, self.temperature)
        return _best_path(draft, scorer, round.limited(1), length)

    def _length(self, draft: Draft, round: Round) -> int:
        length = min(draft.depth, round.max_depth)
        if self.length is not None:
            length = min(length, self.length)
        if self.min_confidence is None or length == 0:
            return length
        if draft.confidence is None:
            raise IncompatiblePartsError(f"min_confidence is {self.min_confidence}, but the draft has no confidence")
        unsure = (draft.confidence[:length] < self.min_confidence).tolist()
        return unsure.index(True) if True in unsure else length


def _best_path(draft: Draft, scorer: Scorer, round: Round, length: int) -> DraftTree:
    if length == 0:
        return DraftTree.root_only(round.root)
    state = scorer.begin(draft, round)
    only = torch.zeros(1, dtype=torch.int64, device=round.history.device)
    tokens, log_probs = [], []
    for depth in range(length):
        candidates = scorer.expand(draft, depth, state)
        if candidates.tokens.shape[1] == 0:
            break
        tokens.append(candidates.tokens[:, 0])
        log_probs.append(candidates.log_probs[:, 0])
        if depth + 1 < length:
            state = scorer.advance(draft, depth, state, only, tokens[-1])
    if not tokens:
        return DraftTree.root_only(round.root)
    # The one copy to the host: a device is not made to wait at every depth to learn whether the path has ended.
    edges = torch.cat(log_probs).float().cpu().numpy()
    ended = np.flatnonzero(~(edges > -np.inf))
    count = int(ended[0]) if len(ended) else len(edges)
    scores = np.add.accumulate(np.minimum(edges[:count], np.float32(0)), dtype=np.float32)
    return DraftTree.from_chain(
        [round.root, *torch.cat(tokens)[:count].tolist()], np.concatenate([np.zeros(1, np.float32), scores])
    )
