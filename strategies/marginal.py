"""The marginal scorer: the drafter's own distributions, whatever the path (DDTree, arXiv:2604.12989)."""

from __future__ import annotations

import torch
from attrs import field, frozen

from specforge.interfaces import BASE_LOGITS, Draft, Round
from specforge.ordering import exact_topk
from specforge.registry import register
from specforge.strategies.options import at_most, candidate_count, positive
from specforge.strategies.shared_rows import SharedRows, SharedRowsScorer


@register.scorer("marginal")
@frozen(eq=False)
class Marginal(SharedRowsScorer):
    """Scores by the log-softmax of the base logits over the full vocabulary, the same row for every path.

    Attributes:
        candidates: most tokens a row; ``None`` or ``"all"`` leaves it to what the builder can use.
        temperature: the base logits are divided by it; above 0.

    Raises:
        ConfigError: naming the option, its value and what it must be.
    """

    candidates: int | None = field(default=None, converter=candidate_count)
    temperature: float = field(default=1.0, validator=positive)

    needs = frozenset({BASE_LOGITS})

    def begin(self, draft: Draft, round: Round) -> SharedRows:
        """Make the rows of all depths that the round can reach, in one batch."""
        logits = tempered(reachable_logits(draft, round).float(), self.temperature)
        count = at_most(logits.shape[1], self.candidates, round.max_children)
        log_probs, tokens = exact_topk(logits, count, shift=torch.logsumexp(logits, dim=-1, keepdim=True))
        return SharedRows(tokens, log_probs)


def reachable_logits(draft: Draft, round: Round) -> torch.Tensor:
    """Return the base logits that the round can use, ``[min(D, max_depth), V]`` in their own dtype."""
    if draft.base_logits is None:
        raise ValueError("the draft has no base logits")
    return draft.base_logits[: min(draft.depth, round.max_depth)]


def tempered(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Divide by the temperature; at 1 nothing is copied."""
    return logits if temperature == 1.0 else logits / temperature
