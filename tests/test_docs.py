"""The documentation: nothing is left out of the site, and the tutorial does what it says."""

from __future__ import annotations

import importlib
import re
import runpy
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from specforge import registry
from specforge.cli import app, main
from specforge.presets import PRESETS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
KINDS = {
    "drafters": registry.drafters,
    "scorers": registry.scorers,
    "builders": registry.builders,
    "verifiers": registry.verifiers,
}
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def pages(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}


def nav_pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
        return
    for child in entry.values() if isinstance(entry, dict) else entry:
        yield from nav_pages(child)


def nav_faults(nav: Any, there: set[str]) -> list[str]:
    named = list(nav_pages(nav))
    twice = {page for page in named if named.count(page) > 1}
    return sorted({*(set(named) ^ there), *twice})


def headings(text: str) -> set[str]:
    return set(re.findall(r"^#{1,4} (.+?)\s*$", FENCE.sub("", text), flags=re.MULTILINE))


def lacks_headings(text: str, names: Iterable[str]) -> list[str]:
    found = {heading.strip("`") for heading in headings(text)}
    return sorted(set(names) - found)


def built_in(kind: str) -> dict[str, type]:
    return {name: cls for name, cls in KINDS[kind] if cls.__module__.startswith("specforge.")}


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def nav() -> Any:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]


def test_the_site_shows_every_page_once(nav: Any) -> None:
    assert nav_faults(nav, pages(DOCS)) == []


def test_a_page_that_is_left_out_missing_or_shown_twice_is_found(nav: Any) -> None:
    there = pages(DOCS)
    assert nav_faults(nav[1:], there) == ["index.md"]
    assert nav_faults([*nav, {"More": [{"Gone": "gone.md"}]}], there) == ["gone.md"]
    assert nav_faults([*nav, {"Again": "index.md"}], there) == ["index.md"]


def test_every_preset_has_a_section() -> None:
    assert lacks_headings(read("presets.md"), PRESETS) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_has_a_section_on_the_page_of_its_kind(kind: str) -> None:
    assert lacks_headings(read(f"parts/{kind}.md"), built_in(kind)) == []


def test_a_part_without_a_section_is_found() -> None:
    page = read("parts/builders.md").replace("## `heap`", "## heaps")
    assert lacks_headings(page, built_in("builders")) == ["heap"]


def test_every_command_is_on_the_start_page() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert {"list", "generate", "compare", "train"} <= set(commands)
    assert [name for name in commands if f"`specforge {name}`" not in read("index.md")] == []


def references() -> list[str]:
    return [name for page in (DOCS / "api").glob("*.md") for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)]


def resolve(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError:
        return importlib.import_module(name)


def test_the_reference_names_what_there_is_once() -> None:
    names = references()
    assert len(names) == len(set(names)) > 50
    for name in names:
        assert resolve(name).__doc__, name


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_has_every_part(kind: str) -> None:
    assert sorted({f"{cls.__module__}.{cls.__qualname__}" for cls in built_in(kind).values()} - set(references())) == []


def run(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    words = shlex.split(command)
    if words[0] == "python":
        runpy.run_path(words[1], run_name="__main__")
    else:
        assert words[0] == "specforge"
        with pytest.raises(SystemExit) as exit_:
            main(words[1:])
        assert exit_.value.code == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_the_tutorial_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "130")
    fences = FENCE.findall(read("tutorial.md"))
    for _, title, text in fences:
        if title:
            Path(title).write_text(text, encoding="utf-8")
    commands = [line[2:] for kind, _, text in fences if kind == "console" for line in text.splitlines()]
    shown = [run(command, capsys) for command in commands]
    listing, inspected, plain, domino, traced, compared, reported, decoded, combs = shown
    assert "dominotree" in listing
    assert "fits" in inspected
    assert plain.split("\n\n")[0] == domino.split("\n\n")[0]
    assert "τ 1.00" in plain
    assert traced.strip()
    assert "dominotree" in compared
    assert "wrote" in reported
    assert Path("runs/first/report.html").is_file()
    blocks = [text for kind, _, text in fences if kind == "text"]
    assert decoded in blocks
    rows = dict(re.findall(r"^\| `([^`]+)` \| ([\d.]+) \|", read("tutorial.md"), flags=re.MULTILINE))
    assert {"ar", "comb", "dflash", "ddtree[budget=14]"} <= set(rows)
    for name, tau in rows.items():
        assert re.search(rf"^\s*{re.escape(name)}\s+{tau}\s.*", combs, flags=re.MULTILINE), (name, tau, combs)
