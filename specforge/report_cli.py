"""The command ``specforge report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from specforge.cli_options import AsJson, print_json
from specforge.errors import ConfigError
from specforge.report.datatable import to_rich
from specforge.report.names import short_names
from specforge.report.runfolder import RunData, read_run
from specforge.report.versus import versus
from specforge.report.versus_page import versus_page
from specforge.report.versus_tables import changes_table, differences_table, findings


def report(
    runs: Annotated[list[Path], typer.Argument(help="The folder of a run, or of two to compare.")],
    html: Annotated[Path | None, typer.Option("--html", help="Of two runs: also write the comparison here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's report into its folder and print the summary; of two runs, say what differs beyond noise."""
    if len(runs) > 2:
        raise ConfigError(f"{len(runs)} runs are given; a report is on one run, or compares two")
    if len(runs) == 1:
        if html is not None:
            raise ConfigError(f"--html is {str(html)!r}; the report of one run is written into its folder")
        _one(runs[0], as_json)
    else:
        _two(runs[0], runs[1], html, as_json)


def _one(folder: Path, as_json: bool) -> None:
    from specforge.report.write import write_report  # matplotlib takes a second to import

    written = write_report(folder)
    if as_json:
        print_json(written.to_json())
        return
    console = Console(highlight=False, emoji=False)
    for table in written.tables():
        console.print(to_rich(table))
        console.print()
    print(f"wrote {written.page}")


def _two(first: Path, second: Path, html: Path | None, as_json: bool) -> None:
    runs = read_run(first), read_run(second)
    found = versus(*runs)
    if html is not None:
        _write(html, versus_page(found, runs, (str(first), str(second))))
    if as_json:
        print_json({"first": str(first), "second": str(second), **found.to_json()})
        return
    names = _names(runs)
    console = Console(highlight=False, emoji=False)
    if found.differences:
        console.print(to_rich(differences_table(found, names)))
        console.print()
    if found.changes:
        console.print(to_rich(changes_table(found)))
        console.print()
    for line in findings(found, names):
        print(line)
    if html is not None:
        print(f"wrote {html}")


def _names(runs: tuple[RunData, RunData]) -> dict[str, str]:
    return short_names(list(dict.fromkeys([*runs[0].pipelines, *runs[1].pipelines])))


def _write(file: Path, page: str) -> None:
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {str(file)!r}: {error.strerror or error}") from error
