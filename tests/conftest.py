"""What all tests share: the tiny trained target, its drafters, and what others computed with them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    # Triton decides when it is imported, which may be below, whether kernels are interpreted.
    os.environ["TRITON_INTERPRET"] = "1"

from specforge.target import Target, load_target

TINY = Path(__file__).parent / "data" / "qwen3-tiny-a"

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("default")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder() -> Path:
    return TINY


@pytest.fixture(scope="session")
def tiny_target() -> Target:
    return load_target(str(TINY / "target"), dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    return json.loads((TINY / "golden.json").read_text())


@pytest.fixture(scope="session")
def golden_conditional() -> dict[str, Any]:
    return json.loads((TINY / "golden_conditional.json").read_text())
