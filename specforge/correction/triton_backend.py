"""The ``triton`` backend. Triton itself is imported when a head is made: the core works without it."""

from __future__ import annotations

import os
import shutil
import sysconfig
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

from specforge.correction.backends import CorrectionBackend, register_backend
from specforge.correction.domino import DominoCorrection
from specforge.correction.markov import MARKOV_HEADS
from specforge.interfaces import CorrectionHead

LEAST_CAPABILITY = (8, 0)
"""The first CUDA devices that multiply bfloat16 matrices."""


@register_backend("triton")
class Triton(CorrectionBackend):
    """Fused Triton kernels: the recurrent step in one launch, a batch of nodes' candidates in two."""

    rank = 1

    def lacks(self, device: torch.device) -> str | None:
        """It needs Triton, and a CUDA device unless Triton interprets its kernels."""
        if find_spec("triton") is None:
            return "triton is not installed"
        if device.type == "cuda":
            return _cannot_launch(device)
        if device.type == "cpu" and _interpreted():
            return None
        return "its kernels need a CUDA device, or a CPU and Triton's interpreter"

    def run(self, head: CorrectionHead) -> CorrectionHead | None:
        """Return the head of the same weights in kernels; only the built-in kinds have one."""
        heads = import_module("specforge.correction.triton_heads")
        if type(head) is DominoCorrection:
            return heads.TritonDomino(head)
        if type(head) in MARKOV_HEADS:
            return heads.TritonMarkov(head)
        return None


def _cannot_launch(device: torch.device) -> str | None:
    """Return what keeps Triton from launching kernels on a CUDA device: it builds its launcher with a C compiler."""
    if torch.cuda.is_available() and (found := torch.cuda.get_device_capability(device)) < LEAST_CAPABILITY:
        wanted, has = (".".join(map(str, capability)) for capability in (LEAST_CAPABILITY, found))
        return f"its kernels need compute capability {wanted}, this device has {has}"
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton needs a C compiler, gcc, clang or what CC names, and finds none"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return None if headers.exists() else f"Triton needs the headers of Python, and there is no {headers}"


def _interpreted() -> bool:
    """Whether kernels run under Triton's interpreter, which they were told when they were defined."""
    return bool(import_module("specforge.correction.triton_kernels").INTERPRETED)
