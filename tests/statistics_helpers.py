"""Decoding against tables, and the test that a sample comes from a distribution."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import scipy.stats
import torch
from attrs import field, frozen
from fakes import Path, RandomTable, TableScorer

from specforge.interfaces import Draft, Round, TreeBuilder, Verdict, Verifier
from specforge.sampling import KeyedUniforms, SamplingParams, choose_next, processed_distribution
from specforge.tree import DraftTree

PROMPT = (0, 1, 0)
DEPTH = 3
SIGNIFICANCE = 1e-6


@frozen(eq=False)
class World:
    """A target given by a table of logits and a drafter given by another; both see the drafts after the prompt.

    The root of the first round is the last token of ``PROMPT``; ``draft_table`` gives log-probabilities, looked up by
    the whole path after the prompt, so that the drafter depends on the path too.
    """

    target: RandomTable
    draft_table: Callable[[Path], torch.Tensor]
    sampling: SamplingParams
    window: int
    distributions: dict[Path, torch.Tensor] = field(factory=dict, init=False)

    def logits(self, tree: DraftTree, emitted: Path) -> torch.Tensor:
        """Return ``[N, V]``, the target's forward over a tree whose root ends ``emitted``."""
        return torch.stack([self.target(emitted + tree.path_tokens(node)[1:]) for node in range(len(tree))])

    def next_distribution(self, emitted: Path) -> torch.Tensor:
        """Return the target's processed distribution after ``emitted``."""
        if emitted not in self.distributions:
            ids = torch.tensor(PROMPT + emitted)
            self.distributions[emitted] = processed_distribution(self.target(emitted), ids, self.sampling)
        return self.distributions[emitted]

    def window_probabilities(self) -> dict[Path, float]:
        """Return the target's own distribution over the first ``window`` tokens."""
        cells = {}
        for path in itertools.product(range(self.target.vocab_size), repeat=self.window):
            steps = (float(self.next_distribution(path[:index])[token]) for index, token in enumerate(path))
            cells[path] = float(np.prod(list(steps)))
        return cells

    def scorer(self, emitted: Path) -> TableScorer:
        """Return the drafter's scores for a round whose root ends ``emitted``."""
        return TableScorer(lambda path: self.draft_table(emitted + path))


def decode(
    world: World,
    builder: TreeBuilder,
    verifier: Verifier,
    seed: int,
    alter: Callable[[DraftTree], DraftTree] = lambda tree: tree,
    draws: Callable[[int, str, int], float] | None = None,
) -> tuple[Path, list[Verdict]]:
    """Run the draft, build and verify loop; return the first ``world.window`` tokens and the rounds it took.

    The last rounds may look past the window, so that trees are as deep there as elsewhere.
    """
    emitted: Path = ()
    verdicts = []
    while len(emitted) < world.window:
        history = torch.tensor(PROMPT + emitted)
        round = Round(history, DEPTH, world.sampling, draws or KeyedUniforms(seed))
        tree = alter(builder.build(Draft(DEPTH), world.scorer(emitted), round))
        verdicts.append(verifier.verify(tree, world.logits(tree, emitted), round))
        emitted += (*tree.path_tokens(verdicts[-1].path[-1])[1:], verdicts[-1].next_token)
    return emitted[: world.window], verdicts


def plain_decode(world: World, seed: int) -> Path:
    """Decode without drafts, as the target alone does."""
    draws = KeyedUniforms(seed)
    emitted: Path = ()
    while len(emitted) < world.window:
        history = torch.tensor(PROMPT + emitted)
        emitted += (choose_next(world.target(emitted), history, world.sampling, draws, len(history)),)
    return emitted


def g_test(counts: Mapping[Path, int], probabilities: Mapping[Path, float], smallest: float = 5.0) -> float:
    """Return the p-value of a G-test that ``counts`` were drawn from ``probabilities``.

    Cells that expect fewer than ``smallest`` are pooled, the rarest first, until the pool expects as many. An outcome
    of probability 0 refutes the hypothesis.
    """
    total = sum(counts.values())
    if any(count and not probabilities.get(cell, 0.0) > 0.0 for cell, count in counts.items()):
        return 0.0
    cells = sorted((p * total, counts.get(cell, 0)) for cell, p in probabilities.items() if p > 0.0)
    expected, observed = [0.0], [0]
    for mass, count in cells:
        if expected[0] < smallest:
            expected[0] += mass
            observed[0] += count
        else:
            expected.append(mass)
            observed.append(count)
    if len(expected) == 1:
        return 1.0
    scaled = np.array(expected) * (total / sum(expected))
    return float(scipy.stats.power_divergence(observed, scaled, lambda_="log-likelihood").pvalue)


def p_value(
    world: World,
    builder: TreeBuilder,
    verifier: Verifier,
    samples: int = 1500,
    alter: Callable[[DraftTree], DraftTree] = lambda tree: tree,
    draws: Callable[[int], Callable[[int, str, int], float]] = KeyedUniforms,
) -> float:
    """Return how likely the loop's windows are under the target's own distribution; one seed a sample."""
    windows = Counter(decode(world, builder, verifier, seed, alter, draws(seed))[0] for seed in range(samples))
    return g_test(windows, world.window_probabilities())
