from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest
from scipy import stats

from crsbench_assets.analyses.corruption_miscalibration import corruption_miscalibration
from crsbench_assets.scores.panel import Panel
from crsbench_assets_tests.analyses.conftest import panel_of
from crsbench_assets_tests.tables.rows import written

CONDITIONS = ("noise-s1", "noise-s5", "blur-s1", "blur-s5")
Cells = Mapping[tuple[str, str], tuple[Sequence[float | None], float | None]]
"""(encoder, dataset) -> ECE clean and under the four conditions, corruption-only robustness."""

# ECE clean and under the four conditions; rises; loss of AUROC is 1 - R.
#
#                  clean  n1   n5   b1   b5     rises              mean   worst        R     loss
#   alpha near      .1    .1   .2   .1   .4     0   .1   0   .3    .1     .3 blur-s5   .9    .1
#   alpha far       .2    .4   .4   .2   .2     .2  .2   0   0     .1     .2 noise-s1  .8    .2
#   beta  near      .2    .2   .6   .6   .2     0   .4   .4  0     .2     .4 noise-s5  .7    .3
#   gamma near      .3    .2   .2   .3   .3    -.1 -.1   0   0    -.05    0  blur-s1  1.1   -.1
CELLS: Cells = {
    ("alpha", "near"): ((0.1, 0.1, 0.2, 0.1, 0.4), 0.9),
    ("alpha", "far"): ((0.2, 0.4, 0.4, 0.2, 0.2), 0.8),
    ("beta", "near"): ((0.2, 0.2, 0.6, 0.6, 0.2), 0.7),
    ("gamma", "near"): ((0.3, 0.2, 0.2, 0.3, 0.3), 1.1),
}


def datasets_of(cells: Cells) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for encoder, dataset in cells:
        found.setdefault(encoder, []).append(dataset)
    return found


def analyse(
    cells: Cells,
    panel: Panel | None = None,
    scored: Mapping[str, Sequence[str]] | None = None,
    reason: str | None = None,
) -> dict[tuple[str, str], dict[str, Any]]:
    rows = [
        (encoder, dataset, fraction, condition, ece if fraction == 1 else 0.9, reason if ece is None else None)
        for (encoder, dataset), (eces, _) in cells.items()
        for fraction in (0.1, 1.0)
        for condition, ece in zip(("clean", *CONDITIONS, "shift_abroad"), (*eces, 0.9), strict=True)
    ]
    names = ("encoder_id", "dataset_id", "label_fraction", "condition_id", "ece_mean", "reason")
    types = (pl.String, pl.String, pl.Float64, pl.String, pl.Float64, pl.String)
    aggregates = pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")
    axes = pl.DataFrame(
        [
            (encoder, dataset, axis, variant, robustness if variant == "corruption_only" else 0.3, None)
            for (encoder, dataset), (_, robustness) in cells.items()
            for axis, variant in (
                ("robustness", "primary"),
                ("robustness", "corruption_only"),
                ("calibration", "primary"),
            )
        ],
        schema={
            **dict.fromkeys(("encoder_id", "dataset_id", "axis", "variant"), pl.String()),
            "value": pl.Float64(),
            "reason": pl.String(),
        },
        orient="row",
    )
    active = scored or datasets_of(cells)
    encoders = pl.DataFrame(
        [(encoder, list(own)) for encoder, own in active.items()],
        schema={"encoder_id": pl.String, "dataset_ids": pl.List(pl.String)},
        orient="row",
    )
    found = corruption_miscalibration(aggregates, axes, encoders, panel or panel_of(datasets_of(cells)), CONDITIONS)
    written(found, "corruption_miscalibration")
    assert found.select("encoder_id", "dataset_id").rows() == sorted(found.select("encoder_id", "dataset_id").rows())
    return {(row["encoder_id"], row["dataset_id"]): row for row in found.to_dicts()}


def test_every_number_by_hand() -> None:
    rows = analyse(CELLS)
    right = {
        ("alpha", "near"): (0.1, 0.3, "blur-s5", 0.1, 0.2),
        ("alpha", "far"): (0.1, 0.2, "noise-s1", 0.2, 0.1),
        ("beta", "near"): (0.2, 0.4, "noise-s5", 0.3, 0.2),
        ("gamma", "near"): (-0.05, 0.0, "blur-s1", -0.1, 0.2),
    }
    assert rows.keys() == right.keys()
    for cell, (mean, worst, condition, loss, largest) in right.items():
        row = rows[cell]
        numbers = [row[name] for name in ("mean_delta_ece", "worst_delta_ece", "mean_relative_auroc_loss")]
        assert numbers == pytest.approx([mean, worst, loss], abs=1e-12)
        assert (row["worst_condition_id"], row["n_conditions"], row["n_cells"]) == (condition, 4, 4)
        assert row["max_mean_delta_ece"] == pytest.approx(largest, abs=1e-12)
        # losses less .125: -.025 .075 .175 -.225; rises less .0875: .0125 .0125 .1125 -.1375
        # products -.0003125 .0009375 .0196875 .0309375, squares sum to .0875 and .031875
        assert row["pearson"] == pytest.approx(0.05125 / (0.0875 * 0.031875) ** 0.5, abs=1e-12)
        assert row["reason"] is None


def random_cells(seed: int) -> Cells:
    draw = random.Random(seed)
    return {
        (f"e{e}", dataset): ([draw.random() for _ in range(5)], draw.uniform(0.5, 1.1))
        for e in range(draw.randint(3, 9))
        for dataset in ("near", *[name for name in ("far", "mid") if draw.random() < 0.8])
    }


@pytest.mark.parametrize("seed", range(10))
def test_agrees_with_plain_python(seed: int) -> None:
    cells = random_cells(seed)
    rises = {}
    for cell, (eces, _) in cells.items():
        clean, *others = (ece for ece in eces if ece is not None)
        rises[cell] = [ece - clean for ece in others]
    means = {cell: sum(values) / 4 for cell, values in rises.items()}
    r = stats.pearsonr([1 - (robust or 0) for _, robust in cells.values()], list(means.values())).statistic
    for cell, row in analyse(cells).items():
        assert row["mean_delta_ece"] == pytest.approx(means[cell], abs=1e-12)
        assert row["worst_delta_ece"] == pytest.approx(max(rises[cell]), abs=1e-12)
        assert row["worst_condition_id"] == CONDITIONS[rises[cell].index(max(rises[cell]))]
        assert row["max_mean_delta_ece"] == pytest.approx(
            max(v for c, v in means.items() if c[1] == cell[1]), abs=1e-12
        )
        assert row["pearson"] == pytest.approx(r, abs=1e-12)


def test_order_and_names_of_encoders_move_nothing() -> None:
    cells = random_cells(2)
    rows = analyse(cells)
    assert analyse(dict(reversed(cells.items()))) == rows
    renamed = analyse({(f"x{9 - int(e[1:])}", d): value for (e, d), value in cells.items()})
    for (encoder, dataset), row in renamed.items():
        right = rows[f"e{9 - int(encoder[1:])}", dataset]
        for name in ("mean_delta_ece", "worst_delta_ece", "max_mean_delta_ece", "pearson"):
            assert row[name] == pytest.approx(right[name], abs=1e-12)


def test_who_is_no_member_has_a_row_and_moves_nothing() -> None:
    panel = panel_of(datasets_of(CELLS))
    late: Cells = {
        **CELLS,
        ("late", "near"): ((0.0, 0.9, 0.9, 0.9, 0.9), 0.1),
        ("late", "elsewhere"): ((0.0, 0.9, 0.9, 0.9, 0.9), 0.1),
    }
    rows = analyse(late, panel)
    assert ("late", "elsewhere") not in rows
    late_row = rows.pop(("late", "near"))
    assert rows == analyse(CELLS, panel)
    assert late_row["mean_delta_ece"] == pytest.approx(0.9)
    assert (late_row["max_mean_delta_ece"], late_row["pearson"]) == (
        rows["beta", "near"]["max_mean_delta_ece"],
        rows["beta", "near"]["pearson"],
    )


def test_a_missing_record_leaves_the_others_and_nothing_pooled() -> None:
    lacking: Cells = {**CELLS, ("beta", "near"): ((0.2, 0.2, None, 0.6, 0.2), 0.7)}
    rows = analyse(lacking, reason="missing_seed")
    own = rows["beta", "near"]
    assert (own["n_conditions"], own["mean_delta_ece"], own["worst_condition_id"]) == (3, None, None)
    assert (own["mean_relative_auroc_loss"], own["reason"]) == (pytest.approx(0.3), "missing_seed")
    other = rows["alpha", "near"]
    assert other["mean_delta_ece"] == pytest.approx(0.1)
    assert (other["n_cells"], other["pearson"], other["max_mean_delta_ece"], other["reason"]) == (
        3,
        None,
        None,
        "incomplete",
    )
    assert rows["alpha", "far"]["max_mean_delta_ece"] == pytest.approx(0.1)


def test_a_missing_cell_has_its_row() -> None:
    panel = panel_of(datasets_of(CELLS))
    without = {cell: value for cell, value in CELLS.items() if cell[0] != "gamma"}
    row = analyse(without, panel)["gamma", "near"]
    assert (row["n_conditions"], row["mean_delta_ece"], row["mean_relative_auroc_loss"], row["reason"]) == (
        0,
        None,
        None,
        "incomplete",
    )
    assert analyse(CELLS, panel, {**datasets_of(CELLS), "late": ["near"]})["late", "near"]["reason"] == "incomplete"
    no_axis: Cells = {**CELLS, ("gamma", "near"): (CELLS["gamma", "near"][0], None)}
    row = analyse(no_axis)["gamma", "near"]
    assert (row["mean_delta_ece"], row["mean_relative_auroc_loss"]) == (pytest.approx(-0.05), None)
    assert (row["n_cells"], row["max_mean_delta_ece"], row["reason"]) == (3, pytest.approx(0.2), "incomplete")


def test_few_and_equal_cells() -> None:
    two = analyse({cell: CELLS[cell] for cell in (("alpha", "near"), ("beta", "near"))})
    assert {(row["pearson"], row["reason"]) for row in two.values()} == {(None, "too_few_units")}
    equal = analyse({(name, "near"): CELLS["alpha", "near"] for name in ("a", "b", "c")})
    assert {(row["pearson"], row["reason"], row["n_cells"]) for row in equal.values()} == {(None, "no_spread", 3)}
