"""Configs, config files, and pipelines that are refused when they are assembled."""

from __future__ import annotations

from pathlib import Path

import pytest

from specforge import ConfigError, IncompatiblePartsError, Pipeline, PipelineConfig, UnknownNameError, load_config_file
from specforge.assembly import assemble, with_checkpoint
from specforge.config import PartConfig
from specforge.presets import PRESETS, preset_config
from specforge.target import Target

CONFIGS = Path(__file__).parent.parent / "configs"


def test_a_bare_name_is_short_for_a_dict() -> None:
    config = PipelineConfig(drafter="ngram", builder={"name": "chain", "length": 3}, scorer=None)
    assert config.drafter == PartConfig("ngram")
    assert config.builder.options == {"length": 3}
    assert config.scorer.name == "none"


def test_a_config_survives_its_dict() -> None:
    config = PipelineConfig(target="x", drafter={"name": "ngram", "length": 3}, builder="chain", dtype="float32")
    assert PipelineConfig(**config.to_dict()) == config
    assert config.to_dict()["drafter"] == {"name": "ngram", "length": 3}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'; it must be one of auto, float32"),
        ({"target": ""}, "target is ''"),
        ({"device": None}, "device is None"),
        ({"drafter": 3}, "a part is a name or a dict with a 'name'"),
        ({"builder": {"budget": 3}}, "a part is a name or a dict with a 'name'"),
    ],
)
def test_bad_fields(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PipelineConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            {"drafter": "none", "scorer": "trie"},
            IncompatiblePartsError,
            "which drafter 'none' does not give; drafters that do: .*ngram",
        ),
        (
            {"drafter": "ngram", "verifier": "rejection"},
            IncompatiblePartsError,
            r"builder 'chain' does not give; builders that do: chain \(by option\), sampled",
        ),
        ({"drafter": "ngrm"}, UnknownNameError, "unknown drafter 'ngrm'; did you mean 'ngram'?"),
        ({"drafter": "ngram", "builder": "chian"}, UnknownNameError, "did you mean 'chain'"),
        ({"drafter": "ngram", "verifier": "gredy"}, UnknownNameError, "did you mean 'greedy'"),
        ({"drafter": "ngram", "scorer": "tire"}, UnknownNameError, "did you mean 'trie'"),
        ({"drafter": {"name": "ngram", "lenght": 3}}, ConfigError, "no option 'lenght'; did you mean 'length'"),
        ({"drafter": {"name": "ngram", "length": 0}}, ConfigError, "length is 0"),
        ({"drafter": "ngram", "verifier": {"name": "auto", "x": 1}}, ConfigError, "'auto' takes no options"),
        ({"drafter": "none", "builder": "chain"}, IncompatiblePartsError, "builder 'chain' needs scores"),
        (
            {"drafter": "ngram", "builder": "none"},
            IncompatiblePartsError,
            "uses nothing that drafter 'ngram' gives",
        ),
        (
            {"drafter": "ngram", "builder": {"name": "chain", "min_confidence": 0.5}},
            IncompatiblePartsError,
            r"drafter 'ngram' and scorer 'trie' do not give; drafters that do: dspark \(by option\)",
        ),
        ({"drafter": "ngram", "builder": {"name": "chain", "sample": "no"}}, ConfigError, "sample is 'no'"),
        ({"drafter": "ngram", "builder": {"name": "chain", "length": "8"}}, ConfigError, "length is '8'"),
        ({"drafter": {"name": "ngram", "decay": True}}, ConfigError, "decay is True; it must be a finite number"),
    ],
)
def test_what_cannot_work_is_refused_with_the_names_that_would(fields: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        assemble(PipelineConfig(**fields))
    assert "\n" not in str(caught.value)


def test_defaults_follow_the_drafter() -> None:
    parts = assemble(PipelineConfig(drafter="ngram"))
    assert (type(parts.scorer).__name__, type(parts.builder).__name__) == ("Trie", "Chain")
    parts = assemble(PipelineConfig())
    assert (type(parts.scorer).__name__, type(parts.builder).__name__) == ("NoScores", "RootOnly")


def test_greedy_with_temperature_is_refused_before_anything_runs(tiny_target: Target) -> None:
    pipeline = Pipeline.from_config(PipelineConfig(drafter="ngram", verifier="greedy"), target=tiny_target)
    with pytest.raises(ConfigError, match=r"greedy.*temperature is 0.7"):
        pipeline.generate([1, 2], temperature=0.7)


def test_a_checkpoint_for_a_drafter_without_one() -> None:
    with pytest.raises(ConfigError, match="drafter 'ngram' reads no checkpoint; got 'x'"):
        with_checkpoint(preset_config("ngram"), "x")


def test_unknown_preset() -> None:
    with pytest.raises(UnknownNameError, match="unknown preset 'ngramm'; did you mean 'ngram'"):
        preset_config("ngramm")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_has_a_config_file_that_says_the_same(name: str) -> None:
    config = load_config_file(CONFIGS / f"{name}.py")
    for part in ("drafter", "scorer", "builder", "verifier"):
        mine, preset = getattr(config, part), getattr(preset_config(name), part)
        options = {k: v for k, v in mine.options.items() if k != "checkpoint"}
        assert (mine.name, options) == (preset.name, dict(preset.options)), part


def test_every_config_file_is_a_preset() -> None:
    assert {path.stem for path in CONFIGS.glob("*.py")} == set(PRESETS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist"),
        ("x = 1", "lacks `config`"),
        ("config = 3", "`config` is a int; it must be a PipelineConfig"),
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(4)", "raised SystemExit: 4"),
        ("def", "raised SyntaxError"),
        ("from specforge import PipelineConfig\nconfig = PipelineConfig(dtype='x')", "dtype is 'x'"),
    ],
)
def test_bad_config_files(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config_file(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_config_files_cannot_take_one_name_from_each_other(tmp_path: Path) -> None:
    text = """
from specforge import PipelineConfig, register
from specforge.interfaces import TreeBuilder

@register.builder("taken-in-test")
class Mine(TreeBuilder):
    "Taken by a test."

    def build(self, draft, scorer, round): ...

config = PipelineConfig(drafter="ngram", builder="taken-in-test")
"""
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(text)
    assert load_config_file(tmp_path / "one.py") == load_config_file(tmp_path / "one.py")
    with pytest.raises(ConfigError, match=r"builder 'taken-in-test' is registered already, by config file .*one\.py"):
        load_config_file(tmp_path / "two.py")
