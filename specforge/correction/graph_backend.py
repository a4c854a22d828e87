"""The backends ``cuda_graph`` and ``cuda_graph+eager``: another backend's head, recorded as CUDA graphs."""

from __future__ import annotations

import torch

from specforge.correction.backends import CorrectionBackend, Eager, register_backend
from specforge.correction.domino import DominoCorrection
from specforge.correction.graph_head import GraphHead
from specforge.correction.markov import MARKOV_HEADS, MarkovCorrection
from specforge.correction.recording import CudaRecorder
from specforge.correction.triton_backend import Triton
from specforge.interfaces import CorrectionHead


class Graphs(CorrectionBackend):
    """Replays what another backend's head does."""

    recorded: type[CorrectionBackend]

    def lacks(self, device: torch.device) -> str | None:
        """It needs a CUDA device, and what the recorded backend needs."""
        if device.type != "cuda":
            return "CUDA graphs need a CUDA device"
        return self.recorded().lacks(device)

    def run(self, head: CorrectionHead) -> CorrectionHead | None:
        """Return the recorded backend's head, replayed; only the built-in kinds have one."""
        if not (type(head) is DominoCorrection or type(head) in MARKOV_HEADS):
            return None
        assert isinstance(head, DominoCorrection | MarkovCorrection)
        inner = self.recorded().run(head)
        return None if inner is None else GraphHead(inner, CudaRecorder(head.up.device))


@register_backend("cuda_graph")
class GraphsOfTriton(Graphs):
    """CUDA graphs of the Triton kernels."""

    rank = 3
    recorded = Triton


@register_backend("cuda_graph+eager")
class GraphsOfEager(Graphs):
    """CUDA graphs of the plain PyTorch operations."""

    rank = 2
    recorded = Eager
