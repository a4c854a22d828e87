"""The target writes its own training data: user turns from the chat template's open user slot, and answers to them.

Chats are written in batches with one forward a token for the whole batch. What a batch draws follows from the seed and
its number alone, and a note next to the file says how many batches it holds, so that a run can be stopped at any time
and, gone on with, writes the same file.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from attrs import frozen
from torch import Tensor
from transformers import DynamicCache

from specforge.errors import ConfigError
from specforge.jsonfiles import read_object, write_object
from specforge.request import encode_prompt
from specforge.target import Target
from specforge.training.schedule import generator

# What the template puts before and after a user turn is found by putting this text through it.
_PROBE = "specforgeprobe"
MOST_FRUITLESS = 20
OPENINGS = (
    "",
    "What",
    "How",
    "Why",
    "Write",
    "Explain",
    "Can you",
    "Give me",
    "List",
    "I",
    "Is",
    "Describe",
    "Tell me",
    "Create",
    "Who",
    "Please",
)


@frozen
class SelfChat:
    """What to write.

    Attributes:
        out: JSONL file to append to.
        count: chats that the file shall hold in the end.
        batch_size: chats written side by side.
        user_tokens: longest user turn.
        answer_tokens: longest answer.
        greedy_share: of the chats that are answered greedily; the others are sampled.
        temperature: of sampled answers.
        top_p: of sampled answers.
        user_temperature: of user turns.
        user_top_p: of user turns.
        seed: of everything drawn.

    Raises:
        ConfigError: naming the option and what it must be.
    """

    out: str
    count: int = 5000
    batch_size: int = 64
    user_tokens: int = 64
    answer_tokens: int = 256
    greedy_share: float = 0.67
    temperature: float = 0.7
    top_p: float = 0.95
    user_temperature: float = 1.0
    user_top_p: float = 0.95
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        for name in ("count", "batch_size", "user_tokens", "answer_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be at least 1")
        for name in ("greedy_share", "top_p", "user_top_p"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be in [0, 1]")
        for name in ("temperature", "user_temperature"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be above 0")


def write_chats(target: Target, options: SelfChat, watch: Callable[[int, int], None] = lambda _done, _of: None) -> int:
    """Append chats to ``options.out`` until it holds ``options.count``; return how many it holds.

    Args:
        target: writes both sides; its tokenizer needs a chat template.
        options: what to write.
        watch: called after each batch with the chats there are and are to be.

    Raises:
        ConfigError: when the target has no chat template, or the file holds what is no chat.
    """
    before, ends = user_slot(target)
    file = _ChatFile(options)
    users, batch, fruitless = file.resume(), file.batches(), 0
    while len(users) < options.count:
        found = {r["user"]: r for r in _batch(target, options, before, ends, batch) if r["user"] not in users}
        records = list(found.values())[: options.count - len(users)]
        fruitless = 0 if records else fruitless + 1
        if fruitless == MOST_FRUITLESS:
            raise ConfigError(
                f"{target.name} ended none of the last {fruitless * options.batch_size} user turns within "
                f"{options.user_tokens} tokens, or wrote nothing new; raise user_tokens or user_temperature"
            )
        batch += 1
        file.append(records, batch)
        users.update(r["user"] for r in records)
        watch(len(users), options.count)
    return len(users)


class _ChatFile:
    """The chats written so far, and the note that says which of the file's bytes are whole batches."""

    def __init__(self, options: SelfChat) -> None:
        self._path = Path(options.out)
        self._note_file = self._path.with_name(self._path.name + ".progress.json")
        self._options = attrs.asdict(options, filter=attrs.filters.exclude("out", "count"))
        self._note: dict[str, Any] = {"batches": 0, "bytes": 0, "options": self._options}

    def batches(self) -> int:
        """Return how many batches the file holds."""
        return int(self._note["batches"])

    def resume(self) -> set[str]:
        """Drop what a kill cut short; return the user turns in the file."""
        if not self._path.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return set()
        if not self._note_file.exists():
            raise ConfigError(f"{str(self._path)!r} exists and was not written by self-chat; give another file")
        self._note = read_object(self._note_file, "self-chat note")
        if self._note["options"] != self._options:
            raise ConfigError(f"{str(self._path)!r} was written with {self._note['options']}, not {self._options}")
        with self._path.open("rb+") as file:
            file.truncate(self._note["bytes"])
        lines = self._path.read_text(encoding="utf-8").split("\n")[:-1]
        return {json.loads(line)["user"] for line in lines}

    def append(self, records: list[dict[str, Any]], batches: int) -> None:
        """Write a batch, then the note that makes it count."""
        if not self._note_file.exists():
            write_object(self._note_file, self._note, "self-chat note")
        with self._path.open("a", encoding="utf-8", newline="\n") as file:
            file.write("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
        self._note = {**self._note, "batches": batches, "bytes": self._path.stat().st_size}
        write_object(self._note_file, self._note, "self-chat note")


def user_slot(target: Target) -> tuple[list[int], tuple[int, ...]]:
    """Return the tokens that precede a user turn, and the tokens that end one.

    Raises:
        ConfigError: when the target has no tokenizer or no chat template.
    """
    tokenizer: Any = target.tokenizer
    if tokenizer is None or not tokenizer.chat_template:
        raise ConfigError(f"target {target.name!r} has no chat template; self-chat needs one")
    text = tokenizer.apply_chat_template([{"role": "user", "content": _PROBE}], tokenize=False)
    before, _, after = text.partition(_PROBE)
    ends = tokenizer(after, add_special_tokens=False).input_ids[:1]
    return list(tokenizer(before, add_special_tokens=False).input_ids), (*ends, *target.stop_token_ids)


def _batch(
    target: Target, options: SelfChat, before: list[int], ends: tuple[int, ...], batch: int
) -> list[dict[str, Any]]:
    tokenizer: Any = target.tokenizer
    draws = generator(options.seed, "selfchat", batch)
    size = options.batch_size
    chosen = torch.randint(len(OPENINGS), (size,), generator=draws).tolist()
    openings = [OPENINGS[i] for i in chosen]
    greedy = (torch.rand(size, generator=draws) < options.greedy_share).tolist()
    starts = [[*before, *tokenizer(o, add_special_tokens=False).input_ids] for o in openings]
    sampled = [(options.user_temperature, options.user_top_p)] * size
    turns = generate_batch(target, starts, ends, options.user_tokens, sampled, draws)
    texts = [
        tokenizer.decode(tokenizer(o, add_special_tokens=False).input_ids + _without_end(turn, ends)).strip()
        for o, turn in zip(openings, turns, strict=True)
    ]
    kept = [i for i, (text, turn) in enumerate(zip(texts, turns, strict=True)) if text and turn[-1] in ends]
    if not kept:
        return []
    prompts = [encode_prompt(target, texts[i]) for i in kept]
    how = [(0.0, 1.0) if greedy[i] else (options.temperature, options.top_p) for i in kept]
    answers = generate_batch(target, prompts, target.stop_token_ids, options.answer_tokens, how, draws)
    return [
        {"user": texts[i], "assistant_ids": answer, "greedy": greedy[i]}
        for i, answer in zip(kept, answers, strict=True)
    ]


def _without_end(turn: list[int], ends: Sequence[int]) -> list[int]:
    return turn[:-1] if turn and turn[-1] in ends else turn


@torch.inference_mode()
def generate_batch(
    target: Target,
    prompts: Sequence[Sequence[int]],
    stops: Sequence[int],
    limit: int,
    sampling: Sequence[tuple[float, float]],
    draws: torch.Generator,
) -> list[list[int]]:
    """Return up to ``limit`` new tokens for each prompt, a stop token included.

    Args:
        target: the target; its plain model runs, left-padded, since its own cache holds one sequence.
        prompts: token ids, at least one each.
        stops: token ids that end a row.
        limit: most new tokens of a row.
        sampling: (temperature, top-p) of each row; temperature 0 is greedy.
        draws: one uniform a row and step is taken of it, whether the row has ended or not.
    """
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=target.device)
    seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=target.device)
    positions = (seen.cumsum(dim=1) - 1).clamp_min(0)
    rows: list[list[int]] = [[] for _ in prompts]
    open_rows = set(range(len(prompts)))
    cache = {_cache_keyword(target): DynamicCache()}
    for _ in range(limit):
        output = target.model(ids, attention_mask=seen, position_ids=positions, use_cache=True, **cache)
        chosen = _choose(output.logits[:, -1].float(), sampling, torch.rand(len(prompts), generator=draws))
        for row, token in enumerate(chosen.tolist()):
            if row in open_rows:
                rows[row].append(token)
                if token in stops:
                    open_rows.discard(row)
        if not open_rows:
            break
        ids, positions = chosen[:, None], positions[:, -1:] + 1
        seen = torch.cat([seen, seen.new_ones(len(prompts), 1)], dim=1)
    return rows


def _cache_keyword(target: Target) -> str:
    # newer transformers call the argument differently, and warn of the old name
    return "cache" if "cache" in inspect.signature(target.model.forward).parameters else "past_key_values"


def _choose(logits: Tensor, sampling: Sequence[tuple[float, float]], uniforms: Tensor) -> Tensor:
    """Return ``[n]`` int64: the argmax of greedy rows, a draw by inverse CDF from the top-p of the others."""
    chosen = logits.argmax(dim=-1)
    drawn = [row for row, (temperature, _) in enumerate(sampling) if temperature > 0.0]
    if not drawn:
        return chosen
    temperatures, top_p = logits.new_tensor([sampling[row] for row in drawn]).unbind(dim=-1)
    probabilities, tokens = torch.softmax(logits[drawn] / temperatures[:, None], dim=-1).sort(dim=-1, descending=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    cumulative = (probabilities * (before < top_p[:, None])).cumsum(dim=-1)
    marks = uniforms[drawn].to(logits.device)[:, None] * cumulative[:, -1:]
    places = torch.searchsorted(cumulative, marks, right=True).clamp_max(logits.shape[-1] - 1)
    chosen[drawn] = tokens.gather(1, places)[:, 0]
    return chosen
