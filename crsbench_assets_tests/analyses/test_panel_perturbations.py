from __future__ import annotations

import json
import math
from typing import Any

import pytest

from crsbench_assets.analyses.panel_perturbations import panel_perturbations
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


def analyse(cells: Cells) -> list[dict[str, Any]]:
    found = panel_perturbations(panel_from(cells), RULES)
    written(found, "panel_perturbations")
    return found.to_dicts()


# One dataset, nobody dominates, so P is .5 for all. CRS = .25 + .3 B + .2 W from the positions of D, C, L and R.
#
#        of all four                                      without d: D, C, L from .4 to 1, R from 0 to .2
#        D C L  R     B                W     CRS          D C L  R     B                   W     CRS
#   a    1      0     1 - sqrt(.25)    0     .4           1      0     1 - sqrt(.25)       0     .4
#   b    .5     .1    1 - sqrt(.39)    .1    .382650      1/6    .5    1 - sqrt(.583333)   1/6   .354204
#   c    .4     .2    1 - sqrt(.43)    .2    .393277      0      1     1 - sqrt(.75)       0     .290192
#   d    0      1     1 - sqrt(.75)    0     .290192      -
#
# Of the three survivors b and c change places: one of three pairs, tau-b (2 - 1) / 3.
HAND: Cells = {
    "a": {"near": [1.0, 1.0, 1.0, 0.0]},
    "b": {"near": [0.5, 0.5, 0.5, 0.1]},
    "c": {"near": [0.4, 0.4, 0.4, 0.2]},
    "d": {"near": [0.0, 0.0, 0.0, 1.0]},
}


def test_four_members_by_hand() -> None:
    full = plain_crs(HAND)
    assert full == pytest.approx({"a": 0.4, "b": 0.382650, "c": 0.393277, "d": 0.290192}, abs=1e-6)
    without_d = plain_crs({encoder: own for encoder, own in HAND.items() if encoder != "d"})
    assert without_d == pytest.approx({"a": 0.4, "b": 0.354204, "c": 0.290192}, abs=1e-6)
    rows = analyse(HAND)
    assert [json.loads(row["dropped_encoders"]) for row in rows] == [["a"], ["b"], ["c"], ["d"]]
    assert {row["n_encoders"] for row in rows} == {3}
    assert rows[3]["tau_b"] == pytest.approx(1 / 3, abs=1e-12)
    # with three survivors the top 3 says nothing
    assert {(row["top_3_overlap"], row["reason"]) for row in rows} == {(None, "too_few_units")}


@pytest.mark.parametrize(
    ("m", "right"),
    [
        (15, {1: 15, 3: 200, 5: 200}),
        (12, {1: 12, 3: 200, 5: 200}),  # 220 and 792 subsets
        (8, {1: 8, 3: 56, 5: 56}),
        (7, {1: 7, 3: 35}),
        (6, {1: 6, 3: 20}),
        (5, {1: 5}),
        (2, {1: 2}),
        (1, {}),
    ],
)
def test_how_many_of_each_size(m: int, right: dict[int, int]) -> None:
    rows = analyse(random_cells(1, m))
    for n_dropped in (1, 3, 5):
        of_size = [row for row in rows if row["n_dropped"] == n_dropped]
        subsets = [json.loads(row["dropped_encoders"]) for row in of_size]
        assert len(subsets) == right.get(n_dropped, 0)
        assert len({tuple(subset) for subset in subsets}) == len(subsets)
        assert all(subset == sorted(subset) and len(subset) == n_dropped for subset in subsets)
        assert all(row["n_encoders"] == m - n_dropped for row in of_size)
        assert len({row["perturbation_id"] for row in of_size}) == len(of_size)


def test_every_member_is_dropped_about_as_often_as_any_other() -> None:
    rows = [row for row in analyse(random_cells(1, 15)) if row["n_dropped"] == 3]
    counts = [sum(f"e{i:02}" in json.loads(row["dropped_encoders"]) for row in rows) for i in range(15)]
    assert sum(counts) == 600
    # binomial with 200 draws of probability 1/5: mean 40, sd 5.7
    assert max(abs(count - 40) for count in counts) < 4 * math.sqrt(200 * 0.2 * 0.8)


@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_plain_python(seed: int) -> None:
    cells = random_cells(seed)
    full = plain_crs(cells)
    for row in analyse(cells):
        dropped = set(json.loads(row["dropped_encoders"]))
        rest = {encoder: own for encoder, own in cells.items() if encoder not in dropped}
        x, y = [full[encoder] for encoder in rest], list(plain_crs(rest).values())
        assert row["tau_b"] == (None if len(rest) < 2 else pytest.approx(plain_tau_b(x, y), abs=1e-12))
        assert row["top_3_overlap"] == pytest.approx(plain_overlap(x, y, 3), abs=1e-12)


def test_order_of_the_frame_moves_nothing_and_names_no_leave_one_out() -> None:
    cells = random_cells(4, 7)
    rows = analyse(cells)
    assert analyse(dict(reversed(cells.items()))) == rows
    renamed = {f"x{9 - int(encoder[1:])}": own for encoder, own in cells.items()}
    found = {row["dropped_encoders"]: row for row in analyse(renamed)}
    for row in rows:
        if row["n_dropped"] == 1:
            name = json.dumps([f"x{9 - int(json.loads(row['dropped_encoders'])[0][1:])}"])
            for column in ("tau_b", "top_3_overlap"):
                assert found[name][column] == pytest.approx(row[column], abs=1e-12)


def test_two_and_equal_members_have_no_order() -> None:
    two = analyse({"a": HAND["a"], "b": HAND["b"]})
    assert [(row["n_encoders"], row["tau_b"], row["reason"]) for row in two] == [(1, None, "too_few_units")] * 2
    equal = analyse(dict.fromkeys("abcde", HAND["a"]))
    assert {(row["tau_b"], row["top_3_overlap"], row["reason"]) for row in equal} == {(None, 1.0, "no_spread")}


def test_an_axis_without_range_and_a_dataset_of_one_member() -> None:
    cells = {encoder: {"near": [*own["near"][:3], 0.5]} for encoder, own in HAND.items()}
    cells |= {"e": {"near": [0.4, 0.8, 0.2, 0.5], "far": [0.4, 0.8, 0.2, 0.5]}}
    for row in analyse(cells):
        rest = {e: own for e, own in cells.items() if e not in json.loads(row["dropped_encoders"])}
        x, y = [plain_crs(cells)[e] for e in rest], list(plain_crs(rest).values())
        assert row["tau_b"] == pytest.approx(plain_tau_b(x, y), abs=1e-12)
        assert row["reason"] is None
