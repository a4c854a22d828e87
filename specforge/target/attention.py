"""Tree attention over a preallocated cache, registered with transformers as one attention function.

Two things set it apart from transformers' own. The group of query heads that shares a key head is folded into the
query rows, so keys and values are read where they lie in the cache: no repetition for every query head, no copy of
the prefix. And the mask comes from an ``AttentionPlan``, made once a forward, because what a tree node sees (the
prefix and its own ancestors, within the layer's window) does not follow from its index.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import define, field
from torch import Tensor, nn
from transformers import AttentionInterface

from specforge.errors import UnsupportedTargetError

ATTENTION_NAME = "specforge"
PLAN_KEYWORD = "specforge_plan"

# Keywords that say nothing about which keys count for how much.
_NEUTRAL_KEYWORDS = frozenset({"cache_position", "dropout", "position_ids", "use_cache"})


@define(eq=False)
class AttentionPlan:
    """Which keys each query of one forward sees. Masks are built once for every (window, group) that layers ask for.

    Attributes:
        prefix: committed entries; key ``k < prefix`` has position ``k``.
        depths: ``[N]`` int64; query ``i`` has position ``prefix + depths[i]``.
        ancestors: ``[N, N]`` bool; row ``i`` is True where new entry ``j`` is ``i`` or an ancestor of ``i``.
        deepest: the largest depth.
        windows: the window each layer's attention was called with, in the order of the calls.
    """

    prefix: int
    depths: Tensor
    ancestors: Tensor
    deepest: int
    windows: list[int | None] = field(factory=list)
    _masks: dict[tuple[int | None, int, torch.dtype], Tensor] = field(factory=dict)

    @classmethod
    def causal(cls, prefix: int, count: int, device: torch.device) -> AttentionPlan:
        """Return the plan of ``count`` consecutive tokens."""
        ancestors = torch.ones(count, count, dtype=torch.bool, device=device).tril_()
        return cls(prefix, torch.arange(count, device=device), ancestors, count - 1)

    def mask(self, window: int | None, group: int, dtype: torch.dtype) -> Tensor | None:
        """Return the additive mask ``[group * N, prefix + N]`` (0 or -inf), or ``None`` when every key is seen."""
        if window is not None and window > self.prefix + self.deepest:
            window = None
        if window is None and len(self.depths) == 1:
            return None
        key = (window, group, dtype)
        if key not in self._masks:
            self._masks[key] = self._build_mask(window, group, dtype)
        return self._masks[key]

    def _build_mask(self, window: int | None, group: int, dtype: torch.dtype) -> Tensor:
        count = len(self.depths)
        visible = self.depths.new_ones((count, self.prefix + count), dtype=torch.bool)
        visible[:, self.prefix :] = self.ancestors
        if window is not None:
            queries = self.prefix + self.depths
            keys = torch.cat([torch.arange(self.prefix, device=queries.device), queries])
            visible &= queries[:, None] - keys[None, :] < window
        hidden = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
        return hidden.repeat(group, 1)


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Attend as the forward's ``AttentionPlan`` says; the signature is that of transformers' attention functions.

    Args:
        module: the attention module that calls.
        query: ``[1, heads, N, key_dim]``.
        key: ``[1, key_heads, prefix + N, key_dim]``, a view of the cache.
        value: ``[1, key_heads, prefix + N, value_dim]``, a view of the cache.
        attention_mask: must be ``None``.
        scaling: factor on the scores; ``key_dim ** -0.5`` where ``None``.
        sliding_window: a key is seen if ``query position - key position < sliding_window``.
        softcap: scores become ``softcap * tanh(score / softcap)`` before the mask.
        keywords: the plan, under ``PLAN_KEYWORD``, and keywords without a bearing on attention.

    Returns:
        ``[1, N, heads, value_dim]``, and no attention weights.

    Raises:
        UnsupportedTargetError: when the model hands over a mask or an option that this function does not know.
    """
    plan = keywords.pop(PLAN_KEYWORD, None)
    _refuse_unknown(module, plan, attention_mask, keywords)
    plan.windows.append(sliding_window)
    heads, count, key_heads = query.shape[1], query.shape[2], key.shape[1]
    group = heads // key_heads
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    folded = query.reshape(1, key_heads, group * count, query.shape[3])
    mask = plan.mask(sliding_window, group, query.dtype)
    if softcap is None:
        output = nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scale)
    else:
        output = _capped_attention(folded, key, value, mask, scale, softcap)
    return output.reshape(1, heads, count, -1).transpose(1, 2).contiguous(), None


def _capped_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, cap: float
) -> Tensor:
    scores = torch.tanh(torch.matmul(query, key.transpose(2, 3)) * (scale / cap)) * cap
    if mask is not None:
        scores = scores + mask
    return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype), value)


def _refuse_unknown(
    module: nn.Module, plan: AttentionPlan | None, mask: Tensor | None, keywords: dict[str, Any]
) -> None:
    unknown = [keyword for keyword, value in keywords.items() if not _neutral(keyword, value)]
    if plan is not None and mask is None and not unknown:
        return
    if plan is None:
        reason = "does not pass its caller's keywords on to attention"
    elif mask is not None:
        reason = "makes an attention mask of its own"
    else:
        reason = f"passes {' and '.join(sorted(unknown))} to attention, which tree attention does not know"
    raise UnsupportedTargetError(f"{type(module).__name__} {reason}")


def _neutral(keyword: str, value: Any) -> bool:
    if value is None or keyword in _NEUTRAL_KEYWORDS or keyword.startswith("output_"):
        return True
    return keyword == "is_causal" and value is True


AttentionInterface.register(ATTENTION_NAME, tree_attention)
