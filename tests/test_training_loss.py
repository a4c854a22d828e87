"""Many blocks in one pass give the loss that the definition gives one block at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_factory as factory
import drafter_definition as definition
import pytest
import torch
from checkpoint_factory import BLOCK, VOCABULARY
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from training_factory import (
    batch_of,
    drafter_files,
    loss_of,
    objective_of,
    random_chat,
    random_features,
    whole_vocabulary,
)

from specforge.training import blocks, losses
from specforge.training.chats import Chat
from specforge.training.chunked import sum_in_chunks
from specforge.training.features import Features
from specforge.training.losses import base_weight, cross_entropy, leading_correct, mix_targets, position_weights
from specforge.training.vocabulary import SoftmaxVocabulary, most_frequent

SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "use_sliding_window": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dflash": ("zlab", {}),
    "domino": ("domino", {}),
    "domino, sliding": ("domino", SLIDING),
    "dflash, sliding both ways": ("zlab", {**SLIDING, "is_causal": False}),
    "dflash, causal": ("zlab", {"is_causal": True}),
    "dspark": ("dspark", {}),
    "dspark, gated": ("dspark_gated", {}),
    "dspark, rnn": ("dspark_rnn", {}),
}
DECAY, SHARE, MIXED = 2.0, 0.4, 0.3
CHATS = [random_chat(0, prompt=2, answer=8), random_chat(1, prompt=5, answer=11)]
FEATURES = [random_features(chat, 10 + i) for i, chat in enumerate(CHATS)]
# up to the last root there is, whose block has one known label
ANCHORS = [[3, 8], [5, 6, 9, 14]]


def plain_loss(config: Any, tensors: Any, target: Any, chat: Chat, features: Features, anchor: int) -> Tensor:
    """Return the loss of one block and the sum of its weights, from the definitions."""
    embedding, lm_head = target.embedding.weight.detach(), target.lm_head.weight.detach()
    ids = chat.token_ids.tolist()
    hidden, base = definition.draft(
        config, tensors, embedding, lm_head, features.hidden[:anchor], ids[anchor], config["block_size"]
    )
    total = torch.zeros(2, dtype=torch.float64)
    for d in range(min(len(hidden), len(ids) - 1 - anchor)):
        final = base[d]
        if has_head(tensors) and d >= definition.own(config, "pure_draft_prefix_len", 0):
            final = final + definition.corrections(tensors, embedding, hidden, ids[anchor : anchor + d + 1])[-1]
        wanted = wanted_distribution(features, anchor + d - chat.answer_start, ids[anchor + d + 1])
        crossed = [-(wanted * torch.log_softmax(row, dim=-1)).sum() for row in (final, base[d])]
        weight = torch.exp(torch.tensor(-d / DECAY, dtype=torch.float64))
        total += weight * torch.stack([(1 - MIXED) * crossed[0] + MIXED * crossed[1], torch.ones(())])
    return total


def has_head(tensors: Any) -> bool:
    return any(name.startswith(("prefix_gru", "markov_head")) for name in tensors)


def wanted_distribution(features: Features, place: int, label: int) -> Tensor:
    best = torch.zeros(VOCABULARY, dtype=torch.float64)
    best[features.top_tokens[place].long()] = features.top_log_probs[place].double().exp()
    chosen = torch.zeros(VOCABULARY, dtype=torch.float64)
    chosen[label] = 1.0
    return (1 - SHARE) * chosen + SHARE * best / best.sum()


def compare(case: str, tmp_path: Path) -> None:
    name, changes = CASES[case]
    config, tensors, folder = drafter_files(name, tmp_path, **changes)
    target = factory.tiny_target()
    objective = objective_of(folder, target, position_decay=DECAY, distillation=SHARE, confidence_weight=0.0)
    batch = batch_of(CHATS, FEATURES, ANCHORS, objective)
    parts = loss_of(objective, batch, whole_vocabulary(), MIXED)
    plain = sum(
        plain_loss(config, tensors, target, chat, features, anchor)
        for chat, features, anchors in zip(CHATS, FEATURES, ANCHORS, strict=True)
        for anchor in anchors
    )
    assert int(parts.blocks) == 6
    assert float(parts.weight) == pytest.approx(float(plain[1]), rel=1e-5)
    assert float(parts.total.detach()) == pytest.approx(float(plain[0]), rel=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_that_of_one_block_at_a_time(case: str, tmp_path: Path) -> None:
    compare(case, tmp_path)


def sees_the_root_feature(anchors: Tensor, *options: Any) -> Tensor:
    mask = whole_mask(anchors, *options)
    size, context = options[0], options[1]
    roots = anchors.repeat_interleave(size, dim=1)[..., None]
    mask[:, 0, :, :context] |= torch.arange(context) == roots
    return mask


def sees_other_blocks(anchors: Tensor, *options: Any) -> Tensor:
    mask = whole_mask(anchors, *options)
    mask[..., options[1] :] = True
    return mask


def misses_the_first_token(anchors: Tensor, *options: Any) -> Tensor:
    mask = whole_mask(anchors, *options)
    mask[..., 0] = False
    return mask


def labels_one_late(*arguments: Any) -> tuple[Tensor, ...]:
    inputs, _, *rest = whole_targets(*arguments)
    return inputs, inputs, *rest


def soft_targets_one_late(*arguments: Any) -> tuple[Tensor, ...]:
    inputs, labels, known, tokens, log_probs = whole_targets(*arguments)
    return inputs, labels, known, tokens.roll(1, dims=1), log_probs.roll(1, dims=1)


def unknown_positions_learnt(*arguments: Any) -> tuple[Tensor, ...]:
    inputs, labels, known, *rest = whole_targets(*arguments)
    return inputs, labels, torch.ones_like(known), *rest


whole_mask, whole_targets = blocks.block_mask, blocks._targets
MUTANTS: dict[Callable[..., Any], str] = {
    sees_the_root_feature: "block_mask",
    sees_other_blocks: "block_mask",
    misses_the_first_token: "block_mask",
    labels_one_late: "_targets",
    soft_targets_one_late: "_targets",
    unknown_positions_learnt: "_targets",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_a_wrong_mask_or_target_is_noticed(mutant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, MUTANTS[mutant], mutant)
    with pytest.raises(AssertionError):
        compare("domino", tmp_path)


def seen_by_words(anchors: Tensor, context: int, window: int | None, causal: bool) -> Tensor:
    """Say of every pair of a row and a key, in plain words, whether it is seen."""
    rows = [(block, offset) for block in range(anchors.shape[1]) for offset in range(BLOCK)]
    mask = torch.zeros(len(anchors), 1, len(rows), context + len(rows), dtype=torch.bool)
    for chat, roots in enumerate(anchors.tolist()):
        for row, (block, offset) in enumerate(rows):
            query = roots[block] + offset
            for key in range(context):
                mask[chat, 0, row, key] = key < roots[block] and (window is None or query - key < window)
            for other, (its_block, its_offset) in enumerate(rows):
                near = window is None or abs(its_offset - offset) < window
                mask[chat, 0, row, context + other] = (
                    its_block == block and near and not (causal and its_offset > offset)
                )
    return mask


@given(
    anchors=st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=2), min_size=1, max_size=2),
    window=st.none() | st.integers(1, 12),
    causal=st.booleans(),
)
@settings(max_examples=25)
def test_masks_are_what_the_words_say(anchors: list[list[int]], window: int | None, causal: bool) -> None:
    roots = torch.tensor(anchors)
    context = int(roots.max())
    made = blocks.block_mask(roots, BLOCK, context, window, causal)
    assert torch.equal(made, seen_by_words(roots, context, window, causal))


@given(count=st.integers(1, 12), answer=st.integers(2, 9), seed=st.integers(0, 99))
def test_anchors_are_different_roots_with_a_token_to_predict(count: int, answer: int, seed: int) -> None:
    chat = random_chat(0, prompt=4, answer=answer)
    anchors = blocks.sample_anchors(chat, count, torch.Generator().manual_seed(seed)).tolist()
    assert len(anchors) == min(count, answer - 1)
    assert anchors == sorted(set(anchors))
    assert anchors[0] >= 4
    assert anchors[-1] <= 4 + answer - 2


def test_anchors_reach_every_root() -> None:
    chat = random_chat(0, prompt=4, answer=5)
    drawn = [blocks.sample_anchors(chat, 1, torch.Generator().manual_seed(seed)) for seed in range(60)]
    assert set(torch.cat(drawn).tolist()) == {4, 5, 6, 7}


def test_chunks_give_the_gradients_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, wide = torch.randn(7, 3, generator=generator), torch.randn(5, 3, generator=generator)
    weights = torch.rand(7, generator=generator)

    def loss(chosen: slice, own: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        each = torch.logsumexp(own @ shared.T, dim=-1) * weights[chosen]
        return each.sum(), torch.stack([each.sum(), each.new_tensor(float(len(each)))])

    found = []
    for size in (2, 100):
        inputs = [rows.clone().requires_grad_(), wide.clone().requires_grad_()]
        total, others = sum_in_chunks(loss, size, inputs[:1], inputs[1:])
        (3.0 * total).backward()
        assert others.tolist() == pytest.approx([float(total.detach()), 7.0])
        found.append([total.detach(), *(tensor.grad for tensor in inputs)])
    inputs = [rows.clone().requires_grad_(), wide.clone().requires_grad_()]
    direct, _ = loss(slice(None), *inputs)
    (3.0 * direct).backward()
    for result in found:
        for ours, theirs in zip(result, [direct.detach(), *(tensor.grad for tensor in inputs)], strict=True):
            torch.testing.assert_close(ours, theirs)


def test_every_weight_of_a_drafter_gets_a_gradient(tmp_path: Path) -> None:
    for name in ("zlab", "domino", "dspark_gated", "dspark_rnn", "dspark"):
        _, _, folder = drafter_files(name, tmp_path)
        objective = objective_of(folder, factory.tiny_target())
        loss_of(objective, batch_of(CHATS, FEATURES, ANCHORS, objective), whole_vocabulary(), MIXED).total.backward()
        gradients = {n: p.grad for n, p in objective.model.named_parameters()}
        assert [n for n, g in gradients.items() if g is None or not g.abs().sum() > 0] == []


def test_the_confidence_head_does_not_pull_at_the_rest(tmp_path: Path) -> None:
    _, _, folder = drafter_files("dspark", tmp_path)
    found = []
    for weight in (0.0, 5.0):
        objective = objective_of(folder, factory.tiny_target(), confidence_weight=weight)
        loss_of(objective, batch_of(CHATS, FEATURES, ANCHORS, objective), whole_vocabulary(), MIXED).total.backward()
        found.append({n: p.grad for n, p in objective.model.named_parameters()})
    changed = [name for name in found[0] if not torch.equal(found[0][name], found[1][name])]
    assert changed == ["confidence_head.proj.weight", "confidence_head.proj.bias"]


def test_the_softmax_vocabulary_holds_what_is_asked_for_once() -> None:
    vocabulary = SoftmaxVocabulary(torch.tensor([1, 4, 7]), 20, 5)
    columns = vocabulary.columns(torch.tensor([[4, 9], [9, 0]]), torch.Generator().manual_seed(1))
    ids = columns.token_ids.tolist()
    assert len(ids) == len(set(ids)) == 10
    assert {1, 4, 7, 9, 0} == {token for token in range(20) if columns.column_of[token] >= 0}
    for token in (1, 4, 7, 9, 0):
        assert ids[int(columns.column_of[token])] == token
    assert columns.offsets[:5].tolist() == [0.0] * 5
    assert columns.offsets[5:].tolist() == pytest.approx([float(torch.tensor(15 / 5).log())] * 5)


def mean_sum_of_exponentials(offsets_used: bool) -> tuple[float, float]:
    logits = torch.randn(40, generator=torch.Generator().manual_seed(3))
    vocabulary = SoftmaxVocabulary(torch.arange(6), 40, 8)
    sums = []
    for seed in range(400):
        columns = vocabulary.columns(torch.tensor([11]), torch.Generator().manual_seed(seed))
        offsets = columns.offsets if offsets_used else 0.0
        sums.append(float((logits[columns.token_ids] + offsets).exp().sum()))
    return sum(sums) / len(sums), float(logits.exp().sum())


def test_sampled_columns_stand_for_the_rest_of_the_vocabulary() -> None:
    estimate, whole = mean_sum_of_exponentials(offsets_used=True)
    assert estimate == pytest.approx(whole, rel=0.03)
    assert mean_sum_of_exponentials(offsets_used=False)[0] < 0.8 * whole


def test_most_frequent_counts_answers_and_breaks_ties_by_id() -> None:
    chats = [Chat(torch.tensor([9, 9, 9, 5, 5, 2, 3]), 3, True), Chat(torch.tensor([9, 7, 2]), 1, True)]
    assert most_frequent(chats, 3, 12).tolist() == [2, 3, 5]
    assert most_frequent(chats, 4, 12).tolist() == [2, 3, 5, 7]
    assert most_frequent(chats, None, 4).tolist() == [0, 1, 2, 3]


def test_soft_targets_outside_the_softmax_leave_their_weight_to_the_others() -> None:
    columns = SoftmaxVocabulary(torch.tensor([1, 4]), 9, 0).columns(torch.tensor([4]), torch.Generator())
    top = torch.tensor([[1, 8, 4], [8, 7, 6]])
    log_probs = torch.tensor([[0.2, 0.5, 0.1], [0.5, 0.3, 0.1]]).log()
    mixed = mix_targets(torch.tensor([4, 4]), top, log_probs, columns, 0.6)
    assert mixed.weights.sum(dim=-1).tolist() == pytest.approx([1.0, 1.0])
    assert mixed.weights[0].tolist() == pytest.approx([0.4, 0.4, 0.0, 0.2])
    assert mixed.weights[1].tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0])


def test_cross_entropy_is_torchs_on_dense_targets() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, weights = torch.randn(5, 9, generator=generator), torch.rand(5, 3, generator=generator)
    targets = losses.SparseTargets(torch.tensor([[0, 3, 8]] * 5), weights / weights.sum(dim=-1, keepdim=True))
    dense = torch.zeros(5, 9).scatter(1, targets.columns, targets.weights)
    wanted = torch.nn.functional.cross_entropy(logits, dense, reduction="none")
    torch.testing.assert_close(cross_entropy(logits, targets), wanted)


def test_schedules_of_the_loss() -> None:
    assert base_weight(0.0, 0.3, 0.5) == 1.0
    assert base_weight(0.25, 0.3, 0.5) == pytest.approx(0.65)
    assert [base_weight(share, 0.3, 0.5) for share in (0.5, 1.0)] == pytest.approx([0.3, 0.3])
    weights = position_weights(4, 2.0, torch.device("cpu"))
    assert weights.tolist() == pytest.approx([1.0, 0.60653, 0.36788, 0.22313], rel=1e-4)
    flags = torch.tensor([[True, True, False, True], [False, True, True, True], [True] * 4])
    assert leading_correct(flags).tolist() == [2, 0, 4]
