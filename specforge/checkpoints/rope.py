"""Rotary embeddings as configs give them: new ``rope_parameters``, or old ``rope_theta`` and ``rope_scaling``."""

from __future__ import annotations

from typing import Any

from specforge.checkpoints.reader import ConfigReader

# Types that rescale with the length of the sequence are left out: keys cached earlier would not follow.
NEEDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def read_rope(reader: ConfigReader) -> dict[str, Any]:
    """Return ``rope_type``, ``rope_theta`` and the type's own parameters.

    Raises:
        CheckpointError: when the two spellings contradict each other or the type is not supported.
    """
    rope: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        key, given = reader.value(name, default={})
        if not isinstance(given, dict):
            raise reader.refuse(f"{key} is {given!r}; it must be an object")
        for part, value in given.items():
            if value is not None:
                _add(reader, rope, "rope_type" if part == "type" else part, value, key)
    if reader.find("rope_theta") is not None or "rope_theta" not in rope:
        _add(reader, rope, "rope_theta", reader.positive("rope_theta"), "rope_theta")
    rope.setdefault("rope_type", "default")
    _check(reader, rope)
    if NEEDS[rope["rope_type"]]:
        # As transformers has it: the length before stretching is the drafter's own where none is named.
        rope.setdefault("original_max_position_embeddings", reader.whole("max_position_embeddings"))
    return {key: rope[key] for key in sorted(rope)}


def _add(reader: ConfigReader, rope: dict[str, Any], part: str, value: Any, key: str) -> None:
    if isinstance(value, dict):
        raise reader.refuse(f"{key}.{part} is {value!r}; parameters that differ by layer type are not supported")
    if part in rope and rope[part] != value:
        raise reader.refuse(f"{part} is {rope[part]!r} in one place but {value!r} in {key}; they must agree")
    rope[part] = value


def _check(reader: ConfigReader, rope: dict[str, Any]) -> None:
    for part, value in rope.items():
        if part != "rope_type" and not isinstance(value, int | float):
            raise reader.refuse(f"{part} is {value!r}; it must be a number")
    if not isinstance(rope["rope_type"], str) or rope["rope_type"] not in NEEDS:
        raise reader.refuse(f"rope_type is {rope['rope_type']!r}; supported: {', '.join(NEEDS)}")
    for part in NEEDS[rope["rope_type"]]:
        if part not in rope:
            raise reader.refuse(f"{part} is missing; rope_type {rope['rope_type']!r} needs it")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise reader.refuse(f"partial_rotary_factor is {rope['partial_rotary_factor']!r}; only 1 is supported")
