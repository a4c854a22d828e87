"""DSpark: a DFlash block that the anchor row opens, corrected by a Markov head (arXiv:2607.05147)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import attrs
import torch
from attrs import define, field
from torch import Tensor

from specforge.checkpoints import MarkovHeadConfig, target_ids
from specforge.correction.backends import AUTO, check_backend_name, run_on
from specforge.correction.markov import Affine, GatedMarkovCorrection, MarkovCorrection, RecurrentMarkovCorrection
from specforge.drafters.block import BlockDrafter
from specforge.drafters.model import DraftModel
from specforge.drafters.trainable import TrainableDraft
from specforge.errors import ConfigError
from specforge.interfaces import CONFIDENCE, CORRECTION_HEAD, Capabilities, CorrectionHead, Draft
from specforge.registry import register


@register.drafter("dspark")
@define(eq=False, slots=False)
class DSparkDrafter(BlockDrafter):
    """DSpark: a block whose first row predicts too, corrected by a head that knows the previous token.

    Attributes:
        confidence_threshold: cut the block before the first position whose confidence along the greedy corrected
            chain is below this, in [0, 1]; 0 gives the confidences without cutting. ``None`` does not run the
            confidence head.
        correction: the backend that runs the head; ``"auto"`` takes the fastest that the device has.

    Raises:
        ConfigError: when the threshold is out of range, the checkpoint has no confidence head, or the backend is
            unknown.
    """

    confidence_threshold: float | None = field(default=None, kw_only=True)
    correction: str = field(default=AUTO, kw_only=True)

    kind: ClassVar[str] = "dspark"
    training_model: ClassVar[type[TrainableDraft]] = TrainableDraft
    default_scorer: ClassVar[str] = "conditional"
    may_give: ClassVar[Capabilities] = frozenset({CORRECTION_HEAD, CONFIDENCE})

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_backend_name(self.correction)
        threshold = self.confidence_threshold
        if threshold is None:
            return
        if not 0.0 <= threshold <= 1.0:
            raise ConfigError(f"confidence_threshold is {threshold!r}; it must be in [0, 1]")
        if self.opened.config.confidence is None:
            raise ConfigError(f"confidence_threshold is {threshold!r}, but {self.checkpoint} has no confidence head")

    def given(self) -> Capabilities:
        """Return hidden states and base logits, the correction where there is one, confidences where asked for."""
        head = {CORRECTION_HEAD} if self.opened.config.head is not None else set()
        return self.gives | head | ({CONFIDENCE} if self.confidence_threshold is not None else set())

    def make_correction(self, model: DraftModel, embed: Callable[[Tensor], Tensor]) -> CorrectionHead | None:
        """Return the head of the checkpoint's variant, or ``None`` at rank 0."""
        head = model.config.head
        if not isinstance(head, MarkovHeadConfig):
            return None
        eager = _eager_head(model, head)
        return run_on(self.correction, eager, eager.codes.device)

    def finish(self, draft: Draft, root: Tensor) -> Draft:
        """Add the confidences and cut the draft where they fall under the threshold."""
        if self.confidence_threshold is None:
            return draft
        confidence = chain_confidence(self.bound.model, draft, root)
        low = (confidence < self.confidence_threshold).nonzero()
        depth = int(low[0]) if len(low) else draft.depth
        hidden, base_logits = given(draft)
        return attrs.evolve(
            draft, depth=depth, hidden=hidden[:depth], base_logits=base_logits[:depth], confidence=confidence[:depth]
        )


def chain_confidence(model: DraftModel, draft: Draft, root: Tensor) -> Tensor:
    """Return ``[D]`` float32, the confidence head along the greedy corrected chain behind ``root`` ``[1]``."""
    inputs, _ = given(draft)
    config = model.config.confidence
    if config is not None and config.with_markov and draft.correction is not None:
        previous = _previous_tokens(draft, draft.correction, root)
        inputs = torch.cat([inputs, model.markov_head.markov_w1(previous)], dim=-1)
    return torch.sigmoid(model.confidence_head.proj(inputs)[:, 0].float())


def _previous_tokens(draft: Draft, head: CorrectionHead, root: Tensor) -> Tensor:
    _, base_logits = given(draft)
    tokens, state, row = [root], head.begin(draft, root), root.new_zeros(1)
    for depth in range(draft.depth - 1):
        logits = base_logits[depth] + head.correct(draft, depth, state, None)[0]
        tokens.append(logits.argmax()[None])
        state = head.advance(draft, depth, state, row, tokens[-1])
    return torch.cat(tokens)


def given(draft: Draft) -> tuple[Tensor, Tensor]:
    """Return a block draft's hidden states and base logits, which it always has."""
    assert draft.hidden is not None
    assert draft.base_logits is not None
    return draft.hidden, draft.base_logits


def _eager_head(model: DraftModel, head: MarkovHeadConfig) -> MarkovCorrection:
    codes, up = model.markov_head.markov_w1.weight, _full_rows(model)
    if head.variant == "gated":
        gate = model.markov_head.gate_proj
        return GatedMarkovCorrection(codes, up, Affine(gate.weight, gate.bias))
    if head.variant == "rnn":
        joint = model.markov_head.joint_proj
        return RecurrentMarkovCorrection(codes, up, Affine(joint.weight, joint.bias))
    return MarkovCorrection(codes, up)


def _full_rows(model: DraftModel) -> Tensor:
    up = model.markov_head.markov_w2.weight
    if model.config.draft_vocab_size is None:
        return up
    full = up.new_zeros(model.config.vocab_size, up.shape[1])
    full[target_ids(model.get_buffer("d2t"))] = up
    return full
