"""What each correction backend takes for a tree on a GPU, how well it agrees, and how near its kernels are to memory.

    python benchmarks/gpu_correction.py

is made to take less than 8 minutes on a CUDA device, and prints one table last. Random weights of the published
shapes, with the GRU's input table unless a case says otherwise. Times of builds are on the wall clock, up to the tree
on the host, with the round's tensors on the device already and a cold L2 cache, as after a target's forward pass. The
exit code is 1 if something failed, a graph changed a bit or a test did not pass. On a CPU,

    TRITON_INTERPRET=1 python benchmarks/gpu_correction.py --device cpu --shapes tiny

runs the same code on tiny shapes, with functions run again in place of graphs; its times mean nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path

import torch
from attrs import frozen
from gpu_agreement import HEADS, Comparison
from gpu_builds import BuildRow, Case, prepare_builds, time_build
from gpu_kernels import kernels_of, measure_kernel
from gpu_measuring import Row, print_table
from random_heads import QWEN3_4B, QWEN3_8B, TINY, Shape, random_domino

from specforge.correction.triton_backend import Triton
from specforge.strategies.depthwise import DepthWise
from specforge.strategies.heap import Heap

ROOT = Path(__file__).parents[1]
TEST_RUNS = {
    "graphs and host copies on a GPU": [
        *("-m", "gpu", "tests/test_correction_graph.py", "tests/test_depthwise.py"),
        *("tests/test_host.py", "tests/test_ordering.py"),
    ],
    "kernels against eager": ["-m", "not slow", "tests/test_correction_triton.py"],
}
"""Arguments of pytest."""
TESTS_TIMEOUT = 130
"""Seconds a run: both, and the measurements before them, stay within 8 minutes."""


@frozen
class Step:
    """Something to measure, and what it is called if that fails."""

    what: str
    case: str
    backend: str
    run: Callable[[], Row]

    def attempt(self) -> Row:
        """Return the row; a failure is one too, so that what was measured before and after is not lost with it."""
        try:
            row = self.run()
        except Exception as error:
            traceback.print_exc()
            row = Row(self.what, self.case, self.backend, "failed", details=[type(error).__name__], failed=True)
        print(" | ".join(row.cells()), flush=True)
        return row


@frozen
class Setup:
    """What is measured, and how often.

    Attributes:
        shapes: by name.
        cases: the builds; the last one's builder builds the trees of the agreement.
        repeats: timed builds of a case, after two more.
        profiled: profiled builds of a case.
        rounds: different drafts, in turns.
        batches: numbers of nodes for the kernels; the largest is the agreement's.
        candidates: the agreement's ``M``.
    """

    shapes: dict[str, Shape]
    cases: list[Case]
    repeats: int
    profiled: int
    rounds: int
    batches: tuple[int, ...]
    candidates: tuple[int, ...]


def published() -> Setup:
    """Return the published shapes."""
    aims = {32: None, 64: 1.5, 128: None}
    heaps = [Case(f"heap B={budget} M=64", Heap(budget), 64, aim_ms=aim) for budget, aim in aims.items()]
    step = Case("heap B=64 M=64, one node at a time", Heap(64, lookahead=1), 64)
    deep, name = DepthWise(64, width=12), "depth-wise W=12 B=64"
    without = Case(f"{name} K=64, no input table", deep, 64, table=False)
    deeps = [Case(f"{name} K={count}", deep, count, aim_ms=0.5, aim_ratio=1.3) for count in (64, 2048)]
    shapes = {"H=2560": QWEN3_4B, "H=4096": QWEN3_8B}
    return Setup(shapes, [*heaps, step, without, *deeps], 20, 3, 5, (1, 12, 64), (64, 2048))


def tiny() -> Setup:
    """Return shapes that Triton's interpreter gets through."""
    deep = DepthWise(4, width=3)
    cases = [
        Case("heap B=4 M=5", Heap(4), 5, aim_ms=1.5),
        Case("depth-wise W=3 B=4 K=5", deep, 5, table=False, aim_ms=0.5, aim_ratio=1.3),
    ]
    return Setup({"tiny": TINY}, cases, 1, 1, 1, (2,), (5, 70))


def builds(setup: Setup, device: torch.device) -> Iterator[Step]:
    """Yield a step a case and backend."""
    for where, shape in setup.shapes.items():
        for case, by_backend in prepare_builds(setup.cases, shape, setup.rounds, device):
            for name in by_backend:
                run = partial(time_build, by_backend, name, where, setup.repeats, device)
                yield Step("build", f"{case.name}, {where}", name, run)


def agreement(setup: Setup, device: torch.device) -> Iterator[Step]:
    """Yield a step a kind of head, shape and number of candidates."""
    builder, nodes = setup.cases[-1].builder, setup.batches[-1]
    for where, shape in setup.shapes.items():
        for kind, count in product(HEADS, setup.candidates):
            comparison = Comparison(kind, shape, count, nodes, setup.rounds, builder, device)
            case = f"{kind} M={count}, {nodes} nodes, {where}"
            yield Step("agreement", case, "triton", partial(comparison.row, case))


def kernels(setup: Setup, device: torch.device) -> Iterator[Step]:
    """Yield a step a kernel and number of nodes; no kernel's sizes depend on the target's."""
    head = random_domino(next(iter(setup.shapes.values())), torch.bfloat16, device, table=True)
    for count in setup.batches:
        for name, inputs in kernels_of(head, count, device).items():
            case = f"{name}, {count} nodes"
            yield Step("kernel", case, "triton", partial(measure_kernel, case, inputs, device))


def tests(setup: Setup, device: torch.device) -> Iterator[Step]:
    """Yield a step a run of tests."""
    for name, arguments in TEST_RUNS.items():
        run = partial(run_pytest, name, arguments)
        if device.type != "cuda":
            run = partial(Row, "tests", name, "", "not run", details=["needs a CUDA device"])
        yield Step("tests", name, "", run)


def run_pytest(name: str, arguments: Sequence[str]) -> Row:
    """Return how a run of tests went."""
    command, begin = [sys.executable, "-m", "pytest", "-q", *arguments], time.perf_counter()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TESTS_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return Row("tests", name, "", f"over {TESTS_TIMEOUT} s", details=["stopped"], failed=True)
    if done.returncode:
        print(done.stdout[-8000:], done.stderr[-2000:])
    last = (done.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")
    return Row("tests", name, "", f"{time.perf_counter() - begin:.0f} s", details=[last], failed=done.returncode != 0)


def profile(row: BuildRow, setup: Setup, device: torch.device) -> None:
    """Add the kernels' time to ``row``; a failure is noted there."""
    try:
        row.profile(setup.profiled, device)
    except Exception as error:
        traceback.print_exc()
        row.details.append(f"kernels alone: failed, {type(error).__name__}")
        row.failed = True


def measure(setup: Setup, device: torch.device) -> list[Row]:
    """Return all rows. Everything is timed before the profiler first runs, which may slow down all that follows."""
    steps = chain.from_iterable(part(setup, device) for part in (builds, agreement, kernels, tests))
    rows = [step.attempt() for step in steps]
    for row in rows:
        if isinstance(row, BuildRow):
            profile(row, setup, device)
    return rows


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options, checked against what the device can run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", type=torch.device)
    parser.add_argument("--shapes", choices=("published", "tiny"), default="published")
    chosen = parser.parse_args(argv)
    on_cuda = chosen.device.type == "cuda"
    if on_cuda and not torch.cuda.is_available():
        parser.error("--device is 'cuda', and there is no CUDA device; --device cpu --shapes tiny exercises the script")
    reason = Triton().lacks(chosen.device)
    if reason is not None:
        parser.error(f"triton cannot run on {chosen.device}: {reason}; on a CPU, set TRITON_INTERPRET=1")
    if on_cuda and Triton().lacks(torch.device("cpu")) is None:
        parser.error("TRITON_INTERPRET is set: interpreted kernels say nothing about the device; unset it")
    return chosen


@torch.no_grad()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure everything, print the table and return the exit code."""
    # Re-initialising CUPTI, which the profiler does whenever it starts, may crash the CUDA graphs of the same process.
    os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    chosen, begin = parse(argv), time.perf_counter()
    device = chosen.device
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    rows = measure(published() if chosen.shapes == "published" else tiny(), device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, times mean nothing"
    took = f"took {time.perf_counter() - begin:.0f} s"
    print(f"\n{name}, torch {torch.__version__}, {chosen.shapes} shapes, bfloat16 unless it says otherwise, {took}\n")
    print_table(rows)
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
