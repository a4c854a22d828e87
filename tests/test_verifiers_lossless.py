"""The output distribution of every verifier is the target's, and wrong acceptance rules fail the same test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from fakes import RandomTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from statistics_helpers import SIGNIFICANCE, World, decode, g_test, p_value, plain_decode

from specforge.interfaces import Draft, Round, Scorer, TreeBuilder, Verdict, Verifier
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.strategies import drawing
from specforge.strategies.chain import Chain
from specforge.strategies.sampled import Sampled
from specforge.tree import DraftTree, Proposal
from specforge.verifiers import rejection, walk
from specforge.verifiers.greedy import Greedy
from specforge.verifiers.rejection import Rejection
from specforge.verifiers.sampling import Sampling

FEW = settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=60)


def make_world(
    seed: int, vocab_size: int, sampling: SamplingParams, window: int = 2, scale: float = 1.0, draft_scale: float = 1.0
) -> World:
    draft = RandomTable(vocab_size, seed + 1_000, draft_scale, normalised=True)
    return World(RandomTable(vocab_size, seed, scale), draft, sampling, window)


@frozen(eq=False)
class RandomTrees(TreeBuilder):
    """Trees of random shape and tokens, whatever the scorer says."""

    seed: int
    vocab_size: int
    nodes: int = 8

    def build(self, draft: Draft, scorer: Scorer, round: Round) -> DraftTree:
        rng = np.random.default_rng([self.seed, round.root_position])
        tokens, parents, depths, taken = [round.root], [-1], [0], set()
        for _ in range(int(rng.integers(0, self.nodes + 1))):
            parent, token = int(rng.integers(0, len(tokens))), int(rng.integers(0, self.vocab_size))
            if depths[parent] < min(draft.depth, round.max_depth) and (parent, token) not in taken:
                taken.add((parent, token))
                tokens.append(token)
                parents.append(parent)
                depths.append(depths[parent] + 1)
        return DraftTree(tokens, parents)


options = st.builds(
    SamplingParams,
    temperature=st.floats(0.3, 1.5),
    top_k=st.sampled_from([0, 0, 2, 3]),
    top_p=st.sampled_from([1.0, 1.0, 0.6, 0.9]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.5, 0.7]),
)
worlds = st.builds(
    make_world,
    seed=st.integers(0, 10_000),
    vocab_size=st.integers(2, 8),
    sampling=options,
    window=st.integers(2, 3),
    scale=st.floats(0.3, 2.0),
    draft_scale=st.floats(0.0, 2.0),
)
sampled_builders = st.one_of(
    st.builds(Chain, sample=st.just(True), temperature=st.floats(0.5, 2.0)),
    st.builds(
        Sampled,
        branching=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
        temperature=st.floats(0.5, 2.0),
    ),
)


# --- distributions


@FEW
@given(worlds, sampled_builders)
def test_rejection_has_the_targets_distribution(world: World, builder: TreeBuilder) -> None:
    assert p_value(world, builder, Rejection(), samples=600) > SIGNIFICANCE


@settings(FEW, max_examples=3)
@given(worlds, st.integers(0, 1000))
def test_sampling_has_the_targets_distribution(world: World, seed: int) -> None:
    assert p_value(world, RandomTrees(seed, world.target.vocab_size), Sampling(), samples=600) > SIGNIFICANCE


FIXED = {
    "cold": make_world(3, 4, SamplingParams(0.6, min_p=0.02, repetition_penalty=0.6), draft_scale=1.5),
    "hot": make_world(2, 4, SamplingParams(1.3, repetition_penalty=2.0), scale=1.5, draft_scale=1.5),
    "plain": make_world(5, 4, SamplingParams(1.0), scale=1.5, draft_scale=1.5),
}
CHAIN, BUSHY, WHOLE = Chain(sample=True), Sampled((3, 2)), Sampled((5, 5))


def worst_p_value(
    builder: TreeBuilder,
    verifier: Verifier,
    alter: Callable[[DraftTree], DraftTree] = lambda tree: tree,
    draws: Callable[[int], Callable[[int, str, int], float]] = KeyedUniforms,
) -> float:
    """Return the least p-value over the fixed worlds, or the first that is significant."""
    worst = 1.0
    for world in FIXED.values():
        worst = min(worst, p_value(world, builder, verifier, 600, alter, draws))
        if worst < SIGNIFICANCE:
            break
    return worst


@pytest.mark.parametrize("builder", [CHAIN, BUSHY, WHOLE], ids=["chain", "bushy", "whole-vocabulary"])
def test_rejection_passes_where_the_mutants_fail(builder: TreeBuilder) -> None:
    assert worst_p_value(builder, Rejection()) > SIGNIFICANCE


# --- mutants of rejection


@frozen(eq=False)
class BestWithProposal(TreeBuilder):
    """The best candidates, chosen for their scores and passed off as draws."""

    width: int

    def build(self, draft: Draft, scorer: Scorer, round: Round) -> DraftTree:
        candidates = scorer.expand(draft, 0, scorer.begin(draft, round))
        best = candidates.tokens[0, : self.width].tolist()
        q = drawing.draft_distribution(candidates, 1.0)
        rows = [0] + [-1] * len(best)
        return DraftTree([round.root, *best], [-1] + [0] * len(best), proposal=Proposal(candidates.tokens, q, rows))


def permuted(tree: DraftTree, order: list[int]) -> DraftTree:
    """Return the tree whose node ``i`` is ``order[i]`` of ``tree``."""
    new = {old: index for index, old in enumerate(order)}
    proposal = evolve(tree.proposal, rows=tree.proposal.rows[order])
    parents = [new[int(tree.parents[old])] if old else -1 for old in order]
    return DraftTree(tree.token_ids[order], parents, proposal=proposal)


def siblings_by_token(tree: DraftTree) -> DraftTree:
    return permuted(tree, sorted(range(len(tree)), key=lambda n: (tree.depths[n], tree.token_ids[n])))


def best_drawn_only(tree: DraftTree) -> DraftTree:
    """Prune after drawing: keep the drawn child of highest score at each node."""
    kept = [0]
    for node in range(len(tree)):
        if node in kept and tree.children(node):
            kept.append(max(tree.children(node), key=lambda child: tree.log_probs[child]))
    return permuted(tree, sorted(kept))


@pytest.mark.parametrize("width", [1, 3])
def test_deterministic_candidates_are_not_accepted_losslessly(width: int) -> None:
    assert worst_p_value(BestWithProposal(width), Rejection()) < SIGNIFICANCE


@pytest.mark.parametrize("alter", [siblings_by_token, best_drawn_only])
def test_siblings_must_be_all_that_were_drawn_in_order(alter: Callable[[DraftTree], DraftTree]) -> None:
    assert worst_p_value(BUSHY, Rejection(), alter) < SIGNIFICANCE


MUTANTS = {
    "residual is the target": ("_residual", lambda p, q: p, CHAIN),
    "residual is not renormalised": ("_residual", lambda p, q: (p - q).clamp(min=1e-9), BUSHY),
    "residual is absolute": ("_residual", lambda p, q: (p - q).abs() / (p - q).abs().sum(), CHAIN),
    "q keeps the rejected token": ("_without", lambda q, token: q, BUSHY),
    "q is not renormalised": ("_without", lambda q, token: q.index_fill(0, torch.tensor(token), 0.0), BUSHY),
    "penalty sees no drafts": ("path_ids", lambda tree, node, round: round.history, BUSHY),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_rejection_rules_are_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong, builder = MUTANTS[mutant]
    monkeypatch.setattr(rejection, name, wrong)
    assert worst_p_value(builder, Rejection()) < SIGNIFICANCE


def test_one_uniform_for_all_purposes_is_caught() -> None:
    def shared(seed: int) -> Callable[[int, str, int], float]:
        return lambda position, purpose, index=0: KeyedUniforms(seed)(position, "any", index)

    assert worst_p_value(CHAIN, Rejection(), draws=shared) < SIGNIFICANCE


@frozen(eq=False)
class AcceptBest(Verifier):
    """Accepts a deterministic candidate with min(1, p/q), q its score."""

    def verify(self, tree: DraftTree, logits: torch.Tensor, round: Round) -> Verdict:
        path = [0]
        while True:
            node, depth = path[-1], len(path) - 1
            p = rejection.processed_distribution(logits[node], walk.path_ids(tree, node, round), round.sampling)
            accepted = None
            for child in tree.children(node):
                q = float(np.exp(tree.log_probs[child] - tree.log_probs[node]))
                if round.draws(round.root_position + depth + 1, "accept", child) * q < p[tree.token_ids[child]]:
                    accepted = child
                    break
            if accepted is None:
                return Verdict(tuple(path), rejection.draw(p, round.draws(round.root_position + depth + 1, "residual")))
            path.append(accepted)


def test_a_wrong_verifier_of_deterministic_trees_is_caught() -> None:
    assert worst_p_value(Chain(), Sampling()) > SIGNIFICANCE
    assert worst_p_value(Chain(), AcceptBest()) < SIGNIFICANCE


# --- token by token


class Tally(Counter[str]):
    """Counts what the examples of a property have seen, so that it cannot pass without having tested anything."""


def long(world: World) -> World:
    return evolve(world, window=8)


def test_sampling_equals_plain_decoding() -> None:
    seen = Tally()

    @MANY
    @given(worlds.map(long), st.integers(0, 1000), st.booleans())
    def check(world: World, seed: int, random_tree: bool) -> None:
        builder = RandomTrees(seed, world.target.vocab_size) if random_tree else Sampled((3, 2, 1))
        tokens, verdicts = decode(world, builder, Sampling(), seed)
        assert tokens == plain_decode(world, seed)
        seen["accepted"] += sum(verdict.acceptance_length - 1 for verdict in verdicts)
        seen["rounds"] += len(verdicts)

    check()
    assert seen["accepted"] > 60
    assert seen["rounds"] > 60


@pytest.mark.parametrize("verifier", [Greedy(), Sampling(), Rejection()], ids=lambda v: type(v).__name__)
def test_temperature_zero_is_the_argmax_decoding(verifier: Verifier) -> None:
    seen = Tally()

    @MANY
    @given(worlds.map(long), st.integers(0, 1000), st.sampled_from([1.0, 1.3, 0.7]))
    def check(world: World, seed: int, penalty: float) -> None:
        world = evolve(world, sampling=SamplingParams(repetition_penalty=penalty))
        builder = Sampled((3, 2, 1)) if isinstance(verifier, Rejection) else RandomTrees(seed, world.target.vocab_size)
        tokens, verdicts = decode(world, builder, verifier, seed)
        assert tokens == plain_decode(world, seed)
        assert tokens == argmax_decode(world, penalty)
        seen["accepted"] += sum(verdict.acceptance_length - 1 for verdict in verdicts)

    check()
    assert seen["accepted"] > 60


def argmax_decode(world: World, penalty: float) -> tuple[int, ...]:
    """Decode greedily with the repetition penalty written out."""
    emitted: tuple[int, ...] = ()
    while len(emitted) < world.window:
        scores = world.target(emitted).clone()
        for token in set(emitted) | {0, 1}:
            scores[token] = scores[token] * penalty if scores[token] < 0 else scores[token] / penalty
        emitted += (int(scores.argmax()),)
    return emitted


def raw_argmax(tree: DraftTree, logits: torch.Tensor, round: Round) -> Callable[[int], int]:
    return lambda node: int(logits[node].argmax())


def uniform_by_depth(tree: DraftTree, logits: torch.Tensor, round: Round) -> Callable[[int], int]:
    def choose(node: int) -> int:
        ids = walk.path_ids(tree, node, round)
        return walk.choose_next(logits[node], ids, round.sampling, round.draws, int(tree.depths[node]))

    return choose


@pytest.mark.parametrize("wrong", [raw_argmax, uniform_by_depth])
def test_wrong_choices_differ_from_plain_decoding(wrong: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specforge.verifiers.sampling.chooser", wrong)
    assert differs_somewhere(Sampling(), SamplingParams(0.8, repetition_penalty=1.5))


@pytest.mark.parametrize("verifier", [Greedy(), Sampling()], ids=lambda v: type(v).__name__)
def test_a_penalty_that_ignores_the_drafts_differs(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    temperature = 0.0 if isinstance(verifier, Greedy) else 0.8
    assert not differs_somewhere(verifier, SamplingParams(temperature, repetition_penalty=1.5))
    monkeypatch.setattr(walk, "path_ids", lambda tree, node, round: round.history)
    assert differs_somewhere(verifier, SamplingParams(temperature, repetition_penalty=1.5))


def differs_somewhere(verifier: Verifier, sampling: SamplingParams) -> bool:
    seeds = range(30)
    compared = [
        (decode(world, RandomTrees(seed, 8, nodes=24), verifier, seed)[0], plain_decode(world, seed))
        for seed in seeds
        for world in [make_world(seed, 8, sampling, window=8)]
    ]
    return any(got != wanted for got, wanted in compared)


# --- the test itself


def test_the_g_test_holds_its_level_and_has_power() -> None:
    rng = np.random.default_rng(0)
    p = {(0,): 0.5, (1,): 0.3, (2,): 0.19999, (3,): 0.00001}

    def draw(weights: list[float]) -> Counter:
        return Counter((int(cell),) for cell in rng.choice(4, size=1000, p=weights))

    fair = [g_test(draw(list(p.values())), p) for _ in range(300)]
    assert 0.01 < np.mean(np.array(fair) < 0.05) < 0.1
    assert g_test(draw([0.4, 0.4, 0.2, 0.0]), p) < SIGNIFICANCE
    assert g_test(Counter({(0,): 10, (4,): 1}), p) == 0.0
