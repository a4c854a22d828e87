"""The draft tree's invariants, against brute force."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specforge.tree import DraftTree, Proposal

QUICK = settings(max_examples=100, deadline=None, derandomize=True)


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    tokens, parents = [draw(st.integers(0, 5))], [-1]
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(0, len(tokens) - 1))
        used = {tokens[n] for n in range(len(tokens)) if parents[n] == parent}
        free = sorted(set(range(6)) - used)
        if free:
            tokens.append(draw(st.sampled_from(free)))
            parents.append(parent)
    return DraftTree(tokens, parents)


def ancestors(tree: DraftTree, node: int) -> set[int]:
    """Return ``node`` and its ancestors, by the definition."""
    return {node} if node == 0 else {node} | ancestors(tree, int(tree.parents[node]))


@QUICK
@given(trees())
def test_the_mask_shows_ancestors_only(tree: DraftTree) -> None:
    wanted = np.array([[j in ancestors(tree, i) for j in range(len(tree))] for i in range(len(tree))])
    assert np.array_equal(tree.mask, wanted)
    off_by_one = np.roll(wanted, 1, axis=0)
    assert len(tree) == 1 or not np.array_equal(tree.mask, off_by_one)


@QUICK
@given(trees())
def test_paths_children_and_depths_agree(tree: DraftTree) -> None:
    for node in range(len(tree)):
        path = tree.path(node)
        assert path[0] == 0
        assert path[-1] == node
        assert set(path) == ancestors(tree, node)
        assert list(path) == sorted(path)
        assert tree.depths[node] == len(path) - 1
        assert tree.path_tokens(node) == tuple(tree.token_ids[list(path)].tolist())
        children = tree.children(node)
        assert children == tuple(np.flatnonzero(tree.parents == node).tolist())
        for token in range(6):
            child = tree.child_with_token(node, token)
            assert child == next((c for c in children if tree.token_ids[c] == token), None)
    assert tree.budget == len(tree) - 1


@QUICK
@given(trees())
def test_the_drawing_has_a_line_a_node_indented_by_depth(tree: DraftTree) -> None:
    lines = str(tree).splitlines()
    assert len(lines) == len(tree)
    preorder = []
    stack = [0]
    while stack:
        preorder.append(stack.pop())
        stack.extend(reversed(tree.children(preorder[-1])))
    for node, line in zip(preorder, lines, strict=True):
        bare = line.lstrip("│├└─ ")
        assert len(line) - len(bare) == 3 * tree.depths[node]
        assert bare.split()[0] == str(tree.token_ids[node])


def test_the_drawing() -> None:
    tree = DraftTree([7, 1, 2, 3], [-1, 0, 0, 1], log_probs=np.log([1, 0.5, 0.25, 0.125]))
    wanted = "<7>\n├─ <1> 0.500 *\n│  └─ <3> 0.250\n└─ <2> 0.250"
    assert tree.render(lambda token: f"<{token}>", accepted=[1]) == wanted


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ([], [], "must be"),
        ([1, 2], [-1], "must be"),
        ([1], [0], "node 0 is the root"),
        ([1, 2], [-1, 1], "node 1 has parent 1"),
        ([1, 2], [-1, -1], "node 1 has parent -1"),
        ([1, 2, 3], [-1, 2, 0], "node 1 has parent 2"),
        ([1, 2, 2], [-1, 0, 0], "share a token"),
    ],
)
def test_what_is_no_tree_is_refused(tokens: list[int], parents: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftTree(tokens, parents)


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"depths \[0, 2\] do not follow from parents; \[0, 1\] would"):
        DraftTree([1, 2], [-1, 0], depths=[0, 2])
    with pytest.raises(ValueError, match="log_probs has shape"):
        DraftTree([1, 2], [-1, 0], log_probs=[0.0])
    row = torch.ones(1, 1)
    with pytest.raises(ValueError, match=r"proposal\.rows has shape"):
        DraftTree([1, 2], [-1, 0], proposal=Proposal(row.long(), row, [0]))
    with pytest.raises(ValueError, match="must lie in"):
        Proposal(row.long(), row, [0, 1])
    with pytest.raises(ValueError, match=r"must be \[R, K\]"):
        Proposal(row.long(), torch.ones(1, 2), [0])


def test_a_cousin_may_share_a_token() -> None:
    assert len(DraftTree([1, 2, 3, 4, 4], [-1, 0, 0, 1, 2])) == 5


def test_trees_are_immutable_and_keep_no_reference() -> None:
    tokens = np.array([1, 2])
    tree = DraftTree(tokens, [-1, 0])
    tokens[0] = 9
    assert tree.token_ids.tolist() == [1, 2]
    for array in (tree.token_ids, tree.parents, tree.depths, tree.log_probs, tree.mask):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        tree.token_ids = tokens


def test_chains_and_roots() -> None:
    chain = DraftTree.from_chain(torch.tensor([4, 5, 6]), log_probs=[0.0, -1.0, -3.0])
    assert chain.parents.tolist() == [-1, 0, 1]
    assert chain.depths.tolist() == [0, 1, 2]
    assert np.array_equal(chain.mask, np.tri(3, dtype=bool))
    assert DraftTree.root_only(3).mask.tolist() == [[True]]
    assert (chain.log_probs.dtype, chain.token_ids.dtype) == (np.float32, np.int64)


def test_a_proposal_row_becomes_a_dense_distribution() -> None:
    proposal = Proposal(
        torch.tensor([[3, 1, 0], [0, 2, 2]]), torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.5, 0.0]]), [0, -1, 1]
    )
    like = torch.zeros(5, dtype=torch.float64)
    assert proposal.distribution(0, like).tolist() == [0, 0.25, 0, 0.75, 0]
    assert proposal.distribution(2, like).tolist() == [0.5, 0, 0.5, 0, 0]
    with pytest.raises(ValueError, match="no proposal row"):
        proposal.distribution(1, like)
