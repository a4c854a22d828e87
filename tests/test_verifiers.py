"""Verifiers on trees small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attrs import evolve
from torch import Tensor

from specforge.errors import ConfigError, IncompatiblePartsError
from specforge.interfaces import PROPOSAL, SHAPE_BEFORE_DRAWING, Round, Verdict
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.tree import DraftTree, Proposal
from specforge.verifiers import rejection
from specforge.verifiers.greedy import Greedy, argmax_chooser
from specforge.verifiers.rejection import Rejection
from specforge.verifiers.sampling import Sampling
from specforge.verifiers.walk import chooser, path_ids, walk

#   9 ── 1 ── 3        nodes 0; 1, 2; 3, 4
#     └─ 2 ── 1
TREE = DraftTree([9, 1, 2, 3, 1], [-1, 0, 0, 1, 2])


def make_round(temperature: float = 0.0, history: tuple[int, ...] = (5, 6, 9), **options: float) -> Round:
    return Round(torch.tensor(history), 9, SamplingParams(temperature, **options), KeyedUniforms(0))


def with_uniforms(round: Round, values: dict[tuple[int, str, int], float]) -> Round:
    """Return a round whose uniforms are given; asking for any other is an error."""
    return evolve(round, draws=lambda position, purpose, index=0: values[position, purpose, index])


def peaks(*best: int, size: int = 10) -> Tensor:
    """Return ``[N, V]`` logits whose argmax at node i is ``best[i]``."""
    return torch.nn.functional.one_hot(torch.tensor(best), size) * 4.0


@pytest.mark.parametrize(
    ("best", "path", "next_token"),
    [
        ((7, 0, 0, 0, 0), (0,), 7),
        ((1, 7, 0, 0, 0), (0, 1), 7),
        ((2, 0, 1, 0, 8), (0, 2, 4), 8),
        ((1, 3, 0, 9, 0), (0, 1, 3), 9),
    ],
)
@pytest.mark.parametrize("verifier", [Greedy(), Sampling()], ids=lambda v: type(v).__name__)
def test_the_walk_follows_the_argmax(
    verifier: Greedy | Sampling, best: tuple[int, ...], path: tuple[int, ...], next_token: int
) -> None:
    verdict = verifier.verify(TREE, peaks(*best), make_round())
    assert (verdict.path, verdict.next_token) == (path, next_token)
    assert verdict.acceptance_length == len(path)


def test_ties_go_to_the_smaller_token() -> None:
    logits = torch.zeros(5, 10, dtype=torch.bfloat16)
    logits[0, [2, 1]] = 1
    for verifier in (Greedy(), Sampling()):
        assert verifier.verify(TREE, logits, make_round()).path == (0, 1)


def test_reducing_all_rows_at_once_chooses_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        logits = (torch.randn(5, 10, generator=generator) * 2).round().to(dtype)
        choose = argmax_chooser(logits)
        assert [choose(node) for node in range(5)] == [chooser(TREE, logits, make_round())(node) for node in range(5)]
        assert walk(TREE, choose).path == Greedy().verify(TREE, logits, make_round()).path


def test_the_penalty_of_a_node_is_that_of_its_own_path() -> None:
    logits = torch.zeros(5, 10)
    logits[0, 1], logits[1, [1, 3]], logits[3, [1, 4]] = 4.0, torch.tensor([4.0, 3.5]), torch.tensor([4.0, 3.0])
    assert Greedy().verify(TREE, logits, make_round(repetition_penalty=2.0)).path == (0, 1, 3)
    assert Greedy().verify(TREE, logits, make_round()).path == (0, 1)


def test_the_path_of_a_node_is_the_history_and_its_drafts() -> None:
    round = make_round()
    assert [path_ids(TREE, node, round).tolist() for node in (0, 2, 4)] == [[5, 6, 9], [5, 6, 9, 2], [5, 6, 9, 2, 1]]


def test_sampling_draws_with_the_uniform_of_the_position() -> None:
    logits = torch.zeros(5, 4)
    values = {(3, "target", 0): 0.26, (4, "target", 0): 0.76, (5, "target", 0): 0.1}
    verdict = Sampling().verify(TREE, logits, with_uniforms(make_round(1.0), values))
    assert (verdict.path, verdict.next_token) == ((0, 1, 3), 0)


def test_greedy_refuses_a_temperature() -> None:
    Greedy().check(SamplingParams(0.0, repetition_penalty=1.2))
    with pytest.raises(ConfigError, match=r"temperature is 0\.7; use 'sampling', 'rejection' or 'auto'"):
        Greedy().check(SamplingParams(0.7))
    for verifier in (Sampling(), Rejection()):
        verifier.check(SamplingParams(0.7))
        verifier.check(SamplingParams())


# --- rejection


def drawn_tree(tokens: list[int], q: list[float]) -> DraftTree:
    """Return a root (9) whose children ``tokens`` were drawn from ``q`` in order."""
    proposal = Proposal(torch.arange(len(q))[None], torch.tensor([q], dtype=torch.float64), [0] + [-1] * len(tokens))
    return DraftTree([9, *tokens], [-1] + [0] * len(tokens), proposal=proposal)


def verify(tree: DraftTree, p: list[float], values: dict[tuple[str, int], float]) -> Verdict:
    logits = torch.tensor([p] * len(tree)).log()
    keyed = {(3, *key): value for key, value in values.items()} | {(4, "residual", 0): 0.0}
    return Rejection().verify(tree, logits, with_uniforms(make_round(1.0), keyed))


P, Q = [0.1, 0.3, 0.6], [0.5, 0.3, 0.2]


@pytest.mark.parametrize(
    ("tokens", "uniforms", "path", "next_token"),
    [
        # p/q of token 0 is 0.2
        ([0], {("accept", 0): 0.19}, (0, 1), 0),
        # its residual is all on token 2
        ([0], {("accept", 0): 0.21, ("residual", 0): 0.0}, (0,), 2),
        ([0], {("accept", 0): 0.21, ("residual", 0): 0.999}, (0,), 2),
        ([2], {("accept", 0): 0.999}, (0, 1), 0),
        ([1], {("accept", 0): 0.999}, (0, 1), 0),
        # after 0 the residual is (0, 0, 1) and q is (0, .6, .4): 1 is never accepted, 2 always
        ([0, 1], {("accept", 0): 0.5, ("accept", 1): 0.0, ("residual", 0): 0.5}, (0,), 2),
        ([0, 2], {("accept", 0): 0.5, ("accept", 1): 0.999}, (0, 2), 0),
        ([0, 1, 2], {("accept", 0): 0.5, ("accept", 1): 0.0, ("accept", 2): 0.999}, (0, 3), 0),
    ],
)
def test_rejection_by_hand(
    tokens: list[int], uniforms: dict[tuple[str, int], float], path: tuple[int, ...], next_token: int
) -> None:
    verdict = verify(drawn_tree(tokens, Q), P, uniforms)
    assert (verdict.path, verdict.next_token) == (path, next_token)


def test_equal_distributions_are_always_accepted() -> None:
    for token in range(3):
        # The logits are float32, and so is what they say of p.
        assert verify(drawn_tree([token], P), P, {("accept", 0): 1 - 1e-6}).path == (0, 1)


def test_a_rejection_by_rounding_alone_leaves_the_target() -> None:
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert torch.equal(rejection._residual(p, p), p)
    assert torch.equal(rejection._residual(p, p + 1e-17), p)
    assert rejection._residual(p, torch.tensor([0.5, 0.5])).tolist() == [0, 1]


def test_q_without_a_token_is_renormalised_or_empty() -> None:
    assert rejection._without(torch.tensor([0.5, 0.25, 0.25]), 0).tolist() == [0, 0.5, 0.5]
    assert rejection._without(torch.tensor([0.0, 1.0]), 1).tolist() == [0, 0]


def test_the_last_token_with_mass_may_be_rejected_too() -> None:
    values = {("accept", 0): 0.9, ("residual", 0): 0.4}
    verdict = verify(drawn_tree([1], [0.0, 1.0, 0.0]), [0.2, 0.5, 0.3], values)
    assert (verdict.path, verdict.next_token) == ((0,), 2)
    assert verify(drawn_tree([1], [0.0, 1.0, 0.0]), [0.2, 0.5, 0.3], values | {("residual", 0): 0.39}).next_token == 0


def test_a_child_that_its_proposal_cannot_have_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="node 1 holds token 0, which its proposal gives no mass after 0 draws"):
        verify(drawn_tree([0], [0.0, 1.0]), [0.5, 0.5], {})
    with pytest.raises(ValueError, match="node 2 holds token 1, which its proposal gives no mass after 1 draws"):
        verify(drawn_tree([0, 1], [1.0, 0.0]), [0.5, 0.5], {("accept", 0): 0.9})


def test_rejection_needs_a_drawn_tree() -> None:
    assert Rejection().needed() == {PROPOSAL, SHAPE_BEFORE_DRAWING}
    with pytest.raises(IncompatiblePartsError, match="was not drawn"):
        Rejection().verify(TREE, torch.zeros(5, 10), make_round(1.0))


def test_a_root_alone_is_a_plain_draw_for_every_verifier() -> None:
    root = DraftTree.root_only(9)
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    for verifier in (Sampling(), Rejection()):
        drawn = [verifier.verify(root, logits, evolve(make_round(1.0), draws=KeyedUniforms(s))) for s in range(300)]
        assert {verdict.path for verdict in drawn} == {(0,)}
        shares = np.bincount([verdict.next_token for verdict in drawn], minlength=3) / 300
        assert shares == pytest.approx(torch.softmax(logits[0], -1).tolist(), abs=0.1)
        assert verifier.verify(root, logits, make_round()).next_token == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_all_dtypes_are_verified(dtype: torch.dtype) -> None:
    logits = torch.log(torch.tensor([P] * 2)).to(dtype)
    tree = drawn_tree([2], Q)
    for verifier in (Sampling(), Rejection()):
        verdict = verifier.verify(tree, logits, make_round())
        assert (verdict.path, verdict.next_token) == ((0, 1), 2)
        assert verifier.verify(tree, logits, make_round(0.9)).next_token in (0, 1, 2)
