"""The eight data sets of the block-drafter papers, fetched from the Hugging Face hub and kept in its cache.

Sources, splits, prompt forms and sample counts are those of DDTree's published evaluation (arXiv:2604.12989), which
takes its data preparation from DFlash (arXiv:2602.06036): 128 samples of a set that has more, drawn with ``datasets``'
``shuffle(seed=0)``, else all. Neither names revisions of the data, so a later one may differ; the one used is
recorded. LiveCodeBench's instruction is in our own words.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from attrs import frozen
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from specforge.checks import whole
from specforge.errors import ConfigError, suggest
from specforge.report.prompts import PromptItem, PromptSet, demo_prompts, load_prompts

DEMO = "demo"

# The hub keeps a copy of every set of up to 5 GB as Parquet there, by configuration and split.
_CONVERTED = "refs/convert/parquet"

Record = Mapping[str, Any]


@frozen
class HubSet:
    """A data set on the hub.

    Attributes:
        repository: its hub id.
        files: the files that hold the records, in order.
        revision: the branch they are on.
        columns: the columns that ``turns`` reads.
        turns: makes the user turns of a record.
        paper_count: how many samples the papers take.
        about: one line for documents.
    """

    repository: str
    files: tuple[str, ...]
    revision: str
    columns: tuple[str, ...]
    turns: Callable[[Record], Sequence[str]]
    paper_count: int
    about: str


def _step_by_step(column: str) -> Callable[[Record], Sequence[str]]:
    wanted = "Please reason step by step, and put your final answer within \\boxed{}."
    return lambda record: [f"{record[column]}\n{wanted}"]


def _to_complete(record: Record) -> Sequence[str]:
    wanted = "Write a solution to the following problem and make sure that it passes the tests:"
    return [f"{wanted}\n```python\n{record['prompt']}\n```"]


def _to_program(record: Record) -> Sequence[str]:
    start = record.get("starter_code")
    how = (
        f"Complete this code and answer with the whole program in one Python code block:\n```python\n{start}\n```"
        if start
        else "Answer with one Python code block: a program that reads standard input and writes standard output."
    )
    return [f"Solve this programming problem in Python.\n\n{record['question_content']}\n\n{how}"]


def _instruction(record: Record) -> Sequence[str]:
    given = record["input"]
    return [f"{record['instruction']}\n\nInput:\n{given}" if given else record["instruction"]]


def _parquet(repository: str, place: str, columns: tuple[str, ...], turns: Any, count: int, about: str) -> HubSet:
    return HubSet(repository, (f"{place}/0000.parquet",), _CONVERTED, columns, turns, count, about)


HUB_SETS: Mapping[str, HubSet] = MappingProxyType(
    {
        "gsm8k": _parquet(
            "openai/gsm8k", "main/test", ("question",), _step_by_step("question"), 128, "grade-school mathematics"
        ),
        "math500": _parquet(
            "HuggingFaceH4/MATH-500", "default/test", ("problem",), _step_by_step("problem"), 128, "mathematics"
        ),
        "aime25": _parquet(
            "MathArena/aime_2025", "default/train", ("problem",), _step_by_step("problem"), 30, "contest mathematics"
        ),
        "humaneval": _parquet(
            "openai/openai_humaneval", "openai_humaneval/test", ("prompt",), _to_complete, 164, "Python functions"
        ),
        "mbpp": _parquet(
            "google-research-datasets/mbpp",
            "sanitized/test",
            ("prompt",),
            lambda record: [record["prompt"]],
            128,
            "short Python programs",
        ),
        "livecodebench": HubSet(
            "livecodebench/code_generation_lite",
            ("test.jsonl", "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl", "test6.jsonl"),
            "main",
            ("question_content", "starter_code"),
            _to_program,
            128,
            "contest programming; several gigabytes, since the files hold the hidden tests",
        ),
        "mt-bench": _parquet(
            "HuggingFaceH4/mt_bench_prompts",
            "default/train",
            ("prompt",),
            lambda record: list(record["prompt"]),
            80,
            "chats of two turns",
        ),
        "alpaca": _parquet(
            "tatsu-lab/alpaca", "default/train", ("instruction", "input"), _instruction, 128, "instructions"
        ),
    }
)


def load_prompt_set(source: str | os.PathLike[str], *, paper: bool = False, limit: int | None = None) -> PromptSet:
    """Read a prompt set.

    Args:
        source: the name of a hub set, ``"demo"`` for the bundled prompts, or a prompt file.
        paper: take the papers' samples of a hub set.
        limit: take only the first so many.

    Raises:
        ConfigError: for a file that cannot be read, or a set that cannot be fetched.
    """
    name = os.fspath(source)
    if name in HUB_SETS and isinstance(source, str):
        return load_hub_set(name, paper=paper, limit=limit)
    if name == DEMO:
        return PromptSet(DEMO, "bundled", tuple(demo_prompts(limit)))
    path = Path(source)
    if not path.suffix and path.parent == Path() and not path.exists():
        raise ConfigError(f"{name!r} is no prompt file here, and no data set{suggest(name, [*HUB_SETS, DEMO])}")
    return PromptSet(path.stem, name, tuple(load_prompts(path, limit)))


def load_hub_set(name: str, *, paper: bool = False, limit: int | None = None) -> PromptSet:
    """Fetch a set, or take it from the hub's cache.

    Args:
        name: one of ``HUB_SETS``.
        paper: take the papers' samples rather than all.
        limit: take only the first so many of those.

    Raises:
        ConfigError: when the hub is out of reach and the cache lacks a file, or pyarrow is missing.
    """
    hub = HUB_SETS[name]
    paths = [_fetch(name, hub, file) for file in hub.files]
    records = [record for path in paths for record in _read(name, path, hub.columns)]
    chosen = paper_sample(len(records), hub.paper_count) if paper else list(range(len(records)))
    if limit is not None:
        chosen = chosen[: whole(limit, "limit", 1)]
    items = tuple(PromptItem(f"{name}:{index + 1}", tuple(hub.turns(records[index]))) for index in chosen)
    place = hub.files[0].removesuffix("/0000.parquet") if hub.revision == _CONVERTED else f"{len(hub.files)} files"
    source = f"hub {hub.repository}, {place}, revision {_commit(paths[0])}: {len(items)} of {len(records)}"
    return PromptSet(name, f"{source}, shuffled with seed 0" if _shuffles(paper, records, hub) else source, items)


def paper_sample(total: int, count: int) -> list[int]:
    """Return the indices that ``datasets``' ``shuffle(seed=0)`` puts first, or all in order where there are no more."""
    if total <= count:
        return list(range(total))
    return [int(index) for index in np.random.default_rng(0).permutation(total)[:count]]


def _shuffles(paper: bool, records: Sequence[Record], hub: HubSet) -> bool:
    return paper and len(records) > hub.paper_count


def _fetch(name: str, hub: HubSet, file: str) -> Path:
    try:
        return Path(hf_hub_download(hub.repository, file, repo_type="dataset", revision=hub.revision))
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"prompt set {name!r} is not in the hub's cache, and the Hugging Face hub is out of reach; "
            f"connect once to fetch {hub.repository}, or give a prompt file"
        ) from error
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"prompt set {name!r} could not be fetched from the hub: {reason}") from error


def _read(name: str, path: Path, columns: tuple[str, ...]) -> Iterator[Record]:
    try:
        if path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as lines:
                for line in lines:
                    record = json.loads(line)
                    yield {column: record[column] for column in columns}
        else:
            yield from _parquet_records(name, path, columns)
    except (OSError, ValueError, LookupError) as error:
        raise ConfigError(f"prompt set {name!r}: {path.name} is not as expected: {error}") from error


def _parquet_records(name: str, path: Path, columns: tuple[str, ...]) -> list[Record]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            f"prompt set {name!r} is a Parquet file, which takes pyarrow to read: "
            "pip install 'specforge-decoding[datasets]'"
        ) from error
    records: list[Record] = parquet.read_table(path, columns=list(columns)).to_pylist()
    return records


def _commit(path: Path) -> str:
    """Return the commit a cached file belongs to; the cache has a folder for each."""
    parts = path.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else "unknown"
