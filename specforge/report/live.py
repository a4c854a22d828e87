"""What a terminal shows while a comparison runs: the table so far and a bar."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specforge.report.rows import summarise
from specforge.report.runfolder import RunData
from specforge.report.table import to_table

_SECONDS_BETWEEN = 0.5


class LiveTable:
    """Redraws between prompts only: no thread of the display runs while a generation is timed.

    Use it as a context manager, and its ``update`` as ``watch``.
    """

    def __init__(self, console: Console, disable: bool = False) -> None:
        """Draw on ``console``, or nowhere when it is no terminal."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, auto_refresh=False)
        self._task = self._bar.add_task("comparing", total=None)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._disable = disable or not console.is_terminal
        self._drawn = float("-inf")

    def __enter__(self) -> LiveTable:
        if not self._disable:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._disable:
            self._live.stop()

    def update(self, run: RunData, total: int) -> None:
        """Show what there is so far, unless the last drawing is very recent."""
        now = time.monotonic()
        if self._disable or now - self._drawn < _SECONDS_BETWEEN:
            return
        self._drawn = now
        done = len(run.generations)
        self._bar.update(self._task, total=total, completed=done)
        if done:
            last = run.generations[-1].case
            self._bar.update(self._task, description=f"{last.prompt_set}, T={last.temperature:g}")
        self._live.update(Group(to_table(summarise(run)), self._bar) if done else self._bar, refresh=True)
