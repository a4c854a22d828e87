"""The correction heads against torch.nn.GRU and against whole-sequence formulas, path by path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import drafter_definition
import pytest
import torch
from checkpoint_factory import (
    BLOCK,
    DRAFT_VOCABULARY,
    FORMATS,
    HIDDEN,
    STATE,
    TAPS,
    VOCABULARY,
    deepspec,
    domino,
    dspark,
    speculators,
    tiny_target,
    vocabulary_maps,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specforge import interfaces
from specforge.correction import domino as domino_head
from specforge.correction import markov as markov_head
from specforge.drafters.block import BlockDrafter
from specforge.drafters.domino import DominoDrafter
from specforge.drafters.dspark import DSparkDrafter
from specforge.errors import CheckpointError, ConfigError
from specforge.interfaces import BASE_LOGITS, CORRECTION_HEAD, CorrectionHead, Draft, Round
from specforge.sampling import KeyedUniforms, SamplingParams

TARGET = tiny_target()
DEPTH = BLOCK
VARIANTS = ("domino", "vanilla", "gated", "rnn")


def parts(variant: str) -> tuple[Any, dict[str, Tensor], type[BlockDrafter]]:
    if variant == "domino":
        return *domino(), DominoDrafter
    return *dspark(variant), DSparkDrafter


def make_head(folder: Path, variant: str) -> tuple[CorrectionHead, dict[str, Tensor]]:
    config, tensors, kind = parts(variant)
    drafter = kind(write(folder, config, tensors))
    drafter.bind(TARGET)
    assert drafter.bound.correction is not None
    return drafter.bound.correction, tensors


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[CorrectionHead, dict[str, Tensor]]]:
    folder = tmp_path_factory.mktemp("heads")
    return {variant: make_head(folder / variant, variant) for variant in VARIANTS}


def block_hidden(seed: int = 0) -> Tensor:
    return torch.randn(DEPTH, HIDDEN, generator=torch.Generator().manual_seed(seed))


def corrections(w: dict[str, Tensor], hidden: Tensor, tokens: list[int]) -> Tensor:
    return drafter_definition.corrections(w, TARGET.embedding.weight, hidden, tokens)


def grow(head: CorrectionHead, draft: Draft, root: int, levels: list[list[tuple[int, int]]]) -> list[Any]:
    """Return the states of every level; a level is (parent's row in the level before, token) of each of its nodes."""
    states = [head.begin(draft, torch.tensor([root]))]
    for depth, level in enumerate(levels):
        rows, tokens = (torch.tensor(column) for column in zip(*level, strict=True))
        states.append(head.advance(draft, depth, states[-1], rows, tokens))
    return states


def paths_of(root: int, levels: list[list[tuple[int, int]]]) -> list[list[list[int]]]:
    paths = [[[root]]]
    for level in levels:
        paths.append([[*paths[-1][row], token] for row, token in level])
    return paths


def check_tree(
    head: CorrectionHead, w: dict[str, Tensor], root: int, levels: list[list[tuple[int, int]]], seed: int
) -> None:
    """Compare every node's correction, batched by level, with the formula run over its whole path."""
    hidden = block_hidden(seed)
    draft = Draft(DEPTH, hidden)
    chosen = torch.tensor([7, 0, 31, 12])
    for depth, (state, paths) in enumerate(zip(grow(head, draft, root, levels), paths_of(root, levels), strict=True)):
        if depth == DEPTH:
            break
        exact = torch.stack([corrections(w, hidden, path)[-1] for path in paths])
        full = head.correct(draft, depth, state, None)
        assert full.shape == (len(paths), VOCABULARY)
        assert full.dtype == torch.float32
        torch.testing.assert_close(full.double(), exact, atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(head.correct(draft, depth, state, chosen), full[:, chosen], atol=1e-5, rtol=1e-5)
        last = torch.tensor([len(paths) - 1])
        alone = head.correct(draft, depth, state.select(last), None)
        torch.testing.assert_close(alone, full[last], atol=1e-5, rtol=1e-5)


@st.composite
def trees(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    levels, width = [], 1
    for _ in range(draw(st.integers(0, DEPTH))):
        nodes = st.tuples(st.integers(0, width - 1), st.integers(0, VOCABULARY - 1))
        levels.append(draw(st.lists(nodes, min_size=1, max_size=4)))
        width = len(levels[-1])
    return levels


TOKENS = st.integers(0, VOCABULARY - 1)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(VARIANTS), TOKENS, trees(), st.integers(0, 5))
def test_every_path_gets_its_own_correction(
    heads: Any, variant: str, root: int, levels: list[list[tuple[int, int]]], seed: int
) -> None:
    check_tree(*heads[variant], root, levels, seed)


LEVELS = [[(0, 4), (0, 9)], [(1, 4), (0, 20), (1, 33)], [(2, 1), (0, 1)], [(1, 8)]]


def gates_swapped(patch: pytest.MonkeyPatch) -> None:
    step = domino_head.DominoCorrection._step

    def swapped(self: Any, *step_from: Tensor) -> Tensor:
        rows = torch.cat([torch.arange(STATE, 2 * STATE), torch.arange(STATE), torch.arange(2 * STATE, 3 * STATE)])
        other = attrs.evolve(self, input_weight=self.input_weight[rows], state_weight=self.state_weight[rows])
        return step(other, *step_from)

    patch.setattr(domino_head.DominoCorrection, "_step", swapped)


def previous_position(patch: pytest.MonkeyPatch) -> None:
    for module in (domino_head.DominoCorrection, markov_head.MarkovCorrection):
        correct = module.correct
        patch.setattr(module, "correct", lambda s, d, depth, *r, c=correct: c(s, d, max(depth - 1, 0), *r))


def parents_ignored(patch: pytest.MonkeyPatch) -> None:
    for module in (domino_head.DominoCorrection, markov_head.MarkovCorrection):
        advance = module.advance
        patch.setattr(
            module, "advance", lambda s, d, n, t, rows, k, a=advance: a(s, d, n, t, torch.zeros_like(rows), k)
        )


def memory_lost(patch: pytest.MonkeyPatch) -> None:
    step = domino_head.DominoCorrection._step
    patch.setattr(domino_head.DominoCorrection, "_step", lambda s, state, *r: step(s, torch.zeros_like(state), *r))
    keep = markov_head.RecurrentMarkovCorrection._next_recurrent
    patch.setattr(markov_head.RecurrentMarkovCorrection, "_next_recurrent", lambda *args: torch.zeros_like(keep(*args)))


@pytest.mark.parametrize(
    ("mutant", "variants"),
    [
        (gates_swapped, ["domino"]),
        (previous_position, ["domino", "gated", "rnn"]),
        (parents_ignored, ["domino", "rnn"]),
        (memory_lost, ["domino", "rnn"]),
    ],
)
def test_the_formulas_catch(mutant: Any, variants: list[str], heads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for variant in variants:
        check_tree(*heads[variant], 3, LEVELS, 0)
    mutant(monkeypatch)
    for variant in variants:
        with pytest.raises(AssertionError):
            check_tree(*heads[variant], 3, LEVELS, 0)


def session_draft(drafter: BlockDrafter, root: int = 2) -> Draft:
    features = torch.randn(1, 6, len(TAPS) * HIDDEN, generator=torch.Generator().manual_seed(4))
    session = drafter.start(torch.zeros(6, dtype=torch.int64), features)
    history = torch.tensor([0] * 6 + [root])
    return session.draft(Round(history, 100, SamplingParams(), KeyedUniforms()))


@pytest.mark.parametrize("name", ["domino", "domino_old", "dspark", "dspark_gated", "dspark_rnn", "deepspec"])
def test_what_a_drafter_gives(tmp_path: Path, name: str) -> None:
    config, tensors = FORMATS[name]()
    drafter = (DominoDrafter if name.startswith("domino") else DSparkDrafter)(write(tmp_path, config, tensors))
    drafter.bind(TARGET)
    assert drafter.given() == {interfaces.HIDDEN, BASE_LOGITS, CORRECTION_HEAD}
    assert drafter.default_scorer == "conditional"
    draft = session_draft(drafter)
    assert draft.depth == (BLOCK - 1 if name == "domino_old" else BLOCK)
    assert draft.confidence is None
    assert draft.correction.first_corrected == (1 if name == "domino" else 0)


def test_rank_0_gives_no_head(tmp_path: Path) -> None:
    config, tensors = dspark(confidence=None, markov_rank=0)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("markov_head")}
    drafter = DSparkDrafter(write(tmp_path, config, tensors))
    drafter.bind(TARGET)
    assert drafter.given() == {interfaces.HIDDEN, BASE_LOGITS}
    draft = session_draft(drafter)
    assert draft.correction is None
    assert draft.depth == BLOCK


def greedy_previous(tensors: dict[str, Tensor], draft: Draft, root: int) -> list[int]:
    tokens = [root]
    for depth in range(draft.depth):
        correction = corrections(tensors, draft.hidden, tokens)[-1]
        tokens.append(int((draft.base_logits[depth].double() + correction).argmax()))
    return tokens[: draft.depth]


@pytest.mark.parametrize(("variant", "reads"), [("vanilla", "markov"), ("rnn", "markov"), ("gated", "hidden")])
def test_confidence_follows_the_greedy_chain(tmp_path: Path, variant: str, reads: str) -> None:
    config, tensors = dspark(variant, reads)
    folder = write(tmp_path, config, tensors)
    drafter = DSparkDrafter(folder, confidence_threshold=0.0)
    assert drafter.given() - DSparkDrafter(folder).given() == {interfaces.CONFIDENCE}
    drafter.bind(TARGET)
    draft = session_draft(drafter)
    inputs = draft.hidden
    if reads == "markov":
        previous = greedy_previous(tensors, draft, 2)
        inputs = torch.cat([inputs, tensors["markov_head.markov_w1.weight"][previous]], -1)
    weight, bias = tensors["confidence_head.proj.weight"], tensors["confidence_head.proj.bias"]
    exact = torch.sigmoid(inputs.double() @ weight.double().T + bias)[:, 0]
    assert draft.confidence.dtype == torch.float32
    torch.testing.assert_close(draft.confidence.double(), exact.double(), atol=1e-5, rtol=1e-5)
    assert len(draft.confidence) == draft.depth == BLOCK

    for threshold in [*draft.confidence.tolist(), 1.0]:
        drafter = DSparkDrafter(folder, confidence_threshold=threshold + 1e-6 if threshold < 1 else 1.0)
        drafter.bind(TARGET)
        cut = session_draft(drafter)
        below = [i for i, c in enumerate(draft.confidence.tolist()) if c < drafter.confidence_threshold]
        assert cut.depth == below[0] == len(cut.hidden) == len(cut.base_logits) == len(cut.confidence)
        assert torch.equal(cut.base_logits, draft.base_logits[: cut.depth])


def test_confidence_refusals(tmp_path: Path) -> None:
    with_head = write(tmp_path / "with", *dspark())
    for value in (-0.1, 1.5):
        with pytest.raises(ConfigError, match=rf"confidence_threshold is {value}; it must be in \[0, 1\]"):
            DSparkDrafter(with_head, confidence_threshold=value)
    without = write(tmp_path / "without", *dspark(confidence=None))
    with pytest.raises(ConfigError, match="has no confidence head"):
        DSparkDrafter(without, confidence_threshold=0.5)
    with pytest.raises(CheckpointError, match="is a dspark drafter; drafter 'domino' needs a domino one"):
        DominoDrafter(with_head)
    with pytest.raises(CheckpointError, match="is a dflash drafter"):
        DSparkDrafter(write(tmp_path / "rank0", *deepspec(rank=0)))


def test_a_reduced_vocabulary_corrects_what_it_can_draft(tmp_path: Path) -> None:
    ids, _ = vocabulary_maps()
    config, tensors = speculators("dspark", reduced=True)
    drafter = DSparkDrafter(write(tmp_path, config, tensors))
    drafter.bind(TARGET)
    draft, head = session_draft(drafter), drafter.bound.correction
    state = head.begin(draft, torch.tensor([2]))
    full = head.correct(draft, 0, state, None)[0]
    codes, rows = tensors["markov_head.markov_w1.weight"], tensors["markov_head.markov_w2.weight"]
    assert rows.shape[0] == DRAFT_VOCABULARY
    torch.testing.assert_close(full[ids], rows @ codes[2], atol=1e-5, rtol=1e-5)
    others = torch.ones(VOCABULARY, dtype=torch.bool)
    others[ids] = False
    assert (full[others] == 0).all()
    assert torch.isneginf(draft.base_logits[:, others]).all()


@pytest.mark.parametrize("variant", ["domino", "gated", "rnn"])
def test_a_draft_without_hidden_states_is_refused(heads: Any, variant: str) -> None:
    with pytest.raises(ValueError, match="no hidden states"):
        heads[variant][0].begin(Draft(3), torch.tensor([1]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_bfloat16_stays_near(tmp_path: Path, heads: Any, variant: str) -> None:
    config, tensors, kind = parts(variant)
    drafter = kind(write(tmp_path, config, tensors))
    embedding = tiny_target().embedding.to(torch.bfloat16)
    drafter.bind(tiny_target(dtype=torch.bfloat16, embedding=embedding))
    head, hidden = drafter.bound.correction, block_hidden()
    low = Draft(DEPTH, hidden.bfloat16())
    state = head.advance(low, 0, head.begin(low, torch.tensor([3])), torch.tensor([0]), torch.tensor([4]))
    correction = head.correct(low, 1, state, None)
    assert correction.dtype == torch.float32
    exact = corrections(tensors, hidden, [3, 4])[-1]
    assert (correction[0].double() - exact).abs().mean() < 0.05 * exact.abs().mean()


def test_the_loaded_gru_runs_whole_sequences(tmp_path: Path) -> None:
    """A trainer runs the GRU module over a block at once; it must hold the weights that the head steps with."""
    config, tensors = domino()
    drafter = DominoDrafter(write(tmp_path, config, tensors))
    drafter.bind(TARGET)
    ids = torch.tensor([3, 8, 1, 40])
    states = drafter.bound.model.prefix_gru(TARGET.embedding(ids)[None])[0][0]
    double = {name: tensor.double() for name, tensor in tensors.items()}
    exact = drafter_definition.gru_states(double, TARGET.embedding.weight, ids)
    torch.testing.assert_close(states.double(), exact, atol=1e-5, rtol=1e-5)
