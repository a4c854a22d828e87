"""The script that measures the correction's backends on a GPU, on tiny shapes without one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_correction.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no build for this platform"),
]


def run(*arguments: str, interpret: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "TRITON_INTERPRET": str(int(interpret)), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_prints_one_table_last() -> None:
    done = run("--device", "cpu", "--shapes", "tiny")
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("\n\n")[-1].strip().splitlines()
    assert all(line.count("|") == 6 for line in table)
    kinds = [line.split("|")[1].strip() for line in table[2:]]
    assert {kind: kinds.count(kind) for kind in kinds} == {"build": 8, "agreement": 1, "kernel": 5, "tests": 1}
    builds = [line for line in table if line.startswith("| build")]
    assert sum("bit-identical to no graph: yes" in line for line in builds) == 4


def test_says_what_it_lacks() -> None:
    done = run()
    assert done.returncode == 2
    assert "there is no CUDA device" in done.stderr
    done = run("--device", "cpu", "--shapes", "tiny", interpret=False)
    assert done.returncode == 2
    assert "set TRITON_INTERPRET=1" in done.stderr
