"""Calibration: whether probabilities mean what they say.

What lives here: probabilities from logits, binned sums and the calibration errors made of them, proper
scoring rules, and the error that a perfectly calibrated model would show (the floor).
What stays out: macro means and reasons (``compute``), resampling (``replicates``), repair of probabilities
(``probes.calibrate``).
Source: Guo et al. (2017), ICML, arXiv 1706.04599 (ECE); Nixon et al. (2019), CVPR workshops, arXiv 1904.01685
(equal-mass bins); Kull et al. (2019), NeurIPS, arXiv 1910.12656 (classwise ECE); Kumar, Liang and Ma (2019),
NeurIPS, arXiv 1909.10155 (debiased error); Brier (1950); protocol page, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax

from crsbench_assets.metrics.ranking import tie_run_starts

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task

EDGE_TOLERANCE = 2.0**-25
"""How far above a bin edge a probability still counts as lying on it. Storing logits as float32 moves a
probability p by up to p (1 - p) (|log p| + |log (1 - p)|) 2^-24 <= 2.1e-8; without the tolerance, half of the
probabilities that are k/15 would leave bin k by being stored."""


def fitted_columns(logits: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which columns of ``logits`` (n, k) were fitted: all of a column is NaN, or none is.

    Raises:
        ValueError: where a column is NaN in part or infinite somewhere; such logits are damaged.
    """
    is_finite = np.isfinite(logits)
    fitted: NDArray[np.bool_] = is_finite.all(axis=0)
    is_bad = ~fitted & ~np.isnan(logits).all(axis=0)
    if is_bad.any():
        raise ValueError(
            f"logits of columns {np.flatnonzero(is_bad).tolist()} are infinite or partly NaN; expected "
            "finite values, or NaN in a whole column that was not fitted. Recompute the predictions."
        )
    return fitted


def class_probabilities(logits: NDArray[np.floating], task: Task) -> NDArray[np.float64]:
    """Return probabilities in [0, 1] from logits, in float64.

    Single-label and ordinal: softmax over the fitted columns, 0 for the others; with fewer than two fitted
    columns there is no model and all is NaN. Multi-label: the logistic function per column, NaN in columns
    not fitted.

    Args:
        logits: (n, k); a column of NaN was not fitted.
        task: which of the two links holds.

    Returns:
        float64 (n, k).

    Raises:
        ValueError: where ``logits`` are infinite or partly NaN.

    Example:
        >>> class_probabilities(np.array([[0.0, np.nan, 0.0]]), "single_label")
        array([[0.5, 0. , 0.5]])
    """
    logits = np.asarray(logits, dtype=np.float64)
    fitted = fitted_columns(logits)
    if task == "multi_label":
        return np.asarray(expit(logits))
    if len(logits) == 0:
        return np.empty(logits.shape)
    if fitted.sum() < 2:
        return np.full(logits.shape, np.nan)
    return np.asarray(softmax(np.where(fitted, logits, -np.inf), axis=1))


def top_label(
    probabilities: NDArray[np.float64], labels: NDArray[np.int8]
) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Return the confidence of the predicted class and whether it is right, each (n, 1).

    The prediction is the argmax; a tie goes to the lowest index.

    Args:
        probabilities: float64 (n, k), k >= 1, without NaN.
        labels: int8 (n, k), one-hot.
    """
    predicted = probabilities.argmax(axis=1)[:, None]
    return np.take_along_axis(probabilities, predicted, axis=1), np.take_along_axis(labels, predicted, axis=1)


@dataclass(frozen=True, slots=True)
class BinSums:
    """Sums over the bins of k columns of probabilities; every array has shape (k, n_bins).

    ``n``: entries in the bin (int64); ``sum_p``: sum of their probabilities; ``sum_y``: sum of their labels.
    """

    n: NDArray[np.int64]
    sum_p: NDArray[np.float64]
    sum_y: NDArray[np.float64]


def bin_edges(n_bins: int) -> NDArray[np.float64]:
    """Return the n_bins + 1 edges b / n_bins of equal-width bins."""
    return np.arange(n_bins + 1) / n_bins


def bin_indices(probabilities: NDArray[np.float64], labels: NDArray[np.int8], n_bins: int) -> NDArray[np.intp]:
    """Return the equal-width bin of every entry, 0 to n_bins - 1; n_bins where the entry is left out.

    Bin b is (b / n_bins, (b + 1) / n_bins], and 0 falls in the first. A probability within
    :data:`EDGE_TOLERANCE` above an edge lies on it.

    Args:
        probabilities: float64 (n, k) in [0, 1]; NaN is left out.
        labels: int8 (n, k); -1 is left out.
        n_bins: number of bins.

    Returns:
        integers (n, k).

    Raises:
        ValueError: where a probability is outside [0, 1].
    """
    if bool(((probabilities < 0.0) | (probabilities > 1.0)).any()):
        raise ValueError("found probabilities outside [0, 1]; pass probabilities, not logits.")
    right_edges = bin_edges(n_bins)[1:] + EDGE_TOLERANCE
    indices = right_edges.searchsorted(probabilities)  # NaN sorts last, hence gets n_bins
    indices[labels < 0] = n_bins
    return indices


def _bin_sums(
    indices: NDArray[np.intp], probabilities: NDArray[np.float64], labels: NDArray[np.int8], n_bins: int
) -> BinSums:
    """Sum rows (k, n) by bin; index n_bins is left out."""
    k = len(indices)
    flat = (indices + (np.arange(k) * (n_bins + 1))[:, None]).ravel()

    def by_bin(weights: NDArray[np.generic] | None) -> NDArray[np.generic]:
        values = None if weights is None else weights.ravel()
        return np.bincount(flat, values, minlength=k * (n_bins + 1)).reshape(k, n_bins + 1)[:, :n_bins]

    return BinSums(
        n=by_bin(None).astype(np.int64, copy=False),
        sum_p=by_bin(probabilities).astype(np.float64, copy=False),
        sum_y=by_bin(labels).astype(np.float64, copy=False),
    )


def equal_width_bins(probabilities: NDArray[np.float64], labels: NDArray[np.int8], n_bins: int) -> BinSums:
    """Return the sums over equal-width bins, column by column.

    Args:
        probabilities: float64 (n, k) in [0, 1]; NaN is left out.
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown (left out).
        n_bins: number of bins.

    Raises:
        ValueError: where a probability is outside [0, 1].
    """
    indices = bin_indices(probabilities, labels, n_bins)
    return _bin_sums(indices.T, probabilities.T, labels.T, n_bins)


def equal_mass_bins(probabilities: NDArray[np.float64], labels: NDArray[np.int8], n_bins: int) -> BinSums:
    """Return the sums over equal-mass bins, column by column, with tied probabilities kept together.

    Cut b lies at the empirical quantile x_(ceil(n b / n_bins)) and bins are closed on the right, which is to
    move each cut to the end of its run of ties (quantile of type 1 in Hyndman and Fan 1996,
    doi:10.2307/2684934). So the bins depend neither on the order of the images nor on their duplication. Bins
    swallowed by ties are empty.

    Args:
        probabilities: float64 (n, k) in [0, 1]; NaN is left out.
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown (left out).
        n_bins: number of bins.
    """
    n, k = probabilities.shape
    if n == 0:
        return _bin_sums(np.empty((k, 0), dtype=np.intp), probabilities.T, labels.T, n_bins)
    by_column = np.where(labels >= 0, probabilities, np.nan).T.copy()
    order = by_column.argsort(axis=1)
    ordered = np.take_along_axis(by_column, order, axis=1)
    n_known = n - np.isnan(ordered).sum(axis=1)[:, None]

    is_start = tie_run_starts(ordered)
    run_ends = np.append(np.flatnonzero(is_start)[1:], k * n)
    end_of_run = run_ends[is_start.ravel().cumsum() - 1].reshape(k, n) - (np.arange(k) * n)[:, None]

    cuts = -(-np.arange(1, n_bins + 1) * n_known // n_bins)
    cuts = np.where(n_known > 0, np.take_along_axis(end_of_run, np.maximum(cuts - 1, 0), axis=1), 0)
    flat_cuts = (cuts + (np.arange(k) * (n + 1))[:, None]).ravel()
    # An entry's bin is the number of cuts at or before it; entries left out come after all of them.
    indices = np.bincount(flat_cuts, minlength=k * (n + 1)).reshape(k, n + 1).cumsum(axis=1)[:, :n]
    return _bin_sums(indices, ordered, np.take_along_axis(labels.T, order, axis=1), n_bins)


def expected_calibration_error(bins: BinSums) -> NDArray[np.float64]:
    """Return the calibration error of every column, in [0, 1]; smaller is better.

    ECE = sum_b (n_b / n) |mean label - mean probability| (Guo et al. 2017, section 2). With equal-mass bins
    it is the adaptive ECE (Nixon et al. 2019, here for one class).

    Args:
        bins: sums of k columns.

    Returns:
        float64 (k,); NaN where a column has no entry.

    Example:
        >>> p = np.array([[1.0], [1.0], [1.0], [1.0], [0.0]])
        >>> y = np.array([[0], [0], [1], [1], [1]], dtype=np.int8)
        >>> expected_calibration_error(equal_width_bins(p, y, 2))
        array([0.6])
    """
    n = bins.n.sum(axis=1)
    gaps = np.abs(bins.sum_p - bins.sum_y).sum(axis=1)
    return np.asarray(np.divide(gaps, n, out=np.full(len(n), np.nan), where=n > 0))


def debiased_calibration_error(bins: BinSums) -> NDArray[np.float64]:
    """Return the debiased root squared calibration error of every column, in [0, 1]; smaller is better.

    sqrt(max(0, sum_b (n_b / n) [(mean label - mean probability)^2 - v_b])) with
    v_b = y_b (1 - y_b) / (n_b - 1) and y_b the mean label of bin b: the plug-in squared gap less the
    estimated variance of y_b (Kumar et al. 2019, section 5; the same correction of the reliability term in
    Ferro and Fricker 2012, doi:10.1002/qj.1924). A bin of one entry has no variance estimate and counts 0.
    The root brings it to the scale of the ECE, and a negative sum, which the correction allows near perfect
    calibration, is 0.

    Args:
        bins: sums of k columns.

    Returns:
        float64 (k,); NaN where a column has no entry.
    """
    n = bins.n.sum(axis=1)
    share = np.divide(bins.n, n[:, None], out=np.zeros(bins.n.shape), where=bins.n >= 2)
    filled = np.maximum(bins.n, 1)
    mean_y = bins.sum_y / filled
    gap = mean_y - bins.sum_p / filled
    variance = mean_y * (1.0 - mean_y) / np.maximum(bins.n - 1, 1)
    squared = (share * (gap**2 - variance)).sum(axis=1)
    return np.where(n > 0, np.sqrt(np.maximum(squared, 0.0)), np.nan)


def brier_scores(probabilities: NDArray[np.float64], labels: NDArray[np.int8]) -> NDArray[np.float64]:
    """Return the Brier score of every column, in [0, 1]; smaller is better.

    The mean of (p - y)^2 over the known entries of the column (Brier 1950, one class of his sum).

    Args:
        probabilities: float64 (n, k); NaN is left out.
        labels: int8 (n, k); -1 is left out.

    Returns:
        float64 (k,); NaN where a column has no entry.
    """
    is_known = (labels >= 0) & ~np.isnan(probabilities)
    return column_means((probabilities - labels) ** 2, is_known)


def logistic_losses(logits: NDArray[np.floating], labels: NDArray[np.int8]) -> NDArray[np.float64]:
    """Return the negative log-likelihood of every multi-label column in nats, from 0 up; smaller is better.

    The mean of log(1 + exp(-z)) over positives and log(1 + exp(z)) over negatives, from the logits, hence
    finite and exact where the probability rounds to 0 or 1.

    Args:
        logits: (n, k); a column of NaN was not fitted.
        labels: int8 (n, k); -1 is left out.

    Returns:
        float64 (k,); NaN where a column has no entry.
    """
    logits = np.asarray(logits, dtype=np.float64)
    is_known = (labels >= 0) & ~np.isnan(logits)
    against = np.where(labels == 1, -logits, logits)
    return column_means(np.maximum(against, 0.0) + np.log1p(np.exp(-np.abs(against))), is_known)


def softmax_loss(logits: NDArray[np.floating], truth: NDArray[np.intp]) -> float | None:
    """Return the mean negative log-likelihood of a softmax in nats, from 0 up; smaller is better.

    Args:
        logits: (n, k); a column of NaN was not fitted and has no probability.
        truth: (n,) true classes.

    Returns:
        The loss, or None without images, with fewer than two fitted classes, or where the true class of an
        image was not fitted: its likelihood would be 0 and the loss infinite.
    """
    logits = np.asarray(logits, dtype=np.float64)
    fitted = fitted_columns(logits)
    if len(truth) == 0 or fitted.sum() < 2 or not fitted[truth].all():
        return None
    log_p = log_softmax(np.where(fitted, logits, -np.inf), axis=1)
    return -float(np.take_along_axis(log_p, truth[:, None], axis=1).mean())


def column_means(values: NDArray[np.float64], is_counted: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the mean of the counted entries of every column (n, k); NaN where there are none."""
    n = is_counted.sum(axis=0)
    total = np.where(is_counted, values, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, n, out=np.full(values.shape[1], np.nan), where=n > 0))


def ece_floor(
    probabilities: NDArray[np.float64],
    task: Task,
    n_bins: int,
    generator: np.random.Generator,
    n_draws: int = 200,
) -> tuple[float | None, float | None]:
    """Return mean and 95th percentile of the ECE of a perfectly calibrated model, in [0, 1].

    Labels are drawn from the stated probabilities (top-label: whether the prediction is right, from its
    confidence), and the ECE is taken against them: the consistency resampling of Broecker and Smith (2007),
    doi:10.1175/WAF993.1. What remains is the upward bias of the ECE at this n.

    Args:
        probabilities: float64 (n, k) in [0, 1]; multi-label: NaN where the label is unknown or not fitted, so
            that the floor rests on the same entries as the ECE.
        task: decides between top-label and macro mean, as for the ECE.
        n_bins: number of equal-width bins.
        generator: keyed generator of this record.
        n_draws: number of drawn label sets.

    Returns:
        (mean, 95th percentile), or (None, None) where the ECE is undefined too.
    """
    columns = probabilities
    if task != "multi_label" and len(probabilities):
        columns = probabilities.max(axis=1, keepdims=True)
    per_column = [
        _drawn_errors(column[~np.isnan(column)], n_bins, generator, n_draws)
        for column in columns.T
        if not np.isnan(column).all()
    ]
    if not per_column:
        return None, None
    drawn = np.mean(per_column, axis=0)
    return float(drawn.mean()), float(np.quantile(drawn, 0.95))


def _drawn_errors(
    p: NDArray[np.float64], n_bins: int, generator: np.random.Generator, n_draws: int
) -> NDArray[np.float64]:
    """Return the ECE of ``n_draws`` label sets drawn from the probabilities ``p`` (n,), n > 0."""
    indices = bin_indices(p[:, None], np.zeros((len(p), 1), dtype=np.int8), n_bins)[:, 0]
    order = indices.argsort(kind="stable")
    starts = np.flatnonzero(np.diff(indices[order], prepend=-1))
    ordered = p[order]
    # Images as rows: summing a bin adds contiguous rows, many times faster than sums along short rows.
    drawn = generator.random((len(p), n_draws), dtype=np.float32) < ordered[:, None].astype(np.float32)
    sum_y = np.add.reduceat(drawn.view(np.int8), starts, axis=0, dtype=np.int32)
    sum_p = np.add.reduceat(ordered, starts)
    errors: NDArray[np.float64] = np.abs(sum_y - sum_p[:, None]).sum(axis=0) / len(p)
    return errors
