"""The stage of post-hoc calibration on small fabricated predictions: which rows there are, and what stands in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy.special import expit, softmax

from crsbench_assets.config.ids import CLEAN, VALIDATION_CONDITION
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.metrics.calibration import class_probabilities, ece_floor
from crsbench_assets.metrics.compute import record_metrics
from crsbench_assets.metrics.records import METRIC_NAMES
from crsbench_assets.probes.calibrate import METHODS, fit_calibrator
from crsbench_assets.worker.calibration_stages import calibrate
from crsbench_assets_tests.tables.rows import written

SHIFT = "other_hospital"
SHIFT_CONDITION = f"shift_{SHIFT}"
SEEDS = (0, 1)
SIZES = {VALIDATION_CONDITION: 240, CLEAN: 120, SHIFT_CONDITION: 60}


class Cell:
    """Images and predictions of a cell whose logits are ``scale`` times the calibrated ones."""

    def __init__(self, task: str, k: int, scale: float, sizes: dict[str, int] = SIZES) -> None:
        self.task, self.k = task, k
        images: list[dict[str, Any]] = []
        predictions: list[dict[str, Any]] = []
        self.arrays: dict[tuple[int, str], tuple[NDArray[np.float32], NDArray[np.int8], NDArray[np.int64]]] = {}
        for condition, n in sizes.items():
            source = SHIFT if condition == SHIFT_CONDITION else "primary"
            rng = keyed_generator("cell", task, k, condition)
            truth = 2.0 * rng.standard_normal((n, k))
            if task == "multi_label":
                labels = (rng.random((n, k)) < expit(truth)).astype(np.int8)
            else:
                drawn = (softmax(truth, axis=1).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
                labels = np.eye(k, dtype=np.int8)[drawn]
            ids = [f"{condition}{i:03d}" for i in range(n)]
            groups = np.arange(n) // 2
            images += [
                {"source_id": source, "image_id": name, "group_index": 7 * g, "labels": row}
                for name, g, row in zip(ids, groups.tolist(), labels.tolist(), strict=True)
            ]
            for seed in SEEDS:
                noise = 0.05 * keyed_generator("noise", seed, condition).standard_normal((n, k))
                logits = (scale * (truth + noise)).astype(np.float32)
                self.arrays[seed, condition] = logits, labels, groups
                predictions += [
                    {"seed": seed, "label_fraction": 1.0, "condition_id": condition, "image_id": name, "logits": row}
                    for name, row in zip(ids, logits.tolist(), strict=True)
                ]
        self.frames = {
            "images": pl.DataFrame(images, schema_overrides={"labels": pl.List(pl.Int8)}),
            "predictions": pl.DataFrame(predictions, schema_overrides={"logits": pl.List(pl.Float32)}),
            "probe_fits": pl.DataFrame(
                {"label_fraction": [1.0], "reason": [None]},
                schema_overrides={"label_fraction": pl.Float64, "reason": pl.String},
            ),
        }

    def records(self) -> pl.DataFrame:
        context: Any = SimpleNamespace(
            protocol=SimpleNamespace(seeds=SEEDS, metrics=SimpleNamespace(ece_bins=15)),
            dataset=SimpleNamespace(id="cohort", task=self.task, classes=[f"c{j}" for j in range(self.k)]),
            encoder=SimpleNamespace(id="encoder"),
            shift_id=SHIFT,
            read=lambda table, columns=None: self.frames[table],
        )
        found = calibrate(context).frames["calibrated_records"]
        keyed = found.with_columns(encoder_id=pl.lit("encoder"), dataset_id=pl.lit("cohort"))
        return written(keyed, "calibrated_records")

    def metrics(self, seed: int, condition: str, logits: NDArray[np.floating]) -> dict[str, Any]:
        _, labels, groups = self.arrays[seed, condition]
        task: Any = self.task
        record = record_metrics(logits, labels, task, groups=groups, n_bins=15)
        return {name: getattr(record, name) for name in METRIC_NAMES}


@pytest.mark.parametrize(("task", "k"), [("single_label", 2), ("ordinal", 4), ("multi_label", 3)])
def test_rows_hold_the_metrics_of_the_calibrated_logits(task: Any, k: int) -> None:
    cell = Cell(task, k, scale=3.0)
    rows = cell.records()
    assert rows.select("method", "seed", "condition_id").rows() == sorted(
        (method, seed, condition) for method in METHODS for seed in SEEDS for condition in (CLEAN, SHIFT_CONDITION)
    )
    assert set(rows.get_column("n_val")) == {240}
    assert rows.filter(method="temperature").get_column("is_accepted").all()
    for row in rows.rows(named=True):
        logits, labels, groups = cell.arrays[row["seed"], VALIDATION_CONDITION]
        calibrator = fit_calibrator(row["method"], logits, labels, task, key=("cohort", row["seed"]), groups=groups)
        test, _, _ = cell.arrays[row["seed"], row["condition_id"]]
        after = calibrator.apply(test)
        assert {name: row[name] for name in METRIC_NAMES} == cell.metrics(row["seed"], row["condition_id"], after)
        assert row["n"] == len(test) and row["reason"] is None
        assert (row["is_accepted"], row["n_accepted"]) == (calibrator.is_accepted, calibrator.n_accepted)
        assert (row["refusal_reason"], row["temperature"]) == (calibrator.reason, calibrator.temperature)
        names = ("ece_floor", "encoder", "cohort", row["seed"], row["condition_id"])
        floor = ece_floor(class_probabilities(after, task), task, 15, keyed_generator(*names))
        assert row["ece_floor_p95"] == floor[1]


def test_temperature_repairs_and_leaves_two_class_auroc() -> None:
    cell = Cell("single_label", 2, 3.0, dict.fromkeys(SIZES, 1_000))
    for row in cell.records().filter(method="temperature").rows(named=True):
        before = cell.metrics(row["seed"], row["condition_id"], cell.arrays[row["seed"], row["condition_id"]][0])
        assert row["temperature"] == pytest.approx(3.0, abs=0.5)
        assert row["ece"] < before["ece"] / 2 and row["nll"] < before["nll"]
        assert row["macro_auroc"] == pytest.approx(before["macro_auroc"], abs=1e-12)


def test_refused_rows_are_the_records_before() -> None:
    cell = Cell("single_label", 4, scale=1.0)
    rows = cell.records().filter(~pl.col("is_accepted"))
    assert set(METHODS) == set(rows.get_column("method"))
    for row in rows.rows(named=True):
        logits, _, _ = cell.arrays[row["seed"], row["condition_id"]]
        assert {name: row[name] for name in METRIC_NAMES} == cell.metrics(row["seed"], row["condition_id"], logits)
        assert row["refusal_reason"] in ("no_gain", "at_bound") and row["n_accepted"] == 0
        assert row["temperature"] == (1.0 if row["method"] == "temperature" else None)


def test_without_validation_images_all_is_refused() -> None:
    rows = Cell("multi_label", 2, 3.0, {CLEAN: 40, SHIFT_CONDITION: 20}).records()
    assert rows.height == len(METHODS) * len(SEEDS) * 2
    assert set(rows.get_column("refusal_reason")) == {"few_validation_images"}
    assert set(rows.get_column("n_val")) == {0}
    assert rows.get_column("macro_auroc").null_count() == 0


@pytest.mark.parametrize("reason", ["no_vectors", "no_access", "infeasible_fraction"])
def test_a_condition_without_predictions_says_why(reason: str) -> None:
    cell = Cell("multi_label", 2, 3.0, {VALIDATION_CONDITION: 200, CLEAN: 40})
    if reason == "no_vectors":  # the target has images; without any it was not read
        one = cell.frames["images"].head(1).with_columns(source_id=pl.lit(SHIFT))
        cell.frames["images"] = pl.concat([cell.frames["images"], one])
    if reason == "infeasible_fraction":
        cell.frames["probe_fits"] = cell.frames["probe_fits"].with_columns(reason=pl.lit(reason))
    rows = cell.records()
    shifted = rows.filter(condition_id=SHIFT_CONDITION)
    assert set(shifted.get_column("reason")) == {reason} and set(shifted.get_column("n")) == {0}
    assert all(shifted.get_column(name).null_count() == shifted.height for name in (*METRIC_NAMES, "ece_floor_p95"))
    assert rows.filter(condition_id=CLEAN).get_column("ece").null_count() == 0


def test_the_order_of_rows_is_nothing() -> None:
    cell = Cell("multi_label", 3, scale=3.0)
    before = cell.records()
    for name in ("images", "predictions"):
        cell.frames[name] = cell.frames[name].sample(fraction=1.0, shuffle=True, seed=1)
    assert cell.records().equals(before)


def test_a_label_that_was_not_fitted_stays_undefined() -> None:
    cell = Cell("multi_label", 3, scale=3.0)
    without = pl.concat_list(pl.col("logits").list.head(2), pl.lit(None, dtype=pl.Float32))
    cell.frames["predictions"] = cell.frames["predictions"].with_columns(logits=without)
    rows = cell.records()
    assert rows.filter(method="temperature").get_column("n_accepted").to_list() == [2] * 4
    assert rows.get_column("macro_auroc").null_count() == 0
