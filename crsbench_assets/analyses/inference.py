"""The statistics that several analyses share, with their undefined cases.

What lives here: correlation of two quantities, and the interval of a difference of two means. What stays out: who the
units are (``analyses.population``), and agreement of two rankings.
Source: Pearson (1895), doi:10.1098/rspl.1895.0041; Spearman (1904), The proof and measurement of association between
two things, doi:10.2307/1412159; Welch (1947), doi:10.1093/biomet/34.1-2.28.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from crsbench_assets.metrics.replicates import LEVEL, Interval

SPREAD_TOLERANCE = 1e-12
"""Largest range that counts as none, as for the range of an axis; quantities here are of order 1."""

_DECIMALS = 12  # of values that are ranked: rounding of equal values must not break a tie
_LEAST_UNITS = 3


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
    groups = [np.asarray(values, dtype=np.float64) for values in (first, second)]
    if min(len(values) for values in groups) < 2:
        return Interval(None, None, "too_few_units")
    if max(np.ptp(values) for values in groups) <= SPREAD_TOLERANCE:
        return Interval(None, None, "no_spread")
    errors = [float(values.var(ddof=1)) / len(values) for values in groups]  # squared standard errors of the means
    df = sum(errors) ** 2 / sum(error**2 / (len(values) - 1) for error, values in zip(errors, groups, strict=True))
    half = float(stdtrit(df, (1 + LEVEL) / 2)) * math.sqrt(sum(errors))
    difference = float(groups[0].mean() - groups[1].mean())
    return Interval(difference - half, difference + half, None)


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    dx, dy = x - x.mean(), y - y.mean()
    r = float(dx @ dy) / math.sqrt((dx @ dx) * (dy @ dy))
    return min(max(r, -1.0), 1.0)


def _mean_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(np.round(values, _DECIMALS), return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts - 1) / 2)[inverse])
