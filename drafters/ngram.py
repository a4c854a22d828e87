"""Prompt lookup: what followed the last few tokens before is what will follow now (Saxena 2023). No weights."""

from __future__ import annotations

from attrs import field, frozen
from torch import Tensor

from specforge.checks import number
from specforge.continuations import ContinuationTrie
from specforge.errors import ConfigError
from specforge.interfaces import CONTINUATIONS, Draft, Drafter, DraftSession, Round
from specforge.registry import register


@register.drafter("ngram")
@frozen(eq=False)
class Ngram(Drafter):
    """Copies what followed the longest suffix of the text, root included, that occurred before.

    Attributes:
        max_ngram: longest suffix to look up, in tokens.
        min_ngram: shortest suffix to look up; without a match nothing is drafted.
        length: tokens of each continuation. One that runs into the end of the text goes on with what it has itself
            drafted, so that periodic text is continued in full.
        max_matches: how many occurrences of the suffix, the most recent ones, offer their continuation.
        decay: weight of an occurrence relative to the next more recent one. Up to 0.5 the most recent outweighs all
            others together, so that a chain follows it to the end; 1 weighs by count.

    Raises:
        ConfigError: naming the option, its value and what would be right.
    """

    gives = frozenset({CONTINUATIONS})
    default_scorer = "trie"

    max_ngram: int = field(default=4)
    min_ngram: int = field(default=2)
    length: int = field(default=8)
    max_matches: int = field(default=8)
    decay: float = 0.5

    def __attrs_post_init__(self) -> None:
        for name in ("max_ngram", "min_ngram", "length", "max_matches"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")
        if self.min_ngram > self.max_ngram:
            raise ConfigError(f"min_ngram is {self.min_ngram}; it must be at most max_ngram, {self.max_ngram}")
        if not 0.0 < number(self.decay, "decay") <= 1.0:
            raise ConfigError(f"decay is {self.decay!r}; it must be in (0, 1]")

    def start(self, prompt_ids: Tensor, features: Tensor | None) -> DraftSession:
        """Begin a generation with an index of the prompt."""
        session = NgramSession(self)
        session.commit(prompt_ids, None)
        return session


class NgramSession(DraftSession):
    """The committed tokens and where each of their n-grams ended; grows by the committed tokens alone."""

    def __init__(self, config: Ngram) -> None:
        self._config = config
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def commit(self, token_ids: Tensor, features: Tensor | None) -> None:
        """Index the n-grams that end at the new tokens."""
        for token in token_ids.tolist():
            self._tokens.append(token)
            end = len(self._tokens)
            for n in range(self._config.min_ngram, min(self._config.max_ngram, end) + 1):
                self._ends.setdefault(tuple(self._tokens[end - n :]), []).append(end)

    def draft(self, round: Round) -> Draft:
        """Return the continuations of the longest suffix seen before, the most recent heaviest."""
        text = [*self._tokens[-self._config.max_ngram :], round.root]
        for n in range(min(self._config.max_ngram, len(text)), self._config.min_ngram - 1, -1):
            ends = self._ends.get(tuple(text[-n:]))
            if ends:
                return Draft(depth=self._config.length, payload=self._continuations(ends, round.root))
        return Draft(depth=0, payload=ContinuationTrie())

    def _continuations(self, ends: list[int], root: int) -> ContinuationTrie:
        recent = ends[: -self._config.max_matches - 1 : -1]
        return ContinuationTrie(
            (self._continuation(end, root), self._config.decay**age) for age, end in enumerate(recent)
        )

    def _continuation(self, start: int, root: int) -> list[int]:
        """Copy ``length`` tokens from ``start`` on, over the end of the text into the copy itself."""
        known = [*self._tokens[start : start + self._config.length], root][: self._config.length]
        period = len(self._tokens) + 1 - start
        while len(known) < self._config.length:
            known.append(known[-period])
        return known
