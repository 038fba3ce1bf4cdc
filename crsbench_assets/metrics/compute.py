"""All metrics of one run record, from its logits and labels.

What lives here: the assembly of a record and of its labels, reasons for what is undefined, and reliability bins
as rows.
What stays out: the sort (``columns``), the single metrics (``ranking``, ``calibration``, ``ordinal``), intervals
(``replicates``), and the macro means that two records may be compared by (``aggregates.axes``).
Source: protocol page, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crsbench_assets.metrics.calibration import (
    BinSums,
    bin_edges,
    brier_score,
    class_probabilities,
    debiased_calibration_error,
    equal_mass_bins,
    equal_width_bins,
    expected_calibration_error,
    logistic,
    logistic_loss,
    softmax_loss,
    top_label,
)
from crsbench_assets.metrics.columns import RankedColumn, rank_columns
from crsbench_assets.metrics.ordinal import ordinal_mean_absolute_error, quadratic_weighted_kappa
from crsbench_assets.metrics.ranking import auroc, ranking_scores
from crsbench_assets.metrics.specs import UndefinedReason

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task


@dataclass(frozen=True, slots=True)
class LabelMetrics:
    """Metrics of one class (against the rest) or label; None where undefined, with the reason beside it.

    ``index``: column of the logits. ``n_pos``, ``n_neg``: known entries. ``n_groups_pos``: groups holding a
    positive.
    """

    index: int
    auroc: float | None
    auroc_reason: UndefinedReason | None
    ece: float | None
    brier: float | None
    calibration_reason: UndefinedReason | None
    n_pos: int
    n_neg: int
    n_groups_pos: int


@dataclass(frozen=True, slots=True)
class RecordMetrics:
    """Metrics of one run record, None where undefined.

    Named as in :data:`crsbench_assets.tables.results.METRICS`. ``n``: images. ``n_defined_auroc``,
    ``n_defined_calibration``: labels behind the macro means. ``reason``: why ``macro_auroc``, or else ``ece`` or
    ``nll``, is undefined, by the first label; the other labels' reasons stand with them. It is None where only
    ``qwk`` and ``ordinal_mae`` are, which other than ordinal tasks do not have.
    """

    n: int
    macro_auroc: float | None
    ece: float | None
    adaptive_ece: float | None
    classwise_ece: float | None
    ece_debiased: float | None
    brier: float | None
    nll: float | None
    accuracy: float | None
    balanced_accuracy: float | None
    qwk: float | None
    ordinal_mae: float | None
    n_defined_auroc: int
    n_defined_calibration: int
    reason: UndefinedReason | None
    labels: tuple[LabelMetrics, ...]


class ReliabilityBin(NamedTuple):
    """One non-empty bin (``bin_low``, ``bin_high``]; ``class_index`` is None for top-label confidence."""

    class_index: int | None
    bin_index: int
    bin_low: float
    bin_high: float
    n: int
    mean_confidence: float
    mean_label: float


class _LabelOutcome(NamedTuple):
    """What one label contributes to a multi-label record; NaN where undefined.

    ``recall``: mean recall of its two values. ``n_right``, ``n``: right and all entries.
    """

    auroc: float
    ece: float
    brier: float
    adaptive_ece: float
    ece_debiased: float
    nll: float
    recall: float
    n_right: int
    n: int


class _Outcome(NamedTuple):
    """The part of a record that depends on the task; NaN or None where undefined."""

    ece: float = np.nan
    adaptive_ece: float = np.nan
    ece_debiased: float = np.nan
    brier: float = np.nan
    nll: float = np.nan
    accuracy: float = np.nan
    balanced_accuracy: float = np.nan
    qwk: float | None = None
    ordinal_mae: float | None = None


def record_metrics(
    logits: NDArray[np.floating],
    labels: NDArray[np.int8],
    task: Task,
    *,
    groups: NDArray[np.integer],
    n_bins: int,
) -> RecordMetrics:
    """Return all metrics of one run record.

    Ties of the argmax go to the lowest index. A macro mean runs over defined labels. Balanced accuracy of a
    multi-label record is the mean over labels of both values' mean recall at p >= 0.5, where both occur.

    Args:
        logits: (n, k), any float; a column of NaN was not fitted.
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown; one-hot without -1 unless multi-label.
        task: "single_label", "ordinal" or "multi_label".
        groups: (n,) group index of every image, from 0.
        n_bins: number of bins of the calibration errors.

    Returns:
        The metrics. Without images everything is None, reason ``no_images``. A test set of one class has no
        AUROC but all else. With fewer than two fitted classes a single-label record is undefined altogether.
        NLL is None where a test image's class was not fitted.

    Raises:
        ValueError: where shapes disagree, single-label rows are not one-hot, or logits are infinite or partly
        NaN.

    Example:
        >>> logits, labels = np.array([[2.0, 0.0], [0.0, 1.0]]), np.eye(2, dtype=np.int8)
        >>> record_metrics(logits, labels, "single_label", groups=np.arange(2), n_bins=15).accuracy
        1.0
    """
    _check_inputs(logits, labels, task, groups)
    n, k = logits.shape
    if n == 0:
        return _record_without_images(k)
    if task == "multi_label":
        of_labels = [_label_outcome(column, n_bins) for column in rank_columns(ranking_scores(logits, task), labels)]
        outcome = _multi_label_outcome(of_labels)
        values = [(of_label.auroc, of_label.ece, of_label.brier) for of_label in of_labels]
    else:
        probabilities = class_probabilities(logits, task)
        outcome = _single_label_outcome(logits, probabilities, labels, task, n_bins)
        # Per class, a column that was not fitted has no value, although softmax gives it probability 0.
        stated = list(rank_columns(np.where(np.isnan(logits), np.nan, probabilities), labels))
        # With three classes or more the probabilities are what is ranked, and they are sorted already.
        ranked = rank_columns(ranking_scores(logits, task), labels) if k == 2 else stated
        values = [
            (auroc(scores), expected_calibration_error(equal_width_bins(p, n_bins)), brier_score(p))
            for scores, p in zip(ranked, stated, strict=True)
        ]
    label_auroc, label_ece, label_brier = np.array(values).T
    rows = _label_rows(logits, labels, task, groups, label_auroc, label_ece, label_brier)
    macro_auroc, ece = _mean_defined(label_auroc), _defined(outcome.ece)
    reason = None
    if macro_auroc is None:
        reason = next((row.auroc_reason for row in rows if row.auroc_reason), None)
    elif ece is None or np.isnan(outcome.nll):
        reason = next((row.calibration_reason for row in rows if row.calibration_reason), None)
    return RecordMetrics(
        n=n,
        macro_auroc=macro_auroc,
        ece=ece,
        adaptive_ece=_defined(outcome.adaptive_ece),
        classwise_ece=_mean_defined(label_ece),
        ece_debiased=_defined(outcome.ece_debiased),
        brier=_defined(outcome.brier),
        nll=_defined(outcome.nll),
        accuracy=_defined(outcome.accuracy),
        balanced_accuracy=_defined(outcome.balanced_accuracy),
        qwk=outcome.qwk,
        ordinal_mae=outcome.ordinal_mae,
        n_defined_auroc=int(np.count_nonzero(~np.isnan(label_auroc))),
        n_defined_calibration=int(np.count_nonzero(~np.isnan(label_ece))),
        reason=reason,
        labels=rows,
    )


def reliability_bins(
    logits: NDArray[np.floating], labels: NDArray[np.int8], task: Task, *, n_bins: int
) -> list[ReliabilityBin]:
    """Return the non-empty bins of the reliability diagrams of a record.

    First the top-label bins (single-label and ordinal), then those of every fitted class or label, in order.
    Summing n |mean_label - mean_confidence| / total n over the bins of one ``class_index`` gives its ECE.

    Args:
        logits: (n, k); a column of NaN was not fitted.
        labels: int8 (n, k) as for :func:`record_metrics`.
        task: "single_label", "ordinal" or "multi_label".
        n_bins: number of equal-width bins.

    Returns:
        One row per non-empty bin; none without images.

    Raises:
        ValueError: as :func:`record_metrics`.
    """
    _check_inputs(logits, labels, task, np.zeros(len(logits), dtype=np.intp))
    if len(logits) == 0:
        return []
    probabilities = class_probabilities(logits, task)
    rows: list[ReliabilityBin] = []
    if task != "multi_label" and not np.isnan(probabilities).any():
        (confidence,) = rank_columns(*top_label(probabilities, labels))
        rows += _bin_rows(equal_width_bins(confidence, n_bins), None)
    stated = rank_columns(np.where(np.isnan(logits), np.nan, probabilities), labels)
    for c, column in enumerate(stated):
        rows += _bin_rows(equal_width_bins(column, n_bins), c)
    return rows


def _check_inputs(
    logits: NDArray[np.floating], labels: NDArray[np.int8], task: Task, groups: NDArray[np.integer]
) -> None:
    if logits.ndim != 2 or logits.shape != labels.shape or groups.shape != logits.shape[:1]:
        raise ValueError(
            f"found logits {logits.shape}, labels {labels.shape}, groups {groups.shape}; expected (n, k), (n, k), (n,)."
        )
    if labels.size and (labels.min() < -1 or labels.max() > 1):
        raise ValueError(f"found labels from {labels.min()} to {labels.max()}; expected 1, 0 and -1 (unknown).")
    if task != "multi_label" and not (((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all()):
        raise ValueError(f"found {task} labels that are not one-hot; expected one 1 per row and 0 elsewhere.")


def _single_label_outcome(
    logits: NDArray[np.floating],
    probabilities: NDArray[np.float64],
    labels: NDArray[np.int8],
    task: Task,
    n_bins: int,
) -> _Outcome:
    if np.isnan(probabilities).any():
        return _Outcome()
    k = labels.shape[1]
    truth, predicted = labels.argmax(axis=1), probabilities.argmax(axis=1)
    confidence, is_right = top_label(probabilities, labels)
    (column,) = rank_columns(confidence, is_right)
    bins = equal_width_bins(column, n_bins)
    nll = softmax_loss(logits, truth)
    n_true = np.bincount(truth, minlength=k)
    n_right = np.bincount(truth[truth == predicted], minlength=k)
    is_ordinal = task == "ordinal"
    return _Outcome(
        ece=expected_calibration_error(bins),
        adaptive_ece=expected_calibration_error(equal_mass_bins(column, n_bins)),
        ece_debiased=debiased_calibration_error(bins),
        brier=float(((probabilities - labels) ** 2).sum(axis=1).mean()),
        nll=np.nan if nll is None else nll,
        accuracy=float(is_right.mean()),
        balanced_accuracy=float((n_right[n_true > 0] / n_true[n_true > 0]).mean()),
        qwk=quadratic_weighted_kappa(truth, predicted, k) if is_ordinal else None,
        ordinal_mae=ordinal_mean_absolute_error(truth, predicted) if is_ordinal else None,
    )


def _label_outcome(column: RankedColumn, n_bins: int) -> _LabelOutcome:
    """Return the values of one label from its sorted logits; the probabilities are in the same order."""
    stated = column.rescored(logistic(column.scores))
    bins = equal_width_bins(stated, n_bins)
    n_predicted_negative = int(stated.scores.searchsorted(0.5))
    n_missed = int(column.positives.searchsorted(n_predicted_negative))
    n_found, n_rejected = column.n_positive - n_missed, n_predicted_negative - n_missed
    recall = np.nan
    if column.n_positive and column.n_negative:
        recall = (n_found / column.n_positive + n_rejected / column.n_negative) / 2
    return _LabelOutcome(
        auroc=auroc(column),
        ece=expected_calibration_error(bins),
        brier=brier_score(stated),
        adaptive_ece=expected_calibration_error(equal_mass_bins(stated, n_bins)),
        ece_debiased=debiased_calibration_error(bins),
        nll=logistic_loss(column),
        recall=recall,
        n_right=n_found + n_rejected,
        n=len(column.scores),
    )


def _multi_label_outcome(of_labels: Sequence[_LabelOutcome]) -> _Outcome:
    n = sum(of_label.n for of_label in of_labels)
    return _Outcome(
        ece=_mean_or_nan([of_label.ece for of_label in of_labels]),
        adaptive_ece=_mean_or_nan([of_label.adaptive_ece for of_label in of_labels]),
        ece_debiased=_mean_or_nan([of_label.ece_debiased for of_label in of_labels]),
        brier=_mean_or_nan([of_label.brier for of_label in of_labels]),
        nll=_mean_or_nan([of_label.nll for of_label in of_labels]),
        accuracy=sum(of_label.n_right for of_label in of_labels) / n if n else np.nan,
        balanced_accuracy=_mean_or_nan([of_label.recall for of_label in of_labels]),
    )


def _label_rows(
    logits: NDArray[np.floating],
    labels: NDArray[np.int8],
    task: Task,
    groups: NDArray[np.integer],
    label_auroc: NDArray[np.float64],
    label_ece: NDArray[np.float64],
    label_brier: NDArray[np.float64],
) -> tuple[LabelMetrics, ...]:
    k = labels.shape[1]
    by_label = np.ascontiguousarray(labels.T)
    n_pos = np.count_nonzero(by_label == 1, axis=1).tolist()
    n_neg = np.count_nonzero(by_label == 0, axis=1).tolist()
    n_groups_pos = [np.count_nonzero(np.bincount(groups[np.flatnonzero(of_label == 1)])) for of_label in by_label]
    unfitted = _unfitted_reasons(~np.isnan(logits[0]), task)
    rows = []
    for c in range(k):
        calibration_reason = unfitted[c]
        if calibration_reason is None and n_pos[c] + n_neg[c] == 0:
            calibration_reason = "no_labels"
        auroc_reason = calibration_reason
        if auroc_reason is None and n_pos[c] == 0:
            auroc_reason = "no_positive"
        elif auroc_reason is None and n_neg[c] == 0:
            auroc_reason = "no_negative"
        rows.append(
            LabelMetrics(
                index=c,
                auroc=_defined(label_auroc[c]),
                auroc_reason=auroc_reason,
                ece=_defined(label_ece[c]),
                brier=_defined(label_brier[c]),
                calibration_reason=calibration_reason,
                n_pos=n_pos[c],
                n_neg=n_neg[c],
                n_groups_pos=int(n_groups_pos[c]),
            )
        )
    return tuple(rows)


def _unfitted_reasons(fitted: NDArray[np.bool_], task: Task) -> list[UndefinedReason | None]:
    if task == "multi_label":
        return [None if is_fitted else "one_class_train" for is_fitted in fitted]
    of_fitted: UndefinedReason | None = None if fitted.sum() >= 2 else "one_class_train"
    return [of_fitted if is_fitted else "class_absent_train" for is_fitted in fitted]


def _record_without_images(k: int) -> RecordMetrics:
    rows = tuple(LabelMetrics(c, None, "no_images", None, None, "no_images", 0, 0, 0) for c in range(k))
    return RecordMetrics(
        n=0,
        macro_auroc=None,
        ece=None,
        adaptive_ece=None,
        classwise_ece=None,
        ece_debiased=None,
        brier=None,
        nll=None,
        accuracy=None,
        balanced_accuracy=None,
        qwk=None,
        ordinal_mae=None,
        n_defined_auroc=0,
        n_defined_calibration=0,
        reason="no_images",
        labels=rows,
    )


def _bin_rows(bins: BinSums, class_index: int | None) -> list[ReliabilityBin]:
    edges = bin_edges(len(bins.n)).tolist()
    rows = []
    for b in np.flatnonzero(bins.n).tolist():
        n = int(bins.n[b])
        mean_p, mean_y = float(bins.sum_p[b]) / n, float(bins.sum_y[b]) / n
        rows.append(ReliabilityBin(class_index, b, edges[b], edges[b + 1], n, mean_p, mean_y))
    return rows


def _defined(value: float) -> float | None:
    """Return ``value`` as a Python float, or None for NaN, which no table may hold."""
    return None if np.isnan(value) else float(value)


def _mean_or_nan(values: Sequence[float] | NDArray[np.float64]) -> float:
    defined = np.asarray(values)
    defined = defined[~np.isnan(defined)]
    return float(defined.mean()) if len(defined) else np.nan


def _mean_defined(values: NDArray[np.float64]) -> float | None:
    return _defined(_mean_or_nan(values))
