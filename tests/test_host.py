"""Bringing tensors to the host in one copy."""

from __future__ import annotations

import pytest
import torch

from specforge.strategies.host import Packed, to_host

TENSORS = [
    torch.arange(3),
    torch.tensor([[0.5, float("-inf")], [float("nan"), -0.0]]),
    torch.tensor([True, False, True]),
    torch.arange(5, dtype=torch.int32)[::2],
    torch.arange(7)[:0],
    torch.arange(6.0).reshape(2, 3).T.to(torch.float16),
    torch.tensor([2**40, -1]),
]


def assert_same(found: list[torch.Tensor]) -> None:
    for tensor, wanted in zip(found, TENSORS, strict=True):
        assert tensor.dtype == wanted.dtype
        assert torch.equal(tensor.nan_to_num(7.0), wanted.nan_to_num(7.0))


def test_bytes_come_back_as_they_were() -> None:
    assert_same([torch.from_numpy(array) for array in Packed.of(TENSORS).to_host()])


def test_host_tensors_are_not_copied() -> None:
    tensor = torch.zeros(3)
    (array,) = to_host([tensor])
    tensor[1] = 5.0
    assert array.tolist() == [0.0, 5.0, 0.0]
    assert to_host([]) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_tensors() -> None:
    assert_same([torch.from_numpy(array) for array in to_host([tensor.cuda() for tensor in TENSORS])])
