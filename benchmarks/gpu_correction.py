"""What each correction backend takes for a tree on a GPU, how well it agrees, and how near its kernels are to memory.

    python benchmarks/gpu_correction.py

takes a few minutes on a CUDA device and prints one table last. Random weights of the published shapes. On a CPU,

    TRITON_INTERPRET=1 python benchmarks/gpu_correction.py --device cpu --shapes tiny

runs the same code on tiny shapes, with functions run again in place of graphs; its times mean nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from attrs import evolve, frozen
from random_heads import QWEN3_4B, QWEN3_8B, TINY, Shape, any_round, random_domino, random_draft
from torch import Tensor

from specforge.correction.backends import run_on, runnable
from specforge.correction.domino import DominoCorrection
from specforge.correction.graph_head import GraphHead
from specforge.correction.recording import CudaRecorder, Recorder
from specforge.interfaces import CorrectionHead, Draft, TreeBuilder
from specforge.strategies.conditional import Conditional
from specforge.strategies.depthwise import DepthWise
from specforge.strategies.heap import Heap
from specforge.tree import DraftTree

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
TESTS_TIMEOUT = 240
"""Seconds."""


class Rerun(Recorder):
    """Runs the function again: for exercising this script without a GPU."""

    def record(self, function: Callable[[], T]) -> Callable[[], T]:
        """Return ``function``."""
        return function

    def busy(self) -> bool:
        """It never is."""
        return False


class Unrecorded(Rerun):
    """The same operations at the same shapes, without a graph."""

    def busy(self) -> bool:
        """It always is."""
        return True


@frozen
class Case:
    """One kind of build."""

    name: str
    builder: TreeBuilder
    candidates: int


@frozen
class Setup:
    """What is measured, and how often.

    Attributes:
        shapes: by name.
        cases: the builds.
        repeats: timed builds of a case, after two more.
        rounds: different drafts, in turns.
        batches: numbers of nodes for the kernels.
    """

    shapes: dict[str, Shape]
    cases: list[Case]
    repeats: int
    rounds: int
    batches: tuple[int, ...]


def published() -> Setup:
    """Return the published shapes."""
    heaps = [Case(f"heap B={b} M=64", Heap(b), 64) for b in (32, 64, 128)]
    deep = [Case(f"depth-wise W=12 K={k} B=64", DepthWise(64, width=12), k) for k in (64, 2048)]
    step = Case("heap B=64 M=64, one node at a time", Heap(64, lookahead=1), 64)
    return Setup({"H=2560": QWEN3_4B, "H=4096": QWEN3_8B}, [*heaps, step, *deep], 20, 5, (1, 12, 64))


def tiny() -> Setup:
    """Return shapes that Triton's interpreter gets through."""
    cases = [Case("heap B=4 M=5", Heap(4), 5), Case("depth-wise W=3 K=5 B=4", DepthWise(4, width=3), 5)]
    return Setup({"tiny": TINY}, cases, 1, 1, (2,))


def all_heads(eager: DominoCorrection, device: torch.device) -> dict[str, CorrectionHead]:
    """Return the heads of all backends, graphs last."""
    plain = {name: run_on(name, eager, device) for name in ("eager", "triton")}
    names = {"eager": "cuda_graph+eager", "triton": "cuda_graph"}
    recorders = {name: CudaRecorder(device) if device.type == "cuda" else Rerun() for name in plain}
    return {**plain, **{names[name]: GraphHead(head, recorders[name]) for name, head in plain.items()}}


def synchronize(device: torch.device) -> None:
    """Wait for ``device``."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[int], Any], repeats: int, device: torch.device) -> float:
    """Return the median time of ``run(0)``, ``run(1)``, ..., after two that are not counted."""
    taken = []
    for number in range(repeats + 2):
        synchronize(device)
        begin = time.perf_counter()
        run(number)
        synchronize(device)
        taken.append(time.perf_counter() - begin)
    return median(taken[2:])


def kernel_seconds(run: Callable[[], Any], device: torch.device) -> float | None:
    """Return the sum of the times of the kernels of one run, as the profiler has them."""
    if device.type != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        synchronize(device)
    return 1e-6 * sum(event.self_device_time_total for event in profile.key_averages())


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    """Return the tree's paths, whatever its numbering."""
    return {tree.path_tokens(node) for node in range(1, len(tree))}


def identical(one: DraftTree, other: DraftTree) -> bool:
    """Whether two trees are the same bit for bit."""
    same = one.token_ids.tolist() == other.token_ids.tolist() and one.parents.tolist() == other.parents.tolist()
    return same and one.log_probs.tobytes() == other.log_probs.tobytes()


def measure_builds(setup: Setup, shape: Shape, where: str, device: torch.device) -> list[list[str]]:
    """Return a row for every build and backend."""
    dtype = torch.bfloat16
    heads = all_heads(random_domino(shape, dtype, device), device)
    drafts = [random_draft(shape, dtype, heads["eager"], device, seed) for seed in range(setup.rounds)]
    rows = []
    for case in setup.cases:
        trees: dict[str, list[DraftTree]] = {}
        for name, head in heads.items():
            scorer, given = Conditional(case.candidates), [evolve(draft, correction=head) for draft in drafts]

            def build(
                number: int, case: Case = case, given: Sequence[Draft] = given, scorer: Any = scorer
            ) -> DraftTree:
                return case.builder.build(given[number % len(given)], scorer, any_round(device))

            took = seconds(build, setup.repeats, device)
            alone = kernel_seconds(lambda b=build: b(0), device)
            trees[name] = [build(number) for number in range(setup.rounds)]
            same = sum(paths(one) == paths(two) for one, two in zip(trees["eager"], trees[name], strict=True))
            detail = [f"same tree as eager in {same} of {setup.rounds}"]
            if isinstance(head, GraphHead):
                detail.append(f"bit-identical to no graph: {unrecorded_is_the_same(head, case, drafts, trees[name])}")
            if alone is not None:
                detail.append(f"kernels alone {1e3 * alone:.3f} ms, {took / alone:.2f} times")
            rows.append(["build", f"{case.name}, {where}", name, f"{1e3 * took:.3f} ms", "; ".join(detail)])
            print(" | ".join(rows[-1]), flush=True)
    return rows


def unrecorded_is_the_same(head: GraphHead, case: Case, drafts: Sequence[Draft], trees: Sequence[DraftTree]) -> str:
    """Say whether the same operations without a graph give the same trees, where the whole build is one graph."""
    if isinstance(case.builder, Heap) and case.builder.lookahead is not None:
        return "checked step by step in the tests"
    plain = GraphHead(head.inner, Unrecorded())
    device = drafts[0].base_logits.device  # type: ignore[union-attr]
    others = [
        case.builder.build(evolve(draft, correction=plain), Conditional(case.candidates), any_round(device))
        for draft in drafts
    ]
    return "yes" if all(identical(one, two) for one, two in zip(trees, others, strict=True)) else "NO"


def measure_agreement(setup: Setup, shape: Shape, where: str, device: torch.device) -> list[list[str]]:
    """Return how far apart eager and Triton are in float32, relative to 1e-5 + 1e-5 |eager|: at most 1 is asked for."""
    heads = all_heads(random_domino(shape, torch.float32, device), device)
    round, scorer, worst, same = any_round(device), Conditional(setup.cases[0].candidates), 0.0, 0
    for seed in range(setup.rounds):
        draft = random_draft(shape, torch.float32, heads["eager"], device, seed)
        found = [log_probs_by_token(evolve(draft, correction=heads[name]), scorer) for name in ("eager", "triton")]
        worst = max(worst, float(((found[1] - found[0]).abs() / (1e-5 + 1e-5 * found[0].abs())).max()))
        builder = setup.cases[-1].builder
        pair = [builder.build(evolve(draft, correction=heads[n]), scorer, round) for n in ("eager", "cuda_graph")]
        same += paths(pair[0]) == paths(pair[1])
    detail = f"same tree in {same} of {setup.rounds}"
    return [["agreement", f"float32 log-probabilities, {where}", "triton", f"{worst:.2f} of the tolerance", detail]]


def log_probs_by_token(draft: Draft, scorer: Conditional) -> Tensor:
    """Return ``[n, M]`` log-probabilities below some nodes of depth 1, by token id."""
    device = draft.hidden.device  # type: ignore[union-attr]
    state = scorer.begin(draft, any_round(device))
    tokens = torch.arange(12, device=device)
    state = scorer.advance(draft, 0, state, torch.zeros_like(tokens), tokens)
    row = scorer.expand(draft, 1, state)
    return row.log_probs.gather(-1, row.tokens.sort(dim=-1).indices)


def kernel_runs(
    head: DominoCorrection, count: int, device: torch.device
) -> dict[str, tuple[Callable[[], Any], list[Tensor]]]:
    """Return each kernel on ``count`` nodes of 64 candidates, with the tensors that it reads or writes at least."""
    from specforge.correction import triton_kernels as kernels
    from specforge.correction import triton_ops as ops

    size, inner_size = head.down_state.shape[1], head.down_state.shape[0]
    candidates, base = torch.arange(64, device=device) * 3, torch.zeros(64, device=device)
    shift = torch.zeros(inner_size, dtype=head.up.dtype, device=device)
    states = torch.randn(count, size, device=device).to(head.up.dtype)
    inputs = torch.randn(count, 3 * size, device=device).to(head.up.dtype)
    inner, numbers = torch.randn(count, inner_size, device=device), torch.arange(count, device=device)
    log_probs = torch.randn(count, 64, device=device).log_softmax(-1)
    tokens, scores = torch.arange(count * 64, device=device).view(count, 64), torch.zeros(count, device=device)
    weight, up = head.state_weight, head.up
    return {
        "advance": (lambda: ops.gru(states, numbers, inputs, None, weight), [states, states, inputs, weight]),
        "inner": (
            lambda: ops.inner(kernels.SILU, [(states, head.down_state)], shift),
            [states, head.down_state, inner],
        ),
        "slice": (
            lambda: ops.slice_log_softmax(inner, up, candidates, base, 1.0),
            [inner, up[candidates], base, log_probs],
        ),
        "rows": (lambda: ops.best_of_rows(log_probs, 64), [log_probs, log_probs, tokens]),
        "children": (lambda: ops.best_children(scores, log_probs, tokens, 12), [log_probs, tokens]),
    }


def measure_kernels(setup: Setup, shape: Shape, where: str, device: torch.device) -> list[list[str]]:
    """Return each kernel's time, and the rate at which it moves the bytes that it must move at least."""
    head, rows = random_domino(shape, torch.bfloat16, device), []
    for count in setup.batches:
        for name, (run, moved) in kernel_runs(head, count, device).items():
            took, size = repeated_seconds(run, device), sum(t.numel() * t.element_size() for t in moved)
            rate = f"{size / 1e6:.3f} MB at least, {size / took / 1e9:.2f} GB/s"
            rows.append(["kernel", f"{name}, {count} nodes, {where}", "triton", f"{1e6 * took:.2f} us", rate])
    return rows


def repeated_seconds(run: Callable[[], Any], device: torch.device, times: int = 100) -> float:
    """Return the time of one of many runs that follow each other in one graph, so that launching does not count."""
    if device.type != "cuda":
        return seconds(lambda number: run(), 1, device)
    recording = CudaRecorder(device).record(lambda: [run() for _ in range(times)])
    return seconds(lambda number: recording(), 10, device) / times


def run_tests(device: torch.device) -> list[list[str]]:
    """Run the tests that need a GPU."""
    if device.type != "cuda":
        return [["tests", "pytest -m gpu", "", "not run", "needs a CUDA device"]]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-k", "correction or depthwise or host", "tests"]
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TESTS_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return [["tests", "pytest -m gpu", "", f"over {TESTS_TIMEOUT} s", "stopped"]]
    if done.returncode:
        print(done.stdout[-8000:], done.stderr[-2000:])
    last = (done.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")
    return [["tests", "pytest -m gpu", "", f"{time.perf_counter() - begin:.0f} s", last]]


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    everything = [["what", "case", "backend", "measured", "detail"], *rows]
    widths = [max(len(row[column]) for row in everything) for column in range(5)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in everything
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print("\n".join(lines))


@torch.no_grad()
def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", choices=("published", "tiny"), default="published")
    chosen = parser.parse_args()
    device, setup = torch.device(chosen.device), published() if chosen.shapes == "published" else tiny()
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("--device is 'cuda', and there is no CUDA device; --device cpu --shapes tiny exercises the script")
    if "triton" not in runnable(device):
        parser.error(f"triton cannot run on {device}; on a CPU, set TRITON_INTERPRET=1")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, times mean nothing"
    rows = []
    for where, shape in setup.shapes.items():
        rows += measure_builds(setup, shape, where, device)
        rows += measure_agreement(setup, shape, where, device)
    rows += measure_kernels(setup, shape, where, device)
    rows += run_tests(device)
    print(f"\n{name}, torch {torch.__version__}, {chosen.shapes} shapes, bfloat16 unless it says otherwise\n")
    print_table(rows)


if __name__ == "__main__":
    main()
