"""Chains and sampled trees over table-driven scorers and the fakes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from attrs import frozen
from fakes import (
    DepthTableScorer,
    FakeAutoregressiveDrafter,
    FakeRecurrentDrafter,
    FakeTrieDrafter,
    RandomTable,
    TableScorer,
    best_first,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from specforge import registry
from specforge.errors import ConfigError, IncompatiblePartsError
from specforge.interfaces import CONFIDENCE, NOTHING, PROPOSAL, SHAPE_BEFORE_DRAWING, Candidates, Draft, Round
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.strategies.chain import Chain
from specforge.strategies.drawing import draft_distribution, draw_without_replacement
from specforge.strategies.none import NoScores, RootOnly
from specforge.strategies.sampled import Sampled
from specforge.tree import DraftTree

QUICK = settings(max_examples=80, deadline=None, derandomize=True)


def make_round(max_depth: int = 9, seed: int = 0) -> Round:
    return Round(torch.tensor([3, 1, 4]), max_depth, SamplingParams(), KeyedUniforms(seed))


@frozen(eq=False)
class TiedTable:
    """Rows quantised to few values, with entries that are no candidates."""

    table: RandomTable
    missing: float

    def __call__(self, path: tuple[int, ...]) -> torch.Tensor:
        row = -(self.table(path).abs() * 2).round() / 2
        generator = torch.Generator().manual_seed(sum(path) + len(path))
        row[torch.rand(len(row), generator=generator) < self.missing] = float("-inf")
        if self.missing > 0:
            row[row == -1.5] = float("nan")
        return row


tables = st.builds(
    TiedTable,
    st.builds(RandomTable, vocab_size=st.integers(1, 6), seed=st.integers(0, 999)),
    st.sampled_from([0.0, 0.3, 0.9]),
)


def ranked(row: torch.Tensor) -> Candidates:
    """Rank a row that may hold NaN, which is no candidate and comes last."""
    return best_first(torch.nan_to_num(row, nan=float("-inf"), neginf=float("-inf"))[None])


def nan_free(table: TiedTable) -> TableScorer:
    return TableScorer(lambda path: torch.nan_to_num(table(path), nan=float("-inf"), neginf=float("-inf")))


# --- greedy chains


@QUICK
@given(tables, st.integers(0, 4), st.integers(0, 4), st.sampled_from([None, 1, 2, 3]))
def test_a_chain_takes_the_best_candidate_at_each_depth(
    table: TiedTable, depth: int, max_depth: int, length: int | None
) -> None:
    wanted, scores = [4], [np.float32(0)]
    limit = min(depth, max_depth, 99 if length is None else length)
    for _ in range(limit):
        row = ranked(table(tuple(wanted[1:])))
        if row.log_probs[0, 0] == float("-inf"):
            break
        wanted.append(int(row.tokens[0, 0]))
        scores.append(scores[-1] + np.float32(min(0.0, float(row.log_probs[0, 0]))))
    tree = Chain(length).build(Draft(depth), nan_free(table), make_round(max_depth))
    assert tree.token_ids.tolist() == wanted
    assert tree.parents.tolist() == list(range(-1, len(wanted) - 1))
    assert tree.log_probs.tolist() == scores
    assert tree.proposal is None


def test_nan_ends_a_chain_and_positive_scores_count_as_zero() -> None:
    rows = [torch.tensor([0.5, -1.0]), torch.tensor([float("nan"), float("nan")])]

    class Raw(TableScorer):
        def expand(self, draft, depth, state):
            return Candidates(torch.tensor([[0, 1]]), rows[depth][None])

    tree = Chain().build(Draft(2), Raw(lambda path: rows[0]), make_round())
    assert tree.token_ids.tolist() == [4, 0]
    assert tree.log_probs.tolist() == [0, 0]


def test_a_scorer_without_entries_gives_the_root_alone() -> None:
    for builder in (Chain(), Chain(sample=True), Sampled((2, 2)), RootOnly()):
        tree = builder.build(Draft(3), NoScores(), make_round())
        assert tree.token_ids.tolist() == [4]


def test_confidence_cuts_the_chain() -> None:
    table = RandomTable(5, 0, normalised=True)
    draft = Draft(4, confidence=torch.tensor([0.9, 0.6, 0.3, 0.8]))
    for sample in (False, True):
        for threshold, length in ((0.0, 4), (0.31, 2), (0.6, 2), (0.95, 0)):
            tree = Chain(sample=sample, min_confidence=threshold).build(draft, TableScorer(table), make_round())
            assert tree.budget == length
    assert CONFIDENCE in Chain(min_confidence=0.5).needed()
    assert CONFIDENCE not in Chain().needed()
    with pytest.raises(IncompatiblePartsError, match="no confidence"):
        Chain(min_confidence=0.5).build(Draft(4), TableScorer(table), make_round())


def test_what_a_chain_gives_depends_on_drawing() -> None:
    assert Chain().given() == NOTHING
    assert Chain(sample=True).given() == Sampled().given() == {PROPOSAL, SHAPE_BEFORE_DRAWING}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Chain(length=0), "length is 0"),
        (lambda: Chain(length=True), "length is True"),
        (lambda: Chain(sample=True, temperature=0.0), "temperature of the draft is 0.0"),
        (lambda: Chain(temperature=0.5), "without sample=True"),
        (lambda: Chain(min_confidence=1.5), "min_confidence is 1.5"),
        (lambda: Sampled(()), r"branching is \(\)"),
        (lambda: Sampled((2, 0)), r"branching is \(2, 0\)"),
        (lambda: Sampled((2.0,)), r"branching is \(2.0,\)"),
        (lambda: Sampled(temperature=float("inf")), "temperature of the draft is inf"),
    ],
)
def test_options_out_of_range_are_refused(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


# --- drawn trees


@QUICK
@given(
    tables,
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 99),
)
def test_a_drawn_trees_shape_follows_from_paths_alone(
    table: TiedTable, branching: tuple[int, ...], depth: int, max_depth: int, seed: int
) -> None:
    tree = Sampled(branching).build(Draft(depth), nan_free(table), make_round(max_depth, seed))
    limit = min(depth, max_depth, len(branching))
    assert tree.depths.max() <= limit
    for node in range(len(tree)):
        row = nan_free(table).table(tree.path_tokens(node)[1:])
        candidates = int((row > float("-inf")).sum())
        at = int(tree.depths[node])
        assert len(tree.children(node)) == (min(branching[at], candidates) if at < limit else 0)
        if tree.children(node):
            q = tree.proposal.distribution(node, torch.zeros(len(row), dtype=torch.float64))
            assert torch.allclose(q, torch.softmax(row.double(), -1))
            for child in tree.children(node):
                edge = np.float32(min(0.0, float(row[tree.token_ids[child]])))
                assert tree.log_probs[child] == tree.log_probs[node] + edge


def test_siblings_are_drawn_without_replacement() -> None:
    q = torch.tensor([[0.6, 0.3, 0.1, 0.0]], dtype=torch.float64)
    uniforms = np.random.default_rng(0).random((6000, 2)).tolist()
    pairs = Counter(tuple(draw_without_replacement(q, pair)[0].tolist()) for pair in uniforms)
    p = q[0].tolist()
    for (first, second), count in pairs.items():
        wanted = p[first] * p[second] / (1 - p[first])
        assert count / 6000 == pytest.approx(wanted, abs=4 * (wanted * (1 - wanted) / 6000) ** 0.5)
    assert len(pairs) == 6


def test_draws_run_out_with_the_mass() -> None:
    q = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    drawn = draw_without_replacement(q, [0.9, 0.9, 0.9, 0.9])
    assert drawn.tolist() == [[2, 0, 3], [3, 3, 3], [1, 3, 3]]


def test_the_draft_distribution_is_the_softmax_of_the_candidates() -> None:
    log_probs = torch.tensor([[-0.5, -1.0, float("-inf")], [float("-inf")] * 3, [float("nan"), -2.0, -2.0]])
    q = draft_distribution(Candidates(torch.zeros(3, 3, dtype=torch.int64), log_probs), 0.5)
    assert q[0].tolist() == [pytest.approx(1 / (1 + np.exp(-1))), pytest.approx(1 / (1 + np.exp(1))), 0.0]
    assert q[1].tolist() == [0, 0, 0]
    assert q[2].tolist() == [0, 0.5, 0.5]


def test_a_path_independent_scorer_is_expanded_once_a_depth() -> None:
    table = RandomTable(6, 3, normalised=True)
    by_depth = DepthTableScorer(lambda path: table((len(path),)))
    by_path = TableScorer(by_depth.table)
    one, many = (Sampled((3, 2, 2)).build(Draft(3), s, make_round(seed=5)) for s in (by_depth, by_path))
    assert one.token_ids.tolist() == many.token_ids.tolist()
    assert one.log_probs.tolist() == many.log_probs.tolist()
    assert len(one.proposal.tokens) == 3
    for node in range(len(one)):
        if one.children(node):
            like = torch.zeros(6, dtype=torch.float64)
            assert torch.equal(one.proposal.distribution(node, like), many.proposal.distribution(node, like))


def test_a_drawn_chain_is_a_tree_of_single_draws() -> None:
    scorer = TableScorer(RandomTable(6, 3, normalised=True))
    chain = Chain(sample=True, temperature=1.7).build(Draft(4), scorer, make_round(seed=2))
    tree = Sampled((1, 1, 1, 1), temperature=1.7).build(Draft(4), scorer, make_round(seed=2))
    assert chain.token_ids.tolist() == tree.token_ids.tolist()
    assert Sampled(1).branching == (1,)
    others = {
        tuple(Chain(sample=True).build(Draft(4), scorer, make_round(seed=s)).token_ids.tolist()) for s in range(9)
    }
    assert len(others) > 3


# --- the fakes


FAKES = [
    FakeTrieDrafter([[0, 4, 2, 5, 3, 2, 1, 1], [4, 2, 3, 0]]),
    FakeAutoregressiveDrafter(6),
    FakeRecurrentDrafter(6),
]


@pytest.mark.parametrize("drafter", FAKES, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("builder", [Chain(), Chain(sample=True), Sampled((2, 2, 2))], ids=repr)
def test_builders_carry_every_kind_of_state(drafter, builder) -> None:
    round = make_round()
    draft = drafter.start(round.history[:-1], None).draft(round)
    scorer = registry.scorers.get(drafter.default_scorer)()
    tree = builder.build(draft, scorer, round)
    assert len(tree) > 3
    for node in range(1, len(tree)):
        edge = tree.log_probs[node] - tree.log_probs[tree.parents[node]]
        row = reference_row(drafter, draft, round, tree, int(tree.parents[node]))
        assert edge == pytest.approx(float(row[tree.token_ids[node]]), abs=1e-4)


def reference_row(drafter, draft: Draft, round: Round, tree: DraftTree, node: int) -> torch.Tensor:
    """Recompute the scores after a node from its path, without any state."""
    path = list(tree.path_tokens(node))
    if isinstance(drafter, FakeAutoregressiveDrafter):
        return drafter.model.reference([*round.history[:-1].tolist(), *path])
    if isinstance(drafter, FakeRecurrentDrafter):
        state = torch.zeros(1, drafter.model.width)
        for token in path:
            state = drafter.model.step(state, torch.tensor([token]))
        return drafter.model.log_probs(draft.hidden[len(path) - 1], state)[0]
    following = {tuple(p[i + 1 :]) for p in drafter.phrases for i, token in enumerate(p) if token == path[0]}
    nexts = {f[len(path) - 1] for f in following if len(f) >= len(path) and list(f[: len(path) - 1]) == path[1:]}
    row = torch.full((6,), float("-inf"))
    row[list(nexts)] = -float(np.log(len(nexts)))
    return row


def test_rows_of_different_widths_share_a_proposal() -> None:
    class Narrowing(TableScorer):
        def expand(self, draft, depth, state):
            row = super().expand(draft, depth, state)
            return Candidates(row.tokens[:, : 4 - depth], row.log_probs[:, : 4 - depth])

    tree = Sampled((4, 4, 4)).build(Draft(3), Narrowing(RandomTable(6, 1, normalised=True)), make_round())
    assert [len(tree.children(node)) for node in range(len(tree))] == [4] + [3] * 4 + [2] * 12 + [0] * 24
    for node in range(17):
        q = tree.proposal.distribution(node, torch.zeros(6, dtype=torch.float64))
        assert int((q > 0).sum()) == 4 - tree.depths[node]
        assert float(q.sum()) == pytest.approx(1)
