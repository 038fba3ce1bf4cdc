"""The parts of the score as pure functions of profiles.

What lives here: position between anchors, dominance, balance, worst axis, and the weighted sum of the three.
What stays out: which cells and members enter (``scores.crs``), where anchors come from (``scores.panel``).
Source: protocol page, section 7, which closes what the paper leaves open. Balance is the distance to the ideal point
of Hwang & Yoon (1981), "Multiple Attribute Decision Making"; dominance is Pareto's.

Shapes: n encoders, m members, k axes. Sums run over the axes in order, so a result has the same bits alone
and in a batch. NaN and infinities are refused: a missing axis means that there is no score.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

DEGENERATE_POSITION = 0.5
"""Position on an axis on which all members agree."""


def z_scores(values: ArrayLike, low: ArrayLike, high: ArrayLike, *, degenerate_range: float) -> NDArray[np.float64]:
    """Return the unclipped position between the anchors: 0 at the panel's worst, 1 at its best; larger is better.

    z_raw = (m - lo) / (hi - lo), and 0.5 for every encoder where hi - lo <= ``degenerate_range``.

    Args:
        values: axis values (..., k).
        low: smallest values of the members (k,).
        high: largest values of the members (k,).
        degenerate_range: largest range that counts as none, >= 0, in units of the axis.

    Returns:
        float64 (..., k); clip to [0, 1] for the profile that balance and worst axis see.

    Raises:
        ValueError: a value that is not finite, or a low anchor above the high one.

    Example:
        >>> z_scores([0.75, 1.0], [0.5, 0.25], [1.0, 0.25], degenerate_range=1e-12)
        array([0.5, 0.5])
    """
    x, lo, hi = _finite(values), _finite(low), _finite(high)
    span = hi - lo
    if (span < 0).any():
        raise ValueError(f"low anchors {lo} exceed high anchors {hi}")
    is_degenerate = span <= degenerate_range
    return np.where(is_degenerate, DEGENERATE_POSITION, (x - lo) / np.where(is_degenerate, 1.0, span))


def dominates(first: ArrayLike, second: ArrayLike) -> NDArray[np.bool_]:
    """Return whether ``first`` is at least as good on all axes and better on one; exact, without tolerance.

    Args:
        first: profiles (..., k).
        second: profiles (..., k); leading dimensions broadcast.

    Returns:
        bool (...); False for identical profiles.

    Raises:
        ValueError: a value that is not finite.
    """
    x, y = _finite(first), _finite(second)
    return np.asarray((x >= y).all(axis=-1) & (x > y).any(axis=-1))


def pareto_score(x_raw: ArrayLike, members_raw: ArrayLike) -> NDArray[np.float64]:
    """Return dominance against the members: 1 dominates all, 0 is dominated by all, 0.5 is neutral; in [0, 1].

    P = 1/2 (1 + (D - U) / m), D members that the profile dominates, U members that dominate it. A member is compared
    with all m members, itself included, which counts for nothing; so an identical encoder gets an identical score.

    Args:
        x_raw: unclipped profiles (..., k).
        members_raw: unclipped profiles of the members (m, k), m >= 1.

    Returns:
        float64 (...).

    Raises:
        ValueError: no member, or a value that is not finite.

    Example:
        >>> float(pareto_score([0.5, 1.0], [[0.5, 0.5], [1.0, 0.5]]))
        0.75
    """
    x, members = _finite(x_raw), _finite(members_raw)
    if members.ndim != 2 or not len(members):
        raise ValueError(f"dominance needs members of shape (m, k) with m >= 1, found {members.shape}")
    one = x[..., np.newaxis, :]
    n_dominated = dominates(one, members).sum(axis=-1)
    n_dominating = dominates(members, one).sum(axis=-1)
    return np.asarray(0.5 * (1 + (n_dominated - n_dominating) / len(members)))


def balance(x: ArrayLike, axis_weights: ArrayLike) -> NDArray[np.float64]:
    """Return closeness to the ideal profile (1, ..., 1); larger is better, in [0, 1].

    B = 1 - sqrt(sum_k w_k (1 - x_k)^2).

    Args:
        x: clipped profiles (..., k) in [0, 1]. Unclipped ones are refused: above 1 the distance would grow again.
        axis_weights: w (k,), >= 0, sum 1.

    Returns:
        float64 (...).

    Raises:
        ValueError: a value outside [0, 1] or not finite, or weights that are no distribution.

    Example:
        >>> float(balance([1.0, 1.0, 1.0, 0.0], [0.25] * 4))
        0.5
    """
    profiles, weights = _unit(x), _distribution(axis_weights)
    squares = np.zeros(profiles.shape[:-1])
    for k, weight in enumerate(weights):
        squares = squares + weight * np.square(1 - profiles[..., k])
    # Weights written in decimals may sum to a little more than 1, which would put the null profile below 0.
    return np.asarray(np.maximum(0.0, 1 - np.sqrt(squares)))


def worst_axis(x: ArrayLike) -> NDArray[np.float64]:
    """Return the smallest axis of a profile; larger is better, in [0, 1].

    Args:
        x: clipped profiles (..., k) in [0, 1].

    Returns:
        float64 (...).

    Raises:
        ValueError: a value outside [0, 1] or not finite.
    """
    return np.asarray(_unit(x).min(axis=-1))


def clinical_reliability_score(
    pareto: ArrayLike, balanced: ArrayLike, worst: ArrayLike, component_weights: ArrayLike
) -> NDArray[np.float64]:
    """Return the Clinical Reliability Score; larger is better, in [0, 1].

    CRS = a P + b B + c W, with (a, b, c) = (0.5, 0.3, 0.2) in ``crs-1``.

    Args:
        pareto: P (...), in [0, 1].
        balanced: B (...), in [0, 1].
        worst: W (...), in [0, 1].
        component_weights: (a, b, c), >= 0, sum 1.

    Returns:
        float64 (...).

    Raises:
        ValueError: a part outside [0, 1] or not finite, or weights that are no distribution.
    """
    a, b, c = _distribution(component_weights)
    # As in `balance`: the weights may sum to a little more than 1.
    return np.asarray(np.minimum(1.0, a * _unit(pareto) + b * _unit(balanced) + c * _unit(worst)))


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError("a profile with a missing or infinite axis has no score")
    return array


def _unit(values: ArrayLike) -> NDArray[np.float64]:
    array = _finite(values)
    if ((array < 0) | (array > 1)).any():
        raise ValueError(f"expected values in [0, 1], found {array.min()} to {array.max()}: clip profiles first")
    return array


def _distribution(weights: ArrayLike) -> NDArray[np.float64]:
    array = _finite(weights)
    if (array < 0).any() or abs(array.sum() - 1) > 1e-9:
        raise ValueError(f"weights {array} must not be negative and must sum to 1")
    return array
