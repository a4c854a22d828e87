"""Names -> classes: the built-in parts, those a program registers, and those that plugins bring."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from attrs import define, field

from specforge.errors import ConfigError, UnknownNameError, suggest
from specforge.interfaces import Drafter, Part, Scorer, TreeBuilder, Verifier

PLUGIN_GROUP = "specforge.plugins"
_BUILT_IN_PACKAGES = ("specforge.drafters", "specforge.strategies", "specforge.verifiers")

P = TypeVar("P", bound=Part)
C = TypeVar("C", bound=type)


class Registry(Generic[P]):
    """The classes of one kind of part, by name. Built-ins and plugins are loaded on the first look-up."""

    def __init__(self, kind: str, base: Any) -> None:
        self.kind = kind
        self.base = base
        self._classes: dict[str, type[P]] = {}

    def add(self, name: str, cls: type[P]) -> None:
        """Register ``cls`` as ``name``.

        Raises:
            ConfigError: when ``cls`` is of another kind or the name is taken by another class.
        """
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{self.kind} name {name!r} is no name; it must be a non-empty string")
        if not (isinstance(cls, type) and issubclass(cls, self.base)):
            raise ConfigError(f"{cls!r} is no {self.base.__name__} and cannot be registered as {self.kind} {name!r}")
        taken = self._classes.get(name)
        if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigError(f"{self.kind} {name!r} is registered already, by {taken.__module__}.{taken.__qualname__}")
        self._classes[name] = cls

    def get(self, name: str) -> type[P]:
        """Return the class called ``name``.

        Raises:
            UnknownNameError: with near misses and the names there are.
        """
        load_parts()
        if name not in self._classes:
            raise UnknownNameError(f"unknown {self.kind} {name!r}{suggest(name, self._classes)}")
        return self._classes[name]

    def name_of(self, part: P) -> str:
        """Return the name that ``part``'s class is registered under, or the class's own name."""
        return next((n for n, c in self._classes.items() if c is type(part)), type(part).__name__)

    def __iter__(self) -> Iterator[tuple[str, type[P]]]:
        """Iterate over (name, class), by name."""
        load_parts()
        return iter(sorted(self._classes.items()))


drafters: Registry[Drafter] = Registry("drafter", Drafter)
scorers: Registry[Scorer] = Registry("scorer", Scorer)
builders: Registry[TreeBuilder] = Registry("builder", TreeBuilder)
verifiers: Registry[Verifier] = Registry("verifier", Verifier)


class register:
    """Decorators that register a class whose constructor arguments are its config."""

    @staticmethod
    def drafter(name: str) -> Callable[[C], C]:
        """Register a ``Drafter``."""
        return _decorator(drafters, name)

    @staticmethod
    def scorer(name: str) -> Callable[[C], C]:
        """Register a ``Scorer``."""
        return _decorator(scorers, name)

    @staticmethod
    def builder(name: str) -> Callable[[C], C]:
        """Register a ``TreeBuilder``."""
        return _decorator(builders, name)

    @staticmethod
    def verifier(name: str) -> Callable[[C], C]:
        """Register a ``Verifier``."""
        return _decorator(verifiers, name)


def _decorator(registry: Registry[P], name: str) -> Callable[[C], C]:
    def add(cls: C) -> C:
        registry.add(name, cls)
        return cls

    return add


@define
class _Loaded:
    started: bool = False
    plugins: tuple[str, ...] = ()
    broken: dict[str, str] = field(factory=dict)


_loaded = _Loaded()


def load_parts() -> None:
    """Import the built-in parts and the plugins, once. A plugin that fails is kept in ``broken_plugins``."""
    if _loaded.started:
        return
    _loaded.started = True
    for package in _BUILT_IN_PACKAGES:
        importlib.import_module(package)
    found = entry_points(group=PLUGIN_GROUP)
    _loaded.plugins = tuple(sorted(point.name for point in found))
    for point in found:
        _load_plugin(point)


def _load_plugin(point: EntryPoint) -> None:
    try:
        point.load()
    except Exception as error:  # a plugin is foreign code: whatever it raises must not take the tool down
        _loaded.broken[point.name] = f"{point.value}: {type(error).__name__}: {error}"


def plugins() -> tuple[str, ...]:
    """Return the names of the installed plugins, working or not."""
    load_parts()
    return _loaded.plugins


def broken_plugins() -> dict[str, str]:
    """Return the plugins that could not be loaded, and why."""
    load_parts()
    return dict(_loaded.broken)
