"""Grids: which pipelines come of them, what they are called, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specforge import ConfigError, PipelineConfig
from specforge.presets import preset_config
from specforge.report import grid
from specforge.report.grid import Axis, axes_of, expand, parse_axis


def configs(*names: str) -> dict[str, PipelineConfig]:
    return {name: preset_config(name) for name in names}


def test_a_grid_applies_to_every_pipeline_that_has_the_option() -> None:
    found = expand(configs("ar", "ngram", "dominotree", "dartree"), axes_of(["builder.budget=8,16", "builder.width=4"]))
    assert list(found) == [
        "ar",
        "ngram",
        "dominotree[builder.budget=8]",
        "dominotree[builder.budget=16]",
        "dartree[builder.budget=8,builder.width=4]",
        "dartree[builder.budget=16,builder.width=4]",
    ]
    assert found["ar"] == preset_config("ar")
    changed = found["dartree[builder.budget=16,builder.width=4]"]
    assert changed.builder.options == {"mode": "pruned", "width": 4, "budget": 16, "beta": 0.0}
    assert changed.scorer == preset_config("dartree").scorer


@given(
    st.dictionaries(
        st.sampled_from(["builder.budget", "builder.width", "scorer.candidates", "drafter.correction"]),
        st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True),
        min_size=1,
    )
)
def test_there_is_one_pipeline_for_every_combination(values: dict[str, list[int]]) -> None:
    found = expand({"tree": preset_config("dartree")}, axes_of(values))
    wanted = 1
    for words in values.values():
        wanted *= len(words)
    assert len(found) == wanted
    seen = {
        tuple(getattr(config, label.split(".")[0]).options[label.split(".")[1]] for label in values)
        for config in found.values()
    }
    assert len(seen) == wanted


def test_a_part_left_open_takes_the_options_of_its_default() -> None:
    config = PipelineConfig(drafter="domino")
    (found,) = expand({"mine": config}, [parse_axis("scorer.candidates=16")]).values()
    assert found.scorer.to_dict() == {"name": "conditional", "candidates": 16}
    (found,) = expand({"mine": config}, [parse_axis("builder.min_confidence=0.5")]).values()
    assert found.builder.to_dict() == {"name": "chain", "min_confidence": 0.5}


def test_values_are_json_or_text() -> None:
    axis = parse_axis("builder.x=8, 0.5,true,null,auto")
    assert axis == Axis("builder", "x", (8, 0.5, True, None, "auto"))


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (["builder.budgt=8"], "no pipeline's builder has the option 'budgt'; did you mean 'budget'?"),
        (["verifier.seed=8"], "no pipeline's verifier has the option 'seed'; known: none"),
        (["budget=8"], "the grid is 'budget=8'; it must be part.option=value,value"),
        (["builder.budget"], "it must be part.option=value,value"),
        (["builder.budget="], "lacks an option or a value"),
        (["bilder.budget=8"], "names the part 'bilder'; it must be one of drafter, scorer"),
        (["builder.budget=8,16,8"], "gives builder.budget the value 8 twice"),
        (["builder.budget=8", "builder.budget=16"], "gives builder.budget twice"),
        ({"budget": [8]}, "names the part 'budget'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_line(axes, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        expand(configs("ar", "ddtree"), axes_of(axes))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_grid_that_forgets_the_other_options_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = grid._with

    def forgetful(config: PipelineConfig, axis: Axis, value: object) -> PipelineConfig:
        bare = PipelineConfig(builder=config.builder.name, drafter=config.drafter, scorer=config.scorer)
        return honest(bare, axis, value)

    monkeypatch.setattr(grid, "_with", forgetful)
    with pytest.raises(AssertionError):
        test_a_grid_applies_to_every_pipeline_that_has_the_option()
