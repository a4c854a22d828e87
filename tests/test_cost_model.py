"""Cost models: the file format, the interpolation, and the monotone convex fit."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import isotonic_regression

from specforge.cost_model import CostModel, fit
from specforge.errors import ConfigError, IncompatiblePartsError

GOLDEN = json.loads((Path(__file__).parent / "data/qwen3-tiny-a/golden.json").read_text())["cost_model"]

SMALL = {
    "target": "big-model",
    "drafter": "domino",
    "device": "cpu",
    "dtype": "float32",
    "draft_seconds": 0.5,
    "context_lengths": [10, 20],
    "nodes": [0, 4, 8],
    "seconds": {"10": [1.0, 2.0, 4.0], "20": [2.0, 3.0, 7.0]},
}


def changed(**changes: object) -> dict:
    return {**copy.deepcopy(SMALL), **changes}


def test_values_between_listed_nodes_and_contexts_are_linear() -> None:
    model = CostModel.of(SMALL)
    assert model.verify_seconds(0, 10) == 1.0
    assert model.verify_seconds(2, 10) == 1.5
    assert model.verify_seconds(6, 20) == 5.0
    assert model.verify_seconds(6, 15) == pytest.approx(0.5 * 3.0 + 0.5 * 5.0)


def test_last_segment_goes_on_and_contexts_outside_are_constant() -> None:
    model = CostModel.of(SMALL)
    assert model.verify_seconds(12, 10) == pytest.approx(6.0)
    assert model.verify_seconds(12, 20) == pytest.approx(11.0)
    assert model.verify_seconds(8, 1) == 4.0
    assert model.verify_seconds(8, 1000) == 7.0


def test_below_the_first_node_and_with_one_node_the_model_is_constant() -> None:
    model = CostModel.of(changed(nodes=[4], seconds={"10": [2.0], "20": [3.0]}))
    assert [model.verify_seconds(n, 10) for n in (0, 4, 50)] == [2.0, 2.0, 2.0]


def test_round_seconds_are_draft_and_verification() -> None:
    model = CostModel.of(SMALL)
    expected = [0.5 + model.verify_seconds(n, 13) for n in range(13)]
    assert model.round_seconds(12, 13).tolist() == expected


def test_rounds_that_would_cost_nothing_are_refused() -> None:
    falling = CostModel(0.0, (0,), (0, 8), ((9.0, 1.0),))
    assert falling.round_seconds(8, 0).tolist() == pytest.approx([9.0 - n for n in range(9)])
    with pytest.raises(ConfigError, match=r"a round of 10 draft nodes costs -1 s at context 0; every round must cost"):
        falling.round_seconds(10, 0)


@given(n=st.integers(0, 64), context=st.sampled_from([16, 128]))
def test_golden_model_reads_its_own_table(n: int, context: int) -> None:
    assert CostModel.of(GOLDEN).verify_seconds(n, context) == GOLDEN["seconds"][str(context)][n]


def test_saving_and_loading_keeps_every_bit(tmp_path: Path) -> None:
    for contents in (SMALL, GOLDEN):
        path = tmp_path / "cost.json"
        CostModel.of(contents).save(path)
        assert json.loads(path.read_text()) == contents
        assert CostModel.of(str(path)).to_dict() == contents == CostModel.of(path).to_dict()
        assert [p.name for p in tmp_path.iterdir()] == ["cost.json"]


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cost.json"
    CostModel.of(SMALL).save(path)

    def refuse(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(ConfigError, match=r"cannot write cost model .*No space left"):
        CostModel.of(GOLDEN).save(path)
    monkeypatch.undo()
    assert CostModel.of(path).to_dict() == SMALL
    assert [p.name for p in tmp_path.iterdir()] == ["cost.json"]


def without(key: str) -> dict:
    contents = copy.deepcopy(SMALL)
    del contents[key]
    return contents


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (without("draft_seconds"), "lacks draft_seconds"),
        (without("seconds"), "lacks seconds"),
        (changed(devise="cpu"), "unknown devise"),
        (changed(nodes=[0, 8, 4]), r"nodes is \[0, 8, 4\]; it must be increasing"),
        (changed(nodes=[0, 4, 4]), "nodes"),
        (changed(nodes=[-1, 4, 8]), "nodes"),
        (changed(nodes=[0, 4.5, 8]), "nodes"),
        (changed(nodes=[]), "nodes"),
        (changed(nodes="048"), "nodes is '048'; it must be a list"),
        (changed(context_lengths=[20, 10]), r"context_lengths is \[20, 10\]"),
        (changed(context_lengths=[10, 30]), "seconds is keyed by 10, 20"),
        (changed(seconds={"10": [1.0, 2.0, 4.0]}), "seconds is keyed by 10;"),
        (changed(seconds=[1.0, 2.0]), "seconds is .* keyed by context length"),
        (changed(seconds={"10": [1.0, 2.0], "20": [2.0, 3.0, 7.0]}), r"seconds\[10\] is 2 long"),
        (changed(seconds={"10": [1.0, -2.0, 4.0], "20": [2.0, 3.0, 7.0]}), r"seconds\[10\] is -2.0"),
        (changed(seconds={"10": [1.0, float("nan"), 4.0], "20": [2.0, 3.0, 7.0]}), r"seconds\[10\] is nan"),
        (changed(seconds={"10": [1.0, "2", 4.0], "20": [2.0, 3.0, 7.0]}), r"seconds\[10\] is '2'"),
        (changed(seconds={"10": 1.0, "20": [2.0, 3.0, 7.0]}), r"seconds\[10\] is 1.0; it must be a list"),
        (changed(draft_seconds=-0.5), "draft_seconds is -0.5"),
        (changed(draft_seconds=True), "draft_seconds is True"),
        (changed(draft_seconds=0, seconds={"10": [0, 0, 0], "20": [1, 1, 1]}), "every round costs something"),
        (changed(dtype=32), "dtype is 32"),
        (7, "cost_model is 7; it must be a path"),
    ],
)
def test_bad_models_are_refused_in_one_line(contents: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        CostModel.of(contents)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("[1]", "holds a list"), ("\udcff", "cannot read cost model")],
)
def test_unreadable_files_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cost.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=message) as refused:
        CostModel.of(path)
    assert "cost.json" in str(refused.value)


def test_missing_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read cost model .*gone.json.*No such file"):
        CostModel.of(tmp_path / "gone.json")
    with pytest.raises(ConfigError, match=r"cannot write cost model .*cost.json.*No such file"):
        CostModel.of(SMALL).save(tmp_path / "gone" / "cost.json")


@pytest.mark.parametrize(
    ("here", "names"),
    [
        (("other", ("cpu",), "float32"), ("target", "big-model", "other")),
        (("big-model", ("cuda (H200)", "cuda"), "float32"), ("device", "cpu", "cuda (H200)")),
        (("big-model", ("cpu",), "bfloat16"), ("dtype", "float32", "bfloat16")),
    ],
)
def test_models_of_something_else_are_refused(here: tuple, names: tuple) -> None:
    with pytest.raises(IncompatiblePartsError) as refused:
        CostModel.of(SMALL).check(*here)
    assert all(name in str(refused.value) for name in names)


def test_models_of_these_parts_and_anonymous_ones_are_taken(tmp_path: Path) -> None:
    CostModel.of(SMALL).check("big-model", ("cpu",), "float32")
    CostModel.of(changed(device="cuda")).check("big-model", ("cuda (H200)", "cuda"), "float32")
    CostModel.of(GOLDEN).check("anything", ("cpu",), "float32")
    folder = tmp_path / "target"
    folder.mkdir()
    CostModel.of(changed(target=str(tmp_path / "x" / ".." / "target"))).check(str(folder), ("cpu",), "float32")


node_lists = st.lists(st.integers(0, 500), min_size=1, max_size=14, unique=True).map(sorted)


@st.composite
def measurements(draw: st.DrawFn) -> tuple[list[int], np.ndarray]:
    nodes = draw(node_lists)
    seconds = draw(arrays(np.float64, len(nodes), elements=st.floats(0, 10, width=32)))
    return nodes, seconds


@st.composite
def convex_curves(draw: st.DrawFn) -> tuple[list[int], np.ndarray]:
    nodes = draw(node_lists)
    slopes = np.sort(draw(arrays(np.float64, len(nodes) - 1, elements=st.floats(0, 1, width=32))))
    start = draw(st.floats(0.125, 2, width=32))
    return nodes, start + np.concatenate([[0.0], np.cumsum(slopes * np.diff(nodes))])


def slopes_of(nodes: list[int], seconds: np.ndarray) -> np.ndarray:
    return np.diff(seconds) / np.diff(nodes)


def is_monotone_and_convex(nodes: list[int], seconds: np.ndarray) -> bool:
    slopes = slopes_of(nodes, seconds)
    slack = 1e-9 * max(float(np.max(seconds)), 1e-300)
    return bool(np.all(slopes >= -slack) and np.all(np.diff(slopes) >= -slack))


@settings(max_examples=150, deadline=None)
@given(measurements())
def test_fit_is_monotone_and_convex(measured: tuple[list[int], np.ndarray]) -> None:
    nodes, seconds = measured
    assert is_monotone_and_convex(nodes, fit(nodes, seconds))


def test_fit_that_is_only_monotone_is_told_apart() -> None:
    nodes, seconds = [0, 1, 2, 3], np.array([1.0, 2.0, 2.2, 2.3])
    assert is_monotone_and_convex(nodes, fit(nodes, seconds))
    assert not is_monotone_and_convex(nodes, isotonic_regression(seconds).x)


@settings(max_examples=100, deadline=None)
@given(convex_curves())
def test_fit_recovers_monotone_convex_curves(curve: tuple[list[int], np.ndarray]) -> None:
    nodes, seconds = curve
    np.testing.assert_allclose(fit(nodes, seconds), seconds, rtol=1e-6, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(measurements(), st.data())
def test_no_monotone_convex_curve_fits_better(measured: tuple[list[int], np.ndarray], data: st.DataObject) -> None:
    nodes, seconds = measured
    slopes = np.sort(data.draw(arrays(np.float64, len(nodes) - 1, elements=st.floats(0, 1, width=32))))
    rival = data.draw(st.floats(0, 10)) + np.concatenate([[0.0], np.cumsum(slopes * np.diff(nodes))])
    error = np.sum((fit(nodes, seconds) - seconds) ** 2)
    assert error <= np.sum((rival - seconds) ** 2) * (1 + 1e-9) + 1e-12


@settings(max_examples=100, deadline=None)
@given(measurements(), st.randoms(use_true_random=False), st.integers(-20, 20))
def test_order_and_scale_do_not_matter(measured: tuple[list[int], np.ndarray], random: object, power: int) -> None:
    nodes, seconds = measured
    fitted = fit(nodes, seconds)
    order = list(range(len(nodes)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert np.array_equal(fit([nodes[i] for i in order], seconds[order]), fitted[order])
    np.testing.assert_allclose(fit(nodes, seconds * 2.0**power), fitted * 2.0**power, rtol=1e-9)


def test_repeated_nodes_are_fitted_together() -> None:
    fitted = fit([0, 4, 0, 4], [1.0, 3.0, 2.0, 5.0])
    np.testing.assert_allclose(fitted, [1.5, 4.0, 1.5, 4.0])


@pytest.mark.parametrize(("nodes", "seconds"), [([], []), ([1, 2], [1.0]), ([[1]], [[1.0]])])
def test_shapes_that_do_not_fit_are_refused(nodes: list, seconds: list) -> None:
    with pytest.raises(ValueError, match="one length"):
        fit(nodes, seconds)
