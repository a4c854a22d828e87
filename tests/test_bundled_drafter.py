"""Pipelines on the bundled target without a checkpoint draft with the drafter that ships with the package."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from specforge import Pipeline, PipelineConfig
from specforge.assembly import with_bundled_drafter
from specforge.checkpoints import open_checkpoint
from specforge.checkpoints.bundled import BUNDLED_DRAFTER, bundled_drafter_folder
from specforge.errors import ConfigError
from specforge.presets import PRESETS, preset_config, suited
from specforge.target import BUNDLED_TARGET, Target

DRAFTS_WITH = {
    "ar": {},
    "ngram": {},
    **{name: {"checkpoint": BUNDLED_DRAFTER, "ignore_head": True} for name in ("dflash", "ddtree", "caddtree")},
    **{
        name: {"checkpoint": BUNDLED_DRAFTER}
        for name in (
            "domino",
            "domino-ddtree",
            "dominotree",
            "dominotree-marginal",
            "condadaptive",
            "dartree-fixed",
            "dartree",
        )
    },
    "dspark": {},
    "dspark-dartree": {},
}


def test_every_preset_is_spoken_of() -> None:
    assert DRAFTS_WITH.keys() == PRESETS.keys()


@pytest.mark.parametrize("name", PRESETS)
def test_drafters_of_the_bundled_target(name: str) -> None:
    config = with_bundled_drafter(preset_config(name), BUNDLED_TARGET)
    assert config.drafter.options == {**preset_config(name).drafter.options, **DRAFTS_WITH[name]}


def test_a_backbone_without_its_head_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "specforge"):
        with_bundled_drafter(preset_config("ddtree"), BUNDLED_TARGET)
    assert "dflash drafts with the backbone of smollm2-domino alone; its domino head is ignored" in caplog.text


@pytest.mark.parametrize("drafter", [{"name": "domino", "checkpoint": "mine"}, "ngram", "none"])
def test_what_is_named_stays(drafter: Any) -> None:
    config = PipelineConfig(drafter=drafter)
    assert with_bundled_drafter(config, BUNDLED_TARGET) == config


def test_other_targets_need_a_checkpoint(tiny_target: Target) -> None:
    config = preset_config("domino")
    assert with_bundled_drafter(config, "Qwen/Qwen3-4B") == config
    with pytest.raises(ConfigError, match="drafter 'domino' needs the option 'checkpoint'"):
        Pipeline.from_preset("domino", target=tiny_target)


def test_trees_suit_the_bundled_target_on_a_cpu() -> None:
    config = preset_config("dartree")
    small = suited(config.override(device="cpu"))
    assert small.builder.options["budget"] < config.builder.options["budget"]
    assert small.builder.options["width"] < config.builder.options["width"]
    assert small.scorer.options["candidates"] < config.scorer.options["candidates"]
    assert small.builder.options.keys() == config.builder.options.keys()
    large = config.override(target="Qwen/Qwen3-4B", device="cpu")
    assert suited(large) == large


@pytest.mark.parametrize("name", ["ar", "ngram", "domino", "dflash"])
def test_what_has_no_size_has_nothing_to_suit(name: str) -> None:
    config = preset_config(name, device="cpu")
    assert suited(config) == config


def test_the_drafter_is_there_and_small_enough() -> None:
    folder = bundled_drafter_folder()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 40 * 2**20
    assert (folder / "README.md").is_file()
    assert open_checkpoint(BUNDLED_DRAFTER).config.kind == "domino"


@pytest.mark.smollm2
@pytest.mark.parametrize("name", ["ddtree", "dartree"])
def test_it_drafts_well_for_the_bundled_target(name: str) -> None:
    prompt = "Write a short story about a fox and a river."
    target = {"target": BUNDLED_TARGET, "device": "cpu", "dtype": "float32"}
    plain = Pipeline.from_preset("ar", **target).generate(prompt, max_new_tokens=48)
    drafted = Pipeline.from_preset(name, **target).generate(prompt, max_new_tokens=48)
    assert drafted.token_ids == plain.token_ids
    assert drafted.mean_acceptance_length > 1.3
