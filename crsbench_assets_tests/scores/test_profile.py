from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest

from crsbench_assets.scores.profile import (
    AXIS_VALUES_SCHEMA,
    axis_values,
    provisional_robustness_variant,
    values_by_cell,
)
from crsbench_assets.tables.results import RESULT_TABLES


def cell_axes(*rows: tuple[str, str, str, str, float | None]) -> pl.DataFrame:
    (spec,) = (spec for spec in RESULT_TABLES if spec.name == "cell_axes")
    names = ("encoder_id", "dataset_id", "axis", "variant", "value")
    content: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in rows]
    for row in content:
        row["reason"] = "no_access" if row["value"] is None else None
    return pl.DataFrame(content, schema=spec.polars_schema())


CELLS = cell_axes(
    ("b", "near", "discrimination", "primary", 0.75),
    ("a", "near", "robustness", "primary", None),
    ("a", "near", "robustness", "corruption_only", 0.5),
    ("a", "near", "robustness", "chance_corrected", 0.25),
    ("a", "near", "calibration", "primary", 0.9),
    ("a", "near", "calibration", "brier", 0.8),
)


def test_selects_one_value_per_axis() -> None:
    assert axis_values(CELLS, "shift").rows() == [
        ("a", "near", "calibration", 0.9, None),
        ("a", "near", "robustness", None, "no_access"),
        ("b", "near", "discrimination", 0.75, None),
    ]
    assert axis_values(CELLS, "corruption_only").rows()[1] == ("a", "near", "robustness", 0.5, None)
    assert axis_values(CELLS.clear(), "shift").schema == AXIS_VALUES_SCHEMA


@pytest.mark.parametrize(
    ("measured", "variant"),
    [
        ([("a", "s1"), ("a", "s2")], "shift"),
        ([("a", "s1"), ("b", "s2")], "shift"),  # each of them is incomplete somewhere, but nobody is excluded
        ([("a", "s1"), ("b", "s1")], "corruption_only"),
        ([("a", "s1"), ("control", "s2")], "corruption_only"),
        ([], "corruption_only"),
    ],
)
def test_variant_of_a_provisional_cohort(measured: list[tuple[str, str]], variant: str) -> None:
    rows = cell_axes(
        *(
            (
                encoder,
                dataset,
                "robustness",
                kind,
                0.9 if kind != "primary" or (encoder, dataset) in measured else None,
            )
            for encoder in ("a", "b", "control")
            for dataset in ("s1", "s2", "plain")
            for kind in ("primary", "corruption_only")
        )
    )
    assert provisional_robustness_variant(rows, {"a", "b"}, {"s1", "s2"}) == variant


def test_without_shift_targets_the_variant_is_shift() -> None:
    assert provisional_robustness_variant(CELLS, {"a"}, set()) == "shift"


def test_values_by_cell_leaves_undefined_values_out() -> None:
    cells = values_by_cell(axis_values(CELLS, "shift"))
    assert cells == {("a", "near"): {"calibration": 0.9}, ("b", "near"): {"discrimination": 0.75}}


def test_values_by_cell_refuses_nan_and_two_variants() -> None:
    with pytest.raises(ValueError, match="NaN"):
        values_by_cell(axis_values(CELLS, "shift").with_columns(value=math.nan))
    with pytest.raises(ValueError, match="two values"):
        values_by_cell(CELLS.select(AXIS_VALUES_SCHEMA.keys()))
