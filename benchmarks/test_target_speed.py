"""The target adapter on the bundled SmolLM2 in bfloat16: speed against ``model.generate``, commits, context, memory.

Every comparison is interleaved in one process and reported as a ratio of medians; the numbers are in ``extra_info``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch

from specforge.target import BUNDLED_TARGET, Target, load_target
from specforge.tree import DraftTree

pytestmark = pytest.mark.smollm2

NEW_TOKENS = 64
REPEATS = 9
TREE = DraftTree(list(range(100, 133)), [-1, 0, 0, 0, 1, 1, 2, 3, *(parent for parent in range(4, 29))])


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target(BUNDLED_TARGET, dtype="bfloat16", device="cpu")


def prompt(length: int) -> torch.Tensor:
    return torch.randint(100, 40_000, (length,), generator=torch.Generator().manual_seed(0))


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved(*runs: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Median seconds of each, taking turns; the first turn is thrown away."""
    turns = [[seconds(run) for run in runs] for _ in range(repeats + 1)]
    return [statistics.median(column) for column in zip(*turns[1:], strict=True)]


def plain_decoding(target: Target, token_ids: torch.Tensor, count: int) -> list[int]:
    cache = target.new_cache()
    output, emitted = target.prefill(token_ids, cache), []
    while True:
        emitted.append(int(output.logits[-1].argmax()))
        if len(emitted) == count:
            return emitted
        output = target.verify(DraftTree.root_only(emitted[-1]), cache)
        cache.commit((0,))


def test_plain_decoding_against_generate(target: Target, benchmark) -> None:
    token_ids = prompt(64)

    def ours() -> list[int]:
        return plain_decoding(target, token_ids, NEW_TOKENS)

    def theirs() -> torch.Tensor:
        return target.model.generate(
            token_ids[None],
            attention_mask=torch.ones(1, len(token_ids)),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=None,
        )

    ours_seconds, their_seconds = interleaved(ours, theirs)
    benchmark.extra_info.update(
        ar_tokens_per_second=NEW_TOKENS / ours_seconds,
        generate_tokens_per_second=NEW_TOKENS / their_seconds,
        ratio=their_seconds / ours_seconds,
    )
    benchmark.pedantic(ours, rounds=1)
    assert their_seconds / ours_seconds >= 1.0


def test_verifying_a_tree_and_committing(target: Target, benchmark) -> None:
    cache = target.new_cache(512)
    target.prefill(prompt(200), cache)
    path = TREE.path(len(TREE) - 1)
    assert path != tuple(range(len(path)))
    verify_seconds, commit_seconds, step_seconds = [], [], []
    for _ in range(4 * REPEATS):
        step_seconds.append(seconds(lambda: target.verify(DraftTree.root_only(100), cache)))
        verify_seconds.append(seconds(lambda: target.verify(TREE, cache)))
        commit_seconds.append(seconds(lambda: cache.commit(path)))
    verify, commit, step = map(statistics.median, (verify_seconds, commit_seconds, step_seconds))
    benchmark.extra_info.update(
        verify_milliseconds=1e3 * verify,
        plain_step_milliseconds=1e3 * step,
        verify_over_plain_step=verify / step,
        commit_share=commit / verify,
    )
    benchmark.pedantic(lambda: target.verify(TREE, cache), rounds=3)
    assert commit / verify < 0.03


def test_context_of_2000_against_200(target: Target, benchmark) -> None:
    def stepper(length: int) -> Callable[[], None]:
        cache = target.new_cache(4096)
        target.prefill(prompt(length), cache)

        def steps() -> None:
            for _ in range(8):
                target.verify(DraftTree.root_only(100), cache)
                cache.commit(())

        return steps

    short, long = stepper(200), stepper(2000)
    short_seconds, long_seconds = interleaved(short, long)
    benchmark.extra_info.update(
        milliseconds_at_200=1e3 * short_seconds / 8,
        milliseconds_at_2000=1e3 * long_seconds / 8,
        ratio=long_seconds / short_seconds,
    )
    benchmark.pedantic(long, rounds=1)
    assert long_seconds / short_seconds <= 1.6


_MEMORY = """
import gc, json, sys
from pathlib import Path
import torch
from specforge.target import load_target
from specforge.tree import DraftTree

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))

target = load_target(sys.argv[1], dtype="bfloat16", device="cpu")
# one step outside the cache under test brings in what the first forward of a process loads once
target.verify(DraftTree.from_chain(range(64)), target.new_cache())
gc.collect()
# the peak so far is that of reading the weights: start a new one
Path("/proc/self/clear_refs").write_text("5")
loaded = resident("VmRSS")
cache = target.new_cache()
output = target.prefill(torch.arange(100, 164), cache)
for _ in range(2000):
    output = target.verify(DraftTree.root_only(int(output.logits[-1].argmax())), cache)
    cache.commit((0,))
print(json.dumps({"loaded": loaded, "peak": resident("VmHWM"), "cache": cache.nbytes, "capacity": cache.capacity}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are read from, and reset in, /proc")
def test_memory_of_2000_tokens(target: Target, benchmark) -> None:
    def measure() -> dict[str, int]:
        command = [sys.executable, "-c", _MEMORY, BUNDLED_TARGET]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    measured = benchmark.pedantic(measure, rounds=1)
    above = measured["peak"] - measured["loaded"]
    activations = step_activations(target)
    benchmark.extra_info.update(
        loaded_megabytes=measured["loaded"] / 2**20,
        above_loaded_megabytes=above / 2**20,
        cache_megabytes=measured["cache"] / 2**20,
        activation_megabytes=activations / 2**20,
        capacity=measured["capacity"],
    )
    assert above <= 1.15 * (measured["cache"] + activations)


def step_activations(target: Target) -> int:
    """Bytes that live at once in the largest forward of the run, the prefill of 64 tokens: its widest layer's."""
    config = target.config
    widest = 2 * config.intermediate_size + 6 * config.hidden_size
    return 64 * widest * target.dtype.itemsize + target.vocab_size * target.dtype.itemsize
