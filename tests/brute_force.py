"""The specification of the builders, written to be read: enumerate every node, sort by the total order, cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen
from table_scorers import Case, Path

from specforge.tree import DraftTree

Mask = npt.NDArray[np.bool_]


@frozen(eq=False)
class Node:
    """A node of the fully enumerated tree.

    ``order`` is the total order as nested tuples: lower score last, then deeper last, then the parent's own order,
    then the rank in the parent's row.
    """

    path: Path
    score: np.float32
    edge: np.float32
    order: Any
    parent: Node | None

    @property
    def depth(self) -> int:
        return len(self.path)

    def key(self, beta: float) -> np.float32:
        return np.float32(self.score + np.float32(beta * self.depth))


ROOT = Node((), np.float32(0.0), np.float32(0.0), (), None)


def children(case: Case, parent: Node) -> list[Node]:
    """Return the candidates below ``parent``."""
    found = []
    for rank, (token, log_prob) in enumerate(case.row(parent.path)):
        if np.isnan(log_prob) or log_prob == -np.inf:
            continue
        edge = np.float32(min(log_prob, 0.0))
        score = np.float32(parent.score + edge)
        order = (-score, parent.depth + 1, parent.order, rank)
        found.append(Node((*parent.path, token), score, edge, order, parent))
    return found


def enumerate_nodes(case: Case) -> list[Node]:
    """Return all nodes of the tree, down to its limit."""
    found: list[Node] = []
    level = [ROOT]
    for _ in range(case.limit):
        level = [child for parent in level for child in children(case, parent)]
        found += level
    return found


def best_nodes(nodes: list[Node], budget: int, beta: float = 0.0) -> list[Node]:
    """Return the ``budget`` best nodes by key, then depth, then the raw-score order."""
    return sorted(nodes, key=lambda node: (-node.key(beta), node.depth, node.order))[:budget]


def level_by_level(case: Case, keep: Callable[[int, int], int]) -> list[Node]:
    """Keep the best ``keep(depth, kept so far)`` nodes of each depth among the children of those kept above."""
    found: list[Node] = []
    level = [ROOT]
    for depth in range(case.limit):
        offered = [child for parent in level for child in children(case, parent)]
        level = sorted(offered, key=lambda node: node.order)[: keep(depth, len(found))]
        found += level
    return found


def supertree(case: Case) -> list[Node]:
    """Return what the pruned builder may choose from."""
    return level_by_level(case, lambda depth, kept: case.width)


def fixed_tree(case: Case) -> list[Node]:
    """Return what the fixed builder keeps: an even share of what is left, at each depth."""
    return level_by_level(case, lambda depth, kept: -(-(case.budget - kept) // (case.limit - depth)))


def search(case: Case, within: list[Node], beta: float) -> set[Path]:
    """Search best-first by key, among the nodes of ``within``, one node at a time."""
    allowed = {node.path for node in within}
    taken: set[Path] = set()
    frontier = children(case, ROOT) if case.limit else []
    while frontier and len(taken) < case.budget:
        frontier = [node for node in frontier if node.path in allowed]
        if not frontier:
            break
        best = min(frontier, key=lambda node: (-node.key(beta), node.depth, node.order))
        frontier.remove(best)
        taken.add(best.path)
        if best.depth < case.limit:
            frontier += children(case, best)
    return taken


def by_depth(nodes: list[Node]) -> list[Node]:
    """Number as the depth-wise builder does: by depth, best first within a depth."""
    return sorted(nodes, key=lambda node: (node.depth, node.order))


def paths_of(tree: DraftTree) -> list[Path]:
    """Return each draft node's tokens, the root's left out, in the order of the nodes."""
    return [tree.path_tokens(node)[1:] for node in range(1, len(tree))]


def assert_is_tree(tree: DraftTree, budget: int, limit: int, mask: Mask | None = None) -> None:
    """Assert what every tree must be, from its arrays alone: prefix-closed, topological, within budget and depth.

    ``mask`` stands in for the tree's own, to show that a wrong one is caught.
    """
    parents = tree.parents.tolist()
    assert 0 <= tree.budget <= budget
    assert parents[0] == -1
    assert all(0 <= parent < node for node, parent in enumerate(parents[1:], start=1))
    assert len(set(zip(parents, tree.token_ids.tolist(), strict=True))) == len(parents)
    mask = tree.mask if mask is None else mask
    for node in range(len(parents)):
        ancestors, above = {node}, node
        while above:
            above = parents[above]
            ancestors.add(above)
        assert tree.depths[node] == len(ancestors) - 1 <= limit
        assert set(np.flatnonzero(mask[node]).tolist()) == ancestors
        assert node == 0 or tree.log_probs[node] <= tree.log_probs[parents[node]]


def assert_same_tree(tree: DraftTree, nodes: list[Node], root: int = 3) -> None:
    """Assert that tokens, parents, depths and scores are those of ``nodes``, in their order, exactly."""
    number = {(): 0, **{node.path: index for index, node in enumerate(nodes, start=1)}}
    assert tree.token_ids.tolist() == [root, *(node.path[-1] for node in nodes)]
    assert tree.parents.tolist() == [-1, *(number[node.path[:-1]] for node in nodes)]
    assert tree.depths.tolist() == [0, *(node.depth for node in nodes)]
    assert tree.log_probs.tolist() == [0.0, *(float(node.score) for node in nodes)]
