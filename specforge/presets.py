"""The named pipelines: which parts make up each published method."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs
from attrs import field, frozen

from specforge.config import AUTO, PartConfig, PipelineConfig, part_config
from specforge.errors import UnknownNameError, suggest
from specforge.target.bundled import BUNDLED_TARGET
from specforge.target.loading import parse_device


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
    drafter: PartConfig = field(converter=part_config)
    scorer: PartConfig = field(default=PartConfig(AUTO), converter=part_config)
    builder: PartConfig = field(default=PartConfig(AUTO), converter=part_config)


_FULL = {"name": "conditional", "candidates": None, "normalizer": "vocabulary"}
_TOP = {"name": "conditional", "candidates": 64, "normalizer": "candidates"}
_HEAP = {"name": "heap", "budget": 64}
_ADAPTIVE = {"name": "heap", "budget": 128, "cost_model": "auto"}
_PRUNED = {"name": "depthwise", "mode": "pruned", "width": 12, "budget": 64, "beta": 0.0}

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
        "dflash": Preset(
            summary="block-parallel drafter, its best token at each position as a chain",
            source="arXiv:2602.06036",
            drafter="dflash",
            scorer="marginal",
            builder="chain",
        ),
        "domino": Preset(
            summary="DFlash with a recurrent head that corrects each position given the ones before, as a chain",
            source="arXiv:2605.29707",
            drafter="domino",
            scorer=_FULL,
            builder="chain",
        ),
        "ddtree": Preset(
            summary="the most likely tree of DFlash's independent positions, best first",
            source="arXiv:2604.12989",
            drafter="dflash",
            scorer="marginal",
            builder=_HEAP,
        ),
        "caddtree": Preset(
            summary="ddtree that stops growing where a larger tree costs more than it promises",
            source="arXiv:2606.01813",
            drafter="dflash",
            scorer="marginal",
            builder=_ADAPTIVE,
        ),
        "domino-ddtree": Preset(
            summary="ddtree over rows corrected along Domino's greedy chain only",
            source="baseline in the DARTree paper",
            drafter="domino",
            scorer="chain-conditional",
            builder=_HEAP,
        ),
        "dominotree": Preset(
            summary="the most likely tree, every node scored by Domino's head given its own path",
            source="DominoTree",
            drafter="domino",
            scorer=_TOP,
            builder=_HEAP,
        ),
        "dominotree-marginal": Preset(
            summary="dominotree without conditioning: same drafter, same tree, marginal scores",
            source="ablation in the DominoTree paper",
            drafter="domino",
            scorer="marginal",
            builder=_HEAP,
        ),
        "condadaptive": Preset(
            summary="dominotree with caddtree's cost-aware stop",
            source="negative result in the DominoTree paper",
            drafter="domino",
            scorer=_TOP,
            builder=_ADAPTIVE,
        ),
        "dartree-fixed": Preset(
            summary="depth by depth, the budget spread evenly over the depths, all nodes verified",
            source="DARTree",
            drafter="domino",
            scorer=_TOP,
            builder={"name": "depthwise", "mode": "fixed", "budget": 64},
        ),
        "dartree": Preset(
            summary="depth by depth into a wide supertree, of which the best nodes are verified",
            source="DARTree",
            drafter="domino",
            scorer=_TOP,
            builder=_PRUNED,
        ),
        "dspark": Preset(
            summary="block-parallel drafter with a Markov head, as a chain",
            source="arXiv:2607.05147",
            drafter="dspark",
            scorer=_FULL,
            builder="chain",
        ),
        "dspark-dartree": Preset(
            summary="dartree over DSpark's Markov head",
            source="DARTree",
            drafter="dspark",
            scorer=_TOP,
            builder=_PRUNED,
        ),
    }
)

# What pays on two CPU cores with the bundled target: the sweep in docs/benchmarks.md.
_ON_CPU = MappingProxyType({"candidates": 16, "budget": 16, "width": 8})


def preset_config(name: str, **fields: Any) -> PipelineConfig:
    """Return the config of a preset; ``fields`` are further ``PipelineConfig`` fields.

    Raises:
        UnknownNameError: with near misses and the names there are.
    """
    if name not in PRESETS:
        raise UnknownNameError(f"unknown preset {name!r}{suggest(name, PRESETS)}")
    preset = PRESETS[name]
    return PipelineConfig(**{"drafter": preset.drafter, "scorer": preset.scorer, "builder": preset.builder, **fields})


def suited(config: PipelineConfig) -> PipelineConfig:
    """Return a preset's config with trees of a size that pays where it will run.

    The papers' budgets are for large targets on a GPU, where a node costs next to nothing; they stay, except for the
    bundled target on a CPU.
    """
    if config.target != BUNDLED_TARGET or parse_device(config.device).type != "cpu":
        return config
    return attrs.evolve(config, scorer=_smaller(config.scorer), builder=_smaller(config.builder))


def _smaller(part: PartConfig) -> PartConfig:
    """Replace numbers that are larger than what pays on a CPU."""
    sizes = {name: size for name, size in _ON_CPU.items() if (part.options.get(name) or 0) > size}
    return PartConfig(part.name, {**part.options, **sizes})
