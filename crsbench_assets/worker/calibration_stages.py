"""Stage of post-hoc calibration: fitted on validation images, measured on clean test images and under shift.

What lives here: aligning predictions with labels, and the rows of ``calibrated_records``. What stays out: the
calibration (``probes.calibrate``), the metrics (``metrics``), and the comparison with the records before
(``run_records`` has them; table ``calibration_repair``).
Source: protocol page, section 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench_assets.config.cards import PRIMARY, Task
from crsbench_assets.config.ids import CLEAN, VALIDATION_CONDITION, shift_condition
from crsbench_assets.config.machine import one_thread
from crsbench_assets.metrics.compute import record_metrics
from crsbench_assets.metrics.records import METRIC_NAMES, record_floor
from crsbench_assets.probes.calibrate import METHODS, Calibrator, fit_calibrator
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.worker.cell_stages import labels_and_groups, logits_matrix, why_no_vectors
from crsbench_assets.worker.context import StageContext, StageOutput


@dataclass(frozen=True)
class _Predictions:
    """Logits (n, k), labels (n, k) and groups (n,) of one seed and condition, ordered by image."""

    logits: NDArray[np.float32]
    labels: NDArray[np.int8]
    groups: NDArray[np.int64]


def calibrate(context: StageContext) -> StageOutput:
    """Return the records of every method, seed and condition (clean, shift) after calibration.

    A refused method has the metrics of the logits as they were. A condition without predictions has NULL metrics and
    a reason.
    """
    with one_thread():
        rows = list(_rows(context))
    return StageOutput({"calibrated_records": TABLES["calibrated_records"].computed(rows)})


def _rows(context: StageContext) -> Iterator[dict[str, Any]]:
    card = context.dataset
    tests = [(CLEAN, PRIMARY)]
    if context.shift_id is not None:
        tests.append((shift_condition(context.shift_id), context.shift_id))
    sources = dict([*tests, (VALIDATION_CONDITION, PRIMARY)])
    images = context.read("images").sort("image_id")
    predictions = (
        context.read("predictions")
        .filter((pl.col("label_fraction") == 1.0) & pl.col("condition_id").is_in(list(sources)))
        .partition_by("seed", "condition_id", as_dict=True)
    )
    is_infeasible = (pl.col("reason") == "infeasible_fraction") & (pl.col("label_fraction") == 1.0)
    has_fits = context.read("probe_fits").filter(is_infeasible).is_empty()
    for seed in context.protocol.seeds:
        known = {
            condition: _aligned(images, source, predictions[seed, condition], len(card.classes))
            for condition, source in sources.items()
            if (seed, condition) in predictions
        }
        calibrators = _calibrators(known.get(VALIDATION_CONDITION), len(card.classes), card.task, (card.id, seed))
        n_val = len(known[VALIDATION_CONDITION].logits) if VALIDATION_CONDITION in known else 0
        for condition, source in tests:
            absence = why_no_vectors(images, source) if has_fits else "infeasible_fraction"
            identity: dict[str, Any] | None = None
            for calibrator in calibrators:
                if condition not in known:
                    measured = _undefined(absence)
                elif calibrator.is_accepted:
                    logits = calibrator.apply(known[condition].logits)
                    measured = _measured(context, seed, condition, known[condition], logits)
                else:
                    if identity is None:
                        identity = _measured(context, seed, condition, known[condition], known[condition].logits)
                    measured = identity
                key = {"method": calibrator.method, "seed": seed, "condition_id": condition, "n_val": n_val}
                yield key | measured | _decision(calibrator)


def _aligned(images: pl.DataFrame, source_id: str, part: pl.DataFrame, k: int) -> _Predictions:
    ordered = part.sort("image_id")
    labels, groups = labels_and_groups(images, source_id, ordered.get_column("image_id"))
    return _Predictions(logits_matrix(ordered, k), labels, groups)


def _calibrators(validation: _Predictions | None, k: int, task: Task, key: tuple[object, ...]) -> list[Calibrator]:
    """Return one calibrator per method; without validation images all are refused."""
    if validation is None:
        validation = _Predictions(
            np.zeros((0, k), dtype=np.float32), np.zeros((0, k), dtype=np.int8), np.zeros(0, dtype=np.int64)
        )
    return [
        fit_calibrator(method, validation.logits, validation.labels, task, key=key, groups=validation.groups)
        for method in METHODS
    ]


def _measured(
    context: StageContext, seed: int, condition: str, test: _Predictions, logits: NDArray[np.floating]
) -> dict[str, Any]:
    task, n_bins = context.dataset.task, context.protocol.metrics.ece_bins
    metrics = record_metrics(logits, test.labels, task, groups=test.groups, n_bins=n_bins)
    # the draws of the record before calibration, so that the two floors differ by their probabilities alone
    names = (context.encoder.id, context.dataset.id, seed, condition)
    _, floor_p95 = record_floor(logits, test.labels, task, n_bins, names)
    row: dict[str, Any] = {name: getattr(metrics, name) for name in METRIC_NAMES}
    return row | {"n": metrics.n, "ece_floor_p95": floor_p95, "reason": metrics.reason}


def _undefined(reason: str) -> dict[str, Any]:
    return dict.fromkeys((*METRIC_NAMES, "ece_floor_p95")) | {"n": 0, "reason": reason}


def _decision(calibrator: Calibrator) -> dict[str, Any]:
    return {
        "is_accepted": calibrator.is_accepted,
        "n_accepted": calibrator.n_accepted,
        "refusal_reason": calibrator.reason,
        "temperature": calibrator.temperature,
    }
