"""Checks of option values; each refusal names the option, its value and what would do."""

from __future__ import annotations

import math
import operator
from numbers import Real

from specforge.errors import ConfigError


def number(value: object, name: str) -> float:
    """Return a finite number as a float; text and booleans are none.

    Raises:
        ConfigError: for anything else.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigError(f"{name} is {value!r}; it must be a finite number")
    return float(value)


def whole(value: object, name: str, minimum: int, maximum: int | None = None) -> int:
    """Return a whole number of any integer type, from ``minimum`` to ``maximum``; booleans are none.

    Raises:
        ConfigError: for anything else.
    """
    limits = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
    refusal = ConfigError(f"{name} is {value!r}; it must be a whole number, {limits}")
    if isinstance(value, bool):
        raise refusal
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise refusal from None
    if found < minimum or (maximum is not None and found > maximum):
        raise refusal
    return found


def flag(value: object, name: str) -> bool:
    """Return a boolean.

    Raises:
        ConfigError: for anything else, since ``"no"`` would count as true.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False")
    return value
