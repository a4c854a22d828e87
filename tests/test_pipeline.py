"""The whole loop: outputs equal plain decoding's, and every end of a generation is exact."""

from __future__ import annotations

import json
from collections.abc import Callable

import fakes  # noqa: F401 - registers the fake parts
import numpy as np
import pytest
import torch
from attrs import evolve
from conftest import TINY

from specforge import BrokenPartError, ConfigError, DraftTree, Pipeline, PipelineConfig
from specforge.interfaces import TreeBuilder, Verdict
from specforge.registry import register
from specforge.target import Target
from specforge.verifiers.greedy import Greedy

PROMPT = [81, 102, 42, 140, 123, 119, 3, 150, 8, 11, 86, 109]
PRESETS = ("ar", "ngram")
REFERENCES = json.loads((TINY / "golden.json").read_text())["ar"]
FAKES = {
    "fake-trie": {"name": "fake-trie", "phrases": REFERENCES},
    "fake-autoregressive": {"name": "fake-autoregressive", "vocab_size": 160},
    "fake-recurrent": {"name": "fake-recurrent", "vocab_size": 160, "taps": (0, 3)},
}


@register.builder("two-wide")
class TwoWide(TreeBuilder):
    """The two best first tokens, and under each its best chain; written against the interface alone."""

    def build(self, draft, scorer, round):
        depth_limit = min(draft.depth, round.max_depth)
        tokens, parents, log_probs = [round.root], [-1], [0.0]
        frontier = [(scorer.begin(draft, round), 0)]
        for depth in range(depth_limit):
            grown = []
            for state, node in frontier:
                row = scorer.expand(draft, depth, state)
                for k in range(min(2 if depth == 0 else 1, row.tokens.shape[1])):
                    if not torch.isfinite(row.log_probs[0, k]):
                        break
                    token = row.tokens[:1, k]
                    tokens.append(int(token))
                    parents.append(node)
                    log_probs.append(float(np.float32(log_probs[node]) + row.log_probs[0, k].numpy()))
                    zero = torch.zeros(1, dtype=torch.int64)
                    grown.append((scorer.advance(draft, depth, state, zero, token), len(tokens) - 1))
            frontier = grown
        return DraftTree(tokens, parents, log_probs=log_probs)


def make(target: Target, drafter: object, builder: object = "chain", **fields: object) -> Pipeline:
    return Pipeline.from_config(PipelineConfig(drafter=drafter, builder=builder, **fields), target=target)


@pytest.fixture(scope="module")
def ar(tiny_target: Target) -> Pipeline:
    return Pipeline.from_preset("ar", target=tiny_target)


@pytest.fixture(params=[*PRESETS, *FAKES, *(f"{fake}/two-wide" for fake in FAKES), "ngram/two-wide"])
def pipeline(request: pytest.FixtureRequest, tiny_target: Target) -> Pipeline:
    if request.param in PRESETS:
        return Pipeline.from_preset(request.param, target=tiny_target)
    drafter, _, builder = request.param.partition("/")
    return make(tiny_target, FAKES.get(drafter, drafter), builder or "chain")


def test_outputs_equal_what_others_computed(pipeline: Pipeline, golden: dict) -> None:
    for prompt, expected in zip(golden["prompts"][:3], golden["ar"][:3], strict=True):
        result = pipeline.generate(prompt, max_new_tokens=112, stop_token_ids=[])
        assert result.token_ids[:96] == expected
        assert len(result.token_ids) == 112 == 1 + sum(result.acceptance_lengths)
        assert result.finish_reason == "max_new_tokens"


@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.5])
def test_sampling_equals_plain_decoding_token_by_token(pipeline: Pipeline, ar: Pipeline, temperature: float) -> None:
    options = {"temperature": temperature, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1}
    options |= {"max_new_tokens": 60, "stop_token_ids": []}
    texts = {tuple(ar.generate(PROMPT, seed=seed, **options).token_ids) for seed in range(3)}
    assert len(texts) == 3, "the seed changes the text"
    assert texts == {tuple(pipeline.generate(PROMPT, seed=seed, **options).token_ids) for seed in range(3)}


@pytest.mark.parametrize("drafter", ["ngram", FAKES["fake-autoregressive"]])
def test_rejection_runs_through_the_loop(tiny_target: Target, drafter: object) -> None:
    pipeline = make(tiny_target, drafter, {"name": "chain", "sample": True}, verifier="rejection")
    result = pipeline.generate(PROMPT, max_new_tokens=60, temperature=0.8, stop_token_ids=[])
    assert len(result.token_ids) == 60
    assert (
        result.token_ids == pipeline.generate(PROMPT, max_new_tokens=60, temperature=0.8, stop_token_ids=[]).token_ids
    )


def test_drafts_are_accepted(tiny_target: Target, golden: dict) -> None:
    """Losslessness alone would hold with every draft thrown away."""
    for drafter in ("ngram", FAKES["fake-trie"]):
        result = make(tiny_target, drafter).generate(golden["prompts"][3], max_new_tokens=96, stop_token_ids=[])
        assert result.mean_acceptance_length > 2, drafter


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9, 17])
def test_never_a_token_more(pipeline: Pipeline, golden: dict, count: int) -> None:
    result = pipeline.generate(golden["prompts"][3], max_new_tokens=count, stop_token_ids=[], trace=True)
    assert result.token_ids == golden["ar"][3][:count]
    assert len(result.rounds) == len(result.acceptance_lengths)
    left = count - 1
    for record in result.rounds:
        assert record.tree.depths.max() <= left - 1
        left -= record.acceptance_length
    assert left == 0


def test_stop_token_ends_the_text_inside_a_round(pipeline: Pipeline, golden: dict) -> None:
    expected = golden["ar"][3]
    for index in (0, 3, 11, 12, 13):
        stop = expected[index]
        end = expected.index(stop) + 1
        result = pipeline.generate(golden["prompts"][3], max_new_tokens=96, stop_token_ids=[stop])
        assert result.token_ids == expected[:end]
        assert result.finish_reason == "stop_token"
        assert len(result.token_ids) == 1 + sum(result.acceptance_lengths)


def test_the_targets_own_stop_token_is_the_default(tiny_target: Target, golden: dict, monkeypatch) -> None:
    pipeline = Pipeline.from_preset("ngram", target=tiny_target)
    expected = golden["ar"][3]
    monkeypatch.setattr(tiny_target, "stop_token_ids", (expected[7],))
    assert pipeline.generate(golden["prompts"][3]).token_ids == expected[: expected.index(expected[7]) + 1]
    assert len(pipeline.generate(golden["prompts"][3], max_new_tokens=40, stop_token_ids=[]).token_ids) == 40


def test_context_limit(pipeline: Pipeline, ar: Pipeline, monkeypatch) -> None:
    expected = ar.generate(PROMPT, max_new_tokens=20, stop_token_ids=[]).token_ids
    monkeypatch.setattr(pipeline.target, "context_limit", len(PROMPT) + 13)
    result = pipeline.generate(PROMPT, max_new_tokens=20, stop_token_ids=[])
    assert result.token_ids == expected[:13]
    assert result.finish_reason == "context"
    with pytest.raises(ConfigError, match=r"has 25 tokens.*at most 24"):
        pipeline.generate([*PROMPT, *expected[:13]])


def test_a_prompt_of_one_token(pipeline: Pipeline, ar: Pipeline) -> None:
    options = {"max_new_tokens": 30, "stop_token_ids": []}
    assert pipeline.generate([7], **options).token_ids == ar.generate([7], **options).token_ids


def test_two_streams_do_not_share_state(pipeline: Pipeline, golden: dict) -> None:
    options = {"max_new_tokens": 40, "stop_token_ids": []}
    streams = [pipeline.stream(golden["prompts"][i], **options) for i in (0, 3)]
    tokens: list[list[int]] = [[], []]
    live = [0, 1]
    while live:
        for which in list(live):
            piece = next(streams[which], None)
            if piece is None:
                live.remove(which)
            else:
                tokens[which] += piece.token_ids
    assert tokens == [golden["ar"][0][:40], golden["ar"][3][:40]]
    assert [s.result.token_ids for s in streams] == tokens


def test_inference_mode_does_not_leak_between_pieces(tiny_target: Target) -> None:
    for _ in Pipeline.from_preset("ngram", target=tiny_target).stream(PROMPT, max_new_tokens=5):
        assert not torch.is_inference_mode_enabled()


def test_result_of_an_unfinished_stream_is_refused(tiny_target: Target) -> None:
    with pytest.raises(RuntimeError, match="not ended"):
        Pipeline.from_preset("ar", target=tiny_target).stream(PROMPT).result  # noqa: B018


def test_trace_keeps_trees_and_paths(tiny_target: Target, golden: dict) -> None:
    pipeline = make(tiny_target, "ngram", "two-wide")
    result = pipeline.generate(golden["prompts"][3], max_new_tokens=48, stop_token_ids=[], trace=True)
    walked = [result.token_ids[0]]
    for record in result.rounds:
        assert record.tree.token_ids[0] == walked[-1], "the root is the last committed token"
        walked += [int(record.tree.token_ids[node]) for node in record.path[1:]]
        walked.append(record.token_ids[-1])
    assert walked == result.token_ids
    assert any(len(record.path) > 1 for record in result.rounds)
    assert pipeline.generate(PROMPT, max_new_tokens=8).rounds == []


def test_stages_add_up(tiny_target: Target) -> None:
    result = Pipeline.from_preset("ngram", target=tiny_target).generate(PROMPT, max_new_tokens=40, stop_token_ids=[])
    spent = sum(result.stage_seconds.values())
    whole = result.seconds_to_first_token + result.decode_seconds
    assert 0.5 * whole < spent <= whole


def broken_trees() -> list[Callable[[DraftTree, int], DraftTree]]:
    return [
        lambda tree, _: DraftTree([(tree.token_ids[0] + 1) % 160], [-1]),
        lambda tree, _: DraftTree.from_chain([int(tree.token_ids[0]), 160]),
        lambda tree, _: None,
        lambda tree, most: DraftTree.from_chain([int(tree.token_ids[0])] + [1] * (most + 1)),
    ]


@pytest.mark.parametrize("spoil", broken_trees())
def test_a_builder_that_breaks_the_rules_is_named(tiny_target: Target, spoil, monkeypatch) -> None:
    pipeline = make(tiny_target, "ngram", "two-wide")
    build = TwoWide.build
    monkeypatch.setattr(TwoWide, "build", lambda s, d, sc, r: spoil(build(s, d, sc, r), r.max_depth))
    with pytest.raises(BrokenPartError, match="builder TwoWide returned a "):
        pipeline.generate([5, 6, 5, 6, 5, 6, 5], max_new_tokens=20, stop_token_ids=[])


def test_a_verifier_that_accepts_too_much_is_caught(tiny_target: Target, golden: dict, monkeypatch) -> None:
    """The comparison with plain decoding can fail: here it does."""
    honest = Greedy.verify

    def eager(self, tree, logits, round) -> Verdict:
        verdict = honest(self, tree, logits, round)
        last = verdict.path[-1]
        more = tree.children(last)
        return evolve(verdict, path=(*verdict.path, more[0])) if more else verdict

    drafter = {"name": "domino", "checkpoint": str(TINY / "domino")}
    pipeline = make(tiny_target, drafter, {"name": "heap", "budget": 12})
    options = {"max_new_tokens": 96, "stop_token_ids": []}
    assert pipeline.generate(golden["prompts"][0], **options).token_ids == golden["ar"][0]
    monkeypatch.setattr(Greedy, "verify", eager)
    assert pipeline.generate(golden["prompts"][0], **options).token_ids != golden["ar"][0]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "the prompt is empty"),
        ("  ", {}, "the prompt is empty"),
        (torch.zeros(0, dtype=torch.int64), {}, "the prompt is empty"),
        ([3, 160], {}, "token id 160.*ids 0 to 159"),
        ([3, -1], {}, "token id -1"),
        ([3, 1.5], {}, "holds 1.5"),
        ("hello", {}, "has no tokenizer"),
        ([{"role": "user", "content": "hello"}], {}, "has no tokenizer"),
        ([{"role": "user", "content": "hello"}], {"raw": True}, "needs the chat template"),
        (PROMPT, {"temperature": -0.1}, "temperature is -0.1"),
        (PROMPT, {"top_p": 0.0}, r"top_p is 0.0; it must be in \(0, 1\]"),
        (PROMPT, {"top_p": 1.1}, "top_p is 1.1"),
        (PROMPT, {"top_k": -1}, "top_k is -1"),
        (PROMPT, {"min_p": 2}, "min_p is 2.0"),
        (PROMPT, {"repetition_penalty": 0}, "repetition_penalty is 0.0"),
        (PROMPT, {"max_new_tokens": 0}, "max_new_tokens is 0"),
        (PROMPT, {"seed": 2**64}, "seed is"),
        (PROMPT, {"stop_token_ids": [999]}, "stop_token_ids holds token id 999"),
        (PROMPT, {"stop_strings": ["x"]}, "stop_strings need a tokenizer"),
        (PROMPT, {"stop_strings": [""]}, "stop_strings is"),
        (PROMPT, {"max_tokens": 3}, "max_tokens"),
    ],
)
def test_bad_input_is_one_clear_line(tiny_target: Target, prompt, options, message) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Pipeline.from_preset("ngram", target=tiny_target).generate(prompt, **options)
    assert "\n" not in str(caught.value)


def test_a_string_of_numbers_is_token_ids_where_there_is_no_tokenizer(tiny_target: Target) -> None:
    pipeline = Pipeline.from_preset("ngram", target=tiny_target)
    assert (
        pipeline.generate("3, 4 5", max_new_tokens=9).token_ids
        == pipeline.generate([3, 4, 5], max_new_tokens=9).token_ids
    )
