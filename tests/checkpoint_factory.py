"""Tiny drafter checkpoints in every published format, written by hand rather than by the package's own writer."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, VOCABULARY, WIDE, HEADS, KV_HEADS, HEAD_DIM = 32, 50, 40, 4, 2, 12
LAYERS, TARGET_LAYERS, TAPS, BLOCK, MASK = 2, 5, [1, 3], 5, 49
BOTTLENECK, STATE, RANK, DRAFT_VOCABULARY = 7, 11, 6, 20

Json = dict[str, Any]
Tensors = dict[str, Tensor]

ARCHITECTURE: Json = {
    "attention_bias": False,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "layer_types": ["full_attention"] * LAYERS,
    "max_position_embeddings": 512,
    "model_type": "qwen3",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-6,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": VOCABULARY,
}
OLD_ROPE: Json = {"rope_theta": 10000.0, "rope_scaling": None}
NEW_ROPE: Json = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> Tensors:
    """Draw weights that keep activations near 1; norms vary around 1 so that a forgotten one shows."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        drawn = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.2 * drawn if "norm" in name else drawn * (1.2 / shape[-1] ** 0.5)
    return tensors


def backbone_tensors(seed: int = 0, bias: bool = False, layers: int = LAYERS, taps: int = len(TAPS)) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (HIDDEN, taps * HIDDEN)}
    shapes["hidden_norm.weight"] = shapes["norm.weight"] = (HIDDEN,)
    rows = {"q_proj": HEADS * HEAD_DIM, "k_proj": KV_HEADS * HEAD_DIM, "v_proj": KV_HEADS * HEAD_DIM, "o_proj": HIDDEN}
    for i in range(layers):
        for name, out in rows.items():
            columns = HEADS * HEAD_DIM if name == "o_proj" else HIDDEN
            shapes[f"layers.{i}.self_attn.{name}.weight"] = (out, columns)
            if bias:
                shapes[f"layers.{i}.self_attn.{name}.bias"] = (out,)
        shapes[f"layers.{i}.self_attn.q_norm.weight"] = (HEAD_DIM,)
        shapes[f"layers.{i}.self_attn.k_norm.weight"] = (HEAD_DIM,)
        shapes[f"layers.{i}.mlp.gate_proj.weight"] = (WIDE, HIDDEN)
        shapes[f"layers.{i}.mlp.up_proj.weight"] = (WIDE, HIDDEN)
        shapes[f"layers.{i}.mlp.down_proj.weight"] = (HIDDEN, WIDE)
        shapes[f"layers.{i}.input_layernorm.weight"] = (HIDDEN,)
        shapes[f"layers.{i}.post_attention_layernorm.weight"] = (HIDDEN,)
    return random_tensors(shapes, seed)


def domino_tensors(seed: int = 1) -> Tensors:
    shapes = {
        "prefix_gru.weight_ih_l0": (3 * STATE, HIDDEN),
        "prefix_gru.weight_hh_l0": (3 * STATE, STATE),
        "embed_proj.0.weight": (BOTTLENECK, HIDDEN + STATE),
        "embed_proj.2.weight": (VOCABULARY, BOTTLENECK),
    }
    return random_tensors(shapes, seed)


def markov_tensors(variant: str = "vanilla", confidence: str | None = "markov", rows: int = VOCABULARY) -> Tensors:
    """Draw a Markov head; ``confidence`` is None, ``"hidden"`` or ``"markov"``: what the confidence head reads."""
    shapes: dict[str, tuple[int, ...]] = {
        "markov_head.markov_w1.weight": (VOCABULARY, RANK),
        "markov_head.markov_w2.weight": (rows, RANK),
    }
    if variant == "gated":
        shapes["markov_head.gate_proj.weight"] = (RANK, HIDDEN + RANK)
        shapes["markov_head.gate_proj.bias"] = (RANK,)
    if variant == "rnn":
        shapes["markov_head.joint_proj.weight"] = (3 * RANK, HIDDEN + 2 * RANK)
        shapes["markov_head.joint_proj.bias"] = (3 * RANK,)
    if confidence is not None:
        shapes["confidence_head.proj.weight"] = (1, HIDDEN + (RANK if confidence == "markov" else 0))
        shapes["confidence_head.proj.bias"] = (1,)
    return random_tensors(shapes, 2)


def frozen_copies(rows: int = VOCABULARY) -> Tensors:
    return random_tensors({"embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (rows, HIDDEN)}, 3)


def vocabulary_maps() -> tuple[list[int], Tensors]:
    """Return the target ids that a reduced draft vocabulary holds, and ``d2t`` and ``t2d`` for them."""
    ids = list(range(0, 2 * DRAFT_VOCABULARY, 2))
    marked = torch.zeros(VOCABULARY, dtype=torch.bool)
    marked[ids] = True
    return ids, {"d2t": torch.tensor(ids) - torch.arange(DRAFT_VOCABULARY), "t2d": marked}


def zlab(**own: Any) -> tuple[Json, Tensors]:
    """z-lab DFlash as first published: block_size at top level, the rest in dflash_config, old RoPE keys."""
    nested = {"mask_token_id": MASK, "target_layer_ids": TAPS, **own}
    config = {**ARCHITECTURE, **OLD_ROPE, "architectures": ["DFlashDraftModel"], "block_size": BLOCK}
    return {**config, "num_target_layers": TARGET_LAYERS, "dflash_config": nested}, backbone_tensors()


def zlab_new(**own: Any) -> tuple[Json, Tensors]:
    """z-lab DFlash with the newer keys: everything in dflash_config, rope_parameters."""
    config, tensors = zlab(block_size=BLOCK, **own)
    for key in ("block_size", *OLD_ROPE):
        del config[key]
    return {**config, **NEW_ROPE}, tensors


def domino(**own: Any) -> tuple[Json, Tensors]:
    head = {"emb_dim": BOTTLENECK, "gru_hidden_dim": STATE, "pure_draft_prefix_len": 1, "shift_label": True}
    config, tensors = zlab(projector_type="domino", **{**head, **own})
    return config, {**tensors, **domino_tensors()}


def domino_old() -> tuple[Json, Tensors]:
    """The older Domino: projector_type causal_v5, widths at top level or nowhere, heads under logit_head."""
    config, tensors = zlab(projector_type="causal_v5")
    heads = {f"logit_head.{name}": tensor for name, tensor in domino_tensors().items()}
    return {**config, "emb_dim": BOTTLENECK}, {**tensors, **heads}


def dspark(variant: str = "vanilla", confidence: str | None = "markov", **own: Any) -> tuple[Json, Tensors]:
    """SpecForge's DSpark: the heads' keys in dflash_config, no embeddings."""
    head = {"markov_rank": RANK, "markov_head_type": variant, "enable_confidence_head": confidence is not None}
    head["confidence_head_with_markov"] = confidence == "markov"
    config, tensors = zlab(projector_type="dspark", confidence_head_alpha=1.0, **{**head, **own})
    return config, {**tensors, **markov_tensors(variant, confidence)}


def deepspec(rank: int = RANK, variant: str = "vanilla") -> tuple[Json, Tensors]:
    """DeepSpec's files: all keys at top level, frozen copies of the target's embedding and head."""
    config = {**ARCHITECTURE, **OLD_ROPE, "architectures": ["Qwen3DSparkModel"], "block_size": BLOCK}
    config.update(num_target_layers=TARGET_LAYERS, mask_token_id=MASK, target_layer_ids=TAPS, num_anchors=8)
    config.update(markov_rank=rank, enable_confidence_head=rank > 0)
    if rank:
        config.update(markov_head_type=variant, confidence_head_with_markov=True)
    return config, {**backbone_tensors(), **frozen_copies(), **(markov_tensors(variant) if rank else {})}


def speculators(kind: str = "dflash", reduced: bool = False) -> tuple[Json, Tensors]:
    """vLLM speculators: nested layer config with gaps, hidden-state indices, perhaps a draft vocabulary."""
    defaults = ("attention_bias", "hidden_act", "layer_types", "sliding_window", "use_sliding_window")
    layers = {key: value for key, value in ARCHITECTURE.items() if key not in defaults}
    rows = DRAFT_VOCABULARY if reduced else VOCABULARY
    config = {
        "architectures": ["DFlashDraftModel" if kind == "dflash" else "DSparkDraftModel"],
        "speculators_model_type": kind,
        "speculators_config": {"algorithm": kind, "verifier": {"architectures": ["Qwen3ForCausalLM"]}},
        "aux_hidden_state_layer_ids": [tap + 1 for tap in TAPS],
        "block_size": BLOCK,
        "draft_vocab_size": rows,
        "mask_token_id": MASK,
        "sliding_window_non_causal": False,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {**layers, **NEW_ROPE},
    }
    tensors = backbone_tensors()
    if kind == "dspark":
        config.update(markov_rank=RANK, markov_head_type="vanilla", enable_confidence_head=True)
        config.update(confidence_head_with_markov=True, sample_from_anchor=True)
        tensors.update(markov_tensors(rows=rows))
    if reduced:
        tensors.update(vocabulary_maps()[1], **{"lm_head.weight": frozen_copies(rows)["lm_head.weight"]})
    return config, tensors


FORMATS = {
    "zlab": zlab,
    "zlab_new": zlab_new,
    "domino": domino,
    "domino_old": domino_old,
    "dspark": dspark,
    "dspark_gated": lambda: dspark("gated", "hidden"),
    "dspark_rnn": lambda: dspark("rnn", None),
    "deepspec": deepspec,
    "deepspec_rank0": lambda: deepspec(rank=0),
    "speculators_dflash": speculators,
    "speculators_dspark": lambda: speculators("dspark"),
    "speculators_reduced": lambda: speculators("dspark", reduced=True),
}


def write(folder: Path, config: Json, tensors: Tensors) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return str(folder)


def write_format(folder: Path, name: str) -> str:
    config, tensors = FORMATS[name]()
    return write(folder, copy.deepcopy(config), tensors)


def tiny_target(**changes: Any) -> SimpleNamespace:
    """Stand in for a target: what a drafter reads of one."""
    generator = torch.Generator().manual_seed(9)
    embedding, lm_head = torch.nn.Embedding(VOCABULARY, HIDDEN), torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
    with torch.no_grad():
        embedding.weight.copy_(torch.randn(VOCABULARY, HIDDEN, generator=generator))
        lm_head.weight.copy_(torch.randn(VOCABULARY, HIDDEN, generator=generator) / HIDDEN**0.5)
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "num_layers": TARGET_LAYERS, "name": "tiny"}
    place = {"device": torch.device("cpu"), "dtype": torch.float32, "embedding": embedding, "lm_head": lm_head}
    return SimpleNamespace(**{**sizes, **place, **changes})
