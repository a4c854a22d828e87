"""Two runs compared, as a page."""

from __future__ import annotations

import shlex

from specforge.report.facts import command_line, hardware_words
from specforge.report.html import Page, Section, render
from specforge.report.names import short_names
from specforge.report.runfolder import RunData
from specforge.report.versus import Versus
from specforge.report.versus_tables import changes_table, differences_table, findings

_HOW = (
    "Where both runs have the same prompts, differences are paired by prompt. An interval is a 95% bootstrap interval "
    "of one change by itself. Whether a change is larger than its noise is judged for all of them together (Holm’s "
    "correction): the chance that any is called so when nothing changed is 5%.",
    "Resampling prompts cannot see that a whole machine was slower in one run: that moves tokens/s, of ar as of all "
    "others. Speed-ups compare with ar in the same run, and stay.",
)


def versus_page(found: Versus, runs: tuple[RunData, RunData], names: tuple[str, str]) -> str:
    """Return the HTML.

    Args:
        found: what ``versus`` returned.
        runs: the two runs.
        names: what to call them.
    """
    called = short_names(list(dict.fromkeys([*runs[0].pipelines, *runs[1].pipelines])))
    differences = (differences_table(found, called),) if found.differences else ()
    changes = (changes_table(found),) if found.changes else ()
    same = () if found.changes else ("Settings, versions, hardware and options are the same.",)
    sections = (
        Section("differences", "Differences", tuple(findings(found, called)), text=_HOW, tables=differences),
        Section("changes", "What else differs", text=same, names=changes),
        Section("repeat", "How to repeat it", text=_commands(runs), code=shlex.join(["specforge", "report", *names])),
    )
    facts = tuple(
        (word, f"{name}, of {run.created}, on {hardware_words(run.hardware)}")
        for word, name, run in zip(("first", "second"), names, runs, strict=True)
    )
    return render(Page("Two runs compared", facts, sections, "Made by specforge report."))


def _commands(runs: tuple[RunData, RunData]) -> tuple[str, ...]:
    commands = [command_line(run) or "started from Python" for run in runs]
    return tuple(f"The {word} run: {command}" for word, command in zip(("first", "second"), commands, strict=True))
