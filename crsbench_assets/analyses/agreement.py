"""How far two orders of the same encoders agree.

What lives here: Kendall's tau-b, the overlap of two top 3, and when they say nothing. What stays out: the scores
(``scores``), and correlations of quantities (``analyses.inference``).
Source: Kendall (1945), The treatment of ties in ranking problems, doi:10.1093/biomet/33.3.239; protocol page,
section 8.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from crsbench_assets.scores.ensemble import top_shares

N_TOP = 3


class Agreement(NamedTuple):
    """Agreement of two orders; fields are columns of tables.

    Attributes:
        tau_b: in [-1, 1], 1 is the same order, ties in both; None where one order has no two different scores.
        top_3_overlap: in [0, 1], 1 is the same three; None for three encoders or fewer, whose top 3 is all of them.
        reason: why tau-b, else the overlap, is None: ``no_spread`` or ``too_few_units``.
    """

    tau_b: float | None
    top_3_overlap: float | None
    reason: str | None


def agreement(first: ArrayLike, second: ArrayLike) -> Agreement:
    """Return how far two scores order the same encoders alike.

    Args:
        first: scores (m,), larger is better.
        second: the other scores of the same encoders.

    Raises:
        ValueError: the lengths differ, or a score is NaN.

    Example:
        >>> agreement([4.0, 3.0, 2.0, 1.0], [8.0, 6.0, 4.0, 2.0])
        Agreement(tau_b=1.0, top_3_overlap=1.0, reason=None)
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if x.shape != y.shape or np.isnan(x).any() or np.isnan(y).any():
        raise ValueError(f"two orders of shapes {x.shape} and {y.shape}: expected one score each per encoder, no NaN")
    if len(x) < 2:
        return Agreement(None, None, "too_few_units")
    tau = tau_b(x, y)
    overlap = top_overlap(x, y, N_TOP)
    reason = "no_spread" if tau is None else "too_few_units" if overlap is None else None
    return Agreement(tau, overlap, reason)


def tau_b(first: ArrayLike, second: ArrayLike) -> float | None:
    """Return Kendall's tau-b of two scores, in [-1, 1]; 1 is the same order.

    (C - D) / sqrt((n0 - n1)(n0 - n2)): concordant less discordant pairs over the geometric mean of the pairs that are
    not tied in the one and in the other (Kendall 1945).

    Args:
        first: scores (m,), no NaN.
        second: the other scores of the same encoders.

    Returns:
        None where one of the two has no two different scores.
    """
    x, y = (np.asarray(scores, dtype=np.float64) for scores in (first, second))
    order_x, order_y = (np.sign(scores[:, None] - scores) for scores in (x, y))
    n_untied = np.abs(order_x).sum() * np.abs(order_y).sum()
    return float((order_x * order_y).sum() / np.sqrt(n_untied)) if n_untied else None


def top_overlap(first: ArrayLike, second: ArrayLike, k: int) -> float | None:
    """Return the share of the one top k that stands in the other, in [0, 1]; 1 is the same k.

    Where scores tie for the last place, the encoders share it, so that no name decides: the overlap is the sum over
    encoders of the smaller of the two shares (``scores.ensemble.top_shares``), by k.

    Args:
        first: scores (m,), larger is better, no NaN.
        second: the other scores of the same encoders.
        k: number of places, >= 1.

    Returns:
        None for k encoders or fewer, whose top k is all of them.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if len(x) <= k:
        return None
    shared = np.minimum(top_shares(x[None], k)[0], top_shares(y[None], k)[0]).sum()
    return min(1.0, float(shared / k))  # thirteen thirteenths of three places sum to a little more than three
