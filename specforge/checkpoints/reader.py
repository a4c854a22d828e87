"""Typed look-ups in a checkpoint's config; every refusal names the file, the key and the values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from specforge.errors import CheckpointError

REQUIRED: Any = object()


@frozen(eq=False)
class ConfigReader:
    """The places of one config file in which a key may stand.

    Attributes:
        file: the config file, for messages.
        places: prefix (``""`` for the top level, else such as ``"dflash_config."``) -> the object there.
    """

    file: Path
    places: Mapping[str, Mapping[str, Any]]

    def refuse(self, message: str) -> CheckpointError:
        """Return the error for this file."""
        return CheckpointError(f"{self.file}: {message}")

    def find(self, *names: str) -> tuple[str, Any] | None:
        """Return where one of the synonyms ``names`` stands and its value; null counts as absent.

        Raises:
            CheckpointError: when they stand in several places with different values.
        """
        found = [(p + n, o[n]) for p, o in self.places.items() for n in names if o.get(n) is not None]
        for key, value in found[1:]:
            if value != found[0][1]:
                raise self.refuse(f"{found[0][0]} is {found[0][1]!r} but {key} is {value!r}; they must agree")
        return found[0] if found else None

    def has(self, name: str) -> bool:
        """Return whether ``name`` stands anywhere, null or not."""
        return any(name in o for o in self.places.values())

    def value(self, *names: str, default: Any = REQUIRED) -> tuple[str, Any]:
        """Return ``find``'s answer, else ``default``.

        Raises:
            CheckpointError: when there is neither.
        """
        found = self.find(*names)
        if found is not None:
            return found
        if default is REQUIRED:
            places = " or ".join(f"{p}{names[0]}" for p in self.places)
            raise self.refuse(f"{places} is missing; it must be there, since a guess would draft wrongly")
        return names[0], default

    def whole(self, *names: str, least: int = 1, default: Any = REQUIRED) -> Any:
        """Return a whole number of at least ``least``, or ``default``."""
        key, value = self.value(*names, default=default)
        if value is default:
            return value
        if not is_whole(value) or value < least:
            raise self.refuse(f"{key} is {value!r}; it must be a whole number, at least {least}")
        return value

    def flag(self, *names: str, default: Any = REQUIRED) -> Any:
        """Return a boolean, or ``default``."""
        key, value = self.value(*names, default=default)
        if value is not default and not isinstance(value, bool):
            raise self.refuse(f"{key} is {value!r}; it must be true or false")
        return value

    def positive(self, *names: str, default: Any = REQUIRED) -> Any:
        """Return a finite float above 0, or ``default``."""
        key, value = self.value(*names, default=default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.refuse(f"{key} is {value!r}; it must be a finite number above 0")
        return float(value)


def is_whole(value: object) -> bool:
    """Return whether ``value`` is an int and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)
