"""Drafters that start from their target's layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from target_families import tiny_model
from torch import Tensor, nn

from specforge.errors import ConfigError
from specforge.target import Target
from specforge.training import Architecture
from specforge.training import copying as module
from specforge.training.architecture import drafter_config, new_model

TAPS = (2, 0)


def drafter(family: str, copied: tuple[int, ...] | None, **options: Any) -> tuple[nn.Module, Target]:
    target = Target.from_model(tiny_model(family))
    architecture = Architecture(taps=TAPS, mask_token_id=3, copied_layers=copied, bottleneck=8, state=12, **options)
    return new_model(drafter_config(architecture, target), 0, target, copied, None), target


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "qwen2"])
def test_layers_are_the_targets(family: str) -> None:
    model, target = drafter(family, (3, 1))
    for mine, number in zip(model.layers, (3, 1), strict=True):
        theirs = dict(target.layers[number].named_parameters())
        shared = [name for name, _ in mine.named_parameters() if name in theirs]
        assert len(shared) == (11 if family == "qwen3" else 9)
        assert all(torch.equal(mine.get_parameter(name), theirs[name]) for name in shared)
    assert torch.equal(model.norm.weight, target.decoder.norm.weight)


def test_a_context_is_led_by_the_deepest_tap() -> None:
    model, target = drafter("llama", (1, 2))
    width = target.hidden_size
    deepest, other = model.fc.weight[:, :width], model.fc.weight[:, width:]
    assert (deepest - torch.eye(width)).abs().max() < 0.1
    assert other.abs().max() < 0.1


def keys(attention: nn.Module, norm: Tensor, inputs: Tensor) -> Tensor:
    return (inputs * norm) @ attention.k_proj.weight.T


def check_sizes() -> None:
    model, _ = drafter("llama", (1, 2))
    inputs = torch.randn(4000, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    for layer in model.layers:
        expected = keys(layer.self_attn, layer.input_layernorm.weight, inputs).pow(2).mean().sqrt()
        torch.testing.assert_close(layer.self_attn.k_norm.weight.mean(), expected, rtol=0.05, atol=0.0)


@torch.no_grad()
def test_normed_keys_are_as_large_as_the_targets_on_average() -> None:
    check_sizes()


@torch.no_grad()
def test_norms_left_at_one_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_size", lambda projection, norm: 1.0)
    with pytest.raises(AssertionError):
        check_sizes()


@pytest.mark.parametrize(
    ("family", "copied", "options", "message"),
    [
        ("llama", (1,), {}, r"copied_layers are \[1\]; the drafter has 2 layers"),
        ("llama", (1, 4), {}, r"\[4\] are out of range"),
        ("llama", (1, 2), {"intermediate_size": 32}, r"mlp.gate_proj.weight is \[80, 48\] in layer 1 .* \[32, 48\]"),
        ("gpt-neox", (1, 2), {}, "layer 1 of the target has no self_attn.q_proj.weight"),
    ],
)
def test_layers_that_do_not_fit_are_refused(
    family: str, copied: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        drafter(family, copied, **options)
