"""Many blocks of many chats as one batch: anchors, the block mask, and what each draft position should predict."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from attrs import frozen
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specforge.checkpoints import DrafterConfig
from specforge.training.chats import Chat
from specforge.training.features import Features


@frozen(eq=False)
class BlockBatch:
    """``n`` blocks of each of ``B`` chats; row ``i`` of a block has the position of its root plus ``i``.

    The blocks that are no padding, ``N`` over all chats, are numbered chat by chat.

    Attributes:
        features: ``[B, P, taps * H]`` target features of the tokens before the last root, padded.
        anchors: ``[B, n]`` int64 sequence indices of the roots.
        filled: ``[B, n]`` bool, False where a chat has fewer blocks.
        noise_ids: ``[B, n * S]`` int64, every block's root and masks.
        inputs: ``[N, D]`` int64, the true token before each draft position: the root, then the labels but the last.
        labels: ``[N, D]`` int64, the true token at each draft position.
        known: ``[N, D]`` bool, False for positions behind the end of the chat.
        top_tokens: ``[N, D, K]`` int64, the target's most likely tokens at each draft position.
        top_log_probs: ``[N, D, K]`` float32.
    """

    features: Tensor
    anchors: Tensor
    filled: Tensor
    noise_ids: Tensor
    inputs: Tensor
    labels: Tensor
    known: Tensor
    top_tokens: Tensor
    top_log_probs: Tensor

    def to(self, device: torch.device) -> BlockBatch:
        """Return the batch on ``device``."""
        return BlockBatch(*(getattr(self, field.name).to(device) for field in attrs.fields(BlockBatch)))


def sample_anchors(chat: Chat, count: int, generator: torch.Generator) -> Tensor:
    """Return up to ``count`` different roots in the answer, ascending; a root has at least one token after it."""
    chosen = torch.randperm(chat.answer_length - 1, generator=generator)[:count]
    return chosen.sort().values + chat.answer_start


def make_batch(
    chats: Sequence[Chat], features: Sequence[Features], anchors: Sequence[Tensor], config: DrafterConfig
) -> BlockBatch:
    """Lay the blocks of ``chats`` with roots ``anchors`` side by side.

    Args:
        chats: the chats.
        features: theirs.
        anchors: int64 roots of each chat, at least one.
        config: block size, mask token, and whether the root's row predicts.
    """
    size = config.block_size
    roots = pad_sequence(list(anchors), batch_first=True, padding_value=-1)
    filled = roots >= 0
    roots = roots.clamp_min(0)
    noise = torch.full((*roots.shape, size), config.mask_token_id)
    noise[..., 0] = torch.stack([chat.token_ids[row] for chat, row in zip(chats, roots, strict=True)])
    last = int(roots.max())
    context = pad_sequence([f.hidden[:last] for f in features], batch_first=True)
    parts = [
        _targets(chat, f, a, config.draft_positions(size)) for chat, f, a in zip(chats, features, anchors, strict=True)
    ]
    targets = [torch.cat(column) for column in zip(*parts, strict=True)]
    return BlockBatch(context, roots, filled, noise.flatten(1), *targets)


def _targets(chat: Chat, features: Features, anchors: Tensor, depth: int) -> tuple[Tensor, ...]:
    """Return inputs, labels, known and the target's best tokens with log-probabilities for ``depth`` positions."""
    end = len(chat.token_ids) - 1
    inputs = anchors[:, None] + torch.arange(depth)
    known = inputs < end
    # what lies behind the end is never learnt from; any token will do there
    inputs = inputs.clamp_max(end)
    answer = inputs - chat.answer_start
    tokens, log_probs = features.top_tokens[answer].long(), features.top_log_probs[answer].float()
    return chat.token_ids[inputs], chat.token_ids[(inputs + 1).clamp_max(end)], known, tokens, log_probs


def row_positions(anchors: Tensor, block_size: int) -> Tensor:
    """Return ``[B, n * S]`` int64, the sequence index of every row."""
    return (anchors[..., None] + torch.arange(block_size, device=anchors.device)).flatten(1)


def block_mask(anchors: Tensor, block_size: int, context: int, window: int | None, causal: bool) -> Tensor:
    """Return what every row sees: the context before its own block's root, and its own block.

    Through a sliding window ``W`` key ``k`` is seen from query ``q`` if ``|q - k| < W``; a causal block has ``k <= q``.

    Args:
        anchors: ``[B, n]`` int64 roots.
        block_size: ``S``.
        context: ``P``, context entries of each chat, at positions ``0 .. P - 1``.
        window: ``W``, or ``None`` for all.
        causal: whether attention inside a block is causal.

    Returns:
        ``[B, 1, n * S, P + n * S]`` bool.
    """
    queries = row_positions(anchors, block_size)
    roots = anchors.repeat_interleave(block_size, dim=1)
    keys = torch.arange(context, device=anchors.device)
    before = keys < roots[..., None]
    owner = torch.arange(anchors.shape[1], device=anchors.device).repeat_interleave(block_size)
    inside = (owner[:, None] == owner[None, :]).expand(len(anchors), -1, -1)
    ahead = queries[:, None, :] - queries[..., None]
    if causal:
        inside = inside & (ahead <= 0)
    if window is not None:
        before = before & (queries[..., None] - keys < window)
        inside = inside & (ahead.abs() < window)
    return torch.cat([before, inside], dim=-1)[:, None]


def layer_masks(config: DrafterConfig, anchors: Tensor, context: int) -> list[Tensor]:
    """Return ``block_mask`` for every layer; layers of the same kind share one."""
    kinds = [(config.window(layer), config.causal(layer)) for layer in range(len(config.layer_types))]
    made = {kind: block_mask(anchors, config.block_size, context, *kind) for kind in set(kinds)}
    return [made[kind] for kind in kinds]
