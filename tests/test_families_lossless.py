"""Every family, through the whole loop: prompt lookup = plain decoding = transformers' ``generate``, token by token."""

from __future__ import annotations

import pytest
import torch
from target_families import FAMILIES, VOCAB, tiny_model

from specforge import Pipeline, PipelineConfig
from specforge.target import Target

PERIOD = [11, 25, 42, 7, 63]
PROMPT = (PERIOD * 5)[:23]


def generate(target: Target, drafter: str, builder: object, **options: object) -> tuple[list[int], float]:
    pipeline = Pipeline.from_config(PipelineConfig(drafter=drafter, builder=builder), target=target)
    result = pipeline.generate(PROMPT, max_new_tokens=64, stop_token_ids=[], **options)
    return result.token_ids, result.mean_acceptance_length


@pytest.mark.parametrize("family", FAMILIES)
def test_ngram_equals_ar_equals_generate(family: str) -> None:
    model = tiny_model(family)
    target = Target.from_model(model)
    prompt = torch.tensor([PROMPT])
    reference = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=64, eos_token_id=None
    )[0, len(PROMPT) :].tolist()
    assert generate(target, "none", None)[0] == reference
    for builder in ("chain", {"name": "heap", "budget": 12}):
        assert generate(target, {"name": "ngram", "min_ngram": 1}, builder)[0] == reference


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_ngram_equals_sampled_ar(family: str) -> None:
    target = Target.from_model(tiny_model(family))
    options = {"temperature": 0.8, "top_p": 0.9, "seed": 3}
    plain = generate(target, "none", None, **options)[0]
    assert generate(target, {"name": "ngram", "min_ngram": 1}, {"name": "heap", "budget": 12}, **options)[0] == plain


def test_drafts_are_accepted_in_some_family() -> None:
    """Random models seldom repeat themselves; without this, equality might hold with nothing ever drafted."""
    taus = [generate(Target.from_model(tiny_model(f)), {"name": "ngram", "min_ngram": 1}, "chain")[1] for f in FAMILIES]
    assert max(taus) > 1.5
    assert sum(tau > 1.04 for tau in taus) >= len(taus) // 3
    assert max(PROMPT) < VOCAB
