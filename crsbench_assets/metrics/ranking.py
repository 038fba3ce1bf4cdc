"""Discrimination: how well scores rank positives above negatives.

What lives here: the scores that are ranked, the AUROC of sorted columns, and the placement values from which its
influence function is made.
What stays out: the sort (``columns``), macro means and reasons (``compute``), resampling (``replicates``).
Source: Hanley and McNeil (1982), Radiology 143, 29-36, doi:10.1148/radiology.143.1.7063747; DeLong, DeLong
and Clarke-Pearson (1988), Biometrics 44, 837-845, doi:10.2307/2531595; protocol page, section 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crsbench_assets.metrics.calibration import class_probabilities, fitted_columns
from crsbench_assets.metrics.columns import RankedColumn

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task


def ranking_scores(logits: NDArray[np.floating], task: Task) -> NDArray[np.floating]:
    """Return the scores whose order the AUROC judges.

    Multi-label: the logits, which do not saturate. Two classes: the logit difference, so that both classes
    have the same AUROC. More classes: the softmax probabilities.

    Args:
        logits: (n, k); a column of NaN was not fitted.
        task: decides which scores are taken.

    Returns:
        (n, k), float64 unless they are the logits themselves; NaN in columns that were not fitted.

    Raises:
        ValueError: where ``logits`` are infinite or partly NaN.
    """
    if task == "multi_label":
        fitted_columns(logits)
        return logits
    probabilities = class_probabilities(logits, task)
    if logits.shape[1] == 2:
        exact = np.asarray(logits, dtype=np.float64)
        return exact - exact[:, ::-1]
    return np.where(np.isnan(logits), np.nan, probabilities)


def auroc(column: RankedColumn) -> float:
    """Return the area under the ROC curve, in [0, 1]; larger is better, 0.5 is chance.

    AUROC = P(S+ > S-) + 1/2 P(S+ = S-), the Mann-Whitney statistic over n_pos n_neg (Hanley and McNeil 1982),
    in exact integer arithmetic up to the last division.

    Args:
        column: scores of any finite range.

    Returns:
        The area; NaN where the column has no positive or no negative, hence where it was not fitted.

    Example:
        >>> from crsbench_assets.metrics.columns import rank_columns
        >>> (column,) = rank_columns(np.array([[-1.0], [0.0], [1.0]]), np.array([[1], [0], [1]], dtype=np.int8))
        >>> auroc(column)
        0.5
    """
    n_positive, n_negative = column.n_positive, column.n_negative
    if n_positive == 0 or n_negative == 0:
        return np.nan
    # A positive's place less the positives before it counts the negatives before it, tied ones in full.
    twice_u = 2 * int(column.positives.sum()) - n_positive * (n_positive - 1) - _tied_pairs(column)
    return twice_u / (2 * n_positive * n_negative)


def _tied_pairs(column: RankedColumn) -> int:
    """Return the number of pairs of a positive and a negative with equal scores."""
    scores, is_positive = column.scores, column.is_positive
    last_negatives = np.flatnonzero((scores[1:] == scores[:-1]) & (is_positive[1:] > is_positive[:-1]))
    tied = scores[last_negatives]
    n_negative = last_negatives + 1 - scores.searchsorted(tied)
    n_positive = scores.searchsorted(tied, side="right") - 1 - last_negatives
    return int((n_negative * n_positive).sum())


def placement_values(column: RankedColumn) -> NDArray[np.float64]:
    """Return for every entry the share of the other kind that it is placed rightly against, in [0, 1].

    For a positive: the fraction of negatives below it, ties 1/2; for a negative: the fraction of positives
    above it, ties 1/2 (DeLong et al. 1988, the structural components V10 and V01). Their mean over positives
    and their mean over negatives both equal the AUROC, which makes them its influence function.

    Args:
        column: m entries.

    Returns:
        float64 (m,), in the order of the column; all NaN where it has no positive or no negative.
    """
    m = len(column.scores)
    n_positive, n_negative = column.n_positive, column.n_negative
    if n_positive == 0 or n_negative == 0:
        return np.full(m, np.nan)
    is_start = np.ones(m, dtype=np.bool_)
    np.not_equal(column.scores[1:], column.scores[:-1], out=is_start[1:])
    bounds = np.append(np.flatnonzero(is_start), m)
    positives_before = np.append(0, column.is_positive.cumsum())[bounds]
    negatives_before = bounds - positives_before
    # Of a run of ties: twice the others below it plus those tied with it, twice the others above plus tied.
    of_positive = (negatives_before[:-1] + negatives_before[1:]) / (2 * n_negative)
    of_negative = (2 * n_positive - positives_before[:-1] - positives_before[1:]) / (2 * n_positive)
    run = is_start.cumsum() - 1
    return np.asarray(np.where(column.is_positive, of_positive[run], of_negative[run]))
