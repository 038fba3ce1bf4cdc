from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from crsbench_assets.aggregates.seeds import seed_aggregates, seed_spread
from crsbench_assets.tables.results import RESULT_TABLES

SPECS = {spec.name: spec for spec in RESULT_TABLES}
SEEDS = (0, 1, 2, 3, 4)


def records(*rows: dict[str, Any]) -> pl.DataFrame:
    constant = {"label_fraction": 1.0, "condition_id": "clean", "n": 10}
    return pl.DataFrame([constant | row for row in rows], schema=SPECS["run_records"].polars_schema())


def five(values: list[float | None], reasons: list[str | None] | None = None, **constant: Any) -> pl.DataFrame:
    reasons = reasons or [None] * 5
    return records(
        *({"seed": s, "macro_auroc": values[s], "ece": 0.25, "reason": reasons[s]} | constant for s in SEEDS)
    )


def test_columns_are_those_of_the_table() -> None:
    expected = SPECS["seed_aggregates"].computed_schema()
    assert seed_aggregates(five([0.5] * 5), SEEDS).schema == expected
    assert seed_aggregates(records(), SEEDS).schema == expected


def test_mean_sd_and_interval_by_hand() -> None:
    # values .5 .6 .7 .8 .9: mean .7, squared deviations .04 .01 0 .01 .04, sd = sqrt(.10 / 4) = .158114,
    # t(.975, 4) = 2.776445, half = 2.776445 * .158114 / sqrt(5) = .196324
    (row,) = seed_aggregates(five([0.5, 0.6, 0.7, 0.8, 0.9]), SEEDS).to_dicts()
    assert (row["n_seeds"], row["n"], row["reason"]) == (5, 10, None)
    assert row["macro_auroc_mean"] == pytest.approx(0.7)
    assert row["macro_auroc_sd"] == pytest.approx(0.158114, abs=1e-6)
    assert row["macro_auroc_ci_seed_low"] == pytest.approx(0.503676, abs=1e-6)
    assert row["macro_auroc_ci_seed_high"] == pytest.approx(0.896324, abs=1e-6)
    assert (row["ece_mean"], row["ece_sd"]) == (0.25, 0.0)
    assert row["qwk_mean"] is None


def test_bounds_over_test_groups_are_averaged() -> None:
    rows = [{"seed": s, "macro_auroc": 0.5, "macro_auroc_ci_low": 0.25 + s / 4, "ece_ci_high": 0.5} for s in (0, 1)]
    (row,) = seed_aggregates(records(*rows), (0, 1)).to_dicts()
    assert (row["macro_auroc_ci_test_low"], row["ece_ci_test_high"]) == (0.375, 0.5)
    assert row["macro_auroc_ci_test_high"] is None


def test_one_null_seed() -> None:
    frame = five([0.5, 0.6, None, 0.8, 0.9], [None, None, "one_class_train", None, None])
    (row,) = seed_aggregates(frame, SEEDS).to_dicts()
    assert (row["macro_auroc_mean"], row["macro_auroc_sd"], row["macro_auroc_ci_seed_low"]) == (None, None, None)
    assert (row["reason"], row["n_seeds"]) == ("missing_seed", 4)
    assert row["ece_mean"] == 0.25  # all seeds have it


def test_absent_record_is_a_missing_seed() -> None:
    (row,) = seed_aggregates(five([0.5] * 5).filter(pl.col("seed") != 3), SEEDS).to_dicts()
    assert (row["macro_auroc_mean"], row["ece_mean"]) == (None, None)
    assert (row["reason"], row["n_seeds"]) == ("missing_seed", 4)


def test_a_metric_of_some_seeds_is_a_missing_seed_too() -> None:
    frame = five([0.5] * 5).with_columns(ece=pl.when(pl.col("seed") > 0).then("ece"))
    (row,) = seed_aggregates(frame, SEEDS).to_dicts()
    assert (row["macro_auroc_mean"], row["ece_mean"], row["reason"], row["n_seeds"]) == (0.5, None, "missing_seed", 5)


@pytest.mark.parametrize("reason", ["infeasible_fraction", "no_vectors"])
def test_reason_shared_by_all_seeds_is_kept(reason: str) -> None:
    (row,) = seed_aggregates(five([None] * 5, [reason] * 5, ece=None), SEEDS).to_dicts()
    assert (row["reason"], row["n_seeds"], row["ece_mean"]) == (reason, 0, None)


def test_different_reasons_of_all_seeds() -> None:
    frame = five([None] * 5, ["no_vectors", *["no_labels"] * 4])
    assert seed_aggregates(frame, SEEDS)["reason"].to_list() == ["missing_seed"]


def test_single_seed_has_no_spread() -> None:
    (row,) = seed_aggregates(records({"seed": 7, "macro_auroc": 0.75}), (7,)).to_dicts()
    assert (row["macro_auroc_mean"], row["macro_auroc_sd"], row["macro_auroc_ci_seed_high"]) == (0.75, None, None)
    assert row["reason"] is None


def test_one_sorted_row_per_fraction_and_condition() -> None:
    keys = [(1.0, "clean"), (0.1, "jpeg-s1"), (0.1, "clean")]
    rows = [{"seed": s, "label_fraction": f, "condition_id": c, "macro_auroc": f / 2} for s in (0, 1) for f, c in keys]
    frame = seed_aggregates(records(*rows), (0, 1))
    assert frame.select("label_fraction", "condition_id").rows() == sorted(keys)
    assert frame["macro_auroc_mean"].to_list() == [0.05, 0.05, 0.5]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (five([math.nan, 0.5, 0.5, 0.5, 0.5]), "NaN in macro_auroc"),
        (pl.concat([five([0.5] * 5)] * 2), "repeat a key"),
        (records({"seed": 9, "macro_auroc": 0.5}), r"seeds \[9\]"),
        (records({"seed": 0}, {"seed": 1, "n": 11}), "test images"),
    ],
)
def test_refuses(frame: pl.DataFrame, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        seed_aggregates(frame, SEEDS)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_spread_agrees_with_numpy_and_scipy(values: list[float]) -> None:
    spread = seed_spread(values)
    assert spread.mean == pytest.approx(np.mean(values), abs=1e-12)
    assert spread.sd == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    assert min(values) <= spread.mean <= max(values)
    if spread.sd is not None and spread.sd > 1e-6:
        interval = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
        assert (spread.ci_low, spread.ci_high) == pytest.approx(interval, abs=1e-9)


def test_order_of_seeds_moves_no_bit_and_equal_values_have_no_spread() -> None:
    orders = itertools.permutations([0.1, 0.7, 1 / 3, 0.9])
    assert len({seed_spread(list(values)) for values in orders}) == 1
    assert seed_spread([0.1] * 5).sd == 0.0
    assert seed_spread([0.1] * 5).mean == 0.1


@pytest.mark.parametrize("values", [[], [0.5, math.nan], [math.inf]])
def test_spread_refuses(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        seed_spread(values)
