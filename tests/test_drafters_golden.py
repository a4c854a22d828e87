"""The published algorithms, end to end on a trained target: goldens of an independent run, and drafters made from them.

Options that the golden checkpoints do not use are tested on checkpoints constructed so that their drafts are really
accepted: backbones of the goldens with heads fitted to the target's own text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import drafter_definition
import pytest
import torch
from checkpoint_factory import write
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from specforge.drafters.block import BlockDrafter
from specforge.drafters.dflash import DFlashDrafter
from specforge.drafters.domino import DominoDrafter
from specforge.drafters.dspark import DSparkDrafter
from specforge.interfaces import Draft, Round
from specforge.sampling import KeyedUniforms, SamplingParams

DATA = Path(__file__).parent / "data" / "qwen3-tiny-a"
GOLDEN = json.loads((DATA / "golden.json").read_text())
PROMPTS = range(6)
DRAFTERS = {"dflash": DFlashDrafter, "domino": DominoDrafter, "dspark": DSparkDrafter}

Json = dict[str, Any]
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def target() -> SimpleNamespace:
    model = AutoModelForCausalLM.from_pretrained(DATA / "target", dtype=torch.float32).eval()
    config = model.config
    return SimpleNamespace(
        name="qwen3-tiny-a",
        model=model,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        embedding=model.get_input_embeddings(),
        lm_head=model.get_output_embeddings(),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


def golden_parts(name: str) -> tuple[Json, Tensors]:
    return json.loads((DATA / name / "config.json").read_text()), load_file(DATA / name / "model.safetensors")


def bound(kind: str, folder: str | Path, target: Any, **options: Any) -> BlockDrafter:
    drafter = DRAFTERS[kind](str(folder), **options)
    drafter.bind(target)
    return drafter


def round_of(history: list[int]) -> Round:
    return Round(torch.tensor(history), 10**6, SamplingParams(), KeyedUniforms())


@torch.inference_mode()
def look(target: Any, drafter: BlockDrafter, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Return the target's logits ``[L, V]`` and features ``[1, L, taps * H]`` of a whole sequence."""
    out = target.model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    return out.logits[0], torch.cat([out.hidden_states[tap + 1] for tap in drafter.taps], dim=-1)


def greedy_chain(draft: Draft, root: int) -> list[int]:
    """Walk the draft by argmax of base plus correction over the whole vocabulary."""
    head, tokens = draft.correction, []
    token, row = torch.tensor([root]), torch.zeros(1, dtype=torch.int64)
    state = head.begin(draft, token) if head is not None else None
    for depth in range(draft.depth):
        logits = draft.base_logits[depth]
        if head is not None and depth >= head.first_corrected:
            logits = logits + head.correct(draft, depth, state, None)[0]
        token = logits.argmax()[None]
        tokens.append(int(token))
        if head is not None:
            state = head.advance(draft, depth, state, row, token)
    return tokens


@torch.inference_mode()
def decode(
    target: Any, drafter: BlockDrafter, index: int, new_tokens: int, watch: Callable[..., None] | None = None
) -> tuple[list[int], list[int], list[list[int]]]:
    """Decode speculatively with the whole sequence through the target every round."""
    prompt = GOLDEN["prompts"][index]
    logits, features = look(target, drafter, prompt)
    session = drafter.start(torch.tensor(prompt), features)
    history, accepts, drafts = [*prompt, int(logits[-1].argmax())], [], []
    while len(history) - len(prompt) < new_tokens:
        root = len(history) - 1
        guess = greedy_chain(session.draft(round_of(history)), history[-1])
        if watch is not None:
            watch(history, guess)
        logits, features = look(target, drafter, [*history, *guess])
        choices = logits[root:].argmax(-1).tolist()
        right = next((i for i, token in enumerate(guess) if token != choices[i]), len(guess))
        session.commit(torch.tensor(history[root:] + guess[:right]), features[:, root : root + right + 1])
        history += [*guess[:right], choices[right]]
        accepts.append(right + 1)
        drafts.append(guess)
    return history[len(prompt) :], accepts, drafts


def check_golden(target: Any, drafter: BlockDrafter, key: str, index: int) -> list[list[int]]:
    golden = GOLDEN[key][index]
    tokens, accepts, drafts = decode(target, drafter, index, 112)
    assert tokens[:96] == GOLDEN["ar"][index][:96] == golden["out"][:96]
    assert len(tokens) >= 96
    assert accepts[: len(golden["accept"])] == golden["accept"]
    return drafts


@pytest.mark.parametrize("index", PROMPTS)
def test_golden_dflash_chain(target: Any, index: int) -> None:
    check_golden(target, bound("dflash", DATA / "dflash", target), "dflash_chain", index)


@pytest.mark.parametrize("index", PROMPTS)
def test_golden_domino_chain(target: Any, index: int) -> None:
    drafts = check_golden(target, bound("domino", DATA / "domino", target), "domino_chain", index)
    golden = GOLDEN["domino_chain"][index]["drafts"]
    assert len(golden) == 8
    assert drafts[:8] == golden


def reorder_taps(config: Json, tensors: Tensors) -> None:
    first, second = tensors["fc.weight"].chunk(2, dim=1)
    tensors["fc.weight"] = torch.cat([second, torch.zeros_like(first), first], dim=1)
    config["dflash_config"]["target_layer_ids"] = [2, 3, 1]


def slide_wide(config: Json, tensors: Tensors) -> None:
    config.update(layer_types=["sliding_attention"] * 2, sliding_window=512, use_sliding_window=True, is_causal=False)


@pytest.mark.parametrize("change", [reorder_taps, slide_wide])
@pytest.mark.parametrize("kind", ["dflash", "domino"])
def test_other_spellings_of_the_golden_drafters(tmp_path: Path, target: Any, kind: str, change: Any) -> None:
    config, tensors = golden_parts(kind)
    change(config, tensors)
    check_golden(target, bound(kind, write(tmp_path, config, tensors), target), f"{kind}_chain", 1)


def test_a_head_of_zeros_is_dflash(tmp_path: Path, target: Any) -> None:
    config, tensors = golden_parts("dflash")
    config["dflash_config"]["projector_type"] = "domino"
    sizes = {"prefix_gru.weight_ih_l0": (12, 96), "prefix_gru.weight_hh_l0": (12, 4)}
    sizes |= {"embed_proj.0.weight": (6, 100), "embed_proj.2.weight": (160, 6)}
    tensors |= {name: torch.zeros(size) for name, size in sizes.items()}
    check_golden(target, bound("domino", write(tmp_path, config, tensors), target), "dflash_chain", 0)


def anchors(target: Any, drafter: BlockDrafter) -> list[tuple[Tensor, Tensor, list[int]]]:
    """Return hidden states, base logits and true tokens (root first) of blocks all over the target's own text."""
    found = []
    for prompt, continuation in zip(GOLDEN["prompts"], GOLDEN["ar"], strict=True):
        text = prompt + continuation
        _, features = look(target, drafter, text)
        for root in range(len(prompt), len(text) - 9, 3):
            session = drafter.start(torch.tensor(text[:root]), features[:, :root])
            draft = session.draft(round_of(text[: root + 1]))
            found.append((draft.hidden, draft.base_logits, text[root : root + draft.depth + 1]))
    return found


def fitted_domino(target: Any, prefix: int) -> tuple[Json, Tensors]:
    """Fit a Domino head to the golden DFlash backbone: random inside, its last projection solved for.

    It asks for a bonus where the base logits' favourite is wrong, so that more is accepted than without it.
    """
    config, tensors = golden_parts("dflash")
    config["dflash_config"] |= {"projector_type": "domino", "pure_draft_prefix_len": prefix, "shift_label": False}
    generator = torch.Generator().manual_seed(1)
    sizes = {
        "prefix_gru.weight_ih_l0": (144, 96),
        "prefix_gru.weight_hh_l0": (144, 48),
        "embed_proj.0.weight": (400, 144),
    }
    tensors |= {n: torch.randn(s, generator=generator) / s[1] ** 0.5 * 2 for n, s in sizes.items()}
    double = {name: tensor.double() for name, tensor in tensors.items()}
    inputs, wanted = [], []
    for hidden, logits, tokens in anchors(target, bound("dflash", DATA / "dflash", target)):
        states = drafter_definition.gru_states(double, target.embedding.weight, torch.tensor(tokens[:-1]))
        inputs.append(F.silu(torch.cat([hidden.double(), states], -1) @ double["embed_proj.0.weight"].T))
        truth, favourite = F.one_hot(torch.tensor(tokens[1:]), 160), F.one_hot(logits.argmax(-1), 160)
        wanted.append(12.0 * (truth - favourite))
    x, y = torch.cat(inputs), torch.cat(wanted).double()
    solved = torch.linalg.solve(x.T @ x + 0.1 * torch.eye(400, dtype=torch.float64), x.T @ y)
    return config, {**tensors, "embed_proj.2.weight": solved.T.float().contiguous()}


def check_against_definition(
    target: Any, drafter: BlockDrafter, config: Json, tensors: Tensors, index: int, size: int = 8
) -> tuple[list[int], list[list[int]]]:
    """Decode 48 tokens: the text must be the target's own, and every draft what the definition drafts."""
    weights = target.embedding.weight, target.lm_head.weight

    def watch(history: list[int], guess: list[int]) -> None:
        _, features = look(target, drafter, history)
        hidden, logits = drafter_definition.draft(config, tensors, *weights, features[0, :-1], history[-1], size)
        if drafter.bound.correction is None:
            assert guess == logits.argmax(-1).tolist()
        else:
            root = history[-1]
            assert guess == drafter_definition.greedy_chain(config, tensors, weights[0], hidden, logits, root)

    tokens, accepts, drafts = decode(target, drafter, index, 48, watch)
    assert tokens[:48] == GOLDEN["ar"][index][:48]
    return accepts, drafts


def test_domino_without_shift(tmp_path: Path, target: Any) -> None:
    plain = decode(target, bound("dflash", DATA / "dflash", target), 4, 48)[1]
    by_prefix = []
    for prefix in (0, 1):
        config, tensors = fitted_domino(target, prefix)
        drafter = bound("domino", write(tmp_path / str(prefix), config, tensors), target)
        accepts, drafts = check_against_definition(target, drafter, config, tensors, 4)
        assert {len(draft) for draft in drafts} == {7}
        assert mean(accepts) > max(2.0, mean(plain))
        by_prefix.append(drafts)
    assert by_prefix[0] != by_prefix[1]


def follows(scale: float) -> Tensor:
    """Return ``[V, V]``: a bonus, in the column of a token, for those that follow it in the target's text."""
    table = torch.zeros(160, 160)
    for prompt, continuation in zip(GOLDEN["prompts"], GOLDEN["ar"], strict=True):
        text = prompt[-1:] + continuation
        for previous, token in pairwise(text):
            table[token, previous] += 1
    return scale * table / table.sum(0).clamp(min=1)


def fitted_dspark(variant: str) -> tuple[Json, Tensors]:
    """Put a Markov head on the golden Domino backbone, whose anchor row predicts: in all variants the same table."""
    config, tensors = golden_parts("domino")
    tensors = {n: t for n, t in tensors.items() if not n.startswith(("prefix_gru", "embed_proj"))}
    own = {key: config["dflash_config"][key] for key in ("mask_token_id", "target_layer_ids")}
    config["dflash_config"] = {**own, "projector_type": "dspark", "markov_rank": 160, "markov_head_type": variant}
    table, one_hot = follows(6.0), torch.eye(160)
    tensors |= {"markov_head.markov_w1.weight": one_hot, "markov_head.markov_w2.weight": table}
    if variant == "gated":
        tensors["markov_head.gate_proj.weight"] = torch.zeros(160, 256)
        tensors["markov_head.gate_proj.bias"] = torch.full((160,), 20.0)
    if variant == "rnn":
        joint = torch.zeros(480, 416)
        joint[320:, 160:320] = one_hot
        tensors |= {"markov_head.joint_proj.weight": joint, "markov_head.joint_proj.bias": torch.zeros(480)}
        tensors["markov_head.markov_w2.weight"] = table / torch.tanh(torch.tensor(1.0))
    return config, tensors


def test_dspark_chains(tmp_path: Path, target: Any) -> None:
    by_variant = {}
    for variant in ("vanilla", "gated", "rnn"):
        config, tensors = fitted_dspark(variant)
        drafter = bound("dspark", write(tmp_path / variant, config, tensors), target)
        by_variant[variant] = check_against_definition(target, drafter, config, tensors, 2)
    assert by_variant["vanilla"] == by_variant["gated"] == by_variant["rnn"]
    accepts, drafts = by_variant["vanilla"]
    backbone = bound("dflash", tmp_path / "vanilla", target, ignore_head=True)
    plain = decode(target, backbone, 2, 48)[1]
    assert {len(draft) for draft in drafts} == {8}
    assert mean(accepts) > max(2.0, mean(plain))


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("kind", ["dflash", "domino"])
def test_a_lowered_block(target: Any, kind: str, size: int) -> None:
    config, tensors = golden_parts(kind)
    drafter = bound(kind, DATA / kind, target, block_size=size)
    accepts, drafts = check_against_definition(target, drafter, config, tensors, 0, size)
    assert {len(draft) for draft in drafts} == {size if kind == "domino" else size - 1}
    assert max(accepts) > 1
