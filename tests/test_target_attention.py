"""The registered attention function: what it refuses, and that it reads the cache where it lies."""

from __future__ import annotations

import pytest
import torch
from target_families import tiny_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from specforge.errors import UnsupportedTargetError
from specforge.target import Target
from specforge.target.attention import PLAN_KEYWORD, AttentionPlan, tree_attention
from specforge.tree import DraftTree


class _Model(nn.Module):
    """An attention module by a telling name."""


def call(**keywords: object) -> torch.Tensor:
    query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 8, 8)
    plan = AttentionPlan.causal(5, 3, torch.device("cpu"))
    options = {"attention_mask": None, PLAN_KEYWORD: plan, **keywords}
    return tree_attention(_Model(), query, key, key, **options)[0]


def test_neutral_keywords_are_let_through() -> None:
    output = call(dropout=0.0, is_causal=True, use_cache=True, s_aux=None, output_router_logits=False)
    assert output.shape == (1, 3, 4, 8)


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"position_bias": torch.zeros(1), "indices": 1}, "indices and position_bias"),
        ({"is_causal": False}, "is_causal"),
        ({"attention_mask": torch.zeros(1, 1, 3, 8)}, "mask of its own"),
        ({PLAN_KEYWORD: None}, "does not pass"),
    ],
)
def test_what_is_not_understood_is_refused(keywords: dict[str, object], named: str) -> None:
    with pytest.raises(UnsupportedTargetError, match=rf"_Model .*{named}"):
        call(**keywords)


def test_masks_are_built_once_for_each_window_and_group() -> None:
    plan = AttentionPlan.causal(20, 3, torch.device("cpu"))
    dtype = torch.float32
    assert plan.mask(None, 2, dtype) is plan.mask(None, 2, dtype)
    assert plan.mask(4, 2, dtype) is plan.mask(4, 2, dtype)
    assert plan.mask(4, 2, dtype) is not plan.mask(None, 2, dtype)
    # a window that reaches back to the start hides nothing
    assert plan.mask(23, 2, dtype) is plan.mask(None, 2, dtype)
    assert plan.mask(22, 2, dtype) is not plan.mask(None, 2, dtype)


def test_one_token_needs_no_mask() -> None:
    plan = AttentionPlan.causal(20, 1, torch.device("cpu"))
    assert plan.mask(None, 3, torch.float32) is None
    assert plan.mask(21, 3, torch.float32) is None
    hidden = plan.mask(5, 1, torch.float32)
    assert hidden is not None
    assert (hidden == 0).sum() == 5


class _Largest(TorchDispatchMode):
    """Records the largest tensor that any operation allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        output = func(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, tuple | list) else [output]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in inputs:
                self.elements = max(self.elements, tensor.numel())
        return output


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "phi3"])
def test_a_step_allocates_nothing_of_the_size_of_the_prefix_keys(family: str) -> None:
    target = Target.from_model(tiny_model(family))
    cache = target.new_cache(256)
    target.prefill(torch.arange(3, 90).repeat(3)[:240], cache)
    one_layer = cache.layers[0].keys[:, :, :240].numel()
    with _Largest() as largest:
        target.verify(DraftTree([5, 6, 7], [-1, 0, 0]), cache)
        cache.commit((0, 2))
    assert 0 < largest.elements < one_layer / 2
    with _Largest() as largest:
        cache.layers[0].keys[:, :, :240].repeat_interleave(2, dim=1)
    assert largest.elements >= one_layer
