"""Folds inside a label subset, and the choice of a setting by what they hold out.

What lives here: keyed, stratified, grouped folds; the held-out loss; the scan over an ordered grid. What stays out:
the models that are fitted on the folds (one module per estimator) and the splits of a dataset (``data.splits``), of
which validation and test never come here: the choice spends labels of the budget only.

Source: Stone 1974, Cross-Validatory Choice and Assessment of Statistical Predictions,
doi:10.1111/j.2517-6161.1974.tb00994.x; Kohavi 1995, A Study of Cross-Validation and Bootstrap for Accuracy Estimation
and Model Selection (stratification); protocol page, section 4. Groups, the number of folds of small subsets and the
end of the scan are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, log_softmax

from crsbench_assets.config.randomness import keyed_ranks

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task

N_FOLDS = 5

PATIENCE = 2
"""A scan ends after this many settings in a row that are no better: what follows costs most and fits noise."""


def fold_numbers(
    labels: NDArray[np.int8], groups: NDArray[np.int64], task: Task, names: tuple[object, ...]
) -> NDArray[np.int64] | None:
    """Return the fold of every image, int64 (n,) from 0, or None where the subset is too small for two folds.

    Groups are dealt to the folds in turn, stratum by stratum (stratum: the label that the group holds and the fewest
    groups hold; groups without a positive form one of their own), within a stratum in keyed order. The order of the
    rows plays no part, and a group is in one fold.

    There are five folds, or as many as groups hold the second most frequent class, so that images that are their own
    groups give every fold two classes (a group of several classes may leave a fold with one); for multi-label as many
    as the best balanced label has groups of its rarer value.

    Args:
        labels: int8 (n, k).
        groups: (n,) group of every image.
        task: kind of the labels.
        names: key of the order.

    Example:
        >>> labels = np.eye(2, dtype=np.int8)[[0, 0, 0, 1, 1]]
        >>> sorted(fold_numbers(labels, np.arange(5), "single_label", ("doc",)).tolist())
        [0, 0, 0, 1, 1]
    """
    ids, group_of = np.unique(groups, return_inverse=True)
    holds_positive, holds_negative = (_holds(labels == value, group_of, len(ids)) for value in (1, 0))
    n_positive, n_negative = holds_positive.sum(axis=0), holds_negative.sum(axis=0)
    usable = np.minimum(n_positive, n_negative).max() if task == "multi_label" else np.sort(n_positive)[-2]
    n_folds = min(N_FOLDS, int(usable))
    if n_folds < 2:
        return None
    rarest_first = np.argsort(n_positive, kind="stable")
    found = holds_positive[:, rarest_first]
    stratum = np.where(found.any(axis=1), found.argmax(axis=1), labels.shape[1])
    order = np.lexsort((keyed_ranks([str(i) for i in ids], "folds", *names), stratum))
    fold = np.empty(len(ids), dtype=np.int64)
    fold[order] = np.arange(len(ids)) % n_folds
    return np.asarray(fold[group_of])


def held_out_loss(logits: NDArray[np.float64], labels: NDArray[np.int8], task: Task) -> float:
    """Return the mean negative log-likelihood in nats, from 0 up; smaller is better.

    Single-label: mean over images; multi-label: mean over labels of the mean over known entries, as the metric
    ``nll``. An entry whose class or label was not fitted where it was held out (NaN) is left out; which ones these
    are depends on the labels alone, so every setting is judged by the same entries.

    Args:
        logits: float64 (n, k), NaN where not fitted.
        labels: int8 (n, k).
        task: kind of the labels.

    Returns:
        The loss, infinite where no entry is left.
    """
    if task == "multi_label":
        is_known = (labels >= 0) & ~np.isnan(logits)
        entries = np.where(is_known, -log_expit(np.where(labels == 1, logits, -logits)), 0.0)
        n_known = is_known.sum(axis=0)
        losses = entries.sum(axis=0)[n_known > 0] / n_known[n_known > 0]
    else:
        truth = labels.argmax(axis=1)[:, None]
        is_counted = ~np.isnan(np.take_along_axis(logits, truth, axis=1)[:, 0])
        counted = logits[is_counted]
        log_p = log_softmax(np.where(np.isnan(counted), -np.inf, counted), axis=1)
        losses = -np.take_along_axis(log_p, truth[is_counted], axis=1)
    return float(losses.mean()) if losses.size else float("inf")


def chosen_setting(settings: Iterable[float], loss_of: Callable[[float], float]) -> tuple[float, float]:
    """Return the setting of the smallest loss and that loss; ties go to the earlier setting.

    Args:
        settings: from the least flexible to the most, at least one; the scan ends after :data:`PATIENCE` settings in
            a row without a smaller loss.
        loss_of: held-out loss of a setting; it is asked in order.

    Example:
        >>> chosen_setting([1.0, 2.0, 3.0, 4.0, 5.0], lambda c: abs(c - 2.0))
        (2.0, 0.0)
    """
    best: tuple[float, float] | None = None
    n_worse = 0
    for setting in settings:
        loss = loss_of(setting)
        if best is None or loss < best[1]:
            best, n_worse = (setting, loss), 0
        else:
            n_worse += 1
            if n_worse == PATIENCE:
                break
    if best is None:
        raise ValueError("no setting to choose from")
    return best


def _holds(entries: NDArray[np.bool_], group_of: NDArray[np.int64], n_groups: int) -> NDArray[np.bool_]:
    """Return which groups hold an entry of each column, bool (groups, k)."""
    holds = np.zeros((n_groups, entries.shape[1]), dtype=np.bool_)
    images, columns = np.nonzero(entries)
    holds[group_of[images], columns] = True
    return holds
