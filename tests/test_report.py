"""The report of a run: its figures' numbers, the page around them, and what the command prints."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from contextlib import redirect_stdout
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from rich.console import Console
from run_factory import METHODS, Method, make_run, tree, write_run

from specforge import ConfigError
from specforge.cli import main
from specforge.cost_model import CostModel
from specforge.report.budget_charts import budget_charts
from specforge.report.budgets import budget_points, cost_models, predicted_speed
from specforge.report.chart import Chart, LeftOut, View
from specforge.report.charts import charts
from specforge.report.datatable import to_rich
from specforge.report.depths import depth_curves
from specforge.report.measures import add_up
from specforge.report.names import family_names, short_names
from specforge.report.outputs import outputs
from specforge.report.reliability import reliabilities
from specforge.report.report_page import report_page
from specforge.report.runfolder import RunData
from specforge.report.stages import stage_bars
from specforge.report.style import VARIABLES, styles
from specforge.report.summary import sample, summarise
from specforge.report.summary_tables import terminal_tables
from specforge.report.svg import inline
from specforge.report.write import find

pytest.importorskip("matplotlib")

EVIL = '<script>alert("x")</script>$_{x}$'
COST = {"draft_seconds": 0.01, "context_lengths": [64], "nodes": [0, 32], "seconds": {"64": [0.1, 0.132]}}


def grid_methods() -> dict[str, Method]:
    sizes = {f"heap[builder.budget={b}]": Method(0.8, b // 2, config=tree(b, cost_model=COST)) for b in (4, 8, 16)}
    return {"ar": METHODS["ar"], "ngram": METHODS["ngram"], **sizes}


def view_of(run: RunData) -> View:
    return View.of(run, sample(run), 0.0)


def by_kind(run: RunData) -> dict[str, Chart | LeftOut]:
    return {chart.kind: chart for chart in charts(run, sample(run))}


def test_stages_are_seconds_a_round() -> None:
    run = make_run()
    bars = {bar.pipeline: bar for bar in stage_bars(add_up(run), 0.0)}
    mine = [g for g in run.generations if g.pipeline == "ngram"]
    rounds = sum(len(g.acceptance_lengths) for g in mine)
    assert bars["ngram"].rounds == rounds
    for stage in ("draft", "build", "verify", "commit"):
        assert bars["ngram"].seconds[stage] == pytest.approx(sum(g.stage_seconds[stage] for g in mine) / rounds)
    assert bars["ar"].seconds["draft"] == 0.0
    assert bars["ngram"].total == pytest.approx(sum(g.decode_seconds for g in mine) / rounds)


def test_shares_by_depth_add_up_to_the_acceptance_length() -> None:
    rounds = view_of(make_run()).rounds
    for curve in depth_curves(rounds):
        lines = rounds[curve.pipeline]
        drafts = sum(line.accepted - 1 for line in lines) / len(lines)
        assert sum(curve.reached) == pytest.approx(drafts)
        assert list(curve.reached) == sorted(curve.reached, reverse=True)
        assert curve.followed[0] == pytest.approx(
            sum(len(line.path) > 1 for line in lines) / sum(bool(line.depth_counts) for line in lines)
        )
    assert [curve.pipeline for curve in depth_curves(rounds)] == ["ngram", "dominotree"], "ar drafts nothing"


def test_rounds_that_drafted_less_deep_do_not_count_against_a_depth() -> None:
    run = make_run()
    line = next(line for line in run.rounds if line.pipeline == "dominotree" and len(line.path) > 2)
    short = evolve(line, depth_counts=(2, 2), path=line.path[:3], nodes=4)
    deep = evolve(line, depth_counts=(2, 2, 2), path=(0, 1, 3, 5), nodes=6)
    curve = depth_curves({"x": [short, deep]})[0]
    assert curve.reached == (1.0, 1.0, 0.5)
    assert curve.followed == (1.0, 1.0, 1.0)


def test_calibrated_probabilities_lie_on_the_diagonal_and_others_do_not() -> None:
    methods = {"ar": METHODS["ar"], **{f"x{t}": Method(0.8, 5, truth=t, config=tree(10, n=t)) for t in (1.0, 2.5)}}
    run = make_run(methods, {"a": 60})
    honest, bold = reliabilities(view_of(run).rounds)
    assert honest.error < 0.05
    assert honest.expected_drafts == pytest.approx(honest.accepted_drafts, rel=0.1)
    assert bold.error > 0.1
    assert bold.expected_drafts > 1.3 * bold.accepted_drafts
    nodes = sum(line.nodes for line in view_of(run).rounds["x1.0"] if line.path_probs)
    assert sum(b.nodes for b in honest.bins) == nodes
    assert all(b.low <= b.promised <= b.high for b in honest.bins)


def test_builders_without_scores_have_no_reliability() -> None:
    assert [r.pipeline for r in reliabilities(view_of(make_run()).rounds)] == ["dominotree"]


def test_the_predicted_speed_is_tokens_over_what_the_model_says() -> None:
    run = make_run(grid_methods(), {"gsm8k": 4})
    lines = view_of(run).rounds["heap[builder.budget=8]"]
    seconds = sum(0.01 + 0.1 + 0.001 * line.nodes for line in lines)
    assert predicted_speed(lines, CostModel.of(COST)) == pytest.approx(sum(r.accepted for r in lines) / seconds)


def test_the_cost_models_context_does_not_count_the_root() -> None:
    slope = {**COST, "context_lengths": [0, 1000], "seconds": {"0": [0.0, 0.0], "1000": [1.0, 1.0]}}
    line = evolve(view_of(make_run()).rounds["ngram"][0], context=501)
    assert predicted_speed([line], CostModel.of(slope)) == pytest.approx(line.accepted / (0.01 + 0.5))


def test_cost_models_hold_for_the_same_drafter_only(tmp_path: Path) -> None:
    with_model, same, other = tree(8, cost_model=COST), tree(16), {**tree(16), "drafter": {"name": "dflash"}}
    found = cost_models({"a": with_model, "b": same, "c": other})
    assert (set(found.by_pipeline), found.missing) == ({"a", "b"}, ())
    gone = cost_models({"a": tree(8, cost_model=str(tmp_path / "gone.json")), "b": tree(8, cost_model="auto")})
    assert not gone.by_pipeline
    assert "gone.json" in gone.missing[0]
    assert "b measured its cost model when it started" in gone.missing[1]


def test_a_family_is_what_differs_in_the_budget_only() -> None:
    run = make_run(grid_methods())
    view = view_of(run)
    points = budget_points(run.pipelines, view.samples, view.rounds, 0.0)
    assert [(p.family, p.budget) for p in points] == [("ngram", None), ("heap", 4), ("heap", 8), ("heap", 16)]
    configs = {"x[builder.budget=8,scorer.candidates=4]": tree(8), "x[builder.budget=9,scorer.candidates=4]": tree(9)}
    assert set(family_names(configs).values()) == {"x[scorer.candidates=4]"}


def test_short_names_stay_distinct() -> None:
    assert short_names(["heap[builder.budget=8]", "ar"])["heap[builder.budget=8]"] == "heap[budget=8]"
    clash = ["x[builder.width=8]", "x[scorer.width=8]"]
    assert short_names(clash) == {name: name for name in clash}


def test_a_pipeline_looks_the_same_in_every_figure_and_unlike_any_other() -> None:
    pipelines: dict[str, Any] = {"ar": {}, **{f"p{i}": tree(8, number=i) for i in range(14)}}
    found = styles(pipelines)
    assert len({(s.colour, s.marker, s.dashed) for s in found.values()}) == 15
    assert found["p3"] == styles({**pipelines, "more": tree(9, number=99)})["p3"]
    sizes = styles(make_run(grid_methods()).pipelines)
    mine = [sizes[f"heap[builder.budget={b}]"] for b in (4, 8, 16)]
    assert len({s.colour for s in mine}) == 1
    assert len({s.marker for s in mine}) == 3


def test_figures_that_the_data_does_not_allow_say_why() -> None:
    run = make_run()
    assert all(isinstance(chart, Chart) for chart in by_kind(run).values())
    run.rounds.clear()
    found = by_kind(run)
    assert isinstance(found["stages"], Chart), "generations know their stages"
    for kind in ("acceptance-by-depth", "acceptance-by-budget", "speed-by-budget", "reliability"):
        assert found[kind].reason == "the run keeps no rounds"
    alone = by_kind(make_run({name: METHODS[name] for name in ("ar", "ngram")}))
    assert alone["reliability"].reason == "no pipeline’s builder keeps path probabilities"
    assert "differ in size" in alone["acceptance-by-budget"].reason
    assert by_kind(make_run({"ar": METHODS["ar"]}))["acceptance-by-depth"].reason == "no pipeline drafted anything"


def test_the_prediction_is_drawn_or_its_absence_explained() -> None:
    drawn = budget_charts(view_of(make_run(grid_methods())))[1]
    assert "cost model predicts" in drawn.caption
    assert "predicted" in drawn.alt
    assert drawn.table.columns[-1] == "predicted"
    absent = budget_charts(view_of(make_run()))[1]
    assert "No prediction is drawn: no pipeline of this run has a cost model." in absent.caption
    assert "predicted" not in absent.table.columns


def test_every_text_alternative_has_numbers_of_every_pipeline_shown() -> None:
    for chart in charts(run := make_run(grid_methods(), temperatures=(0.0, 1.0)), sample(run)):
        assert isinstance(chart, Chart)
        for row in chart.table.rows:
            assert row[0].text in chart.alt
        assert sum(c.isdigit() for c in chart.alt) >= 6


def test_outputs_are_counted_by_turn_the_worst_repeat_counting() -> None:
    methods = {**METHODS, "wrong": Method(0.7, 4, config=tree(8, n=1), ties=0.4, errors=0.3)}
    run = make_run(methods, {"gsm8k": 40}, repeats=2)
    found = {o.place.pipeline: o for o in outputs(run)}
    assert set(found) == {"ngram", "dominotree", "wrong"}
    assert found["ngram"].identical == found["ngram"].outputs == 40
    wrong = found["wrong"]
    assert wrong.identical + wrong.ties + wrong.differing == wrong.outputs == 40
    assert wrong.ties > 5
    assert wrong.differing > 3
    assert [g.divergence.tie for g in wrong.parted] == [False] * wrong.differing + [True] * wrong.ties
    first = next(i for i, g in enumerate(run.generations) if g.pipeline == "ngram" and g.case.repeat == 1)
    run.generations[first] = evolve(run.generations[first], divergence=wrong.parted[0].divergence, lossless=False)
    assert {o.place.pipeline: o for o in outputs(run)}["ngram"].differing == 1


def test_distributional_outputs_are_not_called_identical() -> None:
    run = make_run()
    run.generations[:] = [evolve(g, lossless="distributional") if g.pipeline == "ngram" else g for g in run.generations]
    found = next(o for o in outputs(run) if o.place.pipeline == "ngram")
    assert (found.identical, found.distributional) == (0, found.outputs)


def test_inlined_figures_have_names_of_their_own_and_the_pages_colours() -> None:
    colours = " ".join(VARIABLES)
    svg = (
        '<?xml version="1.0"?><!DOCTYPE svg><svg width="9pt" height="9pt" viewBox="0 0 9 9"><metadata>http://x.y'
        '</metadata><defs><style>*{a:b}</style><clipPath id="p1"/></defs><g clip-path="url(#p1)">'
        '<use xlink:href="#p1"/>'
        f"<text style=\"font: 9px 'DejaVu Sans', sans-serif; fill: {colours}\">a</text></g></svg>"
    )
    found = inline(svg, "stages", 'so "many" <ms>')
    assert found.startswith("<svg")
    assert 'aria-label="so &quot;many&quot; &lt;ms&gt;"' in found
    assert found.count("stages-p1") == 3
    assert not any(colour in found for colour in VARIABLES)
    assert "pt" not in found.partition(">")[0]
    assert "http" not in found
    assert "<style>" not in found
    assert "DejaVu" not in found


class Elements(HTMLParser):
    """All start tags with their attributes, and the text of the tags given."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def hostile() -> RunData:
    """A run whose names try to be markup."""
    methods = {"ar": METHODS["ar"], EVIL: METHODS["ngram"], "dominotree": evolve(METHODS["dominotree"], ties=0.5)}
    return make_run(methods, {"<img src=x onerror=alert(1)>": 3, "mt-bench": 2})


@pytest.fixture(scope="module")
def printed(hostile: RunData, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What ``specforge report --json`` prints; drawing takes seconds, so it is called once."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "hostile", hostile)
    with redirect_stdout(StringIO()) as out, pytest.raises(SystemExit) as exit_:
        main(["report", str(folder), "--json"])
    assert not exit_.value.code
    return out.getvalue()


@pytest.fixture(scope="module")
def written(printed: str) -> Path:
    return Path(json.loads(printed)["report"]).parent


def test_the_page_stands_alone(written: Path) -> None:
    text = (written / "report.html").read_text(encoding="utf-8")
    page = Elements(text)
    for tag, attributes in page.tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,")), (tag, attributes)
    assert not page.named("img")
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "url(http" not in text
    assert "@import" not in text


def test_the_page_escapes_what_it_shows(written: Path) -> None:
    text = (written / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "&lt;script&gt;alert" in text


def test_ids_are_unique_and_links_lead_somewhere(written: Path) -> None:
    page = Elements((written / "report.html").read_text(encoding="utf-8"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        target = attributes.get("href") if tag == "a" else attributes.get("xlink:href")
        if target:
            assert target[1:] in ids


def test_figures_have_text_alternatives_and_tables_headers(written: Path) -> None:
    page = Elements((written / "report.html").read_text(encoding="utf-8"))
    assert len(page.named("svg")) == len(page.named("figure")) == 6
    for svg in page.named("svg"):
        assert svg["role"] == "img"
        assert len(svg["aria-label"] or "") > 40
    assert all(header["scope"] in ("col", "row", "colgroup") for header in page.named("th"))
    assert len(page.named("caption")) == len(page.named("table"))


def test_plots_are_written_as_png_and_svg(written: Path) -> None:
    names = sorted(path.name for path in (written / "plots").iterdir())
    assert len(names) == 12
    assert {Path(name).stem for name in names if name.endswith(".png")} == {
        Path(name).stem for name in names if name.endswith(".svg")
    }
    for path in (written / "plots").iterdir():
        if path.suffix == ".svg":
            ElementTree.fromstring(path.read_text(encoding="utf-8"))
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


def test_the_page_says_how_to_repeat_the_run(written: Path) -> None:
    text = (written / "report.html").read_text(encoding="utf-8")
    assert "--out &#39;my run&#39;" in text
    for fact in ("Imaginary CPU", "24.0 GiB", "torch 2.13.0", "2026-01-02", "max_new_tokens"):
        assert fact in text


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return call


def test_the_command_prints_one_json_object(printed: str) -> None:
    assert printed.count("\n") == 1
    found = json.loads(printed)
    assert [row["pipeline"] for row in found["summary"][:3]] == ["ar", EVIL, "dominotree"]
    assert {"estimate", "low", "high"} == set(found["summary"][1]["speedup"])
    assert {figure["kind"] for figure in found["figures"]} >= {"stages", "reliability"}
    assert Path(found["report"]).is_file()
    assert all(Path(plot).is_file() for plot in found["plots"])
    assert found["settings"]["max_new_tokens"] == 48


def test_the_terminal_shows_a_table_a_prompt_set_with_the_best_in_bold() -> None:
    run = make_run({**METHODS, "wrong": Method(0.3, 2, config=tree(8, n=1), errors=1.0)})
    tables = terminal_tables(summarise(run), outputs(run), short_names(list(run.pipelines)))
    assert len(tables) == 3
    console = Console(width=100, file=StringIO())
    for table in tables:
        console.print(to_rich(table))
    text = console.file.getvalue()
    assert "gsm8k, temperature 0" in text
    assert "average over the prompt sets" in text
    assert "5 DIFFER" in text
    assert [row[0].text for row in tables[0].rows if row[1].strong] == ["dominotree"]


def test_what_cannot_be_reported_is_one_line(run_cli, tmp_path: Path) -> None:
    code, _, err = run_cli("report", tmp_path / "nothing")
    assert code == 2
    assert "holds no run" in err
    empty = make_run()
    empty.generations.clear()
    empty.rounds.clear()
    code, _, err = run_cli("report", write_run(tmp_path / "empty", empty))
    assert (code, err.count("\n")) == (2, 1)
    assert "no finished prompt" in err
    code, _, err = run_cli("report", tmp_path, tmp_path, tmp_path)
    assert code == 2
    assert "3 runs are given" in err


def test_nothing_finished_is_refused() -> None:
    run = make_run()
    run.generations.clear()
    with pytest.raises(ConfigError, match="no finished prompt"):
        find(run)


def test_an_unfinished_run_is_reported_as_such() -> None:
    run = make_run(prompt_sets={"gsm8k": 2})
    run.settings["prompt_sets"]["gsm8k"]["count"] = 80
    page = report_page(find(run), defaultdict(str))
    assert page.sections[0].findings[0] == "Unfinished: 2 of 80 prompts of gsm8k at temperature 0."


def test_the_page_says_what_the_run_comes_to() -> None:
    methods = {**METHODS, "wrong": Method(0.3, 2, config=tree(8, n=1), errors=1.0)}
    fastest, outputs_line = report_page(find(make_run(methods)), defaultdict(str)).sections[0].findings
    assert fastest.startswith("At temperature 0, dominotree is ")
    assert "times as fast as ar" in fastest
    assert outputs_line == (
        "Of 27 outputs that were compared, 18 equal ar’s token by token, 0 part from it at a tie and 9 otherwise."
    )
