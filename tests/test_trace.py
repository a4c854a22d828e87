"""Traces: what is kept of a generation, and that the terminal and the page show just that."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from attrs import evolve
from conftest import TINY
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tokenizers import Tokenizer, models
from trace_factory import PROMPT, WORDS, make_record, make_trace, random_tree
from transformers import PreTrainedTokenizerFast

from specforge import ConfigError, DraftTree, Pipeline
from specforge.cli import main
from specforge.target import Target
from specforge.trace import Trace, record, show, view, write_page
from specforge.trace.page import page
from specforge.trace.terminal import coloured_text

TOKENS = [81, 102, 42, 140, 123, 119, 3, 150]


@pytest.fixture(scope="module")
def traced(tiny_target: Target) -> tuple[Trace, list[int]]:
    pipeline = Pipeline.from_preset("ddtree", target=tiny_target, checkpoint=str(TINY / "dflash"))
    options = {"max_new_tokens": 30, "stop_token_ids": []}
    return record(pipeline, "ddtree", TOKENS, **options), pipeline.generate(TOKENS, **options).token_ids


# --- what is kept


def test_a_trace_is_the_generation(traced: tuple[Trace, list[int]]) -> None:
    trace, expected = traced
    assert [token for emission in trace.emissions for token in emission.token_ids] == expected
    assert "".join(emission.text for emission in trace.emissions) == "".join(f"{token} " for token in expected)
    assert trace.figures["tokens"] == len(expected)
    assert trace.figures["rounds"] == len(trace.rounds)
    root = trace.first.token_ids[-1]
    for round in trace.rounds:
        assert round.nodes[0].token_id == root
        path = [node for node in round.nodes if node.accepted]
        drafted = tuple(node.token_id for node in path[1:])
        assert round.emission.token_ids == (*drafted, round.emission.token_ids[-1])[: len(round.emission.token_ids)]
        assert round.targets_own == (len(round.emission.token_ids) == len(path))
        root = round.emission.token_ids[-1]


def test_probabilities_multiply_along_paths(traced: tuple[Trace, list[int]]) -> None:
    for round in traced[0].rounds:
        assert round.nodes[0].probability is None
        for node in round.nodes[1:]:
            above = round.nodes[node.parent].path_probability
            assert node.path_probability == pytest.approx(above * node.probability, rel=2e-3, abs=1e-6)


def test_calibrated_trees_show_the_scorers_own_probabilities() -> None:
    tree = DraftTree([1, 2], [-1, 0], log_probs=[0.0, -2.0], edge_log_probs=[0.0, -1.0])
    found = view._round(make_record(tree, 1), make_trace(1).first, str, scored=True)
    assert found.nodes[1].probability == pytest.approx(0.3679, rel=1e-3)
    assert found.nodes[1].path_probability == pytest.approx(0.1353, rel=1e-3)


def test_plain_decoding_has_no_probabilities(tiny_target: Target) -> None:
    trace = record(Pipeline.from_preset("ar", target=tiny_target), "ar", TOKENS, max_new_tokens=4)
    assert {(node.probability, node.path_probability) for round in trace.rounds for node in round.nodes} == {
        (None, None)
    }
    assert all(round.targets_own for round in trace.rounds)


def test_a_stop_within_the_path_leaves_no_token_of_the_targets_own() -> None:
    cut = make_record(DraftTree.from_chain([1, 4, 5, 6, 7]), 4, cut=2)
    found = view._round(cut, make_trace(1).first, str, scored=True)
    assert not found.targets_own
    assert [node.accepted for node in found.nodes] == [True, True, True, False, False]
    assert found.last_accepted == 2


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(0, 10**6), st.integers(0, 8))
def test_every_first_part_of_a_tree_is_a_tree(nodes: int, seed: int, steps: int) -> None:
    tree = random_tree(nodes, seed)
    check_ranks(tree, make_record(tree, steps).path, view.importance)


def check_ranks(tree: DraftTree, path: Sequence[int], ranking: object) -> None:
    ranks = ranking(tree, path)
    assert sorted(ranks) == list(range(len(tree)))
    assert [ranks[node] for node in path] == list(range(len(path)))
    assert all(ranks[tree.parents[node]] < ranks[node] for node in range(1, len(tree)))


def test_ranks_without_parents_first_are_caught() -> None:
    """A foreign builder may score a child above its parent."""
    tree = DraftTree([1, 2, 3, 4], [-1, 0, 1, 0], log_probs=[0.0, -3.0, -1.0, -2.0])
    check_ranks(tree, [0], view.importance)

    def by_score_only(tree: DraftTree, path: Sequence[int]) -> list[int]:
        order = sorted(range(len(tree)), key=lambda node: -tree.log_probs[node])
        return [order.index(node) for node in range(len(tree))]

    with pytest.raises(AssertionError):
        check_ranks(tree, [0], by_score_only)


@settings(max_examples=50)
@given(st.text())
def test_tokens_can_be_seen(text: str) -> None:
    assert view.visible(text).isprintable()
    assert " " not in view.visible(text)


# --- the terminal


def printed(trace: Trace, most_nodes: int | None, width: int = 200, **options: object) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, emoji=False, **options)
    show(trace, console, most_nodes)
    return console.file.getvalue()


def test_all_nodes_are_shown_when_asked_for(traced: tuple[Trace, list[int]]) -> None:
    trace = evolve(traced[0], rounds=traced[0].rounds[:1])
    round = trace.rounds[0]
    whole = printed(trace, None, width=1000)
    assert "more" not in whole
    assert len(re.findall(r"\d+ \d\.\d\d", whole)) == len(round.nodes) - 1
    assert whole.count("✓") == sum(node.accepted for node in round.nodes) + 1
    assert f"→ {round.emission.tokens[-1]}" in whole


@pytest.mark.parametrize("most", [0, 5, 20])
def test_what_is_left_out_is_counted(most: int) -> None:
    trace = make_trace(4)
    for round in trace.rounds:
        text = printed(evolve(trace, rounds=(round,)), most, width=1000)
        shown = sum(node.accepted or node.rank <= most for node in round.nodes[1:])
        assert sum(map(int, re.findall(r"… (\d+) more", text))) == len(round.nodes) - 1 - shown
        assert len(re.findall(r" \d\.\d\d\b(?! ms)", text.split("\n", 1)[1])) == shown


def test_numbers_say_what_colours_say(traced: tuple[Trace, list[int]]) -> None:
    plain = coloured_text(traced[0]).plain
    counts = [len(emission.token_ids) for emission in traced[0].emissions]
    superscripts = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
    assert [int(found.translate(superscripts)) for found in re.findall("[⁰¹²³⁴⁵⁶⁷⁸⁹]+", plain)] == counts


def test_tokens_do_not_command_the_terminal() -> None:
    text = printed(make_trace(), None, force_terminal=True, color_system="truecolor")
    assert "\x1b[31m" not in text
    assert "\\x1b[31m" in text
    assert "<b>" in text
    assert printed(make_trace(), 8).isascii() is False
    assert "\x1b" not in printed(make_trace(), 8)


# --- the page


class Reader(HTMLParser):
    """Collects elements and the content of scripts, and refuses whatever would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append("")
        for name, value in attributes:
            assert name != "src"
            assert name != "href" or value == "data:,"

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts[-1] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


def test_the_page_holds_the_trace_and_fetches_nothing() -> None:
    trace = make_trace()
    reader = read(page(trace))
    assert json.loads(reader.scripts[0]) == json.loads(json.dumps(trace.to_dict()))
    assert "http" not in page(trace).replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_what_a_model_writes_is_no_markup() -> None:
    text = page(make_trace())
    reader = read(text)
    assert reader.tags.count("script") == 2
    assert {"b", "img"} & set(reader.tags) == set()
    assert "dominotree &lt;&amp;&gt; on a target" in text
    assert PROMPT in json.loads(reader.scripts[0])["prompt"]
    assert WORDS[0] not in text


def test_a_page_that_does_not_escape_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specforge.trace.page._data", lambda trace: json.dumps(trace.to_dict()))
    assert read(page(make_trace())).tags.count("script") > 2


def test_a_page_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*missing.*No such file"):
        write_page(make_trace(1), tmp_path / "missing" / "trace.html")


def test_a_generation_without_rounds(tiny_target: Target, tmp_path: Path) -> None:
    trace = record(Pipeline.from_preset("ar", target=tiny_target), "ar", TOKENS, max_new_tokens=1)
    assert trace.rounds == ()
    assert trace.figures["acceptance_length"] is None
    assert printed(trace, None).startswith("¹")
    write_page(trace, tmp_path / "trace.html")


# --- the command

ARGUMENTS = ("--preset", "domino", "--target", str(TINY / "target"), "--checkpoint", str(TINY / "domino"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["trace", *arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = (*ARGUMENTS, "81 102 42 140 123 119 3 150", "--max-new-tokens", "12")
    code, out, _ = run(capsys, *asked)
    assert code == 0
    assert "round 1 of" in out
    assert "✓" in out
    code, out, _ = run(capsys, *asked, "--json", "--html", str(tmp_path / "trace.html"))
    found = json.loads(out)
    assert code == 0
    assert found["pipeline"] == "domino"
    assert found["figures"]["tokens"] == 12
    assert json.loads(read((tmp_path / "trace.html").read_text()).scripts[0])["first"] == found["first"]


def test_bad_options_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = run(capsys, *ARGUMENTS, "1 2 3", "--nodes", "-1")
    assert code == 2
    assert error == "specforge: --nodes is -1; it must be a whole number, at least 0\n"


def test_text_is_shown_as_text(tiny_target: Target) -> None:
    words = {f"w{token}": token for token in range(tiny_target.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))
    pipeline = Pipeline.from_preset("ngram", target=Target.from_model(tiny_target.model, tokenizer))
    options = {"max_new_tokens": 12, "raw": True}
    trace = record(pipeline, "ngram", TOKENS, **options)
    assert "".join(emission.text for emission in trace.emissions) == pipeline.generate(TOKENS, **options).text
    assert trace.first.tokens == (f"w{trace.first.token_ids[0]}",)
    assert trace.prompt == str(TOKENS)
