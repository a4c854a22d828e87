"""``specforge.compare``: name pipelines and prompts, run them, and look at what came out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from specforge.errors import ConfigError
from specforge.report import compare as core
from specforge.report.compare import Comparison
from specforge.report.datasets import DEMO, HUB_SETS, load_prompt_set
from specforge.report.grid import axes_of
from specforge.report.prompts import PromptItem, PromptSet, texts
from specforge.report.runfolder import RunData, RunFolder
from specforge.selection import Choices, select, share_target
from specforge.target import Target

Source = str | os.PathLike[str] | PromptSet
Prompts = Source | Sequence[Source] | Sequence[PromptItem] | Mapping[str, Sequence[Any]]


def compare(
    pipelines: Choices,
    prompts: Prompts = DEMO,
    options: Mapping[str, Any] | None = None,
    *,
    target: str | os.PathLike[str] | Target | None = None,
    checkpoint: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    device: str | None = None,
    dtype: str | None = None,
    grid: Mapping[str, Iterable[Any]] | Sequence[str] | None = None,
    limit: int | None = None,
    paper: bool = False,
    temperatures: float | Sequence[float] | None = None,
    repeats: int = 1,
    order_seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    keep_rounds: bool = True,
    command: Sequence[str] | None = None,
    watch: Callable[[RunData, int], None] = lambda _run, _total: None,
) -> Comparison:
    """Run pipelines on the same prompts, interleaved, and compare them with plain decoding, ``ar``.

    Args:
        pipelines: preset names (also several in one text, separated by commas), config files, ``PipelineConfig`` and
            ``Pipeline`` objects, or a mapping that names such; ``ar`` is added.
        prompts: names of data sets, prompt files or ``PromptSet`` objects, one or several; or a mapping of names to
            lists of prompts, each a text, token ids, or a dict as in a line of a prompt file.
        options: keyword options of ``Pipeline.generate``.
        target: folder, hub id or loaded target; replaces every config's.
        checkpoint: drafter checkpoints; each drafter gets the one of its kind.
        device: replaces every config's.
        dtype: replaces every config's.
        grid: values of options, such as ``{"builder.budget": [8, 16]}``: one pipeline for every combination.
        limit: take only the first so many prompts of each set.
        paper: take the papers' samples of the data sets.
        temperatures: run everything at each; by default at the one of ``options``.
        repeats: how often everything is run; medians are reported.
        order_seed: of the order of prompts and pipelines.
        out: a folder that the run is written to as it goes on; without it nothing is written.
        resume: go on with the run in ``out``.
        keep_rounds: keep every verification round, which plots and the report need.
        command: the command line, to be recorded.
        watch: called at the start and after each prompt with what there is so far and how many generations there will
            be; nothing is timed then.

    Raises:
        ConfigError: for whatever cannot be used, before the first generation.
        CheckpointError: for a drafter checkpoint that cannot be read.
    """
    if out is not None and not resume:
        RunFolder.check_free(out)
    if resume and out is None:
        raise ConfigError("there is nothing to resume without the folder of a run; give it (--out)")
    sets = _prompt_sets(prompts, limit, paper)
    loaded = target if isinstance(target, Target) else None
    selection = select(
        pipelines,
        target=_name(target),
        checkpoints=_paths(checkpoint),
        device=device,
        dtype=dtype,
        axes=axes_of(grid),
    )
    return core.compare(
        share_target(selection, loaded),
        sets,
        options,
        temperatures=(temperatures,) if isinstance(temperatures, int | float) else temperatures,
        repeats=repeats,
        order_seed=order_seed,
        out=out,
        resume=resume,
        keep_rounds=keep_rounds,
        command=command,
        watch=watch,
    )


def _name(target: str | os.PathLike[str] | Target | None) -> str | None:
    if isinstance(target, Target):
        return target.name
    return None if target is None else os.fspath(target)


def _paths(checkpoint: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    several = [checkpoint] if isinstance(checkpoint, str | os.PathLike) else checkpoint
    return [os.fspath(path) for path in several]


def _prompt_sets(prompts: Prompts, limit: int | None, paper: bool) -> list[PromptSet]:
    single = isinstance(prompts, str | os.PathLike | PromptSet) or not isinstance(prompts, Iterable)
    sources: list[Any] = [prompts] if single else list(cast(Iterable[Any], prompts))
    named = not isinstance(prompts, Mapping)
    if paper and not (named and any(isinstance(source, str) and source in HUB_SETS for source in sources)):
        raise ConfigError(f"the papers' samples are of data sets; give one of {', '.join(HUB_SETS)} as prompts")
    if isinstance(prompts, Mapping):
        return [PromptSet(name, "Python", tuple(texts(given, limit))) for name, given in prompts.items()]
    if sources and all(isinstance(source, PromptItem) for source in sources):
        return [PromptSet("prompts", "Python", tuple(texts(sources, limit)))]
    return [_prompt_set(source, limit, paper) for source in sources]


def _prompt_set(source: Any, limit: int | None, paper: bool) -> PromptSet:
    if isinstance(source, PromptSet):
        return PromptSet(source.name, source.source, tuple(texts(source.items, limit)))
    if isinstance(source, str | os.PathLike):
        return load_prompt_set(source, paper=paper, limit=limit)
    raise ConfigError(
        f"prompts holds a {type(source).__name__}; it must be data sets, prompt files and PromptSets, "
        "or a dict of names and lists of prompts"
    )
