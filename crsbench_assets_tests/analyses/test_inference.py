from __future__ import annotations

import itertools
import math
import statistics
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from crsbench_assets.analyses.inference import (
    MOST_ASSIGNMENTS,
    N_PERMUTATIONS,
    WelchTest,
    correlation,
    hedges_g,
    pearson_interval,
    permutation_p,
    spearman_interval,
    welch_interval,
    welch_test,
)

TIED = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0]), min_size=3, max_size=12)


def test_correlations_by_hand() -> None:
    # x      y     x - 2  y - 3   ranks of y
    # 1      1     -1     -2      1
    # 2      2      0     -1      2
    # 3      6      1      3      3           r = 5 / sqrt(2 * 14)
    found = correlation([1.0, 2.0, 3.0], [1.0, 2.0, 6.0])
    assert found.pearson == pytest.approx(5 / math.sqrt(28), abs=1e-15)
    assert found.spearman == pytest.approx(1.0, abs=1e-15)
    # ranks 1.5 1.5 3 against 2 1 3: (-.5)(0) + (-.5)(-1) + 1 * 1 = 1.5 over sqrt(1.5 * 2)
    assert correlation([5.0, 5.0, 7.0], [2.0, 1.0, 3.0]).spearman == pytest.approx(1.5 / math.sqrt(3), abs=1e-15)


@settings(max_examples=200, deadline=None)
@given(TIED, st.randoms(use_true_random=False))
def test_correlation_agrees_with_scipy(first: list[float], random: object) -> None:
    second = list(first)
    random.shuffle(second)  # type: ignore[attr-defined]
    found = correlation(first, second)
    if len(set(first)) == 1:
        assert found == (None, None, "no_spread")
        return
    assert found.pearson == pytest.approx(stats.pearsonr(first, second).statistic, abs=1e-12)
    assert found.spearman == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)
    assert -1 <= found.pearson <= 1
    assert -1 <= found.spearman <= 1


def test_rounding_breaks_no_tie_and_is_no_spread() -> None:
    third = [0.1 + 0.2, 0.3, 0.9]  # the first two differ in their last bit
    assert correlation(third, [2.0, 1.0, 3.0]).spearman == correlation([0.3, 0.3, 0.9], [2.0, 1.0, 3.0]).spearman
    assert correlation([0.1 + 0.2, 0.3, 0.3], [1.0, 2.0, 3.0]).reason == "no_spread"


def test_a_line_is_one() -> None:
    x = np.random.default_rng(0).random(20)
    for slope in (3.0, -0.1):
        found = correlation(list(x), list(slope * x + 1))
        assert (found.pearson, found.spearman) == pytest.approx((np.sign(slope), np.sign(slope)), abs=1e-15)


def test_undefined_correlations() -> None:
    assert correlation([], []) == (None, None, "too_few_units")
    assert correlation([1.0, 2.0], [2.0, 1.0]) == (None, None, "too_few_units")
    assert correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == (None, None, "no_spread")
    assert correlation([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]) == (None, None, "no_spread")
    with pytest.raises(ValueError, match="found 3 and 2 values"):
        correlation([1.0, 2.0, 3.0], [1.0, 2.0])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=9), st.lists(st.floats(-1, 1), min_size=2, max_size=9))
def test_welch_agrees_with_scipy(first: list[float], second: list[float]) -> None:
    found = welch_interval(first, second)
    if max(np.ptp(first), np.ptp(second)) <= 1e-12:
        assert found == (None, None, "no_spread")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one group without spread, which scipy warns of
        right = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert found.low == pytest.approx(right.low, abs=1e-9, rel=1e-9)
    assert found.high == pytest.approx(right.high, abs=1e-9, rel=1e-9)


def test_welch_covers_the_difference_of_few_units() -> None:
    # As few encoders as a category has, and unequal spread; a percentile bootstrap covers .84 of these.
    rng = np.random.default_rng(0)
    n_draws, n_covered = 2000, 0
    for _ in range(n_draws):
        low, high, _ = welch_interval(list(rng.normal(0.1, 0.05, 4)), list(rng.normal(0.0, 0.02, 6)))
        assert low is not None
        assert high is not None
        n_covered += low <= 0.1 <= high
    assert 0.93 <= n_covered / n_draws <= 0.97


def test_undefined_welch_intervals() -> None:
    assert welch_interval([], [1.0, 2.0]) == (None, None, "too_few_units")
    assert welch_interval([1.0], [1.0, 2.0]) == (None, None, "too_few_units")
    assert welch_interval([1.0, 1.0], [2.0, 2.0]) == (None, None, "no_spread")
    # one group without spread leaves the other's: mean 0, error sqrt(2) / sqrt(2), t with 1 degree of freedom
    low, high, reason = welch_interval([-1.0, 1.0], [0.0, 0.0, 0.0])
    assert (low, high) == pytest.approx((-stats.t.ppf(0.975, 1), stats.t.ppf(0.975, 1)))
    assert reason is None


def test_intervals_of_correlations_by_hand() -> None:
    # r = .6: z = ln(1.6 / .4) / 2 = ln 2; with 7 units the error of z is 1 / 2, for Spearman's sqrt(1.18) / 2
    for interval, error in ((pearson_interval, 0.5), (spearman_interval, math.sqrt(1.18) / 2)):
        found = interval(0.6, 7)
        right = [math.tanh(math.log(2) + sign * 1.959963984540054 * error) for sign in (-1, 1)]
        assert (found.low, found.high) == pytest.approx(right, abs=1e-12)
        assert found.reason is None
        negative = interval(-0.6, 7)
        assert (negative.low, negative.high) == pytest.approx((-found.high, -found.low), abs=1e-15)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=4, max_size=20))
def test_fisher_agrees_with_scipy(pairs: list[tuple[float, float]]) -> None:
    first, second = ([pair[i] for pair in pairs] for i in (0, 1))
    r = correlation(first, second).pearson
    if r is None or abs(r) > 1 - 1e-9:
        return
    right = stats.pearsonr(first, second).confidence_interval(0.95)
    found = pearson_interval(r, len(pairs))
    assert (found.low, found.high) == pytest.approx((right.low, right.high), abs=1e-6)
    spearman = correlation(first, second).spearman
    assert spearman is not None
    low, high, reason = spearman_interval(spearman, len(pairs))
    assert reason == "perfect_correlation" or -1 <= low <= spearman <= high <= 1


def test_undefined_intervals_of_correlations() -> None:
    for interval in (pearson_interval, spearman_interval):
        assert interval(0.5, 3) == (None, None, "too_few_units")
        assert interval(1.0, 3) == (None, None, "too_few_units")
        assert interval(1.0, 15) == (None, None, "perfect_correlation")
        assert interval(-1.0, 15) == (None, None, "perfect_correlation")
        assert interval(0.5, 10**9).low == pytest.approx(0.5, abs=1e-3)


def test_intervals_of_correlations_cover_with_as_few_units_as_the_panel() -> None:
    # Spearman's of two normal quantities with correlation r is 6 / pi asin(r / 2).
    rng = np.random.default_rng(0)
    n_draws, n_covered = 1500, {"pearson": 0, "spearman": 0}
    for _ in range(n_draws):
        x = rng.normal(size=15)
        found = correlation(list(x), list(0.6 * x + 0.8 * rng.normal(size=15)))
        assert found.pearson is not None
        assert found.spearman is not None
        low, high, _ = pearson_interval(found.pearson, 15)
        n_covered["pearson"] += low <= 0.6 <= high
        low, high, _ = spearman_interval(found.spearman, 15)
        n_covered["spearman"] += low <= 6 / math.pi * math.asin(0.3) <= high
    for name, n in n_covered.items():
        assert 0.93 <= n / n_draws <= 0.98, name


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=9), st.lists(st.floats(-1, 1), min_size=2, max_size=9))
def test_welch_test_agrees_with_scipy(first: list[float], second: list[float]) -> None:
    found = welch_test(first, second)
    if max(np.ptp(first), np.ptp(second)) <= 1e-12:
        assert found == "no_spread"
        return
    assert isinstance(found, WelchTest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = stats.ttest_ind(first, second, equal_var=False)
    assert found.t == pytest.approx(right.statistic, rel=1e-9, abs=1e-9)
    assert found.df == pytest.approx(right.df, rel=1e-9)
    assert found.p == pytest.approx(right.pvalue, rel=1e-9, abs=1e-12)
    assert found.difference == pytest.approx(np.mean(first) - np.mean(second), abs=1e-12)


def test_hedges_g_by_hand() -> None:
    # means 4 and 1, both variances 2 with 1 and 2 degrees of freedom, so d = 3 / sqrt 2; df = 3,
    # J = Gamma(1.5) / (sqrt(1.5) Gamma(1)) = (sqrt(pi) / 2) / sqrt(1.5)
    found = hedges_g([3.0, 5.0], [-0.4142135623730951, 1.0, 2.414213562373095])
    assert found == pytest.approx(3 / math.sqrt(2) * math.sqrt(math.pi) / 2 / math.sqrt(1.5), abs=1e-12)
    assert hedges_g([1.0, 2.0], [1.0, 2.0]) == 0
    # the usual approximation of J, 1 - 3 / (4 df - 1), for as many units as the panel has
    rng = np.random.default_rng(1)
    medical, generalist = list(rng.normal(1, 1, 9)), list(rng.normal(0, 1, 6))
    pooled = (8 * statistics.variance(medical) + 5 * statistics.variance(generalist)) / 13
    d = (statistics.mean(medical) - statistics.mean(generalist)) / math.sqrt(pooled)
    assert hedges_g(medical, generalist) == pytest.approx(d * (1 - 3 / (4 * 13 - 1)), rel=1e-3)
    assert hedges_g([1.0], [1.0, 2.0]) is None
    assert hedges_g([1.0, 1.0], [2.0, 2.0]) is None


def test_hedges_g_is_unbiased() -> None:
    rng = np.random.default_rng(2)
    drawn = [hedges_g(list(rng.normal(1, 1, 4)), list(rng.normal(0, 1, 3))) for _ in range(4000)]
    assert statistics.mean(g for g in drawn if g is not None) == pytest.approx(1.0, abs=0.06)  # 4 standard errors


def plain_permutation_p(first: list[float], second: list[float]) -> float:
    pooled = [*first, *second]
    observed = abs(statistics.fmean(first) - statistics.fmean(second))
    n_extreme = n = 0
    for chosen in itertools.combinations(range(len(pooled)), len(first)):
        one = [pooled[i] for i in chosen]
        other = [pooled[i] for i in range(len(pooled)) if i not in chosen]
        n_extreme += abs(statistics.fmean(one) - statistics.fmean(other)) >= observed - 1e-12
        n += 1
    return n_extreme / n


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.7]), min_size=1, max_size=5),
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.7]), min_size=1, max_size=5),
)
def test_permutation_p_agrees_with_plain_python(first: list[float], second: list[float]) -> None:
    found = permutation_p(first, second)
    assert found == plain_permutation_p(first, second)
    assert found == permutation_p(second, first) == permutation_p(first[::-1], second)
    assert 0 < found <= 1


def test_permutation_p_agrees_with_scipy() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.normal(0.5, 1, 4), rng.normal(0, 1, 7)
    right = stats.permutation_test(
        (first, second), lambda x, y, axis: abs(x.mean(axis=axis) - y.mean(axis=axis)), n_resamples=np.inf,
        alternative="greater", vectorized=True,
    )  # fmt: skip
    assert permutation_p(list(first), list(second)) == right.pvalue


def test_permutation_p_of_many_units_is_estimated() -> None:
    rng = np.random.default_rng(4)
    first, second = list(rng.normal(0.8, 1, 11)), list(rng.normal(0, 1, 11))
    assert math.comb(22, 11) > MOST_ASSIGNMENTS
    pooled = np.array([*first, *second])
    sums = np.array([pooled[list(c)].sum() for c in itertools.combinations(range(22), 11)])
    right = np.mean(abs(sums - pooled.sum() / 2) >= abs(sum(first) - pooled.sum() / 2) - 1e-12)
    found = permutation_p(first, second, "demo")
    assert found == pytest.approx(right, abs=4 * math.sqrt(right * (1 - right) / N_PERMUTATIONS))
    assert found == permutation_p(first[::-1], second[::-1], "demo")
    assert found != permutation_p(first, second, "other")
    assert permutation_p([9.0] * 15, [0.0] * 15) == 1 / (1 + N_PERMUTATIONS)


def test_permutation_p_of_few_units() -> None:
    assert permutation_p([], [1.0]) is None
    assert permutation_p([1.0], []) is None
    assert permutation_p([1.0], [2.0]) == 1.0
    assert permutation_p([1.0, 1.0], [1.0]) == 1.0
    assert permutation_p([3.0], [0.0, 1.0, 1.5]) == 0.25
