"""The conditional scorer: base logits corrected by the drafter's causal head for the realised path.

Domino (arXiv:2605.29707) corrects the full vocabulary along a chain; DominoTree and DARTree correct the ``M`` best
base candidates for every node of a tree.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from specforge.children import Children
from specforge.interfaces import BASE_LOGITS, CORRECTION_HEAD, Candidates, CorrectionHead, Draft, Round, Scorer, State
from specforge.ordering import exact_topk, exact_topk_columns
from specforge.registry import register
from specforge.strategies.marginal import reachable_logits, tempered
from specforge.strategies.options import at_most, candidate_count, one_of, positive

CANDIDATES = "candidates"
VOCABULARY = "vocabulary"


@frozen(eq=False)
class Slices:
    """What is the same for every path of a round.

    Attributes:
        logits: ``[D, V]`` base logits in their own dtype.
        tokens: ``[D, M]`` int64, the ``M`` best tokens by base logit, by rising id; ``None`` for the whole vocabulary.
        base: ``[D, M]`` float32, their base logits; ``logits`` for the whole vocabulary.
        width: how many candidates a row shows.
    """

    logits: Tensor
    tokens: Tensor | None
    base: Tensor
    width: int


@frozen(eq=False)
class PathStates:
    """The head's states on ``paths`` paths, with the round's slices."""

    slices: Slices
    head: State
    paths: int = 1

    def select(self, rows: Tensor) -> PathStates:
        """Return the states of the paths ``rows``."""
        return PathStates(self.slices, self.head.select(rows), int(rows.shape[0]))


@register.scorer("conditional")
@frozen(eq=False)
class Conditional(Scorer):
    """Scores by base logits plus the head's correction on the path.

    The candidates at a depth are the ``candidates`` best tokens by base logit, ties by smaller id, on every path; the
    correction orders them. Positions below the head's ``first_corrected`` keep their base logits.

    Attributes:
        candidates: ``M``, the tokens that are corrected; ``None`` or ``"all"`` for the whole vocabulary.
        normalizer: ``"candidates"`` takes the softmax over the corrected slice, ``"vocabulary"`` over the whole
            corrected vocabulary, at the price of correcting all of it for every node.
        temperature: the corrected logits are divided by it; above 0.

    Raises:
        ConfigError: naming the option, its value and what it must be.
    """

    candidates: int | None = field(default=None, converter=candidate_count)
    normalizer: str = field(default=CANDIDATES, validator=one_of(CANDIDATES, VOCABULARY))
    temperature: float = field(default=1.0, validator=positive)

    needs = frozenset({BASE_LOGITS, CORRECTION_HEAD})
    static = True

    def begin(self, draft: Draft, round: Round) -> PathStates:
        """Choose the candidates of all depths, and start the head with the root."""
        logits = reachable_logits(draft, round)
        count = at_most(logits.shape[1], self.candidates)
        tokens = None
        if count < logits.shape[1]:
            tokens = exact_topk_columns(logits, count)
        base = logits if tokens is None else logits.gather(1, tokens).float()
        slices = Slices(logits, tokens, base, at_most(count, round.max_children))
        head = head_of(draft)
        state = head.begin(draft, round.history[-1:])
        if tokens is not None and self.normalizer == CANDIDATES:
            state = head.prepare(state, tokens)
        return PathStates(slices, state)

    def expand(self, draft: Draft, depth: int, state: PathStates) -> Candidates:  # type: ignore[override]
        """Return the corrected candidates, ranked again on each path."""
        slices, head = state.slices, head_of(draft)
        tokens = None if slices.tokens is None else slices.tokens[depth]
        if tokens is not None and self.normalizer == CANDIDATES:
            if depth < head.first_corrected:
                log_probs, columns = exact_topk(self._base_log_probs(depth, state), slices.width)
            else:
                log_probs, columns = head.best_of_slice(
                    draft, depth, state.head, slices.base[depth], tokens, self.temperature, slices.width
                )
        else:
            vocabulary = slices.logits[depth].float()
            logits = tempered(corrected(draft, depth, state.head, vocabulary, None), self.temperature)
            shift = torch.logsumexp(logits, dim=-1, keepdim=True)
            log_probs, columns = exact_topk(logits if tokens is None else logits[:, tokens], slices.width, shift)
        # Slices are laid out by token id, so ties between columns were ties by id.
        chosen = columns if tokens is None else tokens.take(columns)
        return Candidates(chosen.expand(state.paths, -1), log_probs.expand(state.paths, -1))

    def best_children(  # type: ignore[override]
        self, draft: Draft, depth: int, state: PathStates, scores: Tensor, width: int
    ) -> Children:
        """Return the best of the corrected candidates of all paths; one selection ranks them."""
        slices, head = state.slices, head_of(draft)
        cut = slices.width < at_most(width, slices.base.shape[1])
        if cut or slices.tokens is None or self.normalizer != CANDIDATES:
            return super().best_children(draft, depth, state, scores, width)
        tokens = slices.tokens[depth]
        if depth < head.first_corrected:
            log_probs = self._base_log_probs(depth, state)
        else:
            log_probs = head.slice_log_probs(draft, depth, state.head, slices.base[depth], tokens, self.temperature)
        log_probs = log_probs.expand(state.paths, -1)
        return head.best_children(scores, log_probs, tokens.expand(state.paths, -1), width)

    def _base_log_probs(self, depth: int, state: PathStates) -> Tensor:
        """Return the log-softmax over the candidates where no correction applies, ``[1, M]``."""
        return torch.log_softmax(tempered(state.slices.base[depth][None], self.temperature), dim=-1)

    def advance(  # type: ignore[override]
        self, draft: Draft, depth: int, state: PathStates, parent_rows: Tensor, tokens: Tensor
    ) -> PathStates:
        """Run the head over the chosen children."""
        head = head_of(draft).advance(draft, depth, state.head, parent_rows, tokens)
        return PathStates(state.slices, head, int(tokens.shape[0]))


def corrected(draft: Draft, depth: int, state: Any, base: Tensor, tokens: Tensor | None) -> Tensor:
    """Return base logits plus correction: ``[n, M]``, or ``[1, M]`` where no correction applies at ``depth``.

    Args:
        draft: the round's draft.
        depth: the draft position.
        state: the head's state on ``n`` paths.
        base: ``[M]`` float32 base logits.
        tokens: ``[M]`` int64 the tokens they belong to, ``None`` for the whole vocabulary.
    """
    head = head_of(draft)
    if depth < head.first_corrected:
        return base[None]
    return base + head.correct(draft, depth, state, tokens)


def head_of(draft: Draft) -> CorrectionHead:
    """Return the draft's correction head."""
    if draft.correction is None:
        raise ValueError("the draft has no correction head")
    return draft.correction
