"""What builds take with each correction backend and what their kernels take alone, and whether graphs change a bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from attrs import define, evolve, field, frozen
from gpu_measuring import Row, judged, kernel_seconds, wall_seconds
from random_heads import Shape, any_round, random_domino, random_draft

from specforge.correction.backends import run_on
from specforge.correction.domino import DominoCorrection
from specforge.correction.graph_head import GraphHead
from specforge.correction.recording import CudaRecorder, Recorder
from specforge.interfaces import CorrectionHead, Draft, Round, TreeBuilder
from specforge.strategies.conditional import Conditional
from specforge.strategies.heap import Heap
from specforge.tree import DraftTree

T = TypeVar("T")

AIMED_AT = "cuda_graph"
"""The backend that ``auto`` takes on a CUDA device: aims are for it."""


class Rerun(Recorder):
    """Runs the function again: for exercising the script without a GPU."""

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
    """One kind of build.

    Attributes:
        name: as the table has it.
        builder: builds.
        candidates: ``M``.
        table: whether the GRU's input products are precomputed, as they are for users with enough memory.
        aim_ms: milliseconds that a build is to stay below.
        aim_ratio: how many times the time of its kernels a build is to take at most.
    """

    name: str
    builder: TreeBuilder
    candidates: int
    table: bool = True
    aim_ms: float | None = None
    aim_ratio: float | None = None


@frozen(eq=False)
class Build:
    """A case on a backend, ready to run.

    Attributes:
        case: the case.
        scorer: the same for all its runs: a build is recorded for one scorer.
        head: runs the correction.
        drafts: different ones, in turns.
        round: the round, on the device already.
    """

    case: Case
    scorer: Conditional
    head: CorrectionHead
    drafts: Sequence[Draft]
    round: Round

    def run(self, number: int) -> DraftTree:
        """Return the tree of draft ``number``."""
        draft = self.drafts[number % len(self.drafts)]
        return self.case.builder.build(draft, self.scorer, self.round)

    def trees(self) -> list[DraftTree]:
        """Return the tree of every draft."""
        return [self.run(number) for number in range(len(self.drafts))]

    def on(self, head: CorrectionHead) -> Build:
        """Return the same case with another head."""
        return evolve(self, head=head, drafts=[evolve(draft, correction=head) for draft in self.drafts])


@define
class BuildRow(Row):
    """A build's row of the table, which lacks the kernels' time until the profiler has run.

    Attributes:
        build: the build.
        seconds: its time.
    """

    build: Build = field(kw_only=True)
    seconds: float = field(kw_only=True)

    def profile(self, repeats: int, device: torch.device) -> None:
        """Add what the kernels take alone, and whether the build is near it."""
        alone = kernel_seconds(lambda: self.build.run(0), repeats, device)
        figures = "not measured" if alone is None else f"{1e3 * alone:.3f} ms, {self.seconds / alone:.2f} times"
        self.details.append(f"kernels alone: {figures}")
        aim = self.build.case.aim_ratio
        if self.backend == AIMED_AT and aim is not None:
            self.aims.append(judged(f"<= {aim} x kernels", None if alone is None else self.seconds <= aim * alone))


def all_heads(eager: DominoCorrection, device: torch.device) -> dict[str, CorrectionHead]:
    """Return the heads of all backends, eager first, graphs last."""
    plain = {name: run_on(name, eager, device) for name in ("eager", "triton")}
    names = {"eager": "cuda_graph+eager", "triton": "cuda_graph"}
    recorders = {name: CudaRecorder(device) if device.type == "cuda" else Rerun() for name in plain}
    return {**plain, **{names[name]: GraphHead(head, recorders[name]) for name, head in plain.items()}}


def prepare_builds(
    cases: Sequence[Case], shape: Shape, rounds: int, device: torch.device
) -> list[tuple[Case, dict[str, Build]]]:
    """Return every case on every backend, in bfloat16."""
    head, round = random_domino(shape, torch.bfloat16, device, table=True), any_round(device)
    heads = {True: all_heads(head, device), False: all_heads(evolve(head, input_table=None), device)}
    drafts = [random_draft(shape, torch.bfloat16, head, device, seed) for seed in range(rounds)]
    found = []
    for case in cases:
        build = Build(case, Conditional(case.candidates), head, drafts, round)
        found.append((case, {name: build.on(other) for name, other in heads[case.table].items()}))
    return found


def time_build(builds: dict[str, Build], backend: str, where: str, repeats: int, device: torch.device) -> BuildRow:
    """Return the time of one backend's build, and how its trees compare to those of eager and of no graph."""
    build = builds[backend]
    pairs = list(zip(builds["eager"].trees(), build.trees(), strict=True))
    same, bits = sum(paths(one) == paths(two) for one, two in pairs), compare_bits(build)
    seconds, aim = wall_seconds(build.run, repeats, device), build.case.aim_ms
    row = BuildRow(
        "build", f"{build.case.name}, {where}", backend, f"{1e3 * seconds:.3f} ms", build=build, seconds=seconds
    )
    if aim is not None and backend == AIMED_AT:
        row.aims.append(judged(f"< {aim} ms", 1e3 * seconds < aim if device.type == "cuda" else None))
    row.details.append(f"same tree as eager in {same} of {len(pairs)}")
    if bits is not None:
        row.details.append(f"bit-identical to no graph: {'yes' if bits else 'NO'}")
        row.failed = not bits
    return row


def compare_bits(build: Build) -> bool | None:
    """Whether the same operations without a graph give the same trees; ``None`` where a build is not one graph."""
    steps = isinstance(build.case.builder, Heap) and build.case.builder.lookahead is not None
    if steps or not isinstance(build.head, GraphHead):
        return None
    plain = build.on(GraphHead(build.head.inner, Unrecorded())).trees()
    # Twice: what a replay leaves behind must not reach the next.
    return all(identical(one, two) for _ in range(2) for one, two in zip(plain, build.trees(), strict=True))


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    """Return the tree's paths, whatever its numbering."""
    return {tree.path_tokens(node) for node in range(1, len(tree))}


def identical(one: DraftTree, other: DraftTree) -> bool:
    """Whether two trees are the same bit for bit."""
    same = one.token_ids.tolist() == other.token_ids.tolist() and one.parents.tolist() == other.parents.tolist()
    return same and one.log_probs.tobytes() == other.log_probs.tobytes()
