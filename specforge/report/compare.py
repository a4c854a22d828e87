"""Run several pipelines on the same prompts in one process, interleaved, and compare them with ``ar``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field
from rich.table import Table

from specforge.errors import ConfigError
from specforge.pipeline import Pipeline
from specforge.report.environment import hardware, versions
from specforge.report.figure import draw
from specforge.report.frames import to_frame
from specforge.report.prompts import PromptItem, PromptSet
from specforge.report.records import BASELINE
from specforge.report.rows import Row, summarise
from specforge.report.runfolder import RunData, RunFolder, read_run
from specforge.report.runner import Plan, Runner, check
from specforge.report.table import to_json, to_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

__all__ = ["BASELINE", "Comparison", "Row", "compare", "generations"]


@define(eq=False)
class Comparison:
    """What a comparison found.

    Attributes:
        data: every generation, and every round where rounds were kept.
        folder: the run's folder, or ``None`` when nothing was written.
    """

    data: RunData
    folder: Path | None = None
    _rows: tuple[Row, ...] | None = field(default=None, init=False, repr=False)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Comparison:
        """Read the folder of a run, finished or not.

        Raises:
            ConfigError: naming the file that cannot be read.
        """
        return cls(read_run(folder), Path(folder))

    @property
    def rows(self) -> tuple[Row, ...]:
        """The figures by prompt set, temperature and pipeline, in the order these were given."""
        if self._rows is None:
            self._rows = summarise(self.data)
        return self._rows

    @property
    def settings(self) -> dict[str, Any]:
        """What the pipelines were run with, and on what."""
        data = self.data
        return {
            **data.settings,
            "pipelines": dict(data.pipelines),
            "versions": dict(data.versions),
            "hardware": dict(data.hardware),
        }

    def table(self) -> Table:
        """Return the rows as a table for terminals and notebooks."""
        return to_table(self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the rows and the settings as one JSON object (see ``table.to_json``)."""
        return to_json(self)

    def to_pandas(self, what: str = "rows") -> DataFrame:
        """Return a data frame.

        Args:
            what: ``"rows"``, ``"generations"`` or ``"rounds"``.

        Raises:
            ConfigError: when pandas is not installed, or there is no such frame.
        """
        return to_frame(self.data, self.rows, what)

    def plot(self, kind: str, temperature: float | None = None) -> Figure:
        """Draw one of the report's figures.

        Args:
            kind: which; an unknown one is refused with those there are.
            temperature: of the generations that it shows; by default the first.

        Raises:
            ConfigError: when there is no such figure, the data does not allow it, or matplotlib is missing.
        """
        return draw(self.data, kind, temperature)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a run's folder, as if the comparison had been made with ``out=folder``.

        Raises:
            ConfigError: when there is something there already, or it cannot be written.
        """
        written = RunFolder.create(folder, self.data)
        written.append(self.data.generations, self.data.rounds)
        return written.path

    def __rich__(self) -> Table:
        return self.table()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """Show the table in a notebook."""
        return self.table()._repr_mimebundle_(options.get("include", ()), options.get("exclude", ()))


def compare(
    pipelines: Mapping[str, Pipeline],
    prompts: Sequence[PromptItem] | Sequence[PromptSet],
    options: Mapping[str, Any] | None = None,
    *,
    temperatures: Sequence[float] | None = None,
    repeats: int = 1,
    order_seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    keep_rounds: bool | None = None,
    command: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda _name: None,
    watch: Callable[[RunData, int], None] = lambda _run, _total: None,
) -> Comparison:
    """Run every pipeline on every prompt before the next repeat; the order is shuffled with a seed.

    A chat of several turns is carried on with ``ar``'s answers, so that all pipelines see the same prompts.

    Args:
        pipelines: by name; one of them is ``"ar"``, all with the same target.
        prompts: conversations, or several sets of them.
        options: keyword options of ``Pipeline.generate``.
        temperatures: run everything at each; by default at the one of ``options``.
        repeats: how often everything is run, at least 1.
        order_seed: of the order of prompts and pipelines, at least 0.
        out: a folder that results are written to as they come.
        resume: go on with the run in ``out``.
        keep_rounds: keep every verification round; by default where there is a folder.
        command: the command line, to be recorded.
        progress: called with the pipeline's name after each generation.
        watch: called at the start and after each prompt with what there is so far and how many generations there will
            be; nothing is timed then.

    Raises:
        ConfigError: when there is no ``ar``, no prompt or no repeat, or ``out`` cannot be used.
    """
    if BASELINE not in pipelines:
        raise ConfigError(f"a comparison needs the pipeline {BASELINE!r}; got {', '.join(pipelines) or 'none'}")
    if out is not None and not resume:
        RunFolder.check_free(out)
    others = dict(options or {})
    alone = others.pop("temperature", 0.0)
    plan = Plan(
        prompt_sets=_by_name(prompts),
        options=_reusable(others),
        temperatures=(alone,) if temperatures is None else tuple(temperatures),
        repeats=repeats,
        order_seed=order_seed,
        keep_rounds=out is not None if keep_rounds is None else keep_rounds,
    )
    check(pipelines, plan)
    data = new_run(pipelines, plan, command)
    folder = None if out is None else open_folder(out, data, resume)
    Runner(pipelines, plan, data, folder, on_generation=progress, on_case=watch).run()
    return Comparison(data, None if folder is None else folder.path)


def generations(prompts: Sequence[PromptItem], pipelines: int, repeats: int) -> int:
    """Return how often ``compare`` will call its ``progress``, at one temperature."""
    return sum(len(item.turns) for item in prompts) * pipelines * repeats


def new_run(pipelines: Mapping[str, Pipeline], plan: Plan, command: Sequence[str] | None = None) -> RunData:
    """Return the run that a plan will fill, with everything needed to repeat it."""
    target = pipelines[BASELINE].target
    options = plan.options_at(plan.temperatures[0])
    settings = {
        "target": target.name,
        "device": str(target.device),
        "dtype": str(target.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "max_new_tokens": options.max_new_tokens,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "repetition_penalty": options.repetition_penalty,
        "seed": options.seed,
        "stop_token_ids": None if options.stop_token_ids is None else list(options.stop_token_ids),
        "stop_strings": list(options.stop_strings),
        "raw": options.raw,
        "template_args": dict(options.template_args),
        "order_seed": plan.order_seed,
        "repeats": plan.repeats,
        "keep_rounds": plan.keep_rounds,
        "temperatures": list(plan.temperatures),
        "prompt_sets": {name: prompt_set.describe() for name, prompt_set in plan.prompt_sets.items()},
    }
    return RunData(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=None if command is None else list(command),
        settings=_plain(settings),
        pipelines={name: _plain(pipeline.config.to_dict()) for name, pipeline in pipelines.items()},
        versions=versions(),
        hardware=hardware(target.device),
    )


def open_folder(out: str | os.PathLike[str], data: RunData, resume: bool) -> RunFolder:
    """Start the folder of ``data``, or fill ``data`` from the one there.

    Raises:
        ConfigError: when there is a run that was not to be resumed, none to resume, or one made otherwise.
    """
    if not resume:
        return RunFolder.create(out, data)
    folder, found = RunFolder.resume(out)
    check_same(Path(out), found, data)
    data.created, data.command = found.created, found.command
    data.generations, data.rounds = found.generations, found.rounds
    return folder


def check_same(path: Path, found: RunData, wanted: RunData) -> None:
    """Refuse to go on with a run that was made with something else.

    Raises:
        ConfigError: naming all that differs.
    """
    parts = ("settings", "pipelines", "versions", "hardware")
    differing = [line for part in parts for line in _differences(getattr(found, part), getattr(wanted, part), (part,))]
    if differing:
        raise ConfigError(
            f"the run in {str(path)!r} was made with {'; '.join(differing)}; "
            "give what it was made with, or another folder"
        )


def _differences(found: Any, wanted: Any, place: tuple[str, ...]) -> list[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        # Where prompts were read from does not matter; their digest says whether they are the same.
        keys = [key for key in {**found, **wanted} if key != "source"]
        return [line for key in keys for line in _differences(found.get(key), wanted.get(key), (*place, key))]
    name = ".".join(place).removeprefix("settings.")
    return [] if found == wanted else [f"{name} {_short(found)}, not {_short(wanted)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _by_name(prompts: Sequence[PromptItem] | Sequence[PromptSet]) -> dict[str, PromptSet]:
    sets = [prompt for prompt in prompts if isinstance(prompt, PromptSet)]
    items = [prompt for prompt in prompts if isinstance(prompt, PromptItem)]
    if not sets:
        sets = [PromptSet("prompts", "Python", tuple(items))]
    elif items:
        raise ConfigError(f"prompts holds both prompt sets and single prompts, such as {items[0].name!r}; give sets")
    named = {prompt_set.name: prompt_set for prompt_set in sets}
    if len(named) < len(sets):
        names = [prompt_set.name for prompt_set in sets]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"two prompt sets are called {twice!r}; rename one of them")
    return named


def _reusable(options: dict[str, Any]) -> dict[str, Any]:
    """Keep what may be an iterator as a list, since it is read for every generation."""
    stops = options.get("stop_token_ids")
    return {**options, "stop_token_ids": list(stops)} if isinstance(stops, Iterable) else options


def _plain(value: Any) -> Any:
    """Return what JSON makes of a value; an object is its own ``to_dict``, or else its ``repr``."""
    return json.loads(json.dumps(value, default=_described))


def _described(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.to_dict() if hasattr(value, "to_dict") else repr(value)
