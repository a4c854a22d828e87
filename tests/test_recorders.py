"""What the stand-in for a graph refuses: operations that would wait for a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from recorders import TapeRecorder
from torch import Tensor


def put_at_a_mask(values: Tensor) -> None:
    values[values > 0] = 1.0


@pytest.mark.parametrize(
    "reads",
    [
        lambda values: values[values > 0],
        lambda values: values[None, values > 0],
        put_at_a_mask,
        lambda values: values.nonzero(),
        lambda values: float(values.sum()),
        lambda values: values.tolist(),
    ],
)
def test_refuses_what_reads_values(reads: Callable[[Tensor], object]) -> None:
    with pytest.raises(AssertionError, match="would wait for a device"):
        TapeRecorder().record(lambda: reads(torch.randn(3)))


def test_records_indices() -> None:
    values, rows = torch.arange(3.0), torch.tensor([2, 0])
    replay = TapeRecorder().record(lambda: values[rows])
    assert replay().tolist() == [2.0, 0.0]
    values += 1
    rows.copy_(torch.tensor([1, 1]))
    assert replay().tolist() == [2.0, 2.0]
