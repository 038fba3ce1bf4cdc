"""Test-image uncertainty of a record: replicates under resampled groups, and intervals from them.

What lives here: the group weights shared by all records of a dataset, AUROC and ECE under each of them, and
the percentile and basic interval.
What stays out: seeds and axes (``aggregates``), ranks (``scores``).
Source: Field and Welsh (2007), JRSS B 69, 369-390, doi:10.1111/j.1467-9868.2007.00593.x (resampling whole
clusters); DeLong et al. (1988), doi:10.2307/2531595 (placement values); Davison and Hinkley (1997), Bootstrap
Methods and their Application, sections 2.7 and 5.2-5.3 (influence, basic and percentile intervals); protocol
page, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.metrics.calibration import (
    bin_indices,
    class_probabilities,
    equal_width_bins,
    expected_calibration_error,
    top_label,
)
from crsbench_assets.metrics.ranking import RankedColumns, auroc, placement_values, ranking_scores

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task

LEVEL = 0.95
"""Coverage of every interval."""

COMPLETE_SHARE = 0.95
"""Smallest share of complete replicates that carries an interval."""

_CHUNK_ENTRIES = 4_000_000  # images times replicates held at once by the exact bootstrap: 32 MB an array


@dataclass(frozen=True, slots=True)
class Replicates:
    """A macro mean under b group weights.

    ``point``: value at equal weights, None where undefined. ``values``: (b,), NaN where a label that is
    defined at equal weights is undefined under the replicate, so that every macro mean is over the same
    labels. ``per_label``: (b, k), NaN where the label is undefined; one column for a top-label ECE.
    """

    point: float | None
    values: NDArray[np.float64]
    per_label: NDArray[np.float64]


class Interval(NamedTuple):
    """A two-sided interval of coverage :data:`LEVEL`, or (None, None, reason)."""

    low: float | None
    high: float | None
    reason: str | None


def group_weights(dataset_id: str, n_groups: int, n_replicates: int) -> NDArray[np.float64]:
    """Return how often each test group is drawn in each replicate: multinomial counts that sum to n_groups.

    The draw is keyed by the dataset alone, so all encoders, seeds, fractions and conditions share it and
    differences between them are paired.

    Args:
        dataset_id: the dataset whose test groups are drawn.
        n_groups: g, at least 1.
        n_replicates: b.

    Returns:
        float64 (b, g), whole numbers (float because they enter matrix products). With one group every weight
        is 1, which tells nothing: see :func:`auroc_replicates`.

    Raises:
        ValueError: where there is no group.
    """
    if n_groups < 1:
        raise ValueError(f"found {n_groups} test groups of {dataset_id!r}; expected at least one to draw.")
    drawn = keyed_generator("group_weights", dataset_id).integers(n_groups, size=(n_replicates, n_groups))
    drawn += np.arange(n_replicates)[:, None] * n_groups
    counts = np.bincount(drawn.ravel(), minlength=n_replicates * n_groups)
    return counts.reshape(n_replicates, n_groups).astype(np.float64)


def auroc_replicates(
    logits: NDArray[np.floating],
    labels: NDArray[np.int8],
    task: Task,
    groups: NDArray[np.integer],
    weights: NDArray[np.float64],
) -> Replicates:
    """Return the macro AUROC under every group weight, by its influence function.

    A(w) is replaced by its first-order expansion in the two samples: weighted mean placement of the positives
    plus weighted mean placement of the negatives minus A, cut to [0, 1]. Placement values are summed by group
    once, and all replicates of all labels are one matrix product.

    Args:
        logits: (n, k); a column of NaN was not fitted.
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown.
        task: "single_label", "ordinal" or "multi_label".
        groups: (n,) column of ``weights`` of every image.
        weights: float64 (b, g).

    Returns:
        The replicates. A label without positives or negatives in a replicate is undefined there. With one
        group, no image or no defined label all values are NaN: nothing varies that could be measured.
    """
    scores = ranking_scores(logits, class_probabilities(logits, task), task)
    placed = placement_values(scores, labels)
    is_placed = ~np.isnan(placed)
    placed = np.where(is_placed, placed, 0.0)
    is_positive, is_negative = (labels == 1) & is_placed, (labels == 0) & is_placed
    columns = np.hstack([placed * is_positive, is_positive, placed * is_negative, is_negative])
    weighted = weights @ _group_sums(columns, groups, weights.shape[1])
    sum_positive, n_positive, sum_negative, n_negative = np.hsplit(weighted, 4)
    points = auroc(scores, labels)
    per_label = np.full(n_positive.shape, np.nan)
    is_defined = (n_positive > 0) & (n_negative > 0)
    np.divide(sum_positive, n_positive, out=per_label, where=is_defined)
    per_label += np.divide(sum_negative, n_negative, out=np.zeros_like(per_label), where=is_defined)
    return _macro_replicates(points, np.clip(per_label - points, 0.0, 1.0), weights)


def exact_auroc_replicates(
    logits: NDArray[np.floating],
    labels: NDArray[np.int8],
    task: Task,
    groups: NDArray[np.integer],
    weights: NDArray[np.float64],
) -> Replicates:
    """Return the macro AUROC under every group weight, recomputed from the weighted images.

    Sum over pairs of w_i w_j (1[s_i > s_j] + 1/2 1[s_i = s_j]) over the sum of w_i w_j, in whole numbers up
    to the last division. Slower than :func:`auroc_replicates` by the number of images over that of groups; it
    verifies the other and serves the records that are shown.

    Args:
        logits: as :func:`auroc_replicates`.
        labels: as :func:`auroc_replicates`.
        task: as :func:`auroc_replicates`.
        groups: as :func:`auroc_replicates`.
        weights: as :func:`auroc_replicates`.

    Returns:
        As :func:`auroc_replicates`.
    """
    scores = ranking_scores(logits, class_probabilities(logits, task), task)
    n, k = scores.shape
    b = len(weights)
    points = auroc(scores, labels)
    per_label = np.full((b, k), np.nan)
    defined = np.flatnonzero(~np.isnan(points))
    if len(defined) == 0:
        return _macro_replicates(points, per_label, weights)
    chunk = max(1, _CHUNK_ENTRIES // n)
    ranked = RankedColumns(scores, labels)
    for c in defined:
        starts = np.flatnonzero(ranked.is_start[c])
        group_of_rank = np.asarray(groups)[ranked.order[c]]
        for first in range(0, b, chunk):
            drawn = weights[first : first + chunk, group_of_rank]
            positive = np.add.reduceat(drawn * ranked.is_positive[c], starts, axis=1)
            negative = np.add.reduceat(drawn * ranked.is_negative[c], starts, axis=1)
            below = negative.cumsum(axis=1) - negative
            twice_u = (positive * (2 * below + negative)).sum(axis=1)
            pairs = 2 * positive.sum(axis=1) * negative.sum(axis=1)
            np.divide(twice_u, pairs, out=per_label[first : first + chunk, c], where=pairs > 0)
    return _macro_replicates(points, per_label, weights)


def ece_replicates(
    logits: NDArray[np.floating],
    labels: NDArray[np.int8],
    task: Task,
    groups: NDArray[np.integer],
    weights: NDArray[np.float64],
    *,
    n_bins: int,
) -> Replicates:
    """Return the ECE under every group weight: top-label, or the macro mean over labels where multi-label.

    The gaps of confidence and label are summed by group and bin once; each replicate weighs these sums and
    takes their absolute values anew, which is exact because equal-width bins do not move.

    Args:
        logits: (n, k); a column of NaN was not fitted.
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown.
        task: "single_label", "ordinal" or "multi_label".
        groups: (n,) column of ``weights`` of every image.
        weights: float64 (b, g).
        n_bins: number of equal-width bins.

    Returns:
        The replicates. A label without a known entry in a replicate is undefined there. With one group, no
        image or no fitted column all values are NaN.
    """
    p = class_probabilities(logits, task)
    y = labels
    if task != "multi_label" and len(p):
        p, y = top_label(p, labels)
    b, g = weights.shape
    k = p.shape[1]
    indices = bin_indices(p, y, n_bins)
    width = k * (n_bins + 1)
    flat = np.asarray(groups)[:, None] * width + np.arange(k) * (n_bins + 1) + indices
    gaps = np.bincount(flat.ravel(), (p - y).ravel(), minlength=g * width).reshape(g, k, n_bins + 1)
    n_known = weights @ _group_sums((indices < n_bins).astype(np.float64), groups, g)
    total = np.abs(weights @ gaps[:, :, :n_bins].reshape(g, k * n_bins)).reshape(b, k, n_bins).sum(axis=2)
    per_label = np.divide(total, n_known, out=np.full((b, k), np.nan), where=n_known > 0)
    return _macro_replicates(expected_calibration_error(equal_width_bins(p, y, n_bins)), per_label, weights)


def percentile_interval(values: NDArray[np.float64]) -> Interval:
    """Return the percentile interval of replicates: their 2.5th and 97.5th percentile.

    Args:
        values: (b,) replicates, NaN where undefined.

    Returns:
        The interval; reason ``unstable`` where fewer than 95 % of the replicates are defined, or there are
        none.
    """
    complete = values[~np.isnan(values)]
    if len(complete) == 0 or len(complete) < COMPLETE_SHARE * len(values):
        return Interval(None, None, "unstable")
    low, high = np.quantile(complete, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high), None)


def basic_interval(values: NDArray[np.float64], point: float | None) -> Interval:
    """Return the basic interval of replicates: the percentile interval reflected at the point, cut to [0, 1].

    The ECE is biased upward, and its replicates once more; reflection takes the second bias off where the
    percentile interval would double it.

    Args:
        values: (b,) replicates, NaN where undefined.
        point: the value at equal weights.

    Returns:
        The interval; reason ``unstable`` as :func:`percentile_interval`, also where ``point`` is undefined.
    """
    low, high, reason = percentile_interval(values)
    if point is None or low is None or high is None:
        return Interval(None, None, reason or "unstable")
    return Interval(min(max(2 * point - high, 0.0), 1.0), min(max(2 * point - low, 0.0), 1.0), None)


def _group_sums(columns: NDArray[np.float64], groups: NDArray[np.integer], n_groups: int) -> NDArray[np.float64]:
    """Return the sums (g, c) of ``columns`` (n, c) by group."""
    c = columns.shape[1]
    flat = np.asarray(groups)[:, None] * c + np.arange(c)
    sums = np.bincount(flat.ravel(), columns.ravel(), minlength=n_groups * c)
    return sums.astype(np.float64, copy=False).reshape(n_groups, c)


def _macro_replicates(
    points: NDArray[np.float64], per_label: NDArray[np.float64], weights: NDArray[np.float64]
) -> Replicates:
    is_defined = ~np.isnan(points)
    if not is_defined.any():
        return Replicates(None, np.full(len(per_label), np.nan), np.full(per_label.shape, np.nan))
    point = float(points[is_defined].mean())
    if weights.shape[1] < 2:
        return Replicates(point, np.full(len(per_label), np.nan), np.full(per_label.shape, np.nan))
    return Replicates(point, per_label[:, is_defined].mean(axis=1), per_label)
