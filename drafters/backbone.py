"""The backbone that DFlash, Domino and DSpark share: block attention over projected target features (arXiv:2602.06036).

The target's features of committed tokens go through ``fc`` and ``hidden_norm`` and become keys and values in every
layer, at their own positions. The noise block (the root and masks) is the only thing the layers transform; it attends
to that context and to itself. Parameter names are those of z-lab's checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specforge.checkpoints import DrafterConfig

KeysValues = tuple[Tensor, Tensor]


class Sight(NamedTuple):
    """What the block's queries see in one layer.

    Attributes:
        first: the first context entry that any of them sees.
        mask: ``[S, context - first + S]`` bool, batch dimensions before it allowed; ``None`` when every query sees
            all of it.
    """

    first: int
    mask: Tensor | None


class Context(Protocol):
    """Keys and values of the committed tokens."""

    def extend(self, layer: int, keys: Tensor, values: Tensor, first: int) -> KeysValues:
        """Return the layer's context from entry ``first`` on, followed by the block's own, which are not kept."""
        ...


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32 as Qwen3 does."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return self.weight * F.rms_norm(x.float(), x.shape[-1:], eps=self.eps).to(x.dtype)


class Rotary:
    """Cosines and sines of absolute positions; frequencies stay float32 whatever dtype the model is cast to."""

    def __init__(self, config: DrafterConfig) -> None:
        self._frequencies, self._scaling = _frequencies(config)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> KeysValues:
        """Return cosines and sines, each ``[..., n, head_dim]`` in ``dtype``, of positions ``[..., n]``."""
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        angles = positions[..., None].float() * self._frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return (angles.cos() * self._scaling).to(dtype), (angles.sin() * self._scaling).to(dtype)


def _frequencies(config: DrafterConfig) -> tuple[Tensor, float]:
    # On the CPU even where modules are made on the meta device to be filled from a file: no file holds frequencies.
    if config.rope["rope_type"] == "default":
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float, device="cpu") / config.head_dim
        return 1.0 / config.rope["rope_theta"] ** exponents, 1.0
    hugging_face = Qwen3Config(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=dict(config.rope),
    )
    with torch.device("cpu"):
        return ROPE_INIT_FUNCTIONS[config.rope["rope_type"]](hugging_face, torch.device("cpu"))


def rotate(x: Tensor, rotary: KeysValues) -> Tensor:
    """Apply rotary embeddings to ``x [B, heads, n, head_dim]``."""
    cosines, sines = rotary
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat([-second, first], dim=-1) * sines


class Attention(nn.Module):
    """Grouped-query attention from a noise block to context and block."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden, bias = config.hidden_size, config.attention_bias
        self.head_dim = config.head_dim
        self.num_kv_heads = config.num_kv_heads
        self.q_proj = nn.Linear(hidden, config.num_heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, config.num_kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, config.num_kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, hidden, bias=bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def keys_values(self, x: Tensor, rotary: KeysValues) -> KeysValues:
        """Return the keys and values of ``x [B, n, H]``, each ``[B, key heads, n, head_dim]``."""
        shape = (*x.shape[:2], self.num_kv_heads, self.head_dim)
        keys = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        return rotate(keys, rotary), self.v_proj(x).view(shape).transpose(1, 2)

    def forward(self, x: Tensor, rotary: KeysValues, context: Context, layer: int, sight: Sight) -> Tensor:
        """Return ``[B, S, H]``; the query heads of a group are folded into rows, so that no key is repeated."""
        batch, count, _ = x.shape
        keys, values = context.extend(layer, *self.keys_values(x, rotary), sight.first)
        queries = self.q_norm(self.q_proj(x).view(batch, count, -1, self.head_dim)).transpose(1, 2)
        group = queries.shape[1] // self.num_kv_heads
        folded = rotate(queries, rotary).reshape(batch, self.num_kv_heads, group * count, self.head_dim)
        mask = None if sight.mask is None else torch.cat([sight.mask] * group, dim=-2)
        output = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
        return self.o_proj(output.reshape(batch, -1, count, self.head_dim).transpose(1, 2).reshape(batch, count, -1))


class MLP(nn.Module):
    """Qwen3's gated MLP."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, S, H]``."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer; only the noise block passes through it."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, rotary: KeysValues, context: Context, layer: int, sight: Sight) -> Tensor:
        """Return ``[B, S, H]``."""
        x = x + self.self_attn(self.input_layernorm(x), rotary, context, layer, sight)
        return x + self.mlp(self.post_attention_layernorm(x))


class Backbone(nn.Module):
    """The block-parallel drafter without its head."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.taps) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(config) for _ in config.layer_types])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(config)

    def context(self, features: Tensor, positions: Tensor) -> list[KeysValues]:
        """Return every layer's keys and values of committed tokens.

        Args:
            features: ``[B, n, len(taps) * H]`` target features.
            positions: ``[n]`` int64, the tokens' sequence indices.
        """
        x = self.hidden_norm(self.fc(features))
        rotary = self.rotary(positions, x.dtype)
        return [attention.keys_values(x, rotary) for attention in self.modules() if isinstance(attention, Attention)]

    def forward(self, noise: Tensor, positions: Tensor, context: Context, sights: Sequence[Sight]) -> Tensor:
        """Return the hidden states after the final norm, ``[B, S, H]``.

        Args:
            noise: ``[B, S, H]`` embeddings of the noise block; several blocks may lie side by side under a mask.
            positions: ``[S]`` int64, or ``[B, 1, S]`` where sequences differ.
            context: what the layers attend to besides the block.
            sights: what the queries see, one a layer.
        """
        rotary = self.rotary(positions, noise.dtype)
        x = noise
        for index, (layer, sight) in enumerate(zip(self.layers, sights, strict=True)):
            x = layer(x, rotary, context, index, sight)
        return self.norm(x)


def block_sights(config: DrafterConfig, context: int, block: int, device: torch.device) -> list[Sight]:
    """Return what a block of ``block`` rows behind ``context`` committed tokens sees, one a layer.

    Context is seen whole, except through a sliding window ``W``: key ``k`` is then seen from query ``q`` if
    ``q - k < W``. Inside the block, full layers see both ways; causal ones see ``k <= q``, and sliding ones that are
    not causal also need ``k - q < W``.
    """
    made: dict[tuple[int | None, bool], Sight] = {}
    for layer in range(len(config.layer_types)):
        kind = (config.window(layer), config.causal(layer))
        if kind not in made:
            made[kind] = _sight(*kind, context, block, device)
    return [made[config.window(i), config.causal(i)] for i in range(len(config.layer_types))]


def _sight(window: int | None, causal: bool, context: int, block: int, device: torch.device) -> Sight:
    first = 0 if window is None else max(0, context - window + 1)
    reach_is_whole = window is None or context - first + block <= window
    if reach_is_whole and not causal:
        return Sight(first, None)
    queries = torch.arange(context, context + block, device=device)[:, None]
    keys = torch.arange(first, context + block, device=device)[None, :]
    seen = keys <= queries if causal else torch.ones(block, keys.shape[1], dtype=torch.bool, device=device)
    if window is not None:
        seen = seen & ((queries - keys).abs() < window)
    return Sight(first, seen)
