"""Puts a figure's SVG into a page: its colours become the page's variables, its names unique, its text the page's."""

from __future__ import annotations

import re
from html import escape

from specforge.report.style import VARIABLES

_NAMED = re.compile(r'(\bid="|xlink:href="#|url\(#)')
_COLOUR = re.compile("|".join(VARIABLES), re.IGNORECASE)
_FONT = re.compile(r"font-family: [^;\"]*")
_FONT_SHORTHAND = re.compile(r"font: ([\d.]+)px [^;\"]*")
_OWN_LOOK = re.compile(r"\s*<metadata>.*?</metadata>|\s*<style.*?</style>", re.DOTALL)
_SIZE = re.compile(r'\s(?:width|height)="[\d.]+pt"')


def inline(svg: str, name: str, alt: str) -> str:
    """Return the ``<svg>`` element of a file that matplotlib wrote, for use within a page.

    Args:
        svg: the file's text, with text kept as text.
        name: prefix of every id, so that several figures can share a page.
        alt: the text alternative.
    """
    element = svg[svg.index("<svg") :]
    head, _, body = element.partition(">")
    body = _OWN_LOOK.sub("", body)
    body = _NAMED.sub(rf"\1{re.escape(name)}-", body)
    body = _COLOUR.sub(lambda found: f"var(--{VARIABLES[found.group().lower()]})", body)
    body = _FONT.sub("font-family: var(--figure-font)", body)
    body = _FONT_SHORTHAND.sub(r"font: \1px var(--figure-font)", body)
    head = _SIZE.sub("", head)
    return f'{head} role="img" aria-label="{escape(alt)}">{body.strip()}'
