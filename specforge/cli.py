"""The ``specforge`` command."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer.exceptions import Abort, TyperException

from specforge import checkpoints, compare_cli, registry, report_cli, trace_cli, training_cli
from specforge.assembly import describe, option_names
from specforge.cli_options import (
    AsJson,
    Checkpoint,
    ConfigFile,
    Device,
    Dtype,
    MaxNewTokens,
    MinP,
    Penalty,
    PresetName,
    PromptText,
    Raw,
    Seed,
    Stop,
    TargetName,
    Temperature,
    TemplateArg,
    TopK,
    TopP,
    generation_options,
    print_json,
    sampling_options,
    standard_input,
)
from specforge.config import AUTO, PipelineConfig, load_config_file
from specforge.cost_model import CostModel
from specforge.errors import ConfigError, SpecforgeError
from specforge.pipeline import Pipeline
from specforge.presets import PRESETS
from specforge.profiling import DEFAULT_CONTEXTS, DEFAULT_NODES, Plan, profile_to_file
from specforge.result import GenerationResult
from specforge.selection import one_config
from specforge.trace.terminal import stretch


def _numbers(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


app = typer.Typer(
    name="specforge",
    help="Compose, compare and run tree-structured speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command("list")
def list_parts(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show what is registered: presets, parts and plugins, and what a config file registers."""
    if config is not None:
        load_config_file(config)
    kinds = (registry.drafters, registry.scorers, registry.builders, registry.verifiers)
    parts = {
        f"{kind.kind}s": {name: {"summary": describe(cls), "options": option_names(cls)} for name, cls in kind}
        for kind in kinds
    }
    presets = {name: {"summary": preset.summary, "source": preset.source} for name, preset in PRESETS.items()}
    broken = registry.broken_plugins()
    if as_json:
        print_json({"presets": presets, **parts, "plugins": list(registry.plugins()), "broken_plugins": broken})
        return
    console = Console(highlight=False, emoji=False)
    _print_group(console, "presets", {name: f"{p['summary']} ({p['source']})" for name, p in presets.items()})
    for kind, entries in parts.items():
        _print_group(console, kind, {name: str(entry["summary"]) for name, entry in entries.items()})
    _print_group(console, "plugins", {name: broken.get(name, "loaded") for name in registry.plugins()})


def _print_group(console: Console, title: str, entries: dict[str, str]) -> None:
    if not entries:
        return
    console.print(f"[bold]{title}[/bold]")
    width = max(len(name) for name in entries)
    for name, line in entries.items():
        console.print(f"  {name:<{width}}  {escape(line)}", soft_wrap=True)


@app.command()
def generate(
    prompt: PromptText,
    preset: PresetName = None,
    config: ConfigFile = None,
    target: TargetName = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    dtype: Dtype = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    stop: Stop = None,
    raw: Raw = False,
    template_arg: TemplateArg = None,
    rounds: Annotated[bool, typer.Option("--rounds", help="Mark the tokens that came together in a round.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stream the text of one pipeline, then a line of figures."""
    options = {
        **generation_options(max_new_tokens, stop, raw, template_arg),
        **sampling_options(temperature, top_k, top_p, min_p, repetition_penalty, seed),
    }
    pipeline = Pipeline.from_config(one_config(preset, config, target, checkpoint, device, dtype))
    stream = pipeline.stream(standard_input() if prompt == "-" else prompt, **options)
    console = Console(highlight=False, emoji=False, markup=False)
    for piece in stream:
        if not as_json:
            text = piece if pipeline.target.tokenizer else "".join(f"{token} " for token in piece.token_ids)
            if rounds:
                console.print(stretch(text, len(piece.token_ids)), end="", soft_wrap=True)
            else:
                sys.stdout.write(text)
            sys.stdout.flush()
    if as_json:
        print_json(_result_json(stream.result))
        return
    print("\n\n" + figures(stream.result))
    if rounds:
        print(_free_tokens(stream.result))


def _free_tokens(result: GenerationResult) -> str:
    free = sum(length - 1 for length in result.acceptance_lengths)
    return (
        f"{free} of {len(result.token_ids)} tokens came free, without a forward pass of the target's own: "
        "a raised number says how many came in the round that follows it"
    )


def figures(result: GenerationResult) -> str:
    """Return one line: tokens, rounds, τ, speed, time to the first token, and why it ended."""
    rounds = len(result.acceptance_lengths)
    speed = f"τ {result.mean_acceptance_length:.2f}, {result.tokens_per_second:.1f} tokens/s, " if rounds else ""
    return (
        f"{len(result.token_ids)} tokens in {rounds} rounds, {speed}"
        f"first token after {result.seconds_to_first_token:.2f} s, ended by {result.finish_reason}"
    )


def _result_json(result: GenerationResult) -> dict[str, Any]:
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "acceptance_lengths": result.acceptance_lengths,
        "stage_seconds": result.stage_seconds,
        "seconds_to_first_token": result.seconds_to_first_token,
        "decode_seconds": result.decode_seconds,
        "prompt_tokens": result.prompt_tokens,
        "finish_reason": result.finish_reason,
    }


@app.command()
def inspect(
    checkpoint: Annotated[str, typer.Argument(help="Folder or hub id.")],
    target: Annotated[str | None, typer.Option("--target", help="Also check that it fits this target.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Say what a drafter checkpoint is, and which target it fits."""
    found = checkpoints.describe(checkpoint)
    if target is not None:
        config = PipelineConfig(target, drafter={"name": found["kind"], "checkpoint": checkpoint})
        found["fits"] = Pipeline.from_config(config.override(dtype=dtype, device=device)).target.name
    if as_json:
        print_json(found)
        return
    console = Console(highlight=False, emoji=False)
    width = max(len(key) for key in found)
    for key, value in found.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else _plain(value)
        console.print(f"{key.replace('_', ' '):<{width}}  {escape(shown)}", soft_wrap=True)


def _plain(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


@app.command()
def profile(
    out: Annotated[Path, typer.Option("--out", help="Where to write the cost model.")] = Path("cost_model.json"),
    preset: Annotated[str | None, typer.Option("--preset", help="Whose drafter to measure.")] = None,
    config: ConfigFile = None,
    target: TargetName = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    dtype: Dtype = None,
    contexts: Annotated[str, typer.Option(help="Context lengths to measure at.")] = _numbers(DEFAULT_CONTEXTS),
    nodes: Annotated[str, typer.Option(help="Numbers of draft nodes to measure.")] = _numbers(DEFAULT_NODES),
    repeats: Annotated[int, typer.Option("--repeats", help="Passes whose median counts.")] = 9,
    as_json: AsJson = False,
) -> None:
    """Measure what drafting and verifying cost; write a cost model. Interrupted, it goes on where it stopped."""
    plan = Plan(_whole_numbers("--contexts", contexts), _whole_numbers("--nodes", nodes), repeats)
    chosen = one_config(preset, config, target, checkpoint, device, dtype)
    # Only the drafter is measured: a builder that wants a cost model must not measure one first, nor must a verifier
    # miss the configured builder.
    pipeline = Pipeline.from_config(attrs.evolve(chosen, builder=AUTO, verifier=AUTO))
    with _progress(quiet=as_json) as bar:
        task = bar.add_task("measuring", total=None)
        model = profile_to_file(
            pipeline.target,
            pipeline.parts.drafter,
            out,
            plan,
            lambda done, of: bar.update(task, completed=done, total=of),
        )
    if as_json:
        print_json(model.to_dict())
        return
    Console().print(_cost_table(model))
    print(f"wrote {out}")


def _cost_table(model: CostModel) -> Table:
    table = Table(
        box=SIMPLE_HEAD, caption=f"draft {1e3 * model.draft_seconds:.2f} ms; verify in ms", caption_justify="left"
    )
    table.add_column("nodes", justify="right")
    for context in model.context_lengths:
        table.add_column(f"context {context}", justify="right")
    for index, count in enumerate(model.nodes):
        table.add_row(str(count), *(f"{1e3 * row[index]:.2f}" for row in model.seconds))
    return table


def _whole_numbers(option: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} is {text!r}; it must be whole numbers separated by commas") from None


def _progress(quiet: bool) -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True)


app.command("compare")(compare_cli.compare_pipelines)
app.command()(report_cli.report)
app.command()(trace_cli.trace)
app.command()(training_cli.selfchat)
app.command()(training_cli.train)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; an error of ours is one line on standard error and exit code 2."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    # The hub client announces every retry; what came of them is said once, in the error.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        code = app(args=words, standalone_mode=False, obj=["specforge", *words])
    except SpecforgeError as error:
        print(f"specforge: {' '.join(str(error).split())}", file=sys.stderr)
        code = 2
    except TyperException as error:
        print(f"specforge: {error.format_message()}", file=sys.stderr)
        code = 2
    except (Abort, KeyboardInterrupt):
        print("specforge: interrupted", file=sys.stderr)
        code = 130
    sys.exit(code if isinstance(code, int) else 0)
