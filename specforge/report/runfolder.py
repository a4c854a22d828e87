"""The folder of a comparison: what was run with what, every generation, and every verification round.

``run.json`` says everything needed to repeat the run; ``generations.jsonl`` has one line a finished generation,
``rounds.jsonl`` one line a verification round, written before its generation's line. A run that was killed leaves a
prefix of whole lines and perhaps one that was cut short; the readers and ``RunFolder.resume`` keep the cases that every
pipeline has finished, and nothing of the last, unfinished one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from attrs import define, field, frozen

from specforge.errors import ConfigError
from specforge.jsonfiles import read_object, write_object
from specforge.report.divergence import Divergence

FORMAT = 1
RUN_FILE = "run.json"
GENERATIONS_FILE = "generations.jsonl"
ROUNDS_FILE = "rounds.jsonl"

Json = dict[str, Any]


@frozen
class Case:
    """What all pipelines are given alike: one turn of one prompt at one temperature, in one repeat.

    Attributes:
        prompt_set: name of the prompt set.
        prompt: name of the prompt within its set.
        turn: 1 for the first user turn of a chat.
        temperature: 0 is greedy.
        repeat: 0 for the first.
    """

    prompt_set: str
    prompt: str
    turn: int
    temperature: float
    repeat: int


_CASE_FIELDS = tuple(a.name for a in attrs.fields(Case))


@frozen(eq=False)
class Generation:
    """One finished generation of one pipeline.

    Attributes:
        pipeline: name of the pipeline.
        case: what it was given.
        prompt_tokens: length of the prompt in tokens.
        token_ids: the new tokens, the stop token included.
        text: their text, ``None`` where the target has no tokenizer.
        acceptance_lengths: tokens emitted by each round; their sum is ``len(token_ids) - 1``.
        finish_reason: as in ``GenerationResult``.
        seconds_to_first_token: from the call to the first token.
        decode_seconds: from the first token to the last.
        stage_seconds: seconds by stage: prefill, draft, build, verify, commit.
        lossless: whether the output equals ``ar``'s of the first repeat or parts from it at a tie; ``"distributional"``
            where only the distribution is the target's; ``None`` for ``ar`` itself.
        divergence: where it parts from ``ar``'s output of the first repeat, ``None`` where it does not or is not
            compared.
    """

    pipeline: str
    case: Case
    prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str | None
    acceptance_lengths: tuple[int, ...]
    finish_reason: str
    seconds_to_first_token: float
    decode_seconds: float
    stage_seconds: Mapping[str, float]
    lossless: bool | str | None
    divergence: Divergence | None

    def to_json(self) -> Json:
        """Return the line's object."""
        return {**_flat(self), "divergence": None if self.divergence is None else _divergence_json(self.divergence)}

    @classmethod
    def from_json(cls, line: Json) -> Generation:
        """Read ``to_json``'s object.

        Raises:
            KeyError: for a missing field; TypeError or ValueError for one of another type.
        """
        values = _unflattened(cls, line)
        found = values["divergence"]
        values["divergence"] = None if found is None else _read_divergence(found, values["case"])
        return cls(**{**values, **{k: tuple(values[k]) for k in ("token_ids", "acceptance_lengths")}})


@frozen(eq=False)
class RoundLine:
    """One verification round.

    Attributes:
        pipeline: name of the pipeline.
        case: what it was given.
        round: 0 for the generation's first.
        context: committed tokens when the round began, the prompt and the root included.
        nodes: draft nodes of the tree, the root not counted.
        depth_counts: how many nodes there are at depth 1, 2, ...
        accepted: tokens emitted, the bonus token included.
        path: the accepted nodes, the root (0) first.
        path_probs: the probability of the path to node 1, 2, ... as the builder's scores have it, rounded to 4
            significant digits; ``None`` where the builder works without scores.
        stage_seconds: seconds by stage of this round.
    """

    pipeline: str
    case: Case
    round: int
    context: int
    nodes: int
    depth_counts: tuple[int, ...]
    accepted: int
    path: tuple[int, ...]
    path_probs: tuple[float, ...] | None
    stage_seconds: Mapping[str, float]

    def to_json(self) -> Json:
        """Return the line's object."""
        return _flat(self)

    @classmethod
    def from_json(cls, line: Json) -> RoundLine:
        """Read ``to_json``'s object; errors as in ``Generation.from_json``."""
        values = _unflattened(cls, line)
        sequences = {k: tuple(values[k]) for k in ("depth_counts", "path", "path_probs") if values[k] is not None}
        return cls(**{**values, **sequences})


@define(eq=False)
class RunData:
    """A run in memory: what a report, a table or a plot is made of.

    Attributes:
        created: ISO time of the start.
        command: the command line, or ``None`` for a run started from Python.
        settings: target, device, dtype, options, ``temperatures``, ``prompt_sets``, repeats, seeds.
        pipelines: each pipeline's config as a dict, ``ar`` included, in the order of the table.
        versions: of this package and those it stands on.
        hardware: what it ran on.
        generations: in the order they were made; every pipeline is there for every case.
        rounds: likewise; empty where rounds were not kept.
    """

    created: str
    command: Sequence[str] | None
    settings: Json
    pipelines: Mapping[str, Json]
    versions: Mapping[str, str]
    hardware: Json
    generations: list[Generation] = field(factory=list)
    rounds: list[RoundLine] = field(factory=list)

    def header(self) -> Json:
        """Return what ``run.json`` holds."""
        fields = ("created", "command", "settings", "pipelines", "versions", "hardware")
        return {"format": FORMAT, **{name: getattr(self, name) for name in fields}}


@frozen(eq=False)
class RunFolder:
    """The files of one run, for writing.

    Attributes:
        path: the folder.
    """

    path: Path

    @classmethod
    def create(cls, path: str | os.PathLike[str], run: RunData) -> RunFolder:
        """Start a folder for ``run``.

        Raises:
            ConfigError: when there is something at ``path`` already, or it cannot be written.
        """
        cls.check_free(path)
        folder = cls(Path(path))
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_write(folder.path, error) from error
        write_object(folder.path / RUN_FILE, run.header(), "run")
        return folder

    @staticmethod
    def check_free(path: str | os.PathLike[str]) -> None:
        """Refuse a place where there is something; an empty folder will do.

        Raises:
            ConfigError: naming it.
        """
        place = Path(path)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise ConfigError(f"{str(path)!r} exists already; go on with its run (--resume) or give another folder")

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> tuple[RunFolder, RunData]:
        """Read a run to go on with it; what there is of an unfinished case is cut off the files.

        Raises:
            ConfigError: when there is no run, or one that cannot be read.
        """
        folder = cls(Path(path))
        loaded = _load(folder.path)
        for name, end in ((ROUNDS_FILE, loaded.rounds_end), (GENERATIONS_FILE, loaded.generations_end)):
            _cut(folder.path / name, end)
        return folder, loaded.run

    def append(self, generations: Sequence[Generation], rounds: Sequence[RoundLine]) -> None:
        """Write what all pipelines made of one case; when this returns it is on disk.

        Raises:
            ConfigError: when it cannot be written.
        """
        self._append(ROUNDS_FILE, [line.to_json() for line in rounds])
        self._append(GENERATIONS_FILE, [line.to_json() for line in generations])

    def _append(self, name: str, lines: Sequence[Json]) -> None:
        text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
        try:
            with (self.path / name).open("a", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _cannot_write(self.path / name, error) from error


def read_run(path: str | os.PathLike[str]) -> RunData:
    """Read a run's folder, finished or not.

    Raises:
        ConfigError: naming the file, and the line where one cannot be read.
    """
    return _load(Path(path)).run


@frozen(eq=False)
class _Loaded:
    """A run, and where in the two files its finished cases end, in bytes."""

    run: RunData
    generations_end: int
    rounds_end: int


def _load(folder: Path) -> _Loaded:
    run = _read_header(folder)
    generations_end = 0
    case: list[Generation] = []
    for generation, end in _read_lines(folder / GENERATIONS_FILE, Generation):
        case.append(generation)
        if len(case) == len(run.pipelines):
            run.generations.extend(case)
            generations_end, case = end, []
    finished = {(g.pipeline, g.case) for g in run.generations}
    rounds_end = 0
    for line, end in _read_lines(folder / ROUNDS_FILE, RoundLine):
        if (line.pipeline, line.case) not in finished:
            break
        run.rounds.append(line)
        rounds_end = end
    return _Loaded(run, generations_end, rounds_end)


def _read_header(folder: Path) -> RunData:
    file = folder / RUN_FILE
    if not file.is_file():
        raise ConfigError(f"{str(folder)!r} holds no run: there is no {RUN_FILE}")
    header = read_object(file, "run")
    if header.pop("format", None) != FORMAT:
        raise ConfigError(f"{str(file)!r} is not of format {FORMAT}, the one this version reads")
    try:
        return RunData(**header)
    except TypeError as error:
        raise ConfigError(f"{str(file)!r} is no run: {error}".replace("RunData.__init__() ", "")) from error


def _read_lines(file: Path, kind: Any) -> Iterator[tuple[Any, int]]:
    """Yield each whole line as a ``kind``, with the byte where it ends."""
    if not file.exists():
        return
    end = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                end += len(line)
                if line.endswith(b"\n"):
                    yield _parsed(line, kind, file, number), end
    except OSError as error:
        raise ConfigError(f"cannot read {str(file)!r}: {error.strerror or error}") from error


def _parsed(line: bytes, kind: Any, file: Path, number: int) -> Any:
    try:
        return kind.from_json(json.loads(line))
    except (ValueError, TypeError, LookupError, RecursionError, AttributeError) as error:
        raise ConfigError(f"{file}:{number}: not a line of a run: {type(error).__name__}: {error}") from error


def _cut(file: Path, end: int) -> None:
    try:
        if file.exists() and file.stat().st_size > end:
            os.truncate(file, end)
    except OSError as error:
        raise _cannot_write(file, error) from error


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write the run {str(path)!r}: {error.strerror or error}")


def _flat(record: Any) -> Json:
    """Return a record's fields with those of its case beside them."""
    fields = attrs.asdict(record, recurse=False)
    case = attrs.asdict(fields.pop("case"))
    return {"pipeline": fields.pop("pipeline"), **case, **fields}


def _unflattened(kind: type, line: Json) -> Json:
    case = Case(**{name: line[name] for name in _CASE_FIELDS})
    return {**{a.name: line[a.name] for a in attrs.fields(kind) if a.name != "case"}, "case": case}


def _divergence_json(divergence: Divergence) -> Json:
    fields = {**attrs.asdict(divergence), "tie": divergence.tie}
    del fields["prompt"]
    # JSON knows no infinity: the margin is infinite where processing left one candidate only.
    return {**fields, "margin": fields["margin"] if math.isfinite(fields["margin"]) else None}


def _read_divergence(found: Json, case: Case) -> Divergence:
    fields = {**found, "margin": math.inf if found["margin"] is None else found["margin"]}
    del fields["tie"]
    return Divergence(prompt=f"{case.prompt}#{case.turn}", **fields)
