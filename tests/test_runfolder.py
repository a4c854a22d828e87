"""The folder of a run: whatever a kill leaves behind, what every pipeline has finished is kept, and nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specforge import ConfigError
from specforge.report import runfolder
from specforge.report.divergence import Divergence
from specforge.report.runfolder import (
    GENERATIONS_FILE,
    ROUNDS_FILE,
    Case,
    Generation,
    RoundLine,
    RunData,
    RunFolder,
    read_run,
)

PIPELINES = ("ar", "tree", "chain")
CASES = 4


def a_run() -> RunData:
    settings = {"prompt_sets": {"p": {"source": "p", "count": CASES, "sha256": ""}}, "temperatures": [0.0]}
    return RunData("2026-01-01T00:00:00+00:00", None, settings, {name: {} for name in PIPELINES}, {}, {})


def a_case(number: int) -> tuple[list[Generation], list[RoundLine]]:
    case = Case("p", f"p:{number}", 1, 0.0, 0)
    parts = Divergence(f"p:{number}#1", 1, 2, None, math.inf if number == 1 else 0.5, 0.25)
    generations = [
        Generation(
            pipeline=name,
            case=case,
            prompt_tokens=3,
            token_ids=(number, 2, 3),
            text=None if number == 0 else "ä\u2028\n",
            acceptance_lengths=(1, 1),
            finish_reason="stop_token",
            seconds_to_first_token=0.1,
            decode_seconds=0.2,
            stage_seconds={"draft": 0.1},
            lossless=None if name == "ar" else False,
            divergence=None if name == "ar" else parts,
        )
        for name in PIPELINES
    ]
    rounds = [
        RoundLine(name, case, at, 4 + at, 2, (1, 1), 1, (0, 2), None if name == "ar" else (0.5, 0.1234), {"draft": 0.1})
        for name in PIPELINES
        for at in range(2)
    ]
    return generations, rounds


def write(path: Path) -> RunFolder:
    folder = RunFolder.create(path, a_run())
    for number in range(CASES):
        folder.append(*a_case(number))
    return folder


def fields(lines: list) -> list[dict]:
    return [line.to_json() for line in lines]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "run")
    run = read_run(tmp_path / "run")
    cases = [a_case(number) for number in range(CASES)]
    assert run.header() == a_run().header()
    assert fields(run.generations) == [line for generations, _ in cases for line in fields(generations)]
    assert fields(run.rounds) == [line for _, rounds in cases for line in fields(rounds)]
    assert run.generations[4].divergence.margin == math.inf
    assert run.generations[-1].case == cases[-1][0][0].case


def check_any_kill(folder: Path, rounds_cut: int, generations_cut: int) -> None:
    """Cut both files as a kill may, and hold what is kept to the whole cases; then write the rest again."""
    paths = {name: folder / name for name in (ROUNDS_FILE, GENERATIONS_FILE)}
    whole = {name: path.read_bytes() for name, path in paths.items()}
    for (name, path), cut in zip(paths.items(), (rounds_cut, generations_cut), strict=True):
        path.write_bytes(whole[name][:cut])
    finished = whole[GENERATIONS_FILE][:generations_cut].count(b"\n") // len(PIPELINES)
    wanted = [a_case(number) for number in range(finished)]
    for found in (read_run(folder), RunFolder.resume(folder)[1]):
        assert fields(found.generations) == [line for generations, _ in wanted for line in fields(generations)]
        assert fields(found.rounds) == [line for _, rounds in wanted for line in fields(rounds)]
    resumed, _ = RunFolder.resume(folder)
    for number in range(finished, CASES):
        resumed.append(*a_case(number))
    assert {name: path.read_bytes() for name, path in paths.items()} == whole


@st.composite
def kills(draw, folder: Path) -> tuple[int, int]:
    """A case's rounds are all on disk before its generations: the one file is cut after what the other holds."""
    rounds, generations = ((folder / name).read_bytes() for name in (ROUNDS_FILE, GENERATIONS_FILE))
    if draw(st.booleans()):
        cut = draw(st.integers(0, len(generations)))
        case = min(generations[:cut].count(b"\n") // len(PIPELINES), CASES - 1)
        return _end(rounds, 2 * len(PIPELINES) * (case + 1)), cut
    cut = draw(st.integers(0, len(rounds)))
    return cut, _end(generations, len(PIPELINES) * (rounds[:cut].count(b"\n") // (2 * len(PIPELINES))))


def _end(text: bytes, lines: int) -> int:
    return sum(len(line) for line in text.splitlines(keepends=True)[:lines])


@given(data=st.data())
def test_a_kill_loses_the_last_case_only(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = write(tmp_path_factory.mktemp("run") / "run").path
    check_any_kill(folder, *data.draw(kills(folder)))


def _keeps_unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = runfolder._load

    def load(folder: Path):
        loaded = honest(folder)
        lines = list(runfolder._read_lines(folder / GENERATIONS_FILE, Generation))
        run = attrs.evolve(loaded.run, generations=[line for line, _ in lines])
        return attrs.evolve(loaded, run=run, generations_end=lines[-1][1] if lines else 0)

    monkeypatch.setattr(runfolder, "_load", load)


def _leaves_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = runfolder._cut
    monkeypatch.setattr(runfolder, "_cut", lambda file, end: None if file.name == ROUNDS_FILE else honest(file, end))


def _reads_cut_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runfolder, "_cut", lambda file, end: None)


@pytest.mark.parametrize("mutant", [_keeps_unfinished, _leaves_rounds, _reads_cut_lines])
def test_broken_resumes_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant) -> None:
    folder = write(tmp_path / "run").path
    rounds, generations = ((folder / name).read_bytes() for name in (ROUNDS_FILE, GENERATIONS_FILE))
    # Killed in the middle of writing the last case's second generation.
    cut = _end(generations, len(PIPELINES) * (CASES - 1) + 1) + 20
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ConfigError)):
        check_any_kill(folder, len(rounds), cut)


def test_places_that_are_taken_or_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    full = write(tmp_path / "full").path
    for taken in (tmp_path / "file", full):
        with pytest.raises(ConfigError, match=r"exists already; go on with its run \(--resume\)"):
            RunFolder.create(taken, a_run())
    with pytest.raises(ConfigError, match=r"cannot write the run"):
        RunFolder.create(tmp_path / "file" / "below", a_run())
    (tmp_path / "empty").mkdir()
    assert RunFolder.create(tmp_path / "empty", a_run()).path.is_dir()
    for nothing in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ConfigError, match=r"holds no run: there is no run.json"):
            read_run(nothing)


def test_broken_runs_name_file_and_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "run").path
    lines = (folder / GENERATIONS_FILE).read_text(encoding="utf-8").split("\n")
    for broken in ('{"pipeline": "ar"}', "[]", "not JSON"):
        (folder / GENERATIONS_FILE).write_text("\n".join([lines[0], broken, *lines[2:]]), encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"{GENERATIONS_FILE}:2: not a line of a run"):
            read_run(folder)
    header = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**header, "format": 9}))
    with pytest.raises(ConfigError, match="not of format 1"):
        read_run(folder)
    (folder / "run.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(ConfigError, match="is no run"):
        read_run(folder)
