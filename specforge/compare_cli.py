"""The command ``specforge compare``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from specforge.cli_options import (
    AsJson,
    Device,
    Dtype,
    MaxNewTokens,
    MinP,
    Penalty,
    Raw,
    Seed,
    TargetName,
    TemplateArg,
    TopK,
    TopP,
    print_json,
    template_args,
)
from specforge.comparing import compare
from specforge.errors import ConfigError
from specforge.report.compare import Comparison
from specforge.report.datasets import DEMO, HUB_SETS
from specforge.report.live import LiveTable


def compare_pipelines(
    context: typer.Context,
    presets: Annotated[
        str | None, typer.Option("--presets", help="Named pipelines, separated by commas; ar is added.")
    ] = None,
    config: Annotated[list[Path] | None, typer.Option("--config", help="Config file; may be repeated.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="One pipeline a value, such as builder.budget=8,16; may be repeated."),
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Option(
            "--prompts", help=f"JSONL or text file, {DEMO}, or {', '.join(HUB_SETS)}; may be repeated; default: {DEMO}."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Take only the first so many prompts of a set.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Take the papers' samples of the data sets.")] = False,
    repeats: Annotated[int, typer.Option("--repeats", help="Run everything so often; medians are reported.")] = 1,
    order_seed: Annotated[int, typer.Option("--order-seed", help="Of the order of prompts and pipelines.")] = 0,
    target: TargetName = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            "--checkpoint", help="Drafter checkpoint; may be repeated: each drafter gets the one of its kind."
        ),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    max_new_tokens: MaxNewTokens = 96,
    temperature: Annotated[
        list[str] | None,
        typer.Option("--temperature", help="0 is greedy, the default; several by commas or by repeating it."),
    ] = None,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    raw: Raw = False,
    template_arg: TemplateArg = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write the run to as it goes on.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run pipelines on the same prompts, interleaved, and print how they compare with plain decoding (ar)."""
    options = {
        "max_new_tokens": max_new_tokens,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "raw": raw,
        "template_args": template_args(template_arg),
    }
    with LiveTable(Console(stderr=True), disable=as_json) as live:
        comparison = compare(
            [*([presets] if presets else []), *(config or [])],
            prompts or [DEMO],
            options,
            target=target,
            checkpoint=checkpoint or [],
            device=device,
            dtype=dtype,
            grid=grid,
            limit=limit,
            paper=paper,
            temperatures=_temperatures(temperature),
            repeats=repeats,
            order_seed=order_seed,
            out=out,
            resume=resume,
            keep_rounds=out is not None,
            command=context.obj,
            watch=live.update,
        )
    if as_json:
        print_json(comparison.to_json())
    else:
        _print(comparison)
    if out is not None:
        _write_report(out, quiet=as_json)


def _temperatures(words: Sequence[str] | None) -> list[float]:
    try:
        found = [float(number) for word in words or () for number in word.split(",")]
    except ValueError:
        raise ConfigError(
            f"--temperature is {','.join(words or ())!r}; it must be numbers separated by commas"
        ) from None
    return found or [0.0]


def _print(comparison: Comparison) -> None:
    Console().print(comparison.table())
    several = len({(row.prompt_set, row.temperature) for row in comparison.rows}) > 1
    for row in comparison.rows:
        for d in row.divergences:
            verdict = "a tie" if d.tie else "NOT explained by rounding"
            place = f"{row.prompt_set} {d.prompt}, T={row.temperature:g}" if several else d.prompt
            where = f"{row.name} parts from ar on {place} at token {d.position} ({d.expected} -> {d.got})"
            print(f"{where}: margin {d.margin:.2e}, noise {d.noise:.2e}: {verdict}")


def _write_report(folder: Path, quiet: bool) -> None:
    """Write the report into the run's folder, if what draws its figures is installed."""
    if find_spec("matplotlib") is None:
        written = f"{folder}; for its report: pip install matplotlib, then specforge report {folder}"
    else:
        from specforge.report.write import write_report  # matplotlib takes a second to import

        written = str(write_report(folder).page)
    if not quiet:
        print(f"wrote {written}")
