"""Tables as data: what a page, a terminal and a test all read."""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from specforge.report.statistics import Interval

NOTHING = "–"


@frozen
class Cell:
    """One entry.

    Attributes:
        text: what is shown.
        value: what to sort by; a number also sets the entry to the right. ``None`` sorts last.
        detail: shown smaller, below or beside.
        strong: shown in bold.
    """

    text: str
    value: float | str | None = None
    detail: str = ""
    strong: bool = False

    @property
    def numeric(self) -> bool:
        """Whether it is a number, or stands where one is missing."""
        return isinstance(self.value, float | int) or self.text == NOTHING


@frozen(eq=False)
class DataTable:
    """A table whose first column names its rows.

    Attributes:
        caption: one line saying what it holds.
        columns: names, the first that of the row names.
        rows: entries, one a column.
        groups: names that span the columns after the first, with how many each spans; empty for none.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    groups: tuple[tuple[str, int], ...] = field(default=())

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers only."""
        return bool(self.rows) and all(row[column].numeric for row in self.rows)


def text_cell(text: object, strong: bool = False) -> Cell:
    """Return a cell that sorts by what it shows."""
    return Cell(str(text), str(text), strong=strong)


def number_cell(value: float | None, digits: int = 2, unit: str = "", strong: bool = False) -> Cell:
    """Return a number with so many digits after the point, or a dash for ``None``."""
    if value is None:
        return Cell(NOTHING)
    return Cell(f"{value:,.{digits}f}{unit}", value, strong=strong)


def interval_cell(found: Interval, digits: int = 2, unit: str = "", strong: bool = False) -> Cell:
    """Return the estimate with its interval as the detail."""
    if found.estimate is None:
        return Cell(NOTHING)
    return Cell(f"{found.estimate:,.{digits}f}{unit}", found.estimate, interval_text(found, digits), strong)


def interval_text(found: Interval, digits: int = 2) -> str:
    """Return ``low–high``, a word between them where one is negative; nothing for no interval or a single point."""
    if found.low is None or found.high is None or found.low == found.high:
        return ""
    between = "–" if found.low >= 0 else " to "
    return f"{found.low:,.{digits}f}{between}{found.high:,.{digits}f}"


def counted(number: int, word: str) -> str:
    """Return ``1 prompt``, ``2 prompts``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def to_rich(table: DataTable) -> Table:
    """Return ``table`` for the terminal, details beside the numbers."""
    shown = Table(box=SIMPLE_HEAD, padding=0, show_edge=False, caption=table.caption, caption_justify="left")
    for index, name in enumerate(table.columns):
        justify: Literal["left", "right"] = "right" if table.numeric(index) else "left"
        shown.add_column(name, justify=justify, vertical="bottom", no_wrap=index == 0, overflow="fold")
    for row in table.rows:
        shown.add_row(*(_markup(cell) for cell in row))
    return shown


def _markup(cell: Cell) -> str:
    text = f"[bold]{escape(cell.text)}[/bold]" if cell.strong else escape(cell.text)
    return f"{text} [dim]{escape(cell.detail)}[/dim]" if cell.detail else text
