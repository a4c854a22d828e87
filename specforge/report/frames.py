"""A run as pandas data frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from specforge.errors import ConfigError, suggest
from specforge.report.rows import Row
from specforge.report.runfolder import RunData

if TYPE_CHECKING:
    from pandas import DataFrame


def to_frame(run: RunData, rows: Sequence[Row], what: str) -> DataFrame:
    """Return one line a row of the table, a generation or a verification round.

    Seconds by stage are columns ``draft_seconds``, ``verify_seconds`` and so on; what is a list stays one.

    Args:
        run: the run.
        rows: its summary.
        what: ``"rows"``, ``"generations"`` or ``"rounds"``.

    Raises:
        ConfigError: when pandas is not installed, or ``what`` is none of these.
    """
    frames: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "rows": lambda: [_row(row) for row in rows],
        "generations": lambda: [line.to_json() for line in run.generations],
        "rounds": lambda: [line.to_json() for line in run.rounds],
    }
    if what not in frames:
        raise ConfigError(f"there is no frame {what!r}{suggest(what, frames)}")
    try:
        import pandas
    except ImportError as error:
        raise ConfigError("to_pandas needs pandas: pip install 'specforge-decoding[report]'") from error
    return pandas.DataFrame([_spread(line) for line in frames[what]()])


def _row(row: Row) -> dict[str, Any]:
    fields = attrs.asdict(row, recurse=False)
    return {"pipeline": fields.pop("name"), **fields, "divergences": len(row.divergences)}


def _spread(line: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in line.items() if name != "stage_seconds"}
    return {**fields, **{f"{stage}_seconds": seconds for stage, seconds in line["stage_seconds"].items()}}
