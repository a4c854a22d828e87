"""Recording what a function does, to do it again: CUDA graphs, behind an interface that a host can stand in for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from attrs import define, field

T = TypeVar("T")

_WARM_UPS = 2
"""Runs before a capture: the first compiles kernels and makes the libraries' handles, the second finds them made."""


class Recorder(ABC):
    """Records functions of no arguments that run on buffers which stay where they are."""

    @abstractmethod
    def record(self, function: Callable[[], T]) -> Callable[[], T]:
        """Return what does the operations of ``function`` again, on the same buffers, whatever they hold by then.

        ``function`` decides nothing by the values of tensors and never waits for the device. What is returned gives
        the same tensors at every call, overwritten. ``function`` runs at least once for this, none of it counts as a
        call.
        """

    @abstractmethod
    def busy(self) -> bool:
        """Whether something is being recorded already, so that nothing else can be."""


@define(eq=False)
class CudaRecorder(Recorder):
    """Captures CUDA graphs that share one pool of memory, which nothing else allocates from.

    Graphs of a pool take turns: what one leaves behind between its operations, the next may overwrite, but never its
    results, which stay allocated. Calls come from one thread, on one stream at a time.

    Attributes:
        device: where the buffers are.
    """

    device: torch.device
    _pool: Any = field(init=False, factory=torch.cuda.graph_pool_handle)
    _stream: torch.cuda.Stream = field(init=False)

    @_stream.default
    def _side_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)

    def record(self, function: Callable[[], T]) -> Callable[[], T]:
        """Capture ``function`` after it has run on a side stream, where kernels are compiled and caches filled."""
        graph = torch.cuda.CUDAGraph()
        # Tensors of an inference session could not be written to outside of one.
        with torch.cuda.device(self.device), torch.inference_mode(False), torch.no_grad():
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    function()
            torch.cuda.current_stream().wait_stream(self._stream)
            # Other threads may allocate and wait meanwhile; it is their own streams that they do it on.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                result = function()

        def replay() -> T:
            with torch.cuda.device(self.device):
                graph.replay()
            return result

        return replay

    def busy(self) -> bool:
        """Whether the current stream is being captured, by this recorder or by anything else."""
        return torch.cuda.is_current_stream_capturing()
