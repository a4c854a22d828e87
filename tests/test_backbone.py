"""The backbone against its definition: the whole context through every layer, no cache, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import drafter_definition
import pytest
import torch
from attrs import frozen
from checkpoint_factory import (
    BLOCK,
    HEADS,
    HIDDEN,
    LAYERS,
    TAPS,
    VOCABULARY,
    backbone_tensors,
    domino,
    speculators,
    tiny_target,
    vocabulary_maps,
    write,
    zlab,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specforge.drafters import backbone, cache, logits
from specforge.drafters.dflash import DFlashDrafter
from specforge.drafters.domino import DominoDrafter
from specforge.errors import CheckpointError, ConfigError, IncompatiblePartsError
from specforge.interfaces import Draft, DraftSession, Round
from specforge.sampling import KeyedUniforms, SamplingParams

TOLERANCE = 1e-5


@frozen(eq=False)
class Case:
    """A drafter on disk next to what its definition needs."""

    folder: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def make_case(folder: Path, top: dict[str, Any], own: dict[str, Any], seed: int = 0) -> Case:
    config, _ = zlab(**own)
    config.update(top)
    tensors = backbone_tensors(seed, bias=config["attention_bias"])
    return Case(write(folder, config, tensors), config, tensors)


def definition(case: Case, target: Any, features: Tensor, root_token: int, size: int) -> tuple[Tensor, Tensor]:
    weights = target.embedding.weight, target.lm_head.weight
    return drafter_definition.draft(case.config, case.tensors, *weights, features, root_token, size)


def round_of(length: int, root_token: int) -> Round:
    history = torch.zeros(length + 1, dtype=torch.int64)
    history[-1] = root_token
    return Round(history, 100, SamplingParams(), KeyedUniforms())


def bound(case: Case, target: Any, **options: Any) -> DFlashDrafter:
    drafter = DFlashDrafter(case.folder, **options)
    drafter.bind(target)
    return drafter


def check_stream(case: Case, commits: list[int], drafted: list[bool], size: int, seed: int = 0) -> None:
    """Commit the context in pieces, draft in between where told, and compare every draft with the definition."""
    target = tiny_target()
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(sum(commits), len(TAPS) * HIDDEN, generator=generator)
    drafter = bound(case, target, block_size=size)
    session: DraftSession | None = None
    done = 0
    for count, draft_here in zip(commits, [*drafted[:-1], True], strict=True):
        piece = features[None, done : done + count]
        ids = torch.zeros(count, dtype=torch.int64)
        if session is None:
            session = drafter.start(ids, piece)
        else:
            session.commit(ids, piece)
        done += count
        if draft_here:
            root_token = int(torch.randint(VOCABULARY, (), generator=generator))
            draft = session.draft(round_of(done, root_token))
            compare(draft, *definition(case, target, features[:done], root_token, size))


def compare(draft: Draft, hidden: Tensor, base_logits: Tensor) -> None:
    assert draft.hidden is not None
    assert draft.base_logits is not None
    assert draft.depth == len(draft.hidden) == len(draft.base_logits) == len(hidden)
    assert draft.base_logits.dtype == torch.float32
    torch.testing.assert_close(draft.hidden.double(), hidden, atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(draft.base_logits.double(), base_logits, atol=TOLERANCE, rtol=TOLERANCE)


ROPES: list[dict[str, Any]] = [
    {"rope_theta": 10000.0, "rope_scaling": None},
    {"rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    {
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
]


@st.composite
def options(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    kinds = st.sampled_from(["full_attention", "sliding_attention"])
    top: dict[str, Any] = {
        "layer_types": draw(st.lists(kinds, min_size=LAYERS, max_size=LAYERS)),
        "sliding_window": draw(st.integers(1, 9)),
        "use_sliding_window": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        **draw(st.sampled_from(ROPES)),
    }
    causal = draw(st.sampled_from([None, True, False]))
    own = {
        "shift_label": draw(st.booleans()),
        "input_embedding_scale": draw(st.sampled_from([1.0, 2.5])),
        "output_multiplier": draw(st.sampled_from([1.0, 0.3])),
        "final_logit_softcapping": draw(st.sampled_from([None, 1.5])),
    }
    return ({**top, "is_causal": causal} if causal is not None else top), own


@settings(max_examples=60, deadline=None)
@given(options(), st.lists(st.integers(1, 7), min_size=1, max_size=5), st.data())
def test_every_option_and_split_gives_the_definition(
    tmp_path_factory: pytest.TempPathFactory,
    chosen: tuple[dict[str, Any], dict[str, Any]],
    commits: list[int],
    data: st.DataObject,
) -> None:
    drafted = data.draw(st.lists(st.booleans(), min_size=len(commits), max_size=len(commits)))
    size = data.draw(st.integers(2, BLOCK))
    case = make_case(tmp_path_factory.mktemp("case"), *chosen, seed=data.draw(st.integers(0, 3)))
    check_stream(case, commits, drafted, size, seed=data.draw(st.integers(0, 9)))


EVERYTHING: tuple[dict[str, Any], dict[str, Any]] = (
    {
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 4,
        "use_sliding_window": True,
        "attention_bias": True,
        **ROPES[2],
    },
    {"input_embedding_scale": 2.5, "output_multiplier": 0.3, "final_logit_softcapping": 1.5},
)
COMMITS = [6, 3, 1, 5]


def one_window_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    sight = backbone._sight
    monkeypatch.setattr(backbone, "_sight", lambda w, *rest: sight(None if w is None else w + 1, *rest))


def never_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    sight = backbone._sight
    monkeypatch.setattr(backbone, "_sight", lambda w, causal, *rest: sight(w, False, *rest))


def positions_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    context = backbone.Backbone.context
    monkeypatch.setattr(backbone.Backbone, "context", lambda self, f, positions: context(self, f, positions + 1))


def context_through_the_layers_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    def context(self: Any, features: Tensor, positions: Tensor) -> Any:
        x = self.hidden_norm(self.fc(features))
        rotary = self.rotary(positions, x.dtype)
        return [layer.self_attn.keys_values(layer.input_layernorm(x), rotary) for layer in self.layers]

    monkeypatch.setattr(backbone.Backbone, "context", context)


def groups_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    rotate = backbone.rotate

    def swap(x: Tensor, rotary: Any) -> Tensor:
        turned = rotate(x, rotary)
        return turned[:, [0, 2, 1, 3]] if x.shape[1] == HEADS else turned

    monkeypatch.setattr(backbone, "rotate", swap)


def block_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    append = cache.ContextCache.append

    def behind_the_block(self: Any, layers: Any) -> None:
        before = self.length
        self.length += BLOCK if before else 0
        append(self, layers)
        self.length -= BLOCK if before else 0

    monkeypatch.setattr(cache.ContextCache, "append", behind_the_block)


def cap_before_multiplier(monkeypatch: pytest.MonkeyPatch) -> None:
    call = logits.BaseLogits.__call__

    def swapped(self: Any, hidden: Tensor) -> Tensor:
        config = self._config
        self._config = attrs.evolve(config, output_multiplier=1.0)
        capped = call(self, hidden)
        self._config = config
        return capped * config.output_multiplier

    monkeypatch.setattr(logits.BaseLogits, "__call__", swapped)


MUTANTS = [
    one_window_wider,
    never_causal,
    positions_off_by_one,
    context_through_the_layers_norm,
    groups_interleaved,
    block_is_kept,
    cap_before_multiplier,
]


def test_sound_backbone_passes_where_mutants_must_not(tmp_path: Path) -> None:
    check_stream(make_case(tmp_path, *EVERYTHING), COMMITS, [True] * 4, BLOCK)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_definition_catches(mutant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_stream(make_case(tmp_path, *EVERYTHING), COMMITS, [True] * 4, BLOCK)


def test_cache_grows_by_doubling_and_keeps_what_it_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LEAST_CAPACITY", 8)
    grown: list[int] = []
    reserve = cache.ContextCache.reserve

    def watch(self: Any, room: int) -> None:
        before = self.capacity
        reserve(self, room)
        grown.extend([self.capacity] * (self.capacity != before))

    monkeypatch.setattr(cache.ContextCache, "reserve", watch)
    check_stream(make_case(tmp_path, {}, {}), [2] * 30, [True] * 30, BLOCK)
    assert grown == [16, 32, 64, 128]


def test_a_step_copies_no_context(tmp_path: Path) -> None:
    """The keys a layer attends to lie in the cache's own memory."""
    target = tiny_target()
    drafter = bound(make_case(tmp_path, {}, {}), target)
    session = drafter.start(torch.zeros(9, dtype=torch.int64), torch.randn(1, 9, len(TAPS) * HIDDEN))
    seen = []
    original = cache.ContextCache.extend

    def watch(self: Any, *args: Any) -> Any:
        views = original(self, *args)
        seen.extend(v.untyped_storage().data_ptr() == self._store.untyped_storage().data_ptr() for v in views)
        return views

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache.ContextCache, "extend", watch)
        session.draft(round_of(9, 1))
    assert seen == [True] * (2 * LAYERS)


def test_streams_do_not_share_state(tmp_path: Path) -> None:
    case, target = make_case(tmp_path, {}, {}), tiny_target()
    drafter = bound(case, target)
    features = torch.randn(2, 7, len(TAPS) * HIDDEN)
    sessions = [drafter.start(torch.zeros(7, dtype=torch.int64), features[i : i + 1]) for i in range(2)]
    for _ in range(2):
        for i, session in enumerate(sessions):
            compare(session.draft(round_of(7, 3)), *definition(case, target, features[i], 3, BLOCK))


def test_prompt_of_one_token_and_bare_root(tmp_path: Path) -> None:
    check_stream(make_case(tmp_path, {}, {"shift_label": True}), [1], [True], 2)
    case, target = make_case(tmp_path / "bare", {}, {"shift_label": True}), tiny_target()
    session = bound(case, target, block_size=1).start(
        torch.zeros(3, dtype=torch.int64), torch.zeros(1, 3, len(TAPS) * HIDDEN)
    )
    assert session.draft(round_of(3, 0)).depth == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_stays_near(tmp_path: Path, dtype: torch.dtype) -> None:
    case, target = make_case(tmp_path, {}, {}), tiny_target()
    features = torch.randn(1, 40, len(TAPS) * HIDDEN, generator=torch.Generator().manual_seed(0))
    hidden, _ = definition(case, target, features[0], 3, BLOCK)
    low = tiny_target(dtype=dtype, embedding=target.embedding.to(dtype), lm_head=target.lm_head.to(dtype))
    session = bound(case, low).start(torch.zeros(40, dtype=torch.int64), features.to(dtype))
    draft = session.draft(round_of(40, 3))
    assert draft.hidden.dtype == dtype
    assert draft.base_logits.dtype == torch.float32
    assert (draft.hidden.double() - hidden).abs().mean() < 0.05 * hidden.abs().mean()


def test_rotary_frequencies_survive_a_cast(tmp_path: Path) -> None:
    drafter = bound(make_case(tmp_path, {}, {}), tiny_target(dtype=torch.bfloat16))
    rotary = drafter.bound.model.rotary
    cosines, _ = rotary(torch.tensor([1001]), torch.float64)
    exact = torch.cos(1001 / 10000 ** (torch.arange(0, 12, 2, dtype=torch.float64) / 12))
    torch.testing.assert_close(cosines[0, :6], exact, atol=1e-3, rtol=0)


def test_misuse_is_refused(tmp_path: Path) -> None:
    case = make_case(tmp_path, {}, {})
    drafter = DFlashDrafter(case.folder)
    ids, features = torch.zeros(4, dtype=torch.int64), torch.zeros(1, 4, len(TAPS) * HIDDEN)
    with pytest.raises(RuntimeError, match="bind"):
        drafter.start(ids, features)
    drafter.bind(tiny_target())
    with pytest.raises(ValueError, match="4 tokens committed, but the features are none"):
        drafter.start(ids, None)
    with pytest.raises(ValueError, match="4 tokens committed, but the features are those of 3"):
        drafter.start(ids, features[:, :3])
    session = drafter.start(ids, features)
    with pytest.raises(ValueError, match="root is at position 5, but 4 tokens"):
        session.draft(round_of(5, 0))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": 64}, ("hidden_size is 32", "the target's 64")),
        ({"vocab_size": 64}, ("vocab_size is 50", "the target's 64")),
        ({"num_layers": 6}, ("num_target_layers is 5", "the target's 6")),
    ],
)
def test_a_target_of_another_shape_is_refused(tmp_path: Path, changes: dict[str, int], named: tuple[str, ...]) -> None:
    drafter = DFlashDrafter(make_case(tmp_path, {}, {}).folder)
    with pytest.raises(IncompatiblePartsError) as caught:
        drafter.bind(tiny_target(**changes))
    assert all(part in str(caught.value) for part in (drafter.checkpoint, "target tiny", *named))


def test_a_tap_beyond_the_target_is_refused(tmp_path: Path) -> None:
    drafter = DFlashDrafter(write(tmp_path, *speculators()))
    with pytest.raises(IncompatiblePartsError, match=r"taps layer 3, the target's last is 2"):
        drafter.bind(tiny_target(num_layers=3))


@pytest.mark.parametrize("size", [0, 1, BLOCK + 1, True, 2.0])
def test_block_size_out_of_range_is_refused(tmp_path: Path, size: Any) -> None:
    case = make_case(tmp_path, {}, {})
    with pytest.raises(ConfigError, match=rf"block_size is {size!r}; it must be in \[2, {BLOCK}\]"):
        DFlashDrafter(case.folder, block_size=size)


def test_a_head_is_ignored_only_when_asked(tmp_path: Path) -> None:
    config, tensors = domino()
    folder, target = write(tmp_path / "domino", config, tensors), tiny_target()
    with pytest.raises(CheckpointError, match="drafter 'domino', or drafter 'dflash' with ignore_head=True"):
        DFlashDrafter(folder)
    plain = write(tmp_path / "plain", *zlab())
    with pytest.raises(CheckpointError, match="is a dflash drafter; drafter 'domino' needs a domino one"):
        DominoDrafter(plain)
    drafters = [DFlashDrafter(folder, ignore_head=True), DominoDrafter(folder)]
    drafts = []
    for drafter in drafters:
        drafter.bind(target)
        features = torch.ones(1, 4, len(TAPS) * HIDDEN)
        drafts.append(drafter.start(torch.zeros(4, dtype=torch.int64), features).draft(round_of(4, 2)))
    assert drafts[0].correction is None
    assert drafts[1].correction is not None
    assert torch.equal(drafts[0].base_logits, drafts[1].base_logits)


@pytest.mark.parametrize("options", [{}, {"output_multiplier": 0.5, "final_logit_softcapping": 1.5}])
def test_a_reduced_vocabulary_is_spread_over_the_targets(tmp_path: Path, options: dict[str, float]) -> None:
    ids, maps = vocabulary_maps()
    config, tensors = speculators("dflash", reduced=True)
    config, full = config | options, speculators()[0] | options
    target, features = tiny_target(), torch.ones(1, 4, len(TAPS) * HIDDEN)
    drafts = []
    for name, c, t in (("reduced", config, tensors), ("full", full, backbone_tensors())):
        drafter = DFlashDrafter(write(tmp_path / name, c, t))
        drafter.bind(target)
        drafts.append(drafter.start(torch.zeros(4, dtype=torch.int64), features).draft(round_of(4, 2)))
    reduced, whole = (draft.base_logits for draft in drafts)
    torch.testing.assert_close(reduced[:, ids], whole[:, ids])
    others = (~maps["t2d"]).nonzero().flatten()
    assert torch.isneginf(reduced[:, others]).all()
    with pytest.raises(IncompatiblePartsError, match="head is a Identity"):
        DFlashDrafter(write(tmp_path / "again", config, tensors)).bind(tiny_target(lm_head=torch.nn.Identity()))


class WholeContext:
    """All context at once, next to blocks that a mask keeps apart: how a trainer runs the backbone."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]]) -> None:
        self.layers = layers

    def extend(self, layer: int, keys: Tensor, values: Tensor, first: int) -> tuple[Tensor, Tensor]:
        return tuple(
            torch.cat([c[:, :, first:], n], 2) for c, n in zip(self.layers[layer], (keys, values), strict=True)
        )


def test_blocks_side_by_side_equal_one_at_a_time_and_carry_gradients(tmp_path: Path) -> None:
    case, target = make_case(tmp_path, {}, {"shift_label": True}), tiny_target()
    features = torch.randn(12, len(TAPS) * HIDDEN, generator=torch.Generator().manual_seed(0))
    roots = [4, 7, 12]
    model = bound(case, target).bound.model.requires_grad_(True)
    positions = torch.cat([torch.arange(root, root + BLOCK) for root in roots])
    seen = torch.zeros(len(positions), 12 + len(positions), dtype=torch.bool)
    for i, root in enumerate(roots):
        rows = slice(i * BLOCK, (i + 1) * BLOCK)
        seen[rows, :root] = True
        seen[rows, 12 + i * BLOCK : 12 + (i + 1) * BLOCK] = True
    noise = target.embedding(torch.tensor([3] + [49] * (BLOCK - 1)).repeat(3))[None]
    context = WholeContext(model.context(features[None], torch.arange(12)))
    hidden = model(noise, positions, context, [backbone.Sight(0, seen)] * LAYERS)[0]
    for i, root in enumerate(roots):
        exact, _ = definition(case, target, features[:root], 3, BLOCK)
        torch.testing.assert_close(hidden[i * BLOCK : (i + 1) * BLOCK].double(), exact, atol=TOLERANCE, rtol=TOLERANCE)
    hidden.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
