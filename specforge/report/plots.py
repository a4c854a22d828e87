"""Draws the figures of a report with matplotlib, small enough to be read on a phone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specforge.errors import ConfigError
from specforge.report.budgets import BudgetPoint, by_family
from specforge.report.reliability import EDGES, Reliability
from specforge.report.stages import StageBar
from specforge.report.statistics import Interval
from specforge.report.style import INK, MUTED, PAPER, RULE, STAGE_COLOURS, Style
from specforge.result import STAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.5
_LOOK: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "text.parse_math": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "specforge",
}

Names = Mapping[str, str]
Styles = Mapping[str, Style]


def look() -> Any:
    """Return the context in which figures are made and saved.

    Raises:
        ConfigError: when matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError('a report needs matplotlib; run: pip install "specforge-decoding[report]"') from error
    return matplotlib.rc_context(_LOOK)


def stages_figure(bars: Sequence[StageBar], names: Names) -> Figure:
    """Draw what a round takes as stacked bars, one a pipeline, in the order given, the first on top."""
    figure, axes = _figure(0.9 + 0.3 * len(bars))
    labels = [names[bar.pipeline] for bar in bars]
    left = [0.0] * len(bars)
    for stage in (stage for stage in STAGES if stage in STAGE_COLOURS):
        widths = [1e3 * bar.seconds[stage] for bar in bars]
        axes.barh(labels, widths, 0.72, left, label=stage, color=STAGE_COLOURS[stage], edgecolor=PAPER, linewidth=0.8)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, end in enumerate(left):
        axes.annotate(f"{end:.3g}", (end, place), (3, 0), textcoords="offset points", va="center", color=INK)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("milliseconds a round")
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    figure.legend(loc="outside upper left", ncols=len(STAGE_COLOURS), columnspacing=1.2, handlelength=1.0)
    return figure


def depths_figure(lines: Mapping[str, Sequence[float | None]], share: str, names: Names, styles: Styles) -> Figure:
    """Draw shares over the number of drafts accepted, a line a pipeline.

    Args:
        lines: for each pipeline the share at 1, 2, ... drafts.
        share: of what.
        names: what to call the pipelines.
        styles: how to draw them.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axes = _figure(2.6 + _legend_height(len(lines)))
    for name, shares in lines.items():
        heights = [math.nan if share is None else share for share in shares]
        style = styles[name]
        axes.plot(range(1, len(heights) + 1), heights, label=names[name], alpha=style.strength, **_line(style))
    axes.set(xlabel="drafts accepted", ylabel=share, ylim=(-0.02, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, len(lines))
    return figure


def acceptance_figure(points: Sequence[BudgetPoint], names: Names, styles: Styles) -> Figure:
    """Draw τ against the nodes verified a round."""
    families = by_family(points)
    figure, axes = _figure(2.6 + _legend_height(len(families)))
    for family, members in families.items():
        line = _line(styles[members[0].pipeline]) | {"label": _family_name(family, members, names)}
        _error_bars(axes, [p.nodes for p in members], [p.acceptance_length for p in members], **line)
    _budget_axis(axes, points)
    axes.set_ylabel("τ, tokens a round")
    _legend(figure, len(families))
    return figure


def speed_figure(points: Sequence[BudgetPoint], baseline: float | None, names: Names, styles: Styles) -> Figure:
    """Draw tokens a second against the nodes verified a round, and what the cost model predicts.

    Args:
        points: the pipelines that draft.
        baseline: plain decoding's tokens a second.
        names: what to call the pipelines.
        styles: how to draw them.
    """
    families = by_family(points)
    figure, axes = _figure(2.6 + _legend_height(len(families) + 2))
    entries = len(families)
    for family, members in families.items():
        line = _line(styles[members[0].pipeline])
        label = _family_name(family, members, names)
        _error_bars(axes, [p.nodes for p in members], [p.tokens_per_second for p in members], label=label, **line)
        predicted = [(p.nodes, p.predicted) for p in members if p.predicted is not None]
        if predicted:
            axes.plot(*zip(*predicted, strict=True), **line | {"linestyle": ":", "markerfacecolor": PAPER})
    if any(p.predicted is not None for p in points):
        axes.plot([], [], color=MUTED, linestyle=":", marker="o", markerfacecolor=PAPER, label="predicted")
        entries += 1
    if baseline is not None:
        axes.axhline(baseline, color=INK, linewidth=1.0, label="ar")
        entries += 1
    _budget_axis(axes, points)
    axes.set_ylabel("tokens a second")
    _legend(figure, entries)
    return figure


def reliability_figure(found: Sequence[Reliability], names: Names, styles: Styles) -> Figure:
    """Draw the accepted share against the promised probability, a panel a pipeline, both on square-root scales."""
    columns = min(2, len(found))
    rows = math.ceil(len(found) / columns)
    height = 3.4 if columns == 1 else 2.15 * rows + 0.3
    figure, _ = _figure(height, axes=False)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for axes, entry in zip(panels, found, strict=False):
        _reliability_panel(axes, entry, styles[entry.pipeline])
        axes.set_title(names[entry.pipeline], fontsize=9.0, loc="left", color=INK)
    for axes in panels[len(found) :]:
        axes.set_visible(False)
    figure.supxlabel("promised path probability", fontsize=9.0, color=MUTED)
    figure.supylabel("share accepted", fontsize=9.0, color=MUTED)
    return figure


def _reliability_panel(axes: Axes, entry: Reliability, style: Style) -> None:
    most = max(b.nodes for b in entry.bins)
    for b in entry.bins:
        # The square root's scale takes heights as it takes shares: a bar's height is drawn in proportion to its nodes.
        height = (0.3 * b.nodes / most) ** 2
        axes.bar(b.low, height, b.high - b.low, align="edge", color=RULE, edgecolor=PAPER, linewidth=0.5, zorder=0.5)
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle="--", zorder=1)
    promised = [b.promised for b in entry.bins]
    _error_bars(axes, promised, [b.accepted for b in entry.bins], **_line(style) | {"linewidth": 1.0})
    for scale in (axes.set_xscale, axes.set_yscale):
        scale("function", functions=(_root, _square))
    ticks = [0.0, 0.1, 0.3, 0.6, 1.0]
    axes.set(xlim=(EDGES[0], EDGES[-1] + 0.02), ylim=(EDGES[0], EDGES[-1] + 0.02))
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_yticks(ticks, [f"{t:g}" for t in ticks])


def _root(values: Any) -> Any:
    return np.sqrt(np.maximum(values, 0.0))


def _square(values: Any) -> Any:
    return np.square(values)


def _measured(
    axes: Axes, members: Sequence[BudgetPoint], found: Sequence[Interval], label: str, styles: Styles
) -> None:
    """Draw one family's line, its points and their intervals."""
    _error_bars(axes, [p.nodes for p in members], found, label=label, **_line(styles[members[0].pipeline]))


def _error_bars(axes: Axes, places: Sequence[float], found: Sequence[Interval], **line: Any) -> None:
    heights = [math.nan if i.estimate is None else i.estimate for i in found]
    below = [0.0 if i.low is None else max(0.0, h - i.low) for i, h in zip(found, heights, strict=True)]
    above = [0.0 if i.high is None else max(0.0, i.high - h) for i, h in zip(found, heights, strict=True)]
    axes.errorbar(places, heights, [below, above], elinewidth=1.0, **line)


def _family_name(family: str, members: Sequence[BudgetPoint], names: Names) -> str:
    return names[members[0].pipeline] if len(members) == 1 else names.get(family, family)


def _budget_axis(axes: Axes, points: Sequence[BudgetPoint]) -> None:
    sizes = [p.nodes for p in points]
    if min(sizes) > 0 and max(sizes) / min(sizes) >= 6:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("draft nodes verified a round")


def _line(style: Style) -> dict[str, Any]:
    return {
        "color": style.colour,
        "marker": style.marker,
        "linestyle": "--" if style.dashed else "-",
        "markerfacecolor": PAPER if style.dashed else style.colour,
    }


def _figure(height: float, axes: bool = True) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="none")
    return figure, figure.subplots() if axes else None


def _legend_height(entries: int) -> float:
    return 0.17 * math.ceil(entries / 2) + 0.1


def _legend(figure: Figure, entries: int) -> None:
    from matplotlib.container import ErrorbarContainer

    handles, labels = figure.axes[0].get_legend_handles_labels()
    # Pipelines come first, then the lines they are held against.
    order = sorted(range(len(handles)), key=lambda index: not isinstance(handles[index], ErrorbarContainer))
    figure.legend(
        [handles[index] for index in order],
        [labels[index] for index in order],
        loc="outside lower left",
        ncols=min(2, entries),
        columnspacing=1.2,
        handlelength=2.2,
    )
