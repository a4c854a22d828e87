"""Random targets and drafters that fit each other, small enough to build by the hundred, and yet often of one mind.

A target's embeddings share a direction that its head reads, so that some tokens are likelier than others whatever the
context. A drafter runs through the same embeddings and head, hence leans to the same tokens: a random drafter's
guesses are accepted, and rejected, often enough for a test.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from checkpoint_factory import DRAFT_VOCABULARY, FORMATS, HIDDEN, VOCABULARY, Json, Tensors, random_tensors, write
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from specforge.target import Target

TARGET_LAYERS, CONTEXT = 2, 128
KINDS = {
    "dflash": ("zlab", "zlab_new", "deepspec_rank0", "speculators_dflash"),
    "domino": ("domino", "domino_old"),
    "dspark": ("dspark", "dspark_gated", "dspark_rnn", "deepspec", "speculators_dspark", "speculators_reduced"),
}
"""The published formats of each drafter."""

_SHAPE = {
    "hidden_size": HIDDEN,
    "intermediate_size": 40,
    "num_hidden_layers": TARGET_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.25,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_FAMILIES: dict[str, tuple[type[PreTrainedModel], type, Json]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 12}),
}
FAMILIES = tuple(_FAMILIES)


def random_target(family: str, vocab_size: int, seed: int) -> Target:
    """Make a float32 target whose next token hangs on all that it attends to."""
    cls, config, own = _FAMILIES[family]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = cls(config(**_SHAPE, **own, vocab_size=vocab_size))
        with torch.no_grad():
            _strengthen(model)
    return Target.from_model(model, name=f"{family}-{vocab_size}-{seed}")


def _strengthen(model: PreTrainedModel) -> None:
    """Scale what a fresh model has too little of, embeddings around their shared direction and sharp attention.

    As initialised, attention is all but uniform and adds little: a wrong mask would hardly ever change a token.
    """
    model.get_input_embeddings().weight.mul_(4.0).add_(3.0 * torch.randn(HIDDEN))
    model.get_output_embeddings().weight.mul_(2.0)
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.o_proj.weight.mul_(3.0)
        # Where queries are normalised, only the norm can make them larger.
        getattr(attention, "q_norm", attention.q_proj).weight.mul_(3.0)


def write_drafter(folder: Path, name: str, vocab_size: int, seed: int) -> str:
    """Write a checkpoint of format ``name`` with weights of its own, for targets of ``vocab_size`` tokens."""
    config, tensors = copy.deepcopy(FORMATS[name]())
    return write(folder, _fitted(config, vocab_size), _redrawn(tensors, vocab_size, seed))


def _fitted(config: Json, vocab_size: int) -> Json:
    """Fit a config to the targets of this module."""
    ours = {
        "vocab_size": vocab_size,
        "mask_token_id": vocab_size - 1,
        "num_target_layers": TARGET_LAYERS,
        "target_layer_ids": [0, 1],
        "aux_hidden_state_layer_ids": [1, 2],
    }
    for place in (config, config.get("dflash_config", {}), config.get("transformer_layer_config", {})):
        place.update({key: value for key, value in ours.items() if key in place})
        if "draft_vocab_size" in place:
            place["draft_vocab_size"] = _draftable(place["draft_vocab_size"], vocab_size)
    return config


def _draftable(rows: int, vocab_size: int) -> int:
    """Return how many of the draft vocabulary's tokens, which are the even ones where it is reduced, there are."""
    return (vocab_size + 1) // 2 if rows == DRAFT_VOCABULARY else vocab_size


def _redrawn(tensors: Tensors, vocab_size: int, seed: int) -> Tensors:
    """Cut the vocabulary's rows to size and draw all weights again."""
    maps = {"d2t": _draftable(DRAFT_VOCABULARY, vocab_size), "t2d": vocab_size}
    rows = {
        n: _draftable(len(t), vocab_size) if len(t) in (VOCABULARY, DRAFT_VOCABULARY) else len(t)
        for n, t in tensors.items()
    }
    shapes = {n: (rows[n], *t.shape[1:]) for n, t in tensors.items() if n not in maps}
    return {
        **random_tensors(shapes, seed),
        **{n: tensors[n][:size].clone() for n, size in maps.items() if n in tensors},
    }
