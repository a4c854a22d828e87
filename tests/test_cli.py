"""The command line: what it prints, and one clear line with exit code 2 for whatever cannot be done."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specforge.cli import main

TINY = str(Path(__file__).parent / "data" / "qwen3-tiny-a" / "target")
PROMPT = "81 102 42 140 123 119 3 150 8 11 86 109"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return call


@pytest.fixture
def prompts(tmp_path: Path, golden: dict) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"turns": [ids]}) + "\n" for ids in golden["prompts"][:3]))
    return str(file)


def test_list_names_everything(run) -> None:
    code, out, err = run("list")
    assert (code, err) == (0, "")
    for word in ("presets", "ngram", "drafters", "scorers", "trie", "builders", "chain", "verifiers", "rejection"):
        assert word in out
    code, out, _ = run("list", "--json")
    assert code == 0
    assert {"length", "max_ngram"} <= set(json.loads(out)["drafters"]["ngram"]["options"])


def test_generate_streams_then_says_figures(run, golden: dict) -> None:
    code, out, err = run("generate", "--preset", "ngram", "--target", TINY, PROMPT, "--max-new-tokens", "20")
    assert (code, err) == (0, "")
    text, figures = out.strip().split("\n\n")
    assert len(text.split()) == 20
    assert "20 tokens in" in figures
    assert "τ" in figures
    assert "tokens/s" in figures


def test_generate_json_is_one_object(run, golden: dict) -> None:
    prompt = ",".join(map(str, golden["prompts"][0]))
    code, out, _ = run("generate", "--preset", "ar", "--target", TINY, prompt, "--max-new-tokens", "20", "--json")
    assert code == 0
    assert json.loads(out)["token_ids"] == golden["ar"][0][:20]


def test_generate_with_a_config_file(run, tmp_path: Path, golden: dict) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        f"from specforge import PipelineConfig\nconfig = PipelineConfig(target={TINY!r}, drafter='ngram')\n"
    )
    prompt = ",".join(map(str, golden["prompts"][0]))
    code, out, _ = run("generate", "--config", str(file), prompt, "--max-new-tokens", "20", "--json")
    assert code == 0
    assert json.loads(out)["token_ids"] == golden["ar"][0][:20]


def test_compare_json_is_one_object_with_a_row_a_pipeline(run, prompts: str) -> None:
    code, out, err = run(
        *("compare", "--presets", "ngram", "--target", TINY, "--prompts", prompts, "--max-new-tokens", "24"),
        *("--repeats", "2", "--json", "--device", "cpu", "--dtype", "float32"),
    )
    assert (code, err) == (0, "")
    printed = json.loads(out)
    assert [row["preset"] for row in printed["results"]] == ["ar", "ngram"], "ar is always there"
    for row in printed["results"]:
        assert row["lossless"] is True
        assert row["tokens"] == 72
        assert row["acceptance_length"] >= 1.0
        assert row["tokens_per_second"] > 0
        assert set(row["stage_seconds"]) == {"prefill", "draft", "build", "verify", "commit"}
    assert printed["results"][0]["speedup"] == 1.0
    assert printed["results"][0]["rounds"] == 69
    assert printed["settings"]["dtype"] == "float32"


def test_compare_prints_a_table_that_fits_a_terminal(run, prompts: str, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(
        "compare", "--presets", "ar,ngram", "--target", TINY, "--prompts", prompts, "--max-new-tokens", "9"
    )
    assert code == 0
    assert "…" not in out
    for word in ("pipeline", "τ", "tokens", "speed-", "lossless", "yes"):
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--preset", "ngrm", PROMPT], "unknown preset 'ngrm'; did you mean 'ngram'?"),
        (["generate", PROMPT], "give one of --preset"),
        (["generate", "--preset", "ar", "--config", "x.py", PROMPT], "give one of --preset"),
        (["generate", "--preset", "ngram"], "Missing argument"),
        (["generate", "--preset", "ngram", "--temprature", "1", PROMPT], "No such option"),
        (["generate", "--preset", "ngram", "--max-new-tokens", "many", PROMPT], "--max-new-tokens"),
        (["generate", "--preset", "ngram", "--target", "/not/there", PROMPT], "/not/there"),
        (["generate", "--preset", "ngram", "--target", TINY, "--dtype", "int4", PROMPT], "dtype is 'int4'"),
        (["generate", "--preset", "ngram", "--target", TINY, "--device", "gpu7", PROMPT], "gpu7"),
        (["generate", "--preset", "ngram", "--target", TINY, "--checkpoint", "x", PROMPT], "reads no checkpoint"),
        (["generate", "--preset", "ngram", "--target", TINY, "hello"], "has no tokenizer"),
        (["generate", "--preset", "ngram", "--target", TINY, ""], "the prompt is empty"),
        (["generate", "--preset", "ngram", "--target", TINY, "9 " * 600], "has 600 tokens"),
        (["generate", "--preset", "ngram", "--target", TINY, "--temperature", "-1", PROMPT], "temperature is -1.0"),
        (["generate", "--preset", "ngram", "--target", TINY, "--top-p", "0", PROMPT], "top_p is 0.0"),
        (["generate", "--preset", "ar", "--target", TINY, "--template-arg", "x", PROMPT], "--template-arg is 'x'"),
        (["generate", "--config", "/not/there.py", PROMPT], "'/not/there.py' does not exist"),
        (["compare"], "nothing to compare"),
        (["compare", "--presets", "ar", "--target", TINY, "--prompts", "/not/there.jsonl"], "/not/there.jsonl"),
        (["compare", "--presets", "ar", "--target", TINY, "--repeats", "0"], "repeats is 0"),
        (
            ["compare", "--presets", "ngram", "--target", TINY, "--checkpoint", "x"],
            "none of ar, ngram reads",
        ),
        (["nothing"], "No such command"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, arguments: list[str], message: str) -> None:
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("specforge: ")
    assert err.count("\n") == 1


def test_a_prompt_file_with_a_broken_line_names_it(run, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"turns": [[1, 2]]}\n\n{"turns": [[1, 2]\n')
    code, _, err = run("compare", "--presets", "ar", "--target", TINY, "--prompts", str(file))
    assert code == 2
    assert f"{file}:3: not JSON" in err


def test_a_broken_plugin_is_listed_and_breaks_nothing(run, monkeypatch) -> None:
    from specforge import registry

    monkeypatch.setattr(registry._loaded, "plugins", ("bad", "good"))
    monkeypatch.setattr(registry._loaded, "broken", {"bad": "bad_module:x: ImportError: no"})
    code, out, _ = run("list")
    assert code == 0
    assert "bad_module:x: ImportError: no" in out
    assert "loaded" in out


def test_the_installed_command_runs() -> None:
    command = [str(Path(sys.executable).parent / "specforge"), "generate", "--preset", "nothing", "hi"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown preset 'nothing'" in done.stderr
    assert "Traceback" not in done.stderr


TINY_DRAFTERS = [str(Path(TINY).parent / kind) for kind in ("domino", "dflash")]
CPU_PRESETS = (
    "ar,dflash,domino,ddtree,caddtree,domino-ddtree,dominotree-marginal,dominotree,condadaptive,dartree-fixed,dartree"
)


def test_compare_all_presets(run, prompts: str, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    checkpoints = [word for folder in TINY_DRAFTERS for word in ("--checkpoint", folder)]
    arguments = ("--target", TINY, "--prompts", prompts, "--max-new-tokens", "24", *checkpoints)
    code, out, _ = run("compare", "--presets", CPU_PRESETS, *arguments, "--json")
    assert code == 0
    rows = json.loads(out)["results"]
    assert [row["preset"] for row in rows] == CPU_PRESETS.split(",")
    assert all(row["lossless"] is True and not row["divergences"] for row in rows)
    assert all(row["acceptance_length"] > 2 for row in rows[1:])
    code, out, _ = run("compare", "--presets", "dominotree-marginal,dartree-fixed", *arguments)
    assert code == 0
    assert "dominotree-marginal" in out
    assert "…" not in out


def test_a_checkpoint_goes_to_the_drafters_of_its_kind(run, prompts: str, caplog) -> None:
    domino, dflash = TINY_DRAFTERS
    arguments = ("--target", TINY, "--prompts", prompts, "--max-new-tokens", "2", "--limit", "1", "--json")
    code, out, _ = run("compare", "--presets", "dflash,domino,ngram", *arguments, "--checkpoint", domino)
    assert code == 0
    drafters = {name: config["drafter"] for name, config in json.loads(out)["settings"]["pipelines"].items()}
    assert drafters["domino"] == {"name": "domino", "checkpoint": domino}
    assert drafters["dflash"] == {"name": "dflash", "checkpoint": domino, "ignore_head": True}
    assert drafters["ngram"] == {"name": "ngram"}
    assert f"dflash drafts with the backbone of {domino} alone; its domino head is ignored" in caplog.text
    code, _, err = run("compare", "--presets", "domino", *arguments, "--checkpoint", dflash)
    assert (code, err.count("\n")) == (2, 1)
    assert "is a dflash drafter" in err
    twice = ("--checkpoint", domino, "--checkpoint", str(Path(domino) / ".." / "domino"))
    code, _, err = run("compare", "--presets", "domino", *arguments, *twice)
    assert (code, err.count("\n")) == (2, 1)
    assert "could read any of" in err


def test_inspect_says_what_a_checkpoint_is(run) -> None:
    code, out, err = run("inspect", TINY_DRAFTERS[0])
    assert (code, err) == (0, "")
    for line in ("kind              domino", "block size        8", "taps              1, 2", "hidden_size 96"):
        assert line in out
    code, out, _ = run("inspect", TINY_DRAFTERS[1], "--json")
    assert json.loads(out)["kind"] == "dflash"
    code, out, err = run("inspect", TINY)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_generate_ignores_the_head_of_a_checkpoint_of_another_kind(run, caplog: pytest.LogCaptureFixture) -> None:
    base = ("--target", TINY, "--checkpoint", TINY_DRAFTERS[0], "--max-new-tokens", "5", "--json")
    with caplog.at_level("WARNING", "specforge"):
        code, out, _ = run("generate", "--preset", "ddtree", *base, "81 102 42")
    assert code == 0
    assert len(json.loads(out)["token_ids"]) == 5
    assert "ddtree drafts with the backbone of" in caplog.text
    assert "its domino head is ignored" in caplog.text


def test_profile_measures_the_drafter_of_a_pipeline_that_verifies_by_rejection(run, tmp_path: Path) -> None:
    config = tmp_path / "drawn.py"
    drafter, builder = {"name": "dflash", "checkpoint": TINY_DRAFTERS[1]}, {"name": "sampled", "branching": (2,)}
    parts = f"drafter={drafter!r}, builder={builder!r}, verifier='rejection'"
    config.write_text(f"from specforge import PipelineConfig\nconfig = PipelineConfig({TINY!r}, {parts})\n")
    sizes = ("--contexts", "16", "--nodes", "0,2", "--repeats", "1", "--out", str(tmp_path / "cost.json"))
    assert run("profile", "--config", str(config), *sizes)[0] == 0


def test_profile_writes_a_cost_model_that_caddtree_takes(run, tmp_path: Path, prompts: str) -> None:
    file = tmp_path / "cost.json"
    base = ("--target", TINY, "--checkpoint", TINY_DRAFTERS[1])
    sizes = ("--contexts", "16,64", "--nodes", "0,4,16", "--repeats", "2")
    code, out, _ = run("profile", "--preset", "caddtree", *base, *sizes, "--out", str(file))
    assert code == 0
    assert f"wrote {file}" in out
    model = json.loads(file.read_text())
    assert (model["context_lengths"], model["nodes"]) == ([16, 64], [0, 4, 16])
    config = tmp_path / "mine.py"
    parts = f"drafter={{'name': 'dflash', 'checkpoint': {TINY_DRAFTERS[1]!r}}}, scorer='marginal'"
    builder = f"builder={{'name': 'heap', 'budget': 16, 'cost_model': {str(file)!r}}}"
    text = f"from specforge import PipelineConfig\nconfig = PipelineConfig(target={TINY!r}, {parts}, {builder}"
    config.write_text(text + ")\n")
    code, out, err = run("compare", "--config", str(config), "--prompts", prompts, "--max-new-tokens", "9", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["results"][1]["lossless"] is True
    config.write_text(text + ", dtype='bfloat16')\n")
    code, _, err = run("generate", "--config", str(config), PROMPT)
    assert (code, err.count("\n")) == (2, 1)
    assert "bfloat16" in err
    code, _, err = run("profile", "--preset", "caddtree", *base, "--nodes", "0,many", "--out", str(file))
    assert (code, err.count("\n")) == (2, 1)
    assert "'0,many'" in err
