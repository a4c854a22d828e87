"""The drafter's own KV cache: context only, preallocated, grown by doubling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specforge.checkpoints import DrafterConfig
from specforge.drafters.backbone import KeysValues

LEAST_CAPACITY = 256


class ContextCache:
    """Keys and values of the committed tokens of one stream; a block is written behind them and forgotten.

    Attributes:
        length: committed tokens.
    """

    def __init__(self, config: DrafterConfig, room: int, device: torch.device, dtype: torch.dtype) -> None:
        self.length = 0
        shape = (len(config.layer_types), 2, 1, config.num_kv_heads, LEAST_CAPACITY, config.head_dim)
        self._store = torch.empty(shape, device=device, dtype=dtype)
        self.reserve(room)

    @property
    def capacity(self) -> int:
        """Tokens there is room for, the block's included."""
        return self._store.shape[4]

    def reserve(self, room: int) -> None:
        """Make room for ``room`` tokens in all; what is there is copied only when the store doubles."""
        capacity = self.capacity
        if room <= capacity:
            return
        while capacity < room:
            capacity *= 2
        grown = self._store.new_empty((*self._store.shape[:4], capacity, self._store.shape[5]))
        grown[..., : self.length, :] = self._store[..., : self.length, :]
        self._store = grown

    def append(self, layers: Sequence[KeysValues]) -> None:
        """Keep the keys and values ``[1, key heads, n, head_dim]`` of ``n`` committed tokens, one pair a layer."""
        end = self.length + layers[0][0].shape[2]
        self.reserve(end)
        for layer, (keys, values) in enumerate(layers):
            self._store[layer, 0, :, :, self.length : end] = keys
            self._store[layer, 1, :, :, self.length : end] = values
        self.length = end

    def extend(self, layer: int, keys: Tensor, values: Tensor, first: int) -> KeysValues:
        """Return views of context and block; the caller has reserved room for the block."""
        end = self.length + keys.shape[2]
        self._store[layer, 0, :, :, self.length : end] = keys
        self._store[layer, 1, :, :, self.length : end] = values
        return self._store[layer, 0, :, :, first:end], self._store[layer, 1, :, :, first:end]
