"""Names, near misses, duplicates, and plugins that do not work."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest

from specforge import registry
from specforge.errors import ConfigError, UnknownNameError
from specforge.interfaces import Draft, Part, Round, Scorer, TreeBuilder
from specforge.registry import Registry, register
from specforge.tree import DraftTree


class Leafless(TreeBuilder):
    """Builds nothing."""

    def build(self, draft: Draft, scorer: Scorer, round: Round) -> DraftTree:
        return DraftTree.root_only(round.root)


@pytest.fixture
def builders(monkeypatch: pytest.MonkeyPatch) -> Registry[TreeBuilder]:
    """A registry of tree builders that forgets what a test adds."""
    registry.load_parts()
    monkeypatch.setattr(registry.builders, "_classes", dict(registry.builders._classes))
    return registry.builders


BUILT_IN = {
    "drafters": {"none", "ngram"},
    "scorers": {"none", "trie"},
    "builders": {"none", "chain", "sampled"},
    "verifiers": {"greedy", "sampling", "rejection"},
}


@pytest.mark.parametrize("kind", BUILT_IN)
def test_the_built_in_parts_are_there_with_a_line_each(kind: str) -> None:
    parts = dict(getattr(registry, kind))
    assert BUILT_IN[kind] <= parts.keys()
    assert list(parts) == sorted(parts)
    for name, cls in parts.items():
        assert (cls.__doc__ or "").strip(), name
        assert getattr(registry, kind).get(name) is cls


@pytest.mark.parametrize(
    ("kind", "name", "near"),
    [("builders", "chian", "'chain'"), ("verifiers", "reject", "'rejection'"), ("drafters", "n-gram", "'ngram'")],
)
def test_an_unknown_name_is_refused_with_near_misses(kind: str, name: str, near: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        getattr(registry, kind).get(name)
    message = str(error.value)
    assert message.startswith(f"unknown {kind[:-1]} {name!r}; did you mean ")
    assert near in message.split("known:")[0]
    assert all(known in message.split("known: ")[1] for known in BUILT_IN[kind])


def test_a_name_like_no_other_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UnknownNameError, match="unknown builder 'qqqq'; known: ") as error:
        registry.builders.get("qqqq")
    assert "did you mean" not in str(error.value)


def test_a_class_is_registered_by_its_decorator(builders: Registry[TreeBuilder]) -> None:
    assert register.builder("leafless")(Leafless) is Leafless
    assert builders.get("leafless") is Leafless
    assert builders.name_of(Leafless()) == "leafless"
    register.builder("leafless")(Leafless)


def test_an_unregistered_part_goes_by_its_class_name() -> None:
    assert registry.builders.name_of(Leafless()) == "Leafless"


def test_a_taken_name_is_refused(builders: Registry[TreeBuilder]) -> None:
    with pytest.raises(ConfigError, match=r"'chain' is registered already, by specforge\.strategies\.chain\.Chain"):
        register.builder("chain")(Leafless)
    assert builders.get("chain").__name__ == "Chain"


@pytest.mark.parametrize("thing", [dict, Part, Leafless(), "chain"], ids=["class", "part", "instance", "name"])
def test_what_is_no_part_of_the_kind_is_refused(builders: Registry[TreeBuilder], thing: object) -> None:
    with pytest.raises(ConfigError, match="is no TreeBuilder and cannot be registered as builder 'thing'"):
        register.builder("thing")(thing)
    with pytest.raises(ConfigError, match="is no Verifier"):
        register.verifier("thing")(Leafless)


# --- plugins


class FakeEntryPoint(EntryPoint):
    """An entry point that runs a function instead of importing a module."""

    def load(self) -> object:
        return LOADERS[self.value]()


def _raise(error: BaseException) -> Callable[[], None]:
    def load() -> None:
        raise error

    return load


LOADERS: dict[str, Callable[[], object]] = {
    "good": lambda: register.builder("leafless")(Leafless),
    "missing": _raise(ModuleNotFoundError("No module named 'missing'")),
    "crashing": _raise(ZeroDivisionError("division by zero")),
    "clashing": lambda: register.builder("chain")(Leafless),
}


@pytest.fixture
def reload_with(builders: Registry[TreeBuilder], monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Load all parts afresh, with these plugins installed."""

    def reload(names: list[str]) -> None:
        points = [FakeEntryPoint(name, name, registry.PLUGIN_GROUP) for name in names]
        asked: list[str] = []
        monkeypatch.setattr(registry, "entry_points", lambda group: asked.append(group) or points)
        monkeypatch.setattr(registry, "_loaded", registry._Loaded())
        registry.load_parts()
        registry.load_parts()
        assert asked == [registry.PLUGIN_GROUP]

    return reload


def test_broken_plugins_are_kept_apart_and_break_nothing(reload_with: Callable[[list[str]], None]) -> None:
    reload_with(["missing", "good", "crashing", "clashing"])
    assert registry.plugins() == ("clashing", "crashing", "good", "missing")
    broken = registry.broken_plugins()
    assert broken.keys() == {"missing", "crashing", "clashing"}
    assert broken["missing"] == "missing: ModuleNotFoundError: No module named 'missing'"
    assert broken["crashing"] == "crashing: ZeroDivisionError: division by zero"
    assert "registered already" in broken["clashing"]
    assert registry.builders.get("leafless") is Leafless
    assert registry.builders.get("chain").__name__ == "Chain"


def test_the_report_of_broken_plugins_is_a_copy(reload_with: Callable[[list[str]], None]) -> None:
    reload_with(["crashing"])
    registry.broken_plugins().clear()
    assert list(registry.broken_plugins()) == ["crashing"]


def test_without_plugins_there_is_nothing_to_report(reload_with: Callable[[list[str]], None]) -> None:
    reload_with([])
    assert registry.plugins() == ()
    assert registry.broken_plugins() == {}
