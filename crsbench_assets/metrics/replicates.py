"""Test-image uncertainty of a record: replicates under resampled groups, and intervals from them.

What lives here: the group weights shared by all records of a dataset, AUROC and ECE under each of them, the
percentile interval and that of an ECE, and the intervals that would hold if images, not groups, were independent.
What stays out: the sort (``columns``), seeds and axes (``aggregates``), ranks (``scores``).
Source: Field and Welsh (2007), JRSS B 69, 369-390, doi:10.1111/j.1467-9868.2007.00593.x (resampling whole
clusters); DeLong et al. (1988), doi:10.2307/2531595 (placement values, variance over images); Davison and Hinkley
(1997), Bootstrap Methods and their Application, sections 2.7 and 5.2-5.3 (influence, basic and percentile
intervals); protocol page, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.metrics.calibration import (
    class_probabilities,
    equal_width_bins,
    equal_width_cuts,
    expected_calibration_error,
    logistic,
    top_label,
)
from crsbench_assets.metrics.columns import RankedColumn, rank_columns
from crsbench_assets.metrics.ranking import auroc, placement_values, ranking_scores

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task

LEVEL = 0.95
"""Coverage of every interval."""

COMPLETE_SHARE = 0.95
"""Smallest share of complete replicates that carries an interval."""

_NORMAL_QUANTILE = 1.959963984540054  # of (1 + LEVEL) / 2

_CHUNK_ENTRIES = 1_000_000  # images times replicates held at once by the exact bootstrap: 8 MB an array


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

    @property
    def is_dropped(self) -> NDArray[np.bool_]:
        """(b,): where a defined mean has no value under the replicate, which no interval rests on then."""
        return np.isnan(self.values) & (self.point is not None)


class Interval(NamedTuple):
    """A two-sided interval of coverage :data:`LEVEL`, or (None, None, reason)."""

    low: float | None
    high: float | None
    reason: str | None


def weights_key(dataset_id: str, source_id: str) -> str:
    """Return the key that all group weights of one source of a dataset (``primary``, or a shift target) have."""
    return f"{dataset_id}/{source_id}"


def group_weights(cohort: str, n_groups: int, n_replicates: int) -> NDArray[np.float64]:
    """Return how often each test group is drawn in each replicate: multinomial counts that sum to n_groups.

    The draw is keyed by the cohort alone, so all encoders, seeds, fractions and conditions share it and
    differences between them are paired.

    Args:
        cohort: whose test groups are drawn: see :func:`weights_key`.
        n_groups: g, at least 1.
        n_replicates: b.

    Returns:
        float64 (b, g), whole numbers (float because they enter matrix products). With one group every weight
        is 1, which tells nothing: see :func:`auroc_replicates`.

    Raises:
        ValueError: where there is no group.
    """
    if n_groups < 1:
        raise ValueError(f"found {n_groups} test groups of {cohort!r}; expected at least one to draw.")
    drawn = keyed_generator("group_weights", cohort).integers(n_groups, size=(n_replicates, n_groups))
    weights = np.empty(drawn.shape)
    for of_replicate, groups in zip(weights, drawn, strict=True):
        of_replicate[:] = np.bincount(groups, minlength=n_groups)
    return weights


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
    k, g = logits.shape[1], weights.shape[1]
    points, sums = np.full(k, np.nan), np.zeros((k, 4, g))
    for c, column in enumerate(rank_columns(ranking_scores(logits, task), labels)):
        points[c] = auroc(column)
        if np.isnan(points[c]):
            continue
        placed, group = placement_values(column), groups[column.images]
        for first, is_kind in ((0, column.is_positive), (2, ~column.is_positive)):
            sums[c, first] = np.bincount(group[is_kind], placed[is_kind], minlength=g)
            sums[c, first + 1] = np.bincount(group[is_kind], minlength=g)
    weighted = (weights @ sums.reshape(4 * k, g).T).reshape(-1, k, 4)
    sum_positive, n_positive, sum_negative, n_negative = np.moveaxis(weighted, 2, 0)
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
    to the last division: the AUROC of the repeated images to the last bits. Each column is sorted once; its
    negatives are summed between the places of its positives, by group, before any weight is applied. At 38,000
    images and 14 labels still several times slower than :func:`auroc_replicates`, which it verifies; it serves
    the records that are shown.

    Args:
        logits: as :func:`auroc_replicates`.
        labels: as :func:`auroc_replicates`.
        task: as :func:`auroc_replicates`.
        groups: as :func:`auroc_replicates`.
        weights: as :func:`auroc_replicates`.

    Returns:
        As :func:`auroc_replicates`.
    """
    b, g = weights.shape
    points, per_label = np.full(logits.shape[1], np.nan), np.full((b, logits.shape[1]), np.nan)
    pairs: dict[int, _Pairs] = {}
    for c, column in enumerate(rank_columns(ranking_scores(logits, task), labels)):
        points[c] = auroc(column)
        if not np.isnan(points[c]):
            pairs[c] = _Pairs(column, groups, g)
    chunk = max(1, _CHUNK_ENTRIES // max(1, len(logits)))
    for first in range(0, b, chunk):
        by_group = weights[first : first + chunk].T.copy()
        for c, of_column in pairs.items():
            per_label[first : first + chunk, c] = of_column.auroc(by_group)
    return _macro_replicates(points, per_label, weights)


class _Pairs:
    """The pairs of positives and negatives of a column, counted by group.

    ``cuts`` are the places among the sorted negatives at which a positive, or the end of the negatives tied with it,
    lies. Twice a positive's wins are the negatives before its lower cut and those before its upper cut.
    """

    def __init__(self, column: RankedColumn, groups: NDArray[np.integer], n_groups: int) -> None:
        """Count the entries of ``column``; ``groups`` (n,) are those of the images."""
        group = groups[column.images]
        of_positive, of_negative = group[column.is_positive], group[~column.is_positive]
        positives, negatives = column.scores[column.is_positive], column.scores[~column.is_positive]
        at = np.concatenate([negatives.searchsorted(positives), negatives.searchsorted(positives, side="right")])
        cuts, cut = np.unique(at, return_inverse=True)
        segment = cuts.searchsorted(np.arange(len(negatives)), side="right")
        is_below = segment < len(cuts)  # no positive lies above the others
        self._at_cut = _counts(cut, np.tile(of_positive, 2), (len(cuts), n_groups))
        self._up_to_cut = _counts(segment[is_below], of_negative[is_below], (len(cuts), n_groups))
        self._positive = np.bincount(of_positive, minlength=n_groups)
        self._negative = np.bincount(of_negative, minlength=n_groups)

    def auroc(self, by_group: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the AUROC (b,) under weights (g, b), NaN where they leave no positive or no negative."""
        below = self._up_to_cut @ by_group
        np.cumsum(below, axis=0, out=below)
        twice_u = np.einsum("cb,cb->b", self._at_cut @ by_group, below)
        pairs = 2.0 * (self._positive @ by_group) * (self._negative @ by_group)
        return np.asarray(np.divide(twice_u, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0))


def _counts(rows: NDArray[np.integer], columns: NDArray[np.integer], shape: tuple[int, int]) -> csr_array:
    """Return how often each (row, column) occurs, as a sparse matrix."""
    return csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)


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
    columns = list(_stated_columns(logits, labels, task))
    g = weights.shape[1]
    sums = np.zeros((g, len(columns), n_bins + 1))
    for c, column in enumerate(columns):
        group = groups[column.images]
        flat = group * n_bins + _bin_of_entries(column, n_bins)
        gaps = np.bincount(flat, column.scores - column.is_positive, minlength=g * n_bins)
        sums[:, c, :n_bins] = gaps.reshape(g, n_bins)
        sums[:, c, n_bins] = np.bincount(group, minlength=g)
    per_label = _errors((weights @ sums.reshape(g, -1)).reshape(len(weights), *sums.shape[1:]))
    return _macro_replicates(_errors_of(columns, n_bins), per_label, weights)


def _stated_columns(logits: NDArray[np.floating], labels: NDArray[np.int8], task: Task) -> Iterator[RankedColumn]:
    """Yield the columns of probabilities that the ECE judges: one per label, or the confidence alone."""
    if task != "multi_label":
        yield from rank_columns(*top_label(class_probabilities(logits, task), labels))
        return
    for column in rank_columns(ranking_scores(logits, task), labels):
        yield column.rescored(logistic(column.scores))


def _bin_of_entries(column: RankedColumn, n_bins: int) -> NDArray[np.int64]:
    return np.repeat(np.arange(n_bins), np.diff(equal_width_cuts(column, n_bins)))


def _errors(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ECE (b, k) from sums (b, k, n_bins + 1): the gap of every bin, and last the entries that count."""
    n = sums[:, :, -1]
    total = np.abs(sums[:, :, :-1]).sum(axis=2)
    return np.asarray(np.divide(total, n, out=np.full(n.shape, np.nan), where=n > 0))


def _errors_of(columns: Sequence[RankedColumn], n_bins: int) -> NDArray[np.float64]:
    return np.array([expected_calibration_error(equal_width_bins(column, n_bins)) for column in columns])


def image_level_auroc_interval(logits: NDArray[np.floating], labels: NDArray[np.int8], task: Task) -> Interval:
    """Return the interval of the macro AUROC that would hold if all images were independent.

    The point and 1.96 standard deviations on either side, cut to [0, 1]. For one column the variance is that of
    DeLong et al. (1988): S10 / n_pos + S01 / n_neg from the placement values. For a macro mean, in which an image may
    be a positive of one label and a negative of another, the same terms of an image are added over the labels before
    they are squared. It is the large-sample form of a bootstrap in which every image is its own group, without its
    weights (38,000 images x 1,000 replicates are 300 MB).

    Args:
        logits: (n, k); a column of NaN was not fitted.
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown.
        task: "single_label", "ordinal" or "multi_label".

    Returns:
        The interval; reason ``unstable`` where no label is defined, or where by the binomial distribution more
        than 5 % of the resamples of images would leave a label without positives or without negatives.
    """
    points: list[float] = []
    counts: list[int] = []
    influence = np.zeros(len(labels))
    scores = ranking_scores(logits, task)
    if task != "multi_label" and scores.shape[1] == 2:
        scores, labels = scores[:, 1:], labels[:, 1:]  # both classes have one AUROC, and its images count once
    for column in rank_columns(scores, labels):
        point = auroc(column)
        if np.isnan(point):
            continue
        points.append(point)
        deviations = placement_values(column) - point
        for is_kind, m in ((column.is_positive, column.n_positive), (~column.is_positive, column.n_negative)):
            counts.append(m)
            influence[column.images[is_kind]] += deviations[is_kind] / np.sqrt(max(m * (m - 1), 1))
    if not _is_stable(counts, len(labels)):
        return Interval(None, None, "unstable")
    point = float(np.mean(points))
    half = _NORMAL_QUANTILE * float(np.sqrt(np.square(influence / len(points)).sum()))
    return Interval(max(point - half, 0.0), min(point + half, 1.0), None)


def image_level_ece_interval(
    logits: NDArray[np.floating],
    labels: NDArray[np.int8],
    task: Task,
    *,
    n_bins: int,
    n_replicates: int,
    generator: np.random.Generator,
) -> Interval:
    """Return the interval of the ECE that would hold if all images were independent.

    The gaps of all bins under resampled images are sums over images. Their covariance, which has a closed form, is
    all that is taken from it: they are drawn from the normal distribution of that covariance, and :func:`ece_interval`
    follows as from :func:`ece_replicates`.

    Args:
        logits: (n, k); a column of NaN was not fitted.
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown.
        task: "single_label", "ordinal" or "multi_label".
        n_bins: number of equal-width bins.
        n_replicates: b, number of draws.
        generator: keyed generator of this record.

    Returns:
        The interval; reason ``unstable`` without draws or a fitted column, or where more than 5 % of the resamples of
        images would leave a label without a known entry.
    """
    columns = [column for column in _stated_columns(logits, labels, task) if len(column.scores)]
    n, k = len(labels), len(columns)
    if not _is_stable([len(column.scores) for column in columns], n):
        return Interval(None, None, "unstable")
    terms = np.zeros((n, k, n_bins + 1))
    for c, column in enumerate(columns):
        terms[column.images, c, _bin_of_entries(column, n_bins)] = column.scores - column.is_positive
        terms[column.images, c, n_bins] = 1.0
    of_images = terms.reshape(n, k * (n_bins + 1))
    totals = of_images.sum(axis=0)
    variances, directions = np.linalg.eigh(of_images.T @ of_images - np.outer(totals, totals) / n)
    normals = generator.standard_normal((n_replicates, len(totals)))
    drawn = totals + normals @ (directions * np.sqrt(np.maximum(variances, 0.0))).T
    values = _errors(drawn.reshape(n_replicates, k, n_bins + 1)).mean(axis=1)
    return ece_interval(values, float(_errors_of(columns, n_bins).mean()))


def _is_stable(counts: Sequence[int], n_images: int) -> bool:
    """Return whether resamples of n images miss none of some kinds of image, of these counts, in 95 % of cases."""
    if not counts or n_images < 2:
        return False
    return sum((1.0 - count / n_images) ** n_images for count in counts) <= 1.0 - COMPLETE_SHARE


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


def ece_interval(values: NDArray[np.float64], point: float | None) -> Interval:
    """Return the interval of an ECE from its replicates: the basic interval on the scale of squares, in [0, 1].

    An ECE adds absolute gaps between label and confidence, which the noise of the sample makes larger, and a replicate
    has that noise twice. Variances add: where gaps are t^2 and their noise s^2 in the square, the ECE is in proportion
    to sqrt(t^2 + s^2) and its replicates to sqrt(t^2 + 2 s^2), so 2 point^2 - replicate^2 takes the noise off, and of a
    calibrated model, whose t is 0, all of it. The bounds are the roots of that at the 97.5th and the 2.5th percentile;
    0 where it is negative. The basic interval on the plain scale, 2 point - replicate, takes off .41 of the noise of a
    calibrated model and covers .84 of true values where the ECE is mostly noise.

    Args:
        values: (b,) replicates, NaN where undefined.
        point: the value at equal weights.

    Returns:
        The interval; reason ``unstable`` as :func:`percentile_interval`, also where ``point`` is undefined.
    """
    low, high, reason = percentile_interval(values)
    if point is None or low is None or high is None:
        return Interval(None, None, reason or "unstable")
    lower, upper = (min(math.sqrt(max(2.0 * point**2 - end**2, 0.0)), 1.0) for end in (high, low))
    return Interval(lower, upper, None)


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
