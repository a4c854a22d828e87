"""A table of measurements, and how time is measured on a GPU: wall clock, events, and the profiler's kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from attrs import define, field
from torch.autograd import DeviceType

COLUMNS = ("what", "case", "backend", "measured", "aim", "detail")
CACHES_WRITTEN = 8
"""How often the size of the L2 cache is written to empty it: for so long that what follows is launched meanwhile."""
UNKNOWN_CACHE = 64 * 2**20
"""Bytes, for a device that does not tell its own."""


@define
class Row:
    """One measurement.

    Attributes:
        what: its kind.
        case: what was measured.
        backend: by which backend.
        measured: the figure, with its unit.
        aims: each with whether it is met.
        details: everything else.
        failed: whether the script's exit code is to tell.
    """

    what: str
    case: str
    backend: str
    measured: str
    aims: list[str] = field(factory=list)
    details: list[str] = field(factory=list)
    failed: bool = False

    def cells(self) -> list[str]:
        """Return a text a column."""
        return [self.what, self.case, self.backend, self.measured, "; ".join(self.aims), "; ".join(self.details)]


def judged(aim: str, met: bool | None) -> str:
    """Return ``aim`` and whether it is met; ``None`` where that was not measured."""
    return f"{aim}: {'not measured' if met is None else 'met' if met else 'not met'}"


def print_table(rows: Sequence[Row]) -> None:
    """Print a Markdown table."""
    everything = [list(COLUMNS), *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
        for cells in everything
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print("\n".join(lines))


def synchronize(device: torch.device) -> None:
    """Wait for ``device``."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def empty_cache_of(device: torch.device) -> Callable[[], None]:
    """Return what writes more than the L2 cache holds, as a target's forward pass reads more than that."""
    size = 0
    if device.type == "cuda":
        cache = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or UNKNOWN_CACHE
        size = CACHES_WRITTEN * cache
    buffer = torch.empty(size, dtype=torch.uint8, device=device)

    def write() -> None:
        buffer.zero_()

    return write


def wall_seconds(run: Callable[[int], Any], repeats: int, device: torch.device) -> float:
    """Return the median time of ``run(0)``, ``run(1)``, ..., each on a cold cache, after two that are not counted."""
    empty_cache, taken = empty_cache_of(device), []
    for number in range(repeats + 2):
        empty_cache()
        synchronize(device)
        begin = time.perf_counter()
        run(number)
        synchronize(device)
        taken.append(time.perf_counter() - begin)
    return median(taken[2:])


def device_seconds(run: Callable[[], Any], repeats: int, device: torch.device, cold: bool) -> float:
    """Return the median time that a CUDA device spends on ``run``, launched behind other work; ``cold``: as above."""
    empty_cache, taken = empty_cache_of(device), []
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(repeats):
        empty_cache()
        if not cold:
            run()
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize(device)
        taken.append(1e-3 * begin.elapsed_time(end))
    return median(taken)


def kernel_seconds(run: Callable[[], Any], repeats: int, device: torch.device) -> float | None:
    """Return the median over runs of the sum of their kernels' times, without copies; ``None`` if nothing was seen."""
    if device.type != "cuda":
        return None
    empty_cache, taken = empty_cache_of(device), []
    run()
    for _ in range(repeats):
        empty_cache()
        synchronize(device)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            synchronize(device)
        kernels = [event for event in profile.events() or [] if is_kernel(event)]
        taken.append(1e-6 * sum(event.self_device_time_total for event in kernels))
    return median(taken) or None


def is_kernel(event: Any) -> bool:
    """Whether the profiler's ``event`` is a kernel, rather than a copy, the driver's fill or something of the host."""
    return event.device_type == DeviceType.CUDA and not event.name.startswith(("Memcpy", "Memset"))


def peak_bandwidth(device: torch.device) -> float | None:
    """Return the bytes a second that the device's memory moves at most, where torch tells it."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    clock, width = (getattr(properties, name, 0) for name in ("memory_clock_rate", "memory_bus_width"))
    # The clock is in kHz, and data moves at both of its edges; the width is in bits.
    return 2e3 * clock * width / 8 or None
