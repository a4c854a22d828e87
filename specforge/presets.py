"""The named pipelines: which parts make up each published method."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from attrs import field, frozen

from specforge.config import AUTO, PartConfig, PipelineConfig
from specforge.errors import UnknownNameError, suggest


@frozen
class Preset:
    """A named choice of parts.

    Attributes:
        summary: one line: what it is.
        source: the paper or report it follows.
        drafter: see ``PipelineConfig``.
        scorer: see ``PipelineConfig``.
        builder: see ``PipelineConfig``.
    """

    summary: str
    source: str
    drafter: PartConfig = field(converter=PartConfig.of)
    scorer: PartConfig = field(default=AUTO, converter=PartConfig.of)
    builder: PartConfig = field(default=AUTO, converter=PartConfig.of)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "ar": Preset(
            summary="plain decoding, one token a forward pass: the baseline",
            source="-",
            drafter="none",
            scorer="none",
            builder="none",
        ),
        "ngram": Preset(
            summary="prompt lookup: copy what followed the last match of the latest tokens; no weights",
            source="Saxena 2023",
            drafter="ngram",
            scorer="trie",
            builder="chain",
        ),
    }
)


def preset_config(name: str, **fields: Any) -> PipelineConfig:
    """Return the config of a preset; ``fields`` are further ``PipelineConfig`` fields.

    Raises:
        UnknownNameError: with near misses and the names there are.
    """
    if name not in PRESETS:
        raise UnknownNameError(f"unknown preset {name!r}{suggest(name, PRESETS)}")
    preset = PRESETS[name]
    return PipelineConfig(**{"drafter": preset.drafter, "scorer": preset.scorer, "builder": preset.builder, **fields})
