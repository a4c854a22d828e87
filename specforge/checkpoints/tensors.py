"""The tensors a drafter is made of: their names in z-lab's layout, their shapes, and the check against a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from specforge.checkpoints.config import DominoHeadConfig, DrafterConfig, MarkovHeadConfig
from specforge.checkpoints.files import StoredTensor
from specforge.errors import CheckpointError

Shapes = dict[str, tuple[int, ...]]

# The target's own embedding and head are used, so a checkpoint's copies of them are left in the file.
FROZEN_COPIES = ("embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight")
DRAFT_TO_TARGET = "d2t"
TARGET_TO_DRAFT = "t2d"
_OLD_HEAD_PREFIX = "logit_head."


def canonical_names(stored: Mapping[str, StoredTensor]) -> tuple[dict[str, StoredTensor], dict[str, StoredTensor]]:
    """Split a file's tensors into the drafter's own, by their names in z-lab's layout, and frozen copies.

    Raises:
        CheckpointError: when a tensor is there under its old and its new name.
    """
    own: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        if name in FROZEN_COPIES:
            continue
        new = name.removeprefix(_OLD_HEAD_PREFIX)
        if new in own:
            raise CheckpointError(f"{tensor.file}: tensor {new} is there twice, as {own[new].name} and as {name}")
        own[new] = tensor
    return own, {name: tensor for name, tensor in stored.items() if name in FROZEN_COPIES}


def expected_shapes(config: DrafterConfig) -> Shapes:
    """Return name -> shape of every tensor that a drafter of this config has."""
    hidden = config.hidden_size
    shapes: Shapes = {
        "fc.weight": (hidden, len(config.taps) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(len(config.layer_types)):
        shapes.update({f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(config)})
    shapes.update(_head_shapes(config))
    if config.draft_vocab_size is not None:
        shapes.update({DRAFT_TO_TARGET: (config.draft_vocab_size,), TARGET_TO_DRAFT: (config.vocab_size,)})
    return shapes


def _layer_shapes(config: DrafterConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, wide = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    projections = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden)}
    for name, shape in {**projections, "o_proj": (hidden, queries)}.items():
        yield f"self_attn.{name}.weight", shape
        if config.attention_bias:
            yield f"self_attn.{name}.bias", shape[:1]
    yield "self_attn.q_norm.weight", (config.head_dim,)
    yield "self_attn.k_norm.weight", (config.head_dim,)
    yield "mlp.gate_proj.weight", (wide, hidden)
    yield "mlp.up_proj.weight", (wide, hidden)
    yield "mlp.down_proj.weight", (hidden, wide)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)


def _head_shapes(config: DrafterConfig) -> Shapes:
    hidden, head, shapes = config.hidden_size, config.head, Shapes()
    if isinstance(head, DominoHeadConfig):
        shapes["prefix_gru.weight_ih_l0"] = (3 * head.state, hidden)
        shapes["prefix_gru.weight_hh_l0"] = (3 * head.state, head.state)
        shapes["embed_proj.0.weight"] = (head.bottleneck, hidden + head.state)
        shapes["embed_proj.2.weight"] = (config.vocab_size, head.bottleneck)
    if isinstance(head, MarkovHeadConfig):
        shapes["markov_head.markov_w1.weight"] = (config.vocab_size, head.rank)
        shapes["markov_head.markov_w2.weight"] = (config.draft_vocab_size or config.vocab_size, head.rank)
        if head.variant == "gated":
            shapes.update(_affine("markov_head.gate_proj", head.rank, hidden + head.rank))
        if head.variant == "rnn":
            shapes.update(_affine("markov_head.joint_proj", 3 * head.rank, hidden + 2 * head.rank))
    if config.confidence is not None:
        shapes.update(_affine("confidence_head.proj", 1, config.confidence_inputs))
    return shapes


def _affine(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def check_tensors(config: DrafterConfig, own: Mapping[str, StoredTensor], folder: Path) -> None:
    """Compare a file's tensors with those its config asks for.

    Raises:
        CheckpointError: naming the first tensor that is missing, unknown or of another shape.
    """
    expected = expected_shapes(config)
    for name in sorted(set(expected) - set(own)):
        raise CheckpointError(f"{folder}: tensor {name} {list(expected[name])} is missing; its config asks for it")
    for name in sorted(set(own) - set(expected)):
        tensor = own[name]
        raise CheckpointError(
            f"{tensor.file}: unknown tensor {tensor.name} {list(tensor.shape)}; a {config.kind} drafter of this config "
            "has none, and ignoring it would draft wrongly"
        )
    for name, shape in expected.items():
        if own[name].shape != shape:
            raise CheckpointError(_wrong_shape(config, own[name], name, shape))


def _wrong_shape(config: DrafterConfig, tensor: StoredTensor, name: str, shape: tuple[int, ...]) -> str:
    message = f"{tensor.file}: tensor {tensor.name} is {list(tensor.shape)}, but its config asks for {list(shape)}"
    if name == "fc.weight":
        message += f": {len(config.taps)} taps (target_layer_ids {list(config.taps)}) of {config.hidden_size} each"
    return message
