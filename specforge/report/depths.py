"""How deep drafts are accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import frozen

from specforge.report.runfolder import RoundLine


@frozen(eq=False)
class DepthCurve:
    """How deep a pipeline's drafts were accepted.

    Attributes:
        pipeline: its name.
        rounds: how many rounds were counted.
        reached: for depth d = 1, 2, ...: the share of rounds that accepted at least d drafts.
        followed: for the same depths: of the rounds that accepted d - 1 drafts and had drafted to depth d, the share
            that accepted d; ``None`` where there were none.
    """

    pipeline: str
    rounds: int
    reached: tuple[float, ...]
    followed: tuple[float | None, ...]


def depth_curves(rounds: Mapping[str, Sequence[RoundLine]]) -> list[DepthCurve]:
    """Return one curve a pipeline that drafted at all."""
    found = []
    for pipeline, lines in rounds.items():
        deepest = max((len(line.depth_counts) for line in lines), default=0)
        if not deepest:
            continue
        accepted = np.array([len(line.path) - 1 for line in lines])
        drafted = np.array([len(line.depth_counts) for line in lines])
        depths = range(1, deepest + 1)
        reached = tuple(float(np.mean(accepted >= d)) for d in depths)
        followed = tuple(_share(accepted >= d, (accepted >= d - 1) & (drafted >= d)) for d in depths)
        found.append(DepthCurve(pipeline, len(lines), reached, followed))
    return found


def _share(hits: npt.NDArray[np.bool_], among: npt.NDArray[np.bool_]) -> float | None:
    return float(np.mean(hits[among])) if among.any() else None
