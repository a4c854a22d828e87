"""The drafter that drafts nothing: plain decoding."""

from __future__ import annotations

from attrs import frozen
from torch import Tensor

from specforge.interfaces import Draft, Drafter, DraftSession, Round
from specforge.registry import register


class _NoSession(DraftSession):
    def draft(self, round: Round) -> Draft:
        return Draft(depth=0)

    def commit(self, token_ids: Tensor, features: Tensor | None) -> None:
        pass


@register.drafter("none")
@frozen(eq=False)
class NoDrafter(Drafter):
    """Drafts nothing; the drafter of plain decoding."""

    default_scorer = "none"

    def start(self, prompt_ids: Tensor, features: Tensor | None) -> DraftSession:
        """Begin a generation without drafts."""
        return _NoSession()
