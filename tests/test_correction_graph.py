"""Recorded corrections and builds against the same operations unrecorded, bit for bit, with a tape for a CUDA graph.

The tape repeats operations on the tensors of one run, so that whatever Python decided then is decided for good. Tests
on real graphs are marked ``gpu``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
import torch
from attrs import evolve
from conftest import TINY
from correction_problems import DEVICE, KINDS, Problem, assert_identical, deciding_gap, round_of
from hypothesis import given, settings
from recorders import Tape, TapeRecorder, Unrecorded
from table_scorers import TableHead
from torch import Tensor

from specforge import Pipeline, PipelineConfig, ordering
from specforge.cli import main
from specforge.correction import graph_backend, graph_head
from specforge.correction.backends import backend_names, run_on
from specforge.correction.graph_head import GraphHead, padded
from specforge.correction.markov import MarkovCorrection
from specforge.correction.recording import CudaRecorder, Recorder
from specforge.errors import IncompatiblePartsError
from specforge.interfaces import Draft, TreeBuilder
from specforge.strategies.conditional import Conditional
from specforge.strategies.depthwise import DepthWise
from specforge.strategies.heap import Heap
from specforge.target import Target
from specforge.tree import DraftTree

SMALL = Problem(hidden=8, state=9, inner=5, vocab=40, candidates=6, depth=4)
BUILDERS: dict[str, TreeBuilder] = {
    "pruned": DepthWise(8, width=4),
    "pruned, beta": DepthWise(8, width=4, beta=-0.3),
    "fixed": DepthWise(7, "fixed"),
    "heap": Heap(8),
    "heap, step by step": Heap(8, lookahead=3),
}
SCORER = Conditional(6)

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _select_as_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the ways that wait for nothing; the host's read values."""
    monkeypatch.setattr(ordering, "on_host", lambda tensor: False)


def rounds(problem: Problem, head: Any, builder: TreeBuilder, scorer: Conditional = SCORER) -> list[DraftTree]:
    """Return the trees of three rounds of different numbers."""
    return [builder.build(problem.draft(head, n), scorer, round_of(root=3 + n)) for n in range(3)]


def check(problem: Problem, builder: TreeBuilder, recorder: Recorder) -> None:
    head = problem.head()
    plain = rounds(problem, GraphHead(head, Unrecorded()), builder)
    replayed = rounds(problem, GraphHead(head, recorder), builder)
    for one, other in zip(plain, replayed, strict=True):
        assert_identical(one, other)
    assert len({tuple(tree.token_ids.tolist()) for tree in plain}) == 3


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "heap, step by step"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_replayed_build_is_the_build(kind: str, name: str) -> None:
    recorder = TapeRecorder()
    check(evolve(SMALL, kind=kind), BUILDERS[name], recorder)
    assert recorder.recorded == 1


def test_a_replayed_build_in_kernels_is_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = pytest.importorskip("specforge.correction.triton_ops")
    recorder = TapeRecorder()
    monkeypatch.setattr(ops, "launch", recorder.launch(ops.launch))
    problem, builder = evolve(SMALL, kind="rnn", depth=2), DepthWise(4, width=2)
    head = run_on("triton", problem.head(), DEVICE)
    plain = rounds(problem, GraphHead(head, Unrecorded()), builder)
    replayed = rounds(problem, GraphHead(head, recorder), builder)
    for one, other in zip(plain, replayed, strict=True):
        assert_identical(one, other)
    assert recorder.recorded == 1


@pytest.mark.parametrize("scorer", [Conditional(6, "vocabulary"), Conditional(), Conditional(6, temperature=0.7)])
def test_other_scorers_are_replayed_too(scorer: Conditional) -> None:
    head, recorder = SMALL.head(), TapeRecorder()
    for builder in (DepthWise(8, width=4), Heap(8)):
        plain = rounds(SMALL, GraphHead(head, Unrecorded()), builder, scorer)
        for one, other in zip(plain, rounds(SMALL, GraphHead(head, recorder), builder, scorer), strict=True):
            assert_identical(one, other)


@settings(max_examples=5)
@given(
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
    first_corrected=st.integers(0, 2),
    width=st.integers(1, 9),
    budget=st.integers(1, 20),
)
def test_replays_whatever_the_shapes(
    kind: str, dtype: torch.dtype, seed: int, first_corrected: int, width: int, budget: int
) -> None:
    problem = evolve(SMALL, kind=kind, dtype=dtype, seed=seed, first_corrected=first_corrected, depth=3)
    head = problem.head()
    for builder in (DepthWise(budget, width=width), DepthWise(budget, "fixed"), Heap(budget)):
        plain = rounds(problem, GraphHead(head, Unrecorded()), builder)
        for one, other in zip(plain, rounds(problem, GraphHead(head, TapeRecorder()), builder), strict=True):
            assert_identical(one, other)


def test_recorded_again_only_when_shapes_or_plans_change() -> None:
    recorder = TapeRecorder()
    head = GraphHead(SMALL.head(), recorder)
    counts = []
    # A limit that does not bear on the tree falls with every round, and must not be recorded.
    for max_depth in (99, 98, 50, 4):
        BUILDERS["pruned"].build(SMALL.draft(head), SCORER, round_of(max_depth=max_depth))
        assert recorder.recorded == 1
    for builder, max_depth in [(BUILDERS["pruned"], 99), (BUILDERS["pruned"], 2), (BUILDERS["fixed"], 99)] * 2:
        builder.build(SMALL.draft(head), SCORER, round_of(max_depth=max_depth))
        counts.append(recorder.recorded)
    DepthWise(8, width=4).build(SMALL.draft(head), SCORER, round_of())
    assert [*counts, recorder.recorded] == [1, 2, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("name", ["pruned", "fixed", "heap"])
def test_a_replayed_build_waits_for_one_copy_alone(name: str) -> None:
    """Nothing but the copy of all that the tree is made of reads a value, the root's token included."""
    head = GraphHead(SMALL.head(), TapeRecorder())
    drafts, round = [SMALL.draft(head, n) for n in range(2)], round_of()
    first = BUILDERS[name].build(drafts[0], SCORER, round)
    with Tape():
        assert BUILDERS[name].build(drafts[1], SCORER, round).token_ids[0] == first.token_ids[0]
        with pytest.raises(AssertionError, match="would wait for a device"):
            round.root  # noqa: B018


def test_what_comes_up_beyond_the_most_recordings_runs_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_head, "MOST_RECORDINGS", 1)
    recorder = TapeRecorder()
    head, plain = GraphHead(SMALL.head(), recorder), GraphHead(SMALL.head(), Unrecorded())
    for name in ("pruned", "fixed", "heap, step by step", "pruned"):
        trees = [rounds(SMALL, correction, BUILDERS[name]) for correction in (head, plain)]
        for one, other in zip(*trees, strict=True):
            assert_identical(one, other)
    assert recorder.recorded == 1


def test_fixed_shares_that_a_depth_cannot_fill_are_recorded_anew() -> None:
    """Only two tokens can be drafted, which a device learns when it has built a tree with too few nodes."""
    recorder, builder = TapeRecorder(), DepthWise(14, "fixed")
    head, trees = SMALL.head(), []
    for correction in (GraphHead(head, Unrecorded()), GraphHead(head, recorder)):
        draft = SMALL.draft(correction)
        draft.base_logits[:, 2:] = -torch.inf
        trees.append([builder.build(draft, SCORER, round_of(root)) for root in (3, 4)])
    for one, other in zip(*trees, strict=True):
        assert_identical(one, other)
        assert one.depths.tolist().count(1) == 2
        assert one.budget == 14
    assert recorder.recorded == 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_heap_at_once_is_the_heap(kind: str) -> None:
    for seed in range(3):
        problem = evolve(SMALL, kind=kind, seed=seed)
        head = problem.head()
        for one, other in zip(
            rounds(problem, head, Heap(8)), rounds(problem, GraphHead(head, TapeRecorder()), Heap(8)), strict=True
        ):
            assert deciding_gap(one, other) < 1e-4


@settings(max_examples=40)
@given(
    seed=st.integers(0, 999),
    budget=st.integers(1, 30),
    scale=st.integers(0, 2),
    max_depth=st.integers(0, 5),
    cost=st.sampled_from([None, 0.02, 0.3]),
)
def test_the_heap_at_once_is_the_heap_exactly_with_tables(
    seed: int, budget: int, scale: int, max_depth: int, cost: float | None
) -> None:
    """Ties and all: nodes, order, scores; with a cost model too."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-2, 3, (4, 7), generator=generator).float()
    model = None if cost is None else {**COSTS, "seconds": {"1": [1.0 + cost * n for n in range(40)]}}
    trees = []
    for head in (TableHead(7, seed, scale), GraphHead(TableHead(7, seed, scale), Unrecorded())):
        draft = Draft(4, base_logits=logits, correction=head)
        trees.append(Heap(budget, model).build(draft, Conditional(5), round_of(5, max_depth, torch.device("cpu"))))
    assert_identical(*trees)


COSTS = {
    "target": "t",
    "drafter": "d",
    "device": "cpu",
    "dtype": "float32",
    "draft_seconds": 0.5,
    "context_lengths": [1],
    "nodes": list(range(40)),
}


def padded_rows(tensor: Tensor) -> Tensor:
    """Return ``tensor`` with rows of zeros up to the size that a step runs at."""
    return torch.cat([tensor, tensor.new_zeros(padded(len(tensor)) - len(tensor), *tensor.shape[1:])])


@settings(max_examples=8)
@given(
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    seed=st.integers(0, 99),
)
def test_steps_are_those_of_the_head_at_padded_shapes(
    kind: str, dtype: torch.dtype, counts: list[int], seed: int
) -> None:
    problem = evolve(SMALL, kind=kind, dtype=dtype, seed=seed)
    check_steps(problem, counts, GraphHead(problem.head(), TapeRecorder()))


def check_steps(problem: Problem, counts: list[int], graph: GraphHead) -> None:
    head, generator = graph.inner, torch.Generator().manual_seed(problem.seed)
    draft, root = problem.draft(head), torch.tensor([4], device=DEVICE)
    tokens = torch.stack([torch.randperm(problem.vocab, generator=generator)[:6] for _ in range(problem.depth)]).to(
        DEVICE
    )
    mine = graph.prepare(graph.begin(draft, root), tokens)
    theirs = head.prepare(head.begin(draft, root), tokens)
    kept = []
    for depth, count in enumerate([*counts, 1]):
        base = torch.randn(6, generator=generator).to(DEVICE)
        found = graph.best_of_slice(draft, depth, mine, base, tokens[depth], 0.8, 4)
        wanted = head.best_of_slice(draft, depth, theirs, base, tokens[depth], 0.8, 4)
        above = len(found[0])
        kept += [(one, two[:above]) for one, two in zip(found, wanted, strict=True)]
        rows = torch.randint(0, above, (count,), generator=generator).to(DEVICE)
        chosen = torch.randint(0, problem.vocab, (count,), generator=generator).to(DEVICE)
        mine = graph.advance(draft, depth, mine, rows, chosen)
        theirs = head.advance(draft, depth, theirs, padded_rows(rows), padded_rows(chosen))
        kept += [
            (getattr(mine, name), getattr(theirs, name)) for name in mine.per_path if getattr(mine, name) is not None
        ]
    # All at the end: what a step returned is not overwritten by later ones.
    for one, two in kept:
        assert torch.equal(one, two[: len(one)])


def test_large_batches_run_as_they_come() -> None:
    problem, recorder = evolve(SMALL, vocab=300), TapeRecorder()
    head = GraphHead(problem.head(), recorder)
    draft, tokens = problem.draft(head), torch.arange(graph_head.LARGEST_BATCH + 1, device=DEVICE)
    state = head.advance(
        draft, 0, head.begin(draft, torch.tensor([4], device=DEVICE)), torch.zeros_like(tokens), tokens
    )
    head.best_of_slice(draft, 1, state, torch.zeros(5, device=DEVICE), tokens[:5], 1.0, 5)
    assert recorder.recorded == 0
    assert [padded(n) for n in (1, 2, 3, 12, 16, 17)] == [1, 2, 4, 16, 16, 32]


def test_pipelines_do_not_share_buffers() -> None:
    """Two heads in turns, and two rounds of one head with their steps interleaved."""
    one, two = SMALL, evolve(SMALL, seed=5)
    heads = [GraphHead(problem.head(), TapeRecorder()) for problem in (one, two)]
    wanted = [
        rounds(p, GraphHead(h.inner, Unrecorded()), BUILDERS["pruned"]) for p, h in zip((one, two), heads, strict=True)
    ]
    for number in range(3):
        for problem, head, trees in zip((one, two), heads, wanted, strict=True):
            tree = BUILDERS["pruned"].build(problem.draft(head, number), SCORER, round_of(root=3 + number))
            assert_identical(tree, trees[number])
    head = heads[0]
    drafts = [one.draft(head, number) for number in range(2)]
    states = [SCORER.begin(draft, round_of()) for draft in drafts]
    found = [SCORER.expand(draft, 0, state) for draft, state in zip(drafts, states, strict=True)]
    for draft, row in zip(drafts, found, strict=True):
        plain = evolve(draft, correction=head.inner)
        alone = SCORER.expand(plain, 0, SCORER.begin(plain, round_of()))
        assert torch.equal(row.tokens, alone.tokens)
        assert torch.equal(row.log_probs, alone.log_probs)


@pytest.mark.parametrize("name", ["pruned", "heap, step by step"])
def test_serves_inference_sessions_and_others(name: str) -> None:
    """Buffers made within one can be written to outside, and the other way round."""
    for session_first in (True, False):
        head = GraphHead(SMALL.head(), TapeRecorder())
        trees = []
        for session in (session_first, not session_first):
            with torch.inference_mode(session):
                trees.append(BUILDERS[name].build(SMALL.draft(head), SCORER, round_of()))
        assert_identical(*trees)


def test_nothing_is_recorded_within_a_recording() -> None:
    """A build that is itself being recorded runs with the plain head, and no recording begins."""
    recorder = TapeRecorder()
    head = GraphHead(SMALL.head(), recorder)
    plain = rounds(SMALL, GraphHead(head.inner, Unrecorded()), BUILDERS["pruned"])
    draft, root = SMALL.draft(head), torch.tensor([4], device=DEVICE)
    state = head.begin(draft, root)

    def outer() -> tuple[Draft, Any]:
        return head.replay("k", lambda given, root: given, draft, root), head.advance(draft, 0, state, root * 0, root)

    given, _ = recorder.record(outer)()
    assert given.correction is head.inner
    assert given.hidden is draft.hidden
    assert recorder.recorded == 1
    assert_identical(rounds(SMALL, head, BUILDERS["pruned"])[0], plain[0])


# --- what these comparisons catch


def stale_root(patch: pytest.MonkeyPatch) -> None:
    original = graph_head.load

    def load(buffers: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
        root = buffers.get("root", torch.zeros(1)).clone()
        original(buffers, tensors)
        if "root" in buffers and bool(root.any()):
            buffers["root"].copy_(root)

    patch.setattr(graph_head, "load", load)


def stale_logits(patch: pytest.MonkeyPatch) -> None:
    original = graph_head.load
    patch.setattr(
        graph_head,
        "load",
        lambda b, t: original(b, {n: v for n, v in t.items() if n != "base_logits" or not b[n].any()}),
    )


def baked_numbers(patch: pytest.MonkeyPatch) -> None:
    """Record on the round's own tensors."""
    patch.setattr(graph_head.GraphHead, "_loaded", lambda self, kind, tensors, rows: tensors)


def value_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MarkovCorrection, "_inner", lambda self, depth, state: state.code * float(state.code.sum() < 1e9))


@pytest.mark.parametrize("mutant", [stale_root, stale_logits, baked_numbers, value_read])
def test_the_comparison_catches(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check(evolve(SMALL, kind="vanilla"), BUILDERS["pruned"], TapeRecorder())


def first_position(patch: pytest.MonkeyPatch) -> None:
    original = graph_head._at_depth
    patch.setattr(graph_head, "_at_depth", lambda state, depth: original(state, 0))


def first_parent(patch: pytest.MonkeyPatch) -> None:
    original = graph_head._per_path
    patch.setattr(graph_head, "_per_path", lambda state: {n: t[:1].expand_as(t) for n, t in original(state).items()})


def shared_results(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tensor, "clone", lambda self, *given, **named: self)


@pytest.mark.parametrize("mutant", [first_position, first_parent, shared_results])
def test_the_comparison_of_steps_catches(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = evolve(SMALL, kind="rnn")
    check_steps(problem, [4, 4], GraphHead(problem.head(), TapeRecorder()))
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        with pytest.raises(AssertionError):
            check_steps(problem, [4, 4], GraphHead(problem.head(), TapeRecorder()))


# --- as a backend


def test_refused_without_a_cuda_device() -> None:
    head = SMALL.head()
    assert {"cuda_graph", "cuda_graph+eager"} <= set(backend_names())
    for name in ("cuda_graph", "cuda_graph+eager"):
        with pytest.raises(IncompatiblePartsError, match=r"cannot run on cpu: CUDA graphs need a CUDA device; .*eager"):
            run_on(name, head, torch.device("cpu"))
    assert type(run_on("auto", head, torch.device("cpu"))) is type(head)


def test_the_command_line_refuses_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "graphs.py"
    target, checkpoint = TINY / "target", TINY / "domino"
    drafter = {"name": "domino", "checkpoint": str(checkpoint), "correction": "cuda_graph"}
    options = f"target={str(target)!r}, drafter={drafter!r}, builder={{'name': 'heap', 'budget': 4}}, device='cpu'"
    config.write_text(f"from specforge import PipelineConfig\nconfig = PipelineConfig({options})\n")
    with pytest.raises(SystemExit) as exit_:
        main(["generate", "--config", str(config), "81 102 42"])
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert len(error.strip().splitlines()) == 1
    assert "correction 'cuda_graph' cannot run on cpu: CUDA graphs need a CUDA device" in error


def test_auto_takes_graphs_of_kernels_on_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specforge.correction.graph_backend.CudaRecorder", lambda device: TapeRecorder())
    cuda, triton = torch.device("cuda"), pytest.importorskip("specforge.correction.triton_heads")
    for kind in KINDS:
        head = evolve(SMALL, kind=kind).head()
        found = run_on("auto", head, cuda)
        assert isinstance(found, GraphHead)
        assert isinstance(found.inner, triton.TritonHead)
        assert type(run_on("cuda_graph+eager", head, cuda).inner) is type(head)
        assert found.inner.eager is head
    monkeypatch.setattr("specforge.correction.triton_backend.find_spec", lambda name: None)
    with pytest.raises(IncompatiblePartsError, match="'cuda_graph' cannot run on cuda: triton is not installed"):
        run_on("cuda_graph", head, cuda)
    assert run_on("auto", head, cuda).inner is head


@attrs.frozen(eq=False, repr=False)
class Own(MarkovCorrection):
    """A head of one's own."""


def test_heads_of_other_kinds_are_not_recorded() -> None:
    head = Own(torch.zeros(3, 2), torch.zeros(3, 2))
    assert run_on("auto", head, torch.device("cuda")) is head
    with pytest.raises(IncompatiblePartsError, match=r"'cuda_graph\+eager' has no implementation of Own; use 'eager'"):
        run_on("cuda_graph+eager", head, torch.device("cuda"))


@pytest.mark.parametrize("builder", [{"name": "heap", "budget": 12}, {"name": "depthwise", "budget": 12, "width": 6}])
def test_pipelines_decode_the_same_on_the_golden_checkpoint(
    builder: dict[str, Any], tiny_target: Target, golden: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded trees are the unrecorded ones bit for bit, and the eager ones but for ties."""
    monkeypatch.setattr(graph_backend.Graphs, "lacks", lambda self, device: None)
    runs, made = [], []
    for backend, recorder in (("eager", None), ("cuda_graph+eager", Unrecorded), ("cuda_graph+eager", TapeRecorder)):
        monkeypatch.setattr(graph_backend, "CudaRecorder", lambda _, of=recorder: made.append(of()) or made[-1])
        drafter = {"name": "domino", "checkpoint": str(TINY / "domino"), "correction": backend}
        config = PipelineConfig(drafter=drafter, scorer={"name": "conditional", "candidates": 16}, builder=builder)
        pipeline = Pipeline.from_config(config, target=tiny_target)
        runs.append(pipeline.generate(golden["prompts"][1], max_new_tokens=24, stop_token_ids=[], trace=True))
    eager, plain, recorded = runs
    assert eager.token_ids == plain.token_ids == recorded.token_ids
    assert len(plain.rounds) == len(recorded.rounds) >= 3
    # One for all rounds, and one for each depth that is no longer reached as the last tokens are emitted.
    assert made[-1].recorded <= 1 + sum(record.tree.depths.max() < 7 for record in recorded.rounds)
    for one, two in zip(plain.rounds, recorded.rounds, strict=True):
        assert_identical(one.tree, two.tree)
    for one, two in zip(eager.rounds, recorded.rounds, strict=False):
        gap = deciding_gap(one.tree, two.tree)
        assert gap < 1e-4
        if gap:
            break


# --- on a device


EVEN = evolve(SMALL, state=16, inner=8, vocab=512)
"""Sizes at which all operands are aligned, so that a library has no reason to choose another kernel."""


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "heap, step by step"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_cuda_graphs_of_builds_are_bit_identical(backend: str, kind: str, dtype: torch.dtype, name: str) -> None:
    problem = evolve(EVEN, kind=kind, dtype=dtype)
    head = run_on(backend, problem.head(), DEVICE)
    plain = rounds(problem, GraphHead(head, Unrecorded()), BUILDERS[name])
    graph = GraphHead(head, CudaRecorder(DEVICE))
    for _ in range(2):
        for one, other in zip(plain, rounds(problem, graph, BUILDERS[name]), strict=True):
            assert_identical(one, other)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_cuda_graphs_of_steps_are_bit_identical(backend: str, kind: str, dtype: torch.dtype) -> None:
    problem = evolve(EVEN, kind=kind, dtype=dtype)
    graph = GraphHead(run_on(backend, problem.head(), DEVICE), CudaRecorder(DEVICE))
    for counts in ([4, 4], [1, 3], [8, 8], [4, 4]):
        check_steps(problem, counts, graph)


@pytest.mark.gpu
@gpu
def test_cuda_graphs_serve_inference_sessions_and_others() -> None:
    head = GraphHead(SMALL.head(), CudaRecorder(DEVICE))
    for builder in BUILDERS.values():
        with torch.inference_mode():
            first = builder.build(SMALL.draft(head), SCORER, round_of())
        second = builder.build(SMALL.draft(head), SCORER, round_of())
        assert_identical(first, second)


@pytest.mark.gpu
@gpu
def test_pipelines_on_cuda_graphs_decode_the_same(tiny_folder: Path, golden: dict[str, Any]) -> None:
    outputs = []
    for backend in ("eager", "cuda_graph+eager", "cuda_graph"):
        config = PipelineConfig(
            target=str(tiny_folder / "target"),
            drafter={"name": "domino", "checkpoint": str(tiny_folder / "domino"), "correction": backend},
            scorer={"name": "conditional", "candidates": 16},
            builder={"name": "depthwise", "budget": 24, "width": 8},
            dtype="float32",
            device="cuda",
        )
        pipeline = Pipeline.from_config(config)
        outputs.append(
            [pipeline.generate(p, max_new_tokens=48, stop_token_ids=[]).token_ids for p in golden["prompts"]]
        )
    assert outputs[0] == outputs[1] == outputs[2]
