"""Trees that others built, entry for entry."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from brute_force import paths_of

from specforge.interfaces import Draft, Round
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.strategies.depthwise import DepthWise
from specforge.strategies.heap import Heap
from specforge.strategies.marginal import Marginal


@pytest.fixture(params=range(5))
def case(request: pytest.FixtureRequest, golden: dict[str, Any]) -> dict[str, Any]:
    assert len(golden["ddtree_builder"]) == 5
    return golden["ddtree_builder"][request.param]


def draft_of(case: dict[str, Any]) -> Draft:
    logits = torch.tensor(case["logits"])
    assert logits.shape == (case["D"], case["V"])
    return Draft(case["D"], base_logits=logits)


ROUND = Round(torch.tensor([5, 3]), 99, SamplingParams(), KeyedUniforms(0))


def test_ddtree_builder(case: dict[str, Any]) -> None:
    tree = Heap(case["budget"]).build(draft_of(case), Marginal(), ROUND)
    assert tree.token_ids[1:].tolist() == case["tokens"]
    assert tree.depths[1:].tolist() == case["depths"]
    assert tree.parents.tolist() == case["parents"]


def test_depth_by_depth_it_is_the_same_set(case: dict[str, Any]) -> None:
    budget = case["budget"]
    heap = Heap(budget).build(draft_of(case), Marginal(), ROUND)
    wide = DepthWise(budget, width=budget).build(draft_of(case), Marginal(), ROUND)
    assert sorted(paths_of(wide)) == sorted(paths_of(heap))
