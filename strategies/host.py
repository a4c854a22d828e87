"""The one copy that brings a builder's tensors to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def to_host(tensors: Sequence[Tensor]) -> list[npt.NDArray[Any]]:
    """Return ``tensors`` as NumPy arrays; from a device, all in one copy."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [tensor.detach().numpy() for tensor in tensors]
    flat = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    packed = torch.cat(flat).cpu()
    pieces = packed.split([part.numel() for part in flat])
    # A piece of the packed bytes may be misaligned for its dtype, hence the clone.
    return [
        piece.clone().view(tensor.dtype).view(tensor.shape).numpy()
        for piece, tensor in zip(pieces, tensors, strict=True)
    ]
