"""Drafters that know only a part of the target's vocabulary (``d2t``, ``t2d``)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specforge.checkpoints.config import DrafterConfig
from specforge.checkpoints.files import StoredTensor, read_tensors
from specforge.checkpoints.tensors import DRAFT_TO_TARGET, TARGET_TO_DRAFT
from specforge.errors import CheckpointError


def target_ids(draft_to_target: Tensor) -> Tensor:
    """Return ``[draft vocabulary]`` int64, the target id of each draft id; ``d2t`` holds the offsets between them."""
    return draft_to_target.long() + torch.arange(len(draft_to_target), device=draft_to_target.device)


def check_vocabulary(config: DrafterConfig, own: Mapping[str, StoredTensor]) -> None:
    """Check that ``d2t`` and ``t2d`` say the same, where a drafter has them.

    Raises:
        CheckpointError: when an id lies outside the vocabulary, occurs twice, or the two maps differ.
    """
    if config.draft_vocab_size is None:
        return
    maps = read_tensors({name: own[name] for name in (DRAFT_TO_TARGET, TARGET_TO_DRAFT)})
    ids, file = target_ids(maps[DRAFT_TO_TARGET]), own[DRAFT_TO_TARGET].file
    outside = ids[(ids < 0) | (ids >= config.vocab_size)]
    if len(outside):
        raise CheckpointError(
            f"{file}: d2t leads to target id {int(outside[0])}, outside the {config.vocab_size} of vocab_size"
        )
    marked = maps[TARGET_TO_DRAFT].bool().nonzero().flatten()
    if not torch.equal(ids.sort().values, marked):
        raise CheckpointError(
            f"{file}: d2t leads to {len(set(ids.tolist()))} target ids, t2d marks {len(marked)} others"
        )
