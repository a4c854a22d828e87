"""Starting a drafter from layers of its target.

A drafter's decoder layers do what the target's do, on shorter sight: read the tapped hidden states of the context and
turn a token into a guess at the next one. Copied weights know much of that already; random ones learn it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from specforge.errors import ConfigError
from specforge.target import Target
from specforge.training.contract import TrainingModel

PROJECTION_OF_NORM = {
    "self_attn.q_norm.weight": "self_attn.q_proj.weight",
    "self_attn.k_norm.weight": "self_attn.k_proj.weight",
}
MIXING = 0.3


@torch.no_grad()
def copy_from_target(model: nn.Module, target: Target, layers: Sequence[int]) -> None:
    """Overwrite the weights of ``model``, a ``training_model``, with those of layers of ``target``.

    The final norm becomes the target's, and the context is the deepest tap with a little of the others: what the
    copied projections expect. Where the target does not norm its queries and keys as drafters do, the norms get the
    size that the target's queries and keys have on average. Biases and the correction head are left as they are.

    Args:
        model: its decoder layers are in ``model.layers``.
        target: its layers may lie anywhere and have any dtype.
        layers: which one each decoder layer starts from.

    Raises:
        ConfigError: when there are more or fewer than decoder layers, one is not the target's, or shapes differ.
    """
    own = cast(nn.ModuleList, model.get_submodule("layers"))
    final_norm, projection = model.get_parameter("norm.weight"), model.get_parameter("fc.weight")
    if len(layers) != len(own):
        raise ConfigError(f"copied_layers are {list(layers)}; the drafter has {len(own)} layers, each needs one")
    target.check_taps(tuple(layers))
    norms = []
    for mine, number in zip(own, layers, strict=True):
        theirs = dict(target.layers[number].named_parameters())
        norms.append(_needed(theirs, "input_layernorm.weight", final_norm, number))
        for name, parameter in mine.named_parameters():
            if name in theirs or name not in PROJECTION_OF_NORM:
                parameter.copy_(_needed(theirs, name, parameter, number))
            else:
                parameter.fill_(_size(theirs[PROJECTION_OF_NORM[name]], norms[-1]))
    final_norm.copy_(_needed(dict(target.decoder.named_parameters()), "norm.weight", final_norm, None))
    model.get_parameter("hidden_norm.weight").copy_(torch.stack(norms).mean(dim=0))
    width, taps = target.hidden_size, cast(TrainingModel, model).config.taps
    deepest = taps.index(max(taps))
    projection.mul_(MIXING)
    projection[:, deepest * width : (deepest + 1) * width] += torch.eye(width)


def _needed(theirs: dict[str, nn.Parameter], name: str, like: Tensor, layer: int | None) -> Tensor:
    where = "the target" if layer is None else f"layer {layer} of the target"
    if name not in theirs:
        raise ConfigError(f"{where} has no {name}; leave copied_layers out")
    if theirs[name].shape != like.shape:
        raise ConfigError(
            f"{name} is {list(theirs[name].shape)} in {where} and {list(like.shape)} in the drafter; "
            "give the drafter the target's widths, or leave copied_layers out"
        )
    return theirs[name].float()


def _size(projection: Tensor, norm: Tensor) -> float:
    """Return the root mean square of a projection's outputs for inputs that are white before their norm's gains."""
    return float((projection.float() * norm).pow(2).sum(dim=1).mean().sqrt())
