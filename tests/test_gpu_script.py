"""The script that measures the correction's backends on a GPU, on tiny shapes without one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TINY = ("--device", "cpu", "--shapes", "tiny")
CPU = torch.device("cpu")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton has no build for this platform"),
]


def run(*arguments: str, interpret: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu_correction.py"), *arguments],
        env={**os.environ, "TRITON_INTERPRET": str(int(interpret)), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_correction

    return gpu_correction


def test_prints_one_table_last() -> None:
    done = run(*TINY)
    assert done.returncode == 0, done.stderr
    head, table = done.stdout.strip().split("\n\n")[-2:]
    assert " took " in head
    lines = table.splitlines()
    assert all(line.count("|") == 7 for line in lines)
    kinds = [line.split("|")[1].strip() for line in lines[2:]]
    assert {kind: kinds.count(kind) for kind in kinds} == {"build": 8, "agreement": 8, "kernel": 5, "tests": 2}
    builds = [line for line in lines if line.startswith("| build")]
    assert sum("bit-identical to no graph: yes" in line for line in builds) == 4
    assert all("kernels alone: not measured" in line for line in builds)
    assert sum("< 1.5 ms: not measured" in line for line in builds) == 1
    assert sum("< 0.5 ms: not measured; <= 1.3 x kernels: not measured" in line for line in builds) == 1
    assert all("<= 1e-05: met" in line for line in lines if line.startswith("| agreement"))


def test_says_what_it_lacks() -> None:
    done = run()
    assert done.returncode == 2
    assert "there is no CUDA device" in done.stderr
    done = run(*TINY, interpret=False)
    assert done.returncode == 2
    assert "set TRITON_INTERPRET=1" in done.stderr


def graph_row(script: ModuleType, rounds: int = 2) -> Any:
    import gpu_builds

    [(_, builds), *_] = gpu_builds.prepare_builds(script.tiny().cases[1:], script.TINY, rounds, CPU)
    return gpu_builds.time_build(builds, "cuda_graph+eager", "tiny", 1, CPU)


def test_a_graph_that_changes_a_bit_fails(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_builds

    row = graph_row(script)
    assert not row.failed
    assert "bit-identical to no graph: yes" in row.details

    def stale(self: Any, function: Any) -> Any:
        result = function()
        return lambda: result

    monkeypatch.setattr(gpu_builds.Rerun, "record", stale)
    row = graph_row(script)
    assert row.failed
    assert "bit-identical to no graph: NO" in row.details


@pytest.mark.parametrize(
    ("alone", "aims", "detail"),
    [
        (None, ["<= 1.3 x kernels: not measured"], "kernels alone: not measured"),
        (0.8, ["<= 1.3 x kernels: met"], "kernels alone: 800.000 ms, 1.25 times"),
        (0.5, ["<= 1.3 x kernels: not met"], "kernels alone: 500.000 ms, 2.00 times"),
    ],
)
def test_kernels_alone_are_told_or_missing(
    alone: float | None, aims: list[str], detail: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_builds

    monkeypatch.setattr(gpu_builds, "kernel_seconds", lambda *given: alone)
    row = graph_row(script, 1)
    row.aims, row.backend, row.seconds = [], gpu_builds.AIMED_AT, 1.0
    row.profile(1, CPU)
    assert row.aims == aims
    assert row.details[-1] == detail


def test_copies_are_no_kernels(script: ModuleType) -> None:
    from gpu_measuring import is_kernel

    names = ["Memcpy DtoH (Device -> Pinned)", "Memset (Device)", "gru_kernel"]
    events = [SimpleNamespace(name=name, device_type=DeviceType.CUDA) for name in names]
    events.append(SimpleNamespace(name="cudaGraphLaunch", device_type=DeviceType.CPU))
    assert [is_kernel(event) for event in events] == [False, False, True, False]


def test_the_exit_code_tells(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_measuring import Row

    monkeypatch.setenv("DISABLE_CUPTI_LAZY_REINIT", "1")
    monkeypatch.setenv("TEARDOWN_CUPTI", "0")
    for failed in (False, True):
        rows = [Row("build", "a", "b", "c", failed=failed), Row("tests", "a", "b", "c")]
        monkeypatch.setattr(script, "measure", lambda setup, device, rows=rows: rows)
        assert script.main(TINY) == int(failed)


def test_failures_are_rows(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    row = script.Step("build", "heap", "triton", broken).attempt()
    assert row.failed
    assert row.cells() == ["build", "heap", "triton", "failed", "", "RuntimeError"]
    assert script.run_pytest("none", ["--no-such-option"]).failed
    assert not script.run_pytest("none", ["--version"]).failed
    monkeypatch.setattr(script, "TESTS_TIMEOUT", 0.01)
    row = script.run_pytest("none", ["--version"])
    assert row.failed
    assert row.details == ["stopped"]
