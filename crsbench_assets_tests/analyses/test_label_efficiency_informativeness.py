from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest
from scipy import stats

from crsbench_assets.analyses.label_efficiency_informativeness import label_efficiency_informativeness
from crsbench_assets.scores.panel import Panel
from crsbench_assets_tests.analyses.conftest import panel_of
from crsbench_assets_tests.tables.rows import written

Cells = Mapping[tuple[str, str], tuple[float | None, float | None, float | None]]
"""(encoder, dataset) -> full-label AUROC, retention, AULC."""

# Three members; gamma has one dataset. A is macro AUROC at all labels, L retention; AULC is A less a constant per
# dataset. Below, what is left after the dataset's mean is taken off, and the encoders' means.
#
#              near            far            near          far           mean, raw     mean, centred
#              A     L        A     L         A     L       A     L       A     L       A       L
#   alpha     .9    .8       .7    .9        .1    0      .05    0       .8    .85     .075    0
#   beta      .8    .9       .6    .9        0     .1    -.05    0       .7    .9     -.025    .05
#   gamma     .7    .7       -     -        -.1   -.1      -     -       .7    .7     -.1     -.1
MEMBERS: Cells = {
    ("alpha", "near"): (0.9, 0.8, 0.85),
    ("alpha", "far"): (0.7, 0.9, 0.6),
    ("beta", "near"): (0.8, 0.9, 0.75),
    ("beta", "far"): (0.6, 0.9, 0.5),
    ("gamma", "near"): (0.7, 0.7, 0.65),
}


def axes_frame(cells: Cells) -> pl.DataFrame:
    rows = [
        (encoder, dataset, axis, variant, value)
        for (encoder, dataset), of_cell in cells.items()
        for (axis, variant), value in zip(
            (("discrimination", "primary"), ("label_efficiency", "primary"), ("label_efficiency", "aulc")),
            of_cell,
            strict=True,
        )
    ]
    # another variant and another axis, which must not be taken
    rows += [(encoder, dataset, "label_efficiency", "chance_corrected", 0.123) for encoder, dataset in cells]
    rows += [(encoder, dataset, "calibration", "primary", 0.321) for encoder, dataset in cells]
    schema = {"encoder_id": pl.String, "dataset_id": pl.String, "axis": pl.String, "variant": pl.String}
    return pl.DataFrame(rows, schema=schema | {"value": pl.Float64}, orient="row")


def panel_from(cells: Cells) -> Panel:
    datasets: dict[str, list[str]] = {}
    for encoder, dataset in cells:
        datasets.setdefault(encoder, []).append(dataset)
    return panel_of(datasets)


def analyse(cells: Cells, panel: Panel | None = None) -> dict[tuple[str, str, str], dict[str, Any]]:
    found = label_efficiency_informativeness(axes_frame(cells), panel or panel_from(cells))
    written(found, "label_efficiency_informativeness")
    assert found.height == 8
    return {(row["quantity"], row["level"], row["centring"]): row for row in found.to_dicts()}


def test_every_row_by_hand() -> None:
    rows = analyse(MEMBERS)
    # (Pearson, Spearman), products and squares of the deviations in the table above
    right = {
        ("encoder", "raw"): (1 / math.sqrt(13), 0.0),
        ("encoder", "within_dataset"): (19 / math.sqrt(37 * 28), 0.5),
        ("cell", "raw"): (-1 / math.sqrt(26), -2.5 / math.sqrt(9.5 * 8)),
        ("cell", "within_dataset"): (1 / math.sqrt(5), 4 / math.sqrt(10 * 8)),
    }
    for (level, centring), (pearson, spearman) in right.items():
        row = rows["retention", level, centring]
        assert row["n_units"] == (3 if level == "encoder" else 5)
        assert row["pearson"] == pytest.approx(pearson, abs=1e-12), row
        assert row["spearman"] == pytest.approx(spearman, abs=1e-12), row
        assert row["reason"] is None
    for level in ("encoder", "cell"):
        row = rows["aulc", level, "within_dataset"]
        assert (row["pearson"], row["spearman"]) == pytest.approx((1.0, 1.0), abs=1e-12)
    assert {row["panel_id"] for row in rows.values()} == {panel_from(MEMBERS).panel_id}


def plain_units(values: dict[tuple[str, str], float], level: str, centring: str) -> list[float]:
    if centring == "within_dataset":
        of_dataset: dict[str, list[float]] = {}
        for (_, dataset), value in values.items():
            of_dataset.setdefault(dataset, []).append(value)
        values = {key: value - sum(of_dataset[key[1]]) / len(of_dataset[key[1]]) for key, value in values.items()}
    if level == "cell":
        return list(values.values())
    encoders = {encoder for encoder, _ in values}
    return [
        sum(own) / len(own)
        for encoder in sorted(encoders)
        for own in [[value for key, value in values.items() if key[0] == encoder]]
    ]


def random_cells(seed: int) -> dict[tuple[str, str], tuple[float, float, float]]:
    draw = random.Random(seed)
    datasets = [f"d{i}" for i in range(draw.randint(1, 4))]
    cells = {}
    for e in range(draw.randint(3, 12)):
        own = [dataset for dataset in datasets if draw.random() < 0.8] or datasets[:1]
        cells |= {(f"e{e}", dataset): (draw.random(), draw.random(), draw.random()) for dataset in own}
    return cells


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_plain_python(seed: int) -> None:
    cells = random_cells(seed)
    for (quantity, level, centring), row in analyse(cells).items():
        auroc = plain_units({key: value[0] for key, value in cells.items()}, level, centring)
        position = 1 if quantity == "retention" else 2
        other = plain_units({key: value[position] for key, value in cells.items()}, level, centring)
        assert row["n_units"] == len(auroc)
        if max(auroc) - min(auroc) < 1e-12 or max(other) - min(other) < 1e-12:
            assert row["reason"] == "no_spread"
            continue
        assert row["pearson"] == pytest.approx(stats.pearsonr(auroc, other).statistic, abs=1e-12)
        assert row["spearman"] == pytest.approx(stats.spearmanr(auroc, other).statistic, abs=1e-12)


def test_order_and_names_of_encoders_move_nothing() -> None:
    cells = random_cells(3)
    rows = analyse(cells)
    assert analyse(dict(reversed(cells.items()))) == rows
    renamed = {(e[::-1], d): value for (e, d), value in cells.items()}  # e10 before e2 becomes 01e before 2e
    for key, row in analyse(renamed).items():
        for name in ("pearson", "spearman"):
            assert row[name] == pytest.approx(rows[key][name], abs=1e-12)


def test_who_is_no_member_moves_nothing() -> None:
    others: Cells = {("untrained", "near"): (0.5, 1.0, 0.5), ("late", "far"): (0.99, 0.1, 0.2)}
    assert analyse({**MEMBERS, **others}, panel_from(MEMBERS)) == analyse(MEMBERS)


def test_a_member_without_a_value_leaves_nothing_to_say() -> None:
    lacking: Cells = {**MEMBERS, ("beta", "far"): (0.6, 0.9, None)}
    rows = analyse(lacking)
    for (quantity, level, _), row in rows.items():
        if quantity == "retention":
            assert row["reason"] is None
        else:
            assert (row["pearson"], row["spearman"], row["reason"]) == (None, None, "incomplete")
            assert row["n_units"] == (2 if level == "encoder" else 4)
    nothing = label_efficiency_informativeness(axes_frame({}), panel_from(MEMBERS))
    assert nothing.select("n_units", "pearson", "reason").unique().rows() == [(0, None, "incomplete")]


def test_two_encoders_and_equal_encoders() -> None:
    two = {key: value for key, value in MEMBERS.items() if key[0] != "gamma"}
    rows = analyse(two)
    assert rows["retention", "encoder", "raw"]["reason"] == "too_few_units"
    assert rows["retention", "cell", "raw"]["reason"] is None
    equal = {
        (encoder, dataset): value
        for dataset, value in {"near": (0.9, 0.8, 0.85), "far": (0.7, 0.9, 0.6)}.items()
        for encoder in ("a", "b", "c")
    }
    reasons = {key: row["reason"] for key, row in analyse(equal).items()}
    assert reasons == {key: None if key[1:] == ("cell", "raw") else "no_spread" for key in reasons}
