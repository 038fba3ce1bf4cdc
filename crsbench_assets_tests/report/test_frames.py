from __future__ import annotations

import math
from collections import defaultdict
from contextlib import closing
from typing import Any

import duckdb
import pytest

from crsbench_assets.report.frames import CALIBRATION, LABELS, RELIABILITY, read_frames
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets_tests.report.conftest import Rows

# dataset `multi` (labels a, b; shift target `else`) and dataset `single`; one encoder, two seeds
#
#   reliability_bins of multi, clean        seed 0: a  n 2  .10  .00      b  n 1  .40  1.00
#                                           seed 1: a  n 1  .20  .00
#   pooled: n = 4, confidence (2 x .10 + .40 + .20) / 4 = .20, frequency 1 / 4 = .25
#   of single, clean                        seed 0: top_label n 3 .90 1.00, class a (another diagram) n 3 .10 .00
CARDS = "('multi', 'multi_label', 'else'), ('single', 'single_label', NULL)"
BINS = """
    ('multi', 0, 'clean', 'a', 2, 0.1, 0.0),
    ('multi', 0, 'clean', 'b', 1, 0.4, 1.0),
    ('multi', 1, 'clean', 'a', 1, 0.2, 0.0),
    ('multi', 0, 'shift_else', 'a', 5, 0.3, 0.2),
    ('multi', 0, 'shift_gone', 'a', 7, 0.5, 0.5),
    ('multi', 0, 'blur-s1', 'a', 9, 0.5, 0.5),
    ('single', 0, 'clean', 'top_label', 3, 0.9, 1.0),
    ('single', 0, 'clean', 'a', 3, 0.1, 0.0)"""
#   run_records        f  condition   ece        interval           floor      reasons
RECORDS = """
    ('multi', 0, 1.0, 'clean',      0.10, 0.05, 0.15, 0.02, 0.04, NULL, NULL),
    ('multi', 1, 1.0, 'clean',      0.30, 0.15, 0.35, 0.04, 0.06, NULL, NULL),
    ('multi', 0, 0.5, 'clean',      0.90, NULL, NULL, NULL, NULL, NULL, NULL),
    ('multi', 0, 1.0, 'blur-s1',    0.90, NULL, NULL, NULL, NULL, NULL, NULL),
    ('multi', 0, 1.0, 'shift_else', 0.20, NULL, NULL, 0.02, 0.04, NULL, 'unstable'),
    ('multi', 1, 1.0, 'shift_else', NULL, NULL, NULL, NULL, NULL, 'no_labels', 'no_labels'),
    ('single', 0, 1.0, 'clean',     NULL, NULL, NULL, NULL, NULL, 'no_images', 'no_images')"""
LABEL_ROWS = """
    ('multi', 0, 1.0, 'clean', 'a', 0.8, 0.1, 0.2, 5, 4, NULL),
    ('multi', 1, 1.0, 'clean', 'a', 0.6, 0.3, 0.4, 5, 4, NULL),
    ('multi', 0, 1.0, 'clean', 'b', NULL, 0.1, 0.2, 0, 0, 'no_positive'),
    ('multi', 1, 1.0, 'clean', 'b', NULL, 0.3, 0.4, 0, 0, 'no_positive'),
    ('multi', 0, 1.0, 'clean', 'c', NULL, NULL, NULL, 3, 2, 'one_class_train'),
    ('multi', 1, 1.0, 'clean', 'c', 0.7, 0.1, 0.2, 3, 2, NULL),
    ('multi', 0, 0.5, 'clean', 'a', 0.1, 0.9, 0.9, 5, 4, NULL),
    ('multi', 0, 1.0, 'shift_else', 'a', 0.1, 0.9, 0.9, 9, 9, NULL),
    ('single', 0, 1.0, 'clean', 'a', 0.9, 0.1, 0.1, 5, 4, NULL)"""
TABLES = {
    "datasets(dataset_id, task, shift_id)": CARDS,
    "bins(dataset_id, seed, condition_id, class_name, n, mean_confidence, mean_label)": BINS,
    "records(dataset_id, seed, label_fraction, condition_id, ece, ece_ci_low, ece_ci_high, ece_floor, ece_floor_p95, "
    "reason, interval_reason)": RECORDS,
    "labels(dataset_id, seed, label_fraction, condition_id, class_name, auroc, ece, brier, n_pos, n_groups_pos, "
    "reason)": LABEL_ROWS,
}


def answer(sql: str) -> list[dict[str, Any]]:
    """Return a query's rows on the tables above, without their constant encoder."""
    with closing(duckdb.connect()) as connection:
        for head, rows in TABLES.items():
            name, columns = head.rstrip(")").split("(")
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM (VALUES {rows}) AS t({columns})")
        connection.execute(
            "CREATE VIEW reliability_bins AS SELECT 'e' AS encoder_id, 4 AS bin_index, 0.25 AS bin_low, "
            "0.375 AS bin_high, * FROM bins"
        )
        connection.execute("CREATE VIEW run_records AS SELECT 'e' AS encoder_id, 40 AS n, * FROM records")
        connection.execute("CREATE VIEW label_metrics AS SELECT 'e' AS encoder_id, * FROM labels")
        rows = connection.sql(sql).to_arrow_table().to_pylist()
    assert all(row.pop("encoder_id") == "e" for row in rows)
    return [{name: float(v) if hasattr(v, "as_tuple") else v for name, v in row.items()} for row in rows]


def test_bins_are_pooled_by_counts() -> None:
    found = {(row["dataset_id"], row["condition_id"]): row for row in answer(RELIABILITY)}
    assert list(found) == [("multi", "clean"), ("multi", "shift_else"), ("single", "clean")]
    expected = {
        ("multi", "clean"): (4, 0.20, 0.25),
        ("multi", "shift_else"): (5, 0.3, 0.2),
        ("single", "clean"): (3, 0.9, 1.0),
    }
    for key, (n, confidence, frequency) in expected.items():
        row = found[key]
        assert (row["n"], row["bin_index"], row["bin_low"], row["bin_high"]) == (n, 4, 0.25, 0.375)
        assert (row["mean_confidence"], row["mean_label"]) == pytest.approx((confidence, frequency), abs=1e-15)


def test_errors_are_means_over_seeds_or_say_why_not() -> None:
    clean, shift, single = answer(CALIBRATION)
    assert [
        clean[name] for name in ("ece", "ece_ci_low", "ece_ci_high", "ece_floor", "ece_floor_p95")
    ] == pytest.approx([0.2, 0.1, 0.25, 0.03, 0.05])
    assert (clean["n_seeds"], clean["n"], clean["reason"], clean["interval_reason"]) == (2, 40, None, None)
    # one seed of two
    assert (shift["ece"], shift["ece_floor"], shift["reason"]) == (None, None, "missing_seed")
    assert (shift["ece_ci_low"], shift["interval_reason"]) == (None, "no_labels, unstable")
    # no seed
    assert (single["ece"], single["reason"]) == (None, "no_images")


def test_labels_are_means_over_seeds_or_say_why_not() -> None:
    a, b, c = answer(LABELS)
    assert [a[name] for name in ("auroc", "ece", "brier")] == pytest.approx([0.7, 0.2, 0.3])
    assert (a["class_name"], a["n_pos"], a["n_groups_pos"], a["reason"]) == ("a", 5, 4, None)
    assert (b["auroc"], b["reason"]) == (None, "no_positive")
    assert (b["ece"], b["brier"]) == pytest.approx((0.2, 0.3))
    assert (c["auroc"], c["ece"], c["reason"]) == (None, None, "missing_seed")


def test_pooled_bins_of_a_home_are_its_rows_added_up(reported_home: HomeLayout, warehouse: Rows) -> None:
    tasks = {row["dataset_id"]: row["task"] for row in warehouse("FROM datasets")}
    pooled: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in warehouse("FROM reliability_bins WHERE condition_id IN ('clean', 'shift_ward')"):
        if tasks[row["dataset_id"]] == "multi_label" or row["class_name"] == "top_label":
            pooled[row["encoder_id"], row["dataset_id"], row["condition_id"], row["bin_index"]].append(row)
    found = read_frames(reported_home).reliability.rows_by_key(
        ["encoder_id", "dataset_id", "condition_id", "bin_index"], named=True, unique=True
    )
    assert found.keys() == pooled.keys()
    for key, rows in pooled.items():
        n = sum(row["n"] for row in rows)
        assert found[key]["n"] == n
        for name in ("mean_confidence", "mean_label"):
            assert found[key][name] == pytest.approx(math.fsum(row["n"] * row[name] for row in rows) / n, abs=1e-14)


def test_every_image_of_a_home_is_in_a_bin_once_per_seed(reported_home: HomeLayout) -> None:
    frames = read_frames(reported_home)
    totals = frames.reliability.group_by("encoder_id", "dataset_id", "condition_id").sum()
    n = frames.calibration.rows_by_key(["encoder_id", "dataset_id", "condition_id"], named=True, unique=True)
    assert len(n) == totals.height == 8
    for row in totals.iter_rows(named=True):
        record = n[row["encoder_id"], row["dataset_id"], row["condition_id"]]
        n_diagrams = 2 if row["dataset_id"] == "chest" else 1  # of three labels, one was fitted in no seed
        assert row["n"] == record["n"] * record["n_seeds"] * n_diagrams


def test_means_agree_with_the_aggregates_of_the_pipeline(reported_home: HomeLayout, warehouse: Rows) -> None:
    aggregates = {
        (row["encoder_id"], row["dataset_id"], row["condition_id"]): row
        for row in warehouse("FROM seed_aggregates WHERE label_fraction = 1")
    }
    frame = read_frames(reported_home).calibration
    assert frame.height == 8
    for row in frame.iter_rows(named=True):
        right = aggregates[row["encoder_id"], row["dataset_id"], row["condition_id"]]
        assert row["ece"] == pytest.approx(right["ece_mean"], abs=1e-14)
        assert row["ece_ci_low"] == pytest.approx(right["ece_ci_test_low"], abs=1e-14)
        assert row["ece_ci_high"] == pytest.approx(right["ece_ci_test_high"], abs=1e-14)
