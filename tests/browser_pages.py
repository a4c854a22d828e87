"""Pages in a real browser, headless and without a network; what is not installed skips the tests that import this."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[browser]'")

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
SECONDS = 120_000

MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome on the path"),
]

OpenPage = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=BROWSER, args=QUIET, timeout=SECONDS)
        yield found
        found.close()


@contextmanager
def offline_pages(browser: Any, file: Path, width: int) -> Iterator[tuple[OpenPage, list[str]]]:
    """Give what opens ``file`` at a width, and the addresses asked for; whatever the console says fails the test."""
    contexts, complaints, requests = [], [], []

    def call(width: int = width, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, offline=True, **options)
        context.set_default_timeout(SECONDS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        return page

    yield call, requests
    for context in contexts:
        context.close()
    assert not complaints
