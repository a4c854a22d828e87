"""Faster equals of the modules that a decoding step spends its time in, for reduced precision on the CPU.

They are put into the twin that the target runs, never into the model itself. Float32 is left alone: there the modules
are fast already, and token identity with ``model.generate`` is worth more than what little could be gained.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Above this, `torch.nn.functional.linear` is the faster way round.
THIN_ROWS = 256


class ThinLinear(nn.Linear):
    """A linear layer for few rows: ``(W x^T)^T`` instead of ``x W^T``.

    The matrix library packs its right-hand operand at every call. Put this way round, that operand is the handful of
    activations and not the weights: 1.4 to 1.7 times faster for up to 32 rows on a processor with bfloat16 matrix
    instructions. With oneDNN a row's result also does not depend on how many rows come with it, so that a tree node's
    projections are rounded as they are in plain decoding.

    ``transposed`` leaves the result as it comes out, a transposed view, for a consumer that is elementwise and then
    linear again.
    """

    transposed = False

    def forward(self, input: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``."""
        count = input.numel() // self.in_features
        if count > THIN_ROWS or count == 0:
            return nn.functional.linear(input, self.weight, self.bias)
        weight, bias = self.weight, self.bias
        if count == 1:
            row = input.reshape(-1)
            output = torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)
        else:
            columns = input.reshape(-1, self.in_features).t()
            output = torch.mm(weight, columns) if bias is None else torch.addmm(bias[:, None], weight, columns)
            output = output.t() if self.transposed else output.t().contiguous()
        return output.view(*input.shape[:-1], self.out_features)

    @classmethod
    def sharing(cls, linear: nn.Linear, transposed: bool) -> ThinLinear:
        """Return one over the parameters of ``linear``."""
        thin = cls(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        thin.weight, thin.bias = linear.weight, linear.bias
        thin.transposed = transposed
        return thin.train(linear.training)


class LeanRMSNorm(nn.Module):
    """Root-mean-square norm in float32 with the weight applied after rounding, in few operations.

    Zhang and Sennrich, 2019 (arXiv:1910.07467), rounded as transformers' Llama does.
    """

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.epsilon = torch.tensor(epsilon, dtype=torch.float32)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Normalise the last dimension; ``hidden_states`` is of reduced precision, and so is the result."""
        wide = hidden_states.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self.epsilon, length, length, value=1.0 / wide.shape[-1]).rsqrt_()
        return wide.mul_(scale).to(hidden_states.dtype).mul_(self.weight)


def speed_up(twin: nn.Module, head: nn.Module) -> None:
    """Replace modules of ``twin``, in place, where a faster equal exists; parameters are shared, not copied.

    Args:
        twin: the modules to run.
        head: its output head, whose logits must come out row by row.
    """
    for parent in list(twin.modules()):
        for name, child in list(parent.named_children()):
            faster = _faster(child, child is head)
            if faster is not None:
                setattr(parent, name, faster)


def _faster(module: nn.Module, is_head: bool) -> nn.Module | None:
    weight = getattr(module, "weight", None)
    hooked = module._forward_hooks or module._forward_pre_hooks
    if hooked or not isinstance(weight, nn.Parameter) or weight.device.type != "cpu":
        return None
    if type(module) is nn.Linear and weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        # in attention-only models a layer that widens is the first half of a feed-forward block
        return ThinLinear.sharing(module, transposed=module.out_features > module.in_features and not is_head)
    if type(module).__name__.endswith("RMSNorm") and weight.dtype in (torch.bfloat16, torch.float16):
        return _lean_norm(module, weight)
    return None


@torch.inference_mode()
def _lean_norm(module: nn.Module, weight: nn.Parameter) -> LeanRMSNorm | None:
    """Return the lean form if ``module`` computes the same; a norm by that name may scale or round in its own way."""
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(epsilon, float) or weight.ndim != 1:
        return None
    lean = LeanRMSNorm(weight, epsilon)
    sample = torch.randn(4, weight.shape[0], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    return lean if torch.equal(module(sample), lean(sample)) else None
