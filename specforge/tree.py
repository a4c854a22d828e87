"""The draft tree: what a builder returns, what the target checks, what a verifier walks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from attrs import field, frozen

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def _read_only(values: Any, dtype: type) -> npt.NDArray[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    array: npt.NDArray[Any] = np.array(values)
    if dtype is np.int64 and array.size and array.dtype.kind not in "iu":
        raise ValueError(f"token ids, parents and depths are whole numbers, got {array.dtype}: {array.tolist()[:8]}")
    array = array.astype(dtype)
    array.setflags(write=False)
    return array


def _ints(values: Any) -> Ints:
    return _read_only(values, np.int64)


def _floats(values: Any) -> Floats:
    return _read_only(values, np.float32)


def _ints_if_given(values: Any) -> Any:
    return None if values is None else _ints(values)


def _floats_if_given(values: Any) -> Any:
    return None if values is None else _floats(values)


@frozen(eq=False)
class Proposal:
    """The distributions that a tree's nodes were drawn from, for rejection verification.

    The children of a node, in the order of their indices, are its draws in order, without replacement. Rows are
    sparse: a draft is often confined to a few candidates.

    Attributes:
        tokens: ``[R, K]`` int64 token ids, no id with mass twice in a row.
        probabilities: ``[R, K]`` float64, each row with mass sums to 1; entries of mass 0 are padding.
        rows: ``[N]`` for each node the row that its children were drawn from, -1 for a node without children.

    Raises:
        ValueError: when the two tensors differ in shape, or a row index is out of range.
    """

    tokens: torch.Tensor
    probabilities: torch.Tensor
    rows: Ints = field(converter=_ints)

    def __attrs_post_init__(self) -> None:
        if self.tokens.ndim != 2 or self.tokens.shape != self.probabilities.shape:
            raise ValueError(
                f"tokens {tuple(self.tokens.shape)} and probabilities {tuple(self.probabilities.shape)} must be [R, K]"
            )
        if np.any((self.rows < -1) | (self.rows >= self.tokens.shape[0])):
            raise ValueError(f"rows {self.rows.tolist()} must lie in -1..{self.tokens.shape[0] - 1}")

    def distribution(self, node: int, like: torch.Tensor) -> torch.Tensor:
        """Return what the children of ``node`` were drawn from, dense; ``like`` ``[V]`` gives shape, dtype, device."""
        row = int(self.rows[node])
        if row < 0:
            raise ValueError(f"node {node} has no proposal row: its children were not drawn")
        dense = torch.zeros_like(like)
        return dense.scatter_add_(0, self.tokens[row].to(like.device), self.probabilities[row].to(like))


@frozen(eq=False)
class DraftTree:
    """An immutable tree of draft tokens in topological order; node 0 is the root (the bonus token).

    Arrays are read-only and live on the host.

    Attributes:
        token_ids: ``[N]`` int64.
        parents: ``[N]`` int64; -1 for the root, every other parent is smaller than its child's index.
        depths: ``[N]`` int64; 0 for the root. Derived from ``parents`` where not given.
        log_probs: ``[N]`` float32 cumulative path scores; 0 for the root and where not given.
        proposal: where the nodes were drawn from, or ``None`` when they were chosen deterministically.
        edge_log_probs: ``[N]`` float32, each node's log-probability given its parent as the scorer gave it (0 for the
            root), where ``log_probs`` sums something else, such as calibrated ones; else ``None``.

    Raises:
        ValueError: when the arrays are no tree in topological order, when depths do not follow the parents, or
            when two children of one node share a token.
    """

    token_ids: Ints = field(converter=_ints)
    parents: Ints = field(converter=_ints)
    depths: Ints = field(default=None, converter=_ints_if_given)
    log_probs: Floats = field(default=None, converter=_floats_if_given)
    proposal: Proposal | None = None
    edge_log_probs: Floats | None = field(default=None, converter=_floats_if_given)

    def __attrs_post_init__(self) -> None:
        depths = _checked_depths(self.token_ids, self.parents)
        if self.depths is None:
            object.__setattr__(self, "depths", _ints(depths))
        elif self.depths.tolist() != depths:
            raise ValueError(f"depths {self.depths.tolist()} do not follow from parents; {depths} would")
        if self.log_probs is None:
            object.__setattr__(self, "log_probs", _floats(np.zeros(len(self))))
        elif self.log_probs.shape != self.token_ids.shape:
            raise ValueError(f"log_probs has shape {self.log_probs.shape}, token_ids {self.token_ids.shape}")
        if self.proposal is not None and self.proposal.rows.shape != self.token_ids.shape:
            raise ValueError(f"proposal.rows has shape {self.proposal.rows.shape}, not {self.token_ids.shape}")
        if self.edge_log_probs is not None and self.edge_log_probs.shape != self.token_ids.shape:
            raise ValueError(f"edge_log_probs has shape {self.edge_log_probs.shape}, not {self.token_ids.shape}")

    @classmethod
    def from_chain(
        cls,
        token_ids: Sequence[int] | Ints | torch.Tensor,
        log_probs: Sequence[float] | Floats | torch.Tensor | None = None,
        proposal: Proposal | None = None,
    ) -> DraftTree:
        """Make the tree of one path. ``token_ids`` starts with the root; ``log_probs`` are cumulative."""
        return cls(token_ids, np.arange(len(token_ids)) - 1, log_probs=log_probs, proposal=proposal)

    @classmethod
    def root_only(cls, token_id: int) -> DraftTree:
        """Make the tree without drafts: verifying it is a plain decoding step."""
        return cls([token_id], [-1])

    def __len__(self) -> int:
        """Count the nodes, the root included."""
        return int(self.token_ids.shape[0])

    @property
    def budget(self) -> int:
        """Count the draft nodes, the root not included."""
        return len(self) - 1

    @cached_property
    def mask(self) -> npt.NDArray[np.bool_]:
        """``[N, N]`` read-only: row i is True at i and at i's ancestors, nowhere else."""
        mask = np.eye(len(self), dtype=bool)
        cells = mask.reshape(-1)
        row_starts = np.arange(len(self)) * len(self)
        above = np.maximum(self.parents, 0)
        ancestors = above
        for _ in range(int(self.depths.max())):
            cells[row_starts + ancestors] = True
            ancestors = above[ancestors]
        mask.setflags(write=False)
        return mask

    @cached_property
    def _child_by_token(self) -> tuple[dict[int, int], ...]:
        table: tuple[dict[int, int], ...] = tuple({} for _ in range(len(self)))
        tokens, parents = self.token_ids.tolist(), self.parents.tolist()
        for node in range(1, len(self)):
            table[parents[node]][tokens[node]] = node
        return table

    def children(self, node: int) -> tuple[int, ...]:
        """Return the children of ``node`` in the order of their indices."""
        return tuple(self._child_by_token[node].values())

    def child_with_token(self, node: int, token_id: int) -> int | None:
        """Return the child of ``node`` that holds ``token_id``, or ``None``."""
        return self._child_by_token[node].get(token_id)

    def path(self, node: int) -> tuple[int, ...]:
        """Return the nodes from the root to ``node``, both included."""
        if not 0 <= node < len(self):
            raise IndexError(f"node {node} is not in a tree of {len(self)} nodes")
        nodes = [int(node)]
        while nodes[-1] != 0:
            nodes.append(int(self.parents[nodes[-1]]))
        return tuple(reversed(nodes))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """Return the tokens from the root to ``node``, both included."""
        return tuple(int(self.token_ids[n]) for n in self.path(node))

    def render(self, decode: Callable[[int], str] | None = None, accepted: Sequence[int] = ()) -> str:
        """Draw the tree as text, a node a line with its probability given its parent; ``*`` marks ``accepted``."""
        kept = set(accepted)
        show = decode or str
        lines: list[str] = []
        stack: list[tuple[int, str, str]] = [(0, "", "")]
        while stack:
            node, lead, below = stack.pop()
            parent = int(self.parents[node])
            edge = "" if parent < 0 else f" {np.exp(self.log_probs[node] - self.log_probs[parent]):.3f}"
            lines.append(f"{lead}{show(int(self.token_ids[node]))}{edge}{' *' if node in kept else ''}")
            children = self.children(node)
            for child in reversed(children):
                last = child == children[-1]
                stack.append((child, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")))
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.render()


def _checked_depths(token_ids: Ints, parents: Ints) -> list[int]:
    """Return the depth of every node, once it is sure that the arrays are those of a tree."""
    if token_ids.ndim != 1 or token_ids.shape != parents.shape or len(token_ids) == 0:
        raise ValueError(f"token_ids {token_ids.shape} and parents {parents.shape} must be [N] with a root, N >= 1")
    above = parents.tolist()
    if above[0] != -1:
        raise ValueError(f"node 0 is the root and has parent -1, not {above[0]}")
    depths = [0] * len(above)
    for node, parent in enumerate(above[1:], start=1):
        if not 0 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}; a parent is a smaller index than its child's")
        depths[node] = depths[parent] + 1
    if len(set(zip(above, token_ids.tolist(), strict=True))) != len(above):
        raise ValueError("two children of one node share a token")
    return depths
