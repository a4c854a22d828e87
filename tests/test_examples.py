"""The examples run as they are, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAID = {
    "compose_pipeline": ["the text of plain decoding: True", "with and without the pipeline: True"],
    "register_builder": ["all texts are plain decoding's: True", "comb"],
    "adaptive_budget": ["as the drafter says", "after three prompts"],
}


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert [said for said in SAID[name] if said not in done.stdout] == []
    assert ": False" not in done.stdout
