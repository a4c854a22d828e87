"""Domino: DFlash's block, corrected token by token by a small causal head (arXiv:2605.29707)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar

from attrs import Attribute, define, field
from torch import Tensor

from specforge.checkpoints import DominoHeadConfig
from specforge.checks import number
from specforge.correction.backends import AUTO, check_backend_name, run_on
from specforge.correction.domino import DominoCorrection, input_table
from specforge.drafters.block import BlockDrafter
from specforge.drafters.model import DraftModel
from specforge.drafters.trainable import TrainableDraft
from specforge.errors import ConfigError
from specforge.interfaces import BASE_LOGITS, CORRECTION_HEAD, HIDDEN, Capabilities, CorrectionHead
from specforge.registry import register

logger = logging.getLogger("specforge")

TABLE_MIB_ON_CPU = 256.0
TABLE_MIB_ELSEWHERE = 2048.0
"""Room for the published heads, of 890 MiB; next to the targets that they are for, that is little."""


@register.drafter("domino")
@define(eq=False, slots=False)
class DominoDrafter(BlockDrafter):
    """Domino: a DFlash block whose logits a GRU corrects along the realised path.

    Attributes:
        correction: the backend that runs the head; ``"auto"`` takes the fastest that the device has.
        input_table_limit: the most MiB of memory to spend on every token's embedding times the GRU's input weight,
            computed once, ``3 * V * G`` numbers in the target's dtype; 0 never does. Where the table would be larger,
            each node multiplies its own. ``None`` is 256 on a CPU, and 2,048 elsewhere.

    Raises:
        ConfigError: for an unknown backend or a negative limit.
    """

    correction: str = field(default=AUTO, kw_only=True)
    input_table_limit: float | None = field(default=None, kw_only=True)

    kind: ClassVar[str] = "domino"
    training_model: ClassVar[type[TrainableDraft]] = TrainableDraft
    gives: ClassVar[Capabilities] = frozenset({HIDDEN, BASE_LOGITS, CORRECTION_HEAD})
    default_scorer: ClassVar[str] = "conditional"

    @correction.validator
    def _check_correction(self, attribute: Attribute[str], value: str) -> None:
        check_backend_name(value)

    @input_table_limit.validator
    def _check_limit(self, attribute: Attribute[float | None], value: float | None) -> None:
        if value is not None and number(value, "input_table_limit") < 0:
            raise ConfigError(f"input_table_limit is {value!r}; it must be a number of MiB, at least 0, or None")

    def make_correction(self, model: DraftModel, embed: Callable[[Tensor], Tensor]) -> CorrectionHead:
        """Return the GRU head over the target's embeddings."""
        head = model.config.head
        assert isinstance(head, DominoHeadConfig)
        input_weight, vocab_size = model.get_parameter("prefix_gru.weight_ih_l0"), model.config.vocab_size
        table_bytes = vocab_size * input_weight.shape[0] * input_weight.element_size()
        limit = self.input_table_limit
        if limit is None:
            limit = TABLE_MIB_ON_CPU if input_weight.device.type == "cpu" else TABLE_MIB_ELSEWHERE
        fits = table_bytes <= limit * 2**20
        made, size = "made" if fits else "not made", table_bytes / 2**20
        logger.info("the input table takes %.1f MiB of %g: %s", size, limit, made)
        eager = DominoCorrection(
            embed,
            input_weight,
            state_weight=model.get_parameter("prefix_gru.weight_hh_l0"),
            down=model.get_parameter("embed_proj.0.weight"),
            up=model.get_parameter("embed_proj.2.weight"),
            first_corrected=head.first_corrected,
            input_table=input_table(embed, input_weight, vocab_size) if fits else None,
        )
        return run_on(self.correction, eager, input_weight.device)
