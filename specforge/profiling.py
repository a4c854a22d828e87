"""Measuring what a round costs on this machine: ``C_draft`` and ``C_verify(n, context)`` of a cost model.

A *pass* times one drafter call and one target verification at every number of nodes, in an order shuffled anew, on a
cache that holds random tokens up to the context length. Slow drifts of the machine so fall on all sizes alike. Medians
are taken over passes, after warm-up passes that do not count, and made monotone and convex by ``cost_model.fit``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from attrs import define, field, frozen
from torch import Tensor

from specforge import registry
from specforge.cost_model import CostModel, fit
from specforge.errors import ConfigError
from specforge.interfaces import Drafter, DraftSession, Round
from specforge.measurements import Journal, Pass
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.tree import DraftTree

if TYPE_CHECKING:
    from specforge.target import Target, TreeCache

logger = logging.getLogger("specforge")

Progress = Callable[[int, int], None]

DEFAULT_CONTEXTS = (128, 512, 1024, 2048)
DEFAULT_NODES = (0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
QUICK_CONTEXTS = (32, 512)
QUICK_LONGEST_SECONDS = 0.25
_SEED = 20260601


def _counts(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)


@frozen
class Plan:
    """What to measure.

    Attributes:
        contexts: increasing context lengths, at least 1 each.
        nodes: increasing numbers of draft nodes.
        repeats: passes whose median counts, at each context length.
        warmup: passes before them that do not count.

    Raises:
        ConfigError: naming the value and what it must be.
    """

    contexts: tuple[int, ...] = field(default=DEFAULT_CONTEXTS, converter=_counts)
    nodes: tuple[int, ...] = field(default=DEFAULT_NODES, converter=_counts)
    repeats: int = 9
    warmup: int = 2

    def __attrs_post_init__(self) -> None:
        _check_counts("contexts", self.contexts, 1)
        _check_counts("nodes", self.nodes, 0)
        for name, least in (("repeats", 1), ("warmup", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}")

    @property
    def passes(self) -> int:
        """Passes at one context length, warm-up included."""
        return self.warmup + self.repeats

    def check(self, target: Target) -> None:
        """Refuse context lengths at which the largest tree does not fit the target.

        Raises:
            ConfigError: naming the context length and the largest that fits.
        """
        room = target.context_limit - tree_depth(self.nodes[-1]) - 1
        if self.contexts[-1] > room:
            raise ConfigError(
                f"context {self.contexts[-1]} does not fit target {target.name!r}; with {self.nodes[-1]} nodes "
                f"behind it the largest that does is {room}"
            )


def _check_counts(name: str, values: Sequence[int], least: int) -> None:
    if not values or values[0] < least or any(a >= b for a, b in pairwise(values)):
        raise ConfigError(f"{name} is {list(values)}; it must be increasing, at least one, from {least} on")


def drafter_name(drafter: Drafter) -> str:
    """Return what a cost model calls the drafter: its registered name, and its checkpoint where it has one."""
    name, checkpoint = registry.drafters.name_of(drafter), getattr(drafter, "checkpoint", None)
    return f"{name} {os.fspath(checkpoint)}" if isinstance(checkpoint, str | os.PathLike) else name


def device_names(target: Target) -> tuple[str, ...]:
    """Return the names of the target's device, the one a cost model is written with first."""
    device = torch.device(target.device)
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})", "cuda"
    return (device.type,)


def dtype_name(target: Target) -> str:
    """Return the target's dtype without ``torch.``."""
    return str(target.dtype).removeprefix("torch.")


def tree_depth(nodes: int) -> int:
    """Return the depth of ``synthetic_tree(nodes, ...)``."""
    return (nodes + 1).bit_length() - 1


def synthetic_tree(nodes: int, vocabulary: int, generator: np.random.Generator) -> DraftTree:
    """Return a complete binary tree of ``nodes`` draft nodes with random tokens.

    A forward costs the same for every shape of a tree: the mask differs, the work does not.
    """
    index = np.arange(nodes + 1)
    parents = (index - 1) // 2
    parents[0] = -1
    offsets = generator.integers(vocabulary, size=nodes + 1)
    return DraftTree((offsets[parents] + index) % vocabulary, parents)


@define
class _Bench:
    """A target and a drafter session with ``context`` random tokens behind them, ready to be timed.

    Attributes:
        history: ``[L]`` int64, what the drafter has behind it, the root last; it grows by a token a draft.
        feature: ``[1, 1, len(taps) * H]`` target features of one token, or ``None``.
    """

    target: Target
    taps: tuple[int, ...]
    cache: TreeCache
    session: DraftSession
    history: Tensor
    feature: Tensor | None

    @classmethod
    def of(cls, target: Target, drafter: Drafter, context: int) -> _Bench:
        generator = np.random.default_rng([_SEED, context])
        history = torch.from_numpy(generator.integers(target.vocab_size, size=context + 1)).to(target.device)
        cache = target.new_cache(context)
        features = target.prefill(history[:-1], cache, drafter.taps).features
        session = drafter.start(history[:-1], features)
        return cls(target, drafter.taps, cache, session, history, None if features is None else features[:, -1:])

    def draft(self) -> float:
        """Return the seconds of what a round asks of the drafter: take in a committed token, propose a block."""
        root, self.history = self.history[-1:], torch.cat([self.history, self.history[:1]])
        round = Round(self.history, self.target.context_limit, SamplingParams(), KeyedUniforms(_SEED))

        def work() -> None:
            self.session.commit(root, self.feature)
            self.session.draft(round)

        return self._timed(work)

    def verify(self, tree: DraftTree) -> float:
        """Return the seconds of one verification; its cache entries are dropped again."""
        seconds = self._timed(lambda: self.target.verify(tree, self.cache, self.taps))
        self.cache.commit(())
        return seconds

    def _timed(self, work: Callable[[], object]) -> float:
        self._wait()
        begin = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - begin

    def _wait(self) -> None:
        if self.history.device.type == "cuda":
            torch.cuda.synchronize(self.history.device)


def _identity(target: Target, drafter: Drafter) -> dict[str, str]:
    return {
        "target": target.name,
        "drafter": drafter_name(drafter),
        "device": device_names(target)[0],
        "dtype": dtype_name(target),
    }


@torch.inference_mode()
def _run_pass(bench: _Bench, plan: Plan, context: int, index: int) -> Pass:
    generator = np.random.default_rng([_SEED, context, index])
    seconds = dict.fromkeys(plan.nodes, 0.0)
    for position in generator.permutation(len(plan.nodes)).tolist():
        nodes = plan.nodes[position]
        seconds[nodes] = bench.verify(synthetic_tree(nodes, bench.target.vocab_size, generator))
    return Pass(context, index, bench.draft(), tuple(seconds.values()))


def measure_cost_model(
    target: Target,
    drafter: Drafter,
    plan: Plan | None = None,
    *,
    progress: Progress | None = None,
    resume_path: str | os.PathLike[str] | None = None,
) -> CostModel:
    """Measure what drafting and verifying cost, and fit a cost model.

    Args:
        target: the target.
        drafter: the drafter, bound to ``target``.
        plan: what to measure; by default ``Plan()``.
        progress: called with the passes done and those there are in all, after each one.
        resume_path: a file to keep measurements in; passes found there are not measured again.

    Raises:
        ConfigError: when a context does not fit the target, or the file holds measurements of something else.
    """
    plan = plan or Plan()
    plan.check(target)
    identity = _identity(target, drafter)
    settings = {"contexts": list(plan.contexts), "nodes": list(plan.nodes)}
    journal = Journal.open(resume_path, {**identity, **settings, "warmup": plan.warmup})
    total, done = len(plan.contexts) * plan.passes, 0
    for context in plan.contexts:
        bench: _Bench | None = None
        for index in range(plan.passes):
            if (context, index) not in journal.passes:
                if bench is None:
                    with torch.inference_mode():
                        bench = _Bench.of(target, drafter, context)
                    # The measurements go on, but this process is as cold as a new one.
                    for _ in range(plan.warmup if index >= plan.warmup else 0):
                        _run_pass(bench, plan, context, index)
                journal.add(_run_pass(bench, plan, context, index))
            done += 1
            if progress is not None:
                progress(done, total)
    return _model_of(plan, journal.passes, identity)


def _model_of(plan: Plan, passes: dict[tuple[int, int], Pass], identity: dict[str, str]) -> CostModel:
    counted = {
        context: [passes[context, index] for index in range(plan.warmup, plan.passes)] for context in plan.contexts
    }
    draft = float(np.median([p.draft for rows in counted.values() for p in rows]))
    medians = [np.median([p.verify for p in rows], axis=0) for rows in counted.values()]
    seconds = [tuple(fit(plan.nodes, row).tolist()) for row in medians]
    return CostModel(draft, plan.contexts, plan.nodes, seconds, **identity)


def profile_to_file(
    target: Target,
    drafter: Drafter,
    path: str | os.PathLike[str],
    plan: Plan | None = None,
    progress: Progress | None = None,
) -> CostModel:
    """Measure a cost model and write it to ``path``; interrupted, the next call goes on where this one stopped.

    Measurements are kept next to it, in ``<path>.partial``, until the model is written.

    Raises:
        ConfigError: see ``measure_cost_model``, and when ``path`` cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"cannot write cost model {os.fspath(path)!r}: it is a folder")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write cost model {os.fspath(path)!r}: no folder {os.fspath(path.parent)!r}")
    partial = path.with_name(f"{path.name}.partial")
    model = measure_cost_model(target, drafter, plan, progress=progress, resume_path=partial)
    model.save(path)
    partial.unlink()
    return model


def quick_profile(target: Target, drafter: Drafter, largest: int) -> CostModel:
    """Measure a rough cost model in a few seconds, and say so in the log ``specforge``.

    Sizes double up to ``largest`` nodes, or until one verification takes a quarter of a second; beyond that the model
    goes on linearly.
    """
    logger.warning(
        "no cost model given: measuring drafting and verification briefly; `specforge profile` makes one to keep"
    )
    begin = time.perf_counter()
    room = target.context_limit - tree_depth(largest) - 1
    contexts = sorted({max(1, min(context, room)) for context in QUICK_CONTEXTS})
    plan = Plan(contexts, _quick_nodes(target, drafter, largest, contexts[0]), repeats=3, warmup=1)
    model = measure_cost_model(target, drafter, plan)
    logger.info("measured a cost model in %.1f s", time.perf_counter() - begin)
    return model


@torch.inference_mode()
def _quick_nodes(target: Target, drafter: Drafter, largest: int, context: int) -> list[int]:
    bench = _Bench.of(target, drafter, context)
    generator = np.random.default_rng(_SEED)
    bench.verify(synthetic_tree(0, target.vocab_size, generator))
    nodes, n = [0], 1
    while nodes[-1] < largest:
        n = min(n, largest)
        nodes.append(n)
        tree = synthetic_tree(n, target.vocab_size, generator)
        # The first pass of a size may be slow for once; only a second one tells.
        if min(bench.verify(tree), bench.verify(tree)) > QUICK_LONGEST_SECONDS:
            break
        n *= 2
    return nodes
