"""Self-chat: what the target alone would write, once each, the same file however often it was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specforge import ConfigError, Pipeline
from specforge.target import Target
from specforge.training import selfchat
from specforge.training.chats import load_chats
from specforge.training.selfchat import SelfChat, generate_batch, user_slot, write_chats

WORDS = ["<end>", "<user>", "<answer>", "<none>", *(f"w{i}" for i in range(28))]
TEMPLATE = (
    "{% for m in messages %}<user> {{ m['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<answer>{% endif %}"
)
END, USER, ANSWER = 0, 1, 2


class Stopped(Exception):
    """What the tests stop a run with."""


@pytest.fixture(scope="module")
def target() -> Target:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<none>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<none>", eos_token="<end>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.4,
        eos_token_id=END,
        bos_token_id=None,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    return Target.from_model(model, tokenizer, name="words")


def options(path: Path, **changes: Any) -> SelfChat:
    return attrs.evolve(SelfChat(str(path), count=12, batch_size=5, user_tokens=40, answer_tokens=12), **changes)


def test_the_user_slot_is_read_off_the_template(target: Target) -> None:
    before, ends = user_slot(target)
    assert before == [USER]
    assert END in ends


def test_a_target_without_a_template_is_refused(tiny_target: Target, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no chat template"):
        write_chats(tiny_target, options(tmp_path / "chats.jsonl"))


def test_greedy_rows_of_a_batch_are_what_plain_decoding_writes(target: Target) -> None:
    prompts = [[USER, 5, 9, END, ANSWER], [USER, 7, END, ANSWER], [USER, *range(8, 15), END, ANSWER]]
    rows = generate_batch(target, prompts, [END], 15, [(0.0, 1.0)] * 3, torch.Generator())
    plain = Pipeline.from_preset("ar", target=target)
    for prompt, row in zip(prompts, rows, strict=True):
        assert row == plain.generate(prompt, max_new_tokens=15, stop_token_ids=[END]).token_ids


def test_draws_have_the_processed_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5]).expand(4000, -1)
    uniforms = torch.rand(4000, generator=torch.Generator().manual_seed(0))
    drawn = selfchat._choose(logits, [(0.7, 0.9)] * 4000, uniforms)
    probabilities = torch.softmax(logits[0] / 0.7, dim=-1)
    # 0.56, 0.27, 0.13, ...: the first two do not reach 0.9 together, so the third is kept too
    kept = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0]) * probabilities
    counts = torch.bincount(drawn, minlength=5) / 4000
    assert counts.tolist() == pytest.approx((kept / kept.sum()).tolist(), abs=0.02)
    assert selfchat._choose(logits[:2], [(0.0, 1.0), (1e-6, 1.0)], torch.tensor([0.5, 0.5])).tolist() == [0, 0]


def test_the_file_holds_different_chats_that_training_reads(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "chats.jsonl"
    assert write_chats(target, options(path)) == 12
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({record["user"] for record in records}) == len(records) == 12
    assert {record["greedy"] for record in records} == {True, False}
    assert all(set(record) == {"user", "assistant_ids", "greedy"} for record in records)
    read = load_chats(path, target, 128)
    assert [c.greedy for c in read] == [r["greedy"] for r in records if len(r["assistant_ids"]) > 1]
    plain = Pipeline.from_preset("ar", target=target)
    greedy = [record for record in records if record["greedy"]]
    for record in greedy:
        assert record["assistant_ids"] == plain.generate(record["user"], max_new_tokens=12).token_ids


def test_a_stopped_file_is_gone_on_with(target: Target, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    write_chats(target, options(whole))

    def stop(done: int, of: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        write_chats(target, options(stopped), stop)
    assert 0 < len(stopped.read_text().splitlines()) < 12
    with stopped.open("a") as file:
        file.write('{"user": "cut sh')
    write_chats(target, options(stopped))
    assert stopped.read_bytes() == whole.read_bytes()


def test_the_seed_decides(target: Target, tmp_path: Path) -> None:
    files = [tmp_path / f"{seed}.jsonl" for seed in (0, 1)]
    for seed, file in enumerate(files):
        write_chats(target, options(file, seed=seed))
    assert files[0].read_bytes() != files[1].read_bytes()
    with pytest.raises(ConfigError, match="was written with"):
        write_chats(target, options(files[0], seed=1))


def test_a_file_of_another_origin_is_left_alone(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("something else\n")
    with pytest.raises(ConfigError, match="was not written by self-chat"):
        write_chats(target, options(path))
    assert path.read_text() == "something else\n"


def test_user_turns_that_never_end_are_reported(target: Target, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="raise user_tokens"):
        write_chats(target, options(tmp_path / "chats.jsonl", user_tokens=1, user_temperature=1e-3, count=500))


@pytest.mark.parametrize(("option", "value"), [("count", 0), ("greedy_share", 1.5), ("temperature", 0.0)])
def test_options_out_of_range_are_named(option: str, value: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{option} is {value}"):
        options(tmp_path / "chats.jsonl", **{option: value})
