"""How many nodes a tree gets: one policy that the heap and the pruned depth-wise builder share.

Without a cost model the policy is a fixed budget. With one it is CaDDTree's rule (arXiv:2606.01813; CondAdaptive is
the same rule over conditional scores): with ``theta(n) = (1 + Phi(n)) / (C_draft + C_verify(n, context))``, ``Phi``
the running sum of ``exp(score)`` over the nodes in best-first order, stop before the first node that does not raise
theta. ``exp(score)`` is the estimated probability that the node is accepted, so theta estimates tokens per second. The
context is the number of tokens in the target's cache, which is the root's position.

Best-first scores do not rise, so ``Phi`` is concave; where ``C_verify`` is convex in ``n``, theta is unimodal and the
stop is at its maximum. That needs edges of probability at most 1, not their truth: it holds with calibrated edges as
with raw ones as long as the search is keyed by what ``Phi`` sums.

A builder uses the policy like this::

    self.policy = BudgetPolicy.of(budget, cost_model, calibration)    # once
    self.policy.bind(target, drafter)                                 # in bind
    calibrate = self.policy.calibrate                                 # maps edges to those to search by, or None
    run = self.policy.start(round.root_position)                      # one node at a time, best first ...
    if not run.admit(score): break
    kept = self.policy.best_size(scores, round.root_position)         # ... or all scores at once, best first
    DraftTree(..., edge_log_probs=raw_edges)                          # the raw edge of each node, 0 for the root
    self.policy.observe(tree, verdict)                                # in observe
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from attrs import define, field
from torch import Tensor

from specforge.cost_model import CostModel
from specforge.errors import ConfigError
from specforge.interfaces import Drafter, Verdict
from specforge.profiling import device_names, dtype_name, quick_profile
from specforge.strategies.calibration import Calibration
from specforge.strategies.expansion import Calibrate
from specforge.strategies.options import whole
from specforge.tree import DraftTree

if TYPE_CHECKING:
    from specforge.target import Target

MEASURE = "auto"

CostModelOption = CostModel | Mapping[str, Any] | str | os.PathLike[str] | None
CalibrationOption = Calibration | str | os.PathLike[str] | None


class BudgetRun(Protocol):
    """One tree's budget, spent a node at a time."""

    def admit(self, score: float) -> bool:
        """Whether the next node in best-first order goes in; after the first ``False`` the run is over.

        Args:
            score: the node's path score, at most 0.
        """
        ...


class FixedRun:
    """Admits a fixed number of nodes."""

    __slots__ = ("_left",)

    def __init__(self, budget: int) -> None:
        self._left = budget

    def admit(self, score: float) -> bool:
        """Whether there is budget left."""
        self._left -= 1
        return self._left >= 0


class CostAwareRun:
    """Admits nodes while theta rises, up to a cap. ``Phi`` is summed in float64, in best-first order."""

    __slots__ = ("_accepted", "_costs", "_nodes", "_theta")

    def __init__(self, costs: Sequence[float]) -> None:
        """Take ``C_draft + C_verify(n)`` in seconds for n from 0 to the cap."""
        self._costs = costs
        self._nodes = 0
        self._accepted = 0.0
        self._theta = 1.0 / costs[0]

    def admit(self, score: float) -> bool:
        """Whether the node raises theta and the cap allows it."""
        nodes = self._nodes + 1
        if nodes == len(self._costs):
            return False
        accepted = self._accepted + math.exp(score)
        theta = (1.0 + accepted) / self._costs[nodes]
        if not theta > self._theta:
            return False
        self._nodes, self._accepted, self._theta = nodes, accepted, theta
        return True


@define(eq=False)
class BudgetPolicy:
    """A budget cap, and where there is a cost model the cost-aware stop; where there is a calibration, it is used.

    Attributes:
        budget: the most draft nodes, at least 1.
        cost_model: what a round costs, ``None`` for a fixed budget.
        calibration: what turns the scorer's edge log-probabilities into those to search by, ``None`` for the raw ones.
        measure: a cost model is to be measured at ``bind``.
    """

    budget: int = field(validator=whole(1))
    cost_model: CostModel | None = None
    calibration: Calibration | None = None
    measure: bool = False

    @classmethod
    def of(cls, budget: int, cost_model: CostModelOption = None, calibration: CalibrationOption = None) -> BudgetPolicy:
        """Make the policy that a builder's options ask for.

        Args:
            budget: the most draft nodes; without a cost model, as many as the tree has to offer.
            cost_model: ``None``, a cost model, its JSON object, a path to one, or ``"auto"``: measure briefly at
                ``bind``.
            calibration: ``None``, ``"online"`` (start from the raw probabilities and learn), a calibration, or a path
                to a saved one, which is used as it is.

        Raises:
            ConfigError: naming the option and what it must be.
        """
        measure = isinstance(cost_model, str) and cost_model == MEASURE
        model = None if cost_model is None or measure else CostModel.of(cost_model)
        learned = None if calibration is None else Calibration.of(calibration)
        return cls(budget, model, learned, measure)

    @property
    def cost_aware(self) -> bool:
        """Whether the tree's size follows from its scores."""
        return self.measure or self.cost_model is not None

    def bind(self, target: Target, drafter: Drafter) -> None:
        """Check that the cost model and the calibration are for these parts; measure a cost model where asked to.

        Raises:
            IncompatiblePartsError: when one is for another target, device or dtype, naming both values.
        """
        if self.calibration is not None:
            self.calibration.bind(target.name)
        if self.measure:
            self.cost_model = quick_profile(target, drafter, self.budget)
        elif self.cost_model is not None:
            self.cost_model.check(target.name, device_names(target), dtype_name(target))

    def start(self, context: int) -> BudgetRun:
        """Begin one tree whose root sits at sequence index ``context``."""
        if not self.cost_aware:
            return FixedRun(self.budget)
        return CostAwareRun(self._costs(context).tolist())

    def best_size(self, scores: Tensor | Sequence[float] | npt.NDArray[Any], context: int) -> int:
        """Return how many nodes ``start(context)`` would admit of these, without a step per node.

        Args:
            scores: ``[n]`` path scores, at most 0, best first.
            context: the root's sequence index.
        """
        if not self.cost_aware:
            return min(len(scores), self.budget)
        best = np.asarray(scores.cpu() if isinstance(scores, Tensor) else scores, dtype=np.float64)[: self.budget]
        # math.exp and a sequential sum, as in CostAwareRun: NumPy's own exp differs from it in the last bit.
        accepted = np.add.accumulate(np.fromiter(map(math.exp, best.tolist()), np.float64, len(best)))
        costs = self._costs(context)
        theta = np.concatenate([1.0 / costs[:1], (1.0 + accepted) / costs[1 : len(best) + 1]])
        stops = np.flatnonzero(~(theta[1:] > theta[:-1]))
        return int(stops[0]) if len(stops) else len(best)

    def _costs(self, context: int) -> npt.NDArray[np.float64]:
        if self.cost_model is None:
            raise ConfigError("the cost model is to be measured; bind the policy to a target and a drafter first")
        return self.cost_model.round_seconds(self.budget, context)

    @property
    def calibrate(self) -> Calibrate | None:
        """What maps a draft position and raw edge log-probabilities to those to search by; ``None``: they are those.

        The result has their shape, dtype and device; within a depth the order is kept.
        """
        return None if self.calibration is None else self.calibration.apply

    def observe(self, tree: DraftTree, verdict: Verdict) -> None:
        """Let the calibration learn from a verified tree, where it is there and learns."""
        if self.calibration is not None:
            self.calibration.observe(tree, verdict)
