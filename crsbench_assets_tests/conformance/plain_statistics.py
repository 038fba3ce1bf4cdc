"""Statistics of rankings and groups a second time, in plain Python.

What lives here: quantiles, correlations of numbers and of orders with their intervals, the overlap of two top sets,
Student's t and the comparison of two groups, each written from its definition alone: no array library, no import from
the package. What stays out: the implementation that users run (``crsbench_assets.analyses``); the tables that these
statistics fill (``plain_analyses``, ``plain_replicates``).
Sources: Kendall (1945) for tau-b; Fisher (1921) for the interval of Pearson's r; Bonett & Wright (2000) for that of
Spearman's; Welch (1947); Hedges (1981); protocol page, section 8. An undefined value is None.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from statistics import NormalDist, fmean, variance
from typing import NamedTuple

CRITICAL = NormalDist().inv_cdf(0.975)
Interval = tuple[float | None, float | None]


def quantile(values: Sequence[float], level: float) -> float:
    """Return the linearly interpolated quantile of sorted or unsorted values.

    >>> quantile([3.0, 1.0, 2.0], 0.25)
    1.5
    """
    ordered = sorted(values)
    position = level * (len(ordered) - 1)
    below = min(math.floor(position), len(ordered) - 2) if len(ordered) > 1 else 0
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


# --- two variables ---------------------------------------------------------------------------------------------------


def pearson(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Pearson's correlation; None for fewer than three units or where one side has no spread.

    >>> pearson([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    1.0
    """
    if len(one) < 3 or len(set(one)) == 1 or len(set(other)) == 1:
        return None
    mean_one, mean_other = fmean(one), fmean(other)
    between = math.fsum((a - mean_one) * (b - mean_other) for a, b in zip(one, other, strict=True))
    within = math.fsum((a - mean_one) ** 2 for a in one) * math.fsum((b - mean_other) ** 2 for b in other)
    return max(-1.0, min(1.0, between / math.sqrt(within)))


def mid_ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of every value from the smallest on; ties share the mean of their ranks.

    >>> mid_ranks([5.0, 1.0, 5.0])
    [2.5, 1.0, 2.5]
    """
    return [sum(other < own for other in values) + (1 + sum(other == own for other in values)) / 2 for own in values]


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Pearson's correlation of the mid-ranks."""
    return pearson(mid_ranks(one), mid_ranks(other))


def pearson_interval(r: float | None, n: int) -> Interval:
    """Return tanh(atanh r -+ 1.96 / sqrt(n - 3)), the 95 % interval; the point itself at -1 and 1."""
    return _interval(r, n, 1.0)


def spearman_interval(r: float | None, n: int) -> Interval:
    """Return tanh(atanh r -+ 1.96 sqrt((1 + r^2 / 2) / (n - 3))), the 95 % interval."""
    return _interval(r, n, 1.0 if r is None else math.sqrt(1.0 + r * r / 2.0))


def _interval(r: float | None, n: int, widening: float) -> Interval:
    if r is None or n < 4 or abs(r) >= 1.0 - 1e-12:
        return None, None
    half = CRITICAL * widening / math.sqrt(n - 3)
    return math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def spearman_chance(n: int, level: float = 0.95) -> float:
    """Return the quantile of Spearman's correlation of two random orders, r = t / sqrt(n - 2 + t^2).

    >>> round(spearman_chance(15), 3)
    0.441
    """
    t = t_quantile(level, n - 2)
    return t / math.sqrt(n - 2 + t * t)


class Pairs(NamedTuple):
    """Pairs of units by how two orders rank them."""

    concordant: int
    discordant: int
    tied_in_one: int
    tied_in_other: int


def pairs(one: Mapping[str, float], other: Mapping[str, float]) -> Pairs:
    """Count the pairs that two orders of the same names rank alike and opposite, and those that tie in either."""
    counts = [0, 0, 0, 0]
    for a, b in combinations(sorted(one), 2):
        first, second = one[a] - one[b], other[a] - other[b]
        counts[0] += first * second > 0
        counts[1] += first * second < 0
        counts[2] += first == 0
        counts[3] += second == 0
    return Pairs(*counts)


def tau_b(one: Mapping[str, float], other: Mapping[str, float]) -> float | None:
    """Return Kendall's tau-b of two orders of the same names; None where one of them ties everybody.

    >>> tau_b({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 1.0, "b": 3.0, "c": 2.0})
    0.3333333333333333
    """
    found = pairs(one, other)
    n_pairs = len(one) * (len(one) - 1) // 2
    untied = (n_pairs - found.tied_in_one) * (n_pairs - found.tied_in_other)
    return (found.concordant - found.discordant) / math.sqrt(untied) if untied else None


def top_share(values: Mapping[str, float], size: int) -> dict[str, float]:
    """Return the share of every name in the top set; a tie at its edge shares the places that are left.

    >>> top_share({"a": 1.0, "b": 1.0, "c": 2.0}, 2)
    {'a': 0.5, 'b': 0.5, 'c': 1.0}
    """
    shares = {}
    for name, own in values.items():
        above = sum(other > own for other in values.values())
        tied = sum(other == own for other in values.values())
        shares[name] = min(1.0, max(0.0, (size - above) / tied))
    return shares


def top_overlap(one: Mapping[str, float], other: Mapping[str, float], size: int) -> float | None:
    """Return the share of the one top set in the other; None where the set is all names."""
    if len(one) <= size:
        return None
    first, second = top_share(one, size), top_share(other, size)
    return math.fsum(min(first[name], second[name]) for name in first) / size


# --- Student's t and two groups --------------------------------------------------------------------------------------


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    )
    # 1 / (1 + d_1 / (1 + d_2 / (1 + ...))) from its far end: backward evaluation is stable, and 200 terms are plenty.
    fraction = 1.0
    for m in range(200, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        fraction = 1.0 + even / (1.0 + odd / fraction)
    first = -(a + b) * x / (a + 1.0)
    return front / (1.0 + first / fraction)


def two_sided_p(t: float, df: float) -> float:
    """Return P(|T| >= |t|) of Student's t."""
    return incomplete_beta(df / 2.0, 0.5, df / (df + t * t))


def t_quantile(level: float, df: float) -> float:
    """Return the quantile of Student's t at a level above one half, by bisection."""
    low, high = 0.0, 1e4
    for _ in range(200):
        middle = (low + high) / 2.0
        if 1.0 - two_sided_p(middle, df) / 2.0 < level:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


class Welch(NamedTuple):
    """Welch's comparison of two means."""

    difference: float
    standard_error: float
    t: float
    df: float
    p: float


def welch(one: Sequence[float], other: Sequence[float]) -> Welch | None:
    """Return Welch's test of the difference of two means; None with one unit on a side or without any spread."""
    if len(one) < 2 or len(other) < 2:
        return None
    a, b = variance(one) / len(one), variance(other) / len(other)
    if a + b == 0.0:
        return None
    difference, error = fmean(one) - fmean(other), math.sqrt(a + b)
    df = (a + b) ** 2 / (a * a / (len(one) - 1) + b * b / (len(other) - 1))
    return Welch(difference, error, difference / error, df, two_sided_p(difference / error, df))


def hedges_g(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the difference of means in pooled standard deviations, times Hedges' exact small-sample factor."""
    df = len(one) + len(other) - 2
    pooled = math.sqrt(((len(one) - 1) * variance(one) + (len(other) - 1) * variance(other)) / df)
    factor = math.exp(math.lgamma(df / 2) - math.lgamma((df - 1) / 2)) / math.sqrt(df / 2)
    return factor * (fmean(one) - fmean(other)) / pooled


def permutation_p(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the share of all assignments to two groups of these sizes whose difference is as large.

    >>> permutation_p([3.0, 4.0], [1.0, 2.0])
    0.3333333333333333
    """
    pooled, total = [*one, *other], math.fsum([*one, *other])

    def difference(group: Collection[int]) -> float:
        inside = math.fsum(pooled[i] for i in group)
        return abs(inside / len(one) - (total - inside) / len(other))

    observed = difference(range(len(one)))
    # Assignments that tie with the observed one count, also where rounding sets them 1 ulp apart.
    found = [difference(group) >= observed * (1.0 - 1e-12) for group in combinations(range(len(pooled)), len(one))]
    return sum(found) / len(found)
