"""Processed distributions equal transformers' own, and draws are what they claim to be."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from specforge.errors import ConfigError
from specforge.sampling import (
    KeyedUniforms,
    SamplingParams,
    choose_next,
    draw,
    draw_rows,
    logits_processors,
    processed_distribution,
    processed_logits,
)

VOCAB = 24
STEPS = 4


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        initializer_range=1.0,
    )
    return LlamaForCausalLM(config).eval()


params = st.builds(
    SamplingParams,
    temperature=st.floats(0.3, 1.5),
    top_k=st.sampled_from([0, 1, 5, VOCAB, 100]),
    top_p=st.sampled_from([1.0, 0.05, 0.5, 0.9]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3, 3.0]),
)
prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)


def generate(model: LlamaForCausalLM, prompt: list[int], sampling: SamplingParams, seed: int):
    torch.manual_seed(seed)
    options = {} if sampling.greedy else {"temperature": sampling.temperature, "min_p": sampling.min_p}
    if not sampling.greedy:
        options |= {"top_k": sampling.top_k, "top_p": sampling.top_p}
    ids = torch.tensor([prompt])
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=not sampling.greedy,
        repetition_penalty=sampling.repetition_penalty,
        max_new_tokens=STEPS,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(params, prompts, st.integers(0, 1000))
def test_processed_logits_are_those_of_generate(
    model: LlamaForCausalLM, sampling: SamplingParams, prompt: list[int], seed: int
) -> None:
    out = generate(model, prompt, sampling, seed)
    for step in range(STEPS):
        path = out.sequences[0, : len(prompt) + step]
        got = processed_logits(out.logits[step][0], path, sampling)
        assert torch.equal(got, out.scores[step][0])


@settings(max_examples=20, deadline=None, derandomize=True)
@given(prompts, st.sampled_from([1.0, 0.5, 1.3, 3.0]))
def test_greedy_choices_are_those_of_generate(
    model: LlamaForCausalLM, prompt: list[int], repetition_penalty: float
) -> None:
    sampling = SamplingParams(repetition_penalty=repetition_penalty)
    out = generate(model, prompt, sampling, 0)
    for step in range(STEPS):
        path = out.sequences[0, : len(prompt) + step]
        token = choose_next(out.logits[step][0], path, sampling, KeyedUniforms(), len(path))
        assert token == out.sequences[0, len(prompt) + step]


def test_the_order_of_the_processors_matters() -> None:
    sampling = SamplingParams(1.4, top_k=6, top_p=0.8, min_p=0.2, repetition_penalty=1.5)
    generator = torch.Generator().manual_seed(0)
    differ = 0
    for _ in range(50):
        row, path = torch.randn(VOCAB, generator=generator) * 2, torch.tensor([[1, 2, 3]])
        scores = row[None].clone()
        for processor in reversed(logits_processors(sampling)):
            scores = processor(path, scores)
        differ += not torch.equal(scores[0], processed_logits(row, path[0], sampling))
    assert differ > 25


def test_processing_leaves_its_input_alone() -> None:
    row = torch.arange(6.0)
    processed_logits(row, torch.tensor([5, 4]), SamplingParams(0.5, top_k=2, repetition_penalty=2.0))
    assert torch.equal(row, torch.arange(6.0))


def test_at_temperature_zero_the_distribution_is_a_point() -> None:
    logits = torch.tensor([0.0, 3.0, 2.9, 3.0])
    assert processed_distribution(logits, torch.tensor([0]), SamplingParams()).tolist() == [0, 1, 0, 0]
    penalised = SamplingParams(repetition_penalty=1.5)
    assert processed_distribution(logits, torch.tensor([1, 3]), penalised).tolist() == [0, 0, 1, 0]


def test_choose_next_draws_with_the_uniform_of_the_position() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1))
    sampling, draws, path = SamplingParams(0.7, repetition_penalty=1.2), KeyedUniforms(3), torch.tensor([4, 9])
    p = processed_distribution(logits, path, sampling)
    chosen = [choose_next(logits, path, sampling, draws, position) for position in range(40)]
    assert chosen == [draw(p, draws(position, "target")) for position in range(40)]
    assert len(set(chosen)) > 5


# --- draws


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 0.5]), min_size=1, max_size=9), st.floats(0, 1, exclude_max=True))
def test_draw_inverts_the_cumulative_distribution(weights: list[float], uniform: float) -> None:
    if sum(weights) == 0:
        with pytest.raises(ValueError, match="no mass"):
            draw(torch.tensor(weights), uniform)
        return
    token = draw(torch.tensor(weights), uniform)
    mark = uniform * sum(weights)
    assert weights[token] > 0
    assert sum(weights[:token]) <= mark < sum(weights[: token + 1]) or (
        mark == sum(weights) and not any(weights[token + 1 :])
    )


def test_each_token_gets_its_share_of_a_fine_grid() -> None:
    p = torch.tensor([0.2, 0.0, 0.5, 0.3], dtype=torch.float64)
    drawn = np.bincount([draw(p, (k + 0.5) / 1000) for k in range(1000)], minlength=4)
    assert drawn.tolist() == [200, 0, 500, 300]
    assert [draw(p, 0.0), draw(p, 1 - 2.0**-53)] == [0, 3]


@pytest.mark.parametrize("tail", [[0.0], [0.0, 0.0], [1e-30, 0.0]])
def test_the_largest_uniform_never_draws_a_token_without_mass(tail: list[float]) -> None:
    for total in (0.1, 1.0, 3.0, 0.7 + 0.1):
        weights = torch.tensor([total / 3, total / 3, total / 3, *tail], dtype=torch.float64)
        assert weights[draw(weights, 1 - 2.0**-53)] > 0


def test_draw_refuses_what_is_no_distribution() -> None:
    for weights in ([0.0, 0.0], [float("nan"), 1.0]):
        with pytest.raises(ValueError, match="no mass"):
            draw(torch.tensor(weights), 0.5)


def test_rows_are_drawn_as_one_by_one() -> None:
    rows = torch.rand(7, 5, generator=torch.Generator().manual_seed(0))
    rows[3] = 0
    for uniform in (0.0, 0.3, 0.9999):
        got = draw_rows(rows, uniform).tolist()
        assert got == [draw(row, uniform) if row.sum() > 0 else 5 for row in rows]


# --- uniforms


def test_uniforms_are_fixed_by_seed_position_purpose_and_index() -> None:
    draws = KeyedUniforms(7)
    keys = [(p, purpose, i) for p in range(20) for purpose in ("target", "draft", "accept") for i in range(3)]
    values = [draws(*key) for key in keys]
    assert values == [KeyedUniforms(7)(*key) for key in keys]
    assert len(set(values)) == len(keys)
    assert all(0.0 <= value < 1.0 for value in values)
    assert KeyedUniforms(8)(0, "target") != draws(0, "target")
    # A number that must not change between releases: texts are reproduced by seed.
    assert KeyedUniforms(0)(5, "target") == 0.8923818170638693


def test_uniforms_are_uniform() -> None:
    values = [KeyedUniforms(seed)(position, "target") for seed in range(50) for position in range(100)]
    assert scipy.stats.kstest(values, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05


# --- options


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("temperature", -0.1, "0 (greedy)"),
        ("temperature", float("inf"), "finite"),
        ("temperature", float("nan"), "finite"),
        ("top_k", -1, "at least 0"),
        ("top_k", 1.5, "whole number"),
        ("top_k", True, "whole number"),
        ("top_p", 0.0, "(0, 1]"),
        ("top_p", 1.1, "(0, 1]"),
        ("min_p", -0.1, "[0, 1]"),
        ("min_p", 1.1, "[0, 1]"),
        ("repetition_penalty", 0.0, "above 0"),
        ("repetition_penalty", float("inf"), "finite"),
    ],
)
def test_options_out_of_range_are_refused(option: str, value: float, wanted: str) -> None:
    with pytest.raises(ConfigError) as error:
        SamplingParams(**{option: value})
    assert option in str(error.value)
    assert repr(value) in str(error.value)
    assert wanted in str(error.value)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 1.5, True])
def test_seeds_out_of_range_are_refused(seed: float) -> None:
    with pytest.raises(ConfigError, match="seed is"):
        KeyedUniforms(seed)
