"""transformers' own DFlash against the `dflash` preset: the same target, the same drafter weights, the same text.

transformers drafts with the drafter of one model family; its layers are those that DFlash checkpoints hold, under two
other names. Where the installed transformers cannot run a checkpoint that way, the comparison is skipped.

The checkpoint is the tiny one of the tests: what is compared is what the two loops cost, not what a drafter is worth.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from specforge import Pipeline

pytest.importorskip(
    "transformers.models.muse_glimmer_assistant", reason="the installed transformers has no DFlash drafter"
)
from transformers.models.muse_glimmer_assistant import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

TINY = Path(__file__).parents[1] / "tests" / "data" / "qwen3-tiny-a"
PROMPT = torch.tensor([json.loads((TINY / "golden.json").read_text())["prompts"][0]])
TOKENS = 96
SAME = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "max_position_embeddings",
    "layer_types",
    "hidden_act",
    "block_size",
)
RENAMED = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}


def assistant_of(folder: Path) -> PreTrainedModel:
    """Load a DFlash checkpoint with full attention as transformers' drafter."""
    stated = json.loads((folder / "config.json").read_text())
    rope = {"rope_type": "default", "rope_theta": stated["rope_theta"]}
    config = MuseGlimmerAssistantConfig(
        **{name: stated[name] for name in SAME}, **stated["dflash_config"], rope_parameters=rope
    )
    assistant = MuseGlimmerAssistantModel(config).eval()
    weights = load_file(folder / "model.safetensors")
    assistant.load_state_dict({RENAMED.get(name, name): tensor for name, tensor in weights.items()})
    return assistant


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return Pipeline.from_preset("dflash", target=TINY / "target", checkpoint=str(TINY / "dflash"), dtype="float32")


@pytest.fixture(scope="module")
def ways(pipeline: Pipeline) -> dict[str, Callable[[], Any]]:
    model, assistant = pipeline.target.model, assistant_of(TINY / "dflash").to(pipeline.target.device)
    prompt = PROMPT.to(pipeline.target.device)
    options = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None}
    found = {
        "plain": lambda: model.generate(prompt, **options),
        "transformers": lambda: model.generate(prompt, **options, assistant_model=assistant, speculation_type="dflash"),
        "specforge": lambda: model.generate(prompt, **options, custom_generate=pipeline),
    }
    try:
        found["transformers"]()
    except (AttributeError, TypeError, ValueError) as error:
        pytest.skip(f"the installed transformers cannot run this checkpoint: {type(error).__name__}: {error}")
    return found


def test_both_give_the_text_of_plain_decoding(ways: dict[str, Callable[[], Any]]) -> None:
    texts = {name: run().tolist() for name, run in ways.items()}
    assert texts["transformers"] == texts["plain"]
    assert texts["specforge"] == texts["plain"]


def test_both_take_the_same_rounds(ways: dict[str, Callable[[], Any]], pipeline: Pipeline) -> None:
    """The chains are the same, so the target runs as often: once for the prompt, then once a round."""
    passes = []
    model = pipeline.target.model
    hook = model.register_forward_hook(lambda *_: passes.append(1))
    try:
        ways["transformers"]()
    finally:
        hook.remove()
    result = pipeline.generate(PROMPT, max_new_tokens=TOKENS, stop_token_ids=[])
    assert len(passes) == 1 + len(result.acceptance_lengths)


@pytest.mark.parametrize("name", ["plain", "transformers", "specforge"])
@pytest.mark.benchmark(group="transformers' own dflash")
def test_speed(benchmark: Any, ways: dict[str, Callable[[], Any]], name: str) -> None:
    benchmark.pedantic(ways[name], rounds=5, warmup_rounds=1)
