"""Two runs compared: pairing, what counts as larger than noise, and what is named as different."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve
from run_factory import METHODS, Method, make_run, tree, write_run

from specforge.cli import main
from specforge.report.runfolder import RunData
from specforge.report.versus import ACCEPTANCE, SPEED, SPEEDUP, Versus, versus


def run_of(truth: float = 1.5, **options) -> RunData:
    methods = {**METHODS, "dominotree": evolve(METHODS["dominotree"], truth=truth)}
    return make_run(methods, **{"prompt_sets": {"gsm8k": 12}, **options})


def beyond(found: Versus) -> set[tuple[str, str]]:
    return {(d.place.pipeline, d.quantity) for d in found.differences if d.beyond_noise}


def test_a_run_does_not_differ_from_itself() -> None:
    run = run_of()
    found = versus(run, run)
    assert not beyond(found)
    assert not found.changes
    assert found.same_text == (12, 12)
    assert all(d.paired and d.change.estimate == 0.0 and d.p_value == 1.0 for d in found.differences)
    assert len(found.differences) == 7, "of ar only the speed is compared"


def test_a_better_drafter_is_noticed_and_the_others_are_left_alone() -> None:
    found = versus(run_of(), run_of(truth=0.4))
    assert beyond(found) == {("dominotree", quantity) for quantity in (ACCEPTANCE, SPEEDUP, SPEED)}
    tau = next(d for d in found.differences if (d.place.pipeline, d.quantity) == ("dominotree", ACCEPTANCE))
    assert tau.change.estimate == pytest.approx(tau.second - tau.first)
    assert tau.change.low > 0
    speed = next(d for d in found.differences if (d.place.pipeline, d.quantity) == ("dominotree", SPEED))
    assert speed.change.estimate == pytest.approx(speed.second / speed.first - 1.0)


def test_a_slower_machine_moves_speeds_and_not_speedups() -> None:
    found = versus(run_of(), run_of(slower=1.5))
    assert beyond(found) == {(name, SPEED) for name in METHODS}
    for d in found.differences:
        if d.quantity == SPEED:
            assert d.change.estimate == pytest.approx(1 / 1.5 - 1.0)


def test_pairing_finds_what_unpaired_prompts_hide() -> None:
    """The mutant is the same comparison of prompts that no longer go by the same names."""
    first, second = run_of(), run_of(slower=1.05)
    assert ("ngram", SPEED) in beyond(versus(first, second))
    for lines in (second.generations, second.rounds):
        lines[:] = [evolve(line, case=evolve(line.case, prompt=f"other {line.case.prompt}")) for line in lines]
    unpaired = versus(first, second)
    assert not beyond(unpaired)
    assert not any(d.paired for d in unpaired.differences)


def test_prompts_of_another_length_are_not_the_same_prompts() -> None:
    first, second = run_of(), run_of()
    second.generations[:] = [evolve(g, prompt_tokens=g.prompt_tokens + 1) for g in second.generations]
    assert not any(d.paired for d in versus(first, second).differences)


def test_only_prompts_of_both_runs_are_paired() -> None:
    found = versus(run_of(), run_of(prompt_sets={"gsm8k": 9}))
    assert all(d.paired and d.prompts == (9, 9) for d in found.differences)


def test_many_comparisons_raise_no_false_alarm() -> None:
    """Forty pipelines that differ by luck only: unadjusted, several pass; adjusted, none."""
    methods = {"ar": METHODS["ar"], **{f"p{i}": Method(0.7, 5, config=tree(10, n=i)) for i in range(40)}}
    luck = {"ar": METHODS["ar"], **dict(reversed(list(methods.items())[1:]))}
    found = versus(make_run(methods, {"a": 10}), make_run(luck, {"a": 10}))
    assert len(found.differences) == 121
    assert not beyond(found)
    assert sum(d.change.low > 0 or d.change.high < 0 for d in found.differences) >= 1


def test_a_single_prompt_is_no_verdict() -> None:
    found = versus(run_of(prompt_sets={"a": 1}), run_of(truth=0.4, prompt_sets={"a": 1}))
    assert all(d.p_value is None and not d.beyond_noise and d.change.low is None for d in found.differences)


def test_what_else_differs_is_named() -> None:
    first, second = run_of(), run_of()
    second.settings["max_new_tokens"] = 96
    second.versions = {**second.versions, "torch": "2.14.1"}
    second.hardware = {**second.hardware, "cores": 4}
    second.pipelines = {**second.pipelines, "dominotree": tree(99)}
    changes = {c.name: (c.first, c.second) for c in versus(first, second).changes}
    assert changes == {
        "max_new_tokens": ("48", "96"),
        "versions.torch": ("2.13.0", "2.14.1"),
        "hardware.cores": ("2", "4"),
        "pipelines.dominotree.builder.budget": ("12", "99"),
    }


def test_what_only_one_run_has_is_named() -> None:
    first = make_run(prompt_sets={"a": 2, "b": 2}, temperatures=(0.0, 1.0))
    second = make_run({**METHODS, "more": METHODS["ngram"]}, {"a": 2})
    found = versus(first, second)
    assert found.only_first == ("prompt set b", "temperature 1")
    assert found.only_second == ("pipeline more",)


def test_the_command_names_differences_and_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (write_run(tmp_path / name, run) for name, run in (("a", run_of()), ("b", run_of(truth=0.4))))
    page = tmp_path / "versus.html"
    with pytest.raises(SystemExit) as exit_:
        main(["report", str(first), str(second), "--html", str(page)])
    assert not exit_.value.code
    out = capsys.readouterr().out
    assert "3 of 7 differences are larger than their noise" in out
    assert "τ of dominotree on gsm8k at temperature 0: +" in out
    text = page.read_text(encoding="utf-8")
    assert "Two runs compared" in text
    assert "specforge report" in text
    with pytest.raises(SystemExit):
        main(["report", str(first), str(second), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert sum(d["beyond_noise"] for d in found["differences"]) == 3


def test_a_page_of_one_run_goes_into_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["report", str(tmp_path), "--html", str(tmp_path / "x.html")])
    assert exit_.value.code == 2
    assert "--html" in capsys.readouterr().err
