"""The target's KV cache: preallocated, grown by doubling, with uncommitted tree entries behind the prefix.

One layer holds ``[1, heads, capacity, head_dim]`` for keys and for values. A forward writes its ``N`` entries at
``length .. length + N - 1``; committing a path moves the entries of the accepted nodes to the front of that range,
in place, so no step touches the prefix. Sliding-window layers keep every key: the window is a matter of the mask,
which makes rolling back the same for all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

DEFAULT_CAPACITY = 256


class TreeLayer(CacheLayerMixin):
    """One layer's keys and values. ``length`` entries are committed, ``pending`` more lie behind them."""

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0
        self.pending = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate for the shapes and dtype of the first entries."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = self._allocate(key_states)
        self.values = self._allocate(value_states)
        self.is_initialized = True

    def _allocate(self, like: Tensor) -> Tensor:
        return like.new_empty((*like.shape[:2], self.capacity, like.shape[3]))

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write entries behind the prefix, over any that were not committed.

        Args:
            key_states: ``[1, heads, N, key_dim]``.
            value_states: ``[1, heads, N, value_dim]``.
            args: ignored, as are ``kwargs``; transformers passes what some other caches need.
            kwargs: ignored.

        Returns:
            Views (no copies) of the prefix and the new entries, ``[1, heads, length + N, dim]``.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        count = key_states.shape[2]
        end = self.length + count
        if end > self.capacity:
            self._grow(end)
        self.keys.narrow(2, self.length, count).copy_(key_states)
        self.values.narrow(2, self.length, count).copy_(value_states)
        self.pending = count
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def _grow(self, needed: int) -> None:
        # keys and values one after the other, so that at most one of them exists twice
        self.capacity = max(needed, 2 * self.capacity)
        self.keys = self._moved(self.keys)
        self.values = self._moved(self.values)

    def _moved(self, old: Tensor) -> Tensor:
        new = self._allocate(old)
        new.narrow(2, 0, self.length).copy_(old.narrow(2, 0, self.length))
        return new

    def commit(self, kept: int, moved: Tensor | None) -> None:
        """Keep the first ``kept`` pending entries as they lie and those at indices ``moved`` behind them.

        Args:
            kept: pending entries that are in place already.
            moved: int64 ``[m]``, absolute cache indices, or ``None`` for none.
        """
        end = self.length + kept
        if moved is not None:
            # gathered before it is written: source and destination ranges may overlap
            for entries in (self.keys, self.values):
                entries.narrow(2, end, moved.shape[0]).copy_(entries.index_select(2, moved))
            end += moved.shape[0]
        self.length, self.pending = end, 0

    def get_seq_length(self) -> int:
        """Return how many entries attention sees: committed and pending."""
        return self.length + self.pending

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys that ``query_length`` new queries see, and the first key's offset."""
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: the layer grows."""
        return -1


class TreeCache(Cache):
    """The KV cache of one sequence.

    Args:
        num_layers: decoder layers of the target.
        capacity: entries to allocate on first use; doubled, layer by layer, when a forward needs more.
    """

    def __init__(self, num_layers: int, capacity: int = DEFAULT_CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; a cache holds at least 1 entry")
        super().__init__(layers=[TreeLayer(capacity) for _ in range(num_layers)])

    @property
    def length(self) -> int:
        """Committed entries."""
        return self.layers[0].length

    @property
    def pending(self) -> int:
        """Entries of the last forward that were neither committed nor dropped."""
        return self.layers[0].pending

    @property
    def capacity(self) -> int:
        """Entries that fit before the cache grows."""
        return self.layers[0].capacity

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values at the present capacity."""
        return sum(t.nbytes for layer in self.layers if layer.is_initialized for t in (layer.keys, layer.values))

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        """Keep the pending entries of the accepted nodes, in place, behind the prefix; drop the rest.

        Costs time in the length of the path, not of the prefix.

        Args:
            path: node indices from the root on, as in ``Verdict.path``; ``()`` drops everything.

        Raises:
            ValueError: when the path does not start at the root (0), does not increase, or leaves the pending entries.
        """
        nodes = [int(node) for node in path]
        self._check_path(nodes)
        kept = next((i for i, node in enumerate(nodes) if node != i), len(nodes))
        moved = None
        if kept < len(nodes):
            moved = torch.tensor(nodes[kept:], device=self.layers[0].keys.device) + self.length
        for layer in self.layers:
            layer.commit(kept, moved)

    def _check_path(self, nodes: list[int]) -> None:
        if nodes and (nodes[0] != 0 or any(a >= b for a, b in pairwise(nodes))):
            raise ValueError(f"path {nodes} must start at the root, 0, and go to larger and larger node indices")
        if nodes and nodes[-1] >= self.pending:
            raise ValueError(f"path {nodes} leaves the {self.pending} entries that wait to be committed")
