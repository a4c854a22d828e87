"""Training data: chats that the target wrote itself, one JSON object a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from specforge.errors import ConfigError
from specforge.request import encode_prompt
from specforge.target import Target

_FORM = '{"user": "text" or "prompt_ids": [1, ...], "assistant_ids": [1, 2, ...], "greedy": true}'


@frozen(eq=False)
class Chat:
    """One prompt and the target's answer to it.

    Attributes:
        token_ids: ``[L]`` int64, prompt and answer, on the CPU.
        answer_start: index of the answer's first token, at least 1.
        greedy: whether the answer is the target's own greedy one, so that it can be replayed for validation.
    """

    token_ids: Tensor
    answer_start: int
    greedy: bool

    @property
    def answer_length(self) -> int:
        """Tokens of the answer."""
        return len(self.token_ids) - self.answer_start


def load_chats(path: str | Path, target: Target, max_tokens: int) -> list[Chat]:
    """Read a chat file; answers are cut where a chat exceeds ``max_tokens``, and dropped below two tokens.

    Args:
        path: JSONL with ``user`` (put through the target's chat template) or ``prompt_ids``, ``assistant_ids`` and
            ``greedy``.
        target: whose chat template and vocabulary the chats are in.
        max_tokens: the longest chat, prompt included.

    Raises:
        ConfigError: naming the file, and the line where one cannot be read.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat file {str(path)!r} cannot be read: {error}") from error
    limit = min(max_tokens, target.context_limit)
    read = (_chat(line, f"{path}:{i}", target, limit) for i, line in enumerate(lines, start=1) if line.strip())
    chats = [chat for chat in read if chat.answer_length >= 2]
    if not chats:
        raise ConfigError(f"chat file {str(path)!r} holds no answer of at least 2 tokens within {limit} tokens")
    return chats


def _chat(line: str, where: str, target: Target, limit: int) -> Chat:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON ({error.msg} at column {error.colno}); a line is {_FORM}") from error
    record = record if isinstance(record, dict) else {}
    prompt, answer = _prompt(record), record.get("assistant_ids", [])
    if not prompt or not _are_ids(answer, target.vocab_size):
        raise ConfigError(f"{where}: no chat of this target; a line is {_FORM}")
    prompt_ids = encode_prompt(target, prompt)
    return Chat(torch.tensor([*prompt_ids, *answer][:limit]), len(prompt_ids), record.get("greedy") is True)


def _prompt(record: dict[str, Any]) -> Any:
    return record["user"] if isinstance(record.get("user"), str) else record.get("prompt_ids")


def _are_ids(ids: Any, vocab_size: int) -> bool:
    return isinstance(ids, list) and bool(ids) and all(type(i) is int and 0 <= i < vocab_size for i in ids)


def split(chats: Sequence[Chat], held_out: int, limit: int | None = None) -> tuple[list[int], list[int]]:
    """Return the indices to train on, at most ``limit``, and the last ``held_out`` greedy ones, kept for validation.

    Raises:
        ConfigError: when too few are greedy, or nothing would be left to train on.
    """
    greedy = [index for index, chat in enumerate(chats) if chat.greedy]
    kept = set(greedy[len(greedy) - held_out :]) if held_out else set()
    if len(greedy) < held_out or len(kept) == len(chats):
        raise ConfigError(
            f"held_out is {held_out}; the data has {len(greedy)} greedy chats of {len(chats)}, and some must be left"
        )
    return [index for index in range(len(chats)) if index not in kept][:limit], sorted(kept)


def fingerprint(chats: Sequence[Chat]) -> str:
    """Return a hash of everything that features depend on."""
    digest = hashlib.sha256()
    for chat in chats:
        digest.update(f"{len(chat.token_ids)} {chat.answer_start} {int(chat.greedy)};".encode())
        digest.update(chat.token_ids.numpy().tobytes())
    return digest.hexdigest()
