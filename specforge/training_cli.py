"""The commands ``specforge selfchat`` and ``specforge train``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specforge.target import BUNDLED_TARGET, load_target
from specforge.training import load_train_config
from specforge.training.plot import plot as draw_plot
from specforge.training.selfchat import SelfChat, write_chats
from specforge.training.start import fill_cache, prepare
from specforge.training.trainer import Progress as RunProgress

# On a terminal a bar shows the progress; a log file gets the lines of metrics.
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())


def selfchat(
    out: Annotated[Path, typer.Option("--out", help="JSONL file to write, or to go on with.")],
    target: Annotated[str, typer.Option("--target", help="Folder or hub id.")] = BUNDLED_TARGET,
    count: Annotated[int, typer.Option("--count", help="Chats that the file shall hold.")] = 5000,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Chats written side by side.")] = 64,
    user_tokens: Annotated[int, typer.Option("--user-tokens", help="Longest user turn.")] = 64,
    answer_tokens: Annotated[int, typer.Option("--answer-tokens", help="Longest answer.")] = 256,
    greedy_share: Annotated[float, typer.Option("--greedy-share", help="Share of chats answered greedily.")] = 0.67,
    temperature: Annotated[float, typer.Option("--temperature", help="Of the other answers.")] = 0.7,
    top_p: Annotated[float, typer.Option("--top-p", help="Of the other answers.")] = 0.95,
    user_temperature: Annotated[float, typer.Option("--user-temperature", help="Of user turns.")] = 1.0,
    user_top_p: Annotated[float, typer.Option("--user-top-p", help="Of user turns.")] = 0.95,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same chats.")] = 0,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, ...; default: CUDA where there is one.")] = "auto",
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16; default: as saved.")] = "auto",
) -> None:
    """Let the target write its own training data; interrupted, it goes on where it stopped."""
    options = SelfChat(
        str(out),
        count,
        batch_size,
        user_tokens,
        answer_tokens,
        greedy_share,
        temperature,
        top_p,
        user_temperature,
        user_top_p,
        seed,
    )
    loaded = load_target(target, dtype=dtype, device=device)
    with _bar() as bar:
        task = bar.add_task("writing chats", total=count)
        held = write_chats(loaded, options, lambda done, of: bar.update(task, completed=done, total=of))
    print(f"{out} holds {held} chats")


def train(
    config: Annotated[Path, typer.Option("--config", help="Python file with `config = TrainConfig(...)`.")],
    out: Annotated[str | None, typer.Option("--out", help="Folder of the run.")] = None,
    chats: Annotated[str | None, typer.Option("--chats", help="JSONL file of chats.")] = None,
    cache: Annotated[str | None, typer.Option("--cache", help="Folder of the feature cache.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Folder or hub id.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="dflash, domino or dspark.")] = None,
    initial: Annotated[str | None, typer.Option("--initial", help="Checkpoint to start from.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Optimizer steps of the whole run.")] = None,
    max_minutes: Annotated[
        float | None, typer.Option("--max-minutes", help="End, schedule included, after so many minutes.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Chats a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="After the warm-up.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Train on the first so many chats.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of weights, order, anchors and sampled tokens.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, ...")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Of the target.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run in --out stopped.")] = False,
    fill_only: Annotated[bool, typer.Option("--fill-cache", help="Fill the feature cache, and do not train.")] = False,
    distributed: Annotated[bool, typer.Option("--distributed", help="Under `accelerate launch`.")] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Draw metrics.png at the end.")] = False,
) -> None:
    """Train a drafter for a target; options replace what the config file says."""
    options = {
        "out": out,
        "chats": chats,
        "cache": cache,
        "target": target,
        "kind": kind,
        "initial": initial,
        "steps": steps,
        "max_minutes": max_minutes,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "limit": limit,
        "seed": seed,
        "device": device,
        "dtype": dtype,
    }
    chosen = load_train_config(config).with_options(**options)
    if fill_only:
        with _bar() as bar:
            task = bar.add_task("computing features", total=None)
            cached = fill_cache(chosen, lambda done, of: bar.update(task, completed=done, total=of))
        print(f"{chosen.data.cache} holds the features of {cached.filled} chats")
        return
    trainer = prepare(chosen, resume=resume, distributed=distributed)
    with _bar(disable=trainer.devices.rank > 0) as bar:
        task = bar.add_task("training", total=1.0)
        trainer.run(lambda progress: _show(bar, task, progress))
    if trainer.devices.rank == 0:
        if plot:
            print(f"wrote {draw_plot(chosen.out)}")
        print(f"wrote {trainer.folder.drafter}")


def _bar(disable: bool = False) -> Progress:
    console = Console(stderr=True)
    return Progress(*_COLUMNS, TimeRemainingColumn(), console=console, disable=disable or not console.is_terminal)


def _show(bar: Progress, task: Any, progress: RunProgress) -> None:
    bar.update(task, completed=progress.share, description=f"step {progress.step}")
    if bar.disable:
        for entry in progress.entries:
            left = progress.seconds * (1.0 - progress.share) / max(progress.share, 1e-9)
            print(json.dumps({**_rounded(entry), "minutes_left": round(left / 60.0, 1)}), file=sys.stderr, flush=True)
        return
    for entry in progress.entries:
        bar.console.print(json.dumps(_rounded(entry)), highlight=False, soft_wrap=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value
