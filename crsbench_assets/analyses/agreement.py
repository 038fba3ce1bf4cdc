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
from scipy.stats import kendalltau

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
    has_spread = min(np.ptp(x), np.ptp(y)) > 0
    tau = float(kendalltau(x, y, variant="b").statistic) if has_spread else None
    overlap = top_overlap(x, y, N_TOP)
    reason = "no_spread" if tau is None else "too_few_units" if overlap is None else None
    return Agreement(tau, overlap, reason)


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
    return float(np.minimum(top_shares(x[None], k)[0], top_shares(y[None], k)[0]).sum() / k)
