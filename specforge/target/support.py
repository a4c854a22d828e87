"""What a target must be for tree verification, checked on its config, its class and one probing forward."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from specforge.errors import ConfigError, UnsupportedTargetError
from specforge.target.attention import AttentionPlan
from specforge.target.cache import TreeCache

PROBE_TOKENS = 2
FULL, SLIDING = "full_attention", "sliding_attention"


def check_config(config: PreTrainedConfig) -> None:
    """Refuse what the config alone gives away, so that no weights need be read.

    Raises:
        UnsupportedTargetError: naming the model type and the layer type in the way.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise _unsupported(config, "is an encoder-decoder, whose decoder attends to more than its own tokens")
    text = config.get_text_config(decoder=True)
    foreign = sorted({str(kind) for kind in _layer_types(text)} - {FULL, SLIDING})
    if foreign:
        raise _unsupported(
            config, f"has {' and '.join(foreign)} layers; only {FULL} and {SLIDING} can branch and be rolled back"
        )
    if _is_stateful(text):
        raise _unsupported(config, f"has {text.model_type} layers with recurrent state, which cannot be rolled back")
    if getattr(text, "use_bidirectional_attention", False):
        raise _unsupported(config, "attends to later tokens (use_bidirectional_attention)")
    if "dynamic" in _rope_types(text):
        raise _unsupported(config, "has dynamic rope, with which a key depends on the length of the whole sequence")


def _unsupported(config: PreTrainedConfig, what: str) -> UnsupportedTargetError:
    return UnsupportedTargetError(f"a {config.model_type} model cannot be a target: it {what}")


def _layer_types(config: PreTrainedConfig) -> Iterable[str]:
    return getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()


def _is_stateful(config: PreTrainedConfig) -> bool:
    cls = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return bool(getattr(cls, "_is_stateful", False))


def _rope_parameters(config: PreTrainedConfig) -> Iterator[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    yield from nested or [parameters]


def _rope_types(config: PreTrainedConfig) -> set[str]:
    return {str(parameters.get("rope_type", "default")) for parameters in _rope_parameters(config)}


def context_limit(config: PreTrainedConfig) -> int:
    """Return the longest sequence, in tokens, for which a tree forward equals plain decoding.

    That is the model's own limit (``sys.maxsize`` for a model that states none). LongRoPE changes its frequencies, and
    so every cached key, once the sequence outgrows the original context; such models stop there.
    """
    limit = getattr(config, "max_position_embeddings", None) or sys.maxsize
    if "longrope" not in _rope_types(config):
        return int(limit)
    original = getattr(config, "original_max_position_embeddings", None)
    originals = [p.get("original_max_position_embeddings") for p in _rope_parameters(config)]
    return int(min(o for o in (limit, original, *originals) if o))


def check_signature(model: nn.Module) -> None:
    """Refuse a causal LM that does not take what a tree forward must give it."""
    takes = set(inspect.signature(model.forward).parameters)
    missing = sorted({"position_ids", "logits_to_keep"} - takes)
    if missing or not takes & {"cache", "past_key_values"}:
        raise UnsupportedTargetError(f"{type(model).__name__}.forward takes no {' and no '.join(missing or ['cache'])}")


def check_device(model: nn.Module) -> None:
    """Refuse a model that is spread over several devices, or that has no weights yet."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) != 1 or devices == ["meta"]:
        raise ConfigError(f"the target's weights lie on {' and '.join(devices)}; they must lie on one real device")


def check_probe(layers: nn.ModuleList, config: PreTrainedConfig, plan: AttentionPlan, cache: TreeCache) -> None:
    """Refuse a model of which some layer went past tree attention or past the cache in a forward of ``PROBE_TOKENS``.

    Raises:
        UnsupportedTargetError: naming the layer and its class.
    """
    for index, (layer, entries) in enumerate(zip(layers, cache.layers, strict=True)):
        if entries.pending != PROBE_TOKENS:
            raise UnsupportedTargetError(
                f"layer {index} ({type(layer).__name__}) keeps no keys and values of its own in the cache"
            )
    if len(plan.windows) != len(layers):
        raise UnsupportedTargetError(
            f"{len(layers)} layers ({type(layers[0]).__name__}) called registered attention {len(plan.windows)} times; "
            "a target's every layer must go through transformers' attention interface once"
        )
    for index, (window, expected) in enumerate(zip(plan.windows, _expected_windows(config), strict=True)):
        if window != expected:
            raise UnsupportedTargetError(
                f"layer {index} ({type(layers[index]).__name__}) attends with window {window}, "
                f"where the config says {expected}"
            )


def _expected_windows(config: PreTrainedConfig) -> list[int | None]:
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    kinds = getattr(config, "layer_types", None) or [SLIDING] * config.num_hidden_layers
    return [window if kind == SLIDING else None for kind in kinds]
