from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from crsbench_assets.analyses.inference import correlation, welch_interval

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
