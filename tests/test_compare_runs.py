"""Runs of several prompt sets and temperatures: their order, their folder, and going on after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
from attrs import evolve

from specforge import ConfigError, Pipeline
from specforge.cli import main
from specforge.report import runner
from specforge.report.compare import Comparison, compare
from specforge.report.prompts import PromptItem, PromptSet
from specforge.report.runfolder import GENERATIONS_FILE, ROUNDS_FILE, Case, read_run
from specforge.report.runner import Plan, Runner
from specforge.target import Target

OPTIONS = {"max_new_tokens": 6, "stop_token_ids": []}
TINY = Path(__file__).parent / "data" / "qwen3-tiny-a"


@pytest.fixture
def pipelines(tiny_target: Target) -> dict[str, Pipeline]:
    return {name: Pipeline.from_preset(name, target=tiny_target) for name in ("ar", "ngram")}


@pytest.fixture
def sets(golden: dict) -> list[PromptSet]:
    single = [PromptItem(f"a:{i}", (tuple(ids),)) for i, ids in enumerate(golden["prompts"][:2])]
    chat = PromptItem("b:1", (tuple(golden["prompts"][2]), (5, 6, 7), (8, 9)))
    return [PromptSet("singles", "a", tuple(single)), PromptSet("chats", "b", (chat,))]


def made(comparison: Comparison) -> list[tuple]:
    return [(line.pipeline, line.case, line.token_ids) for line in comparison.data.generations]


def run(pipelines, sets, out=None, **options) -> Comparison:
    return compare(pipelines, sets, OPTIONS, temperatures=(0.0, 0.9), repeats=2, out=out, **options)


def test_every_pipeline_runs_every_case_before_the_next_repeat(pipelines, sets) -> None:
    lines = run(pipelines, sets).data.generations
    cases = [case for case, _ in groupby(line.case for line in lines)]
    assert len(cases) == len(set(cases)) == 5 * 2 * 2, "five turns, two temperatures, two repeats; none comes back"
    assert Counter(line.case for line in lines) == dict.fromkeys(cases, 2)
    assert [case.repeat for case in cases] == [0] * 10 + [1] * 10
    places = [place for place, _ in groupby((case.prompt_set, case.temperature) for case in cases[:10])]
    assert len(places) > len(set(places)) == 4, "sets and temperatures are mixed"


def check_order(pipelines, sets) -> None:
    plan = Plan({s.name: s for s in sets}, OPTIONS, repeats=2)
    cases = [Case("s", f"p:{number}", 1, 0.0, 0) for number in range(60)]
    orders = [tuple(plan.order(["ar", "a", "b"], case)) for case in cases]
    assert len(set(orders)) == 6, "every order occurs"
    assert orders == [tuple(plan.order(["ar", "a", "b"], case)) for case in cases]
    assert orders != [tuple(evolve(plan, order_seed=1).order(["ar", "a", "b"], case)) for case in cases]
    many = Plan({"s": PromptSet("s", "", tuple(PromptItem(f"{i}", ((1,),)) for i in range(20)))}, OPTIONS, repeats=2)
    names = [[talk.item.name for talk in many.talks(repeat)] for repeat in (0, 1)]
    assert sorted(names[0]) == sorted(names[1])
    assert names[0] != names[1] != [str(i) for i in range(20)]


def test_the_order_hangs_on_seed_and_case(pipelines, sets) -> None:
    check_order(pipelines, sets)


@pytest.mark.parametrize(
    "order",
    [
        lambda self, names, case: list(names),
        lambda self, names, case: sorted(names, key=lambda name: hash((name, case.prompt))),
    ],
    ids=["as given", "without the seed"],
)
def test_broken_orders_are_caught(pipelines, sets, monkeypatch, order) -> None:
    monkeypatch.setattr(Plan, "order", order)
    with pytest.raises(AssertionError):
        check_order(pipelines, sets)


def test_a_chat_is_carried_on_with_the_first_answers_of_ar(pipelines, sets) -> None:
    prompts: dict[Case, set[int]] = {}
    lines = run(pipelines, sets).data.generations
    answers = {line.case: line.token_ids for line in lines if line.pipeline == "ar"}
    for line in lines:
        prompts.setdefault(line.case, set()).add(line.prompt_tokens)
    item = sets[1].items[0]
    for case, lengths in prompts.items():
        if case.prompt_set == "chats":
            before = [answers[evolve(case, turn=turn, repeat=0)] for turn in range(1, case.turn)]
            asked = sum(len(turn) for turn in item.turns[: case.turn])
            assert lengths == {asked + sum(map(len, before))}


def test_rows_are_by_set_temperature_and_pipeline(pipelines, sets) -> None:
    comparison = run(pipelines, sets)
    places = [(row.prompt_set, row.temperature, row.name) for row in comparison.rows]
    assert places == [
        (name, temperature, pipeline)
        for name in ("singles", "chats")
        for temperature in (0.0, 0.9)
        for pipeline in ("ar", "ngram")
    ]
    alone = compare(pipelines, sets[1:], {**OPTIONS, "temperature": 0.9})
    printed, several = json.loads(json.dumps(alone.to_json())), comparison.to_json()
    assert [(row["preset"], row["tokens"], row["rounds"]) for row in printed["results"]] == [
        (row["preset"], row["tokens"], row["rounds"]) for row in several["results"][6:]
    ]
    assert not {"prompt_set", "temperature"} & set(printed["results"][0])
    assert several["results"][7]["prompt_set"] == "chats"
    assert several["results"][7]["temperature"] == 0.9
    assert all(row.lossless is True for row in comparison.rows)
    table = comparison.table()
    assert table.row_count == 8 + 4, "a heading a section"


def test_a_folder_holds_everything_and_nothing_is_written_without(pipelines, sets, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = run(pipelines, sets)
    assert not list(tmp_path.iterdir())
    assert not plain.data.rounds
    written = run(pipelines, sets, tmp_path / "run")
    read = Comparison.load(tmp_path / "run")
    assert made(plain) == made(written) == made(read)
    assert [line.to_json() for line in read.data.rounds] == [line.to_json() for line in written.data.rounds]
    assert read.to_json() == written.to_json()
    rounds = [line for line in read.data.rounds if line.case == read.data.generations[0].case]
    for line in read.data.generations[:2]:
        mine = [entry for entry in rounds if entry.pipeline == line.pipeline]
        assert [entry.accepted for entry in mine] == list(line.acceptance_lengths)
        assert [entry.context for entry in mine] == [
            line.prompt_tokens + 1 + sum(line.acceptance_lengths[:at]) for at in range(len(mine))
        ]
        assert all(sum(entry.depth_counts) == entry.nodes for entry in mine)
        scored = line.pipeline != "ar"
        assert all((entry.path_probs is not None) == scored for entry in mine)
        assert all(len(entry.path_probs) == entry.nodes for entry in mine if scored)


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("after", [1, 3, 14, 39])
def test_a_resumed_run_is_the_run(pipelines, sets, tmp_path, after: int) -> None:
    count = iter(range(1, 1000))

    def die(_name: str) -> None:
        if next(count) == after:
            raise Killed

    with pytest.raises(Killed):
        run(pipelines, sets, tmp_path / "run", progress=die)
    kept = read_run(tmp_path / "run").generations
    assert after - 2 <= len(kept) < after, "one case at most is lost"
    again: list[str] = []
    resumed = run(pipelines, sets, tmp_path / "run", resume=True, progress=again.append)
    assert len(again) == 40 - len(kept)
    assert made(resumed) == made(run(pipelines, sets)) == made(Comparison.load(tmp_path / "run"))
    assert run(pipelines, sets, tmp_path / "run", resume=True, progress=again.append).rows
    assert len(again) == 40 - len(kept), "nothing is left to do"


def test_a_resume_that_answers_anew_is_caught(pipelines, sets, tmp_path, monkeypatch) -> None:
    """A runner that carries chats on with what is at hand, not with what ar answered before the kill."""

    def forgetful(self, target, talk):
        chat = runner.Chat(target, self.plan.options_at(talk.temperature))
        for place, turn in enumerate(talk.item.turns, start=1):
            yield talk.case(place), chat.ask(turn)
            chat.answer("", ())

    monkeypatch.setattr(Runner, "_prompts", forgetful)
    with pytest.raises(AssertionError):
        test_a_chat_is_carried_on_with_the_first_answers_of_ar(pipelines, sets)


def test_other_settings_are_refused_by_name(pipelines, sets, tmp_path) -> None:
    out = tmp_path / "run"
    compare(pipelines, sets[:1], OPTIONS, out=out)
    with pytest.raises(ConfigError, match="exists already"):
        compare(pipelines, sets[:1], OPTIONS, out=out)
    changed = evolve(sets[0], items=sets[0].items[:1])
    other = {"ar": pipelines["ar"], "chain": pipelines["ngram"]}
    for arguments, named in (
        ((pipelines, sets[:1], {**OPTIONS, "max_new_tokens": 7}), "max_new_tokens 6, not 7"),
        ((pipelines, sets[:1], {**OPTIONS, "seed": 3, "top_k": 2}), r"top_k 0, not 2; seed 0, not 3"),
        ((pipelines, sets, OPTIONS), r"prompt_sets.chats null, not \{"),
        ((pipelines, [changed], OPTIONS), r"prompt_sets.singles.count 2, not 1; prompt_sets.singles.sha256"),
        ((other, sets[:1], OPTIONS), r"pipelines.ngram \{.*pipelines.chain null"),
    ):
        with pytest.raises(ConfigError, match=f"was made with {named}") as refusal:
            compare(*arguments, out=out, resume=True)
        assert "\n" not in str(refusal.value)
    moved = [evolve(sets[0], source="elsewhere")]
    assert compare(pipelines, moved, OPTIONS, out=out, resume=True).rows, "where prompts lie makes no difference"
    header = json.loads((out / "run.json").read_text())
    header["versions"]["torch"] = "0.1"
    (out / "run.json").write_text(json.dumps(header))
    with pytest.raises(ConfigError, match=r"versions.torch \"0.1\", not"):
        compare(pipelines, sets[:1], OPTIONS, out=out, resume=True)
    with pytest.raises(ConfigError, match="holds no run"):
        compare(pipelines, sets[:1], OPTIONS, out=tmp_path / "none", resume=True)


def test_what_cannot_be_run_is_refused_before_anything_runs(pipelines, sets, tmp_path) -> None:
    def boom(_name: str) -> None:
        raise AssertionError("something ran")

    text = PromptSet("t", "", (PromptItem("t:1", ((1, 2), "words")),))
    twice = PromptItem("a:0", ((1,),))
    for arguments, options, message in (
        ((pipelines, sets, OPTIONS), {"temperatures": (0.5, 0.5)}, "each must be given once"),
        ((pipelines, sets, OPTIONS), {"temperatures": ()}, "at least one"),
        ((pipelines, sets, OPTIONS), {"temperatures": (-1.0,)}, "temperature is -1.0"),
        ((pipelines, sets, OPTIONS), {"order_seed": -1}, "order_seed is -1"),
        ((pipelines, sets, {**OPTIONS, "trace": True}), {}, "use keep_rounds"),
        ((pipelines, sets, {"max_tokens": 3}), {}, "unexpected keyword argument 'max_tokens'"),
        ((pipelines, [*sets, sets[0]], OPTIONS), {}, "two prompt sets are called 'singles'"),
        ((pipelines, [text], OPTIONS), {}, "t:1: target .* has no tokenizer"),
        ((pipelines, [sets[0], twice], OPTIONS), {}, "both prompt sets and single prompts"),
        ((pipelines, [twice, twice], OPTIONS), {}, "two prompts called 'a:0'"),
    ):
        with pytest.raises(ConfigError, match=message):
            compare(*arguments, **options, out=tmp_path / "run", progress=boom)
    assert not (tmp_path / "run").exists()


def test_a_chat_that_outgrows_the_context_ends_there(pipelines, tiny_target: Target, caplog) -> None:
    long = (7,) * (tiny_target.context_limit - 8)
    chats = PromptSet("c", "", (PromptItem("c:1", (long, (5, 6), (7,))), PromptItem("c:2", ((1, 2), (3,)))))
    lines = compare(pipelines, [chats], OPTIONS).data.generations
    assert {(line.case.prompt, line.case.turn) for line in lines} == {("c:1", 1), ("c:2", 1), ("c:2", 2)}
    assert "c:1 ends before turn 2, which would not fit the context" in caplog.text


def command(out: Path, prompts: Path, *more: str) -> list[str]:
    where = ("--target", str(TINY / "target"), "--checkpoint", str(TINY / "dflash"), "--device", "cpu")
    what = ("--prompts", str(prompts), "--temperature", "0,0.8", "--repeats", "3", "--max-new-tokens", "24")
    which = ("--presets", "ngram,ddtree", "--grid", "builder.budget=4,16")
    return ["compare", *which, *where, *what, "--out", str(out), *more]


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    return int(exit_.value.code or 0)


def test_a_killed_command_is_resumed(tmp_path: Path, golden: dict, capsys) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [ids, [5, 6]]}) + "\n" for ids in golden["prompts"][:4]))
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "specforge", *command(out, prompts)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        lines, deadline = out / GENERATIONS_FILE, time.monotonic() + 600
        while not (lines.exists() and lines.read_bytes().count(b"\n") >= 8):
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    at_kill = (out / GENERATIONS_FILE).read_bytes().count(b"\n")
    kept = read_run(out).generations
    assert at_kill - 4 < len(kept) <= at_kill, "of what was written, one unfinished case at most is dropped"
    assert call(*command(out, prompts, "--resume", "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["preset"] for row in printed["results"]][:4] == [
        "ar",
        "ngram",
        "ddtree[builder.budget=4]",
        "ddtree[builder.budget=16]",
    ]
    assert call(*command(tmp_path / "whole", prompts, "--json")) == 0
    whole, resumed = Comparison.load(tmp_path / "whole"), Comparison.load(out)
    assert made(resumed) == made(whole)
    assert len(made(whole)) == 4 * 2 * 2 * 3 * 4
    assert [line.to_json() for line in kept] == [line.to_json() for line in resumed.data.generations[: len(kept)]]
    rounds = {line.pipeline for line in resumed.data.rounds}
    assert (out / ROUNDS_FILE).exists()
    assert rounds == set(whole.data.pipelines)
    assert call(*command(out, prompts, "--resume", "--order-seed", "1")) == 2
    assert "order_seed 0, not 1" in capsys.readouterr().err
