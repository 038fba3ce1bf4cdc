"""Odd panels and encoders: each has its designed rows, reasons and numbers in all three tables of the score."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest

from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.scores.crs import crs_scores
from crsbench_assets.scores.panel import Panel, freeze
from crsbench_assets.scores.profile import axis_values, provisional_robustness_variant
from crsbench_assets.scores.ranks import ranks
from crsbench_assets.tables.registry import TABLES
from crsbench_assets_tests.scores.conftest import (
    DELTA,
    MEMBERS,
    Cohort,
    conditions_of,
    encoders_frame,
    freeze_cohort,
    values_frame,
)
from crsbench_assets_tests.tables.rows import written

PARTS = ("crs", "pareto", "balance", "worst")
PROFILE = tuple(f"x_{axis}" for axis in AXES)
EVERYWHERE = ("near", "far")


class Scored:
    """The three tables of a cohort against a panel, as they would be stored."""

    def __init__(self, values: pl.DataFrame, encoders: pl.DataFrame, panel: Panel, protocol: Protocol) -> None:
        scores, cells = crs_scores(values, encoders, panel, protocol, code_version=1)
        placed = ranks(scores, encoders)
        self.rows = {row["encoder_id"]: row for row in written(scores, "crs_scores").to_dicts()}
        self.ranks = {row["encoder_id"]: row for row in written(placed, "ranks").to_dicts()}
        self.cells: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        for row in written(cells, "cell_scores").to_dicts():
            self.cells.setdefault((row["encoder_id"], row["dataset_id"]), {})[row["axis"]] = row

    def reasons(self, encoder: str, dataset: str) -> list[str | None]:
        return [self.cells[encoder, dataset][axis]["reason"] for axis in AXES]

    def parts(self, encoder: str) -> list[float]:
        return [self.rows[encoder][part] for part in PARTS]


def scored(cohort: Cohort, panel: Panel, protocol: Protocol, controls: tuple[str, ...] = ()) -> Scored:
    return Scored(values_frame(cohort), encoders_frame(cohort, controls), panel, protocol)


def test_every_cell_by_hand(panel: Panel, protocol: Protocol) -> None:
    # P among the members that have the cell: three on near, alpha and beta on far. Values and z in conftest.
    #
    #            near                                       far
    #            P              B              W   CRS       P                    B                W   CRS
    #   alpha    (1 + 1/3) / 2  1 - sqrt(.125) .5  .627267   (1 + 1/2) / 2        1 - sqrt(.0625)  .5  .7
    #   beta     (1 + 1/3) / 2  1 - sqrt(.125) .5  .627267   (1 - 1/2) / 2        1 - sqrt(.8125)  0   .154584
    #   gamma    (1 - 2/3) / 2  0              0   .083333   -
    #   delta    (1 + 1/3) / 2  1 - sqrt(.125) .5  .627267   (1 + 1/2 - 1/2) / 2  1 - sqrt(.3125)  0   .382295
    right = {
        ("alpha", "near"): (0.627267, 2 / 3, 1 - math.sqrt(0.125), 0.5),
        ("beta", "near"): (0.627267, 2 / 3, 1 - math.sqrt(0.125), 0.5),
        ("gamma", "near"): (0.083333, 1 / 6, 0.0, 0.0),
        ("delta", "near"): (0.627267, 2 / 3, 1 - math.sqrt(0.125), 0.5),
        ("alpha", "far"): (0.7, 0.75, 0.75, 0.5),
        ("beta", "far"): (0.154584, 0.25, 1 - math.sqrt(0.8125), 0.0),
        ("delta", "far"): (0.382295, 0.5, 1 - math.sqrt(0.3125), 0.0),
    }
    found = scored(MEMBERS | DELTA, panel, protocol)
    assert found.cells.keys() == right.keys()
    for cell, parts in right.items():
        for row in found.cells[cell].values():
            assert [row[part] for part in PARTS] == pytest.approx(parts, abs=1e-6)


def test_missing_cell(panel: Panel, protocol: Protocol) -> None:
    whole = scored(MEMBERS | DELTA, panel, protocol)
    cohort = MEMBERS | DELTA | {"late": MEMBERS["alpha"]}
    values = values_frame(cohort).filter((pl.col("encoder_id") != "late") | (pl.col("dataset_id") != "far"))
    found = Scored(values, encoders_frame(cohort), panel, protocol)
    row = found.rows["late"]
    assert (row["status"], row["reason"], row["n_datasets"]) == ("incomplete", "incomplete", 2)
    assert {row[name] for name in (*PARTS, *PROFILE, "rank_panel")} == {None}
    assert found.reasons("late", "far") == ["incomplete"] * 4
    assert found.cells["late", "near"]["robustness"]["crs"] == whole.cells["alpha", "near"]["robustness"]["crs"]
    place = found.ranks["late"]
    assert (place["rank"], place["n_ranked"], place["reason"]) == (None, 4, "incomplete")
    for name in MEMBERS | DELTA:
        assert found.rows[name] == whole.rows[name]
        assert found.ranks[name] == whole.ranks[name]


def cell_axes_of(robustness: dict[tuple[str, str], tuple[float | None, float | None]]) -> pl.DataFrame:
    """Return axes of the members whose robustness with and without the shift term is given; the rest is MEMBERS'."""
    rows = []
    for (encoder, dataset), (with_shift, without) in robustness.items():
        values = MEMBERS[encoder][dataset]
        own = [(axis, "primary", value) for axis, value in zip(AXES[:3], values[:3], strict=True)]
        own += [("robustness", "primary", with_shift), ("robustness", "corruption_only", without)]
        for axis, variant, value in own:
            reason = "no_access" if value is None else None
            rows.append(
                {
                    "encoder_id": encoder,
                    "dataset_id": dataset,
                    "axis": axis,
                    "variant": variant,
                    "value": value,
                    "reason": reason,
                }
            )
    return pl.DataFrame(rows, schema=TABLES["cell_axes"].polars_schema())


def test_without_the_shift_target_nobody_is_scored_with_it(protocol: Protocol) -> None:
    # near has a shift target that nobody may read; far has none.
    axes = cell_axes_of(
        {
            (encoder, dataset): (None if dataset == "near" else values[3], values[3])
            for encoder, cells in MEMBERS.items()
            for dataset, values in cells.items()
        }
    )
    variant = provisional_robustness_variant(axes, MEMBERS.keys(), {"near"})
    assert variant == "corruption_only"
    conditions = conditions_of(protocol).model_copy(update={"robustness_variant": variant})
    encoders, values = encoders_frame(MEMBERS), axis_values(axes, variant)
    panel, incomplete = freeze("demo", values, encoders, conditions)
    assert (panel.members, incomplete) == (("alpha", "beta", "gamma"), ())
    found = Scored(values, encoders, panel, protocol)
    assert {row["status"] for row in found.rows.values()} == {"ok"}
    assert [found.ranks[name]["rank"] for name in MEMBERS] == [1, 2, 3]


def test_who_alone_lacks_the_shift_target_is_incomplete(protocol: Protocol) -> None:
    axes = cell_axes_of(
        {
            (encoder, dataset): (None if (encoder, dataset) == ("beta", "near") else values[3], values[3])
            for encoder, cells in MEMBERS.items()
            for dataset, values in cells.items()
        }
    )
    variant = provisional_robustness_variant(axes, MEMBERS.keys(), {"near"})
    assert variant == "shift"
    encoders, values = encoders_frame(MEMBERS), axis_values(axes, variant)
    panel, incomplete = freeze("demo", values, encoders, conditions_of(protocol))
    assert (panel.members, incomplete) == (("alpha", "gamma"), ("beta",))
    found = Scored(values, encoders, panel, protocol)
    assert (found.rows["beta"]["status"], found.rows["beta"]["crs"]) == ("incomplete", None)
    assert found.reasons("beta", "near") == ["incomplete"] * 3 + ["no_access"]
    # alpha holds every anchor of far alone, so that cell has no range
    assert found.reasons("beta", "far") == ["degenerate_axis"] * 4
    assert [found.ranks[name]["rank"] for name in ("alpha", "beta", "gamma")] == [1, None, 2]


def test_one_dataset_only(protocol: Protocol) -> None:
    cohort: Cohort = {name: {"near": cells["near"]} for name, cells in MEMBERS.items()}
    found = scored(cohort, freeze_cohort(cohort, protocol), protocol)
    for name, row in found.rows.items():
        assert (row["n_datasets"], row["status"]) == (1, "ok")
        assert found.parts(name) == [found.cells[name, "near"]["robustness"][part] for part in PARTS]
    assert [found.ranks[name]["rank"] for name in cohort] == [1, 1, 3]


@pytest.mark.parametrize(
    ("second", "right"),
    [
        # apart: neither dominates, and one has three axes: B = 1 - sqrt(.75) and .5
        ((0.1, 0.9, 0.9, 0.9), ([0.25 + 0.3 * (1 - math.sqrt(0.75)), 0.5, 1 - math.sqrt(0.75), 0], [0.4, 0.5, 0.5, 0])),
        # dominated: P = (1 + 1/2) / 2 and (1 - 1/2) / 2
        ((0.1, 0.1, 0.1, 0.1), ([0.875, 0.75, 1, 1], [0.125, 0.25, 0, 0])),
    ],
)
def test_two_encoders_only(
    protocol: Protocol, second: tuple[float, ...], right: tuple[list[float], list[float]]
) -> None:
    first = (0.9, 0.1, 0.1, 0.1) if second[1] > 0.5 else (0.9, 0.9, 0.9, 0.9)
    cohort: Cohort = {"one": {"near": first}, "two": {"near": second}}
    found = scored(cohort, freeze_cohort(cohort, protocol), protocol)
    assert found.parts("one") == pytest.approx(right[0], abs=1e-12)
    assert found.parts("two") == pytest.approx(right[1], abs=1e-12)
    better = "two" if right[1][0] > right[0][0] else "one"
    assert {name: row["rank"] for name, row in found.ranks.items()} == {
        name: 1 if name == better else 2 for name in cohort
    }


@pytest.mark.parametrize("n", [1, 2, 15])
def test_all_encoders_equal(protocol: Protocol, n: int) -> None:
    # Every axis is in the middle: P = .5, B = .5, W = .5, for an outsider too, whatever its values.
    cohort: Cohort = {f"e{i:02}": dict.fromkeys(EVERYWHERE, (0.8, 0.9, 0.95, 0.99)) for i in range(n)}
    panel = freeze_cohort(cohort, protocol)
    found = scored(cohort | {"other": dict.fromkeys(EVERYWHERE, (0.99, 0.1, 0.5, 0.5))}, panel, protocol)
    for name, row in found.rows.items():
        assert found.parts(name) == [0.5] * 4
        assert (row["status"], row["reason"], row["rank_panel"], found.ranks[name]["rank"]) == ("ok", None, 1, 1)
        for dataset in EVERYWHERE:
            assert found.reasons(name, dataset) == ["degenerate_axis"] * 4


@pytest.mark.parametrize(("width", "is_degenerate"), [(0.0, True), (5e-13, True), (2e-12, False)])
def test_an_axis_without_range(protocol: Protocol, width: float, is_degenerate: bool) -> None:
    cohort: Cohort = {
        "low": {"near": (0.0, 0.0, 0.0, 0.0)},
        "high": {"near": (1.0, 1.0, 1.0, width)},
    }
    panel = freeze_cohort(cohort, protocol)
    found = scored(cohort | {"star": {"near": (0.5, 0.5, 0.5, 9.0)}}, panel, protocol)
    positions = [found.cells[name, "near"]["robustness"]["z"] for name in ("low", "high", "star")]
    assert positions == ([0.5] * 3 if is_degenerate else [0.0, 1.0, 1.0])
    for name in ("low", "high", "star"):
        assert found.reasons(name, "near") == [None] * 3 + ["degenerate_axis" if is_degenerate else None]
        assert found.rows[name]["reason"] is None
        assert found.rows[name]["x_robustness"] == found.cells[name, "near"]["robustness"]["z"]
    # high dominates low on the other three, either way; the outsider gains nothing on an axis that tells nobody apart
    assert (found.rows["high"]["pareto"], found.rows["low"]["pareto"]) == (0.75, 0.25)
    assert found.rows["star"]["pareto"] == (0.5 if is_degenerate else 0.75)


@pytest.mark.parametrize("name", ["a-star", "z-star"])
def test_better_than_every_anchor(panel: Panel, protocol: Protocol, name: str) -> None:
    star: Cohort = {name: {"near": (1.5, 1.25, 2.0, 1.5), "far": (0.875, 0.75, 1.0, 0.75)}}
    before = scored(MEMBERS | DELTA, panel, protocol)
    found = scored(MEMBERS | DELTA | star, panel, protocol)
    # R on far has no range, so x is .75 there, and nothing reaches 1: B = 1 - sqrt(.0625 / 4), W = .75
    assert found.parts(name) == [0.5 + 0.3 * 0.875 + 0.2 * 0.75, 1.0, 0.875, 0.75]
    assert [found.rows[name][column] for column in PROFILE] == [1.0, 1.0, 1.0, 0.75]
    assert (found.rows[name]["rank_panel"], found.ranks[name]["rank"]) == (1, 1)
    assert [found.cells[name, "near"][axis]["z_raw"] for axis in AXES] == [1.5, 1.25, 2.0, 1.5]
    assert {found.cells[name, "near"][axis]["crs"] for axis in AXES} == {1.0}
    for other in MEMBERS | DELTA:
        assert found.rows[other] == before.rows[other]
        assert found.ranks[other]["rank"] == before.ranks[other]["rank"] + 1
    assert {key: rows for key, rows in found.cells.items() if key[0] != name} == before.cells


def test_a_control_better_than_everybody_takes_no_rank(panel: Panel, protocol: Protocol) -> None:
    star: Cohort = {"control": {"near": (2.0,) * 4, "far": (2.0,) * 4}}
    found = scored(MEMBERS | star, panel, protocol, controls=("control",))
    assert found.rows["control"]["crs"] > 0.9
    place = found.ranks["control"]
    assert (place["rank"], place["n_ranked"], place["reason"]) == (None, 3, None)
    assert [found.ranks[name]["rank"] for name in MEMBERS] == [1, 2, 3]
