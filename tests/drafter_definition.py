"""The block-parallel drafters as the papers define them: no cache, one path at a time, float64, config as published."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

Json = dict[str, Any]
Tensors = dict[str, Tensor]


def own(config: Json, key: str, default: Any) -> Any:
    return config["dflash_config"].get(key, config.get(key, default))


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turn(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cosines + torch.cat([-x[..., half:], x[..., :half]], -1) * sines


def sees(config: Json, layer: int, query: int, key: int, root: int) -> bool:
    """Say from the words of the format whether position ``query`` of the block sees position ``key``."""
    sliding = config["layer_types"][layer] == "sliding_attention" and config["use_sliding_window"]
    causal = config.get("is_causal")
    causal = sliding if causal is None else causal
    if sliding and query - key >= config["sliding_window"]:
        return False
    if key < root:
        return True
    if causal:
        return key <= query
    return not sliding or key - query < config["sliding_window"]


def draft(
    config: Json, tensors: Tensors, embedding: Tensor, lm_head: Tensor, features: Tensor, root_token: int, size: int
) -> tuple[Tensor, Tensor]:
    """Return hidden states and base logits of the draft positions.

    ``features`` ``[L, taps * H]`` are those of all tokens before the root.
    """
    w = {name: tensor.double() for name, tensor in tensors.items()}
    root, eps = len(features), config["rms_norm_eps"]
    context = norm(features.double() @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
    tokens = torch.tensor([root_token] + [own(config, "mask_token_id", None)] * (size - 1))
    x = embedding[tokens].double() * own(config, "input_embedding_scale", 1.0)
    hf = Qwen3Config(**{k: v for k, v in config.items() if k not in ("dflash_config", "architectures")})
    cos, sin = (t[0].double() for t in Qwen3RotaryEmbedding(hf)(x.float(), torch.arange(root + size)[None]))
    for i in range(config["num_hidden_layers"]):
        layer = {n.removeprefix(f"layers.{i}."): t for n, t in w.items() if n.startswith(f"layers.{i}.")}
        x = x + attend(config, layer, i, context, norm(x, layer["input_layernorm.weight"], eps), cos, sin)
        y = norm(x, layer["post_attention_layernorm.weight"], eps)
        gate, up, down = (layer[f"mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
        x = x + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T
    anchor = own(config, "shift_label", own(config, "projector_type", None) == "dspark")
    hidden = norm(x, w["norm.weight"], eps)[0 if anchor else 1 :]
    logits = hidden @ lm_head.double().T * own(config, "output_multiplier", 1.0)
    cap = own(config, "final_logit_softcapping", None)
    return hidden, logits if cap is None else torch.tanh(logits / cap) * cap


def attend(config: Json, w: Tensors, i: int, context: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    heads, kv_heads, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]

    def project(name: str, rows: Tensor) -> Tensor:
        bias = w.get(f"self_attn.{name}.bias", torch.zeros(1))
        return rows @ w[f"self_attn.{name}.weight"].T + bias

    root, size, everything = len(context), len(x), torch.cat([context, x])
    q = norm(project("q_proj", x).view(size, heads, -1), w["self_attn.q_norm.weight"], eps)
    k = norm(project("k_proj", everything).view(root + size, kv_heads, -1), w["self_attn.k_norm.weight"], eps)
    v = project("v_proj", everything).view(root + size, kv_heads, -1)
    seen = torch.tensor([[sees(config, i, root + row, key, root) for key in range(root + size)] for row in range(size)])
    out = []
    for head in range(heads):
        group = head // (heads // kv_heads)
        scores = turn(q[:, head], cos[root:], sin[root:]) @ turn(k[:, group], cos, sin).T / q.shape[-1] ** 0.5
        out.append(torch.softmax(scores.masked_fill(~seen, float("-inf")), -1) @ v[:, group])
    return project("o_proj", torch.cat(out, -1))


def corrections(tensors: Tensors, embedding: Tensor, hidden: Tensor, tokens: list[int]) -> Tensor:
    """Return ``[len(tokens), V]``: row ``d`` corrects position ``d`` after ``tokens[: d + 1]``, the root first.

    The head is known by its tensors.
    """
    w = {name: tensor.double() for name, tensor in tensors.items()}
    ids, hidden = torch.tensor(tokens), hidden[: len(tokens)].double()
    if "prefix_gru.weight_ih_l0" in w:
        inner = F.silu(torch.cat([hidden, gru_states(w, embedding, ids)], -1) @ w["embed_proj.0.weight"].T)
        return inner @ w["embed_proj.2.weight"].T
    inner = codes = w["markov_head.markov_w1.weight"][ids]
    if "markov_head.gate_proj.weight" in w:
        both = torch.cat([hidden, codes], -1)
        gate = both @ w["markov_head.gate_proj.weight"].T + w["markov_head.gate_proj.bias"]
        inner = torch.sigmoid(gate) * codes
    elif "markov_head.joint_proj.weight" in w:
        inner = recurrent_codes(w, hidden, codes)
    return inner @ w["markov_head.markov_w2.weight"].T


def gru_states(w: Tensors, embedding: Tensor, ids: Tensor) -> Tensor:
    width, inputs = w["prefix_gru.weight_hh_l0"].shape[1], w["prefix_gru.weight_ih_l0"].shape[1]
    gru = torch.nn.GRU(inputs, width, bias=False, batch_first=True).double()
    gru.load_state_dict({name: w[f"prefix_gru.{name}"] for name in ("weight_ih_l0", "weight_hh_l0")})
    with torch.no_grad():
        return gru(embedding.detach().double()[ids][None])[0][0]


def recurrent_codes(w: Tensors, hidden: Tensor, codes: Tensor) -> Tensor:
    rank = codes.shape[1]
    state, outputs = torch.zeros(rank, dtype=torch.float64), []
    for z, code in zip(hidden, codes, strict=True):
        joint = w["markov_head.joint_proj.weight"] @ torch.cat([state, code, z]) + w["markov_head.joint_proj.bias"]
        gate, new, out = torch.sigmoid(joint[:rank]), torch.tanh(joint[rank : 2 * rank]), joint[2 * rank :]
        state = gate * state + (1 - gate) * new
        outputs.append(torch.tanh(out))
    return torch.stack(outputs)


def greedy_chain(
    config: Json, tensors: Tensors, embedding: Tensor, hidden: Tensor, logits: Tensor, root: int
) -> list[int]:
    """Return the greedy corrected chain; positions before ``pure_draft_prefix_len`` stay uncorrected."""
    tokens = [root]
    for depth, row in enumerate(logits):
        if depth >= own(config, "pure_draft_prefix_len", 0):
            row = row + corrections(tensors, embedding, hidden, tokens)[-1]
        tokens.append(int(row.argmax()))
    return tokens[1:]
