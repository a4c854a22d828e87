"""The bundled target on the bundled prompts: real text, the same with and without drafts."""

from __future__ import annotations

import pytest

from specforge import Pipeline, PipelineConfig
from specforge.report.compare import compare
from specforge.report.prompts import demo_prompts
from specforge.target import BUNDLED_TARGET, Target, load_target

pytestmark = pytest.mark.smollm2


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target(BUNDLED_TARGET, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def ngram(target: Target) -> Pipeline:
    return Pipeline.from_preset("ngram", target=target)


def test_a_repeated_sentence_is_drafted(target: Target, ngram: Pipeline) -> None:
    prompt = "Repeat this sentence three times: The lighthouse keeper counted the ships that passed before dawn."
    result = ngram.generate(prompt, max_new_tokens=48)
    assert result.token_ids == Pipeline.from_preset("ar", target=target).generate(prompt, max_new_tokens=48).token_ids
    assert result.mean_acceptance_length > 1.5
    assert "lighthouse keeper" in result.text


def test_pieces_concatenate_to_the_text(ngram: Pipeline) -> None:
    stream = ngram.stream("Write a haiku about the sea, with three emoji.", max_new_tokens=40)
    assert "".join(stream) == stream.result.text


def test_stop_string_is_exact_whatever_the_rounds(target: Target, ngram: Pipeline) -> None:
    prompt = "Repeat this sentence three times: The lighthouse keeper counted the ships that passed before dawn."
    whole = ngram.generate(prompt, max_new_tokens=48)
    stop = whole.text[len(whole.text) // 2 : len(whole.text) // 2 + 5]
    ar = Pipeline.from_preset("ar", target=target)
    results = [p.generate(prompt, max_new_tokens=48, stop_strings=[stop]) for p in (ar, ngram)]
    assert results[0].token_ids == results[1].token_ids == whole.token_ids[: len(results[0].token_ids)]
    assert results[0].text == results[1].text == whole.text[: whole.text.index(stop) + len(stop)]
    assert results[0].finish_reason == results[1].finish_reason == "stop_string"


def test_chat_messages_and_raw_text(target: Target, ngram: Pipeline) -> None:
    question = "What is the capital of France?"
    by_text, by_messages, raw = (
        ngram.generate(prompt, max_new_tokens=12, raw=is_raw).prompt_tokens
        for prompt, is_raw in ((question, False), ([{"role": "user", "content": question}], False), (question, True))
    )
    assert by_text == by_messages > raw == len(target.tokenizer(question).input_ids)


@pytest.mark.slow
def test_every_demo_prompt_is_lossless_in_float32(target: Target, ngram: Pipeline) -> None:
    trees = Pipeline.from_config(PipelineConfig(drafter="ngram", builder={"name": "heap", "budget": 16}), target=target)
    pipelines = {"ar": Pipeline.from_preset("ar", target=target), "ngram": ngram, "ngram-heap": trees}
    for temperature in (0.0, 0.7):
        rows = compare(pipelines, demo_prompts(), {"max_new_tokens": 96, "temperature": temperature}).rows
        assert [(row.lossless, row.divergences) for row in rows] == [(True, ())] * 3
        assert rows[1].acceptance_length > 1.2
