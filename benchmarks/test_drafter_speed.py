"""What drafting a block costs next to a plain decoding step of the bundled target, and that rounds do not add up.

Random weights of the shape that suits SmolLM2-135M: two layers of the target's width, four taps, blocks of eight.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import torch

from specforge.checkpoints import DrafterConfig, save_checkpoint
from specforge.drafters.dflash import DFlashDrafter
from specforge.drafters.model import DraftModel
from specforge.interfaces import DraftSession, Round
from specforge.sampling import KeyedUniforms, SamplingParams
from specforge.target import BUNDLED_TARGET, Target, load_target
from specforge.tree import DraftTree

pytestmark = pytest.mark.smollm2

BLOCK, ACCEPTED, CONTEXT, REPEATS, ROUNDS = 8, 3, 256, 25, 80
MOST_OF_A_STEP = 0.35


def make_checkpoint(folder: Path, target: Target) -> str:
    layers = target.config
    config = DrafterConfig(
        kind="dflash",
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        intermediate_size=layers.intermediate_size,
        num_heads=layers.num_attention_heads,
        num_kv_heads=layers.num_key_value_heads,
        head_dim=target.hidden_size // layers.num_attention_heads,
        rms_norm_eps=1e-5,
        attention_bias=False,
        layer_types=("full_attention", "full_attention"),
        sliding_window=None,
        is_causal=None,
        rope={"rope_theta": 100000.0, "rope_type": "default"},
        max_position_embeddings=8192,
        block_size=BLOCK,
        mask_token_id=0,
        taps=(2, 10, 18, 26),
        num_target_layers=target.num_layers,
        anchor_predicts=False,
    )
    torch.manual_seed(0)
    state = DraftModel(config).to(torch.bfloat16).state_dict()
    save_checkpoint(folder, config, state)
    return str(folder)


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def target(request: pytest.FixtureRequest) -> Target:
    return load_target(BUNDLED_TARGET, dtype=request.param, device="cpu")


@pytest.fixture(scope="module")
def drafter(target: Target, tmp_path_factory: pytest.TempPathFactory) -> DFlashDrafter:
    made = DFlashDrafter(make_checkpoint(tmp_path_factory.mktemp("drafter") / "random", target))
    made.bind(target)
    return made


class Stream:
    """A session that commits a few tokens and drafts, round after round."""

    def __init__(self, drafter: DFlashDrafter, target: Target, context: int) -> None:
        width = len(drafter.taps) * target.hidden_size
        self.features = torch.randn(1, context, width).to(target.dtype)
        self.session: DraftSession = drafter.start(torch.zeros(context, dtype=torch.int64), self.features)
        self.length = context

    def commit(self, count: int) -> None:
        self.session.commit(torch.zeros(count, dtype=torch.int64), self.features[:, :count])
        self.length += count

    def draft(self) -> None:
        history = torch.zeros(self.length + 1, dtype=torch.int64)
        self.session.draft(Round(history, 1000, SamplingParams(), KeyedUniforms()))

    def round(self) -> None:
        self.commit(ACCEPTED)
        self.draft()


def interleaved(*actions: Callable[[], None], repeats: int = REPEATS) -> list[float]:
    """Return each action's median seconds, the actions taking turns so that a busy machine slows all alike."""
    spent: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats):
        for action, seconds in zip(actions, spent, strict=True):
            begin = time.perf_counter()
            action()
            seconds.append(time.perf_counter() - begin)
    return [median(seconds[repeats // 5 :]) for seconds in spent]


def test_drafting_a_block_costs_a_fraction_of_a_step(drafter: DFlashDrafter, target: Target) -> None:
    stream, cache = Stream(drafter, target, CONTEXT), target.new_cache(2 * CONTEXT)
    target.prefill(torch.zeros(CONTEXT, dtype=torch.int64), cache)

    def step() -> None:
        target.verify(DraftTree.root_only(0), cache)
        cache.commit([0])

    drafting, stepping = interleaved(stream.round, step)
    own = sum(p.numel() for p in drafter.bound.model.parameters()) + target.lm_head.weight.numel()
    share = own / sum(p.numel() for p in target.model.parameters())
    print(f"\n{target.dtype}: draft {drafting * 1e3:.1f} ms, step {stepping * 1e3:.1f} ms: {drafting / stepping:.2f}")
    print(f"parameters read: {share:.0%} of the target's")
    if target.dtype == torch.float32 and drafting > MOST_OF_A_STEP * stepping:
        pytest.xfail(f"float32 is above the bound, at {drafting / stepping:.2f}: docs/benchmarks.md")
    assert drafting <= MOST_OF_A_STEP * stepping


def test_rounds_do_not_add_up(drafter: DFlashDrafter, target: Target) -> None:
    """After many rounds a draft costs what it costs in a fresh stream of the same length."""
    old, fresh = Stream(drafter, target, CONTEXT), Stream(drafter, target, CONTEXT + ROUNDS * ACCEPTED)
    for _ in range(ROUNDS):
        old.round()
    fresh.draft()
    assert old.length == fresh.length
    aged, new = interleaved(old.draft, fresh.draft)
    print(f"\n{target.dtype}: after {ROUNDS} rounds {aged * 1e3:.1f} ms, fresh {new * 1e3:.1f} ms")
    assert aged <= 1.2 * new
