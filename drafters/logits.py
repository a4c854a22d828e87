"""Base logits: the target's own head on the drafter's hidden states, scaled and capped as the checkpoint asks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specforge.checkpoints import target_ids
from specforge.drafters.model import DraftModel
from specforge.errors import IncompatiblePartsError
from specforge.target.fast import speed_up


class BaseLogits:
    """Hidden states -> path-independent logits over the target's vocabulary.

    Raises:
        IncompatiblePartsError: when the drafter has a vocabulary of its own and the target's head is no ``Linear``.
    """

    def __init__(self, model: DraftModel, lm_head: nn.Module) -> None:
        self._config = model.config
        self._ids = None if model.config.draft_vocab_size is None else target_ids(model.get_buffer("d2t"))
        self._head = _fast(lm_head if self._ids is None else _rows(lm_head, self._ids))

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return ``[D, V]`` float32 for ``hidden [D, H]``; tokens that the drafter cannot draft get ``-inf``."""
        logits, cap = self._head(hidden).float(), self._config.final_logit_softcapping
        if self._config.output_multiplier != 1.0:
            logits = logits * self._config.output_multiplier
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)
        if self._ids is None:
            return logits
        spread = logits.new_full((len(hidden), self._config.vocab_size), float("-inf"))
        spread[:, self._ids] = logits
        return spread


def _rows(lm_head: nn.Module, ids: Tensor) -> nn.Linear:
    if not isinstance(lm_head, nn.Linear):
        raise IncompatiblePartsError(
            f"the target's head is a {type(lm_head).__name__}; a drafter with its own vocabulary needs a Linear"
        )
    cut = nn.Linear(lm_head.in_features, len(ids), bias=lm_head.bias is not None, device="meta")
    cut.weight = nn.Parameter(lm_head.weight.detach()[ids], requires_grad=False)
    if lm_head.bias is not None:
        cut.bias = nn.Parameter(lm_head.bias.detach()[ids], requires_grad=False)
    return cut


def _fast(head: nn.Module) -> nn.Module:
    holder = nn.ModuleList([head])
    speed_up(holder, head)
    return holder[0]
