"""``specforge.compare`` and the options of the command: what can be named, and the object that comes back."""

from __future__ import annotations

import builtins
import io
import json
import threading
from pathlib import Path

import pytest
from rich.console import Console

import specforge
from specforge import ConfigError, Pipeline, PipelineConfig
from specforge.cli import main
from specforge.report.compare import Comparison
from specforge.report.live import LiveTable
from specforge.report.prompts import PromptItem, PromptSet
from specforge.selection import select, share_target
from specforge.target import Target

TINY = Path(__file__).parent / "data" / "qwen3-tiny-a"
OPTIONS = {"max_new_tokens": 6, "stop_token_ids": []}
PROMPTS = {"a": [[5, 6, 7], "8 9 10"], "b": [{"turns": [[1, 2], "3 4"]}]}


def names(comparison: Comparison) -> list[str]:
    return list(comparison.data.pipelines)


@pytest.fixture(scope="module")
def compared(tiny_target: Target) -> Comparison:
    return specforge.compare(
        "ngram, ddtree",
        PROMPTS,
        OPTIONS,
        target=tiny_target,
        checkpoint=TINY / "dflash",
        grid={"builder.budget": [4, 8]},
        temperatures=[0, 0.9],
    )


def test_it_returns_rows_tables_and_frames(compared: Comparison) -> None:
    assert names(compared) == ["ar", "ngram", "ddtree[builder.budget=4]", "ddtree[builder.budget=8]"]
    assert len(compared.rows) == 4 * 2 * 2
    assert all(row.lossless is True for row in compared.rows)
    console = Console(width=100, record=True)
    console.print(compared)
    shown = console.export_text()
    assert "a, T=0.9" in shown
    assert "ddtree[budget=4]" in shown
    rows, generations, rounds = (compared.to_pandas(what) for what in ("rows", "generations", "rounds"))
    assert list(rows["pipeline"]) == [row.name for row in compared.rows]
    assert list(rows["acceptance_length"]) == [row.acceptance_length for row in compared.rows]
    assert {"draft_seconds", "verify_seconds", "prompt_set", "temperature"} <= set(rows.columns)
    assert len(generations) == 4 * 2 * 4
    assert generations["acceptance_lengths"].map(sum).sum() == rounds["accepted"].sum() > 0
    with pytest.raises(ConfigError, match="there is no frame 'row'; did you mean 'rows'"):
        compared.to_pandas("row")
    assert "text/html" in compared._repr_mimebundle_()


def test_it_draws_the_reports_figures(compared: Comparison) -> None:
    figure = compared.plot("stages", temperature=0.9)
    assert figure.axes
    with pytest.raises(ConfigError, match="there is no figure 'stage'; did you mean 'stages'"):
        compared.plot("stage")
    with pytest.raises(ConfigError, match=r"no generations at temperature 0.3; there are 0.0, 0.9"):
        compared.plot("stages", temperature=0.3)


def test_what_was_kept_in_memory_can_be_saved(compared: Comparison, tmp_path: Path) -> None:
    assert compared.folder is None
    assert compared.save(tmp_path / "run") == tmp_path / "run"
    assert Comparison.load(tmp_path / "run").to_json() == json.loads(json.dumps(compared.to_json()))
    with pytest.raises(ConfigError, match="exists already"):
        compared.save(tmp_path / "run")


def test_without_pandas_it_says_what_to_install(compared: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = builtins.__import__

    def without(name: str, *rest, **more):
        if name == "pandas":
            raise ImportError(name)
        return honest(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"to_pandas needs pandas: pip install 'specforge-decoding\[report\]'"):
        compared.to_pandas()


def test_pipelines_are_named_in_many_ways(tiny_target: Target, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from specforge import PipelineConfig\nconfig = PipelineConfig(drafter='ngram')\n")
    made = Pipeline.from_config(PipelineConfig(drafter="ngram", builder="chain"), target=tiny_target)
    config = PipelineConfig(drafter="ngram", builder={"name": "heap", "budget": 4})
    found = specforge.compare(["ngram", file, config, made], {"p": [[1, 2, 3]]}, OPTIONS)
    assert names(found) == ["ar", "ngram", "mine", "ngram+heap", "ngram+chain"]
    one = PromptSet("p", "", (PromptItem("p", ((1,),)),))
    found = specforge.compare({"x": made, "y": config, "ar": "ar"}, one, OPTIONS)
    assert set(names(found)) == {"ar", "x", "y"}
    assert found.data.settings["prompt_sets"]["p"]["count"] == 1


def test_pipelines_with_the_same_drafter_share_it(tiny_target: Target) -> None:
    chosen = select("dflash,ddtree,domino,ngram", checkpoints=[str(TINY / "domino")], target=tiny_target.name)
    pipelines = share_target(chosen, tiny_target)
    assert pipelines["dflash"].parts.drafter is pipelines["ddtree"].parts.drafter
    assert pipelines["dflash"].parts.drafter is not pipelines["domino"].parts.drafter
    assert {id(pipeline.target) for pipeline in pipelines.values()} == {id(tiny_target)}


@pytest.mark.parametrize(
    ("pipelines", "options", "message"),
    [
        ([], {}, "nothing to compare"),
        (["ngram", "ngram"], {}, "two pipelines are called 'ngram'"),
        (["ngrm"], {}, "unknown preset 'ngrm'; did you mean 'ngram'"),
        ([3], {}, "got a int"),
        ({"ar": "ngram"}, {}, "the pipeline called 'ar' is the baseline"),
        ("ngram", {"prompts": 3}, "prompts holds a int"),
        ("ngram", {"prompts": ["demo", 3]}, "prompts holds a int"),
        ("ngram", {"prompts": {"a": []}}, "prompt set 'a' is empty"),
        ("ngram", {"prompts": {"a": [3]}}, "prompt 1 is 3"),
        ("ngram", {"paper": True}, "the papers' samples are of data sets; give one of gsm8k"),
        ("ngram", {"resume": True}, "nothing to resume without the folder"),
        ("ngram", {"grid": {"builder.budget": [4]}}, "no pipeline's builder has the option 'budget'"),
    ],
)
def test_what_cannot_be_compared_is_refused(tiny_target: Target, pipelines, options, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        specforge.compare(pipelines, **{"prompts": {"p": [[1, 2]]}, **options}, target=tiny_target)
    assert "\n" not in str(refusal.value)


def test_one_loaded_target_only(tiny_target: Target) -> None:
    made = Pipeline.from_preset("ngram", target=str(TINY / "target"), dtype="float32", device="cpu")
    with pytest.raises(ConfigError, match="compared on one target, and there are several"):
        specforge.compare({"x": made}, {"p": [[1, 2]]}, target=tiny_target)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"turns": [[5, 6, 7]]}\n{"turns": [[8, 9]]}\n')
    more = tmp_path / "q.txt"
    more.write_text("1 2 3\n")
    base = ("compare", "--target", str(TINY / "target"), "--prompts", str(prompts), "--max-new-tokens", "4")

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main([*base, *(word.replace("MORE", str(more)) for word in arguments)])
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return call


def test_the_command_writes_a_run(run, tmp_path: Path) -> None:
    arguments = ("--presets", "ngram", "--prompts", "MORE", "--temperature", "0,0.5", "--temperature", "1")
    code, out, err = run(*arguments, "--out", str(tmp_path / "run"), "--repeats", "2", "--order-seed", "3")
    assert (code, err) == (0, "")
    for words in ("p, T=0", "p, T=0.5", "q, T=1", f"wrote {tmp_path / 'run'}"):
        assert words in out
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert header["command"][:2] == ["specforge", "compare"]
    settings = header["settings"]
    assert (settings["temperatures"], settings["repeats"], settings["order_seed"]) == ([0.0, 0.5, 1.0], 2, 3)
    assert list(settings["prompt_sets"]) == ["p", "q"]
    assert header["hardware"]["cores"] >= 1
    assert len(Comparison.load(tmp_path / "run").data.generations) == 2 * 3 * 3 * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "builder.budgt=4"], "no pipeline's builder has the option 'budgt'"),
        (["--temperature", "hot"], "--temperature is 'hot'; it must be numbers"),
        (["--temperature", "0", "--temperature", "0"], "each must be given once"),
        (["--resume"], "nothing to resume"),
        (["--paper"], "the papers' samples are of data sets"),
        (["--prompts", "gsm9k"], "did you mean 'gsm8k'"),
        (["--prompts", "MORE", "--prompts", "MORE"], "two prompt sets are called 'q'"),
        (["--out", str(TINY)], "exists already"),
        (["--out", str(TINY), "--resume"], "holds no run"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(run, arguments: list[str], message: str) -> None:
    code, out, err = run("--presets", "ngram", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def live_output(run, updates: int, **options: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    threads = threading.active_count()
    with LiveTable(console, **options) as live:
        for _ in range(updates):
            live.update(run, 40)
            assert threading.active_count() == threads, "no thread draws while something is timed"
    return console.file.getvalue()


def test_the_live_table_is_drawn_between_prompts_only(compared: Comparison) -> None:
    shown = live_output(compared.data, updates=1)
    assert "32/40" in shown
    assert "ddtree[budget=4]" in shown
    again = live_output(compared.data, updates=3)
    assert again.count("32/40") == shown.count("32/40"), "not again within a moment"
    assert live_output(compared.data, updates=1, disable=True) == ""
