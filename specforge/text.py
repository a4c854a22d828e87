"""Token ids to text, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

_UNFINISHED = "�"
_WINDOW = 16
_OVERLAP = 4


@define
class TextStream:
    """Turns a growing list of token ids into text that is never taken back.

    Attributes:
        tokenizer: a transformers tokenizer.
        stop_strings: the text is cut right after the first of them; it includes the stop string, as the token ids
            include the stop token.
        stopped: whether a stop string is complete.
    """

    tokenizer: Any
    stop_strings: tuple[str, ...] = ()
    stopped: bool = False
    _ids: list[int] = field(factory=list)
    _settled: str = ""
    _emitted: int = 0
    _searched: int = 0

    def push(self, token_id: int) -> bool:
        """Add a token; return whether it completes a stop string."""
        self._ids.append(token_id)
        if not self.stop_strings:
            return False
        text, start = self.text, max(0, self._searched - max(map(len, self.stop_strings)))
        self._searched = len(text)
        found = [(text.find(s, start), s) for s in self.stop_strings]
        ends = [at + len(s) for at, s in found if at >= 0]
        if ends:
            self._settled, self._ids, self.stopped = text[: min(ends)], [], True
        return self.stopped

    @property
    def text(self) -> str:
        """All text so far, an unfinished character at its end included."""
        self._settle()
        return self._settled + self._decode(self._ids)

    def new_text(self, final: bool = False) -> str:
        """Return the text not returned before; a character that spans tokens is held back until it is whole."""
        text = self.text if final else self.text.rstrip(_UNFINISHED)
        piece, self._emitted = text[self._emitted :], max(self._emitted, len(text))
        return piece

    def _settle(self) -> None:
        # The last tokens stay in the window: a tokenizer that joins words by context (a leading space that shows only
        # after another word) then decodes the next token as it would in the whole text.
        if len(self._ids) < _WINDOW:
            return
        tail = self._decode(self._ids)
        kept = self._decode(self._ids[-_OVERLAP:])
        if kept and tail.endswith(kept) and not kept.startswith(_UNFINISHED):
            self._settled += tail[: len(tail) - len(kept)]
            self._ids = self._ids[-_OVERLAP:]

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
