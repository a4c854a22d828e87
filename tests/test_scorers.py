"""The scorers against their definitions, written out a path at a time, and the ways to get them wrong."""

from __future__ import annotations

import math
from typing import Any

import attrs
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from hypothesis import given, settings
from table_scorers import TableHead
from torch import Tensor

from specforge import interfaces, registry
from specforge.children import Children
from specforge.errors import ConfigError
from specforge.interfaces import BASE_LOGITS, CORRECTION_HEAD, Candidates, Draft, Round, Scorer
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.strategies import conditional as conditional_module
from specforge.strategies.chain_conditional import ChainConditional
from specforge.strategies.conditional import Conditional
from specforge.strategies.marginal import Marginal

ROOT = 3


@frozen
class Problem:
    """A draft with a table head; logits are multiples of a quarter, so that many tie."""

    seed: int = 0
    depth: int = 3
    vocab: int = 7
    scale: int = 4
    first_corrected: int = 0
    dtype: torch.dtype = torch.float32
    max_depth: int = 99
    max_children: int | None = None

    def draft(self) -> Draft:
        generator = torch.Generator().manual_seed(self.seed)
        logits = torch.randint(-8, 9, (self.depth, self.vocab), generator=generator) / 4
        logits[torch.rand(self.depth, self.vocab, generator=generator) < 0.1] = float("-inf")
        logits[:, 0] = 0.0
        head = TableHead(self.vocab, self.seed, self.scale, first_corrected=self.first_corrected)
        return Draft(self.depth, base_logits=logits.to(self.dtype), correction=head)

    def round(self) -> Round:
        return Round(torch.tensor([5, ROOT]), self.max_depth, SamplingParams(), KeyedUniforms(0), self.max_children)

    @property
    def limit(self) -> int:
        return min(self.depth, self.max_depth)


problems = st.builds(
    Problem,
    seed=st.integers(0, 10_000),
    depth=st.integers(1, 4),
    vocab=st.integers(2, 9),
    scale=st.integers(1, 6),
    first_corrected=st.integers(0, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    max_depth=st.sampled_from([1, 2, 99]),
    max_children=st.sampled_from([None, 1, 2, 100]),
)


def walk(scorer: Scorer, problem: Problem, path: list[int]) -> Candidates:
    """Return the candidates after ``path``, following it next to a detour that must not matter."""
    draft, round = problem.draft(), problem.round()
    state = scorer.begin(draft, round)
    row = 0
    for depth, token in enumerate(path):
        detour = (token + 1) % problem.vocab
        state = scorer.advance(draft, depth, state, torch.tensor([row, row]), torch.tensor([detour, token]))
        row = 1
    found = scorer.expand(draft, len(path), state)
    return Candidates(found.tokens[row : row + 1], found.log_probs[row : row + 1])


def paths(problem: Problem) -> list[list[int]]:
    return [[(7 * index + problem.seed) % problem.vocab for index in range(depth)] for depth in range(problem.limit)]


def corrected_row(problem: Problem, path: list[int], apply_from: int | None = None) -> Tensor:
    """Return base logits plus correction after ``path``, ``[V]``, from the definition."""
    draft = problem.draft()
    base = draft.base_logits[len(path)].float()
    if len(path) < (problem.first_corrected if apply_from is None else apply_from):
        return base
    return base + draft.correction.table((ROOT, *path))


def ranked(log_probs: dict[int, float], count: int | None) -> list[tuple[int, float]]:
    return sorted(log_probs.items(), key=lambda item: (-item[1], item[0]))[:count]


def assert_row(found: Candidates, expected: list[tuple[int, float]]) -> None:
    """Assert the same tokens with the same log-probabilities, and the order that the found ones imply."""
    tokens, scores = found.tokens[0].tolist(), found.log_probs[0].tolist()
    assert found.log_probs.dtype == torch.float32
    assert len(tokens) == len(expected)
    assert [(t, s) for t, s in zip(tokens, scores, strict=True)] == ranked(dict(zip(tokens, scores, strict=True)), None)
    assert scores == pytest.approx([score for _, score in expected], abs=2e-6)
    # Tokens that tie in exact arithmetic may be parted by one rounding of the reference, not of the scorer.
    assert {t for t, s in zip(tokens, scores, strict=True) if s > expected[-1][1] + 1e-5} == {
        t for t, s in expected if s > expected[-1][1] + 1e-5
    }


def expected_marginal(problem: Problem, path: list[int], candidates: int | None, temperature: float) -> list[Any]:
    logits = problem.draft().base_logits[len(path)].float() / temperature
    row = dict(enumerate(torch.log_softmax(logits, -1).tolist()))
    count = min(candidates or problem.vocab, problem.max_children or problem.vocab, problem.vocab)
    return ranked(row, count)


def expected_conditional(
    problem: Problem, path: list[int], candidates: int | None, normalizer: str, temperature: float
) -> list[tuple[int, float]]:
    base = dict(enumerate(problem.draft().base_logits[len(path)].float().tolist()))
    slice_ = [token for token, _ in ranked(base, candidates)]
    whole = corrected_row(problem, path).double() / temperature
    logits = whole[slice_]
    total = torch.logsumexp(whole if normalizer == "vocabulary" else logits, -1)
    row = dict(zip(slice_, (logits - total).tolist(), strict=True))
    return ranked(row, min(len(slice_), problem.max_children or problem.vocab))


counts = st.sampled_from([None, 1, 2, 4, 100])
temperatures = st.sampled_from([1.0, 0.5, 2.0])


@settings(max_examples=100)
@given(problem=problems, candidates=counts, temperature=temperatures)
def test_marginal_is_log_softmax(problem: Problem, candidates: int | None, temperature: float) -> None:
    scorer = Marginal(candidates, temperature)
    for path in paths(problem):
        assert_row(walk(scorer, problem, path), expected_marginal(problem, path, candidates, temperature))


@settings(max_examples=100)
@given(
    problem=problems,
    candidates=counts,
    normalizer=st.sampled_from(["candidates", "vocabulary"]),
    temperature=temperatures,
)
def test_conditional_is_its_definition(
    problem: Problem, candidates: int | None, normalizer: str, temperature: float
) -> None:
    scorer = Conditional(candidates, normalizer, temperature)
    for path in paths(problem):
        expected = expected_conditional(problem, path, candidates, normalizer, temperature)
        assert_row(walk(scorer, problem, path), expected)


class LargestIdsFirst(Conditional):
    """Breaks ties among base logits by larger id."""

    def begin(self, draft: Draft, round: Round) -> Any:
        flipped = evolve(draft, base_logits=draft.base_logits.flip(-1))
        state = super().begin(flipped, round)
        tokens = None if state.slices.tokens is None else draft.base_logits.shape[1] - 1 - state.slices.tokens.flip(-1)
        base = draft.base_logits.float() if tokens is None else draft.base_logits.float().gather(1, tokens)
        return evolve(state, slices=evolve(state.slices, tokens=tokens, base=base, logits=draft.base_logits))


class CorrectsThePrefix(Conditional):
    """Applies the correction from the first position on."""

    def expand(self, draft: Draft, depth: int, state: Any) -> Candidates:
        return super().expand(evolve(draft, correction=evolve(draft.correction, first_corrected=0)), depth, state)


class FreezesOverThePrefix(Conditional):
    """Does not run the head over uncorrected positions: later corrections belong to another path."""

    def advance(self, draft: Draft, depth: int, state: Any, parent_rows: Tensor, tokens: Tensor) -> Any:
        if depth < draft.correction.first_corrected:
            tokens = torch.zeros_like(tokens)
        return super().advance(draft, depth, state, parent_rows, tokens)


class ForgetsTheParent(Conditional):
    """Follows the first path whatever the parent."""

    def advance(self, draft: Draft, depth: int, state: Any, parent_rows: Tensor, tokens: Tensor) -> Any:
        return super().advance(draft, depth, state, torch.zeros_like(parent_rows), tokens)


class NormalizesTheSlice(Conditional):
    """Takes the softmax over the slice whatever was asked."""

    def expand(self, draft: Draft, depth: int, state: Any) -> Candidates:
        return Conditional.expand(attrs.evolve(self, normalizer="candidates"), draft, depth, state)


class TemperatureOnTheBase(Conditional):
    """Divides the base logits by the temperature, not the correction."""

    def begin(self, draft: Draft, round: Round) -> Any:
        return super().begin(evolve(draft, base_logits=draft.base_logits / self.temperature), round)

    def expand(self, draft: Draft, depth: int, state: Any) -> Candidates:
        return Conditional.expand(attrs.evolve(self, temperature=1.0), draft, depth, state)


@pytest.mark.parametrize(
    "mutant",
    [
        LargestIdsFirst,
        CorrectsThePrefix,
        FreezesOverThePrefix,
        ForgetsTheParent,
        NormalizesTheSlice,
        TemperatureOnTheBase,
    ],
)
def test_conditional_catches(mutant: type[Conditional]) -> None:
    def agrees(kind: type[Conditional], problem: Problem) -> bool:
        scorer = kind(3, "vocabulary", 0.5)
        try:
            for path in paths(problem):
                expected = expected_conditional(problem, path, 3, "vocabulary", 0.5)
                assert_row(walk(scorer, problem, path), expected)
        except AssertionError:
            return False
        return True

    cases = [Problem(seed=seed, depth=4, vocab=8, first_corrected=1 + seed % 2) for seed in range(40)]
    assert all(agrees(Conditional, case) for case in cases)
    assert sum(not agrees(mutant, case) for case in cases) > 5


@settings(max_examples=60)
@given(problem=problems, candidates=counts)
def test_zero_correction_is_marginal(problem: Problem, candidates: int | None) -> None:
    problem = attrs.evolve(problem, scale=0)
    for path in paths(problem):
        marginal = walk(Marginal(candidates), problem, path)
        conditional = walk(Conditional(candidates, "vocabulary"), problem, path)
        assert conditional.tokens.tolist() == marginal.tokens.tolist()
        assert torch.allclose(conditional.log_probs, marginal.log_probs, atol=1e-6)


@settings(max_examples=60)
@given(problem=problems, candidates=counts)
def test_zero_correction_over_a_slice_is_marginal_over_it(problem: Problem, candidates: int | None) -> None:
    problem = attrs.evolve(problem, scale=0, max_children=None)
    for path in paths(problem):
        marginal = walk(Marginal(candidates), problem, path)
        conditional = walk(Conditional(candidates, "candidates"), problem, path)
        shift = torch.logsumexp(marginal.log_probs, -1)
        assert conditional.tokens.tolist() == marginal.tokens.tolist()
        assert torch.allclose(conditional.log_probs, marginal.log_probs - shift, atol=1e-6)


@pytest.mark.parametrize("mutant", [LargestIdsFirst, NormalizesTheSlice])
def test_zero_correction_catches(mutant: type[Conditional]) -> None:
    def agrees(kind: type[Conditional], problem: Problem) -> bool:
        rows = [
            (walk(Marginal(3), problem, path), walk(kind(3, "vocabulary"), problem, path)) for path in paths(problem)
        ]
        return all(
            one.tokens.tolist() == other.tokens.tolist() and torch.allclose(one.log_probs, other.log_probs, atol=1e-6)
            for one, other in rows
        )

    cases = [Problem(seed=seed, depth=3, vocab=8, scale=0) for seed in range(40)]
    assert all(agrees(Conditional, case) for case in cases)
    assert sum(not agrees(mutant, case) for case in cases) > 5


def greedy_chain(problem: Problem) -> list[int]:
    path: list[int] = []
    for _ in range(problem.limit):
        path.append(int(walk(Conditional(), problem, path).tokens[0, 0]))
    return path


@settings(max_examples=60)
@given(problem=problems, candidates=counts, temperature=temperatures)
def test_chain_conditional_is_conditional_along_the_chain(
    problem: Problem, candidates: int | None, temperature: float
) -> None:
    chain = greedy_chain(problem)
    for depth in range(problem.limit):
        elsewhere = [(token + 1) % problem.vocab for token in chain[:depth]]
        along = walk(Conditional(None, "vocabulary", temperature), problem, chain[:depth])
        found = walk(ChainConditional(candidates, temperature), problem, elsewhere)
        count = min(candidates or problem.vocab, along.tokens.shape[1])
        assert found.tokens.tolist() == along.tokens[:, :count].tolist()
        assert torch.equal(found.log_probs, along.log_probs[:, :count])


def test_chain_off_the_greedy_path_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain follows corrected tokens; one that followed base logits would be another scorer."""
    cases = [Problem(seed=seed, depth=4, vocab=8, scale=6) for seed in range(20)]
    differ = 0
    for case in cases:
        path = [int(row.argmax()) for row in case.draft().base_logits]
        chain = greedy_chain(case)
        found = walk(ChainConditional(), case, chain[:3])
        assert torch.equal(found.log_probs, walk(Conditional(), case, chain[:3]).log_probs)
        differ += not torch.equal(found.log_probs, walk(Conditional(), case, path[:3]).log_probs)
    assert differ > 5


def test_rounding_of_log_probs_makes_ties_that_rank_by_id() -> None:
    logits = torch.full((1, 50), -40.0)
    logits[0, :4] = torch.tensor([1.0, 1.0 + 2**-23, 0.0, 0.0])
    logits[0, 10:30] = 60000.0 + torch.arange(20) / 256
    draft = Draft(1, base_logits=logits)
    round = Problem().round()
    found = Marginal(30).expand(draft, 0, Marginal(30).begin(draft, round))
    row = logits[0] - torch.logsumexp(logits[0], -1)
    order = torch.sort(row, descending=True, stable=True)
    assert found.tokens[0].tolist() == order.indices[:30].tolist()
    assert found.log_probs[0].tolist() == order.values[:30].tolist()
    # Tokens 0 and 1 differ by one bit as logits and not at all as log-probabilities.
    assert found.tokens[0].tolist()[20:22] == [0, 1]


class NoReads(torch.Tensor):
    """Fails the test when a row past the first is read."""

    def __getitem__(self, index: Any) -> Tensor:
        assert index == slice(None, 1)
        return self.as_subclass(torch.Tensor)[index]


@pytest.mark.parametrize("scorer", [Marginal(), Conditional(4), Conditional(), ChainConditional()], ids=repr)
def test_reads_no_row_that_the_round_cannot_reach(scorer: Scorer) -> None:
    problem = Problem(max_depth=1)
    draft = evolve(problem.draft(), base_logits=problem.draft().base_logits.as_subclass(NoReads))
    state = scorer.begin(draft, problem.round())
    assert scorer.expand(draft, 0, state).tokens.shape[0] == 1


@pytest.mark.parametrize("scorer", [Marginal(), ChainConditional()], ids=repr)
def test_path_independent_rows_are_views(scorer: Scorer) -> None:
    problem = Problem()
    draft = problem.draft()
    state = scorer.begin(draft, problem.round())
    many = scorer.advance(draft, 0, state, torch.zeros(5, dtype=torch.int64), torch.arange(5))
    found = scorer.expand(draft, 1, many)
    assert found.tokens.shape == (5, problem.vocab)
    assert found.tokens.stride(0) == 0
    assert scorer.expand(draft, 1, many.select(torch.tensor([4, 1]))).tokens.shape == (2, problem.vocab)
    assert type(scorer).path_independent


def test_candidates_are_chosen_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for module, name in (
        (conditional_module, "exact_topk_columns"),
        (conditional_module, "exact_topk"),
        (interfaces, "exact_topk"),
    ):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda x, k, do=original: calls.append(x.shape) or do(x, k))
    problem = Problem(vocab=9)
    draft, scorer = problem.draft(), Conditional(4)
    state = scorer.begin(draft, problem.round())
    assert calls == [(3, 9)]
    scorer.expand(draft, 0, state)
    state = scorer.advance(draft, 0, state, torch.zeros(2, dtype=torch.int64), torch.tensor([1, 2]))
    scorer.expand(draft, 1, state)
    assert calls == [(3, 9), (1, 4), (2, 4)]


def test_states_can_be_selected() -> None:
    problem, scorer = Problem(), Conditional(4)
    draft = problem.draft()
    state = scorer.begin(draft, problem.round())
    state = scorer.advance(draft, 0, state, torch.tensor([0, 0, 0]), torch.tensor([4, 5, 6]))
    chosen = scorer.expand(draft, 1, state.select(torch.tensor([2, 0])))
    every = scorer.expand(draft, 1, state)
    assert torch.equal(chosen.log_probs, every.log_probs[[2, 0]])
    assert torch.equal(chosen.tokens, every.tokens[[2, 0]])


@pytest.mark.parametrize("name", ["marginal", "conditional", "chain-conditional"])
def test_registered_with_what_it_needs(name: str) -> None:
    scorer = registry.scorers.get(name)()
    assert BASE_LOGITS in scorer.needed()
    assert (CORRECTION_HEAD in scorer.needed()) == ("conditional" in name)
    assert scorer.candidates is None
    assert registry.scorers.get(name)(candidates="all").candidates is None


@pytest.mark.parametrize("scorer", [Marginal, Conditional, ChainConditional])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("candidates", value) for value in (0, -3, 2.5, True, "some")),
        *(("temperature", value) for value in (0.0, -1.0, math.inf, math.nan, "hot", True)),
    ],
)
def test_refuses_options(scorer: type[Scorer], option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{option} is {value!r}"):
        scorer(**{option: value})


def test_refuses_an_unknown_normalizer() -> None:
    with pytest.raises(ConfigError, match="normalizer is 'slice'; it must be 'candidates' or 'vocabulary'"):
        Conditional(normalizer="slice")


def test_says_what_a_draft_lacks() -> None:
    draft = Draft(1, base_logits=torch.zeros(1, 4))
    with pytest.raises(ValueError, match="no correction head"):
        Conditional().begin(draft, Problem().round())
    with pytest.raises(ValueError, match="no base logits"):
        Marginal().begin(Draft(1), Problem().round())


SCORERS = st.one_of(
    st.builds(Conditional, st.sampled_from([1, 3, 5, None]), temperature=st.sampled_from([1.0, 0.5])),
    st.builds(Conditional, st.sampled_from([3, None]), st.just("vocabulary")),
    st.builds(Marginal),
)


def check_children(scorer: Scorer, problem: Problem, width: int) -> None:
    """The best children of several paths are those among the ranked candidates of each."""
    problem = evolve(problem, max_depth=99)
    draft, round = problem.draft(), problem.round()
    state, scores = scorer.begin(draft, round), torch.zeros(1)
    for depth in range(problem.depth):
        found = scorer.best_children(draft, depth, state, scores, width)
        candidates = scorer.expand(draft, depth, state)
        totals = scores[:, None] + candidates.log_probs
        places = sorted(np.ndindex(*totals.shape), key=lambda at: (-totals[at].item(), *at))[:width]
        assert found.scores.tolist() == [totals[at].item() for at in places]
        real = [n for n, at in enumerate(places) if totals[at] > float("-inf")]
        assert found.rows[real].tolist() == [places[n][0] for n in real]
        assert found.tokens[real].tolist() == [candidates.tokens[places[n]].item() for n in real]
        assert found.edges[real].tolist() == [candidates.log_probs[places[n]].item() for n in real]
        # Beside scores of very different sizes, sums of different edges become equal.
        scores = (found.scores * 1e6)[real]
        state = scorer.advance(draft, depth, state, found.rows[real], found.tokens[real])


@settings(max_examples=60)
@given(problems, SCORERS, st.sampled_from([1, 2, 5, 50]))
def test_best_children_are_the_best_of_the_ranked_candidates(problem: Problem, scorer: Scorer, width: int) -> None:
    check_children(scorer, problem, width)


class ForgetsPaths(Conditional):
    """Ranks a depth's candidates by their edges alone."""

    def best_children(self, draft: Draft, depth: int, state: Any, scores: Tensor, width: int) -> Children:
        found = super().best_children(draft, depth, state, torch.zeros_like(scores), width)
        return evolve(found, scores=scores[found.rows] + found.edges)


def test_catches_children_of_unlikely_paths() -> None:
    with pytest.raises(AssertionError):
        check_children(ForgetsPaths(4), Problem(depth=4), 5)


class OneToken(Conditional):
    """Has an ``expand`` of its own, and nothing else."""

    def expand(self, draft: Draft, depth: int, state: Any) -> Candidates:
        found = super().expand(draft, depth, state)
        return Candidates(torch.full_like(found.tokens[:, :1], 2), found.log_probs[:, :1])


def test_children_follow_an_expand_of_ones_own() -> None:
    check_children(OneToken(4), Problem(depth=2), 3)
    draft, scorer = Problem().draft(), OneToken(4)
    found = scorer.best_children(draft, 0, scorer.begin(draft, Problem().round()), torch.zeros(1), 3)
    assert found.tokens.tolist() == [2]
    assert "best_children" not in vars(Marginal)


@pytest.mark.parametrize(("before", "most", "wanted"), [(None, 3, 3), (2, 3, 2), (4, 3, 3)])
def test_rounds_are_limited_to_what_both_can_use(before: int | None, most: int, wanted: int) -> None:
    round = Problem(max_children=before).round()
    limited = round.limited(most)
    assert limited.max_children == wanted
    assert limited.history is round.history
    assert limited.max_depth == round.max_depth
