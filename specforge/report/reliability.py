"""Whether path probabilities are what happens: of the nodes promised 0.3, three in ten should be accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import frozen

from specforge.report.runfolder import RoundLine
from specforge.report.statistics import Doubles, Interval, Resampling, interval, ratio

EDGES = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Bins of path probability; narrow at the low end, where most nodes of a large tree are."""


@frozen
class Bin:
    """Nodes whose path probabilities are alike.

    Attributes:
        low: lower edge, included.
        high: upper edge, included in the last bin only.
        nodes: how many nodes.
        promised: their mean path probability.
        accepted: the share that was accepted, with an interval over prompts.
    """

    low: float
    high: float
    nodes: int
    promised: float
    accepted: Interval


@frozen(eq=False)
class Reliability:
    """How a pipeline's path probabilities compare with what was accepted.

    Attributes:
        pipeline: its name.
        bins: those that hold nodes, rising.
        expected_drafts: what the probabilities add up to, a round.
        accepted_drafts: drafts accepted, a round.
    """

    pipeline: str
    bins: tuple[Bin, ...]
    expected_drafts: float
    accepted_drafts: float

    @property
    def error(self) -> float:
        """Mean distance between promised and accepted share, every bin weighted by its nodes."""
        distances = [b.nodes * abs((b.accepted.estimate or 0.0) - b.promised) for b in self.bins]
        return sum(distances) / sum(b.nodes for b in self.bins)


def reliabilities(rounds: Mapping[str, Sequence[RoundLine]]) -> list[Reliability]:
    """Return one entry a pipeline whose builder keeps path probabilities."""
    scored = {name: [line for line in lines if line.path_probs] for name, lines in rounds.items()}
    return [_reliability(name, lines) for name, lines in scored.items() if lines]


def _reliability(pipeline: str, lines: Sequence[RoundLine]) -> Reliability:
    probabilities = np.concatenate([np.asarray(line.path_probs, dtype=np.float64) for line in lines])
    accepted = _accepted(lines, len(probabilities))
    names = [(line.case.prompt_set, line.case.prompt) for line in lines]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    owners = np.repeat([numbers[name] for name in names], [len(line.path_probs or ()) for line in lines])
    resampling = Resampling.of(len(numbers))
    places = np.clip(np.searchsorted(EDGES, probabilities, side="right") - 1, 0, len(EDGES) - 2)
    bins = []
    for place in np.unique(places):
        inside = places == place
        nodes = np.bincount(owners[inside], minlength=len(numbers))
        hits = np.bincount(owners[inside], weights=accepted[inside], minlength=len(numbers))
        share = ratio(resampling.sums(hits), resampling.sums(nodes))
        promised = float(probabilities[inside].mean())
        with_nodes = int((nodes > 0).sum())
        bins.append(Bin(EDGES[place], EDGES[place + 1], int(nodes.sum()), promised, interval(share, with_nodes)))
    rounds = len(lines)
    return Reliability(pipeline, tuple(bins), float(probabilities.sum()) / rounds, float(accepted.sum()) / rounds)


def _accepted(lines: Sequence[RoundLine], nodes: int) -> Doubles:
    """Return 1 for every accepted node and 0 for the others, the nodes of all rounds in a row, roots left out."""
    accepted = np.zeros(nodes)
    first = 0
    for line in lines:
        accepted[[first + node - 1 for node in line.path[1:]]] = 1.0
        first += len(line.path_probs or ())
    return accepted
