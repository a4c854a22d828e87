"""Domino: DFlash's block, corrected token by token by a small causal head (arXiv:2605.29707)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from attrs import define
from torch import Tensor

from specforge.checkpoints import DominoHeadConfig
from specforge.correction.domino import DominoCorrection
from specforge.drafters.block import BlockDrafter
from specforge.drafters.model import DraftModel
from specforge.drafters.trainable import TrainableDraft
from specforge.interfaces import BASE_LOGITS, CORRECTION_HEAD, HIDDEN, Capabilities
from specforge.registry import register


@register.drafter("domino")
@define(eq=False, slots=False)
class DominoDrafter(BlockDrafter):
    """Domino: a DFlash block whose logits a GRU corrects along the realised path."""

    kind: ClassVar[str] = "domino"
    training_model: ClassVar[type[TrainableDraft]] = TrainableDraft
    gives: ClassVar[Capabilities] = frozenset({HIDDEN, BASE_LOGITS, CORRECTION_HEAD})
    default_scorer: ClassVar[str] = "conditional"

    def make_correction(self, model: DraftModel, embed: Callable[[Tensor], Tensor]) -> DominoCorrection:
        """Return the GRU head over the target's embeddings."""
        head = model.config.head
        assert isinstance(head, DominoHeadConfig)
        return DominoCorrection(
            embed,
            input_weight=model.get_parameter("prefix_gru.weight_ih_l0"),
            state_weight=model.get_parameter("prefix_gru.weight_hh_l0"),
            down=model.get_parameter("embed_proj.0.weight"),
            up=model.get_parameter("embed_proj.2.weight"),
            first_corrected=head.first_corrected,
        )
