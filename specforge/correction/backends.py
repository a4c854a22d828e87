"""What runs a correction head: a reference implementation, or one that computes the same faster on some device.

A drafter builds the eager head from its checkpoint; a backend takes it and returns the head that rounds run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch

from specforge.errors import ConfigError, IncompatiblePartsError, UnknownNameError, suggest
from specforge.interfaces import CorrectionHead

AUTO = "auto"
EAGER = "eager"


class CorrectionBackend(ABC):
    """Runs correction heads in its own way.

    ``rank`` orders the backends by how fast they are where they run at all; ``auto`` takes the highest.
    """

    rank: int = 0

    @abstractmethod
    def lacks(self, device: torch.device) -> str | None:
        """Return why this backend cannot run on ``device``, in words that follow "because"; ``None`` if it can."""

    @abstractmethod
    def run(self, head: CorrectionHead) -> CorrectionHead | None:
        """Return a head that computes what the eager ``head`` does, or ``None`` for a kind that it does not know."""


B = TypeVar("B", bound=type[CorrectionBackend])

_backends: dict[str, type[CorrectionBackend]] = {}


def register_backend(name: str) -> Callable[[B], B]:
    """Return a decorator that registers a ``CorrectionBackend`` class, which is constructed without arguments.

    Raises:
        ConfigError: when the name is taken by another class.
    """

    def add(cls: B) -> B:
        taken = _backends.get(name, cls)
        if name == AUTO or (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigError(f"correction backend {name!r} is registered already")
        _backends[name] = cls
        return cls

    return add


@register_backend(EAGER)
class Eager(CorrectionBackend):
    """Plain PyTorch operations, the reference."""

    def lacks(self, device: torch.device) -> str | None:
        """It runs everywhere."""
        return None

    def run(self, head: CorrectionHead) -> CorrectionHead:
        """Return the head itself, as its device runs it fastest."""
        return head.tuned()


def backend_names() -> list[str]:
    """Return the registered names."""
    return sorted(_backends)


def runnable(device: torch.device) -> list[str]:
    """Return the names of the backends that can run on ``device``."""
    return [name for name in backend_names() if _backends[name]().lacks(device) is None]


def check_backend_name(name: str) -> None:
    """Check that ``name`` is ``auto`` or registered.

    Raises:
        UnknownNameError: with near misses and the names there are.
    """
    if name != AUTO and name not in _backends:
        raise UnknownNameError(f"unknown correction backend {name!r}{suggest(str(name), [AUTO, *_backends])}")


def run_on(name: str, head: CorrectionHead, device: torch.device) -> CorrectionHead:
    """Return the head that the backend ``name`` makes of the eager ``head``, whose weights are on ``device``.

    ``auto`` is ``eager`` on a CPU, and elsewhere the fastest backend that can run this head.

    Raises:
        UnknownNameError: for an unregistered name.
        IncompatiblePartsError: when the backend cannot run on the device, or not this kind of head.
    """
    check_backend_name(name)
    if name == AUTO and device.type != "cpu":
        usable = (backend for cls in _backends.values() if (backend := cls()).lacks(device) is None)
        for backend in sorted(usable, key=lambda backend: -backend.rank):
            made = backend.run(head)
            if made is not None:
                return made
    backend = _backends[EAGER if name == AUTO else name]()
    reason = backend.lacks(device)
    if reason is not None:
        others = ", ".join(runnable(device))
        raise IncompatiblePartsError(
            f"correction {name!r} cannot run on {device}: {reason}; backends that can: {others}"
        )
    made = backend.run(head)
    if made is None:
        raise IncompatiblePartsError(f"correction {name!r} has no implementation of {type(head).__name__}; use 'eager'")
    return made
