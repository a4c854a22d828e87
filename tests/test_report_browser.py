"""The report in a real browser, headless and without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser_pages
import pytest
from browser_pages import MARKS, OpenPage, offline_pages
from run_factory import METHODS, Method, make_run, tree, write_run

pytest.importorskip("matplotlib")
pytestmark = MARKS
browser = browser_pages.browser


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from specforge.report.write import write_report

    sizes = {f"dominotree[builder.budget={b}]": Method(0.8, b // 2, config=tree(b), ties=0.3) for b in (4, 8)}
    methods = {"ar": METHODS["ar"], "ngram": METHODS["ngram"], **sizes}
    sets = dict.fromkeys(("gsm8k", "humaneval", "mt-bench"), 3)
    return write_report(write_run(tmp_path_factory.mktemp("runs") / "run", make_run(methods, sets))).page


@pytest.fixture
def open_page(browser: Any, page_file: Path) -> Iterator[OpenPage]:
    """Open the report at a width, offline; whatever the console says, or any request, fails the test."""
    with offline_pages(browser, page_file, 1280) as (call, requests):
        yield call
    assert all(url.startswith(("file:", "data:")) for url in requests)


def column(page: Any, table: int, place: int) -> list[str | None]:
    script = """([table, place]) => [...document.querySelectorAll("table.sortable")[table].tBodies[0].rows]
        .map((row) => row.cells[place].dataset.value ?? null)"""
    return page.evaluate(script, [table, place])


def test_tables_sort_both_ways_by_mouse_and_keyboard(open_page: Any) -> None:
    page = open_page()
    before = column(page, 0, 2)
    header = page.locator("table.sortable").first.locator("thead tr:last-child th").nth(2)
    button = header.locator("button")
    assert header.get_attribute("aria-sort") == "none"
    button.click()
    assert header.get_attribute("aria-sort") == "descending"
    values = [float(value) for value in column(page, 0, 2)]
    assert values == sorted(map(float, before), reverse=True)
    button.focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert [float(value) for value in column(page, 0, 2)] == sorted(values)
    names = page.locator("table.sortable").first.locator("thead tr:last-child th").first
    names.locator("button").click()
    assert (names.get_attribute("aria-sort"), header.get_attribute("aria-sort")) == ("ascending", "none")
    assert column(page, 0, 0) == ["ar", "dominotree[budget=4]", "dominotree[budget=8]", "ngram"]


def test_what_has_no_value_is_sorted_last_either_way(open_page: Any) -> None:
    page = open_page()
    tables = page.evaluate("[...document.querySelectorAll('table.sortable')].map((t) => t.caption.textContent)")
    place = tables.index("τ against budget")
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    button = page.locator("table.sortable").nth(place).locator("thead th").nth(1).locator("button")
    for _ in range(2):
        button.click()
        assert column(page, place, 1)[-1] is None


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_window(open_page: Any, width: int) -> None:
    page = open_page(width)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(
        "[...document.querySelectorAll('.plot svg')].every((s) => s.getBoundingClientRect().width > 250)"
    )


def test_figures_are_images_with_names_to_a_screen_reader(open_page: Any) -> None:
    page = open_page()
    figures = page.get_by_role("img")
    assert figures.count() == page.locator("figure").count() == 6
    for index in range(figures.count()):
        assert "dominotree[budget=8]" in (figures.nth(index).get_attribute("aria-label") or "")


def test_colours_follow_the_scheme_and_print_is_light(open_page: Any) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('.plot svg text')).fill"
    light, dark = open_page(color_scheme="light"), open_page(color_scheme="dark")
    assert light.evaluate(background) != dark.evaluate(background)
    assert light.evaluate(ink) != dark.evaluate(ink)
    dark.emulate_media(media="print")
    assert dark.evaluate(background) == "rgb(255, 255, 255)"
    assert dark.evaluate(ink) == light.evaluate(ink)
