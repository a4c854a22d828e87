"""A tree forward equals, for every node, a plain forward over that node's path; in every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from target_families import FAMILIES, LAYERS, VOCAB, WINDOW, tiny_model
from transformers import PreTrainedModel

from specforge.errors import ConfigError
from specforge.target import Target, TreeCache
from specforge.target import model as target_model
from specforge.target.attention import AttentionPlan
from specforge.tree import DraftTree

TAPS = (0, 2, LAYERS - 1)
# the models amplify rounding: their hidden states reach into the tens; every mutant below is off by far more
ATOL = 5e-4
BRANCHING = DraftTree([5, 6, 7, 8, 9, 10, 11, 12, 13], [-1, 0, 0, 1, 2, 3, 3, 5, 7])


def prompt(length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(seed))


def plain(model: PreTrainedModel, token_ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The last position's logits and tapped hidden states, as transformers computes them without a cache."""
    with torch.no_grad():
        output = model(torch.tensor([token_ids]), output_hidden_states=True, use_cache=False)
    return output.logits[0, -1], torch.cat([output.hidden_states[tap + 1][0, -1] for tap in TAPS])


def assert_equals_paths(target: Target, prefix: torch.Tensor, tree: DraftTree, cache: TreeCache) -> None:
    output = target.verify(tree, cache, TAPS)
    assert output.logits.shape == (len(tree), target.vocab_size)
    assert output.features is not None
    assert output.features.shape == (1, len(tree), len(TAPS) * target.hidden_size)
    for node in range(len(tree)):
        logits, features = plain(target.model, [*prefix.tolist(), *tree.path_tokens(node)])
        torch.testing.assert_close(output.logits[node], logits, atol=ATOL, rtol=ATOL)
        torch.testing.assert_close(output.features[0, node], features, atol=ATOL, rtol=ATOL)


def check(family: str, length: int, tree: DraftTree) -> None:
    target = Target.from_model(tiny_model(family))
    prefix, cache = prompt(length), target.new_cache()
    target.prefill(prefix, cache)
    assert_equals_paths(target, prefix, tree, cache)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [1, WINDOW - 2, 3 * WINDOW])
def test_tree_forward_equals_plain_forward_over_each_path(family: str, length: int) -> None:
    check(family, length, BRANCHING)


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    parents = [-1]
    for node in range(1, draw(st.integers(1, 14))):
        parents.append(draw(st.integers(0, node - 1)))
    return DraftTree(draw(st.permutations(range(3, VOCAB)))[: len(parents)], parents)


_TARGETS = {
    family: Target.from_model(tiny_model(family)) for family in ("qwen3", "mistral-sliding", "gemma2", "gemma3")
}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(_TARGETS)), st.integers(1, 2 * WINDOW), trees())
def test_random_trees_equal_their_paths(family: str, length: int, tree: DraftTree) -> None:
    target = _TARGETS[family]
    prefix, cache = prompt(length), target.new_cache(4)
    target.prefill(prefix, cache)
    assert_equals_paths(target, prefix, tree, cache)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(_TARGETS)), st.data())
def test_rounds_with_commits_equal_plain_forwards(family: str, data: st.DataObject) -> None:
    target = _TARGETS[family]
    prefix, cache = prompt(data.draw(st.integers(1, WINDOW + 2))), target.new_cache(4)
    target.prefill(prefix, cache)
    for _ in range(3):
        tree = data.draw(trees())
        target.verify(tree, cache)
        node = data.draw(st.integers(0, len(tree) - 1))
        cache.commit(tree.path(node))
        prefix = torch.cat([prefix, torch.tensor(tree.path_tokens(node))])
        assert cache.length == len(prefix)
    assert_equals_paths(target, prefix, BRANCHING, cache)


def _neighbours_mask(plan: AttentionPlan) -> None:
    plan.ancestors = plan.ancestors.roll(1, dims=0)


def _blind_to_parent(plan: AttentionPlan) -> None:
    plan.ancestors = torch.eye(len(plan.depths), dtype=torch.bool)


def _index_as_depth(plan: AttentionPlan) -> None:
    plan.depths = torch.arange(len(plan.depths))


def _one_position_late(plan: AttentionPlan) -> None:
    plan.depths = plan.depths + 1


@pytest.mark.parametrize("mutate", [_neighbours_mask, _blind_to_parent, _index_as_depth, _one_position_late])
def test_the_check_catches_a_wrong_plan(monkeypatch: pytest.MonkeyPatch, mutate) -> None:
    class Mutant(AttentionPlan):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            if len(self.depths) == len(BRANCHING):
                mutate(self)

    monkeypatch.setattr(target_model, "AttentionPlan", Mutant)
    with pytest.raises(AssertionError):
        check("qwen3", 3 * WINDOW, BRANCHING)


@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize("family", ["mistral-sliding", "gemma3", "phi3-sliding", "qwen2-sliding"])
def test_the_check_catches_a_window_one_off(monkeypatch: pytest.MonkeyPatch, family: str, off: int) -> None:
    right = AttentionPlan.mask
    monkeypatch.setattr(AttentionPlan, "mask", lambda self, window, *rest: right(self, window and window + off, *rest))
    with pytest.raises(AssertionError):
        check(family, 3 * WINDOW, BRANCHING)


def test_the_check_catches_a_commit_of_the_wrong_node() -> None:
    target = _TARGETS["qwen3"]
    prefix, cache = prompt(5), target.new_cache()
    target.prefill(prefix, cache)
    target.verify(BRANCHING, cache)
    cache.commit(BRANCHING.path(1))
    wrong = torch.cat([prefix, torch.tensor(BRANCHING.path_tokens(2))])
    with pytest.raises(AssertionError):
        assert_equals_paths(target, wrong, BRANCHING, cache)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_reduced_precision_stays_near_float32(family: str, dtype: torch.dtype) -> None:
    # the reference in the same dtype is off from float32 by as much: both are compared with exact arithmetic
    exact = tiny_model(family)
    reduced = tiny_model(family, dtype=dtype)
    exact.load_state_dict({name: tensor.float() for name, tensor in reduced.state_dict().items()})
    target = Target.from_model(reduced)
    prefix, cache = prompt(3 * WINDOW), target.new_cache()
    target.prefill(prefix, cache)
    ours = target.verify(BRANCHING, cache).logits.float()
    for node in range(len(BRANCHING)):
        token_ids = [*prefix.tolist(), *BRANCHING.path_tokens(node)]
        want, theirs = plain(exact, token_ids)[0], plain(reduced, token_ids)[0].float()
        assert (ours[node] - want).abs().max() <= 3 * (theirs - want).abs().max() + 0.02 * want.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_decoding_gives_the_tokens_of_generate(family: str) -> None:
    model = tiny_model(family)
    target, prefix = Target.from_model(model), prompt(9)
    cache = target.new_cache(8)
    output, ours = target.prefill(prefix, cache), []
    for _ in range(64):
        ours.append(int(output.logits[-1].argmax()))
        output = target.verify(DraftTree.root_only(ours[-1]), cache)
        cache.commit((0,))
    theirs = model.generate(
        prefix[None], attention_mask=torch.ones(1, 9), do_sample=False, max_new_tokens=64, eos_token_id=None
    )
    assert ours == theirs[0, 9:].tolist()


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral-sliding"])
@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_prefill_in_chunks_and_turns_equals_one_forward(
    monkeypatch: pytest.MonkeyPatch, family: str, chunk: int
) -> None:
    monkeypatch.setattr(target_model, "PREFILL_CHUNK", chunk)
    target, prefix = Target.from_model(tiny_model(family)), prompt(50)
    with torch.no_grad():
        want = target.model(prefix[None], output_hidden_states=True)
    features = torch.cat([want.hidden_states[tap + 1] for tap in TAPS], dim=-1)
    cache = target.new_cache(8)
    for turn in (slice(0, 20), slice(20, 21), slice(21, 50)):
        output = target.prefill(prefix[turn], cache, TAPS)
        torch.testing.assert_close(output.logits, want.logits[:, turn.stop - 1], atol=ATOL, rtol=ATOL)
        torch.testing.assert_close(output.features, features[:, turn], atol=ATOL, rtol=ATOL)
    assert cache.length == 50
    assert cache.pending == 0


def test_taps_come_in_the_order_asked_for_and_leave_no_hooks() -> None:
    target, prefix = _TARGETS["qwen3"], prompt(6)
    first = target.prefill(prefix, target.new_cache(), (3, 0)).features
    second = target.prefill(prefix, target.new_cache(), (0, 3)).features
    assert first is not None
    assert second is not None
    assert torch.equal(first, torch.cat(second.split(target.hidden_size, dim=-1)[::-1], dim=-1))
    assert not torch.equal(first, second)
    assert not any(module._forward_hooks for module in target._runner.modules())


def test_without_taps_there_are_no_features() -> None:
    target = _TARGETS["qwen3"]
    cache = target.new_cache()
    assert target.prefill(prompt(6), cache).features is None
    assert target.verify(BRANCHING, cache).features is None


def test_features_can_be_saved_for_a_backward_pass() -> None:
    target = _TARGETS["qwen3"]
    cache = target.new_cache()
    weight = torch.ones(1, requires_grad=True)
    for output in (target.prefill(prompt(6), cache, (1,)), target.verify(BRANCHING, cache, (1,))):
        assert output.features is not None
        (output.features * weight).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("taps", [(LAYERS,), (-1,), (0, 99)])
def test_taps_out_of_range_are_refused_by_value(taps: tuple[int, ...]) -> None:
    target = _TARGETS["qwen3"]
    with pytest.raises(ConfigError, match=rf"\[{taps[-1]}\].*0 to {LAYERS - 1}"):
        target.prefill(prompt(3), target.new_cache(), taps)
    with pytest.raises(ConfigError, match=rf"\[{taps[-1]}\]"):
        target.verify(BRANCHING, target.new_cache(), taps)


def test_the_context_limit_holds_for_prompts_and_trees() -> None:
    target = _TARGETS["qwen3"]
    assert target.context_limit == 256
    with pytest.raises(ConfigError, match=r"257 tokens do not fit.*256"):
        target.prefill(prompt(257), target.new_cache())
    cache = target.new_cache()
    target.prefill(prompt(251), cache)
    assert BRANCHING.depths.max() == 5
    with pytest.raises(ConfigError, match="257 tokens"):
        target.verify(BRANCHING, cache)
    assert len(target.verify(DraftTree.from_chain([5, 6, 7, 8, 9]), cache).logits) == 5


def test_an_empty_prompt_is_refused() -> None:
    target = _TARGETS["qwen3"]
    with pytest.raises(ConfigError, match="at least one"):
        target.prefill(torch.empty(0, dtype=torch.int64), target.new_cache())
