"""Discrimination: how well scores rank positives above negatives.

What lives here: the scores that are ranked, the AUROC of every column at once, and the placement values from
which its influence function is made.
What stays out: macro means and reasons (``compute``), resampling (``replicates``).
Source: Hanley and McNeil (1982), Radiology 143, 29-36, doi:10.1148/radiology.143.1.7063747; DeLong, DeLong
and Clarke-Pearson (1988), Biometrics 44, 837-845, doi:10.2307/2531595; protocol page, section 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task


def ranking_scores(logits: NDArray[np.floating], probabilities: NDArray[np.float64], task: Task) -> NDArray[np.float64]:
    """Return the scores whose order the AUROC judges.

    Multi-label: the logits, which do not saturate. Two classes: the logit difference, so that both classes
    have the same AUROC. More classes: the softmax probabilities.

    Args:
        logits: (n, k); a column of NaN was not fitted.
        probabilities: (n, k), those of ``logits``.
        task: decides which scores are taken.

    Returns:
        float64 (n, k); NaN in columns that were not fitted.
    """
    exact = np.asarray(logits, dtype=np.float64)
    if task == "multi_label":
        return exact
    if exact.shape[1] == 2:
        return exact - exact[:, ::-1]
    return np.where(np.isnan(exact), np.nan, probabilities)


def tie_run_starts(ordered: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return True where an entry of a sorted row differs from the one before it; NaN differs from NaN.

    Args:
        ordered: (k, n), each row ascending.
    """
    starts = np.ones(ordered.shape, dtype=np.bool_)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=starts[:, 1:])
    return starts


class RankedColumns:
    """The columns of a score matrix, each sorted once, with its runs of tied scores.

    Entries whose score is NaN or whose label is unknown stand at the end of their row and count as neither
    positive nor negative. All counts are integers, so nothing here depends on the order of the images.
    """

    def __init__(self, scores: NDArray[np.float64], labels: NDArray[np.int8]) -> None:
        """Sort the columns of ``scores`` (n, k) and carry ``labels`` (n, k) along; n must not be 0."""
        by_column = np.where(labels >= 0, scores, np.nan).T.copy()
        self.order = by_column.argsort(axis=1)
        ordered = np.take_along_axis(by_column, self.order, axis=1)
        is_known = ~np.isnan(ordered)
        is_one = np.take_along_axis(np.asarray(labels).T == 1, self.order, axis=1)
        self.is_positive = is_one & is_known
        self.is_negative = is_known & ~is_one
        self.n_positive = self.is_positive.sum(axis=1)
        self.n_negative = self.is_negative.sum(axis=1)
        self.is_start = tie_run_starts(ordered)

    def run_counts(self, is_counted: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many entries count in the lower runs of its row and in the run itself, run by run."""
        counted = is_counted.astype(np.int64)
        flat_starts = np.flatnonzero(self.is_start)
        below = (counted.cumsum(axis=1) - counted).ravel()[flat_starts]
        return below, np.add.reduceat(counted.ravel(), flat_starts)


def auroc(scores: NDArray[np.float64], labels: NDArray[np.int8]) -> NDArray[np.float64]:
    """Return the area under the ROC curve of every column, in [0, 1]; larger is better, 0.5 is chance.

    AUROC = P(S+ > S-) + 1/2 P(S+ = S-), the Mann-Whitney statistic over n_pos n_neg (Hanley and McNeil 1982),
    in exact integer arithmetic up to the last division.

    Args:
        scores: float64 (n, k), any finite range; a column of NaN was not fitted.
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown (left out).

    Returns:
        float64 (k,); NaN where a column has no scores, no positive or no negative.

    Example:
        >>> auroc(np.array([[-1.0], [0.0], [1.0]]), np.array([[1], [0], [1]], dtype=np.int8))
        array([0.5])
    """
    n, k = scores.shape
    if n == 0 or k == 0:
        return np.full(k, np.nan)
    ranked = RankedColumns(scores, labels)
    negative_below, negative_tied = ranked.run_counts(ranked.is_negative)
    flat_starts = np.flatnonzero(ranked.is_start)
    positive = np.add.reduceat(ranked.is_positive.astype(np.int64).ravel(), flat_starts)
    first_run = np.searchsorted(flat_starts, np.arange(k) * n)
    twice_u = np.add.reduceat(positive * (2 * negative_below + negative_tied), first_run)
    pairs = 2 * ranked.n_positive * ranked.n_negative
    return np.asarray(np.divide(twice_u, pairs, out=np.full(k, np.nan), where=pairs > 0))


def placement_values(scores: NDArray[np.float64], labels: NDArray[np.int8]) -> NDArray[np.float64]:
    """Return for every entry the share of the other kind that it is placed rightly against, in [0, 1].

    For a positive: the fraction of negatives below it, ties 1/2; for a negative: the fraction of positives
    above it, ties 1/2 (DeLong et al. 1988, the structural components V10 and V01). Their mean over positives
    and their mean over negatives both equal the AUROC, which makes them its influence function.

    Args:
        scores: float64 (n, k); a column of NaN was not fitted.
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown.

    Returns:
        float64 (n, k); NaN where the entry is left out or its column has no AUROC.
    """
    n, k = scores.shape
    values = np.full((k, n), np.nan)
    if n == 0 or k == 0:
        return values.T
    ranked = RankedColumns(scores, labels)
    negative_below, negative_tied = ranked.run_counts(ranked.is_negative)
    positive_below, positive_tied = ranked.run_counts(ranked.is_positive)
    run = (ranked.is_start.ravel().cumsum() - 1).reshape(k, n)
    n_positive, n_negative = ranked.n_positive[:, None], ranked.n_negative[:, None]
    of_positive = (2 * negative_below + negative_tied)[run]
    of_negative = 2 * n_positive - (2 * positive_below + positive_tied)[run]
    twice_rightly = np.where(ranked.is_positive, of_positive, of_negative)
    others = np.where(ranked.is_positive, n_negative, n_positive)
    is_defined = (ranked.is_positive | ranked.is_negative) & (n_positive > 0) & (n_negative > 0)
    placed = np.divide(twice_rightly, 2 * others, out=np.full((k, n), np.nan), where=is_defined)
    np.put_along_axis(values, ranked.order, placed, axis=1)
    return values.T
