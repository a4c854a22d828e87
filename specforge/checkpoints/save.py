"""Writing a drafter in z-lab's layout, the one that every reader of these formats knows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from specforge.checkpoints.config import DominoHeadConfig, DrafterConfig, MarkovHeadConfig
from specforge.checkpoints.files import CONFIG_FILE
from specforge.checkpoints.tensors import expected_shapes
from specforge.errors import CheckpointError

WEIGHTS_FILE = "model.safetensors"
_ARCHITECTURES = {"dflash": "DFlashDraftModel", "domino": "DominoDraftModel", "dspark": "DSparkDraftModel"}


def save_checkpoint(folder: str | Path, config: DrafterConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write ``config.json`` and ``model.safetensors``.

    A new folder appears whole or not at all. In a folder that exists, each file is replaced in one step, the weights
    first; other files in it are left alone.

    Args:
        folder: where to; its parents are created.
        config: what the drafter is.
        tensors: its tensors by z-lab's names, as ``DraftModel.state_dict`` gives them; written in their dtypes.

    Raises:
        CheckpointError: when the tensors are not those of ``config``.
    """
    expected = expected_shapes(config)
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = {name for name in expected.keys() | given.keys() if expected.get(name) != given.get(name)}
    for name in sorted(wrong):
        raise CheckpointError(
            f"{folder}: tensor {name} is {given.get(name)}, but the config asks for {expected.get(name)}"
        )
    folder = Path(folder)
    partial = folder.parent / f".{folder.name}.{os.getpid()}.partial"
    partial.mkdir(parents=True)
    try:
        save_file(
            {n: t.detach().cpu().contiguous() for n, t in tensors.items()}, partial / WEIGHTS_FILE, {"format": "pt"}
        )
        (partial / CONFIG_FILE).write_text(json.dumps(to_json(config, tensors), indent=2) + "\n", encoding="utf-8")
        if not folder.exists():
            os.rename(partial, folder)
        else:
            for name in (WEIGHTS_FILE, CONFIG_FILE):
                os.replace(partial / name, folder / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def to_json(config: DrafterConfig, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the config in z-lab's layout; ``dtype`` is that of ``fc.weight``."""
    content: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[config.kind]],
        "attention_bias": config.attention_bias,
        "block_size": config.block_size,
        "dflash_config": _own_keys(config),
        "dtype": str(tensors["fc.weight"].dtype).removeprefix("torch."),
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "is_causal": config.is_causal,
        "layer_types": list(config.layer_types),
        "max_position_embeddings": config.max_position_embeddings,
        "model_type": "qwen3",
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": len(config.layer_types),
        "num_key_value_heads": config.num_kv_heads,
        "num_target_layers": config.num_target_layers,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": config.rope,
        "sliding_window": config.sliding_window,
        "tie_word_embeddings": False,
        "use_sliding_window": config.sliding_window is not None,
        "vocab_size": config.vocab_size,
    }
    return {key: value for key, value in content.items() if value is not None}


def _own_keys(config: DrafterConfig) -> dict[str, Any]:
    own: dict[str, Any] = {
        "mask_token_id": config.mask_token_id,
        "projector_type": config.kind,
        "target_layer_ids": list(config.taps),
        "sample_from_anchor" if config.kind == "dspark" else "shift_label": config.anchor_predicts,
        "input_embedding_scale": config.input_embedding_scale,
        "output_multiplier": config.output_multiplier,
        "final_logit_softcapping": config.final_logit_softcapping,
        "draft_vocab_size": config.draft_vocab_size,
    }
    if isinstance(config.head, DominoHeadConfig):
        own["emb_dim"] = config.head.bottleneck
        own["gru_hidden_dim"] = config.head.state
        own["pure_draft_prefix_len"] = config.head.first_corrected
    if config.kind == "dspark":
        own["markov_rank"] = config.head.rank if isinstance(config.head, MarkovHeadConfig) else 0
        own["enable_confidence_head"] = config.confidence is not None
    if isinstance(config.head, MarkovHeadConfig):
        own["markov_head_type"] = config.head.variant
    if config.confidence is not None:
        own["confidence_head_with_markov"] = config.confidence.with_markov
    return {key: value for key, value in own.items() if value is not None}
