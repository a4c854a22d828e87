"""Online calibration: how often a node is really accepted, given that its parent was.

A drafter's edge probability ``p`` is a promise. Corrected path probabilities promise more than the target accepts
(DominoTree's negative result on adaptive budgets), and a cost-aware budget that believes them always hits its cap. Here
the promise is compared with what happened, per draft position ``d`` and range of ``p``: every child of an accepted node
is one observation, accepted or not. With ``m`` observations in a range, ``s`` the sum of their ``p``, ``a`` the number
accepted, ``c`` the range's centre and a prior worth ``k`` accepted drafts, that is ``k / c`` observations,

    x = (s + k) / (m + k / c)        y = (a + k) / (m + k / c)

is one knot of the calibration curve of ``d``: before anything is seen it lies on the diagonal, and the more is seen the
closer it is to what was observed. (Counting the prior in accepted drafts rather than in observations keeps it in charge
of rare edges until something of theirs was seen: none of 100 accepted says nothing against ``p = 0.001``.) The ``y``
are made non-decreasing by isotonic regression with weights ``m + k / c``; the curve is linear in ``(log x, log y)``
between knots and keeps the ratio ``y / x`` outside them, but never rises above probability 1. A draft position of which
nothing was seen is left exactly as it is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from attrs import define, field, frozen
from scipy.optimize import isotonic_regression
from torch import Tensor

from specforge.errors import ConfigError, IncompatiblePartsError
from specforge.interfaces import Verdict
from specforge.jsonfiles import read_object, write_object
from specforge.tree import DraftTree

Doubles = npt.NDArray[np.float64]

ONLINE = "online"
PRIOR = 2.0
LOG_ODDS = 8
"""The ranges are one unit of log-odds wide, from -8 to 8 (p from 0.0003 to 0.9997), and one at each end."""

_KEYS = ("prior", "target", "depths")
_COUNTS = ("seen", "promised", "accepted")


def range_edges() -> Doubles:
    """Return the probabilities between neighbouring ranges, increasing."""
    return 1.0 / (1.0 + np.exp(-np.arange(-LOG_ODDS, LOG_ODDS + 1, dtype=np.float64)))


def range_centres() -> Doubles:
    """Return one probability within each range, increasing: the middle in log-odds."""
    return 1.0 / (1.0 + np.exp(-(np.arange(-LOG_ODDS, LOG_ODDS + 2, dtype=np.float64) - 0.5)))


@define(eq=False)
class Counts:
    """What was observed at one draft position, by range of the raw edge probability.

    Attributes:
        seen: ``[R]`` float64, children of accepted nodes.
        promised: ``[R]`` float64, the sum of their raw edge probabilities.
        accepted: ``[R]`` float64, how many of them were accepted.
    """

    seen: Doubles = field(factory=lambda: np.zeros(len(range_centres())))
    promised: Doubles = field(factory=lambda: np.zeros(len(range_centres())))
    accepted: Doubles = field(factory=lambda: np.zeros(len(range_centres())))

    def add(self, probabilities: Doubles, accepted: npt.NDArray[np.bool_]) -> None:
        """Count edges: their raw probabilities and whether each was accepted, both ``[m]``."""
        ranges = np.searchsorted(range_edges(), probabilities, side="right")
        np.add.at(self.seen, ranges, 1.0)
        np.add.at(self.promised, ranges, probabilities)
        np.add.at(self.accepted, ranges, accepted.astype(np.float64))


@frozen(eq=False)
class Curve:
    """A calibration curve: non-decreasing and piecewise linear, from log-probability to log-probability.

    Attributes:
        knots: ``[R]`` increasing log-probabilities; a segment ends at each, one more lies above the last.
        segments: ``[R + 1, 4]``, of each segment a point on it (x, y), its slope, and the value it must not exceed.
    """

    knots: Tensor
    segments: Tensor

    @classmethod
    def of(cls, counts: Counts, prior: float) -> Curve:
        """Draw the curve of what was seen; ``prior`` is the weight of the diagonal, in accepted drafts."""
        weight = counts.seen + prior / range_centres()
        x = np.log((counts.promised + prior) / weight)
        rising = isotonic_regression((counts.accepted + prior) / weight, weights=weight).x
        y = np.log(np.minimum(rising, 1.0))
        inner = np.diff(y) / np.diff(x)
        # A segment is held below where the next one starts, lest rounding at a knot break the order.
        columns = (
            np.concatenate([x[:1], x]),
            np.concatenate([y[:1], y]),
            np.concatenate([[1.0], inner, [1.0]]),
            np.concatenate([y, [0.0]]),
        )
        return cls(torch.from_numpy(x), torch.from_numpy(np.stack(columns, axis=1)))

    def to(self, like: Tensor) -> Curve:
        """Return the curve on the device and in the dtype of ``like``."""
        return Curve(self.knots.to(like), self.segments.to(like))

    def __call__(self, log_probs: Tensor) -> Tensor:
        """Apply the curve to log-probabilities of any shape; -inf and NaN stay what they are."""
        segment = torch.searchsorted(self.knots, log_probs.contiguous())
        x, y, slope, most = self.segments[segment].unbind(-1)
        return torch.minimum(y + (log_probs - x) * slope, most)


@define(eq=False)
class Calibration:
    """Calibrated edge probabilities, one curve a draft position, learned from verified rounds.

    It outlives a generation: what one prompt taught serves the next. Only drafting depends on it, never the output.

    Attributes:
        learning: whether ``observe`` counts.
        prior: the weight of the raw probability in each range, in accepted drafts; above 0.
        target: the target it was learned on, ``None`` until it is bound.
        depths: the counts of each draft position, as many as were seen.
    """

    learning: bool = True
    prior: float = field(default=PRIOR, converter=float)
    target: str | None = None
    depths: list[Counts] = field(factory=list)
    _curves: dict[tuple[int, torch.device, torch.dtype], Curve] = field(factory=dict, init=False, repr=False)

    KIND: ClassVar[str] = "calibration"

    @prior.validator
    def _check_prior(self, attribute: object, value: float) -> None:
        if not 0.0 < value < float("inf"):
            raise ConfigError(f"calibration: prior is {value!r}; it must be above 0 and finite")

    @classmethod
    def of(cls, source: Calibration | str | os.PathLike[str]) -> Calibration:
        """Return the calibration that an option holds: ``"online"`` learns, a saved one (a path) does not.

        Raises:
            ConfigError: when the file cannot be read or is no calibration.
        """
        if isinstance(source, Calibration):
            return source
        if isinstance(source, str) and source == ONLINE:
            return cls()
        if isinstance(source, str | os.PathLike):
            return cls.load(source)
        raise ConfigError(f"calibration is {source!r}; it must be {ONLINE!r} or a path to a saved calibration")

    @classmethod
    def load(cls, path: str | os.PathLike[str], learning: bool = False) -> Calibration:
        """Read a saved calibration; with ``learning`` it goes on from there.

        Raises:
            ConfigError: naming the file and what is wrong with it.
        """
        contents = read_object(path, cls.KIND)
        try:
            return cls.from_dict(contents, learning)
        except ConfigError as error:
            raise ConfigError(f"{os.fspath(path)!r}: {error}") from error

    @classmethod
    def from_dict(cls, contents: Mapping[str, Any], learning: bool = False) -> Calibration:
        """Make a calibration of its JSON object.

        Raises:
            ConfigError: naming the key that is missing or wrong.
        """
        if set(contents) != set(_KEYS) or not isinstance(contents["depths"], list):
            raise ConfigError(f"calibration has {', '.join(contents) or 'no keys'}; it must have {', '.join(_KEYS)}")
        prior, target = contents["prior"], contents["target"]
        if isinstance(prior, bool) or not isinstance(prior, int | float):
            raise ConfigError(f"calibration: prior is {prior!r}; it must be above 0 and finite")
        if not (target is None or isinstance(target, str)):
            raise ConfigError(f"calibration: target is {target!r}; it must be a string")
        return cls(learning, prior, target, [_read_counts(d, row) for d, row in enumerate(contents["depths"])])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        depths = [{name: getattr(counts, name).tolist() for name in _COUNTS} for counts in self.depths]
        return {"prior": self.prior, "target": self.target, "depths": depths}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON object to ``path``, atomically; loading it gives the same curves, bit by bit."""
        write_object(path, self.to_dict(), self.KIND)

    def bind(self, target: str) -> None:
        """Note the target that is learned from.

        Raises:
            IncompatiblePartsError: when it was learned on another one, naming both.
        """
        if self.target not in (None, target):
            raise IncompatiblePartsError(
                f"the calibration was learned on target {self.target!r}, this pipeline uses {target!r}"
            )
        self.target = target

    def apply(self, depth: int, log_probs: Tensor) -> Tensor:
        """Return calibrated edge log-probabilities for draft position ``depth``.

        Args:
            depth: the draft position of the children, that is the depth of their parents.
            log_probs: raw edge log-probabilities of any shape, at most 0; -inf and NaN stay what they are.

        Returns:
            The shape, dtype and device of ``log_probs``, at most 0, in an order that does not contradict theirs.
        """
        if depth >= len(self.depths) or not self.depths[depth].seen.any():
            return log_probs
        return self._curve(depth, log_probs)(log_probs)

    def _curve(self, depth: int, like: Tensor) -> Curve:
        key = (depth, like.device, like.dtype)
        if key not in self._curves:
            self._curves[key] = Curve.of(self.depths[depth], self.prior).to(like)
        return self._curves[key]

    def observe(self, tree: DraftTree, verdict: Verdict) -> None:
        """Count every child of every accepted node; nothing where the calibration does not learn."""
        if not self.learning:
            return
        path = np.asarray(verdict.path, dtype=np.int64)
        children = np.flatnonzero(np.isin(tree.parents, path))
        if not len(children):
            return
        accepted = np.isin(children, path)
        probabilities = np.exp(raw_edges(tree)[children])
        positions = tree.depths[children] - 1
        for depth in np.unique(positions).tolist():
            here = positions == depth
            self._counts(depth).add(probabilities[here], accepted[here])
        self._curves = {key: curve for key, curve in self._curves.items() if key[0] not in positions}

    def _counts(self, depth: int) -> Counts:
        while len(self.depths) <= depth:
            self.depths.append(Counts())
        return self.depths[depth]


def raw_edges(tree: DraftTree) -> Doubles:
    """Return ``[N]`` float64, each node's log-probability given its parent as the scorer gave it; 0 for the root.

    A tree that was searched by raw scores need not carry them: they are differences of its path scores.
    """
    if tree.edge_log_probs is not None:
        return np.minimum(tree.edge_log_probs.astype(np.float64), 0.0)
    scores = tree.log_probs.astype(np.float64)
    edges = np.zeros(len(tree))
    edges[1:] = scores[1:] - scores[tree.parents[1:]]
    return np.minimum(edges, 0.0)


def _read_counts(depth: int, contents: object) -> Counts:
    width = len(range_centres())
    where = f"calibration: depths[{depth}]"
    if not isinstance(contents, Mapping) or set(contents) != set(_COUNTS):
        raise ConfigError(f"{where} must be an object with {', '.join(_COUNTS)}")
    rows = {name: _read_row(f"{where}.{name}", contents[name], width) for name in _COUNTS}
    if np.any(rows["accepted"] > rows["seen"]) or np.any(rows["promised"] > rows["seen"]):
        raise ConfigError(f"{where} has more accepted or promised than seen")
    return Counts(**rows)


def _read_row(name: str, row: object, width: int) -> Doubles:
    numbers = isinstance(row, Sequence) and all(
        isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < math.inf for v in row
    )
    if not numbers or len(row) != width:  # type: ignore[arg-type]
        raise ConfigError(f"{name} must be {width} numbers, none negative")
    return np.array(row, dtype=np.float64)
