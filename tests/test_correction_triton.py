"""The Triton kernels against the eager heads: on a GPU where there is one, else under Triton's interpreter.

``conftest`` asks for the interpreter before the kernels are defined. That they compile for a GPU is tested without one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
import torch
from attrs import evolve
from conftest import TINY
from correction_problems import DEVICE, KINDS, Problem, deciding_gap, round_of, scores_by_path
from hypothesis import example, given, settings
from recorders import Unrecorded
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from specforge import DraftTree, Pipeline, PipelineConfig, ordering
from specforge.children import as_edges, best_children
from specforge.correction import triton_backend
from specforge.correction.backends import run_on
from specforge.correction.graph_head import GraphHead
from specforge.correction.markov import MarkovCorrection
from specforge.errors import IncompatiblePartsError
from specforge.interfaces import CorrectionHead, TreeBuilder
from specforge.ordering import exact_topk
from specforge.strategies.conditional import Conditional
from specforge.strategies.depthwise import DepthWise
from specforge.strategies.heap import Heap
from specforge.target import Target, load_target

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no build for this platform")

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


def ops() -> Any:
    from specforge.correction import triton_ops

    return triton_ops


def rows_of(problem: Problem, head: CorrectionHead, levels: list[int]) -> list[Tensor]:
    """Return the log-probabilities of every level of a random tree, by token id, from a conditional scorer."""
    problem = evolve(problem, depth=len(levels) + 1)
    draft, generator = problem.draft(head), torch.Generator().manual_seed(problem.seed + 2)
    scorer = Conditional(problem.candidates, temperature=problem.temperature)
    state, found, above = scorer.begin(draft, round_of()), [], 1
    for depth, count in enumerate([*levels, 0]):
        row = scorer.expand(draft, depth, state)
        by_token = row.tokens.sort(dim=-1)
        found.append(row.log_probs.gather(-1, by_token.indices).expand(above, -1))
        if count:
            parents = torch.randint(0, above, (count,), generator=generator).to(DEVICE)
            tokens = torch.randint(0, problem.vocab, (count,), generator=generator).to(DEVICE)
            state, above = scorer.advance(draft, depth, state, parents, tokens), count
    return found


def check(problem: Problem, levels: list[int]) -> None:
    eager = problem.head()
    other, tolerance = run_on("triton", eager, DEVICE), TOLERANCE[problem.dtype]
    assert type(other) is not type(eager)
    assert other.first_corrected == eager.first_corrected
    for one, two in zip(rows_of(problem, eager, levels), rows_of(problem, other, levels), strict=True):
        assert two.dtype == torch.float32
        torch.testing.assert_close(two, one, atol=tolerance, rtol=tolerance)


SHAPES = st.builds(
    Problem,
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float16, torch.bfloat16]),
    hidden=st.integers(1, 40),
    state=st.integers(1, 40),
    inner=st.integers(1, 40),
    candidates=st.integers(1, 70),
    first_corrected=st.integers(0, 2),
    temperature=st.sampled_from([1.0, 0.5, 2.0]),
    seed=st.integers(0, 1000),
)
LEVELS = st.lists(st.sampled_from([1, 2, 3, 17]), max_size=2)


@settings(max_examples=8)
@example(Problem(), [64])
@example(Problem("domino with a table", state=70, candidates=70), [2])
@example(Problem("rnn", torch.bfloat16, candidates=1), [1, 1])
@given(SHAPES, LEVELS)
def test_kernels_compute_what_the_eager_heads_do(problem: Problem, levels: list[int]) -> None:
    check(problem, levels)


@settings(max_examples=8)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 150)),
    keep=st.sampled_from([1, 2, 7, 40, 1000]),
    decimals=st.integers(0, 2),
    scale=st.sampled_from([1.0, 3e7]),
    seed=st.integers(0, 99),
)
@example((3, 40), 7, 2, 3e7, 1)
def test_ranks_are_exact(shape: tuple[int, int], keep: int, decimals: int, scale: float, seed: int) -> None:
    """Of rows and of a depth's children, with ties, holes, NaN and edges above 0, bit for bit.

    Beside large scores sums of different edges are equal, and the edges decide.
    """
    generator = torch.Generator().manual_seed(seed)
    values = (torch.randn(*shape, generator=generator) * 2 - 1).round(decimals=decimals)
    kind = torch.rand(*shape, generator=generator)
    values[kind < 0.1] = float("-inf")
    values[kind > 0.95] = float("nan")
    scores = -torch.rand(shape[0], generator=generator).round(decimals=decimals) * scale - (scale - 1)
    tokens = torch.randint(0, 2**40, shape, generator=generator)
    values, scores, tokens = values.to(DEVICE), scores.to(DEVICE), tokens.to(DEVICE)
    for one, two in zip(ops().best_of_rows(values, keep), exact_topk(values, keep), strict=True):
        assert torch.equal(one, two)
    for few, rows in product((0, ops().FEW_CHILDREN), (slice(None), slice(1))):
        log_probs, given_tokens = values[rows].expand(*shape), tokens[rows].expand(*shape)
        edges = as_edges(log_probs)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ops(), "FEW_CHILDREN", few)
            found = attrs.astuple(ops().best_children(scores, log_probs, given_tokens, keep), recurse=False)
        wanted = attrs.astuple(best_children(scores, edges, edges, given_tokens, keep), recurse=False)
        for one, two in zip(found, wanted, strict=True):
            assert torch.equal(one, two)


def test_many_entries_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops(), "launch", None)
    values = torch.randn(2, ops().LONGEST_ROW + 1, device=DEVICE)
    for one, two in zip(ops().best_of_rows(values, 5), exact_topk(values, 5), strict=True):
        assert torch.equal(one, two)
    values = torch.randn(3, ops().MOST_CHILDREN // 3 + 1, device=DEVICE)
    scores, tokens, edges = -torch.arange(3.0, device=DEVICE), torch.randint(0, 99, values.shape), as_edges(values)
    keep = values.shape[1]
    found = ops().best_children(scores, values, tokens.to(DEVICE), keep)
    wanted = best_children(scores, edges, edges, tokens.to(DEVICE), keep)
    for one, two in zip(attrs.astuple(found, recurse=False), attrs.astuple(wanted, recurse=False), strict=True):
        assert torch.equal(one, two)


class Launches(TorchDispatchMode):
    """Counts what a device would launch: kernels of ours, and operations that are neither views nor allocations."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count = 0
        launch = ops().launch

        def counted(*arguments: Any, **constants: Any) -> None:
            self.count += 1
            with _disable_current_modes():
                launch(*arguments, **constants)

        patch.setattr(ops(), "launch", counted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or "empty" in func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kind", "wanted"), [("domino with a table", 4), ("vanilla", 3), ("rnn", 5)])
def test_a_depth_takes_few_launches(kind: str, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "on_host", lambda tensor: False)
    counts = []
    for depth in (4, 5):
        problem = Problem(kind, depth=depth)
        draft = problem.draft(GraphHead(run_on("triton", problem.head(), DEVICE), Unrecorded()))
        with monkeypatch.context() as patch, Launches(patch) as launches:
            DepthWise(8, width=4).build(draft, Conditional(6), round_of())
        counts.append(launches.count)
    assert counts[1] - counts[0] == wanted


def test_a_node_does_not_depend_on_its_batch() -> None:
    problem = Problem(state=20, candidates=5)
    head = run_on("triton", problem.head(), DEVICE)
    draft, tokens = problem.draft(head), torch.arange(18, device=DEVICE)
    state = head.advance(draft, 0, head.begin(draft, tokens[:1]), torch.zeros_like(tokens), tokens)
    base, columns = torch.zeros(5, device=DEVICE), tokens[:5]
    together = head.slice_log_probs(draft, 1, state, base, columns, 1.0)
    for node in (0, 15, 17):
        alone = state.select(tokens[node : node + 1])
        assert torch.equal(head.slice_log_probs(draft, 1, alone, base, columns, 1.0), together[node : node + 1])


@pytest.mark.parametrize("candidates", [20, 130])
def test_slices_whose_logits_lie_far_apart(candidates: int) -> None:
    """Far below 0, and with blocks of tokens that cannot be drafted."""
    generator = torch.Generator().manual_seed(0)
    base = -3000 + 200 * torch.randn(candidates, generator=generator)
    base[: candidates // 2] = float("-inf")
    paths, up = torch.randn(2, 8, generator=generator), torch.randn(200, 8, generator=generator)
    tokens = torch.arange(candidates)
    wanted = (base + paths @ up[tokens].t()).log_softmax(dim=-1)
    moved = [tensor.to(DEVICE) for tensor in (paths, up, tokens, base)]
    torch.testing.assert_close(ops().slice_log_softmax(*moved, 1.0).cpu(), wanted, atol=1e-3, rtol=1e-5)


def test_the_whole_vocabulary_is_the_eager_heads() -> None:
    for kind in KINDS:
        head = Problem(kind).head()
        draft, root = Problem(kind).draft(head), torch.tensor([4], device=DEVICE)
        other = run_on("triton", head, DEVICE)
        one = head.correct(draft, 0, head.begin(draft, root), None)
        assert torch.equal(other.correct(draft, 0, other.begin(draft, root), None), one)


# --- what these comparisons catch


def parents_ignored(patch: pytest.MonkeyPatch) -> None:
    gru, markov = ops().gru, ops().markov
    patch.setattr(ops(), "gru", lambda s, rows, *rest: gru(s, torch.zeros_like(rows), *rest))
    patch.setattr(ops(), "markov", lambda s, c, rows, *rest: markov(s, c, torch.zeros_like(rows), *rest))


def tokens_ignored(patch: pytest.MonkeyPatch) -> None:
    gru = ops().gru
    patch.setattr(ops(), "gru", lambda s, r, given, rows, w: gru(s, r, given[:1].expand_as(given), rows, w))


def gates_swapped(patch: pytest.MonkeyPatch) -> None:
    gru = ops().gru
    patch.setattr(ops(), "gru", lambda s, r, given, rows, w: gru(s, r, given, rows, w.roll(w.shape[1], 0)))


def depth_ignored(patch: pytest.MonkeyPatch) -> None:
    inner = ops().inner
    patch.setattr(ops(), "inner", lambda mode, parts, z: inner(mode, parts, torch.zeros_like(z)))


def temperature_ignored(patch: pytest.MonkeyPatch) -> None:
    whole = ops().slice_log_softmax
    patch.setattr(ops(), "slice_log_softmax", lambda *a: whole(*a[:-1], 1.0))


def base_ignored(patch: pytest.MonkeyPatch) -> None:
    whole = ops().slice_log_softmax
    patch.setattr(ops(), "slice_log_softmax", lambda i, u, c, b, t: whole(i, u, c, torch.zeros_like(b), t))


@pytest.mark.parametrize(
    ("mutant", "kinds"),
    [
        (parents_ignored, ["domino", "rnn"]),
        (tokens_ignored, ["domino", "domino with a table"]),
        (gates_swapped, ["domino"]),
        (depth_ignored, ["domino", "gated", "rnn"]),
        (temperature_ignored, ["vanilla"]),
        (base_ignored, ["vanilla"]),
    ],
)
def test_the_comparison_catches(mutant: Any, kinds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    for kind in kinds:
        with pytest.raises(AssertionError):
            check(Problem(kind, state=9, inner=5, candidates=6, temperature=0.5), [3, 3])


# --- trees


def test_a_gap_is_told() -> None:
    trees = [DraftTree([1, t], [-1, 0], [0, 1], [0.0, s]) for t, s in ((5, -1.0), (5, -2.0), (6, -1.5))]
    assert deciding_gap(trees[0], trees[1]) == 0.0
    assert deciding_gap(trees[0], trees[2]) == 0.5


def same_trees(kind: str, dtype: torch.dtype, builder: TreeBuilder, rounds: int) -> list[float]:
    """Return the deciding gaps of some rounds between eager and Triton."""
    gaps = []
    for seed in range(rounds):
        problem = Problem(kind, dtype, state=18, seed=seed)
        eager = problem.head()
        heads = (eager, run_on("triton", eager, DEVICE))
        gaps.append(deciding_gap(*(builder.build(problem.draft(head), Conditional(9), round_of()) for head in heads)))
    return gaps


@pytest.mark.parametrize(
    ("kind", "builder"),
    [("domino", Heap(6)), *((kind, DepthWise(6, width=3)) for kind in KINDS)],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_same_trees_from_random_heads(kind: str, builder: TreeBuilder) -> None:
    assert max(same_trees(kind, torch.float32, builder, 2)) < 1e-4


def test_most_trees_are_the_same_in_bfloat16(capsys: pytest.CaptureFixture[str]) -> None:
    gaps = [gap for kind in ("domino", "rnn") for gap in same_trees(kind, torch.bfloat16, DepthWise(6, width=3), 3)]
    with capsys.disabled():
        print(f"\nbfloat16: the same tree in {gaps.count(0.0)} of {len(gaps)} rounds")
    assert gaps.count(0.0) >= 3


@pytest.mark.parametrize("builder", [{"name": "heap", "budget": 6}, {"name": "depthwise", "budget": 6, "width": 3}])
def test_the_same_trees_on_the_golden_checkpoint(builder: dict, tiny_target: Target, golden: dict) -> None:
    target = tiny_target if DEVICE.type == "cpu" else load_target(str(TINY / "target"), "float32", str(DEVICE))
    runs = []
    for backend in ("eager", "triton"):
        drafter = {"name": "domino", "checkpoint": str(TINY / "domino"), "correction": backend, "block_size": 4}
        scorer = {"name": "conditional", "candidates": 5}
        pipeline = Pipeline.from_config(PipelineConfig(drafter=drafter, scorer=scorer, builder=builder), target=target)
        runs.append(pipeline.generate(golden["prompts"][0], max_new_tokens=9, stop_token_ids=[], trace=True))
    eager, other = runs
    assert other.token_ids == eager.token_ids
    assert len(eager.rounds) >= 2
    for one, two in zip(eager.rounds, other.rounds, strict=False):
        gap = deciding_gap(one.tree, two.tree)
        assert gap < 1e-4
        if gap:
            break
        assert scores_by_path(two.tree) == pytest.approx(scores_by_path(one.tree), abs=1e-4)


# --- compilation, and where it runs

COMPILE = """
import sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from specforge.correction import triton_kernels as kernels

# As a launch specialises them: ":16" says that 16 divides a number or an address, 1 is compiled in.
def check(kernel, types, **constants):
    names = kernel.arg_names
    given = dict(zip((n for n in names if n not in constants), types.split(), strict=True))
    constants |= {n: int(t) for n, t in given.items() if t.isdigit()}
    source = ASTSource(
        kernel,
        {n: "constexpr" if n in constants else given[n].removesuffix(":16") for n in names},
        {(names.index(n),): value for n, value in constants.items()},
        {(names.index(n),): [["tt.divisibility", 16]] for n, t in given.items() if t.endswith(":16")},
    )
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True})
    assert made.asm["cubin"]

for t in sys.argv[1:]:
    even, blocks = t + ":16", dict(BLOCK_N=16, BLOCK_U=16, BLOCK_K=64 if t == "*fp32" else 128)
    slices = dict(BLOCK_N=16, BLOCK_M=64, BLOCK_K=64)
    for by_token in (True, False):
        check(kernels.gru_kernel, f"{t} *i64 {t} *i64 {t} {t} i32 i32", BY_TOKEN=by_token, **blocks)
    check(kernels.markov_kernel, f"{t} {t} *i64 {t} i32 {t} {t} i32 i32", **blocks)
    for whole in (True, False):
        types = f"*fp32 {t} *i64 *fp32 *fp32 *fp32 *fp32 i32 i32 i32 fp32"
        check(kernels.slice_kernel, types, WHOLE=whole, **slices)
    for mode in (kernels.SILU, kernels.GATE, kernels.TANH):
        types = f"{t} {t} i32 {t} {t} i32 i32 {t} *fp32 i32 i32"
        check(kernels.inner_kernel, types, MODE=mode, TWO=mode == kernels.TANH, **blocks)
    # The published sizes, for one node and for many.
    for count in ("1", "i32"):
        types = f"{even} *i64:16 {even} *i64:16 {even} {even} {count} i32:16"
        check(kernels.gru_kernel, types, BY_TOKEN=True, **blocks)
        check(kernels.markov_kernel, f"{even} {even} *i64:16 {even} i32:16 {even} {even} {count} i32:16", **blocks)
        types = f"*fp32:16 {even} *i64:16 *fp32:16 *fp32:16 *fp32:16 *fp32 {count} i32:16 i32:16 fp32"
        check(kernels.slice_kernel, types, WHOLE=True, **slices)
        types = f"{even} {even} i32:16 {even} {even} i32:16 i32:16 {even} *fp32:16 {count} i32:16"
        check(kernels.inner_kernel, types, MODE=kernels.SILU, TWO=False, **blocks)
check(kernels.normalize_kernel, "*fp32 *fp32 *fp32 i32 i32", BLOCK_M=64, BLOCKS=4)
check(kernels.normalize_kernel, "*fp32:16 *fp32:16 *fp32:16 i32:16 i32:16", BLOCK_M=64, BLOCKS=32)
check(kernels.rank_kernel, "*fp32 *fp32 *i64 i32 i32", BLOCK=32, OTHERS=128)
types = "*fp32 *fp32 *i64 *fp32 *i64 *i64 *fp32 i32 i32 i32 i32 i32"
check(kernels.children_kernel, types, BLOCK=32, OTHERS=128)
print("compiled")
"""


def run_python(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["*bf16", "*fp16", "*fp32"])
def test_kernels_compile_for_a_gpu(tmp_path: Path, dtype: str) -> None:
    assert run_python(COMPILE, dtype, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path)) == "compiled\n"


def test_refused_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Problem("vanilla").head()
    monkeypatch.setattr(triton_backend, "_interpreted", lambda: False)
    with pytest.raises(IncompatiblePartsError, match=r"need a CUDA device, or a CPU and Triton's interpreter; .*eager"):
        run_on("triton", head, torch.device("cpu"))
    monkeypatch.setattr(triton_backend, "find_spec", lambda name: None)
    for device in ("cpu", "cuda"):
        with pytest.raises(IncompatiblePartsError, match="triton is not installed"):
            run_on("triton", head, torch.device(device))


def test_auto_never_takes_triton_on_the_cpu() -> None:
    for kind in KINDS:
        head = Problem(kind).head()
        assert type(run_on("auto", head, torch.device("cpu"))) is type(head)


@attrs.frozen(eq=False, repr=False)
class Own(MarkovCorrection):
    """A head of one's own."""


def test_a_head_of_another_kind_is_left_alone() -> None:
    head = Own(torch.zeros(3, 2), torch.zeros(3, 2))
    with pytest.raises(IncompatiblePartsError, match="'triton' has no implementation of Own; use 'eager'"):
        run_on("triton", head, DEVICE)


@pytest.mark.slow
def test_the_core_works_without_triton() -> None:
    code = """
import sys
sys.modules["triton"] = None
import specforge, specforge.drafters
from specforge.correction.backends import backend_names
print(backend_names())
"""
    assert "'triton'" in run_python(code)
