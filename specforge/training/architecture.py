"""From the options of a run to a drafter's config and its model with fresh weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from specforge import registry
from specforge.checkpoints import ConfidenceHeadConfig, DominoHeadConfig, DrafterConfig, MarkovHeadConfig
from specforge.checkpoints import open_checkpoint as open_drafter
from specforge.errors import ConfigError
from specforge.target import Target
from specforge.training.config import Architecture
from specforge.training.copying import copy_from_target

FULL = "full_attention"


def drafter_config(options: Architecture, target: Target) -> DrafterConfig:
    """Return the config of a drafter for ``target``; what ``options`` leave open is as in the target.

    Raises:
        ConfigError: when a tap or the mask token is not one of the target's, or widths do not go together.
    """
    _check(options, target)
    own = target.config
    heads = options.num_heads or int(own.num_attention_heads)
    return DrafterConfig(
        kind=options.kind,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        intermediate_size=options.intermediate_size or int(own.intermediate_size),
        num_heads=heads,
        num_kv_heads=options.num_kv_heads or int(getattr(own, "num_key_value_heads", None) or heads),
        head_dim=options.head_dim or int(getattr(own, "head_dim", None) or target.hidden_size // heads),
        rms_norm_eps=float(getattr(own, "rms_norm_eps", 1e-6)),
        attention_bias=False,
        layer_types=(FULL,) * options.layers,
        sliding_window=None,
        is_causal=None,
        rope={"rope_theta": _rope_theta(own), "rope_type": "default"},
        max_position_embeddings=target.context_limit,
        block_size=options.block_size,
        mask_token_id=options.mask_token_id,
        taps=options.taps,
        num_target_layers=target.num_layers,
        anchor_predicts=options.anchor_predicts,
        head=_head(options),
        confidence=ConfidenceHeadConfig(options.bottleneck > 0) if options.confidence else None,
    )


def _head(options: Architecture) -> DominoHeadConfig | MarkovHeadConfig | None:
    if options.kind == "domino":
        return DominoHeadConfig(options.bottleneck, options.state, options.first_corrected)
    if options.kind == "dspark" and options.bottleneck > 0:
        return MarkovHeadConfig(options.bottleneck, options.markov)
    return None


def _rope_theta(own: Any) -> float:
    parameters = getattr(own, "rope_parameters", None) or {}
    return float(parameters.get("rope_theta", 10000.0))


def _check(options: Architecture, target: Target) -> None:
    outside = [tap for tap in options.taps if not 0 <= tap < target.num_layers]
    if outside or not options.taps or len(set(options.taps)) < len(options.taps):
        raise ConfigError(
            f"taps are {list(options.taps)}; they must be different decoder layers of {target.name}, "
            f"0 to {target.num_layers - 1}, at least one"
        )
    if options.mask_token_id >= target.vocab_size:
        raise ConfigError(
            f"mask_token_id is {options.mask_token_id}; {target.name} has tokens 0 to {target.vocab_size - 1}"
        )
    if options.kind == "domino" and options.bottleneck == 0:
        raise ConfigError("bottleneck is 0; a Domino head needs at least 1 (a dflash drafter has no head)")
    if options.confidence and options.kind != "dspark":
        raise ConfigError(f"confidence is True; a {options.kind} drafter has no confidence head, dspark has")


def new_model(
    config: DrafterConfig, seed: int, target: Target, copied_layers: Sequence[int] | None, initial: str | None
) -> nn.Module:
    """Return the ``training_model`` of the registered drafter, in float32 on the CPU.

    Args:
        config: the drafter's.
        seed: of fresh weights.
        target: what it will draft for.
        copied_layers: the target's layers that its layers start from; ``None``: all weights are random.
        initial: a checkpoint of the same config to start from, whatever else is said.

    Raises:
        ConfigError: when the registered drafter cannot be trained, the layers cannot be copied, or ``initial``
            differs from ``config``.
        CheckpointError: when ``initial`` cannot be read.
    """
    drafter = registry.drafters.get(config.kind)
    model_class = getattr(drafter, "training_model", None)
    if model_class is None:
        raise ConfigError(f"drafter {config.kind!r} has no training_model; it cannot be trained")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = model_class(config)
    if copied_layers is not None:
        copy_from_target(model, target, copied_layers)
    if initial is not None:
        checkpoint = open_drafter(initial)
        if checkpoint.config != config:
            raise ConfigError(f"initial checkpoint {initial!r} is {checkpoint.config}; the run trains {config}")
        model.load_state_dict(checkpoint.tensors("cpu", torch.float32))
    return model
