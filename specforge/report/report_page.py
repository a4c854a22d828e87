"""The report of one run as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen
from markupsafe import Markup

from specforge.report import budget_charts, depth_charts, reliability_chart, stage_chart
from specforge.report.chart import Chart, LeftOut
from specforge.report.datatable import DataTable, counted, interval_text, text_cell
from specforge.report.facts import command_line, facts_table, flat, hardware_words, plain
from specforge.report.html import Page, PageFigure, Section
from specforge.report.measures import Place, temperatures
from specforge.report.names import short_names
from specforge.report.output_tables import MOST_TIES, outputs_table, parted_table
from specforge.report.outputs import Outputs
from specforge.report.runfolder import RunData
from specforge.report.summary import Sample, SummaryRow, fastest_and_rivals
from specforge.report.summary_tables import paper_table, speed_table

_INTERVALS = (
    "Intervals are 95% bootstrap intervals over prompts, the same resamples for all pipelines, so that what makes a "
    "prompt easy or hard for all of them falls out of speed-ups. Averages give every prompt set the same weight. The "
    "best value of a column is in bold, ar apart."
)
_SPEED = (
    "τ is the number of tokens a verification round emits, the bonus token included. Speed-up compares seconds of "
    "decoding, from the first token to the last, with those of ar on the same prompts in the same process; seconds are "
    "medians over repeats."
)
_LOSSLESS = (
    "An output is one turn of one prompt; of its repeats the worst counts. Where an output parts from ar’s, the margin "
    "says how close the target’s choice was: the gap of its two best logits, or above temperature 0 the distance of "
    "the random number from the edge of the drawn token’s interval. The noise says how far the target’s own answers "
    "for that position differ with the number of tokens that run through it at once. A margin within the noise is a "
    "tie: rounding decides it."
)
_REPEAT = (
    "run.json holds every setting, generations.jsonl every output, rounds.jsonl every tree. The same command makes the "
    "same texts on the same versions and hardware; seconds will differ."
)


@frozen(eq=False)
class Findings:
    """What a report is written from.

    Attributes:
        run: the run.
        samples: its sums by prompt, resampled.
        rows: the summary.
        outputs: how outputs compare with ``ar``'s.
        charts: the figures, or why there is none.
    """

    run: RunData
    samples: Mapping[Place, Sample]
    rows: Sequence[SummaryRow]
    outputs: Sequence[Outputs]
    charts: Sequence[Chart | LeftOut]

    @property
    def names(self) -> dict[str, str]:
        """What to call the pipelines."""
        return short_names(list(self.run.pipelines))


def report_page(findings: Findings, pictures: Mapping[str, str]) -> Page:
    """Return the page.

    Args:
        findings: what the run comes to.
        pictures: for each chart's ``file_stem`` its ``<svg>`` element.
    """
    run = findings.run
    sections = (
        _summary(findings),
        _figures("time", "Where the time goes", (stage_chart.KIND,), findings, pictures),
        _figures("depth", "How deep drafts go", (depth_charts.REACHED, depth_charts.FOLLOWED), findings, pictures),
        _figures("budget", "What nodes buy", (budget_charts.ACCEPTANCE, budget_charts.SPEED), findings, pictures),
        _figures("probabilities", "Path probabilities", (reliability_chart.KIND,), findings, pictures),
        _losslessness(findings),
        _settings(run),
        _repeat(run),
    )
    title = f"Speculative decoding of {plain(run.settings.get('target'))}"
    return Page(title, _facts(findings), sections, "Made by specforge report.")


def _facts(findings: Findings) -> tuple[tuple[str, str], ...]:
    run, settings = findings.run, findings.run.settings
    device = ", ".join(plain(settings[key]) for key in ("dtype", "device") if key in settings)
    threads = f", {counted(settings['threads'], 'thread')}" if settings.get("threads") else ""
    sets = ", ".join(f"{name} ({entry.get('count')})" for name, entry in settings.get("prompt_sets", {}).items())
    return (
        ("hardware", hardware_words(run.hardware)),
        ("precision", f"{device}{threads}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())),
        ("prompts", sets),
        ("temperatures", ", ".join(f"{t:g}" for t in temperatures(run))),
        ("repeats", plain(settings.get("repeats"))),
        ("run", run.created),
    )


def _summary(findings: Findings) -> Section:
    at = temperatures(findings.run)
    lines = [_fastest(findings, temperature) for temperature in at] + [_lossless_words(findings.outputs)]
    tables = [paper_table(findings.rows, t, findings.names) for t in at]
    tables += [speed_table(findings.rows, t, findings.names) for t in at]
    found = tuple(line for line in [*_unfinished(findings), *lines] if line)
    return Section("summary", "Summary", found, text=(_SPEED, _INTERVALS), tables=tuple(tables))


def _fastest(findings: Findings, temperature: float) -> str:
    found = fastest_and_rivals(findings.samples, findings.rows, temperature)
    if found is None:
        return ""
    best, rivals = found
    where = "on average over the prompt sets" if best.prompt_set is None else f"on {best.prompt_set}"
    between = interval_text(best.speedup)
    speed = f"{best.speedup.estimate:.2f} times as fast as ar" + (f" ({between})" if between else "")
    tau = f"τ {best.acceptance_length.estimate:.2f}" if best.acceptance_length.estimate is not None else "no rounds"
    words = f"At temperature {temperature:g}, {findings.names[best.pipeline]} is {speed} {where}, with {tau}."
    if rivals:
        words += f" Not distinguishable from it on these prompts: {', '.join(findings.names[r] for r in rivals)}."
    return words


def _lossless_words(found: Sequence[Outputs]) -> str:
    compared = sum(o.outputs - o.distributional for o in found)
    identical, ties, differing = (sum(getattr(o, name) for o in found) for name in ("identical", "ties", "differing"))
    if not compared:
        return ""
    if identical == compared:
        return f"All {compared} outputs that were compared equal ar’s, token by token."
    words = (
        f"Of {compared} outputs that were compared, {identical} equal ar’s token by token, {ties} part from it at a tie"
    )
    return f"{words} and {differing} otherwise." if differing else f"{words} and none otherwise."


def _unfinished(findings: Findings) -> list[str]:
    """Say which prompt sets the run has not got through."""
    run = findings.run
    lines = []
    for name, entry in run.settings.get("prompt_sets", {}).items():
        for temperature in run.settings.get("temperatures", temperatures(run)):
            done = {
                g.case.prompt for g in run.generations if (g.case.prompt_set, g.case.temperature) == (name, temperature)
            }
            count = entry.get("count")
            if count is not None and len(done) < count:
                lines.append(f"Unfinished: {len(done)} of {count} prompts of {name} at temperature {temperature:g}.")
    return lines


def _figures(anchor: str, title: str, kinds: Sequence[str], findings: Findings, pictures: Mapping[str, str]) -> Section:
    mine = [chart for chart in findings.charts if chart.kind in kinds]
    several = len(temperatures(findings.run)) > 1
    figures, absent = [], []
    for chart in mine:
        at = f", temperature {chart.temperature:g}" if several else ""
        if isinstance(chart, Chart):
            svg = Markup(pictures[chart.file_stem])  # matplotlib escapes what it writes
            figures.append(PageFigure(f"{chart.title}{at}", svg, chart.caption, chart.table))
        else:
            absent.append(f"{chart.title}{at}: left out, since {chart.reason}.")
    return Section(anchor, title, figures=tuple(figures), absent=tuple(absent))


def _losslessness(findings: Findings) -> Section:
    if not findings.outputs:
        return Section("losslessness", "Losslessness", absent=("Left out, since ar ran alone.",))
    parted, unseen = parted_table(findings.outputs, findings.names)
    text = [_LOSSLESS]
    if unseen:
        text.append(f"The table of where outputs part has the first {MOST_TIES} ties; {unseen} more are in the run.")
    tables = (outputs_table(findings.outputs, findings.names), *((parted,) if parted.rows else ()))
    found = _lossless_words(findings.outputs)
    return Section("losslessness", "Losslessness", findings=(found,) if found else (), text=tuple(text), tables=tables)


def _settings(run: RunData) -> Section:
    pipelines = tuple((text_cell(name), text_cell(_config(config))) for name, config in run.pipelines.items())
    tables = (
        facts_table("Settings", run.settings),
        DataTable("Pipelines", ("name", "config"), pipelines),
        facts_table("Versions", run.versions),
        facts_table("Hardware", run.hardware),
    )
    return Section("settings", "Settings", names=tables)


def _config(config: Mapping[str, object]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in flat(config).items())


def _repeat(run: RunData) -> Section:
    command = command_line(run)
    text = (_REPEAT,) if command else ("The run was started from Python.", _REPEAT)
    return Section("repeat", "How to repeat it", text=text, code=command or "")
