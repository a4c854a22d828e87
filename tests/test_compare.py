"""Comparison runs: what is counted, what is carried on between turns, and when a difference is called a tie."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from attrs import evolve

from specforge import ConfigError, Pipeline
from specforge.interfaces import Verdict
from specforge.report.compare import compare, generations
from specforge.report.divergence import explain, first_difference
from specforge.report.prompts import PromptItem, demo_prompts, load_prompts
from specforge.report.table import lossless_word, to_json
from specforge.sampling import SamplingParams
from specforge.target import Target
from specforge.verifiers.greedy import Greedy

OPTIONS = {"max_new_tokens": 24, "stop_token_ids": []}


@pytest.fixture
def items(golden: dict) -> list[PromptItem]:
    return [PromptItem(f"p:{i}", (tuple(ids),)) for i, ids in enumerate(golden["prompts"][2:5])]


@pytest.fixture
def pipelines(tiny_target: Target) -> dict[str, Pipeline]:
    return {name: Pipeline.from_preset(name, target=tiny_target) for name in ("ar", "ngram")}


def test_rows_count_what_ran(pipelines, items) -> None:
    called: list[str] = []
    comparison = compare(pipelines, items, OPTIONS, repeats=3, progress=called.append)
    assert len(called) == generations(items, 2, 3) == 18
    ar, ngram = comparison.rows
    assert (ar.tokens, ar.rounds, ar.outputs, ar.speedup) == (72, 69, 3, 1.0)
    results = [pipelines["ngram"].generate(list(item.turns[0]), **OPTIONS) for item in items]
    assert ngram.tokens == 72
    assert ngram.rounds == sum(len(r.acceptance_lengths) for r in results)
    assert ngram.acceptance_length == pytest.approx(69 / ngram.rounds)
    assert ngram.speedup == pytest.approx(ngram.tokens_per_second / ar.tokens_per_second)
    assert ar.lossless is ngram.lossless is True


def test_repeats_are_interleaved_and_shuffled(pipelines, items) -> None:
    called: list[str] = []
    compare(pipelines, items, OPTIONS, repeats=6, progress=called.append)
    pairs = [tuple(called[i : i + 2]) for i in range(0, len(called), 2)]
    assert all(set(pair) == {"ar", "ngram"} for pair in pairs)
    assert len(set(pairs[3:])) == 2, "either may come first"


def test_later_turns_carry_on_with_the_answers_of_ar(pipelines) -> None:
    prompts: list[list[int]] = []
    plain = pipelines["ar"].generate

    def spy(prompt, **options):
        prompts.append(list(prompt))
        return plain(prompt, **options)

    pipelines["ar"].generate = spy
    compare(pipelines, [PromptItem("p", ((5, 6, 7), (8, 9)))], {"max_new_tokens": 4, "stop_token_ids": []})
    answer = plain([5, 6, 7], max_new_tokens=4, stop_token_ids=[]).token_ids
    assert prompts[1:] == [[5, 6, 7], [5, 6, 7, *answer, 8, 9]]


def test_turns_of_numbers_are_token_ids_where_there_is_no_tokenizer(pipelines) -> None:
    by_text, by_ids = (
        compare(pipelines, [PromptItem("p", turns)], {"max_new_tokens": 4, "stop_token_ids": []}).rows
        for turns in (("5 6 7", "8, 9"), ((5, 6, 7), (8, 9)))
    )
    assert [(row.tokens, row.rounds) for row in by_text] == [(row.tokens, row.rounds) for row in by_ids]


def test_sampling_is_compared_token_by_token(pipelines, items) -> None:
    comparison = compare(pipelines, items, {**OPTIONS, "temperature": 0.9, "seed": 4})
    assert all(row.lossless is True and not row.divergences for row in comparison.rows)


def test_rejection_is_lossless_in_distribution(pipelines, items, tiny_target: Target) -> None:
    from specforge import PipelineConfig

    config = PipelineConfig(drafter="ngram", builder={"name": "chain", "sample": True}, verifier="rejection")
    pipelines["rejection"] = Pipeline.from_config(config, target=tiny_target)
    row = compare(pipelines, items, {**OPTIONS, "temperature": 0.9}).rows[-1]
    assert row.lossless == lossless_word(row) == "distributional"


def test_a_wrong_output_is_not_lossless(pipelines, items, monkeypatch) -> None:
    """A verifier that puts the second best token after every draft."""
    honest = Greedy.verify

    def wrong(self, tree, logits, round) -> Verdict:
        verdict = honest(self, tree, logits, round)
        if len(tree) > 1:
            return evolve(verdict, next_token=int(logits[verdict.path[-1]].topk(2).indices[1]))
        return verdict

    monkeypatch.setattr(Greedy, "verify", wrong)
    row = compare(pipelines, items, OPTIONS).rows[1]
    assert row.lossless is False
    assert lossless_word(row).startswith("no, ")
    first = row.divergences[0]
    assert not first.tie
    assert first.margin > first.noise


def test_json_has_the_promised_keys(pipelines, items) -> None:
    printed = json.loads(json.dumps(to_json(compare(pipelines, items, {**OPTIONS, "max_new_tokens": 1}))))
    assert set(printed) == {"results", "settings"}
    wanted = {"preset", "acceptance_length", "tokens_per_second", "speedup", "lossless", "stage_seconds", "rounds"}
    assert wanted | {"tokens"} <= set(printed["results"][0])
    assert printed["results"][0]["acceptance_length"] is None, "no round, no τ"


@pytest.mark.parametrize(
    ("a", "b", "at"), [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [1], 0)]
)
def test_first_difference(a, b, at) -> None:
    assert first_difference(a, b) == at


def test_a_tie_is_a_margin_below_the_measured_noise(tiny_target: Target, golden: dict) -> None:
    prompt, expected = golden["prompts"][0], golden["ar"][0][:20]
    other = [*expected[:7], (expected[7] + 1) % 160, *expected[8:]]
    greedy = SamplingParams()
    assert explain(tiny_target, prompt, expected, expected, greedy, 0) is None
    found = explain(tiny_target, prompt, expected, other, greedy, 0, "p")
    assert found is not None
    assert (found.position, found.expected, found.got, found.prompt) == (7, expected[7], other[7], "p")
    assert not found.tie
    assert 0 <= found.noise < 1e-3
    path = torch.tensor([*prompt, *expected[:7]])
    logits = tiny_target.prefill(path, tiny_target.new_cache(64)).logits[0]
    top = logits.topk(2).values
    assert found.margin == pytest.approx(float(top[0] - top[1]), abs=1e-4)
    assert evolve(found, margin=found.noise / 2).tie is (found.noise > 0)


def test_the_margin_of_a_draw_is_its_distance_from_the_edge(tiny_target: Target, golden: dict) -> None:
    found = explain(tiny_target, golden["prompts"][0], [1, 2, 3], [1, 2, 4], SamplingParams(temperature=1.0), 0)
    assert found is not None
    assert 0 < found.margin < 0.5
    assert not math.isnan(found.noise)


def test_nothing_to_compare_with(pipelines, items) -> None:
    with pytest.raises(ConfigError, match="needs the pipeline 'ar'"):
        compare({"ngram": pipelines["ngram"]}, items, OPTIONS)
    with pytest.raises(ConfigError, match="repeats is 0"):
        compare(pipelines, items, OPTIONS, repeats=0)
    with pytest.raises(ConfigError, match="at least one prompt"):
        compare(pipelines, [], OPTIONS)


def test_prompt_files(tmp_path: Path) -> None:
    jsonl = tmp_path / "a.jsonl"
    jsonl.write_text(
        '{"turns": ["one\u2028line", "two"]}\n\n{"prompt": "three"}\n{"token_ids": [1, 2]}\n', encoding="utf-8"
    )
    read = load_prompts(jsonl)
    assert [item.turns for item in read] == [("one\u2028line", "two"), ("three",), ((1, 2),)]
    assert [item.name for item in read] == ["a.jsonl:1", "a.jsonl:3", "a.jsonl:4"]
    assert load_prompts(jsonl, limit=1) == read[:1]
    text = tmp_path / "b.txt"
    text.write_text("first\n\n  second \n")
    assert [item.turns for item in load_prompts(text)] == [("first",), ("second",)]
    assert len(demo_prompts()) >= 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"turns": ["a"', ":2: not JSON"),
        ('{"turns": []}', ":2: .* is no prompt"),
        ('{"turns": [""]}', ":2: .* is no prompt"),
        ('{"turns": [[]]}', ":2: .* is no prompt"),
        ('{"turns": [[1, "a"]]}', ":2: .* is no prompt"),
        ('["a"]', ":2: .* is no prompt"),
        ('{"question": "a"}', ":2: .* is no prompt"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=message):
        load_prompts(file)


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    for file, reason in (
        (tmp_path, "directory"),
        (tmp_path / "no", "No such file"),
        (tmp_path / "binary.jsonl", "not UTF-8"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load_prompts(file)
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        load_prompts(tmp_path / "empty.txt")
    with pytest.raises(ConfigError, match="limit is 0"):
        demo_prompts(limit=0)
