"""A figure of a report: what it shows in a picture, in a table and in words; or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from specforge.report.datatable import DataTable
from specforge.report.measures import Place
from specforge.report.names import short_names
from specforge.report.runfolder import RoundLine, RunData
from specforge.report.style import Style, styles
from specforge.report.summary import Sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@frozen(eq=False)
class Chart:
    """One figure.

    Attributes:
        kind: which of the figures it is.
        temperature: of the generations that it shows.
        title: what it shows.
        caption: how to read it.
        alt: the numbers that matter, in words.
        table: all its numbers.
        draw: makes the matplotlib figure, in the context of ``plots.look``.
    """

    kind: str
    temperature: float
    title: str
    caption: str
    alt: str
    table: DataTable
    draw: Callable[[], Figure]

    @property
    def file_stem(self) -> str:
        """Name of its files, without the ending."""
        return f"{self.kind}-t{self.temperature:g}"


@frozen
class LeftOut:
    """A figure that the data does not allow.

    Attributes:
        kind: which of the figures it would be.
        temperature: of the generations that it would show.
        title: what it would show.
        reason: why there is none.
    """

    kind: str
    temperature: float
    title: str
    reason: str


@frozen(eq=False)
class View:
    """What the figures of one temperature are made of.

    Attributes:
        run: the run.
        samples: its sums by prompt, resampled.
        temperature: which.
        rounds: the rounds of the first repeat by pipeline; other repeats verify the same trees again.
        names: what to call the pipelines.
        styles: how to draw them.
    """

    run: RunData
    samples: Mapping[Place, Sample]
    temperature: float
    rounds: Mapping[str, Sequence[RoundLine]]
    names: Mapping[str, str]
    styles: Mapping[str, Style]

    @classmethod
    def of(cls, run: RunData, samples: Mapping[Place, Sample], temperature: float) -> View:
        """Pick what belongs to one temperature."""
        rounds: dict[str, list[RoundLine]] = {name: [] for name in run.pipelines}
        for line in run.rounds:
            if line.case.repeat == 0 and line.case.temperature == temperature:
                rounds[line.pipeline].append(line)
        return cls(run, samples, temperature, rounds, short_names(list(run.pipelines)), styles(run.pipelines))

    def samples_of(self, pipeline: str) -> list[Sample]:
        """Return a pipeline's samples at this temperature, one a prompt set."""
        return [s for p, s in self.samples.items() if (p.pipeline, p.temperature) == (pipeline, self.temperature)]

    def without_drafts(self) -> str:
        """Say why there is nothing about drafts to show."""
        return "no pipeline drafted anything" if any(self.rounds.values()) else "the run keeps no rounds"
