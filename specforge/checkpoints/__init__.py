"""Drafter checkpoints: the published formats read into one config and one set of tensors, without running code."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import attrs
import torch
from attrs import frozen
from torch import Tensor

from specforge.checkpoints.config import ConfidenceHeadConfig, DominoHeadConfig, DrafterConfig, MarkovHeadConfig
from specforge.checkpoints.files import CONFIG_FILE, StoredTensor, cast, list_tensors, locate, read_json, read_tensors
from specforge.checkpoints.formats import layout_of, parse_config
from specforge.checkpoints.save import save_checkpoint
from specforge.checkpoints.tensors import canonical_names, check_tensors
from specforge.checkpoints.vocabulary import check_vocabulary, target_ids

__all__ = [
    "Checkpoint",
    "ConfidenceHeadConfig",
    "DominoHeadConfig",
    "DrafterConfig",
    "MarkovHeadConfig",
    "describe",
    "open_checkpoint",
    "save_checkpoint",
    "target_ids",
]


@frozen(eq=False)
class Checkpoint:
    """A checked drafter checkpoint; its weights are still in the files.

    Attributes:
        source: the folder or hub id it was opened by.
        folder: where its files lie.
        layout: ``"z-lab"``, ``"DeepSpec"`` or ``"speculators"``.
        config: what the drafter is.
        stored: its tensors by z-lab's names.
        frozen_copies: copies of the target's embedding and head in the files, which are not used.
    """

    source: str
    folder: Path
    layout: str
    config: DrafterConfig
    stored: Mapping[str, StoredTensor]
    frozen_copies: Mapping[str, StoredTensor]

    def tensors(self, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Read the weights, in ``dtype`` or, where ``None``, as stored.

        Raises:
            CheckpointError: when a file cannot be read.
        """
        read = read_tensors(self.stored)
        if dtype is None:
            return {name: tensor.to(device) for name, tensor in read.items()}
        return {name: cast(tensor, torch.device(device), dtype) for name, tensor in read.items()}


def open_checkpoint(checkpoint: str | Path) -> Checkpoint:
    """Find a checkpoint and check it: config, tensor names and shapes. No weights are read.

    Args:
        checkpoint: a folder with ``config.json`` and safetensors files, or a hub id.

    Raises:
        CheckpointError: one line that names the file, the key and the values.
    """
    folder = locate(str(checkpoint))
    raw = read_json(folder / CONFIG_FILE)
    own, copies = canonical_names(list_tensors(folder))
    config = parse_config(raw, folder / CONFIG_FILE, own)
    check_tensors(config, own, folder)
    check_vocabulary(config, own)
    return Checkpoint(str(checkpoint), folder, layout_of(raw), config, own, copies)


def describe(checkpoint: str | Path) -> dict[str, Any]:
    """Return what a checkpoint is, as plain JSON values.

    Raises:
        CheckpointError: as ``open_checkpoint``.
    """
    opened = open_checkpoint(checkpoint)
    config = opened.config
    return {
        "checkpoint": opened.source,
        "kind": config.kind,
        "layout": opened.layout,
        "block_size": config.block_size,
        "draft_positions": config.draft_positions(config.block_size),
        "mask_token_id": config.mask_token_id,
        "taps": list(config.taps),
        "layers": list(config.layer_types),
        "sliding_window": config.sliding_window,
        "in_block": ["causal" if config.causal(i) else "bidirectional" for i in range(len(config.layer_types))],
        "head": None if config.head is None else attrs.asdict(config.head),
        "confidence_head": None if config.confidence is None else attrs.asdict(config.confidence),
        "draft_vocab_size": config.draft_vocab_size,
        "parameters": sum(prod(t.shape) for t in opened.stored.values() if t.dtype not in ("int64", "bool")),
        "dtype": "/".join(sorted({t.dtype for t in opened.stored.values()} - {"int64", "bool"})),
        "unused_copies": sorted(opened.frozen_copies),
        "target": {
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "num_layers": config.num_target_layers,
        },
    }
