"""The one copy that brings a builder's tensors to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from attrs import frozen
from torch import Tensor


@frozen(eq=False)
class Packed:
    """Tensors of any shapes and dtypes as one run of bytes.

    Attributes:
        flat: uint8, on their device.
        like: the shape, dtype and number of bytes of each.
    """

    flat: Tensor
    like: tuple[tuple[torch.Size, torch.dtype, int], ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Packed:
        """Pack ``tensors``, at least one, which share a device; nothing is waited for."""
        parts = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors]
        like = tuple((t.shape, t.dtype, part.numel()) for t, part in zip(tensors, parts, strict=True))
        return cls(torch.cat(parts), like)

    def to_host(self) -> list[npt.NDArray[Any]]:
        """Return the tensors as NumPy arrays of their own, in one copy from the device."""
        pieces = self.flat.cpu().split([size for *_, size in self.like])
        # A piece may lie at an address that its dtype does not allow; its clone does not.
        return [
            piece.clone().view(dtype).view(shape).numpy()
            for piece, (shape, dtype, _) in zip(pieces, self.like, strict=True)
        ]


def to_host(tensors: Sequence[Tensor]) -> list[npt.NDArray[Any]]:
    """Return ``tensors``, which share a device, as NumPy arrays: without a copy from the host, else in one."""
    if tensors and tensors[0].device.type != "cpu":
        return Packed.of(tensors).to_host()
    return [tensor.detach().numpy() for tensor in tensors]
