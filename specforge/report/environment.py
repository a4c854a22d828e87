"""What a run was made with and on: the versions and the hardware that its numbers depend on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from specforge._version import __version__


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of what it computes with."""
    found = {
        "specforge-decoding": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": version("transformers"),
        "numpy": version("numpy"),
    }
    return found if torch.version.cuda is None else {**found, "cuda": torch.version.cuda}


def hardware(device: torch.device) -> dict[str, Any]:
    """Return the machine: ``cpu`` model, ``cores``, ``memory_gib``, ``system``, and the ``gpu`` that ``device`` is.

    Nothing in it changes between two runs on one machine.
    """
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # only Linux has it
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system says
        return None
    return round(total / 2**30, 1)
