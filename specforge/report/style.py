"""One look for all figures: a pipeline has the same colour and marker in each of them.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; marker and line differ as well, so
that a figure can be read in print. A page replaces each colour by a variable, so that it can be another one on a dark
background.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from specforge.report.names import family_names
from specforge.report.records import BASELINE
from specforge.result import STAGES

INK = "#1d2329"
MUTED = "#5c6670"
RULE = "#d5dade"
PAPER = "#fffffe"

SERIES = ("#0072b2", "#d55e00", "#009e73", "#c4699b", "#d99a00", "#4ba6dd")
STAGE_COLOURS = {"draft": "#274b6d", "build": "#7196bb", "verify": "#b8c9d9", "commit": "#e2b871"}

VARIABLES: Mapping[str, str] = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    PAPER: "paper",
    **{colour: f"series-{number}" for number, colour in enumerate(SERIES, start=1)},
    **{STAGE_COLOURS[stage]: f"stage-{stage}" for stage in STAGES if stage in STAGE_COLOURS},
}
"""The name that a page gives each colour."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "<", "p", ">", "h")


@frozen
class Style:
    """How a pipeline is drawn.

    Attributes:
        colour: of its line, its markers and its name.
        marker: shape of its points.
        dashed: whether its line is broken: every second time the colours go round.
        strength: opacity among those of one colour, 1 for the last of them.
    """

    colour: str
    marker: str
    dashed: bool
    strength: float = 1.0


def styles(pipelines: Mapping[str, Mapping[str, Any]]) -> dict[str, Style]:
    """Return every pipeline's style; those that differ in the budget only share a colour and differ in the marker."""
    families = family_names(pipelines)
    order = list(dict.fromkeys(family for name, family in families.items() if name != BASELINE))
    found = {}
    for family in order:
        lap, colour = divmod(order.index(family), len(SERIES))
        members = [name for name, own in families.items() if own == family and name != BASELINE]
        for member, name in enumerate(members):
            marker = _MARKERS[(order.index(family) + member) % len(_MARKERS)]
            strength = 0.4 + 0.6 * (member + 1) / len(members)
            found[name] = Style(SERIES[colour], marker, lap % 2 == 1, strength)
    return {name: found.get(name, Style(INK, "o", dashed=False)) for name in pipelines}
