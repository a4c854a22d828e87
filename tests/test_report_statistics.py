"""Intervals hold the truth as often as they say; pairing, Holm and the summary are what they are called."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import scipy.stats
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from run_factory import METHODS, make_run

from specforge.report.measures import Place, add_up
from specforge.report.statistics import Resampling, expanded_tail, holm, interval, p_value, ratio
from specforge.report.summary import fastest_and_rivals, sample, summarise


def prompts_of(generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, and seconds of two pipelines that share what makes a prompt slow."""
    tokens = generator.integers(30, 96, count).astype(float)
    hard = generator.lognormal(0.0, 0.6, count)
    return (
        tokens,
        tokens * hard * generator.lognormal(0, 0.1, count),
        tokens * hard / 2 * generator.lognormal(0, 0.1, count),
    )


def test_one_prompt_has_no_interval() -> None:
    found = interval(Resampling.of(1).sums([3.0]), 1)
    assert (found.estimate, found.low, found.high) == (3.0, None, None)


def test_nothing_to_divide_by_is_no_estimate() -> None:
    drawn = Resampling.of(3, resamples=50)
    found = interval(ratio(drawn.sums([0, 0, 0]), drawn.sums([0, 0, 0])), 3)
    assert (found.estimate, found.low, found.high) == (None, None, None)


def test_a_ratio_is_one_of_sums_and_the_resamples_are_of_prompts() -> None:
    drawn = Resampling.of(4, resamples=200, seed=3)
    assert np.array_equal(drawn.counts.sum(axis=1), np.full(201, 4.0))
    tokens, rounds = np.array([10.0, 20, 30, 40]), np.array([5.0, 5, 10, 30])
    found = ratio(drawn.sums(tokens), drawn.sums(rounds))
    assert found[0] == 2.0
    chosen = np.repeat(np.arange(4), drawn.counts[7].astype(int))
    assert found[7] == pytest.approx(tokens[chosen].sum() / rounds[chosen].sum())


def test_sets_of_prompts_are_resampled_independently() -> None:
    assert not np.array_equal(Resampling.of(9, "gsm8k").counts, Resampling.of(9, "mt-bench").counts)
    assert np.array_equal(Resampling.of(9, "gsm8k").counts, Resampling.of(9, "gsm8k").counts)


def test_percentiles_are_those_of_scipy_before_they_are_moved_out() -> None:
    _, slow, fast = prompts_of(np.random.default_rng(0), 400)
    drawn = Resampling.of(400)
    mine = interval(ratio(drawn.sums(slow), drawn.sums(fast)), 400)
    theirs = scipy.stats.bootstrap(
        (slow, fast),
        lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
        paired=True,
        n_resamples=10_000,
        method="percentile",
        random_state=np.random.default_rng(1),
    ).confidence_interval
    assert mine.low == pytest.approx(theirs.low, rel=2e-3)
    assert mine.high == pytest.approx(theirs.high, rel=2e-3)


@settings(max_examples=25)
@given(st.integers(2, 300))
def test_the_interval_of_a_mean_is_that_of_a_t_test(prompts: int) -> None:
    """With resampled means normal, as they nearly are, percentiles moved out are Student's interval."""
    spread = math.sqrt((prompts - 1) / prompts)  # of resampled means, in standard errors
    reach = -scipy.stats.norm.ppf(expanded_tail(prompts, 0.025)) * spread
    assert reach == pytest.approx(scipy.stats.t.ppf(0.975, prompts - 1), rel=1e-6)


@cache
def coverage(count: int, pairing: bool = True, expanded: bool = True, trials: int = 300) -> tuple[float, float]:
    """Return how often an interval of a speed-up holds the truth, and its mean width."""
    generator = np.random.default_rng(11)
    _, slow, fast = prompts_of(generator, 1_000_000)
    truth = slow.sum() / fast.sum()
    held, width = 0, 0.0
    for trial in range(trials):
        _, slow, fast = prompts_of(generator, count)
        drawn = Resampling.of(count, resamples=500, seed=trial)
        other = drawn if pairing else Resampling.of(count, "unpaired", resamples=500, seed=trial)
        found = interval(ratio(drawn.sums(slow), other.sums(fast)), count if expanded else 10**9)
        held += found.low <= truth <= found.high
        width += found.high - found.low
    return held / trials, width / trials


@pytest.mark.parametrize("count", [6, 30])
def test_intervals_hold_the_truth_as_often_as_they_say(count: int) -> None:
    share, _ = coverage(count)
    assert 0.91 <= share <= 0.985


def test_unpaired_resampling_is_caught() -> None:
    """The mutant: resampling each pipeline's prompts by itself takes what prompts share for noise."""
    (share, width), (loose, wide) = coverage(30), coverage(30, pairing=False)
    assert loose > 0.985 > share
    assert wide > 3 * width


def test_plain_percentiles_are_caught() -> None:
    """The mutant: percentiles that are not moved out are too narrow for few prompts."""
    assert coverage(6, expanded=False)[0] < 0.9


def test_p_values_are_uniform_where_there_is_no_difference() -> None:
    generator = np.random.default_rng(5)
    found = []
    for trial in range(300):
        drawn = Resampling.of(8, resamples=400, seed=trial)
        found.append(p_value(drawn.sums(generator.normal(size=8)) / 8, 8))
    assert scipy.stats.kstest(found, "uniform").pvalue > 0.01


def test_p_values_without_spread() -> None:
    drawn = Resampling.of(5, resamples=100)
    assert p_value(drawn.sums(np.zeros(5)), 5) == 1.0
    assert p_value(ratio(drawn.sums(np.full(5, 2.0)), drawn.sums(np.ones(5))), 5) == 0.0
    assert p_value(np.array([2.0, 2.0]), 1) is None


@given(st.lists(st.one_of(st.none(), st.floats(0.0, 1.0)), max_size=12))
def test_holm_is_monotone_and_at_most_bonferroni(p_values: list[float | None]) -> None:
    adjusted = holm(p_values)
    known = [p for p in p_values if p is not None]
    assert [a is None for a in adjusted] == [p is None for p in p_values]
    for p, a in zip(p_values, adjusted, strict=True):
        if p is not None and a is not None:
            assert p <= a <= min(1.0, len(known) * p) + 1e-12
    pairs = sorted((p, a) for p, a in zip(p_values, adjusted, strict=True) if p is not None and a is not None)
    assert [a for _, a in pairs] == sorted(a for _, a in pairs)


def test_holm_by_hand() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])


def test_the_summary_is_what_the_generations_add_up_to() -> None:
    run = make_run(repeats=3, turns=2, prompt_sets={"gsm8k": 3, "mt-bench": 2})
    rows = {(row.pipeline, row.prompt_set): row for row in summarise(run)}
    mine = [g for g in run.generations if (g.pipeline, g.case.prompt_set) == ("dominotree", "gsm8k")]
    first = [g for g in mine if g.case.repeat == 0]
    tokens = sum(len(g.token_ids) - 1 for g in first)
    row = rows["dominotree", "gsm8k"]
    assert row.prompts == 3
    assert row.acceptance_length.estimate == pytest.approx(tokens / sum(len(g.acceptance_lengths) for g in first))
    seconds = 0.0
    for g in first:
        case = (g.case.prompt, g.case.turn)
        seconds += float(np.median([o.decode_seconds for o in mine if (o.case.prompt, o.case.turn) == case]))
    assert row.tokens_per_second.estimate == pytest.approx(tokens / seconds)
    base = rows["ar", "gsm8k"].tokens_per_second.estimate
    assert row.speedup.estimate == pytest.approx(row.tokens_per_second.estimate / base)
    average = rows["dominotree", None]
    parts = [rows["dominotree", name].speedup.estimate for name in ("gsm8k", "mt-bench")]
    assert average.speedup.estimate == pytest.approx(np.mean(parts))
    assert average.prompts == 5


def test_turns_of_one_prompt_are_resampled_together() -> None:
    totals = add_up(make_run(turns=3, prompt_sets={"mt-bench": 4}))[Place("ngram", "mt-bench", 0.0)]
    assert len(totals.prompts) == len(totals.tokens) == 4
    assert list(totals.turns) == [3.0] * 4


def test_one_slow_repeat_does_not_count() -> None:
    run = make_run(repeats=3)
    before = summarise(run)
    slow = [evolve(g, decode_seconds=50 * g.decode_seconds) if g.case.repeat == 1 else g for g in run.generations]
    run.generations[:] = slow
    for old, new in zip(before, summarise(run), strict=True):
        assert new.tokens_per_second.estimate == pytest.approx(old.tokens_per_second.estimate, rel=0.1)


def test_the_best_is_marked_and_ar_never() -> None:
    rows = summarise(make_run())
    for prompt_set in ("gsm8k", "mt-bench", None):
        best = [row.pipeline for row in rows if row.prompt_set == prompt_set and "acceptance_length" in row.best]
        assert best == ["dominotree"]
    assert not any(row.best for row in summarise(make_run({"ar": METHODS["ar"]})))


def test_a_pipeline_that_only_luck_sets_apart_is_named_as_a_rival() -> None:
    methods = dict(METHODS)
    methods["same"] = methods["dominotree"]
    run = make_run(methods, {"gsm8k": 8})
    samples = sample(run)
    best, rivals = fastest_and_rivals(samples, summarise(run, samples), 0.0)
    assert {best.pipeline, *rivals} == {"dominotree", "same"}
