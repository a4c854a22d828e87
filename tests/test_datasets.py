"""The papers' data sets: read from files as the hub holds them, and one clear line where it is out of reach."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pyarrow
import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from pyarrow import parquet

from specforge import ConfigError
from specforge.cli import main
from specforge.report import datasets
from specforge.report.datasets import HUB_SETS, load_hub_set, load_prompt_set, paper_sample

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
RECORDS = {
    "gsm8k": {"question": "How many?", "answer": "2"},
    "math500": {"problem": "How many?", "answer": "2"},
    "aime25": {"problem": "How many?", "answer": 2},
    "humaneval": {"prompt": "def f():\n", "test": "assert f()"},
    "mbpp": {"prompt": "Write f.", "code": "def f(): ..."},
    "livecodebench": {"question_content": "Add.", "starter_code": "class S:", "private_test_cases": "x"},
    "mt-bench": {"prompt": ["First.", "Second."], "category": "writing"},
    "alpaca": {"instruction": "Add.", "input": "1 2", "output": "3"},
}
TURNS = {
    "gsm8k": ("How many?" + BOXED,),
    "math500": ("How many?" + BOXED,),
    "aime25": ("How many?" + BOXED,),
    "mbpp": ("Write f.",),
    "mt-bench": ("First.", "Second."),
    "alpaca": ("Add.\n\nInput:\n1 2",),
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A hub whose cache holds ``records`` of each set, in the layout that huggingface_hub gives it."""

    def fill(name: str, records: list[dict]) -> list[tuple]:
        asked: list[tuple] = []

        def download(repository: str, file: str, *, repo_type: str, revision: str) -> str:
            asked.append((repository, file, repo_type, revision))
            path = tmp_path / "snapshots" / "abc123" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if file.endswith(".parquet"):
                parquet.write_table(pyarrow.Table.from_pylist(records), path)
            else:
                path.write_text("".join(json.dumps(record) + "\n" for record in records))
            return str(path)

        monkeypatch.setattr(datasets, "hf_hub_download", download)
        return asked

    return fill


@pytest.mark.parametrize("name", HUB_SETS)
def test_every_set_is_read(hub, name: str) -> None:
    asked = hub(name, [RECORDS[name]] * 3)
    found = load_prompt_set(name)
    files = len(HUB_SETS[name].files)
    assert [item.name for item in found.items] == [f"{name}:{i + 1}" for i in range(3 * files)]
    assert all(item.turns == TURNS.get(name, found.items[0].turns) for item in found.items)
    assert {(repository, kind) for repository, _, kind, _ in asked} == {(HUB_SETS[name].repository, "dataset")}
    assert "revision abc123" in found.source
    shown = "".join(found.items[0].turns)
    assert all(
        word in shown for word in {"humaneval": ["def f():"], "livecodebench": ["Add.", "class S:"]}.get(name, [])
    )


def test_the_papers_counts() -> None:
    counts = {name: found.paper_count for name, found in HUB_SETS.items()}
    assert counts.pop("aime25") == 30
    assert counts.pop("humaneval") == 164
    assert counts.pop("mt-bench") == 80
    assert set(counts.values()) == {128}
    assert len(HUB_SETS) == 8


def test_the_papers_sample_is_that_of_a_seeded_shuffle(hub) -> None:
    # The first of datasets' shuffle(seed=0) of 10 records: NumPy's default generator, seeded with 0, permutes 0 to 9.
    assert paper_sample(10, 4) == [4, 6, 2, 7]
    assert paper_sample(4, 4) == paper_sample(4, 9) == [0, 1, 2, 3]
    hub("gsm8k", [{"question": str(i)} for i in range(200)])
    found = load_hub_set("gsm8k", paper=True)
    rows = paper_sample(200, 128)
    assert [item.name for item in found.items] == [f"gsm8k:{row + 1}" for row in rows]
    assert [item.turns[0].split("\n")[0] for item in found.items] == [str(row) for row in rows]
    assert "128 of 200, shuffled with seed 0" in found.source
    assert load_hub_set("gsm8k", paper=True, limit=5).items == found.items[:5]
    assert len(load_hub_set("gsm8k").items) == 200


def _unreachable(*_: object, **__: object) -> str:
    raise LocalEntryNotFoundError("cannot find the file in the cache\nand the hub\nis not there")


def _refused(*_: object, **__: object) -> str:
    raise PermissionError("403 Forbidden\nmore")


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (_unreachable, "prompt set 'math500' is not in the hub's cache, and the Hugging Face hub is out of reach"),
        (_refused, "prompt set 'math500' could not be fetched from the hub: 403 Forbidden"),
    ],
)
def test_a_hub_out_of_reach_is_one_line_and_exit_code_2(monkeypatch, capsys, tiny_folder, failure, message) -> None:
    monkeypatch.setattr(datasets, "hf_hub_download", failure)
    with pytest.raises(SystemExit) as exit_:
        main(["compare", "--presets", "ngram", "--target", str(tiny_folder / "target"), "--prompts", "math500"])
    captured = capsys.readouterr()
    assert (exit_.value.code, captured.out) == (2, "")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert issubclass(HfHubHTTPError, OSError), "what the hub client raises is caught"


def test_files_that_are_not_as_expected(hub, monkeypatch) -> None:
    hub("gsm8k", [{"text": "no question"}])
    with pytest.raises(ConfigError, match=r"prompt set 'gsm8k': 0000.parquet is not as expected"):
        load_hub_set("gsm8k")
    hub("livecodebench", [{"text": "no question"}])
    with pytest.raises(ConfigError, match=r"prompt set 'livecodebench': test.jsonl is not as expected"):
        load_hub_set("livecodebench")


def test_without_pyarrow_it_says_what_to_install(hub, monkeypatch) -> None:
    hub("gsm8k", [RECORDS["gsm8k"]])
    honest = builtins.__import__

    def without(name: str, *rest, **more):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return honest(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"takes pyarrow to read: pip install 'specforge-decoding\[datasets\]'"):
        load_hub_set("gsm8k")


def test_names_and_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gsm8k").write_text("from a file\n")
    monkeypatch.setattr(datasets, "hf_hub_download", _unreachable)
    with pytest.raises(ConfigError, match="out of reach"):
        load_prompt_set("gsm8k")
    assert load_prompt_set("./gsm8k").items[0].turns == ("from a file",)
    assert load_prompt_set(Path("gsm8k")).name == "gsm8k"
    assert load_prompt_set("demo", limit=2).describe()["count"] == 2
    with pytest.raises(ConfigError, match=r"'gsm8' is no prompt file here, and no data set; did you mean 'gsm8k'\?"):
        load_prompt_set("gsm8")
