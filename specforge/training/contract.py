"""What a drafter class offers to be trained, reached through the registry: its ``training_model``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from specforge.checkpoints import DrafterConfig


class TrainingModel(Protocol):
    """A drafter's weights, a ``torch.nn.Module`` made from a ``DrafterConfig`` whose ``state_dict`` is a checkpoint's.

    ``fc`` is the projection of the features; its weight has the dtype of all.
    """

    config: DrafterConfig
    fc: nn.Linear

    @property
    def up(self) -> Tensor | None:
        """``[V, r]`` what takes the head's codes to corrections of the logits; ``None`` without a head."""
        ...

    def blocks(self, noise: Tensor, positions: Tensor, features: Tensor, masks: Sequence[Tensor]) -> Tensor:
        """Return the hidden states ``[B, R, H]`` of blocks side by side in ``R`` rows.

        Args:
            noise: ``[B, R, H]`` embeddings.
            positions: ``[B, R]`` int64 sequence indices of the rows.
            features: ``[B, P, taps * H]`` target features of the first ``P`` tokens.
            masks: ``[B, 1, R, P + R]`` bool, one a layer.
        """
        ...

    def codes(self, hidden: Tensor, tokens: Tensor, embeddings: Tensor) -> Tensor | None:
        """Return ``[n, D, r]``, or ``None`` without a head, given the true tokens before each position."""
        ...

    def confidence(self, hidden: Tensor, tokens: Tensor) -> Tensor | None:
        """Return ``[n, D]`` logits of the confidence head, or ``None`` without one."""
        ...
