"""The faster modules compute what the ones they stand in for compute."""

from __future__ import annotations

import pytest
import torch
from target_families import tiny_model
from torch import nn

from specforge.target import Target
from specforge.target.fast import THIN_ROWS, LeanRMSNorm, ThinLinear, speed_up

needs_bf16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no bfloat16 matrix instructions"
)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 33, THIN_ROWS, THIN_ROWS + 1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_thin_linear_equals_linear(rows: int, bias: bool, transposed: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    linear = nn.Linear(40, 56, bias=bias).to(dtype)
    thin = ThinLinear.sharing(linear, transposed)
    x = torch.randn(1, rows, 40, dtype=dtype)
    exact = nn.functional.linear(
        x.double(), linear.weight.double(), None if linear.bias is None else linear.bias.double()
    )
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(thin(x).double(), exact, atol=tolerance, rtol=tolerance)
    # the layout that an elementwise consumer of a transposed result hands on
    torch.testing.assert_close(thin(x.mT.contiguous().mT).double(), exact, atol=tolerance, rtol=tolerance)
    assert thin(x).is_contiguous() or transposed
    assert thin.weight is linear.weight
    assert thin.bias is linear.bias


@needs_bf16
def test_a_row_comes_out_the_same_however_many_there_are() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(576, 192, bias=False).to(torch.bfloat16)
    thin = ThinLinear.sharing(linear, transposed=False)
    x = torch.randn(1, 64, 576, dtype=torch.bfloat16)
    whole = thin(x)
    for count in (1, 2, 5, 32):
        torch.testing.assert_close(thin(x[:, :count]), whole[:, :count], atol=1e-2, rtol=1e-2)


@needs_bf16
def test_bfloat16_targets_get_thin_layers_and_lean_norms() -> None:
    twin = Target.from_model(tiny_model("llama", dtype=torch.bfloat16))._runner
    kinds = {type(module) for module in twin.modules()}
    assert {ThinLinear, LeanRMSNorm} <= kinds
    assert nn.Linear not in kinds
    assert not twin.get_output_embeddings().transposed
    assert twin.model.layers[0].mlp.up_proj.transposed
    assert not twin.model.layers[0].mlp.down_proj.transposed


def test_float32_targets_are_left_alone() -> None:
    twin = Target.from_model(tiny_model("llama"))._runner
    assert not any(isinstance(module, ThinLinear | LeanRMSNorm) for module in twin.modules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_lean_norm_equals_llamas(dtype: torch.dtype, scale: float) -> None:
    model = tiny_model("llama", dtype=dtype)
    theirs = model.model.norm
    with torch.no_grad():
        theirs.weight.copy_(torch.linspace(0.1, 2.0, 48))
    lean = LeanRMSNorm(theirs.weight, theirs.variance_epsilon)
    x = (torch.randn(1, 64, 48, generator=torch.Generator().manual_seed(1)) * scale).to(dtype)
    kept = x.clone()
    with torch.inference_mode():
        ours, want = lean(x), theirs(x)
    # sums of squares may differ in the last bit of float32, which seldom shows after rounding
    assert (ours != want).float().mean() < 0.01
    torch.testing.assert_close(ours, want)
    assert torch.equal(x, kept)


def test_norms_of_another_kind_are_left_alone() -> None:
    twin = Target.from_model(tiny_model("gemma2", dtype=torch.bfloat16))._runner
    assert type(twin.model.norm).__name__ == "Gemma2RMSNorm"
    assert not any(isinstance(module, LeanRMSNorm) for module in twin.modules())


def test_modules_with_hooks_are_left_alone() -> None:
    holder = nn.Sequential(nn.Linear(4, 4).to(torch.bfloat16), nn.Linear(4, 4).to(torch.bfloat16))
    holder[0].register_forward_hook(lambda *inputs: None)
    speed_up(holder, holder[1])
    assert type(holder[0]) is nn.Linear
