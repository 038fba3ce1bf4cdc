"""Calibration: whether probabilities mean what they say.

What lives here: probabilities from logits, binned sums and the calibration errors made of them, proper
scoring rules, and the error that a perfectly calibrated model would show (the floor).
What stays out: the sort that bins and sums rest on (``columns``), macro means and reasons (``compute``), resampling
(``replicates``), repair of probabilities (``probes.calibrate``).
Source: Guo et al. (2017), ICML, arXiv 1706.04599 (ECE); Nixon et al. (2019), CVPR workshops, arXiv 1904.01685
(equal-mass bins); Kull et al. (2019), NeurIPS, arXiv 1910.12656 (classwise ECE); Kumar, Liang and Ma (2019),
NeurIPS, arXiv 1909.10155 (debiased error); Brier (1950); protocol page, section 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task
    from crsbench_assets.metrics.columns import RankedColumn

EDGE_TOLERANCE = 2.0**-25
"""How far above a bin edge a probability still counts as lying on it. Storing logits as float32 moves a
probability p by up to p (1 - p) (|log p| + |log (1 - p)|) 2^-24 <= 2.1e-8; without the tolerance, half of the
probabilities that are k/15 would leave bin k by being stored."""


def fitted_columns(logits: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which columns of ``logits`` (n, k) were fitted: all of a column is NaN, or none is.

    Raises:
        ValueError: where a column is NaN in part or infinite somewhere; such logits are damaged.
    """
    if np.isfinite(np.vdot(logits, logits)):  # a sum of squares: many times as fast as what follows
        return np.ones(logits.shape[1], dtype=np.bool_)
    fitted: NDArray[np.bool_] = np.isfinite(logits).all(axis=0)
    is_bad = np.zeros_like(fitted)
    is_bad[~fitted] = ~np.isnan(logits[:, ~fitted]).all(axis=0)
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
        return logistic(logits)
    if len(logits) == 0:
        return np.empty(logits.shape)
    if fitted.sum() < 2:
        return np.full(logits.shape, np.nan)
    return np.asarray(softmax(np.where(fitted, logits, -np.inf), axis=1))


def logistic(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return 1 / (1 + exp(-z)), in float64 and in [0, 1]; NaN stays NaN.

    NumPy's exponential runs on vector registers and makes this several times as fast as ``scipy.special.expit``, from
    which it differs in the last bits only.
    """
    result: NDArray[np.float64] = np.negative(logits).astype(np.float64)
    with np.errstate(over="ignore"):  # exp(-z) is infinite below z = -709: the quotient is 0, as it should be
        np.exp(result, out=result)
    result += 1.0
    np.reciprocal(result, out=result)
    return result


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
    """Sums over the bins of a column of probabilities; every array has shape (n_bins,).

    ``n``: entries in the bin (int64); ``sum_p``: sum of their probabilities; ``sum_y``: how many are positive (int64).
    """

    n: NDArray[np.int64]
    sum_p: NDArray[np.float64]
    sum_y: NDArray[np.int64]


def bin_edges(n_bins: int) -> NDArray[np.float64]:
    """Return the n_bins + 1 edges b / n_bins of equal-width bins."""
    return np.arange(n_bins + 1) / n_bins


@lru_cache(maxsize=8)
def _inner_edges(n_bins: int) -> NDArray[np.float64]:
    return bin_edges(n_bins)[1:-1] + EDGE_TOLERANCE


def equal_width_cuts(column: RankedColumn, n_bins: int) -> NDArray[np.int64]:
    """Return where the equal-width bins of a sorted column begin and end.

    Bin b is (b / n_bins, (b + 1) / n_bins], and 0 falls in the first. A probability within
    :data:`EDGE_TOLERANCE` above an edge lies on it.

    Args:
        column: m probabilities.
        n_bins: number of bins.

    Returns:
        int64 (n_bins + 1,) from 0 to m: bin b holds the entries from cut b to before cut b + 1.

    Raises:
        ValueError: where a probability is outside [0, 1].
    """
    p = column.scores
    if len(p) and not (p[0] >= 0.0 and p[-1] <= 1.0):
        raise ValueError("found probabilities outside [0, 1]; pass probabilities, not logits.")
    cuts = np.empty(n_bins + 1, dtype=np.int64)
    cuts[0], cuts[-1] = 0, len(p)
    cuts[1:-1] = p.searchsorted(_inner_edges(n_bins), side="right")
    return cuts


def equal_mass_cuts(column: RankedColumn, n_bins: int) -> NDArray[np.int64]:
    """Return where the equal-mass bins of a sorted column begin and end, with tied probabilities kept together.

    Cut b lies at the empirical quantile x_(ceil(m b / n_bins)) and bins are closed on the right, which is to
    move each cut to the end of its run of ties (quantile of type 1 in Hyndman and Fan 1996,
    doi:10.2307/2684934). So the bins depend neither on the order of the images nor on their duplication. Bins
    swallowed by ties are empty.

    Args:
        column: m probabilities.
        n_bins: number of bins.

    Returns:
        int64 (n_bins + 1,), as of :func:`equal_width_cuts`.
    """
    p = column.scores
    if len(p) == 0:
        return np.zeros(n_bins + 1, dtype=np.int64)
    quantiles = p[-(-np.arange(1, n_bins + 1) * len(p) // n_bins) - 1]
    return np.append(0, p.searchsorted(quantiles, side="right"))


def equal_width_bins(column: RankedColumn, n_bins: int) -> BinSums:
    """Return the sums over the bins of :func:`equal_width_cuts`.

    Args:
        column: probabilities.
        n_bins: number of bins.

    Raises:
        ValueError: where a probability is outside [0, 1].
    """
    return _bin_sums(column, equal_width_cuts(column, n_bins))


def equal_mass_bins(column: RankedColumn, n_bins: int) -> BinSums:
    """Return the sums over the bins of :func:`equal_mass_cuts`.

    Args:
        column: probabilities.
        n_bins: number of bins.
    """
    return _bin_sums(column, equal_mass_cuts(column, n_bins))


def _bin_sums(column: RankedColumn, cuts: NDArray[np.int64]) -> BinSums:
    n = cuts[1:] - cuts[:-1]
    is_filled = n > 0
    sum_p = np.zeros(len(n))
    if len(column.scores):
        sum_p[is_filled] = np.add.reduceat(column.scores, cuts[:-1][is_filled])
    positives = column.positives.searchsorted(cuts)
    return BinSums(n=n, sum_p=sum_p, sum_y=positives[1:] - positives[:-1])


def expected_calibration_error(bins: BinSums) -> float:
    """Return the calibration error, in [0, 1]; smaller is better.

    ECE = sum_b (n_b / n) |mean label - mean probability| (Guo et al. 2017, section 2). With equal-mass bins
    it is the adaptive ECE (Nixon et al. 2019, here for one class).

    Args:
        bins: sums of a column.

    Returns:
        The error; NaN where the column has no entry.

    Example:
        >>> from crsbench_assets.metrics.columns import rank_columns
        >>> p = np.array([[1.0], [1.0], [1.0], [1.0], [0.0]])
        >>> (column,) = rank_columns(p, np.array([[0], [0], [1], [1], [1]], dtype=np.int8))
        >>> expected_calibration_error(equal_width_bins(column, 2))
        0.6
    """
    n = int(bins.n.sum())
    return float(np.abs(bins.sum_p - bins.sum_y).sum()) / n if n else np.nan


def debiased_calibration_error(bins: BinSums) -> float:
    """Return the debiased root squared calibration error, in [0, 1]; smaller is better.

    sqrt(max(0, sum_b (n_b / n) [(mean label - mean probability)^2 - v_b])) with
    v_b = y_b (1 - y_b) / (n_b - 1) and y_b the mean label of bin b: the plug-in squared gap less the
    estimated variance of y_b (Kumar et al. 2019, section 5; the same correction of the reliability term in
    Ferro and Fricker 2012, doi:10.1002/qj.1924). A bin of one entry has no variance estimate and counts 0.
    The root brings it to the scale of the ECE, and a negative sum, which the correction allows near perfect
    calibration, is 0.

    Args:
        bins: sums of a column.

    Returns:
        The error; NaN where the column has no entry.
    """
    n = int(bins.n.sum())
    if n == 0:
        return np.nan
    is_counted = bins.n >= 2
    in_bin = bins.n[is_counted]
    mean_y = bins.sum_y[is_counted] / in_bin
    gap = mean_y - bins.sum_p[is_counted] / in_bin
    variance = mean_y * (1.0 - mean_y) / (in_bin - 1)
    squared = float((in_bin / n * (gap**2 - variance)).sum())
    return math.sqrt(max(squared, 0.0))


def brier_score(column: RankedColumn) -> float:
    """Return the Brier score, in [0, 1]; smaller is better.

    The mean of (p - y)^2 over the entries of the column (Brier 1950, one class of his sum).

    Args:
        column: probabilities.

    Returns:
        The score; NaN where the column has no entry.
    """
    if len(column.scores) == 0:
        return np.nan
    gaps = column.is_positive.astype(np.float64)  # once: a conversion within the subtraction goes by small buffers
    np.subtract(column.scores, gaps, out=gaps)
    return float(np.square(gaps, out=gaps).mean())


def logistic_loss(column: RankedColumn) -> float:
    """Return the negative log-likelihood of a multi-label column in nats, from 0 up; smaller is better.

    The mean of log(1 + exp(-z)) over positives and log(1 + exp(z)) over negatives, from the logits, hence
    finite and exact where the probability rounds to 0 or 1.

    Args:
        column: logits.

    Returns:
        The loss; NaN where the column has no entry.
    """
    if len(column.scores) == 0:
        return np.nan
    loss = np.abs(column.scores, dtype=np.float64)
    np.negative(loss, out=loss)
    np.exp(loss, out=loss)
    np.log1p(loss, out=loss)
    against = np.maximum(column.scores, 0.0)  # z or 0, and for positives 0 or -z: no rounding in either
    against[column.positives] -= column.scores[column.positives]
    loss += against
    return float(loss.mean())


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
    indices = (bin_edges(n_bins)[1:] + EDGE_TOLERANCE).searchsorted(p)
    order = indices.argsort(kind="stable")
    starts = np.flatnonzero(np.diff(indices[order], prepend=-1))
    ordered = p[order]
    # Images as rows: summing a bin adds contiguous rows, many times faster than sums along short rows.
    drawn = generator.random((len(p), n_draws), dtype=np.float32) < ordered[:, None].astype(np.float32)
    sum_y = np.add.reduceat(drawn.view(np.int8), starts, axis=0, dtype=np.int32)
    sum_p = np.add.reduceat(ordered, starts)
    errors: NDArray[np.float64] = np.abs(sum_y - sum_p[:, None]).sum(axis=0) / len(p)
    return errors
