"""The trace's page in a real browser, headless and without a network."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import browser_pages
import pytest
from browser_pages import MARKS, OpenPage, offline_pages
from trace_factory import PROMPT, make_trace

from specforge.trace import Trace, write_page

pytestmark = MARKS
browser = browser_pages.browser


@pytest.fixture(scope="module")
def trace() -> Trace:
    return make_trace()


@pytest.fixture(scope="module")
def page_file(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.html"
    write_page(trace, path)
    return path


@pytest.fixture
def open_page(browser: Any, page_file: Path) -> Iterator[OpenPage]:
    """Open the page at a width, offline; whatever the console says, or any request, fails the test."""
    with offline_pages(browser, page_file, 1200) as (call, requests):
        yield call
    assert set(requests) <= {page_file.as_uri(), "data:,"}


def where(page: Any) -> str:
    return page.inner_text("#where")


def accepted(page: Any) -> int:
    return page.locator("#tree .node.accepted").count()


def test_the_slider_and_the_keyboard_go_through_the_rounds(open_page: OpenPage, trace: Trace) -> None:
    page = open_page()
    rounds = len(trace.rounds)
    assert where(page) == f"round 1 of {rounds}"
    page.keyboard.press("ArrowRight")
    assert where(page) == f"round 2 of {rounds}"
    page.focus("#slider")
    page.keyboard.press("ArrowRight")
    assert where(page) == f"round 3 of {rounds}"
    assert page.get_attribute("#slider", "aria-valuetext") == f"round 3 of {rounds}"
    page.keyboard.press("End")
    assert where(page) == f"round {rounds} of {rounds}"
    assert page.is_disabled("#next")
    page.keyboard.press("Home")
    page.click("#next")
    assert where(page) == f"round 2 of {rounds}"
    page.click(".text .piece[data-round='5'] sup")
    assert where(page) == f"round 5 of {rounds}"
    assert page.locator(".text [aria-current]").get_attribute("data-round") == "5"


def test_every_round_shows_its_tree(open_page: OpenPage, trace: Trace) -> None:
    page = open_page()
    for number, round in enumerate(trace.rounds, start=1):
        assert where(page).startswith(f"round {number} ")
        assert accepted(page) == sum(node.accepted for node in round.nodes)
        assert page.locator("#tree .node.own").count() == round.targets_own
        label = page.get_attribute("#tree svg", "aria-label")
        assert f"{len(round.nodes) - 1} draft nodes" in label
        assert f"{len(round.emission.token_ids)} token" in label
        page.keyboard.press("ArrowRight")


def test_wide_trees_are_shown_in_part_or_whole(open_page: OpenPage, trace: Trace) -> None:
    page = open_page()
    nodes, own = len(trace.rounds[0].nodes), trace.rounds[0].targets_own
    part = page.locator("#tree .node").count() - own
    assert part < nodes
    assert page.inner_text("#hidden-nodes") == f"{nodes - part} unlikely nodes left out"
    page.check("#all")
    assert page.locator("#tree .node").count() == nodes + own
    page.click("#list-box summary")
    assert page.locator("#list li").count() == nodes + own


def test_what_a_model_writes_is_text(open_page: OpenPage, trace: Trace) -> None:
    page = open_page()
    assert page.title() == "dominotree <&> on a target"
    assert page.evaluate("document.querySelectorAll('main img, main b, main script').length") == 0
    pieces = page.evaluate(
        "[...document.querySelectorAll('.text .piece')].map((p) => [p.firstChild.textContent, p.lastChild.textContent])"
    )
    assert pieces == [[str(len(e.token_ids)), e.text] for e in trace.emissions]
    assert page.evaluate("document.getElementById('prompt').textContent") == PROMPT


def test_colours_tell_by_lightness_and_letters_stand_out(open_page: OpenPage) -> None:
    page = open_page()
    shades = page.evaluate(
        """() => [...Array(8).keys()].map((i) => {
          const span = document.createElement("span");
          span.className = `piece n${i + 1}`;
          document.body.append(span);
          const style = getComputedStyle(span);
          return [style.backgroundColor, style.color].map((c) => c.match(/\\d+/g).slice(0, 3).map(Number));
        })"""
    )
    backgrounds = [luminance(background) for background, _ in shades]
    assert backgrounds == sorted(backgrounds, reverse=True)
    assert all(a - b > 0.02 for a, b in pairwise(backgrounds))
    assert min(contrast(*map(luminance, pair)) for pair in shades) >= 4.5


def luminance(colour: list[int]) -> float:
    """Return the relative luminance of an sRGB colour, as the web's accessibility guidelines define it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: float, b: float) -> float:
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_the_tree_and_not_the_page(open_page: OpenPage, scheme: str) -> None:
    page = open_page(width=360, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("(({scrollWidth, clientWidth}) => scrollWidth > clientWidth)(document.getElementById('tree'))")
    for selector in ("#previous", "#next"):
        assert page.locator(selector).bounding_box()["height"] >= 44
