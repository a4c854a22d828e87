"""The chain-conditional scorer: corrections of the greedy chain, used as if they held on every path.

The cheap way to grow a tree from a Domino drafter, and the baseline that DARTree compares with: one correction a depth,
over the full vocabulary.
"""

from __future__ import annotations

import torch
from attrs import field, frozen

from specforge.interfaces import BASE_LOGITS, CORRECTION_HEAD, Draft, Round
from specforge.ordering import exact_topk
from specforge.registry import register
from specforge.strategies.conditional import corrected, head_of
from specforge.strategies.marginal import reachable_logits, tempered
from specforge.strategies.options import at_most, candidate_count, positive
from specforge.strategies.shared_rows import SharedRows, SharedRowsScorer


@register.scorer("chain-conditional")
@frozen(eq=False)
class ChainConditional(SharedRowsScorer):
    """Scores by the corrected rows along the greedy corrected chain, the same for every path.

    Attributes:
        candidates: most tokens a row; ``None`` or ``"all"`` leaves it to what the builder can use.
        temperature: the corrected logits are divided by it; above 0.

    Raises:
        ConfigError: naming the option, its value and what it must be.
    """

    candidates: int | None = field(default=None, converter=candidate_count)
    temperature: float = field(default=1.0, validator=positive)

    needs = frozenset({BASE_LOGITS, CORRECTION_HEAD})

    def begin(self, draft: Draft, round: Round) -> SharedRows:
        """Walk the greedy chain as deep as the round can reach, and keep its rows."""
        logits, head = reachable_logits(draft, round).float(), head_of(draft)
        count = at_most(logits.shape[1], self.candidates, round.max_children)
        tokens = torch.empty(len(logits), count, dtype=torch.int64, device=logits.device)
        log_probs = torch.empty(len(logits), count, device=logits.device)
        state = head.begin(draft, round.history[-1:])
        only_row = torch.zeros(1, dtype=torch.int64, device=logits.device)
        for depth in range(len(logits)):
            row = tempered(corrected(draft, depth, state, logits[depth], None), self.temperature)
            scores, best = exact_topk(row, count, shift=torch.logsumexp(row, dim=-1, keepdim=True))
            tokens[depth], log_probs[depth] = best[0], scores[0]
            if depth + 1 < len(logits):
                state = head.advance(draft, depth, state, only_row, best[0, :1])
        return SharedRows(tokens, log_probs)
