"""What each published format means, and every checkpoint that must be refused."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_factory import (
    BLOCK,
    BOTTLENECK,
    DRAFT_VOCABULARY,
    FORMATS,
    HIDDEN,
    LAYERS,
    MASK,
    RANK,
    STATE,
    TAPS,
    TARGET_LAYERS,
    VOCABULARY,
    deepspec,
    domino,
    domino_old,
    dspark,
    speculators,
    vocabulary_maps,
    write,
    write_format,
    zlab,
    zlab_new,
)
from huggingface_hub.errors import LocalEntryNotFoundError
from hypothesis import given, settings
from hypothesis import strategies as st

from specforge.checkpoints import (
    ConfidenceHeadConfig,
    DominoHeadConfig,
    MarkovHeadConfig,
    describe,
    files,
    open_checkpoint,
    save_checkpoint,
    target_ids,
)
from specforge.drafters.model import DraftModel
from specforge.errors import CheckpointError

MARKOV = MarkovHeadConfig(RANK, "vanilla")
CODED = ConfidenceHeadConfig(True)


@pytest.mark.parametrize(
    ("name", "layout", "kind", "anchor", "head", "confidence"),
    [
        ("zlab", "z-lab", "dflash", False, None, None),
        ("zlab_new", "z-lab", "dflash", False, None, None),
        ("domino", "z-lab", "domino", True, DominoHeadConfig(BOTTLENECK, STATE, 1), None),
        ("domino_old", "z-lab", "domino", False, DominoHeadConfig(BOTTLENECK, STATE, 0), None),
        ("dspark", "z-lab", "dspark", True, MARKOV, CODED),
        ("dspark_gated", "z-lab", "dspark", True, MarkovHeadConfig(RANK, "gated"), ConfidenceHeadConfig(False)),
        ("dspark_rnn", "z-lab", "dspark", True, MarkovHeadConfig(RANK, "rnn"), None),
        ("deepspec", "DeepSpec", "dspark", True, MARKOV, CODED),
        ("deepspec_rank0", "DeepSpec", "dflash", True, None, None),
        ("speculators_dflash", "speculators", "dflash", False, None, None),
        ("speculators_dspark", "speculators", "dspark", True, MARKOV, CODED),
        ("speculators_reduced", "speculators", "dspark", True, MARKOV, CODED),
    ],
)
def test_formats(tmp_path: Path, name: str, layout: str, kind: str, anchor: bool, head: Any, confidence: Any) -> None:
    opened = open_checkpoint(write_format(tmp_path, name))
    config = opened.config
    assert (opened.layout, config.kind, config.anchor_predicts) == (layout, kind, anchor)
    assert (config.head, config.confidence) == (head, confidence)
    assert (config.block_size, config.mask_token_id, config.taps) == (BLOCK, MASK, tuple(TAPS))
    assert config.draft_positions(BLOCK) == (BLOCK if anchor else BLOCK - 1)
    assert config.num_target_layers == (None if layout == "speculators" else TARGET_LAYERS)
    assert config.rope == {"rope_theta": 10000.0, "rope_type": "default"}
    assert config.draft_vocab_size == (DRAFT_VOCABULARY if name.endswith("reduced") else None)
    assert config.layer_types == ("full_attention",) * LAYERS
    written = FORMATS[name]()[1]
    read = opened.tensors()
    copies = {"embed_tokens.weight", "lm_head.weight"} & set(written)
    assert set(opened.frozen_copies) == copies
    assert set(read) == {key.removeprefix("logit_head.") for key in written} - copies
    for key, tensor in written.items():
        if key not in copies:
            assert torch.equal(read[key.removeprefix("logit_head.")], tensor)


def test_every_format_is_tested() -> None:
    tested = next(mark.args[1] for mark in test_formats.pytestmark if mark.name == "parametrize")
    assert {case[0] for case in tested} == set(FORMATS)


def test_options_may_stand_in_either_place(tmp_path: Path) -> None:
    options = {"input_embedding_scale": 3.0, "output_multiplier": 0.5, "final_logit_softcapping": 20.0}
    config, tensors = zlab(**options)
    nested = open_checkpoint(write(tmp_path / "nested", config, tensors)).config
    config, tensors = zlab()
    top = open_checkpoint(write(tmp_path / "top", {**config, **options}, tensors)).config
    assert nested == top
    assert (top.input_embedding_scale, top.output_multiplier, top.final_logit_softcapping) == (3.0, 0.5, 20.0)


@pytest.mark.parametrize(
    ("make", "own", "anchor"),
    [
        (zlab, {}, False),
        (zlab, {"shift_label": True}, True),
        (zlab, {"sample_from_anchor": True}, True),
        (domino, {"shift_label": False}, False),
        (dspark, {}, True),
        (dspark, {"shift_label": False}, True),
        (dspark, {"sample_from_anchor": False}, False),
    ],
)
def test_whether_the_anchor_predicts(tmp_path: Path, make: Any, own: dict[str, bool], anchor: bool) -> None:
    assert open_checkpoint(write(tmp_path, *make(**own))).config.anchor_predicts is anchor


SLIDING = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3, "use_sliding_window": True}


@pytest.mark.parametrize(
    ("changes", "own", "windows", "causal"),
    [
        ({}, {}, [None, None], [False, False]),
        (SLIDING, {}, [None, 3], [False, True]),
        ({**SLIDING, "is_causal": False}, {}, [None, 3], [False, False]),
        ({**SLIDING, "is_causal": True}, {}, [None, 3], [True, True]),
        ({**SLIDING, "use_sliding_window": False}, {}, [None, None], [False, False]),
        ({}, {"causal_head": True}, [None, None], [True, True]),
        ({}, {"causal_head": False}, [None, None], [False, False]),
        ({"is_causal": True}, {"causal": True}, [None, None], [True, True]),
    ],
)
def test_attention_options(
    tmp_path: Path, changes: dict[str, Any], own: dict[str, Any], windows: list[Any], causal: list[bool]
) -> None:
    config, tensors = zlab(**own)
    parsed = open_checkpoint(write(tmp_path, {**config, **changes}, tensors)).config
    assert [parsed.window(i) for i in range(LAYERS)] == windows
    assert [parsed.causal(i) for i in range(LAYERS)] == causal


@pytest.mark.parametrize(("non_causal", "causal"), [(False, [False, True]), (True, [False, False])])
def test_speculators_sliding_layers(tmp_path: Path, non_causal: bool, causal: list[bool]) -> None:
    config, tensors = speculators()
    config["transformer_layer_config"].update(SLIDING)
    config["sliding_window_non_causal"] = non_causal
    parsed = open_checkpoint(write(tmp_path, config, tensors)).config
    assert [parsed.causal(i) for i in range(LAYERS)] == causal


def test_rope_spellings_agree(tmp_path: Path) -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 64}
    config, tensors = zlab()
    config["rope_scaling"] = {"type": "yarn", **yarn}
    old = open_checkpoint(write(tmp_path / "old", config, tensors)).config.rope
    config, tensors = zlab_new()
    config["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 10000.0, **yarn}
    assert open_checkpoint(write(tmp_path / "new", config, tensors)).config.rope == old
    config["max_position_embeddings"] = yarn.pop("original_max_position_embeddings")
    config["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 10000.0, **yarn}
    assert open_checkpoint(write(tmp_path / "implicit", config, tensors)).config.rope == old


def test_draft_vocabulary_ids(tmp_path: Path) -> None:
    ids, maps = vocabulary_maps()
    assert target_ids(maps["d2t"]).tolist() == ids


def put(*path: str, value: Any) -> Any:
    """Return a mutation that sets one key of a config, given its path."""

    def mutate(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        place = config
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return mutate


def drop(*path: str) -> Any:
    def mutate(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        place = config
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return mutate


def without(name: str) -> Any:
    return lambda config, tensors: tensors.pop(name)


def with_tensor(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return lambda config, tensors: tensors.update({name: torch.zeros(shape, dtype=dtype)})


def twice(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors["logit_head.embed_proj.0.weight"] = tensors["embed_proj.0.weight"].clone()


def move_draft_token(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"][3] += 1


def draft_token_outside(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"][-1] = VOCABULARY


OWN = "dflash_config"
INNER = "transformer_layer_config"

# What is changed in which format -> what the message must name, besides the file.
REFUSALS: dict[str, tuple[Any, Any, tuple[str, ...]]] = {
    "block size twice": (zlab, put(OWN, "block_size", value=7), ("block_size is 5", "dflash_config.block_size is 7")),
    "block size missing": (zlab, drop("block_size"), ("block_size", "missing")),
    "block size too small": (zlab, put("block_size", value=1), ("block_size is 1", "no draft position")),
    "block size no number": (zlab, put("block_size", value=True), ("block_size is True", "whole number")),
    "taps missing": (zlab, drop(OWN, "target_layer_ids"), ("target_layer_ids", "missing")),
    "taps no list": (zlab, put(OWN, "target_layer_ids", value=3), ("target_layer_ids is 3", "list")),
    "taps empty": (zlab, put(OWN, "target_layer_ids", value=[]), ("target_layer_ids is []",)),
    "taps twice": (zlab, put(OWN, "target_layer_ids", value=[1, 1]), ("target_layer_ids is [1, 1]", "twice")),
    "tap out of range": (zlab, put(OWN, "target_layer_ids", value=[1, 5]), ("holds 5", "5 target layers")),
    "tap negative": (zlab, put(OWN, "target_layer_ids", value=[-2, 1]), ("holds -2",)),
    "tap of the embedding": (deepspec, put("target_layer_ids", value=[-1, 1]), ("holds -1", "embedding")),
    "tap of the embedding, speculators": (
        speculators,
        put("aux_hidden_state_layer_ids", value=[0, 2]),
        ("aux_hidden_state_layer_ids holds 0", "embedding"),
    ),
    "taps in both places": (zlab, put("target_layer_ids", value=[1, 2]), ("target_layer_ids is [1, 2]", "[1, 3]")),
    "tap count and fc": (zlab, put(OWN, "target_layer_ids", value=[0, 1, 3]), ("fc.weight is [32, 64]", "3 taps")),
    "mask token outside": (zlab, put(OWN, "mask_token_id", value=50), ("mask_token_id is 50", "vocabulary of 50")),
    "mask token missing": (zlab, drop(OWN, "mask_token_id"), ("mask_token_id", "missing")),
    "projector unknown": (zlab, put(OWN, "projector_type", value="peagle"), ("'peagle'", "domino", "dspark")),
    "projector without head": (zlab, put(OWN, "projector_type", value="domino"), ("'domino'", "dflash drafter")),
    "projector with another head": (domino, put(OWN, "projector_type", value="dspark"), ("'dspark'", "domino drafter")),
    "head under two names": (domino, twice, ("embed_proj.0.weight is there twice", "logit_head.")),
    "two heads": (domino, with_tensor("markov_head.markov_w1.weight", 50, 6), ("Domino head", "DSpark head")),
    "Domino widths": (domino, put(OWN, "emb_dim", value=8), ("embed_proj.0.weight is [7, 43]", "[8, 43]")),
    "Domino widths twice": (domino, put("gru_hidden_dim", value=12), ("gru_hidden_dim is 12", "is 11")),
    "Domino prefix": (domino, put(OWN, "pure_draft_prefix_len", value=-1), ("pure_draft_prefix_len is -1",)),
    "shift label no flag": (domino, put(OWN, "shift_label", value=1), ("shift_label is 1", "true or false")),
    "Markov variant": (dspark, put(OWN, "markov_head_type", value="lstm"), ("'lstm'", "vanilla, gated, rnn")),
    "Markov rank": (dspark, put(OWN, "markov_rank", value=7), ("markov_w1.weight is [50, 6]", "[50, 7]")),
    "Markov rank 0 with a head": (dspark, put(OWN, "markov_rank", value=0), ("markov_rank is 0",)),
    "rnn without anchor": (
        lambda: dspark("rnn"),
        put(OWN, "sample_from_anchor", value=False),
        ("sample_from_anchor is false", "'rnn'"),
    ),
    "missing tensor": (zlab, without("layers.1.mlp.up_proj.weight"), ("layers.1.mlp.up_proj.weight", "missing")),
    "missing confidence head": (dspark, without("confidence_head.proj.bias"), ("confidence_head.proj.bias", "missing")),
    "unknown tensor": (zlab, with_tensor("context_gate.weight", 3), ("unknown tensor context_gate.weight [3]",)),
    "biases unasked": (zlab, with_tensor("layers.0.self_attn.q_proj.bias", 48), ("unknown tensor layers.0.self_attn",)),
    "biases missing": (zlab, put("attention_bias", value=True), ("self_attn.k_proj.bias", "missing")),
    "wrong shape": (zlab, with_tensor("norm.weight", 31), ("norm.weight is [31]", "[32]")),
    "hidden size": (zlab, put("hidden_size", value=48), ("is [32, 64]", "[48, 96]")),
    "layers": (zlab, put("num_hidden_layers", value=3), ("layer_types", "3 (num_hidden_layers)")),
    "layer type": (
        zlab,
        lambda c, t: c.update(use_sliding_window=True, layer_types=["full_attention", "linear_attention"]),
        ("linear_attention", "sliding_attention"),
    ),
    "layer types missing": (
        zlab,
        lambda c, t: (c.update(use_sliding_window=True), c.pop("layer_types")),
        ("use_sliding_window is true", "layer_types is missing"),
    ),
    "window missing": (zlab, lambda c, t: c.update(SLIDING, sliding_window=None), ("sliding_window", "missing")),
    "window 0": (zlab, lambda c, t: c.update(SLIDING, sliding_window=0), ("sliding_window is 0",)),
    "causal twice": (
        zlab,
        lambda c, t: (c.update(is_causal=False), c[OWN].update(causal_head=True)),
        ("is_causal is False", "dflash_config.causal_head is True"),
    ),
    "heads": (zlab, put("num_key_value_heads", value=3), ("num_attention_heads is 4", "num_key_value_heads (3)")),
    "epsilon": (zlab, put("rms_norm_eps", value=0), ("rms_norm_eps is 0", "above 0")),
    "softcap": (zlab, put(OWN, "final_logit_softcapping", value="x"), ("final_logit_softcapping is 'x'",)),
    "rope missing": (zlab, drop("rope_theta"), ("rope_theta", "missing")),
    "rope type": (
        zlab,
        put("rope_scaling", value={"rope_type": "dynamic", "factor": 2.0}),
        ("rope_type is 'dynamic'", "yarn"),
    ),
    "rope factor": (zlab, put("rope_scaling", value={"rope_type": "yarn"}), ("factor is missing", "'yarn'")),
    "rope length": (
        zlab,
        lambda c, t: (c.update(rope_scaling={"type": "yarn", "factor": 2.0}), c.pop("max_position_embeddings")),
        ("max_position_embeddings", "missing"),
    ),
    "rope twice": (
        zlab,
        put("rope_parameters", value={"rope_theta": 5.0, "rope_type": "default"}),
        ("rope_theta is 5.0", "10000.0"),
    ),
    "rope by layer type": (
        zlab_new,
        put("rope_parameters", value={"full_attention": {"rope_theta": 1.0}}),
        ("rope_parameters.full_attention", "layer type"),
    ),
    "rope partial": (
        zlab_new,
        put("rope_parameters", "partial_rotary_factor", value=0.5),
        ("partial_rotary_factor is 0.5",),
    ),
    "activation": (zlab, put("hidden_act", value="gelu"), ("hidden_act is 'gelu'", "'silu'")),
    "DFlash 2 by key": (zlab, put(OWN, "selector_rank", value=256), ("selector_rank is 256", "DFlash 2")),
    "DFlash 2 by tensor": (
        zlab,
        with_tensor("candidate_selector.hidden_projection.weight", 4, 32),
        ("candidate_selector.hidden_projection.weight", "DFlash 2"),
    ),
    "DFlash 2 convolutions": (
        zlab,
        with_tensor("layers.0.attention_conv.base_kernel", 2),
        ("attention_conv", "DFlash 2"),
    ),
    "Gemma 4": (deepspec, put("model_type", value="gemma4_text"), ("model_type is 'gemma4_text'", "Gemma 4")),
    "Gemma 4 target": (deepspec, put("target_model_type", value="gemma4"), ("target_model_type", "Gemma 4")),
    "fused attention": (zlab, with_tensor("layers.0.self_attn.qkv_proj.weight", 96, 32), ("qkv_proj", "fused")),
    "fused MLP": (zlab, with_tensor("layers.0.mlp.gate_up_proj.weight", 80, 32), ("gate_up_proj", "fused")),
    "latent attention": (zlab, put(OWN, "attention_mode", value="mla"), ("attention_mode is 'mla'",)),
    "quantised": (zlab, put("quantization_config", value={"bits": 4}), ("quantization_config", "not supported")),
    "quantised tensor": (zlab, with_tensor("norm.weight", 32, dtype=torch.int8), ("norm.weight is I8", "quantised")),
    "speculators Domino": (speculators, put("projector_type", value="domino"), ("'domino'", "speculators")),
    "speculators kind": (speculators, put("speculators_model_type", value="eagle3"), ("'eagle3'",)),
    "speculators nested": (speculators, put(INNER, value=None), ("transformer_layer_config is None",)),
    "speculators norm": (speculators, put("norm_before_fc", value=True), ("norm_before_fc is True",)),
    "target hidden size": (speculators, put("target_hidden_size", value=64), ("target_hidden_size is 64", "is 32")),
    "draft vocabulary too large": (speculators, put("draft_vocab_size", value=51), ("draft_vocab_size is 51", "is 50")),
    "draft vocabulary of Domino": (domino, put("draft_vocab_size", value=20), ("draft_vocab_size is 20", "Domino")),
    "draft vocabulary without map": (speculators, put("draft_vocab_size", value=20), ("tensor d2t [20] is missing",)),
    "draft maps differ": (lambda: speculators("dspark", True), move_draft_token, ("d2t leads to 20", "t2d marks 20")),
    "draft map leads outside": (lambda: speculators("dspark", True), draft_token_outside, ("target id 69", "50")),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(tmp_path: Path, case: str) -> None:
    make, mutate, named = REFUSALS[case]
    config, tensors = make()
    config = json.loads(json.dumps(config))
    open_checkpoint(write(tmp_path / "sound", config, tensors))
    mutate(config, tensors)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(write(tmp_path / "mutated", config, tensors))
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path / "mutated") in message
    for part in named:
        assert part in message


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | st.floats(allow_nan=True) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.data())
def test_no_config_value_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    config, tensors = FORMATS[name]()
    config = json.loads(json.dumps(config))
    paths = [(k,) for k in config]
    paths += [(k, inner) for k, v in config.items() if isinstance(v, dict) for inner in v]
    put(*data.draw(st.sampled_from(sorted(paths))), value=data.draw(JSON_VALUES))(config, tensors)
    folder = write(tmp_path_factory.mktemp("fuzz"), config, tensors)
    with suppress(CheckpointError):
        DraftModel(open_checkpoint(folder).config)


@pytest.mark.parametrize(
    ("content", "named"), [("{", "not readable as JSON"), ("[1]", "JSON list"), ("\xff", "not readable as JSON")]
)
def test_unreadable_config(tmp_path: Path, content: str, named: str) -> None:
    folder = Path(write_format(tmp_path, "zlab"))
    (folder / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match=named):
        open_checkpoint(folder)


def test_missing_files(tmp_path: Path) -> None:
    folder = Path(write_format(tmp_path / "a", "zlab"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"no \*.safetensors file"):
        open_checkpoint(folder)
    folder = Path(write_format(tmp_path / "b", "zlab"))
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        open_checkpoint(folder)


def test_truncated_weights(tmp_path: Path) -> None:
    folder = Path(write_format(tmp_path, "zlab"))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="not readable as safetensors"):
        open_checkpoint(folder)


def test_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no folder here, and no hub id"):
        open_checkpoint(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        open_checkpoint(tmp_path / "file")


def test_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **keywords: Any) -> str:
        raise LocalEntryNotFoundError("cannot reach the hub\nand more")

    monkeypatch.setattr(files, "snapshot_download", unreachable)
    with pytest.raises(CheckpointError, match=r"'someone/drafter'.*cannot reach the hub$"):
        open_checkpoint("someone/drafter")


def test_hub_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_format(tmp_path, "domino")
    asked = []
    monkeypatch.setattr(files, "snapshot_download", lambda name, **keywords: asked.append((name, keywords)) or folder)
    assert open_checkpoint("someone/drafter").config.kind == "domino"
    assert asked[0][0] == "someone/drafter"
    assert not any(pattern.endswith((".py", ".bin")) for pattern in asked[0][1]["allow_patterns"])


def test_shards(tmp_path: Path) -> None:
    config, tensors = domino()
    names = sorted(tensors)
    write(tmp_path, config, {n: tensors[n] for n in names[::2]})
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00002.safetensors")
    write(tmp_path, config, {n: tensors[n] for n in names[1::2]})
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00002-of-00002.safetensors")
    index = {n: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, n in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    read = open_checkpoint(tmp_path).tensors()
    assert all(torch.equal(read[n], tensors[n]) for n in names)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"should be in model-00002-of-00002\.safetensors"):
        open_checkpoint(tmp_path)
    write(tmp_path, config, tensors)
    with pytest.raises(CheckpointError, match="it must be in one file"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_save_then_load_changes_nothing(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    opened = open_checkpoint(write_format(tmp_path / "in", name))
    tensors = opened.tensors(dtype=dtype)
    save_checkpoint(tmp_path / "out", opened.config, tensors)
    again = open_checkpoint(tmp_path / "out")
    assert again.config == opened.config
    read = again.tensors()
    assert read.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert read[key].dtype == tensor.dtype
        assert torch.equal(read[key].view(torch.uint8), tensor.view(torch.uint8))
    content = json.loads((tmp_path / "out" / "config.json").read_text())
    assert content["dtype"] == str(dtype).removeprefix("torch.")


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=64, max_size=64))
def test_save_keeps_every_bit(tmp_path_factory: pytest.TempPathFactory, payload: bytes) -> None:
    config, tensors = zlab()
    folder = tmp_path_factory.mktemp("bits")
    opened = open_checkpoint(write(folder / "in", config, tensors))
    tensors["norm.weight"] = torch.frombuffer(bytearray(payload * 2), dtype=torch.float32).clone()
    save_checkpoint(folder / "out", opened.config, tensors)
    assert open_checkpoint(folder / "out").tensors()["norm.weight"].numpy().tobytes() == payload * 2


def test_save_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, tensors = zlab()
    parsed = open_checkpoint(write(tmp_path / "in", config, tensors)).config
    monkeypatch.setattr(os, "rename", lambda *a: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        save_checkpoint(tmp_path / "out", parsed, tensors)
    assert {entry.name for entry in tmp_path.iterdir()} == {"in"}
    monkeypatch.undo()
    save_checkpoint(tmp_path / "out", parsed, tensors)
    (tmp_path / "out" / "notes.txt").write_text("kept")
    changed = {**tensors, "norm.weight": tensors["norm.weight"] + 1}
    save_checkpoint(tmp_path / "out", parsed, changed)
    assert {entry.name for entry in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors", "notes.txt"}
    assert torch.equal(open_checkpoint(tmp_path / "out").tensors()["norm.weight"], changed["norm.weight"])


def test_save_refuses_other_tensors(tmp_path: Path) -> None:
    config, tensors = zlab()
    parsed = open_checkpoint(write(tmp_path / "in", config, tensors)).config
    with pytest.raises(CheckpointError, match=r"norm.weight is None.*\(32,\)"):
        save_checkpoint(tmp_path / "out", parsed, {k: v for k, v in tensors.items() if k != "norm.weight"})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", FORMATS)
def test_model_holds_exactly_the_files_tensors(tmp_path: Path, name: str) -> None:
    opened = open_checkpoint(write_format(tmp_path, name))
    state = DraftModel(opened.config).state_dict()
    assert {k: tuple(v.shape) for k, v in state.items()} == {k: t.shape for k, t in opened.stored.items()}


def test_describe(tmp_path: Path) -> None:
    config, tensors = domino()
    text = describe(write(tmp_path, config, tensors))
    assert json.loads(json.dumps(text)) == text
    assert (text["kind"], text["block_size"], text["draft_positions"], text["taps"]) == ("domino", BLOCK, BLOCK, TAPS)
    assert text["parameters"] == sum(t.numel() for t in tensors.values())
    assert text["dtype"] == "float32"
    assert text["head"] == {"bottleneck": BOTTLENECK, "state": STATE, "first_corrected": 1}
    assert text["target"] == {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "num_layers": TARGET_LAYERS}
    config, tensors = deepspec()
    text = describe(write(tmp_path / "deepspec", config, tensors))
    assert text["unused_copies"] == ["embed_tokens.weight", "lm_head.weight"]
    assert text["parameters"] == sum(t.numel() for t in tensors.values()) - 2 * VOCABULARY * HIDDEN


def test_old_domino_widths_come_from_the_tensors(tmp_path: Path) -> None:
    config, tensors = domino_old()
    del config["emb_dim"]
    assert open_checkpoint(write(tmp_path, config, tensors)).config.head == DominoHeadConfig(BOTTLENECK, STATE, 0)
