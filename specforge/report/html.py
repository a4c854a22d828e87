"""Pages: one self-contained HTML file each, made from plain data; whatever is not markup already is escaped."""

from __future__ import annotations

from importlib.resources import files

from attrs import field, frozen
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from specforge.report.datatable import DataTable


@frozen(eq=False)
class PageFigure:
    """A figure with its picture.

    Attributes:
        title: what it shows.
        svg: an ``<svg>`` element with a text alternative.
        caption: how to read it.
        table: all its numbers.
    """

    title: str
    svg: Markup
    caption: str
    table: DataTable


@frozen(eq=False)
class Section:
    """One section; what is empty is left out.

    Attributes:
        anchor: its id.
        title: its heading.
        findings: what it comes to, one sentence each.
        text: paragraphs.
        code: something to copy.
        tables: tables that can be sorted.
        figures: figures, side by side where there is room.
        absent: figures that are left out, and why.
        names: tables of names and values.
    """

    anchor: str
    title: str
    findings: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    code: str = ""
    tables: tuple[DataTable, ...] = ()
    figures: tuple[PageFigure, ...] = ()
    absent: tuple[str, ...] = ()
    names: tuple[DataTable, ...] = ()


@frozen(eq=False)
class Page:
    """A page.

    Attributes:
        title: its heading.
        facts: names and values shown at the top.
        sections: what follows.
        footer: a last line.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    footer: str = field(default="")


def render(page: Page) -> str:
    """Return the HTML, with style, script and figures inside it and nothing to fetch."""
    data = files("specforge").joinpath("data")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    template = environment.from_string(data.joinpath("report.html.jinja").read_text(encoding="utf-8"))
    css, js = (Markup(data.joinpath(name).read_text(encoding="utf-8").strip()) for name in ("report.css", "report.js"))
    return template.render(page=page, css=css, js=js) + "\n"
