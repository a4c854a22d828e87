"""The published algorithm, end to end on a trained target: outputs and acceptance lengths of an independent run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specforge.drafters.dflash import DFlashDrafter
from specforge.drafters.domino import DominoDrafter
from specforge.interfaces import Draft, Drafter, Round
from specforge.sampling import KeyedUniforms, SamplingParams

DATA = Path(__file__).parent / "data" / "qwen3-tiny-a"
GOLDEN = json.loads((DATA / "golden.json").read_text())
PROMPTS = range(6)


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
def decode(target: Any, drafter: Drafter, prompt: list[int], new_tokens: int) -> tuple[list[int], list[int], list[Any]]:
    """Plain speculative decoding: the whole sequence through the target every round."""

    def forward(ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        out = target.model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        return out.logits[0], torch.cat([out.hidden_states[tap + 1] for tap in drafter.taps], dim=-1)

    logits, features = forward(prompt)
    session = drafter.start(torch.tensor(prompt), features)
    history, accepts, drafts = [*prompt, int(logits[-1].argmax())], [], []
    while len(history) - len(prompt) < new_tokens:
        round = Round(torch.tensor(history), 10**6, SamplingParams(), KeyedUniforms())
        guess = greedy_chain(session.draft(round), history[-1])
        root = len(history) - 1
        logits, features = forward([*history, *guess])
        choices = logits[root:].argmax(-1).tolist()
        right = next((i for i, (g, c) in enumerate(zip(guess, choices, strict=False)) if g != c), len(guess))
        session.commit(torch.tensor(history[root:] + guess[:right]), features[:, root : root + right + 1])
        history += [*guess[:right], choices[right]]
        accepts.append(right + 1)
        drafts.append(guess)
    return history[len(prompt) :], accepts, drafts


@pytest.mark.parametrize("index", PROMPTS)
@pytest.mark.parametrize(
    ("make", "key"), [(DFlashDrafter, "dflash_chain"), (DominoDrafter, "domino_chain")], ids=["dflash", "domino"]
)
def test_golden_chains(target: Any, make: type, key: str, index: int) -> None:
    drafter = make(str(DATA / key.split("_")[0]))
    drafter.bind(target)
    golden = GOLDEN[key][index]
    tokens, accepts, drafts = decode(target, drafter, GOLDEN["prompts"][index], 112)
    assert tokens[:96] == GOLDEN["ar"][index][:96] == golden["out"][:96]
    assert accepts[: len(golden["accept"])] == golden["accept"]
    if key == "domino_chain":
        assert len(golden["drafts"]) == 8
        assert drafts[:8] == golden["drafts"]
