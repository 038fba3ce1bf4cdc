"""The statistics that several analyses share, with their undefined cases.

What lives here: correlation of two quantities with its interval, and the comparison of two groups of few units: Welch's
interval and test, Hedges' g, the permutation test. What stays out: who the units are (``analyses.population``), and
agreement of two rankings (``analyses.agreement``).
Source: Pearson (1895), doi:10.1098/rspl.1895.0041; Spearman (1904), The proof and measurement of association between
two things, doi:10.2307/1412159; Fisher (1921), On the probable error of a coefficient of correlation, Metron 1(4);
Bonett & Wright (2000), doi:10.1007/BF02294183; Welch (1947), doi:10.1093/biomet/34.1-2.28; Hedges (1981),
doi:10.3102/10769986006002107; Phipson & Smyth (2010), doi:10.2202/1544-6115.1585.

What the intervals of correlations cover (20,000 simulated draws of two normal quantities with correlation 0 to .9; an
undefined interval covers nothing): Fisher's .95 to .96 from four units on; Bonett & Wright's .95 to .96 from 13 units
on, .94 to .97 with 8, and with 6 units .85 where the correlation is .9. Both take units as independent. Encoders of
one family are not, and the cells of one encoder still less: with 15 encoders on three datasets the interval over cells
covers .93, .89, .80 where encoders carry .3, .5, .8 of the variance of both quantities. Over cells it is too narrow,
and the one over encoders is the one to trust.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr, stdtrit

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.metrics.replicates import LEVEL, Interval

SPREAD_TOLERANCE = 1e-12
"""Largest range that counts as none, as for the range of an axis; quantities here are of order 1."""

_DECIMALS = 12  # of values that are ranked: rounding of equal values must not break a tie
_LEAST_UNITS = 3
_FISHER_LOSS = 3  # units that Fisher's variance 1 / (m - 3) takes off

MOST_ASSIGNMENTS = 200_000
"""Most assignments to two groups that are enumerated: all of up to 20 units."""

N_PERMUTATIONS = 99_999
"""Random assignments drawn where there are more: the standard error of a p of .05 is .0007."""


class Correlation(NamedTuple):
    """Pearson's and Spearman's correlation, each in [-1, 1], or (None, None, reason)."""

    pearson: float | None
    spearman: float | None
    reason: str | None


def correlation(first: Sequence[float], second: Sequence[float]) -> Correlation:
    """Return Pearson's and Spearman's correlation of two quantities; 1 is the same order, on one line for Pearson's.

    Spearman's is Pearson's of the ranks, ties at their mean rank.

    Args:
        first: finite values of m units.
        second: the other quantity of the same units.

    Returns:
        The correlations; reason ``too_few_units`` below three units (two always lie on a line), ``no_spread`` where
        all values of one quantity are equal.

    Raises:
        ValueError: the lengths differ.

    Example:
        >>> correlation([1.0, 2.0, 3.0], [1.0, 4.0, 2.0]).spearman
        0.5
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"found {len(x)} and {len(y)} values; expected one of each quantity per unit.")
    if len(x) < _LEAST_UNITS:
        return Correlation(None, None, "too_few_units")
    if min(np.ptp(x), np.ptp(y)) <= SPREAD_TOLERANCE:
        return Correlation(None, None, "no_spread")
    return Correlation(_pearson(x, y), _pearson(_mean_ranks(x), _mean_ranks(y)), None)


def pearson_interval(r: float, n_units: int) -> Interval:
    """Return the 95 % interval of a Pearson correlation, in [-1, 1]: Fisher's z with variance 1 / (m - 3).

    Args:
        r: the correlation, in [-1, 1].
        n_units: m, units less one for every further mean that was taken off them (a partial correlation).

    Returns:
        The interval; reason ``too_few_units`` below four units, ``perfect_correlation`` for -1 and 1, where the
        interval would have no width however few the units are.

    Example:
        >>> low, high, _ = pearson_interval(0.5, 15)
        >>> round(low, 3), round(high, 3)
        (-0.016, 0.806)
    """
    return _fisher_interval(r, n_units, 1.0)


def spearman_interval(r: float, n_units: int) -> Interval:
    """Return the 95 % interval of a Spearman correlation, in [-1, 1]: Fisher's z with variance (1 + r^2 / 2) / (m - 3).

    The variance is that of Bonett & Wright (2000). Arguments and reasons are those of :func:`pearson_interval`.

    Example:
        >>> low, high, _ = spearman_interval(0.811, 15)
        >>> round(low, 3), round(high, 3)
        (0.444, 0.945)
    """
    return _fisher_interval(r, n_units, 1.0 + r * r / 2)


def welch_interval(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the 95 % interval of the mean of ``first`` less that of ``second``, which may differ in variance.

    Student's t of the difference over sqrt(s1^2 / n1 + s2^2 / n2) with the Welch-Satterthwaite degrees of freedom.

    Args:
        first: finite values of n1 independent units.
        second: finite values of n2 others.

    Returns:
        The interval; reason ``too_few_units`` where a group has fewer than two, ``no_spread`` where neither group
        has any.

    Example:
        >>> low, high, _ = welch_interval([3.0, 5.0], [1.0, 3.0])
        >>> round(low, 3), round(high, 3)
        (-4.085, 8.085)
    """
    test = welch_test(first, second)
    if isinstance(test, str):
        return Interval(None, None, test)
    half = float(stdtrit(test.df, (1 + LEVEL) / 2)) * test.standard_error
    return Interval(test.difference - half, test.difference + half, None)


class WelchTest(NamedTuple):
    """Welch's test of two means: their difference, its standard error, and the degrees of freedom."""

    difference: float
    standard_error: float
    df: float

    @property
    def t(self) -> float:
        """The difference in standard errors."""
        return self.difference / self.standard_error

    @property
    def p(self) -> float:
        """Two-sided probability, in [0, 1], of a t at least as large under equal means."""
        return 2 * float(stdtr(self.df, -abs(self.t)))


def welch_test(first: Sequence[float], second: Sequence[float]) -> WelchTest | str:
    """Return Welch's test of the mean of ``first`` against that of ``second``, which may differ in variance.

    t = difference / sqrt(s1^2 / n1 + s2^2 / n2) with the Welch-Satterthwaite degrees of freedom.

    Args:
        first: finite values of n1 independent units.
        second: finite values of n2 others.

    Returns:
        The test, or why there is none: ``too_few_units`` where a group has fewer than two, ``no_spread`` where
        neither group has any.

    Example:
        >>> test = welch_test([3.0, 5.0], [1.0, 3.0])
        >>> test.df, round(test.t, 3), round(test.p, 3)
        (2.0, 1.414, 0.293)
    """
    groups = [np.asarray(values, dtype=np.float64) for values in (first, second)]
    if min(len(values) for values in groups) < 2:
        return "too_few_units"
    if max(np.ptp(values) for values in groups) <= SPREAD_TOLERANCE:
        return "no_spread"
    errors = [float(values.var(ddof=1)) / len(values) for values in groups]  # squared standard errors of the means
    df = sum(errors) ** 2 / sum(error**2 / (len(values) - 1) for error, values in zip(errors, groups, strict=True))
    return WelchTest(float(groups[0].mean() - groups[1].mean()), math.sqrt(sum(errors)), df)


def hedges_g(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the difference of two means in pooled standard deviations, corrected for small samples; 0 is no lead.

    g = J (mean1 - mean2) / s_pooled, J = Gamma(df / 2) / (sqrt(df / 2) Gamma((df - 1) / 2)), df = n1 + n2 - 2, which
    makes g unbiased where the groups are normal with one variance (Hedges 1981).

    Args:
        first: finite values of n1 independent units.
        second: finite values of n2 others.

    Returns:
        None where :func:`welch_test` is undefined: a group of fewer than two, or no spread in either.
    """
    if isinstance(welch_test(first, second), str):
        return None
    groups = [np.asarray(values, dtype=np.float64) for values in (first, second)]
    df = sum(len(values) for values in groups) - 2
    pooled = math.sqrt(sum(float(values.var(ddof=1)) * (len(values) - 1) for values in groups) / df)
    correction = math.exp(math.lgamma(df / 2) - math.lgamma((df - 1) / 2)) / math.sqrt(df / 2)
    return correction * float(groups[0].mean() - groups[1].mean()) / pooled


def permutation_p(first: Sequence[float], second: Sequence[float], *names: object) -> float | None:
    """Return the two-sided p of the permutation test of two means, in (0, 1].

    The share of all assignments of the pooled values to groups of these sizes whose means differ at least as much, in
    either direction, as the groups' do; the groups' own assignment is one of them. Beyond :data:`MOST_ASSIGNMENTS` it
    is estimated from :data:`N_PERMUTATIONS` keyed random assignments and the groups' own (Phipson & Smyth 2010). The
    draws depend on the pooled values, not on their order. It takes the units as exchangeable under equal means: where
    the smaller group has the larger variance it rejects too often, which Welch's test does not.

    Args:
        first: finite values of n1 units.
        second: finite values of n2 others.
        names: key of the random assignments.

    Returns:
        None where a group is empty.

    Example:
        >>> permutation_p([3.0, 4.0], [1.0, 2.0])  # 2 of the 6 assignments
        0.3333333333333333
    """
    n_first, n = len(first), len(first) + len(second)
    if not 0 < n_first < n:
        return None
    pooled = np.sort(np.asarray([*first, *second], dtype=np.float64))
    expected = pooled.sum() * n_first / n
    # sums of equal assignments may differ in their last bits
    least = abs(math.fsum(first) - expected) - SPREAD_TOLERANCE
    n_assignments = math.comb(n, n_first)
    if n_assignments <= MOST_ASSIGNMENTS:
        chosen = itertools.chain.from_iterable(itertools.combinations(range(n), n_first))
        rows = np.fromiter(chosen, dtype=np.intp, count=n_assignments * n_first).reshape(-1, n_first)
        return float(np.mean(abs(pooled[rows].sum(axis=1) - expected) >= least))
    order = keyed_generator("permutation_p", *names).random((N_PERMUTATIONS, n))
    rows = order.argpartition(n_first - 1, axis=1)[:, :n_first]
    n_extreme = int(np.sum(abs(pooled[rows].sum(axis=1) - expected) >= least))
    return (1 + n_extreme) / (1 + N_PERMUTATIONS)


def _fisher_interval(r: float, n_units: int, factor: float) -> Interval:
    """Return the interval of tanh(z) with variance factor / (m - 3) of z."""
    if n_units <= _FISHER_LOSS:
        return Interval(None, None, "too_few_units")
    if abs(r) >= 1 - SPREAD_TOLERANCE:
        return Interval(None, None, "perfect_correlation")
    z, half = math.atanh(r), float(ndtri((1 + LEVEL) / 2)) * math.sqrt(factor / (n_units - _FISHER_LOSS))
    return Interval(math.tanh(z - half), math.tanh(z + half), None)


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    dx, dy = x - x.mean(), y - y.mean()
    r = float(dx @ dy) / math.sqrt((dx @ dx) * (dy @ dy))
    return min(max(r, -1.0), 1.0)


def _mean_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(np.round(values, _DECIMALS), return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts - 1) / 2)[inverse])
