"""Typed errors. Each carries one clear line: what was given, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpecforgeError(Exception):
    """Base of every error this package raises on purpose; the command line prints it and exits with 2."""


class ConfigError(SpecforgeError, ValueError):
    """A configuration value, prompt or option that cannot be used."""


class UnknownNameError(ConfigError):
    """A name that no registry holds."""


class IncompatiblePartsError(ConfigError):
    """Parts that cannot work together in one pipeline."""


class BrokenPartError(SpecforgeError):
    """A part that breaks the rules of its interface, such as a builder whose tree has another root."""


class CheckpointError(SpecforgeError):
    """A checkpoint that is missing, unreadable or not what it says it is."""


class UnsupportedTargetError(SpecforgeError):
    """A target model that tree verification cannot serve, with the layer type that stands in the way."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for a near miss, followed by the names that exist."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ";"
    return f"{hint} known: {', '.join(names) or 'none'}"
