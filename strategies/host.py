"""The one copy that brings a builder's tensors to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def to_host(tensors: Sequence[Tensor]) -> list[npt.NDArray[Any]]:
    """Return ``tensors``, which share a device, as NumPy arrays: without a copy from the host, else in one."""
    if tensors and tensors[0].device.type != "cpu":
        tensors = through_one_copy(tensors)
    return [tensor.detach().numpy() for tensor in tensors]


def through_one_copy(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors of any shapes and dtypes to the host as one run of bytes."""
    flat = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    pieces = torch.cat(flat).cpu().split([part.numel() for part in flat])
    # A piece may lie at an address that its dtype does not allow; its clone does not.
    return [piece.clone().view(tensor.dtype).view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]
