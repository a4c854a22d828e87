"""The tokens a training softmax runs over: all of them, or the frequent ones exactly and the rest by a sample.

A drafter is used over the whole vocabulary. Leaving rare tokens out of the training softmax would let their logits
drift, so a few of them are drawn every step and weighted for all: ``log(rest / drawn)`` is added to their logits, which
makes the sum of exponentials right in expectation (sampled softmax, Jean et al., arXiv:1412.2007).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from specforge.training.chats import Chat


@frozen(eq=False)
class SoftmaxColumns:
    """The columns of one step's softmax.

    Attributes:
        token_ids: ``[M]`` int64, no token twice.
        offsets: ``[M]`` float32 to add to the logits: 0 for tokens that stand for themselves alone.
        column_of: ``[V]`` int64, each token's column; -1 for those without one and for those that were drawn.
    """

    token_ids: Tensor
    offsets: Tensor
    column_of: Tensor


class SoftmaxVocabulary:
    """Chooses the columns of each step.

    Args:
        common: ``[C]`` int64, tokens that are always there.
        vocab_size: ``V``.
        sampled: how many of the others to draw a step; 0 leaves them out.
    """

    def __init__(self, common: Tensor, vocab_size: int, sampled: int) -> None:
        self._common = common
        self._vocab_size = vocab_size
        self._sampled = sampled
        self._column_of = torch.full((vocab_size,), -1, dtype=torch.int64, device=common.device)
        self._column_of[common] = torch.arange(len(common), device=common.device)

    def columns(self, wanted: Tensor, generator: torch.Generator) -> SoftmaxColumns:
        """Return the columns of a step whose labels are ``wanted`` (int64, any shape); all of them are exact."""
        wanted = wanted.unique()
        asked = wanted[self._column_of[wanted] < 0]
        exact = torch.cat([self._common, asked])
        column_of = self._column_of.clone()
        column_of[asked] = torch.arange(len(self._common), len(exact), device=exact.device)
        rest = (column_of < 0).nonzero().flatten()
        count = min(self._sampled, len(rest))
        chosen = torch.randperm(len(rest), generator=generator)[:count].to(rest.device)
        offsets = torch.zeros(len(exact) + count, device=exact.device)
        if count:
            offsets[len(exact) :] = torch.tensor(len(rest) / count).log()
        return SoftmaxColumns(torch.cat([exact, rest[chosen]]), offsets, column_of)


def most_frequent(chats: Sequence[Chat], count: int | None, vocab_size: int) -> Tensor:
    """Return the ``count`` most frequent tokens of the answers, ascending; ties go to smaller ids; ``None``: all."""
    if count is None or count >= vocab_size:
        return torch.arange(vocab_size)
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for chat in chats:
        counts += torch.bincount(chat.token_ids[chat.answer_start :], minlength=vocab_size)
    return counts.argsort(descending=True, stable=True)[:count].sort().values
