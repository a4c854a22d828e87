"""The ways that wait for nothing, which a device takes, build the trees that the host's build."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from correction_problems import DEVICE, KINDS, Problem, round_of
from hypothesis import given, settings
from torch import Tensor

from specforge import DraftTree, ordering
from specforge.children import Children
from specforge.interfaces import CorrectionHead, Scorer, TreeBuilder
from specforge.strategies import conditional
from specforge.strategies.conditional import Conditional
from specforge.strategies.depthwise import DepthWise
from specforge.strategies.heap import Heap
from specforge.strategies.marginal import Marginal

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="compares two ways of a CPU")

BUILDERS: list[TreeBuilder] = [DepthWise(9, width=4), DepthWise(5, width=8, beta=-0.2), DepthWise(7, "fixed"), Heap(9)]
SCORERS: list[Scorer] = [Conditional(6), Conditional(6, "vocabulary"), Conditional(), Marginal()]
PROBLEMS = st.builds(Problem, kind=st.sampled_from(KINDS), first_corrected=st.integers(0, 2), seed=st.integers(0, 999))


def both_ways(act: Callable[[], DraftTree]) -> list[DraftTree]:
    host = act()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "on_host", lambda tensor: False)
        return [host, act()]


def check(problem: Problem, builder: TreeBuilder, scorer: Scorer) -> None:
    draft = problem.draft(problem.head())
    # Logits that tie, so that the order of ties shows.
    assert draft.base_logits is not None
    draft.base_logits.round_()
    one, other = both_ways(lambda: builder.build(draft, scorer, round_of()))
    assert one.token_ids.tolist() == other.token_ids.tolist()
    assert one.parents.tolist() == other.parents.tolist()
    assert one.log_probs.tolist() == other.log_probs.tolist()


@settings(max_examples=60)
@given(PROBLEMS, st.sampled_from(BUILDERS), st.sampled_from(SCORERS))
def test_trees_are_the_same(problem: Problem, builder: TreeBuilder, scorer: Scorer) -> None:
    check(problem, builder, scorer)


def test_catches_candidates_that_do_not_lie_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = conditional.exact_topk_columns

    def as_chosen(scores: Tensor, k: int) -> Tensor:
        return columns(scores, k) if ordering.on_host(scores) else ordering.exact_topk(scores, k)[1]

    monkeypatch.setattr(conditional, "exact_topk_columns", as_chosen)
    caught = 0
    for seed in range(60):
        try:
            check(Problem(seed=seed), BUILDERS[0], Marginal() if seed % 2 else Conditional(6))
        except AssertionError:
            caught += 1
    assert 0 < caught <= 30


def children_of(head: CorrectionHead) -> list[Children]:
    scores, tokens = torch.tensor([-3e8]), torch.tensor([[7, 8, 9, 10]])
    log_probs = torch.tensor([[-2.0, -1.0, -1.0, -0.5]])
    found = []
    for host in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ordering, "on_host", lambda tensor, host=host: host)
            found.append(head.best_children(scores, log_probs, tokens, 3))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_heads_rank_children_in_any_order(kind: str) -> None:
    for found in children_of(Problem(kind).head()):
        assert found.tokens.tolist() == [10, 8, 9]
