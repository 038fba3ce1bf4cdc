"""All records of a cell: from logits to rows.

What lives here: the rows of ``run_records``, ``label_metrics`` and ``reliability_bins``. What stays out: the metrics
themselves (``compute``) and where logits come from. Source: protocol page, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench_assets.config.ids import CLEAN
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.metrics.calibration import class_probabilities, ece_floor
from crsbench_assets.metrics.compute import RecordMetrics, record_metrics, reliability_bins
from crsbench_assets.metrics.replicates import (
    auroc_replicates,
    ece_interval,
    ece_replicates,
    exact_auroc_replicates,
    group_weights,
    image_level_auroc_interval,
    image_level_ece_interval,
    percentile_interval,
    weights_key,
)
from crsbench_assets.metrics.specs import ECE_DEFINITION
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.results import INTERVALS, METRICS

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task

METRIC_NAMES = tuple(column.name for column in METRICS)

INTERVAL_NAMES = tuple(column.name for column in INTERVALS)

TOP_LABEL = "top_label"

EXACT, INFLUENCE = "exact", "influence"
"""Values of ``macro_auroc_ci_method``."""


@dataclass(frozen=True)
class Record:
    """One (seed, fraction, condition): logits (n, k), labels (n, k) and groups (n,), or a reason for none."""

    seed: int
    fraction: float
    condition: str
    logits: NDArray[np.float32] | None = None
    labels: NDArray[np.int8] | None = None
    groups: NDArray[np.int64] | None = None
    source_id: str = "primary"
    reason: str | None = None
    flag: str | None = None


@dataclass(frozen=True)
class RecordRows:
    """Rows of the three tables, without their constant columns."""

    run_records: pl.DataFrame
    label_metrics: pl.DataFrame
    reliability_bins: pl.DataFrame


def measure_records(
    records: Iterable[Record],
    *,
    dataset_id: str,
    task: Task,
    classes: Sequence[str],
    n_bins: int,
    n_replicates: int,
    encoder_id: str,
) -> RecordRows:
    """Return the rows of all records of a cell.

    Records at all labels also get intervals over test groups; the weights of the groups are shared by all encoders,
    seeds and conditions of a dataset, so that differences can be paired. The interval of the AUROC rests on the exact
    bootstrap where the record is shown on its own (clean and shift), and on the influence function under corruptions,
    of which only means are shown: with 38,000 images and 14 labels 1.0 s and 0.09 s a record, hence 10 s and 7 s a
    cell. Beside them stand the intervals that would hold if images were independent, of the ECE for the shown records.

    Args:
        records: the records; one with a ``reason`` becomes rows of NULL with that reason.
        dataset_id: key of the group weights.
        task: kind of the labels.
        classes: names of the k classes.
        n_bins: bins of the calibration errors.
        n_replicates: b, replicates of the test groups.
        encoder_id: with the record's names, key of the noise floor's draws.
    """
    runs: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    bins: list[dict[str, Any]] = []
    weights: dict[tuple[str, int], NDArray[np.float64]] = {}
    for record in records:
        key = {"seed": record.seed, "label_fraction": record.fraction, "condition_id": record.condition}
        if record.logits is None or record.labels is None or record.groups is None:
            runs.append(key | _undefined_run(record.reason) | {"flag": record.flag})
            labels += [key | {"class_name": name} | _undefined_label(record.reason) for name in classes]
            continue
        metrics = record_metrics(record.logits, record.labels, task, groups=record.groups, n_bins=n_bins)
        run = key | _run_row(metrics) | {"flag": record.flag}
        if record.fraction == 1.0:
            name = (record.source_id, int(record.groups.max(initial=-1)) + 1)
            if name not in weights:
                weights[name] = group_weights(weights_key(dataset_id, record.source_id), name[1], n_replicates)
            is_shown = record.condition == CLEAN or record.source_id != "primary"
            run |= _interval_row(record, task, weights[name], n_bins, (encoder_id, dataset_id), is_shown=is_shown)
            if run["interval_reason"] and (metrics.macro_auroc is None or metrics.ece is None):
                run["interval_reason"] = metrics.reason
            if is_shown:
                names = (encoder_id, dataset_id, record.seed, record.condition)
                mean, p95 = record_floor(record.logits, record.labels, task, n_bins, names)
                run |= {"ece_floor": mean, "ece_floor_p95": p95}
            bins += _bin_rows(record, task, classes, n_bins)
        runs.append(run)
        labels += [key | {"class_name": classes[row.index]} | _label_row(row) for row in metrics.labels]
    return RecordRows(
        run_records=_frame("run_records", runs),
        label_metrics=_frame("label_metrics", labels),
        reliability_bins=_frame("reliability_bins", bins),
    )


def _run_row(metrics: RecordMetrics) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(metrics, name) for name in METRIC_NAMES}
    row |= {"n": metrics.n, "reason": metrics.reason, "ece_definition": ECE_DEFINITION}
    row |= {"n_defined_auroc": metrics.n_defined_auroc, "n_defined_calibration": metrics.n_defined_calibration}
    return row | dict.fromkeys(INTERVAL_NAMES)


def _undefined_run(reason: str | None) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys((*METRIC_NAMES, *INTERVAL_NAMES))
    row |= {"n": 0, "n_defined_auroc": 0, "n_defined_calibration": 0}
    return row | {"reason": reason, "ece_definition": ECE_DEFINITION}


def _label_row(row: Any) -> dict[str, Any]:
    return {
        "auroc": row.auroc,
        "ece": row.ece,
        "brier": row.brier,
        "n_pos": row.n_pos,
        "n_neg": row.n_neg,
        "n_groups_pos": row.n_groups_pos,
        "reason": row.auroc_reason or row.calibration_reason,
    }


def _undefined_label(reason: str | None) -> dict[str, Any]:
    nothing: dict[str, Any] = dict.fromkeys(("auroc", "ece", "brier"))
    return nothing | {"n_pos": 0, "n_neg": 0, "n_groups_pos": 0, "reason": reason}


def _interval_row(
    record: Record,
    task: Task,
    weights: NDArray[np.float64],
    n_bins: int,
    names: tuple[str, str],
    *,
    is_shown: bool,
) -> dict[str, Any]:
    assert record.logits is not None and record.labels is not None and record.groups is not None
    logits, labels, groups = record.logits, record.labels, record.groups
    replicates = exact_auroc_replicates if is_shown else auroc_replicates
    auroc = replicates(logits, labels, task, groups, weights)
    ece = ece_replicates(logits, labels, task, groups, weights, n_bins=n_bins)
    intervals = {
        "macro_auroc_ci": percentile_interval(auroc.values),
        "macro_auroc_ci_image": image_level_auroc_interval(logits, labels, task),
        "ece_ci": ece_interval(ece.values, ece.point),
    }
    if is_shown:
        intervals["ece_ci_image"] = image_level_ece_interval(
            logits,
            labels,
            task,
            n_bins=n_bins,
            n_replicates=len(weights),
            generator=keyed_generator("image_level_ece", *names, record.seed, record.condition),
        )
    row: dict[str, Any] = {}
    for name, interval in intervals.items():
        row |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
    reason = next((interval.reason for interval in intervals.values() if interval.reason), None)
    return row | {
        "macro_auroc_ci_method": EXACT if is_shown else INFLUENCE,
        "n_replicates_dropped": int(np.count_nonzero(auroc.is_dropped | ece.is_dropped)),
        "interval_reason": "one_group" if reason and weights.shape[1] < 2 else reason,
    }


def record_floor(
    logits: NDArray[np.floating], labels: NDArray[np.int8], task: Task, n_bins: int, names: tuple[str, str, int, str]
) -> tuple[float | None, float | None]:
    """Return :func:`ece_floor` of a record's stated probabilities, over the entries that its ECE rests on.

    Args:
        logits: (n, k); a column of NaN was not fitted.
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown.
        task: kind of the labels.
        n_bins: number of equal-width bins.
        names: encoder, dataset, seed and condition, the key of the draws.
    """
    probabilities = class_probabilities(logits, task)
    if task == "multi_label":
        probabilities = np.where(labels < 0, np.nan, probabilities)
    return ece_floor(probabilities, task, n_bins, keyed_generator("ece_floor", *names))


def _bin_rows(record: Record, task: Task, classes: Sequence[str], n_bins: int) -> list[dict[str, Any]]:
    assert record.logits is not None and record.labels is not None
    return [
        {
            "seed": record.seed,
            "condition_id": record.condition,
            "class_name": TOP_LABEL if row.class_index is None else classes[row.class_index],
            "bin_index": row.bin_index,
            "bin_low": row.bin_low,
            "bin_high": row.bin_high,
            "n": row.n,
            "mean_confidence": row.mean_confidence,
            "mean_label": row.mean_label,
        }
        for row in reliability_bins(record.logits, record.labels, task, n_bins=n_bins)
    ]


def _frame(table: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    return TABLES[table].computed(rows)
