"""A tiny Domino drafter, trained from nothing on what the golden target writes, makes trees that are accepted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conftest import TINY

from specforge import Pipeline
from specforge.report.compare import compare
from specforge.report.prompts import PromptItem
from specforge.target import Target
from specforge.training import Architecture, Data, Optimization, Reporting, TrainConfig
from specforge.training.replay import parts_of
from specforge.training.selfchat import generate_batch
from specforge.training.start import prepare


def write_own_text(target: Target, path: Path, count: int = 192, answer: int = 96) -> None:
    """Let the target, which has no chat template, go on from random prompts, two of three greedily."""
    draws = torch.Generator().manual_seed(1)
    prompts = torch.randint(3, 159, (count, 8), generator=draws).tolist()
    greedy = [index % 3 > 0 for index in range(count)]
    how = [(0.0 if g else 0.7, 1.0) for g in greedy]
    answers = generate_batch(target, prompts, [], answer, how, draws)
    records = zip(prompts, answers, greedy, strict=True)
    lines = [json.dumps({"prompt_ids": p, "assistant_ids": a, "greedy": g}) for p, a, g in records]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_a_tiny_domino_drafter_learns_to_draft(tmp_path: Path, tiny_target: Target, golden: dict) -> None:
    write_own_text(tiny_target, tmp_path / "chats.jsonl")
    config = TrainConfig(
        out=str(tmp_path / "run"),
        target=str(TINY / "target"),
        dtype="float32",
        device="cpu",
        architecture=Architecture(taps=(1, 2), mask_token_id=159, layers=1, bottleneck=32, state=48),
        data=Data(str(tmp_path / "chats.jsonl"), cache=str(tmp_path / "cache"), top_k=16, held_out=8),
        optimization=Optimization(
            steps=400, batch_size=4, anchors=8, learning_rate=2e-3, warmup=20, precision="float32"
        ),
        reporting=Reporting(validate_every=400, budget=16),
    )
    trainer = prepare(config)
    trainer.run()
    assert trainer.step <= 900
    assert trainer.best > 2
    # and on the goldens' prompts, decoding for real
    plain = Pipeline.from_preset("ar", target=tiny_target)
    tree = Pipeline.from_preset("dominotree", target=tiny_target, checkpoint=str(trainer.folder.drafter))
    tree.parts = parts_of("dominotree", str(trainer.folder.drafter), "domino", 16, tiny_target)
    prompts = [PromptItem(str(i), (tuple(prompt),)) for i, prompt in enumerate(golden["prompts"])]
    options = {"max_new_tokens": 96, "stop_token_ids": []}
    rows = {row.name: row for row in compare({"ar": plain, "dominotree": tree}, prompts, options).rows}
    assert rows["dominotree"].lossless is True
    assert rows["dominotree"].acceptance_length > 2
