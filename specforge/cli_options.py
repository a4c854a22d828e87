"""What commands share: their common options, and what becomes of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from specforge.errors import ConfigError

PromptText = Annotated[str, typer.Argument(help="The prompt; `-` reads it from standard input.")]
PresetName = Annotated[str | None, typer.Option("--preset", help="A named pipeline; see `specforge list`.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="Stop after this text; may be repeated.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Python file with `config = PipelineConfig(...)`.")]
TargetName = Annotated[str | None, typer.Option("--target", help="Folder or hub id; default: the bundled SmolLM2.")]
Checkpoint = Annotated[str | None, typer.Option("--checkpoint", help="Drafter checkpoint: folder or hub id.")]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1, ...; default: CUDA where there is one.")
]
Dtype = Annotated[str | None, typer.Option("--dtype", help="float32, bfloat16 or float16; default: as saved.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", help="Emit at most so many tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 is greedy.")]
TopK = Annotated[int, typer.Option("--top-k", help="Keep the k most likely tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option("--top-p", help="Keep the most likely tokens up to this mass, in (0, 1].")]
MinP = Annotated[float, typer.Option("--min-p", help="Drop tokens below this share of the likeliest, in [0, 1].")]
Penalty = Annotated[float, typer.Option("--repetition-penalty", help="Above 1 lowers tokens already there.")]
Seed = Annotated[int, typer.Option("--seed", help="Same seed, same text.")]
Raw = Annotated[bool, typer.Option("--raw", help="Do not apply the chat template.")]
TemplateArg = Annotated[
    list[str] | None, typer.Option("--template-arg", help="Chat template argument, such as enable_thinking=false.")
]


def standard_input() -> str:
    """Return what is piped in.

    Raises:
        ConfigError: when it is not UTF-8 text.
    """
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not UTF-8 text: {error.reason} at byte {error.start}") from error


def generation_options(
    max_new_tokens: int, stop: Sequence[str] | None, raw: bool, template_arg: Sequence[str] | None
) -> dict[str, Any]:
    """Return what is not sampling as keywords of ``Pipeline.generate``.

    Raises:
        ConfigError: for a template argument that is none.
    """
    return {
        "max_new_tokens": max_new_tokens,
        "stop_strings": tuple(stop or ()),
        "raw": raw,
        "template_args": template_args(template_arg),
    }


def sampling_options(
    temperature: float, top_k: int, top_p: float, min_p: float, repetition_penalty: float, seed: int
) -> dict[str, Any]:
    """Return the sampling options as keywords of ``Pipeline.generate``."""
    return {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }


def template_args(pairs: Sequence[str] | None) -> dict[str, Any]:
    """Read ``key=value`` pairs; a value that is JSON is taken as such.

    Raises:
        ConfigError: for a pair without a key or without ``=``.
    """
    args: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--template-arg is {pair!r}; it must be key=value, such as enable_thinking=false")
        try:
            args[key] = json.loads(value)
        except json.JSONDecodeError:
            args[key] = value
    return args


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on a line."""
    print(json.dumps(value, ensure_ascii=False))
