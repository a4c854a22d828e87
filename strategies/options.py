"""Validators for the options of scorers and builders; each refusal names the option, its value and what would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import Attribute

from specforge import checks
from specforge.checks import number
from specforge.errors import ConfigError

Validator = Callable[[Any, "Attribute[Any]", Any], None]


def whole(minimum: int) -> Validator:
    """Take whole numbers from ``minimum`` on; booleans are none."""

    def check(instance: object, attribute: Attribute[Any], value: object) -> None:
        checks.whole(value, attribute.name, minimum)

    return check


def one_of(*names: str) -> Validator:
    """Take one of ``names``."""

    def check(instance: object, attribute: Attribute[Any], value: object) -> None:
        if value not in names:
            raise ConfigError(f"{attribute.name} is {value!r}; it must be {' or '.join(map(repr, names))}")

    return check


def positive(instance: object, attribute: Attribute[Any], value: object) -> None:
    """Take finite numbers above 0."""
    if number(value, attribute.name) <= 0.0:
        raise ConfigError(f"{attribute.name} is {value!r}; it must be above 0")


def candidate_count(value: object) -> int | None:
    """Convert the option ``candidates``: a whole number, or ``None`` or ``"all"`` for the whole vocabulary.

    Raises:
        ConfigError: for anything else.
    """
    if value is None or value == "all":
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"candidates is {value!r}; it must be a whole number, at least 1, or 'all'")
    return value


def at_most(limit: int, *others: int | None) -> int:
    """Return the smallest of the limits that there are."""
    return min([limit, *(other for other in others if other is not None)])
