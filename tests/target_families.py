"""Tiny random causal LMs, one of each family that the target adapter must serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 97
WINDOW = 12
LAYERS = 4
_MIXED = ["sliding_attention", "full_attention"] * (LAYERS // 2)

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # large enough for attention to be far from uniform
    "initializer_range": 0.3,
}
_GROUPED: dict[str, Any] = {**_SHAPE, "num_key_value_heads": 2}
_GEMMA: dict[str, Any] = {**_GROUPED, "head_dim": 16, "sliding_window": WINDOW, "layer_types": _MIXED}

_FAMILIES: dict[str, Callable[[], tuple[type[PreTrainedModel], PreTrainedConfig]]] = {
    "llama": lambda: (LlamaForCausalLM, LlamaConfig(**_GROUPED, tie_word_embeddings=True)),
    "llama-one-key-head": lambda: (LlamaForCausalLM, LlamaConfig(**{**_GROUPED, "num_key_value_heads": 1})),
    "mistral": lambda: (MistralForCausalLM, MistralConfig(**_GROUPED, sliding_window=None)),
    "mistral-sliding": lambda: (MistralForCausalLM, MistralConfig(**_GROUPED, sliding_window=WINDOW)),
    "qwen2": lambda: (Qwen2ForCausalLM, Qwen2Config(**_GROUPED)),
    "qwen2-sliding": lambda: (
        Qwen2ForCausalLM,
        Qwen2Config(**_GROUPED, use_sliding_window=True, sliding_window=WINDOW, layer_types=_MIXED),
    ),
    "qwen3": lambda: (Qwen3ForCausalLM, Qwen3Config(**_GROUPED, head_dim=24)),
    "gemma2": lambda: (
        Gemma2ForCausalLM,
        Gemma2Config(**_GEMMA, query_pre_attn_scalar=9, attn_logit_softcapping=3.0, final_logit_softcapping=5.0),
    ),
    "gemma3": lambda: (Gemma3ForCausalLM, Gemma3TextConfig(**_GEMMA, query_pre_attn_scalar=9)),
    "phi3": lambda: (Phi3ForCausalLM, Phi3Config(**_GROUPED, sliding_window=None)),
    "phi3-sliding": lambda: (Phi3ForCausalLM, Phi3Config(**_GROUPED, sliding_window=WINDOW)),
    "gpt-neox": lambda: (GPTNeoXForCausalLM, GPTNeoXConfig(**_SHAPE)),
    "gpt-neox-sequential": lambda: (GPTNeoXForCausalLM, GPTNeoXConfig(**_SHAPE, use_parallel_residual=False)),
    "olmo2": lambda: (Olmo2ForCausalLM, Olmo2Config(**_GROUPED)),
}

FAMILIES = tuple(_FAMILIES)


def tiny_model(family: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return a random model of ``family`` in evaluation mode; the same weights for the same seed."""
    cls, config = _FAMILIES[family]()
    if getattr(config, "attn_logit_softcapping", None) is not None:
        # transformers' other functions leave the cap out
        config._attn_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return cls(config).to(dtype).eval()
