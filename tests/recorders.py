"""Stand-ins for a CUDA graph on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from attrs import define, field
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specforge.correction.recording import Recorder

T = TypeVar("T")

aten = torch.ops.aten
READS_VALUES = {aten._local_scalar_dense, aten.nonzero, aten.is_nonzero, aten.masked_select, aten._unique2, aten.equal}
INDEXES = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
MASKS = {torch.bool, torch.uint8}
HANDS_OVER = {Tensor.tolist, Tensor.numpy, Tensor.cpu}


def tensors_in(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    return [t for value in values for t in tensors_in(value)] if isinstance(values, list | tuple) else []


def waits(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operation would wait for a device: by its kind, or because a mask decides the shape of its result."""
    by_mask = func.overloadpacket in INDEXES and any(t.dtype in MASKS for t in tensors_in(args[1]))
    return by_mask or func.overloadpacket in READS_VALUES


class NoHandover(TorchFunctionMode):
    """Refuses the methods that hand a host's values to Python without an operation that the tape would see."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in HANDS_OVER, f"{func} would wait for a device"
        return func(*args, **(kwargs or {}))


class Tape(TorchDispatchMode):
    """Keeps every operation, its operands and its results; refuses those that hand values to Python."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not waits(func, args), f"{func} would wait for a device"
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        given = {t.untyped_storage().data_ptr() for t in tensors_in([*args, *kwargs.values()])}
        made = [t.untyped_storage().data_ptr() not in given for t in tensors_in(results)]

        def again() -> None:
            for new, result, fresh in zip(made, tensors_in(func(*args, **kwargs)), tensors_in(results), strict=True):
                if new:
                    fresh.copy_(result)

        if "empty" not in func.overloadpacket.__name__:
            self.steps.append(again)
        return results


@define(eq=False)
class TapeRecorder(Recorder):
    """Repeats the operations of one run on the very tensors of that run, as a graph does. No Python runs again.

    Attributes:
        recorded: how many recordings there are.
    """

    recorded: int = 0
    tape: Tape | None = field(init=False, default=None)

    def record(self, function: Callable[[], T]) -> Callable[[], T]:
        assert not self.busy()
        self.recorded += 1
        self.tape = tape = Tape()
        try:
            with torch.inference_mode(False), torch.no_grad(), NoHandover(), tape:
                result = function()
        finally:
            self.tape = None

        def replay() -> T:
            for step in tape.steps:
                step()
            return result

        return replay

    def busy(self) -> bool:
        return self.tape is not None

    def launch(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return a kernel launch that is recorded too."""

        def launch(*arguments: Any, **constants: Any) -> None:
            # A kernel reads and writes memory, out of the modes' sight.
            with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
                original(*arguments, **constants)
            if self.tape is not None:
                self.tape.steps.append(lambda: original(*arguments, **constants))

        return launch


class Unrecorded(Recorder):
    """Leaves everything as it is: the same operations at the same shapes, without a graph."""

    def record(self, function: Callable[[], T]) -> Callable[[], T]:
        raise AssertionError("it is always busy")

    def busy(self) -> bool:
        return True
