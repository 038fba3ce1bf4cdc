from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest

from crsbench_assets.analyses.metric_sensitivity import metric_sensitivity
from crsbench_assets.config.protocol import AXES
from crsbench_assets.scores.panel import Panel
from crsbench_assets_tests.analyses.plain_score import (
    RULES,
    Cells,
    panel_from,
    plain_crs,
    plain_overlap,
    plain_tau_b,
    random_cells,
)
from crsbench_assets_tests.tables.rows import written

SUBSTITUTES = {
    "adaptive_ece": (("calibration", "adaptive_ece"),),
    "brier": (("calibration", "brier"),),
    "ece_debiased": (("calibration", "ece_debiased"),),
    "corruption_only": (("robustness", "corruption_only"),),
    "chance_corrected": (("label_efficiency", "chance_corrected"), ("robustness", "chance_corrected")),
}
AXIS_VARIANTS = sorted({pair for pairs in SUBSTITUTES.values() for pair in pairs})
NUMBERS = ("tau_b", "top_3_overlap", "top_5_overlap", "mean_crs_shift", "mean_absolute_crs_shift")

Variants = Mapping[tuple[str, str, str, str], float | None]
"""(encoder, dataset, axis, variant) -> value."""

Ordinal = Mapping[tuple[str, str], tuple[float | None, float | None]]
"""(encoder, dataset) -> QWK, ordinal MAE."""

DATASETS = pl.DataFrame(
    {
        "dataset_id": ["d0", "d1", "d2"],
        "task": ["single_label", "ordinal", "multi_label"],
        "shift_id": pl.Series([None, None, "other"], dtype=pl.String),
    }
)


def analyse(
    variants: Variants, ordinal: Ordinal, panel: Panel, reason: str | None = None
) -> dict[tuple[str, str], dict[str, Any]]:
    names = ("encoder_id", "dataset_id", "axis", "variant", "value", "reason")
    axes = pl.DataFrame(
        [(*key, value, reason if value is None else None) for key, value in variants.items()],
        schema=dict.fromkeys(names, pl.String) | {"value": pl.Float64},
        orient="row",
    )
    rows = [(*cell, 1.0, "clean", *values) for cell, values in ordinal.items()]
    rows += [(*cell, 0.1, "clean", 0.5, 0.5) for cell in ordinal]
    rows += [(*cell, 1.0, "blur-s1", 0.5, 0.5) for cell in ordinal]
    ids = {
        "encoder_id": pl.String(),
        "dataset_id": pl.String(),
        "label_fraction": pl.Float64(),
        "condition_id": pl.String(),
    }
    schema = {**ids, "qwk_mean": pl.Float64(), "ordinal_mae_mean": pl.Float64()}
    aggregates = pl.DataFrame(rows, schema=schema, orient="row")
    found = metric_sensitivity(axes, aggregates, DATASETS, panel, RULES)
    written(found, "metric_sensitivity")
    return {(row["variant"], row["dataset_id"]): row for row in found.to_dicts()}


def same_variants(cells: Cells) -> dict[tuple[str, str, str, str], float | None]:
    """Return variants that are the primary values."""
    return {
        (encoder, dataset, axis, variant): values[AXES.index(axis)]
        for encoder, own in cells.items()
        for dataset, values in own.items()
        for axis, variant in AXIS_VARIANTS
    }


def random_inputs(
    seed: int, n_encoders: int
) -> tuple[
    Cells, dict[tuple[str, str, str, str], float | None], dict[tuple[str, str], tuple[float | None, float | None]]
]:
    draw = random.Random(seed)
    cells = random_cells(seed, n_encoders)
    variants: dict[tuple[str, str, str, str], float | None] = {key: draw.random() for key in same_variants(cells)}
    return cells, variants, {(e, d): (draw.random(), 3 * draw.random()) for e, own in cells.items() for d in own}


# One ordinal dataset, anchors 0 and 1. Under brier b and c change places on C; the rest stays.
#
#        D    C    L    R     P      B                W     CRS         brier C   P      B                  W    CRS
#   a    1    1    1    1     7/8    1                1     .9375       1         7/8    1                  1    .9375
#   b    .5   .5   .5   .5    5/8    1 - .5           .5    .5625       0         1/2    1 - sqrt(.4375)    0    .351569
#   c    .4   0    .4   .4    3/8    1 - sqrt(.52)    0     .271167     .4        1/2    1 - .6             .4   .45
#   d    0    0    0    0     1/8    0                0     .0625       0         1/8    0                  0    .0625
#
# Changes 0, -.210931, .178833, 0: mean -.008025, absolute .097441. One of six pairs turns: tau-b 2/3.
HAND: Cells = {
    "a": {"d1": [1.0, 1.0, 1.0, 1.0]},
    "b": {"d1": [0.5, 0.5, 0.5, 0.5]},
    "c": {"d1": [0.4, 0.0, 0.4, 0.4]},
    "d": {"d1": [0.0, 0.0, 0.0, 0.0]},
}


def test_four_members_by_hand() -> None:
    variants = same_variants(HAND) | {
        ("b", "d1", "calibration", "brier"): 0.0,
        ("c", "d1", "calibration", "brier"): 0.4,
    }
    # QWK turns the places of b and c on D, the error keeps the order: 2 - 2 D over the grades
    ordinal: Ordinal = {
        ("a", "d1"): (0.9, 0.0),
        ("b", "d1"): (0.4, 1.0),
        ("c", "d1"): (0.45, 1.2),
        ("d", "d1"): (-0.1, 2.0),
    }
    rows = analyse(variants, ordinal, panel_from(HAND))
    assert plain_crs(HAND) == pytest.approx({"a": 0.9375, "b": 0.5625, "c": 0.271167, "d": 0.0625}, abs=1e-6)
    row = rows["brier", ""]
    assert (row["n_encoders"], row["tau_b"]) == (4, pytest.approx(2 / 3, abs=1e-12))
    assert row["top_3_overlap"] == 1.0
    assert (row["mean_crs_shift"], row["mean_absolute_crs_shift"]) == pytest.approx((-0.008025, 0.097441), abs=1e-6)
    assert (row["top_5_overlap"], row["reason"]) == (None, "too_few_units")
    for variant in ("adaptive_ece", "ece_debiased", "chance_corrected"):
        assert (rows[variant, ""]["tau_b"], rows[variant, ""]["mean_absolute_crs_shift"]) == (1.0, 0.0)
    # positions of the error on D: (2 - e) / 2 = 1, .5, .4, 0, those of macro AUROC
    error = rows["ordinal_mae", "d1"]
    assert (error["tau_b"], error["mean_absolute_crs_shift"]) == (1.0, pytest.approx(0.0, abs=1e-12))
    assert [key for key in rows if key[1]] == [("qwk", "d1"), ("ordinal_mae", "d1")]
    assert len(rows) == 8


def plain_numbers(primary: Sequence[float], other: Sequence[float]) -> dict[str, float | None]:
    shifts = [b - a for a, b in zip(primary, other, strict=True)]
    return {
        "tau_b": plain_tau_b(primary, other),
        "top_3_overlap": plain_overlap(primary, other, 3),
        "top_5_overlap": plain_overlap(primary, other, 5),
        "mean_crs_shift": statistics.mean(shifts),
        "mean_absolute_crs_shift": statistics.mean(map(abs, shifts)),
    }


def plain_percentile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_plain_python(seed: int) -> None:
    cells, variants, ordinal = random_inputs(seed, 4 + seed)
    rows = analyse(variants, ordinal, panel_from(cells))
    primary = list(plain_crs(cells).values())
    right = {}
    for variant, pairs in SUBSTITUTES.items():
        replaced = {}
        for encoder, own in cells.items():
            replaced[encoder] = {dataset: list(values) for dataset, values in own.items()}
            for dataset, values in replaced[encoder].items():
                for axis, name in pairs:
                    values[AXES.index(axis)] = variants[encoder, dataset, axis, name] or 0.0
        right[variant, ""] = plain_numbers(primary, list(plain_crs(replaced).values()))
    anchors = {}
    for dataset in {dataset for own in cells.values() for dataset in own}:
        for k in range(4):
            column = [own[dataset][k] for own in cells.values() if dataset in own]
            anchors[dataset, k] = (plain_percentile(column, 0.05), plain_percentile(column, 0.95))
    right["percentile_anchors", ""] = plain_numbers(primary, list(plain_crs(cells, anchors=anchors).values()))
    on_d1 = {encoder: {"d1": own["d1"]} for encoder, own in cells.items() if "d1" in own}
    for position, variant in enumerate(("qwk", "ordinal_mae")):
        replaced = {}
        for encoder, own in on_d1.items():
            value = ordinal[encoder, "d1"][position] or 0.0
            replaced[encoder] = {"d1": [1 - value / 4 if variant == "ordinal_mae" else value, *own["d1"][1:]]}
        right[variant, "d1"] = plain_numbers(list(plain_crs(on_d1).values()), list(plain_crs(replaced).values()))
        assert rows[variant, "d1"]["n_encoders"] == len(on_d1)
    assert rows.keys() == right.keys()
    for key, numbers in right.items():
        for name in NUMBERS:
            assert rows[key][name] == pytest.approx(numbers[name], abs=1e-12), (key, name)


def test_who_is_no_member_and_the_order_move_nothing() -> None:
    cells, variants, ordinal = random_inputs(3, 7)
    panel = panel_from(cells)
    rows = analyse(variants, ordinal, panel)
    late = {("late", "d1", axis, variant): 0.99 for axis, variant in AXIS_VARIANTS}
    more = {**ordinal, ("late", "d1"): (0.99, 0.0)}
    assert analyse(dict(reversed((variants | late).items())), dict(reversed(more.items())), panel) == rows


def test_names_move_nothing() -> None:
    cells, variants, ordinal = random_inputs(5, 8)
    names = {encoder: f"x{9 - int(encoder[1:])}" for encoder in cells}
    renamed = analyse(
        {(names[e], *rest): value for (e, *rest), value in variants.items()},  # type: ignore[misc]
        {(names[e], d): values for (e, d), values in ordinal.items()},
        panel_from({names[e]: own for e, own in cells.items()}),
    )
    for key, row in analyse(variants, ordinal, panel_from(cells)).items():
        for name in NUMBERS:
            assert renamed[key][name] == pytest.approx(row[name], abs=1e-12)


def test_percentile_anchors_leave_the_extremes_beyond() -> None:
    # 21 members at 0, .05, ..., 1 on every axis: the 5th and 95th percentile are .05 and .95, so only the ends are
    # clipped; the order stays, and the middle does not move.
    cells: Cells = {f"e{i:02}": {"d0": [i / 20] * 4} for i in range(21)}
    row = analyse(same_variants(cells), {}, panel_from(cells))["percentile_anchors", ""]
    # P separates the ends from their neighbours although B and W do not
    assert row["tau_b"] == pytest.approx(1.0, abs=1e-12)
    # B and W move by (x - .05) / .9 - x = (x - .5) / 9, at most .05, but at the two ends 0
    moved = [abs(i / 20 - 0.5) / 9 for i in range(1, 20)]
    assert row["mean_absolute_crs_shift"] == pytest.approx(0.5 * sum(moved) / 21, abs=1e-12)
    assert row["mean_crs_shift"] == pytest.approx(0.0, abs=1e-12)


def test_a_member_near_chance_has_no_chance_corrected_axis() -> None:
    cells, variants, ordinal = random_inputs(2, 7)
    flagged = {
        key: None if key[0] == "e03" and key[3] == "chance_corrected" else value for key, value in variants.items()
    }
    rows = analyse(flagged, ordinal, panel_from(cells), "near_chance")
    row = rows["chance_corrected", ""]
    assert (row["n_encoders"], row["tau_b"], row["mean_crs_shift"], row["reason"]) == (7, None, None, "near_chance")
    assert rows["corruption_only", ""]["reason"] is None


def test_missing_values_are_incomplete() -> None:
    cells, variants, ordinal = random_inputs(2, 7)
    rows = analyse({}, {}, panel_from(cells))
    for key, row in rows.items():
        assert row["reason"] == (None if key[0] == "percentile_anchors" else "incomplete")
    cell = next(key for key in ordinal if key[1] == "d1")
    rows = analyse(variants, {**ordinal, cell: (None, 0.5)}, panel_from(cells))
    assert rows["qwk", "d1"]["reason"] == "incomplete"
    assert rows["ordinal_mae", "d1"]["tau_b"] is not None


def test_chance_correction_with_the_shift_term_is_not_compared_with_a_panel_without_it() -> None:
    cells, variants, ordinal = random_inputs(2, 7)
    panel = panel_from(cells)
    conditions = panel.conditions.model_copy(update={"robustness_variant": "corruption_only"})
    rows = analyse(variants, ordinal, panel.model_copy(update={"conditions": conditions}))
    assert (rows["chance_corrected", ""]["tau_b"], rows["chance_corrected", ""]["reason"]) == (None, "other_robustness")
    elsewhere = {e: {"d1": own.get("d1", [0.1, 0.2, 0.3, 0.4])} for e, own in cells.items()}
    panel = panel_from(elsewhere)
    rows = analyse(same_variants(elsewhere), {}, panel.model_copy(update={"conditions": conditions}))
    assert rows["chance_corrected", ""]["reason"] is None


def test_one_two_and_equal_members() -> None:
    for names, tau in (("a", None), ("ab", 1.0)):
        few = {encoder: HAND[encoder] for encoder in names}
        row = analyse(same_variants(few), {}, panel_from(few))["brier", ""]
        assert (row["n_encoders"], row["tau_b"], row["top_3_overlap"]) == (len(names), tau, None)
        assert (row["mean_crs_shift"], row["reason"]) == (0.0, "too_few_units")
    equal: Cells = dict.fromkeys("abcdefghijklm", HAND["b"])
    row = analyse(same_variants(equal), {}, panel_from(equal))["brier", ""]
    assert (row["tau_b"], row["top_3_overlap"], row["mean_crs_shift"]) == (None, 1.0, 0.0)
    assert row["reason"] == "no_spread"
