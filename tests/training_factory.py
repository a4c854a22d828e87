"""Small chats, features and drafters for the training tests."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import checkpoint_factory as factory
import torch
from checkpoint_factory import HIDDEN, TAPS, VOCABULARY, Json, Tensors
from conftest import TINY

from specforge import registry
from specforge.checkpoints import open_checkpoint
from specforge.training import Architecture, Data, Objective, Optimization, Reporting, TrainConfig
from specforge.training.blocks import BlockBatch, make_batch
from specforge.training.chats import Chat
from specforge.training.features import Features
from specforge.training.objective import BlockObjective, LossParts
from specforge.training.vocabulary import SoftmaxVocabulary

TOP_K = 6


def random_chat(seed: int, prompt: int = 3, answer: int = 9, greedy: bool = True) -> Chat:
    generator = torch.Generator().manual_seed(seed)
    return Chat(torch.randint(VOCABULARY, (prompt + answer,), generator=generator), prompt, greedy)


def random_features(chat: Chat, seed: int) -> Features:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(len(chat.token_ids), len(TAPS) * HIDDEN, generator=generator).bfloat16()
    log_probs = torch.log_softmax(torch.randn(chat.answer_length, VOCABULARY, generator=generator), dim=-1)
    best, tokens = log_probs.topk(TOP_K, dim=-1)
    return Features(hidden, tokens.int(), best.half())


def drafter_files(name: str, tmp_path: Path, **changes: Any) -> tuple[Json, Tensors, str]:
    """Write a published format's tiny files, with top-level keys of its config replaced."""
    config, tensors = factory.FORMATS[name]()
    config = {**config, **changes}
    return config, tensors, factory.write(tmp_path / name, config, tensors)


def objective_of(folder: str, target: SimpleNamespace, **options: Any) -> BlockObjective:
    """Return the objective of a checkpoint's own weights."""
    opened = open_checkpoint(folder)
    model = registry.drafters.get(opened.config.kind).training_model(opened.config)
    model.load_state_dict(opened.tensors("cpu", torch.float32))
    return BlockObjective(model, target, Objective(**options))


def whole_vocabulary() -> SoftmaxVocabulary:
    return SoftmaxVocabulary(torch.arange(VOCABULARY), VOCABULARY, 0)


def loss_of(objective: BlockObjective, batch: BlockBatch, vocabulary: SoftmaxVocabulary, mixed: float) -> LossParts:
    columns = vocabulary.columns(batch.labels, torch.Generator().manual_seed(0))
    return objective(batch, columns, mixed)


def batch_of(chats: list[Chat], features: list[Features], anchors: list[list[int]], objective: Any) -> BlockBatch:
    return make_batch(chats, features, [torch.tensor(a) for a in anchors], objective.model.config)


def write_tiny_chats(path: Path, count: int = 8, answer: int = 14) -> str:
    """Write chats of random tokens for the golden tiny target; what they say does not matter here."""
    generator = torch.Generator().manual_seed(5)
    lines = []
    for index in range(count):
        ids = torch.randint(3, 159, (6 + answer,), generator=generator).tolist()
        lines.append(json.dumps({"prompt_ids": ids[:6], "assistant_ids": ids[6:], "greedy": index % 2 == 1}))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def tiny_run(tmp_path: Path, name: str = "run", **options: Any) -> TrainConfig:
    """Return a run of a few quick steps on the golden tiny target."""
    chats = tmp_path / "chats.jsonl"
    if not chats.exists():
        write_tiny_chats(chats)
    config = TrainConfig(
        out=str(tmp_path / name),
        target=str(TINY / "target"),
        dtype="float32",
        device="cpu",
        architecture=Architecture(
            taps=(1, 2), mask_token_id=159, block_size=4, layers=1, intermediate_size=32, bottleneck=8, state=12
        ),
        data=Data(str(chats), top_k=8, held_out=2),
        objective=Objective(softmax_tokens=60, sampled_tokens=20),
        optimization=Optimization(steps=6, batch_size=2, anchors=3, warmup=2, precision="float32"),
        reporting=Reporting(log_every=1, save_every=2, validate_every=100, budget=6, validation_tokens=6),
    )
    return config.with_options(**options)
