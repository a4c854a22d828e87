"""Relatives of the supported drafters that would load in part and draft wrongly: refused by name."""

from __future__ import annotations

from collections.abc import Mapping

from specforge.checkpoints.files import StoredTensor
from specforge.checkpoints.reader import ConfigReader
from specforge.errors import CheckpointError

_DFLASH2 = "DFlash 2 (per-layer convolutions and a candidate selector) is not supported yet"
_FUSED = "fused projections are not supported yet; split them into q/k/v_proj and gate/up_proj"
_TENSOR_PARTS = {
    "candidate_selector.": _DFLASH2,
    "attention_conv.": _DFLASH2,
    "mlp_conv.": _DFLASH2,
    "qkv_proj.": _FUSED,
    "kv_proj.": _FUSED,
    "gate_up_proj.": _FUSED,
}
_DFLASH2_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_FLOATS = ("float64", "float32", "float16", "bfloat16", "int64", "bool")


def refuse_unsupported(reader: ConfigReader, tensors: Mapping[str, StoredTensor]) -> None:
    """Refuse what is known and not supported.

    Raises:
        CheckpointError: naming the variant, and the key or tensor it was known by.
    """
    for error in (_by_config(reader), _by_tensors(tensors)):
        if error is not None:
            raise error


def _by_config(reader: ConfigReader) -> CheckpointError | None:
    for name in _DFLASH2_KEYS:
        if (found := reader.find(name)) is not None:
            return reader.refuse(f"{found[0]} is {found[1]!r}: {_DFLASH2}")
    for name in ("target_model_type", "model_type"):
        for prefix, place in reader.places.items():
            if str(place.get(name, "")).startswith("gemma4"):
                return reader.refuse(f"{prefix}{name} is {place[name]!r}: Gemma 4 drafters are not supported yet")
    if "transformer_layer_config." in reader.places and reader.value("projector_type", default=None)[1] == "domino":
        return reader.refuse("projector_type is 'domino': Domino in speculators' layout is not supported yet")
    return _by_option(reader)


def _by_option(reader: ConfigReader) -> CheckpointError | None:
    supported: dict[str, tuple[object, ...]] = {
        "hidden_act": ("silu",),
        "attention_mode": ("gqa", "mha"),
        "partial_rotary_factor": (1, 1.0),
        "norm_before_fc": (False,),
        "fc_norm": (False,),
    }
    for name, values in supported.items():
        if (found := reader.find(name)) is not None and found[1] not in values:
            return reader.refuse(f"{found[0]} is {found[1]!r}; only {values[0]!r} is supported")
    for name in ("attention_modes", "quantization_config"):
        if (found := reader.find(name)) is not None:
            return reader.refuse(f"{found[0]} is {found[1]!r}; that option is not supported")
    return None


def _by_tensors(tensors: Mapping[str, StoredTensor]) -> CheckpointError | None:
    for tensor in tensors.values():
        for part, reason in _TENSOR_PARTS.items():
            if f".{part}" in f".{tensor.name}":
                return CheckpointError(f"{tensor.file}: tensor {tensor.name}: {reason}")
        if tensor.dtype not in _FLOATS:
            return CheckpointError(
                f"{tensor.file}: tensor {tensor.name} is {tensor.dtype}; quantised drafters are not read"
            )
    return None
