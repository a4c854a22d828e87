"""One device, or several through accelerate: what the training loop needs to know of either."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from attrs import define, frozen
from torch import Tensor, nn
from torch.optim import Optimizer

from specforge.errors import ConfigError


class Devices(Protocol):
    """Where a run computes. ``rank`` of ``world`` processes; process 0 writes the files."""

    @property
    def rank(self) -> int:
        """This process's number."""
        ...

    @property
    def world(self) -> int:
        """How many processes there are."""
        ...

    def prepare(self, objective: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Any]:
        """Return both, ready for gradients that are averaged over the processes."""
        ...

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over the processes."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients."""
        ...

    def wait(self) -> None:
        """Wait for the other processes."""
        ...


@frozen(eq=False)
class OneDevice:
    """This process alone."""

    rank: int = 0
    world: int = 1

    def prepare(self, objective: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Any]:
        """Return both as they are."""
        return objective, optimizer

    def total(self, values: Tensor) -> Tensor:
        """Return ``values``."""
        return values

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients."""
        loss.backward()

    def wait(self) -> None:
        """Do nothing: there is no one to wait for."""


@define(eq=False, slots=False)
class Accelerated:
    """The processes that ``accelerate launch`` started, each with its share of every batch."""

    accelerator: Any

    @classmethod
    def join(cls, device: str) -> Accelerated:
        """Join the processes; ``device`` ``"cpu"`` keeps them off accelerators.

        Raises:
            ConfigError: when accelerate is not installed.
        """
        try:
            from accelerate import Accelerator
        except ImportError as error:
            raise ConfigError(
                'several devices need accelerate; run: pip install "specforge-decoding[train]"'
            ) from error
        return cls(Accelerator(cpu=device == "cpu"))

    @property
    def rank(self) -> int:
        """This process's number."""
        return int(self.accelerator.process_index)

    @property
    def world(self) -> int:
        """How many processes there are."""
        return int(self.accelerator.num_processes)

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return self.accelerator.device

    def prepare(self, objective: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Any]:
        """Wrap both."""
        return self.accelerator.prepare(objective, optimizer)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over the processes."""
        return self.accelerator.reduce(values, reduction="sum")

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients, averaged over the processes."""
        self.accelerator.backward(loss)

    def wait(self) -> None:
        """Wait for the other processes."""
        self.accelerator.wait_for_everyone()
