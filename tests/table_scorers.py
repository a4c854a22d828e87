"""Table-driven scorers: fixed candidate rows per path, with ties, gaps and narrow vocabularies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np
import torch
from attrs import define, evolve, field, frozen
from hypothesis import strategies as st
from torch import Tensor

from specforge.interfaces import Candidates, CorrectionHead, Draft, Round, Scorer, Verdict
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.strategies.calibration import Calibration
from specforge.tree import DraftTree

Path = tuple[int, ...]
Row = tuple[tuple[int, float], ...]


@frozen
class Case:
    """A small tree of scores, drawn by seed, and what a builder is asked for.

    Log-probabilities are multiples of ``step`` below ``top``: with few ``levels`` most of them tie. A positive ``top``
    makes some of them positive, which builders must clamp to 0.
    """

    seed: int
    vocab: int
    depth: int
    levels: int
    gaps: float
    step: float = 0.25
    top: float = 0.0
    shared: bool = False
    max_depth: int = 99
    budget: int = 4
    width: int = 3
    beta: float = 0.0

    @property
    def limit(self) -> int:
        return min(self.depth, self.max_depth)

    def row(self, path: Path) -> Row:
        """Return the candidates after ``path``, best first, ties by smaller token; those that are none come last."""
        return _row(self, (len(path),) if self.shared else (len(path), *path))

    def draft(self) -> Draft:
        return Draft(self.depth)

    def round(self) -> Round:
        return Round(torch.tensor([7, 5, 3]), self.max_depth, SamplingParams(), KeyedUniforms(0))

    def scorer(self) -> TableScorer:
        return (SharedTableScorer if self.shared else TableScorer)(self)


@lru_cache(maxsize=20_000)
def _row(case: Case, key: Path) -> Row:
    rng = np.random.default_rng([case.seed, *key])
    scores = case.top - case.step * rng.integers(0, case.levels, case.vocab)
    gaps = rng.random(case.vocab) < case.gaps
    holes = np.where(rng.random(case.vocab) < 0.5, -np.inf, np.nan)
    order = sorted(range(case.vocab), key=lambda token: (gaps[token], -scores[token], token))
    return tuple((token, float(holes[token] if gaps[token] else np.float32(scores[token]))) for token in order)


@frozen(eq=False)
class Paths:
    """The drafts on each path."""

    paths: tuple[Path, ...]
    width: int | None

    def select(self, rows: Tensor) -> Paths:
        return evolve(self, paths=tuple(self.paths[row] for row in rows.tolist()))


@frozen(eq=False)
class TableScorer(Scorer):
    """Reads a case's rows; refuses to follow what is no candidate, and counts its calls."""

    case: Case
    calls: dict[str, int] = field(factory=lambda: {"expand": 0, "advance": 0, "rows": 0}, init=False)

    def begin(self, draft: Draft, round: Round) -> Paths:
        return Paths(((),), round.max_children)

    def expand(self, draft: Draft, depth: int, state: Paths) -> Candidates:
        assert depth < self.case.limit
        assert all(len(path) == depth for path in state.paths)
        self.calls["expand"] += 1
        self.calls["rows"] += len(state.paths)
        rows = [self.case.row(path)[: state.width] for path in state.paths]
        return Candidates(
            torch.tensor([[token for token, _ in row] for row in rows]),
            torch.tensor([[score for _, score in row] for row in rows], dtype=torch.float32),
        )

    def advance(self, draft: Draft, depth: int, state: Paths, parent_rows: Tensor, tokens: Tensor) -> Paths:
        self.calls["advance"] += 1
        paths = []
        for row, token in zip(parent_rows.tolist(), tokens.tolist(), strict=True):
            parent = state.paths[row]
            assert len(parent) == depth
            assert self.case.shared or dict(self.case.row(parent))[token] > -np.inf
            paths.append((*parent, token))
        return evolve(state, paths=tuple(paths))


class SharedTableScorer(TableScorer):
    """The same, for rows that depend on the depth alone."""

    path_independent = True


def cases(**fixed: object) -> st.SearchStrategy[Case]:
    """Draw cases: ties, gaps, clamped scores, one depth, budgets beyond the tree, depth limits down to 0."""
    drawn = {
        "seed": st.integers(0, 2**32 - 1),
        "vocab": st.integers(1, 5),
        "depth": st.integers(1, 4),
        "levels": st.sampled_from([1, 2, 3, 8]),
        "gaps": st.sampled_from([0.0, 0.0, 0.2, 0.6]),
        "step": st.sampled_from([0.25, 0.3]),
        "top": st.sampled_from([0.0, 0.25]),
        "shared": st.booleans(),
        "max_depth": st.sampled_from([0, 1, 2, 99, 99, 99]),
        "budget": st.sampled_from([1, 2, 3, 5, 8, 20, 1000]),
        "width": st.integers(1, 6),
        "beta": st.sampled_from([0.0, 0.0, -0.25, -0.3, -1.0]),
    }
    return st.builds(Case, **{**drawn, **{name: st.just(value) for name, value in fixed.items()}})


def fixed_cases(count: int, **fixed: object) -> list[Case]:
    """Return ``count`` cases of the same kinds, always the same ones, for showing that a broken variant is caught."""
    rng = np.random.default_rng(2024)
    made = []
    for seed in range(count):
        case = Case(
            seed=seed,
            vocab=int(rng.integers(2, 6)),
            depth=int(rng.integers(2, 5)),
            levels=int(rng.choice([2, 3, 8])),
            gaps=float(rng.choice([0.0, 0.2])),
            step=float(rng.choice([0.25, 0.3])),
            budget=int(rng.choice([2, 3, 5, 8, 20])),
            width=int(rng.integers(1, 6)),
            beta=float(rng.choice([0.0, -0.25, -1.0])),
        )
        made.append(attrs.evolve(case, **fixed))
    return made


@frozen(eq=False)
class TableHead(CorrectionHead):
    """A correction head with fixed numbers per path, multiples of ``step``; ``scale`` 0 corrects nothing.

    States are paths, the root included.
    """

    vocab: int
    seed: int = 0
    scale: int = 4
    step: float = 0.25
    first_corrected: int = 0

    def begin(self, draft: Draft, root: Tensor) -> Paths:
        return Paths(((int(root[0]),),), None)

    def table(self, path: Path) -> Tensor:
        rng = np.random.default_rng([self.seed, len(path), *path])
        return torch.tensor(self.step * rng.integers(-self.scale, self.scale + 1, self.vocab), dtype=torch.float32)

    def correct(self, draft: Draft, depth: int, state: Paths, candidates: Tensor | None) -> Tensor:
        assert depth >= self.first_corrected
        assert all(len(path) == depth + 1 for path in state.paths)
        rows = torch.stack([self.table(path) for path in state.paths])
        return rows if candidates is None else rows[:, candidates]

    def advance(self, draft: Draft, depth: int, state: Paths, parent_rows: Tensor, tokens: Tensor) -> Paths:
        steps = zip(parent_rows.tolist(), tokens.tolist(), strict=True)
        paths = tuple((*state.paths[row], token) for row, token in steps)
        assert all(len(path) == depth + 2 for path in paths)
        return evolve(state, paths=paths)


def cost_model(costs: Sequence[float]) -> dict[str, Any]:
    """Return the JSON object of a cost model with these verification times by number of nodes."""
    return {
        "target": "t",
        "drafter": "d",
        "device": "cpu",
        "dtype": "float32",
        "draft_seconds": 0.5,
        "context_lengths": [1],
        "nodes": list(range(len(costs))),
        "seconds": {"1": list(costs)},
    }


def doubted(depth: int, log_probs: Tensor) -> Tensor:
    """Trust deep edges less; flattens some differences, as learned curves do."""
    return (log_probs * (1.0 + 0.5 * depth)).clamp(min=-1.5).where(log_probs > -torch.inf, log_probs)


@define(eq=False)
class DeepDoubt(Calibration):
    """A calibration with a fixed rule."""

    seen: list = field(factory=list)

    def apply(self, depth: int, log_probs: Tensor) -> Tensor:
        return doubted(depth, log_probs)

    def observe(self, tree: DraftTree, verdict: Verdict) -> None:
        self.seen.append(verdict)
