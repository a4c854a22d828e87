"""The page on comparisons: every command and the Python example run as written."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import matplotlib
import pytest

from specforge.cli import main
from specforge.report.compare import Comparison

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    matplotlib.use("Agg")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / "docs" / "comparing.md").read_text(encoding="utf-8"))
    commands = [line for language, text in blocks if language == "bash" for line in text.splitlines()]
    assert len(commands) >= 5
    for command in commands:
        words = shlex.split(command)
        if words[0] != "specforge":
            subprocess.run(["bash", "-c", command], check=True)
            continue
        with pytest.raises(SystemExit) as exit_:
            main(words[1:])
        assert exit_.value.code == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert "ddtree[budget=16]" in shown
    (program,) = (text for language, text in blocks if language == "python")
    exec(compile(program, "comparing.md", "exec"), {})
    first, second = Comparison.load("runs/first"), Comparison.load("runs/from-python")
    assert len(first.data.generations) == 3 * 3 * 2 * 2
    assert len(second.data.generations) == 4 * 3 * 2
