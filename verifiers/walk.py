"""The walk that the deterministic verifiers share: choose as plain decoding would, follow the tree while it agrees."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specforge.interfaces import Round, Verdict
from specforge.sampling import choose_next
from specforge.tree import DraftTree


def walk(tree: DraftTree, choose: Callable[[int], int]) -> Verdict:
    """Follow the child that holds ``choose(node)`` from the root on, until there is none."""
    path = [0]
    while True:
        token = choose(path[-1])
        child = tree.child_with_token(path[-1], token)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)


def chooser(tree: DraftTree, logits: Tensor, round: Round) -> Callable[[int], int]:
    """Return the function from a node to the token that plain decoding would choose after its path."""

    def choose(node: int) -> int:
        position = round.root_position + int(tree.depths[node]) + 1
        return choose_next(logits[node], path_ids(tree, node, round), round.sampling, round.draws, position)

    return choose


def path_ids(tree: DraftTree, node: int, round: Round) -> Tensor:
    """Return the ``[L]`` token ids of the sequence that ends at ``node``: the history, then the path's drafts."""
    if node == 0:
        return round.history
    return torch.cat([round.history, round.history.new_tensor(tree.path_tokens(node)[1:])])
