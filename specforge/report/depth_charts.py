"""The figures of how deep drafts are accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specforge.report.chart import Chart, LeftOut, View
from specforge.report.datatable import DataTable, number_cell, text_cell
from specforge.report.depths import depth_curves
from specforge.report.plots import depths_figure

REACHED, FOLLOWED = "acceptance-by-depth", "acceptance-given-parent"
_TITLES = {REACHED: "Acceptance by depth", FOLLOWED: "Acceptance given the parent"}
_CAPTIONS = {
    REACHED: "Share of rounds that accepted at least so many drafts. The shares of one line add up to the drafts "
    "accepted a round, which is τ less the bonus token.",
    FOLLOWED: "Of the rounds that accepted one draft less and had drafted this deep, the share that accepted this one "
    "too. Deep points rest on few rounds.",
}
_SHARES = {REACHED: "share of rounds", FOLLOWED: "share of those rounds"}
_NAMED_DEPTHS = (1, 2, 4, 8, 16)


def depth_charts(view: View) -> list[Chart | LeftOut]:
    """Return both figures."""
    curves = depth_curves(view.rounds)
    if not curves:
        return [LeftOut(REACHED, view.temperature, _TITLES[REACHED], view.without_drafts())]
    return [
        _chart(REACHED, {curve.pipeline: curve.reached for curve in curves}, view),
        _chart(FOLLOWED, {curve.pipeline: curve.followed for curve in curves}, view),
    ]


def _chart(kind: str, lines: Mapping[str, Sequence[float | None]], view: View) -> Chart:
    words = (_words(view.names[name], shares) for name, shares in lines.items())
    return Chart(
        kind,
        view.temperature,
        _TITLES[kind],
        _CAPTIONS[kind],
        f"Lines over the number of drafts accepted: {_SHARES[kind]}. {' '.join(words)}",
        _table(_TITLES[kind], lines, view),
        lambda: depths_figure(lines, _SHARES[kind], view.names, view.styles),
    )


def _words(name: str, shares: Sequence[float | None]) -> str:
    known = {depth: shares[depth - 1] for depth in _NAMED_DEPTHS if depth <= len(shares)}
    return f"{name}: " + ", ".join(f"{share:.0%} at {d}" for d, share in known.items() if share is not None) + "."


def _table(caption: str, lines: Mapping[str, Sequence[float | None]], view: View) -> DataTable:
    deepest = max(map(len, lines.values()))
    rows = []
    for name, shares in lines.items():
        padded = [*shares, *[None] * (deepest - len(shares))]
        rows.append((text_cell(view.names[name]), *(number_cell(share, 3) for share in padded)))
    return DataTable(f"{caption}, by drafts accepted", ("pipeline", *map(str, range(1, deepest + 1))), tuple(rows))
