"""The published formats: z-lab DFlash (old and new keys), Domino, SpecForge and DeepSpec DSpark, vLLM speculators.

z-lab's layout is flat, with the drafter's own keys in ``dflash_config`` or at the top level; Domino's, SpecForge's and
DeepSpec's files follow it. speculators nests the layers' config in ``transformer_layer_config`` and counts taps as
indices into ``hidden_states``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specforge.checkpoints.config import (
    FULL,
    SLIDING,
    ConfidenceHeadConfig,
    DominoHeadConfig,
    DrafterConfig,
    MarkovHeadConfig,
)
from specforge.checkpoints.files import StoredTensor
from specforge.checkpoints.reader import REQUIRED, ConfigReader, is_whole
from specforge.checkpoints.rope import read_rope
from specforge.checkpoints.unsupported import refuse_unsupported
from specforge.errors import CheckpointError

ZLAB, DEEPSPEC, SPECULATORS = "z-lab", "DeepSpec", "speculators"
PROJECTORS = {None: None, "dflash": "dflash", "domino": "domino", "causal_v5": "domino", "dspark": "dspark"}
MARKOV_VARIANTS = ("vanilla", "gated", "rnn")

Tensors = Mapping[str, StoredTensor]


def layout_of(raw: Mapping[str, Any]) -> str:
    """Return which of the three layouts a config is in."""
    if "speculators_model_type" in raw or "transformer_layer_config" in raw:
        return SPECULATORS
    return ZLAB if "dflash_config" in raw else DEEPSPEC


def parse_config(raw: Mapping[str, Any], file: Path, tensors: Tensors) -> DrafterConfig:
    """Return what a published config means.

    Args:
        raw: the JSON object.
        file: where it was read, for messages.
        tensors: the drafter's tensors by canonical name; what a checkpoint is follows from them too.

    Raises:
        CheckpointError: when a key is missing, contradicts another or the tensors, or asks for what is not supported.
    """
    layout = layout_of(raw)
    reader = _reader(raw, file, layout)
    refuse_unsupported(reader, tensors)
    kind = _kind(reader, tensors, layout)
    layer_types, window = _layers(reader)
    vocab_size = reader.whole("vocab_size")
    head = _head(reader, kind, tensors)
    config = DrafterConfig(
        kind=kind,
        hidden_size=_hidden_size(reader),
        vocab_size=vocab_size,
        intermediate_size=reader.whole("intermediate_size"),
        num_heads=reader.whole("num_attention_heads"),
        num_kv_heads=reader.whole("num_key_value_heads"),
        head_dim=reader.whole("head_dim"),
        rms_norm_eps=reader.positive("rms_norm_eps"),
        attention_bias=reader.flag("attention_bias", default=False),
        layer_types=layer_types,
        sliding_window=window,
        is_causal=_is_causal(reader),
        rope=read_rope(reader),
        max_position_embeddings=reader.whole("max_position_embeddings", default=None),
        block_size=reader.whole("block_size"),
        mask_token_id=_mask_token(reader, vocab_size),
        taps=_taps(reader, layout),
        num_target_layers=reader.whole("num_target_layers", default=None),
        anchor_predicts=_anchor_predicts(reader, kind, layout, head),
        input_embedding_scale=reader.positive("input_embedding_scale", default=1.0),
        output_multiplier=reader.positive("output_multiplier", default=1.0),
        final_logit_softcapping=reader.positive("final_logit_softcapping", default=None),
        draft_vocab_size=_draft_vocabulary(reader, kind, vocab_size),
        head=head,
        confidence=_confidence(reader, tensors, head),
    )
    _check_sizes(config, reader)
    return config


def _reader(raw: Mapping[str, Any], file: Path, layout: str) -> ConfigReader:
    nested = {ZLAB: "dflash_config", SPECULATORS: "transformer_layer_config"}.get(layout)
    places: dict[str, Mapping[str, Any]] = {"": raw}
    if nested is not None:
        inner = raw.get(nested)
        if not isinstance(inner, dict):
            raise CheckpointError(f"{file}: {nested} is {inner!r}; it must be an object")
        places[f"{nested}."] = inner
    return ConfigReader(file, places)


def _kind(reader: ConfigReader, tensors: Tensors, layout: str) -> str:
    markov = any(name.startswith(("markov_head.", "confidence_head.")) for name in tensors)
    gru = any(name.startswith(("prefix_gru.", "embed_proj.")) for name in tensors)
    if gru and markov:
        raise reader.refuse(
            "its tensors hold a Domino head (prefix_gru) and a DSpark head (markov_head); one is possible"
        )
    by_tensors = "domino" if gru else "dspark" if markov else "dflash"
    key, projector = reader.value("projector_type", default=None)
    if layout == SPECULATORS and projector is None:
        key, projector = reader.value("speculators_model_type", default=None)
    if not isinstance(projector, str | None) or projector not in PROJECTORS:
        raise reader.refuse(f"{key} is {projector!r}; supported: {', '.join(p for p in PROJECTORS if p)}")
    declared = PROJECTORS[projector]
    headless = declared == "dspark" and by_tensors == "dflash" and reader.whole("markov_rank", least=0, default=0) == 0
    if declared not in (None, by_tensors) and not headless:
        raise reader.refuse(f"{key} is {projector!r}, but the tensors are those of a {by_tensors} drafter")
    return declared or by_tensors


def _hidden_size(reader: ConfigReader) -> int:
    hidden = reader.whole("hidden_size")
    target = reader.whole("target_hidden_size", default=hidden)
    if target != hidden:
        raise reader.refuse(
            f"target_hidden_size is {target} but hidden_size is {hidden}; only equal sizes are supported"
        )
    return hidden


def _layers(reader: ConfigReader) -> tuple[tuple[str, ...], int | None]:
    count = reader.whole("num_hidden_layers")
    sliding = reader.flag("use_sliding_window", default=None)
    if sliding and reader.find("layer_types") is None:
        raise reader.refuse("use_sliding_window is true but layer_types is missing; it must say which layers slide")
    key, types = reader.value("layer_types", default=[FULL] * count)
    if not isinstance(types, list) or len(types) != count or any(t not in (FULL, SLIDING) for t in types):
        raise reader.refuse(f"{key} is {types!r}; it must be {count} (num_hidden_layers) of {FULL} or {SLIDING}")
    if sliding is False or SLIDING not in types:
        return (FULL,) * count, None
    return tuple(types), reader.whole("sliding_window")


def _is_causal(reader: ConfigReader) -> bool | None:
    # JetSpec writes causal_head, vLLM's exporters write causal: the same switch as is_causal.
    explicit = reader.flag("is_causal", "causal_head", "causal", default=None)
    if not reader.flag("sliding_window_non_causal", default=False):
        return explicit
    if explicit:
        raise reader.refuse("sliding_window_non_causal is true but is_causal is true; they must agree")
    return False


def _mask_token(reader: ConfigReader, vocab_size: int) -> int:
    mask = reader.whole("mask_token_id", least=0)
    if mask >= vocab_size:
        raise reader.refuse(f"mask_token_id is {mask}, outside the vocabulary of {vocab_size} (vocab_size)")
    return mask


def _taps(reader: ConfigReader, layout: str) -> tuple[int, ...]:
    key, ids = reader.value("aux_hidden_state_layer_ids" if layout == SPECULATORS else "target_layer_ids")
    if not isinstance(ids, list) or not ids or not all(is_whole(i) for i in ids):
        raise reader.refuse(f"{key} is {ids!r}; it must be a list of target layers")
    taps = tuple(i - 1 for i in ids) if layout == SPECULATORS else tuple(ids)
    if len(set(taps)) != len(taps):
        raise reader.refuse(f"{key} is {ids!r}; a layer occurs twice")
    layers = reader.whole("num_target_layers", default=None)
    for given, tap in zip(ids, taps, strict=True):
        if tap == -1:
            raise reader.refuse(f"{key} holds {given}, the embedding's output; only decoder layers can be tapped")
        if tap < 0 or (layers is not None and tap >= layers):
            limit = f"of the {layers} target layers (num_target_layers)" if layers is not None else "of a target"
            raise reader.refuse(f"{key} holds {given}, which is none {limit}")
    return taps


def _anchor_predicts(reader: ConfigReader, kind: str, layout: str, head: object) -> bool:
    # DeepSpec trains even its rank-0 files, which are otherwise plain DFlash, to predict from the anchor.
    default = kind == "dspark" or (layout == DEEPSPEC and reader.has("markov_rank"))
    # shift_label is DFlash's and Domino's key; SpecForge's DSpark shares their config class and does not read it.
    names = ("sample_from_anchor",) if kind == "dspark" else ("shift_label", "sample_from_anchor")
    anchor = reader.flag(*names, default=default)
    if not anchor and isinstance(head, MarkovHeadConfig) and head.variant == "rnn":
        raise reader.refuse(
            "sample_from_anchor is false and markov_head_type is 'rnn'; together they are not supported"
        )
    return anchor


def _draft_vocabulary(reader: ConfigReader, kind: str, vocab_size: int) -> int | None:
    size = reader.whole("draft_vocab_size", default=vocab_size)
    if size == vocab_size:
        return None
    if size > vocab_size or kind == "domino":
        limit = "a Domino head corrects the whole vocabulary" if kind == "domino" else "it cannot be larger"
        raise reader.refuse(f"draft_vocab_size is {size} but vocab_size is {vocab_size}; {limit}")
    return size


def _head(reader: ConfigReader, kind: str, tensors: Tensors) -> DominoHeadConfig | MarkovHeadConfig | None:
    if kind == "domino":
        out, hh = tensors.get("embed_proj.2.weight"), tensors.get("prefix_gru.weight_hh_l0")
        return DominoHeadConfig(
            bottleneck=reader.whole("emb_dim", default=_width(out)),
            state=reader.whole("gru_hidden_dim", default=_width(hh)),
            first_corrected=reader.whole("pure_draft_prefix_len", least=0, default=0),
        )
    if kind != "dspark" or (rank := reader.whole("markov_rank", least=0, default=0)) == 0:
        return None
    key, variant = reader.value("markov_head_type", default="vanilla")
    if variant not in MARKOV_VARIANTS:
        raise reader.refuse(f"{key} is {variant!r}; it must be one of {', '.join(MARKOV_VARIANTS)}")
    return MarkovHeadConfig(rank, variant)


def _width(tensor: StoredTensor | None) -> Any:
    return tensor.shape[1] if tensor is not None and len(tensor.shape) == 2 else REQUIRED


def _confidence(reader: ConfigReader, tensors: Tensors, head: object) -> ConfidenceHeadConfig | None:
    there = any(name.startswith("confidence_head.") for name in tensors)
    if not reader.flag("enable_confidence_head", default=there):
        return None
    with_markov = reader.flag("confidence_head_with_markov", default=head is not None)
    if with_markov and head is None:
        raise reader.refuse(
            "confidence_head_with_markov is true but markov_rank is 0; it reads the Markov head's codes"
        )
    return ConfidenceHeadConfig(with_markov)


def _check_sizes(config: DrafterConfig, reader: ConfigReader) -> None:
    if config.num_heads % config.num_kv_heads:
        raise reader.refuse(
            f"num_attention_heads is {config.num_heads}; num_key_value_heads ({config.num_kv_heads}) must divide it"
        )
    if config.head_dim % 2:
        raise reader.refuse(f"head_dim is {config.head_dim}; rotary embeddings need an even one")
    if config.draft_positions(config.block_size) < 1:
        raise reader.refuse(
            f"block_size is {config.block_size}; it leaves no draft position, since the root is one of it"
        )
