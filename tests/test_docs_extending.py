"""Does exactly what docs/extending.md says: writes its files, runs its commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specforge import Pipeline, PipelineConfig, load_config_file
from specforge.cli import main

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
TINY = ROOT / "tests" / "data" / "qwen3-tiny-a" / "target"
FENCES = re.findall(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", PAGE, flags=re.M | re.S)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    for _, title, text in FENCES:
        if title:
            (folder / title).parent.mkdir(exist_ok=True)
            (folder / title).write_text(text)
    # The page decodes with the bundled target; the tiny one serves here, and takes its prompts as token ids.
    config = (folder / "beam.py").read_text()
    tiny = config.replace("PipelineConfig(drafter", f"PipelineConfig(target={str(TINY)!r}, drafter")
    assert tiny != config
    (folder / "beam.py").write_text(tiny)
    (folder / "prompts.jsonl").write_text('{"token_ids": [5, 6, 7, 5, 6, 7, 5, 6]}\n')
    return folder


def commands() -> list[str]:
    return [line[2:] for kind, _, text in FENCES if kind == "console" for line in text.splitlines()]


def run(command: str, folder: Path) -> str:
    site = folder / "site"
    bin_folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        # Installing into a folder of its own leaves the environment of the other tests alone.
        "PIP_TARGET": str(site),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PYTHONPATH": str(site),
    }
    command = command.replace('"Count from 1 to 30, separated by commas."', '"5 6 7 5 6 7 5 6" --max-new-tokens 12')
    if "compare" in command:
        command += " --prompts prompts.jsonl --max-new-tokens 12"
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_from_top_to_bottom(workspace: Path) -> None:
    generate, compare, sed, install, listing = commands()
    assert "tokens in" in run(generate, workspace)
    table = run(compare, workspace)
    rows = {line.split()[0]: line for line in table.splitlines() if line.strip()}
    assert {"ar", "ngram", "beam"} <= set(rows)
    assert rows["beam"].rstrip().endswith("yes")
    run(sed, workspace)
    run(install, workspace)
    assert re.search(r"^  beam +Keeps the best ``width`` nodes of every depth\.$", run(listing, workspace), flags=re.M)
    assert re.search(r"^  beam +loaded$", run(listing, workspace), flags=re.M)


def test_the_builder_of_the_page_drafts_trees_that_are_accepted(workspace: Path, tiny_target, golden: dict) -> None:
    config = load_config_file(workspace / "beam.py")
    for drafter in ("ngram", {"name": "domino", "checkpoint": str(TINY.parent / "domino")}):
        parts = PipelineConfig(drafter=drafter, builder=config.builder)
        pipeline = Pipeline.from_config(parts, target=tiny_target)
        result = pipeline.generate(golden["prompts"][3], max_new_tokens=48, stop_token_ids=[], trace=True)
        assert result.token_ids == golden["ar"][3][:48]
        assert result.mean_acceptance_length > 1.5
        assert max(record.tree.budget for record in result.rounds) >= 8


def test_a_typo_in_the_page_is_refused_as_it_says(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = workspace / "beam.py"
    right = file.read_text()
    file.write_text(right.replace('"width": 3', '"widht": 3'))
    with pytest.raises(SystemExit) as exit_:
        main(["generate", "--config", str(file), "1 2 3"])
    file.write_text(right)
    assert exit_.value.code == 2
    assert "builder 'beam' has no option 'widht'; did you mean 'width'?" in capsys.readouterr().err
