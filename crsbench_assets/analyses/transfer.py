"""How well one order of some encoders foretells another.

What lives here: Spearman's correlation of two orders with its interval and the level that chance reaches, and whether
the leaders are the same. What stays out: which orders (``lodo_transfer``, ``mimic_transfer``), and the agreement of
two scores that share their data (``analyses.agreement``).
Source: protocol page, section 8; Spearman (1904), doi:10.2307/1412159; Kendall & Stuart, The Advanced Theory of
Statistics, volume 2 (1973), section 31.18 (the t approximation).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from crsbench_assets.analyses.agreement import N_TOP, top_overlap
from crsbench_assets.analyses.inference import correlation, spearman_interval
from crsbench_assets.scores.ranks import competition_ranks

MOST_ENUMERATED = 8
"""Most encoders whose orders are enumerated: 40,320 of them."""

_LEAST_UNITS = 3


class Transfer(NamedTuple):
    """How well one order foretells another; fields are columns of tables.

    Attributes:
        n_encoders: m.
        spearman: in [-1, 1], 1 is the same order.
        spearman_ci_low: lower 95 % bound (``inference.spearman_interval``, which says what it covers).
        spearman_ci_high: upper 95 % bound.
        spearman_chance_p95: :func:`chance_spearman`.
        top_3_overlap: in [0, 1], 1 is the same three; None for three encoders or fewer.
        top_3_overlap_chance: its expectation between random orders, 3 / m.
        is_winner_recovered: whether the same encoders share rank 1; None without Spearman's correlation.
        reason: why a value is None.
    """

    n_encoders: int
    spearman: float | None
    spearman_ci_low: float | None
    spearman_ci_high: float | None
    spearman_chance_p95: float | None
    top_3_overlap: float | None
    top_3_overlap_chance: float | None
    is_winner_recovered: bool | None
    reason: str | None


def transfer(foretold: Sequence[float], found: Sequence[float]) -> Transfer:
    """Return how well one score foretells the order of the same encoders under another.

    Args:
        foretold: m finite scores, larger is better.
        found: the other score of the same encoders.

    Returns:
        Reasons: ``too_few_units`` below three encoders, for three (no interval, and a top 3 that is all of them), and
        for an interval of fewer than four; ``no_spread`` where all agree on one score; ``perfect_correlation`` where
        the orders are equal or opposite, for the interval alone.

    Raises:
        ValueError: the lengths differ.
    """
    m = len(foretold)
    result = correlation(foretold, found)
    low = high = is_recovered = None
    reason = result.reason
    if result.spearman is not None:
        low, high, reason = spearman_interval(result.spearman, m)
        firsts = [competition_ranks(scores) == 1 for scores in (foretold, found)]
        is_recovered = bool((firsts[0] == firsts[1]).all())
    has_top = m > N_TOP
    return Transfer(
        n_encoders=m,
        spearman=result.spearman,
        spearman_ci_low=low,
        spearman_ci_high=high,
        spearman_chance_p95=chance_spearman(m) if m >= _LEAST_UNITS else None,
        top_3_overlap=top_overlap(foretold, found, N_TOP),
        top_3_overlap_chance=N_TOP / m if has_top else None,
        is_winner_recovered=is_recovered,
        reason=reason,
    )


def undefined_transfer(n_encoders: int, reason: str) -> Transfer:
    """Return the row of an order that is not there."""
    return Transfer(n_encoders, None, None, None, None, None, None, None, reason)


@cache
def chance_spearman(m: int) -> float:
    """Return the 95th percentile of Spearman's correlation between two random orders, in [-1, 1].

    The smallest value that at least 95 % of all m! orders reach at most, for up to 8 encoders; beyond, that of
    Student's t with m - 2 degrees of freedom, r = t / sqrt(m - 2 + t^2), which is within .01 of the exact value
    (.583 for m = 9).

    Args:
        m: encoders without ties, >= 3.

    Example:
        >>> chance_spearman(4), round(chance_spearman(15), 3)
        (0.8, 0.441)
    """
    if m > MOST_ENUMERATED:
        t = float(stdtrit(m - 2, 0.95))
        return t / math.sqrt(m - 2 + t * t)
    orders = np.array(list(itertools.permutations(range(m))))
    distances = np.sort(((orders - np.arange(m)) ** 2).sum(axis=1))[::-1]  # the farthest order has the smallest rho
    # whole numbers, so that no rounding of .95 moves the place: ceil(.95 m!) - 1
    place = -(-95 * len(distances) // 100) - 1
    return 1 - 6 * int(distances[place]) / (m**3 - m)
