"""The command ``specforge trace``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from specforge.checks import whole
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
from specforge.pipeline import Pipeline
from specforge.selection import one_config
from specforge.trace import record, show, write_page

MOST_NODES = 16


def trace(
    prompt: PromptText,
    preset: PresetName = None,
    config: ConfigFile = None,
    target: TargetName = None,
    checkpoint: Checkpoint = None,
    device: Device = None,
    dtype: Dtype = None,
    max_new_tokens: MaxNewTokens = 64,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    seed: Seed = 0,
    stop: Stop = None,
    raw: Raw = False,
    template_arg: TemplateArg = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page here, in place of the trees.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Show so many nodes of a tree, the likeliest.")] = MOST_NODES,
    all_nodes: Annotated[bool, typer.Option("--all", help="Show whole trees.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show round by round which tree was drafted and what of it was accepted."""
    most_nodes = None if all_nodes else whole(nodes, "--nodes", 0)
    options = {
        **generation_options(max_new_tokens, stop, raw, template_arg),
        **sampling_options(temperature, top_k, top_p, min_p, repetition_penalty, seed),
    }
    pipeline = Pipeline.from_config(one_config(preset, config, target, checkpoint, device, dtype))
    name = preset or (config.stem if config is not None else pipeline.config.drafter.name)
    found = record(pipeline, name, standard_input() if prompt == "-" else prompt, **options)
    if html is not None:
        write_page(found, html)
    if as_json:
        print_json(found.to_dict())
    elif html is not None:
        print(f"wrote {html}")
    else:
        show(found, Console(highlight=False, emoji=False), most_nodes)
