"""Bootstrap intervals over prompts.

A prompt is what was drawn at random, so prompts are what is resampled: with all their turns, and for all pipelines
alike. Everything that is computed from the same resamples is thereby paired by prompt, and the spread between easy and
hard prompts, which all pipelines share, falls out of ratios and differences.

Every statistic here is a function of sums over prompts, and comes as an array ``[1 + R]``: entry 0 is the statistic of
the sample itself, the others are those of ``R`` resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt
from attrs import field, frozen
from scipy import special

RESAMPLES = 10_000
LEVEL = 0.95

Doubles = npt.NDArray[np.float64]


@frozen
class Interval:
    """An estimate and the bootstrap interval around it.

    Attributes:
        estimate: the sample's own value; ``None`` where there is nothing to compute it from.
        low: lower end, ``None`` where there are too few prompts for an interval.
        high: upper end, likewise.
    """

    estimate: float | None
    low: float | None
    high: float | None

    def to_json(self) -> dict[str, float | None]:
        """Return ``{"estimate", "low", "high"}``."""
        return {"estimate": self.estimate, "low": self.low, "high": self.high}


@frozen(eq=False)
class Resampling:
    """``R`` resamples of ``P`` prompts, drawn once and used for every statistic of these prompts.

    Attributes:
        counts: ``[1 + R, P]`` float64: how often each resample holds each prompt; row 0 is the sample, all ones.
    """

    counts: Doubles = field(repr=False)

    @classmethod
    def of(cls, prompts: int, name: str = "", resamples: int = RESAMPLES, seed: int = 0) -> Resampling:
        """Draw resamples.

        Args:
            prompts: how many prompts there are, at least 1.
            name: of the prompt set; sets of different names are resampled independently.
            resamples: how many.
            seed: same seed, same resamples.
        """
        generator = np.random.default_rng([seed, crc32(name.encode())])
        drawn = generator.multinomial(prompts, np.full(prompts, 1.0 / prompts), size=resamples)
        return cls(np.concatenate([np.ones((1, prompts)), drawn]))

    @property
    def prompts(self) -> int:
        """How many prompts are resampled."""
        return self.counts.shape[1]

    def sums(self, values: npt.ArrayLike) -> Doubles:
        """Return ``[1 + R]``, the sum of ``values`` ``[P]`` over each resample."""
        return self.counts @ np.asarray(values, dtype=np.float64)


def ratio(numerator: Doubles, denominator: Doubles) -> Doubles:
    """Return the quotient; NaN where a resample holds nothing to divide by."""
    return np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator != 0.0)


def interval(values: Doubles, prompts: int, level: float = LEVEL) -> Interval:
    """Return the sample's value and an expanded percentile interval.

    Percentile intervals are too narrow for few prompts: resampling underestimates the spread by ``sqrt((n-1)/n)`` and
    knows nothing of Student's t. The percentiles are therefore taken further out, by the share that makes the interval
    of a mean that of a t-test (Hesterberg 2015, arXiv:1411.5279).

    Args:
        values: ``[1 + R]``, the sample's value first.
        prompts: how many prompts were resampled; of several prompt sets, the smallest.
        level: share of such intervals that are to hold the true value.
    """
    estimate = _finite(values[0])
    known = values[1:][np.isfinite(values[1:])]
    if estimate is None or prompts < 2 or not known.size:
        return Interval(estimate, None, None)
    outside = expanded_tail(prompts, (1.0 - level) / 2.0)
    low, high = np.quantile(known, [outside, 1.0 - outside])
    return Interval(estimate, float(low), float(high))


def expanded_tail(prompts: int, tail: float) -> float:
    """Return the share to leave out at each end instead of ``tail``, for ``prompts`` at least 2."""
    quantile = special.stdtrit(prompts - 1, 1.0 - tail)
    return float(special.ndtr(-math.sqrt(prompts / (prompts - 1)) * quantile))


def p_value(values: Doubles, prompts: int) -> float | None:
    """Return the two-sided p-value of a difference being 0: a t-test whose standard error is the bootstrap's.

    Unlike counting resamples beyond 0 it has no smallest value, which correcting for many comparisons would hit.

    Args:
        values: ``[1 + R]`` differences, the sample's first.
        prompts: as for ``interval``.

    Returns:
        ``None`` where there are too few prompts; 1 where there is neither difference nor spread.
    """
    estimate = _finite(values[0])
    known = values[1:][np.isfinite(values[1:])]
    if estimate is None or prompts < 2 or not known.size:
        return None
    error = float(np.std(known)) * math.sqrt(prompts / (prompts - 1))
    # A difference without spread is the same for every prompt; what is left of one is rounding.
    if error <= 1e-12 * max(1.0, abs(estimate)):
        return 1.0 if abs(estimate) <= 1e-9 else 0.0
    return float(2.0 * special.stdtr(prompts - 1, -abs(estimate) / error))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for being looked at together (Holm 1979): below 0.05 is beyond chance for the family as a whole.

    ``None`` stays and does not count.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, index) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * p))
        adjusted[index] = least
    return adjusted


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
