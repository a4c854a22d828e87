"""The trie of continuations: what retrieval drafters hand to the scorer that reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


class ContinuationTrie:
    """Weighted continuations of the root, merged where they begin alike.

    Node 0 is the root. A token's probability at a node is its share of the weight that passes through the node's
    children. ``NOWHERE`` is the node of every path that no continuation takes; it has no children.
    """

    NOWHERE = -1

    def __init__(self, continuations: Iterable[tuple[Sequence[int], float]] = ()) -> None:
        """Merge ``(tokens, weight)`` pairs; weights are above 0."""
        self._children: list[dict[int, int]] = [{}]
        self._weights: list[float] = [0.0]
        for tokens, weight in continuations:
            self._add(tokens, weight)
        self._ranked: dict[int, list[tuple[int, float]]] = {}

    def _add(self, tokens: Sequence[int], weight: float) -> None:
        node = 0
        for token in tokens:
            child = self._children[node].get(token)
            if child is None:
                child = len(self._children)
                self._children[node][token] = child
                self._children.append({})
                self._weights.append(0.0)
            self._weights[child] += weight
            node = child

    @property
    def width(self) -> int:
        """The most children that any node has."""
        return max(len(children) for children in self._children)

    def child(self, node: int, token: int) -> int:
        """Return the node that ``token`` leads to from ``node``, or ``NOWHERE``."""
        return self.NOWHERE if node == self.NOWHERE else self._children[node].get(token, self.NOWHERE)

    def ranked(self, node: int) -> list[tuple[int, float]]:
        """Return ``(token, log-probability)`` of the children of ``node``, best first, ties by smaller token id."""
        if node == self.NOWHERE:
            return []
        if node not in self._ranked:
            weights = {token: self._weights[child] for token, child in self._children[node].items()}
            total = math.fsum(weights.values())
            order = sorted(weights, key=lambda token: (-weights[token], token))
            self._ranked[node] = [(token, min(0.0, math.log(weights[token] / total))) for token in order]
        return self._ranked[node]
