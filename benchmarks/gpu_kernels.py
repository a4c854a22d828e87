"""How near each Triton kernel is to what the device's memory moves, with its data in memory and in the L2 cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from gpu_measuring import Row, device_seconds, peak_bandwidth, wall_seconds
from torch import Tensor

from specforge.correction.domino import DominoCorrection
from specforge.correction.recording import CudaRecorder

CANDIDATES = 64
KEEP = 12
"""Children that are chosen at a depth."""
LAUNCHES = 100
"""In one graph, so that launching does not count."""
REPEATS = 10

Launch = Callable[[], Any]
Inputs = Callable[[int], tuple[Launch, list[Tensor]]]
"""Returns, for a copy of a kernel's inputs that shares nothing with other copies, the launch and what it reads."""


def kernels_of(head: DominoCorrection, count: int, device: torch.device) -> dict[str, Inputs]:
    """Return each kernel on ``count`` nodes of 64 candidates."""
    from specforge.correction import triton_kernels as kernels
    from specforge.correction import triton_ops as ops

    table, up, numbers = head.input_table, head.up, torch.arange(count, device=device)
    assert table is not None

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, device=device)

    def distinct(number: int, copy: int, rows: int) -> Tensor:
        return (torch.arange(number, device=device) + copy * number) * 3 % rows

    def states() -> Tensor:
        return random(count, head.state_weight.shape[1]).to(up.dtype)

    def log_probs() -> Tensor:
        return random(count, CANDIDATES).log_softmax(-1)

    def advance(copy: int) -> tuple[Launch, list[Tensor]]:
        above, weight, tokens = states(), head.state_weight.clone(), distinct(count, copy, len(table))
        return lambda: ops.gru(above, numbers, table, tokens, weight), [above, weight, table[tokens]]

    def inner(copy: int) -> tuple[Launch, list[Tensor]]:
        paths, weight, shift = states(), head.down_state.clone(), random(len(head.down_state)).to(up.dtype)
        return lambda: ops.inner(kernels.SILU, [(paths, weight)], shift), [paths, weight, shift]

    def sliced(copy: int) -> tuple[Launch, list[Tensor]]:
        paths, base, tokens = random(count, up.shape[1]), random(CANDIDATES), distinct(CANDIDATES, copy, len(up))
        return lambda: ops.slice_log_softmax(paths, up, tokens, base, 1.0), [paths, base, tokens, up[tokens]]

    def rows(copy: int) -> tuple[Launch, list[Tensor]]:
        values = log_probs()
        return lambda: ops.best_of_rows(values, CANDIDATES), [values]

    def children(copy: int) -> tuple[Launch, list[Tensor]]:
        scores, values, tokens = random(count), log_probs(), distinct(CANDIDATES, copy, len(up)).repeat(count, 1)
        # Of the tokens it must read those of the chosen only.
        return lambda: ops.best_children(scores, values, tokens, KEEP), [scores, values, tokens.flatten()[:KEEP]]

    return {"advance": advance, "inner": inner, "slice": sliced, "rows": rows, "children": children}


def measure_kernel(case: str, inputs: Inputs, device: torch.device) -> Row:
    """Return a kernel's time with cold and with warm data, and the rate at which it moves what it must move at least.

    Cold: every launch has inputs of its own, and the cache is emptied before each round of launches.
    """
    copies = [inputs(copy) for copy in range(LAUNCHES if device.type == "cuda" else 1)]
    launch, reads = copies[0]
    moved = sum(tensor.numel() * tensor.element_size() for tensor in [*reads, *tensors_of(launch())])
    cold = seconds_a_launch([launch for launch, _ in copies], device, cold=True)
    warm = seconds_a_launch([launch] * len(copies), device, cold=False)
    row = Row("kernel", case, "triton", f"{1e6 * cold:.2f} us")
    share = "" if (peak := peak_bandwidth(device)) is None else f", {moved / cold / peak:.0%} of the peak"
    row.details.append(f"{moved / 1e6:.3f} MB at least, {moved / cold / 1e9:.1f} GB/s{share}")
    row.details.append(f"from the cache: {1e6 * warm:.2f} us")
    return row


def seconds_a_launch(launches: Sequence[Launch], device: torch.device, cold: bool) -> float:
    """Return the time of one of ``launches``, which follow each other in one graph."""
    if device.type != "cuda":
        return wall_seconds(lambda number: launches[0](), 1, device)
    recording = CudaRecorder(device).record(lambda: [launch() for launch in launches])
    return device_seconds(recording, REPEATS, device, cold) / len(launches)


def tensors_of(result: Any) -> list[Tensor]:
    """Return the tensors of what a kernel's function returns."""
    if isinstance(result, Tensor):
        return [result]
    parts = attrs.astuple(result, recurse=False) if attrs.has(type(result)) else result
    return [tensor for part in parts for tensor in tensors_of(part)]
