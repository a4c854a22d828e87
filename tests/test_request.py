"""Prompts and options of every type: what is taken, and one clear line for what is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from target_families import tiny_model
from test_text import byte_tokenizer

from specforge import ConfigError, Pipeline, PipelineConfig
from specforge.request import GenerateOptions, encode_prompt, make_request
from specforge.target import Target

IDS = [5, 6, 7]


@pytest.fixture(scope="module")
def target() -> Target:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('bad role') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<{{ name or 'a' }}>{% endif %}"
    )
    return Target.from_model(tiny_model("llama"), tokenizer, "tiny")


def text(target: Target, prompt: object, **options: object) -> str:
    return target.tokenizer.decode(encode_prompt(target, prompt, **options))


@pytest.fixture(scope="module")
def wide(target: Target) -> Target:
    """The byte tokenizer has more ids than the tiny model."""
    target.vocab_size = 256
    return target


@pytest.mark.parametrize(
    "prompt", [IDS, tuple(IDS), range(5, 8), np.array(IDS), torch.tensor(IDS), torch.tensor([IDS]), np.array([IDS])]
)
def test_token_ids_of_every_kind(target: Target, prompt: object) -> None:
    assert encode_prompt(target, prompt) == IDS


def test_text_goes_through_the_template_unless_raw(wide: Target) -> None:
    assert text(wide, "hi") == "<user>hi<a>"
    assert text(wide, "hi", raw=True) == "hi"
    assert text(wide, [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]) == "<system>s<user>u<a>"
    assert text(wide, "hi", template_args={"name": "b"}) == "<user>hi<b>"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (torch.ones(2, 3, dtype=torch.int64), r"shape \[2, 3\]"),
        (torch.tensor(3), r"shape \[\]"),
        (torch.tensor([True, False]), "holds True"),
        (np.array([0.5]), "holds 0.5"),
        (b"abc", "the prompt is a bytes"),
        ({"role": "user", "content": "x"}, "the prompt is a dict"),
        ({1, 2}, "the prompt is a set"),
        (iter(IDS), "the prompt is a list_iterator"),
        (5, "the prompt is a int"),
        (None, "the prompt is a NoneType"),
        ([{"content": "x"}], "the chat holds {'content': 'x'}"),
        ([{"role": "user"}], "the chat holds"),
        ([{"role": "user", "content": "x"}, "y"], "the chat holds 'y'"),
        ([{"role": "bad", "content": "x"}], "refused the prompt: bad role"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_prompts_that_are_refused(target: Target, prompt: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_request(target, prompt, GenerateOptions())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": "0.5"}, "temperature is '0.5'; it must be a finite number"),
        ({"temperature": True}, "temperature is True"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 1e-300}, r"temperature is 1e-300; it must be 0 \(greedy\) or at least"),
        ({"top_p": "x"}, "top_p is 'x'"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"max_new_tokens": 2.0}, "max_new_tokens is 2.0"),
        ({"raw": "no"}, "raw is 'no'; it must be True or False"),
        ({"trace": "yes"}, "trace is 'yes'"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5"),
        ({"stop_strings": 5}, "stop_strings is 5"),
        ({"template_args": "x"}, "template_args is 'x'"),
        ({"template_args": {"tokenize": True}}, "template_args holds 'tokenize'"),
        ({"template_args": {1: 2}}, "template_args is {1: 2}"),
    ],
)
def test_options_that_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GenerateOptions(**options)


def test_numbers_of_other_integer_types_are_taken() -> None:
    options = GenerateOptions(max_new_tokens=np.int64(3), seed=np.int32(-4), top_k=np.int16(2), temperature=1)
    assert (options.max_new_tokens, options.seed, options.sampling.top_k) == (3, -4, 2)
    assert options.sampling.temperature == 1.0


def test_a_low_temperature_still_draws(target: Target) -> None:
    pipeline = Pipeline.from_config(PipelineConfig(drafter="ngram"), target=target)
    greedy, cold = (pipeline.generate(IDS, max_new_tokens=9, temperature=t, stop_token_ids=[]) for t in (0.0, 1e-5))
    assert greedy.token_ids == cold.token_ids


def test_taps_that_the_target_lacks_are_refused_at_assembly(target: Target, monkeypatch) -> None:
    from specforge.drafters.ngram import Ngram

    for taps, message in (((99,), "out of range"), ((-1,), "out of range"), (("x",), "taps are"), (None, "taps are")):
        monkeypatch.setattr(Ngram, "taps", taps)
        with pytest.raises(ConfigError, match=message):
            Pipeline.from_config(PipelineConfig(drafter="ngram"), target=target)


def test_a_config_that_is_none(target: Target) -> None:
    with pytest.raises(ConfigError, match="the config is a dict"):
        Pipeline.from_config({"drafter": "ngram"}, target=target)
