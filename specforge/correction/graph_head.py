"""A correction head that records the steps of another, and whole builds, and replays them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from attrs import define, evolve, field
from torch import Tensor

from specforge.children import Children
from specforge.correction.recording import Recorder
from specforge.correction.slices import Slices
from specforge.interfaces import CorrectionHead, Draft, State

T = TypeVar("T")

LARGEST_BATCH = 128
"""Batches of more nodes are run as they come: their work hides what launching it takes."""

MOST_RECORDINGS = 64
"""Recordings that a head keeps; what else comes up runs as it comes, so that odd shapes do not fill the device."""


def padded(count: int) -> int:
    """Return the number of nodes that a batch of ``count`` is padded to: the next power of two."""
    return 1 << (count - 1).bit_length()


Signature = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
"""Names, shapes and dtypes of the tensors that a recording runs on."""


def signature(tensors: dict[str, Tensor], rows: dict[str, int] | None = None) -> Signature:
    """Return the names, shapes and dtypes of ``tensors``, with so many ``rows`` of those that are named there."""
    rows = rows or {}
    return tuple((name, (rows.get(name, len(t)), *t.shape[1:]), t.dtype) for name, t in sorted(tensors.items()))


def make_buffers(shapes: Signature, device: torch.device) -> dict[str, Tensor]:
    """Return zeros that can be written to within and outside of an inference session."""
    with torch.inference_mode(False):
        return {name: torch.zeros(shape, dtype=dtype, device=device) for name, shape, dtype in shapes}


def load(buffers: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Copy ``tensors`` into the first rows of ``buffers``; what the others hold is valid, and of no use."""
    for name, given in tensors.items():
        buffers[name][: len(given)].copy_(given)


@define(eq=False)
class GraphHead(CorrectionHead):
    """Replays the advance and expand of a head for batches padded to a few sizes, and whole builds.

    All buffers and recordings are its own; two pipelines have two heads. A step returns copies, so that states live as
    long as their holders want; the result of ``replay`` is overwritten by the next.

    Attributes:
        inner: the head whose operations are recorded. Its states are attrs classes that name their tensors of one row
            a path in ``per_path`` and those of one row a draft position in ``per_depth``, and have ``slices``; it
            reads the draft in ``begin`` only.
        recorder: records.
    """

    inner: CorrectionHead
    recorder: Recorder
    first_corrected: int = field(init=False)
    _recordings: dict[Hashable, Callable[[], Any]] = field(init=False, factory=dict)
    _buffers: dict[Hashable, dict[str, Tensor]] = field(init=False, factory=dict)

    replays = True

    @first_corrected.default
    def _inners(self) -> int:
        return self.inner.first_corrected

    def begin(self, draft: Draft, root: Tensor) -> State:
        """Return the state after the root, ``[1]`` int64."""
        return self.inner.begin(draft, root)

    def prepare(self, state: State, candidates: Tensor) -> State:
        """Return the root's state, ready for ``candidates`` ``[D, M]`` only."""
        return self.inner.prepare(state, candidates)

    def correct(self, draft: Draft, depth: int, state: State, candidates: Tensor | None) -> Tensor:
        """Return ``[n, M]`` float32 to add to the base logits, not recorded."""
        return self.inner.correct(draft, depth, state, candidates)

    def slice_log_probs(
        self, draft: Draft, depth: int, state: State, base: Tensor, candidates: Tensor, temperature: float
    ) -> Tensor:
        """Return ``[n, M]`` float32 log-probabilities over ``candidates``, not recorded."""
        return self.inner.slice_log_probs(draft, depth, state, base, candidates, temperature)

    def best_children(
        self, scores: Tensor, log_probs: Tensor, tokens: Tensor, width: int, ranked: bool = False
    ) -> Children:
        """Return the ``width`` best children, not recorded."""
        return self.inner.best_children(scores, log_probs, tokens, width, ranked)

    def best_of_slice(
        self, draft: Draft, depth: int, state: Any, base: Tensor, candidates: Tensor, temperature: float, width: int
    ) -> tuple[Tensor, Tensor]:
        """Return the ``width`` best of ``slice_log_probs`` and their columns, in one replay."""
        arguments = (temperature, width)
        rows = _per_path(state)
        count = len(next(iter(rows.values())))
        if count > LARGEST_BATCH or self.recorder.busy():
            return self.inner.best_of_slice(draft, depth, state, base, candidates, *arguments)
        tensors = {**rows, **_at_depth(state, depth), "base": base, "candidates": candidates}

        def expand(given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            there = _with(state, given)
            return self.inner.best_of_slice(Draft(1), 0, there, given["base"], given["candidates"], *arguments)

        values, columns = self._step(("expand", *arguments), expand, tensors, dict.fromkeys(rows, padded(count)))
        return values[:count].clone(), columns[:count].clone()

    def advance(self, draft: Draft, depth: int, state: Any, parent_rows: Tensor, tokens: Tensor) -> State:
        """Return the states after ``tokens`` ``[m]``, each following the path ``parent_rows``, in one replay."""
        count = len(tokens)
        if count > LARGEST_BATCH or self.recorder.busy():
            return self.inner.advance(draft, depth, state, parent_rows, tokens)
        rows = {name: tensor.index_select(0, parent_rows) for name, tensor in _per_path(state).items()}
        rows["tokens"] = tokens
        tensors = {**rows, **_at_depth(state, depth)}
        tensors.pop("slices", None)

        def follow(given: dict[str, Tensor]) -> dict[str, Tensor]:
            own_rows = torch.arange(len(given["tokens"]), device=given["tokens"].device)
            return _per_path(self.inner.advance(Draft(1), 0, _with(state, given), own_rows, given["tokens"]))

        found = self._step(("advance",), follow, tensors, dict.fromkeys(rows, padded(count)))
        return evolve(state, **{name: tensor[:count].clone() for name, tensor in found.items()})

    def replay(self, key: Hashable, build: Callable[[Draft, Tensor], T], draft: Draft, root: Tensor) -> T:
        """Return ``build(draft, root)`` with ``inner`` as the correction, recorded once for a key and shapes."""
        if self.recorder.busy():
            return build(evolve(draft, correction=self.inner), root)
        parts = {"hidden": draft.hidden, "base_logits": draft.base_logits, "root": root}
        tensors = {name: tensor for name, tensor in parts.items() if tensor is not None}
        key = ("build", key, signature(tensors))
        if key not in self._recordings and self._full:
            return build(evolve(draft, correction=self.inner), root)
        buffers = self._loaded("build", tensors, {})
        if key not in self._recordings:
            given = Draft(draft.depth, buffers.get("hidden"), buffers.get("base_logits"), self.inner)
            self._recordings[key] = self.recorder.record(lambda: build(given, buffers["root"]))
        return self._recordings[key]()

    def _step(
        self,
        kind: tuple[Hashable, ...],
        step: Callable[[dict[str, Tensor]], T],
        tensors: dict[str, Tensor],
        rows: dict[str, int],
    ) -> T:
        """Return ``step`` of ``tensors``, padded to so many ``rows`` where they are named."""
        buffers = self._loaded(kind, tensors, rows)
        key = (kind, signature(tensors, rows))
        if key not in self._recordings:
            if self._full:
                return step(buffers)
            self._recordings[key] = self.recorder.record(lambda: step(buffers))
        return self._recordings[key]()

    @property
    def _full(self) -> bool:
        return len(self._recordings) >= MOST_RECORDINGS

    def _loaded(self, kind: Hashable, tensors: dict[str, Tensor], rows: dict[str, int]) -> dict[str, Tensor]:
        """Return the buffers for ``tensors``, which hold them; of the same kind and shapes, they are the same."""
        shapes = signature(tensors, rows)
        if (kind, shapes) not in self._buffers:
            self._buffers[kind, shapes] = make_buffers(shapes, next(iter(tensors.values())).device)
        load(self._buffers[kind, shapes], tensors)
        return self._buffers[kind, shapes]


def _per_path(state: Any) -> dict[str, Tensor]:
    """Return the tensors of ``state`` that have a row a path."""
    found = {name: getattr(state, name) for name in state.per_path}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _at_depth(state: Any, depth: int) -> dict[str, Tensor]:
    """Return the rows at ``depth``, ``[1, ...]``, of what ``state`` holds of every draft position."""
    found = {name: getattr(state, name) for name in state.per_depth}
    if state.slices is not None:
        found["slices"] = state.slices.rows
    return {name: tensor[depth : depth + 1] for name, tensor in found.items() if tensor is not None}


def _with(state: Any, tensors: dict[str, Tensor]) -> Any:
    """Return ``state`` on other ``tensors``: one draft position, and the slices that belong to it, if any."""
    names = [name for name in (*state.per_path, *state.per_depth) if name in tensors]
    slices = Slices(tensors["slices"]) if "slices" in tensors else None
    return evolve(state, **{name: tensors[name] for name in names}, slices=slices)
