"""What to call pipelines where room is short, and which of them differ in their budget only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Config = Mapping[str, Any]

_BUDGET = "builder.budget="


def short_names(pipelines: Sequence[str]) -> dict[str, str]:
    """Return each name without the parts' names that a grid puts in: ``heap[budget=8]`` for ``heap[builder.budget=8]``.

    Where two would then be called the same, all keep their full names.
    """
    short = {name: _renamed(name, [word.partition(".")[2] or word for word in _words(name)]) for name in pipelines}
    return short if len(set(short.values())) == len(short) else {name: name for name in pipelines}


def family_names(pipelines: Mapping[str, Config]) -> dict[str, str]:
    """Return, for each pipeline, what to call it and those that differ from it in the builder's budget only.

    A family of a grid is called what its members are called without the budget, any other what its first member is; a
    pipeline without relatives keeps its name.
    """
    groups: dict[str, list[str]] = {}
    for name, config in pipelines.items():
        others = {key: value for key, value in builder_of(config).items() if key != "budget"}
        groups.setdefault(json.dumps({**config, "builder": others}, sort_keys=True, default=str), []).append(name)
    return {name: _family(names) for names in groups.values() for name in names}


def builder_of(config: Config) -> Config:
    """Return a config's builder, empty where it is none or a bare name."""
    builder = config.get("builder")
    return builder if isinstance(builder, Mapping) else {}


def budget_of(config: Config) -> int | None:
    """Return the builder's budget, ``None`` where it has none."""
    budget = builder_of(config).get("budget")
    return budget if isinstance(budget, int) else None


def _family(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    without = {_renamed(name, [word for word in _words(name) if not word.startswith(_BUDGET)]) for name in names}
    return without.pop() if len(without) == 1 else names[0]


def _words(name: str) -> list[str]:
    """Return what a grid set, as ``part.option=value``; a comma within a value does not end it."""
    stem, bracket, inside = name.partition("[")
    if not stem or not bracket or not name.endswith("]"):
        return []
    words: list[str] = []
    for piece in inside[:-1].split(","):
        if "=" in piece or not words:
            words.append(piece)
        else:
            words[-1] += f",{piece}"
    return words


def _renamed(name: str, words: Sequence[str]) -> str:
    if not _words(name):
        return name
    stem = name.partition("[")[0]
    return f"{stem}[{','.join(words)}]" if words else stem
