"""DFlash: a block of tokens from one bidirectional pass, every position on its own (arXiv:2602.06036)."""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from specforge.checkpoints import Checkpoint
from specforge.checks import flag
from specforge.drafters.block import BlockDrafter
from specforge.drafters.trainable import TrainableDraft
from specforge.errors import CheckpointError
from specforge.registry import register


@register.drafter("dflash")
@define(eq=False, slots=False)
class DFlashDrafter(BlockDrafter):
    """DFlash: one bidirectional pass drafts a block, each position independent of the others.

    Attributes:
        ignore_head: draft with the backbone of a checkpoint that has a correction head, without that head.
    """

    ignore_head: bool = field(default=False, kw_only=True)

    kind: ClassVar[str] = "dflash"

    def __attrs_post_init__(self) -> None:
        flag(self.ignore_head, "ignore_head")
        super().__attrs_post_init__()

    training_model: ClassVar[type[TrainableDraft]] = TrainableDraft

    def check_kind(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint with a head, unless asked to ignore it.

        Raises:
            CheckpointError: naming both ways to use the checkpoint.
        """
        kind = checkpoint.config.kind
        if kind != self.kind and not self.ignore_head:
            raise CheckpointError(
                f"{self.checkpoint} is a {kind} drafter; use drafter {kind!r}, "
                "or drafter 'dflash' with ignore_head=True to draft with its backbone alone"
            )
