"""The target's features of the training chats: computed when asked for, and kept in a memory-mapped cache.

A chat's features never change, so the first pass over the data fills the cache and later ones read it. Each chat has
its own place in the files and a flag that is set after its data is written: a run that was killed finds what it had
finished, and several processes may fill the same cache.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import torch
from attrs import frozen
from torch import Tensor

from specforge.errors import ConfigError
from specforge.jsonfiles import read_object, write_object
from specforge.target import Target
from specforge.training.chats import Chat, fingerprint

HEADER = "cache.json"


@frozen(eq=False)
class Features:
    """What a drafter learns from on one chat of ``L`` tokens, ``A`` of them the answer's, on the CPU.

    Attributes:
        hidden: ``[L, taps * H]`` bfloat16, the tapped hidden states.
        top_tokens: ``[A, K]`` int32, the target's most likely next tokens after each token of the answer.
        top_log_probs: ``[A, K]`` float16, their log-probabilities at temperature 1.
    """

    hidden: Tensor
    top_tokens: Tensor
    top_log_probs: Tensor


class FeatureSource(Protocol):
    """Features of the chats by index."""

    def __call__(self, index: int) -> Features:
        """Return the features of chat ``index``."""
        ...


@frozen(eq=False)
class OnTheFly:
    """Runs the target whenever a chat's features are asked for.

    Attributes:
        target: the target.
        chats: the chats.
        taps: target layers whose outputs are features.
        top_k: ``K`` of the cached distributions; 0 for none.
    """

    target: Target
    chats: Sequence[Chat]
    taps: tuple[int, ...]
    top_k: int

    @torch.no_grad()
    def __call__(self, index: int) -> Features:
        """Run one forward over the whole chat."""
        chat, width = self.chats[index], self.target.hidden_size
        # The last layer's output is after the final norm: the head makes every position's logits of it.
        last = self.target.num_layers - 1
        cache = self.target.new_cache(len(chat.token_ids))
        found = self.target.prefill(chat.token_ids, cache, (*self.taps, last)).features
        assert found is not None
        answer = found[0, chat.answer_start :, -width:]
        hidden = found[0, :, : len(self.taps) * width].to("cpu", torch.bfloat16)
        if self.top_k == 0:
            empty = torch.empty(chat.answer_length, 0)
            return Features(hidden, empty.int(), empty.half())
        logits = self.target.lm_head(answer).float()
        best, tokens = logits.topk(self.top_k, dim=-1)
        log_probs = best - torch.logsumexp(logits, dim=-1, keepdim=True)
        return Features(hidden, tokens.int().cpu(), log_probs.half().cpu())


class FeatureCache:
    """Files that hold the features of every chat of one data set; sparse until they are filled.

    Args:
        folder: where they lie; made where it does not exist.
        source: what computes the features that are not there yet.

    Raises:
        ConfigError: when the folder holds a cache of other chats, taps, targets or top-k.
    """

    def __init__(self, folder: str | Path, source: OnTheFly) -> None:
        self._source = source
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._check_header()
        chats, width = source.chats, len(source.taps) * source.target.hidden_size
        self._starts = [0, *accumulate(len(chat.token_ids) for chat in chats)]
        self._answer_starts = [0, *accumulate(chat.answer_length for chat in chats)]
        tokens, answers = self._starts[-1], self._answer_starts[-1]
        self._hidden = self._map("hidden.bf16", (tokens, width), torch.bfloat16)
        self._tokens = self._map("top_tokens.i32", (answers, source.top_k), torch.int32)
        self._log_probs = self._map("top_log_probs.f16", (answers, source.top_k), torch.float16)
        self._done = self._map("done.u8", (len(chats),), torch.uint8)

    def __call__(self, index: int) -> Features:
        """Return the features of chat ``index``, from the files where they are there."""
        rows = slice(self._starts[index], self._starts[index + 1])
        answer = slice(self._answer_starts[index], self._answer_starts[index + 1])
        if not self._done[index]:
            made = self._source(index)
            self._hidden[rows] = made.hidden
            self._tokens[answer] = made.top_tokens
            self._log_probs[answer] = made.top_log_probs
            self._done[index] = 1
        return Features(self._hidden[rows], self._tokens[answer], self._log_probs[answer])

    @property
    def filled(self) -> int:
        """Chats whose features are there."""
        return int(self._done.count_nonzero())

    def missing(self) -> list[int]:
        """Return the chats whose features are not there yet."""
        return (self._done == 0).nonzero().flatten().tolist()

    def _check_header(self) -> None:
        source = self._source
        wanted: dict[str, Any] = {
            "target": source.target.name,
            "dtype": str(source.target.dtype).removeprefix("torch."),
            "taps": list(source.taps),
            "top_k": source.top_k,
            "chats": len(source.chats),
            "data": fingerprint(source.chats),
        }
        header = self._folder / HEADER
        if not header.exists():
            write_object(header, wanted, "feature cache header")
            return
        found = read_object(header, "feature cache header")
        for key, value in wanted.items():
            if found.get(key) != value:
                raise ConfigError(
                    f"feature cache {str(self._folder)!r} was made with {key} {json.dumps(found.get(key))}, "
                    f"not {json.dumps(value)}; give another folder"
                )

    def _map(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = torch.Size(shape).numel()
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.from_file(str(self._folder / name), shared=True, size=count, dtype=dtype).view(shape)
