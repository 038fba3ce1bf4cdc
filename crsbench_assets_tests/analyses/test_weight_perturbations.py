from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from crsbench_assets.analyses.weight_perturbations import weight_perturbations
from crsbench_assets.config.protocol import AXES, ScoreRules
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

AXIS_COLUMNS = [f"weight_{axis}" for axis in AXES]
COMPONENT_COLUMNS = ["weight_pareto", "weight_balance", "weight_worst"]


def analyse(cells: Cells, rules: ScoreRules = RULES) -> list[dict[str, Any]]:
    found = weight_perturbations(panel_from(cells), rules)
    written(found, "weight_perturbations")
    return found.to_dicts()


# One dataset whose anchors are 0 and 1, so values are positions. P is .5 for all: nobody dominates.
#
#        D    C    L    R      declared: B             W     CRS        worst_heavy (.3, .2, .5): .15 + .2 B + .5 W
#   a    1    1    1    0      1 - sqrt(1/4)           0     .4         .25
#   b    .4   .4   .4   .4     1 - .6                  .4    .45        .43
#   c    0    0    0    1      1 - sqrt(3/4)           0     .290192    .176795
#   d    .9   .9   .9   .05    1 - sqrt(.233125)       .05   .415150    .278433
#
# robustness_heavy (.2, .2, .2, .4), B alone moves: a 1 - sqrt(.4) = .367544, b .4, c 1 - sqrt(.6) = .225403,
# d 1 - sqrt(.6 * .01 + .4 * .9025) = .394195; CRS .360263, .45, .317621, .378258. Both keep the order b, d, a, c.
HAND: Cells = {
    "a": {"near": [1.0, 1.0, 1.0, 0.0]},
    "b": {"near": [0.4, 0.4, 0.4, 0.4]},
    "c": {"near": [0.0, 0.0, 0.0, 1.0]},
    "d": {"near": [0.9, 0.9, 0.9, 0.05]},
}


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw 40 times, which are the first of the 1,000: a draw hangs on no other."""
    monkeypatch.setattr("crsbench_assets.analyses.weight_perturbations.N_DRAWS", 40)


@pytest.fixture(scope="module")
def hand() -> list[dict[str, Any]]:
    return analyse(HAND)


def test_four_members_by_hand(hand: list[dict[str, Any]]) -> None:
    right = {
        (0.25,) * 4: {"a": 0.4, "b": 0.45, "c": 0.290192, "d": 0.415150},
        (0.2, 0.2, 0.2, 0.4): {"a": 0.360263, "b": 0.45, "c": 0.317621, "d": 0.378258},
    }
    for weights, crs in right.items():
        assert plain_crs(HAND, axis_weights=weights) == pytest.approx(crs, abs=1e-6)
    rows = {row["perturbation_id"]: row for row in hand}
    for name in ("robustness_heavy", "worst_heavy"):
        assert (rows[name]["tau_b"], rows[name]["top_3_overlap"]) == pytest.approx((1.0, 1.0), abs=1e-12)
        assert rows[name]["is_top_3_unchanged"] is True


@pytest.mark.usefixtures("few_draws")
def test_a_top_three_that_changes() -> None:
    # b dominates e, so P is .6 for b and .4 for e; B of e is 1 - sqrt(.544375).
    #
    #               a        b       c          d          e
    #   declared    .4       .5      .290192    .415150    .328655      top 3: b d a
    #   worst_heavy .25      .46     .176795    .278433    .297436      top 3: b e d; e passes a and d
    cells: Cells = {**HAND, "e": {"near": [0.25, 0.25, 0.25, 0.3]}}
    right = {"a": 0.25, "b": 0.46, "c": 0.176795, "d": 0.278433, "e": 0.297436}
    assert plain_crs(cells, component_weights=(0.3, 0.2, 0.5)) == pytest.approx(right, abs=1e-6)
    row = next(row for row in analyse(cells) if row["perturbation_id"] == "worst_heavy")
    assert row["top_3_overlap"] == pytest.approx(2 / 3, abs=1e-12)
    assert row["is_top_3_unchanged"] is False
    assert row["tau_b"] == pytest.approx(1 - 2 * 2 / 10, abs=1e-12)


@pytest.mark.usefixtures("few_draws")
def test_a_draw_hangs_on_no_other(hand: list[dict[str, Any]]) -> None:
    for row in analyse(HAND):
        assert row in hand


def test_what_is_drawn_and_named(hand: list[dict[str, Any]]) -> None:
    for weights_of, own, others, declared, names in (
        ("axes", AXIS_COLUMNS, COMPONENT_COLUMNS, [0.5, 0.3, 0.2], {f"{axis}_heavy": axis for axis in AXES}),
        ("components", COMPONENT_COLUMNS, AXIS_COLUMNS, [0.25] * 4, ("equal", "dominance_heavy", "balance_heavy")),
    ):
        of_kind = [row for row in hand if row["weights_of"] == weights_of]
        draws = [row for row in of_kind if row["is_draw"]]
        named = {row["perturbation_id"]: row for row in of_kind if not row["is_draw"]}
        assert (len(draws), len(named)) == (1000, 4)
        assert set(names) <= named.keys()
        assert all([row[column] for column in others] == declared for row in of_kind)
        assert all(math.isclose(sum(row[column] for column in own), 1, abs_tol=1e-12) for row in of_kind)
        for column in own:
            drawn = np.array([row[column] for row in draws])
            w = 0.25 if weights_of == "axes" else dict(zip(own, [0.5, 0.3, 0.2], strict=True))[column]
            sd = math.sqrt(w * (1 - w) / 101)  # of Dirichlet(100 w)
            assert abs(drawn.mean() - w) < 4 * sd / math.sqrt(1000)
            assert drawn.std() == pytest.approx(sd, rel=0.1)
    by_name = {row["perturbation_id"]: row for row in hand if not row["is_draw"]}
    components = {name: [by_name[name][c] for c in COMPONENT_COLUMNS] for name in by_name}
    assert components["equal"] == pytest.approx([1 / 3] * 3)
    assert components["dominance_heavy"] == [0.7, 0.2, 0.1]
    assert components["balance_heavy"] == [0.3, 0.5, 0.2]
    assert components["worst_heavy"] == [0.3, 0.2, 0.5]
    assert [by_name["calibration_heavy"][c] for c in AXIS_COLUMNS] == [0.2, 0.4, 0.2, 0.2]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.usefixtures("few_draws")
def test_agrees_with_plain_python(seed: int) -> None:
    cells = random_cells(seed, 3 + 3 * seed)
    declared = list(plain_crs(cells).values())
    for row in analyse(cells)[::3]:
        weights = [[row[column] for column in columns] for columns in (AXIS_COLUMNS, COMPONENT_COLUMNS)]
        other = list(plain_crs(cells, axis_weights=weights[0], component_weights=weights[1]).values())
        assert row["tau_b"] == pytest.approx(plain_tau_b(declared, other), abs=1e-12)
        overlap = plain_overlap(declared, other, 3)
        assert row["top_3_overlap"] == pytest.approx(overlap, abs=1e-12)
        assert row["is_top_3_unchanged"] == (None if overlap is None else abs(overlap - 1) < 1e-9)


@pytest.mark.usefixtures("few_draws")
def test_a_weight_of_zero_stays_zero() -> None:
    weights = dict(zip(AXES, (0.5, 0.5, 0.0, 0.0), strict=True))
    rules = RULES.model_copy(update={"axis_weights": weights, "worst_weight": 0.0, "balance_weight": 0.5})
    for row in analyse(HAND, rules):
        if row["is_draw"]:
            assert row["weight_worst"] == 0
            assert row["weight_robustness"] == 0
            assert row["weight_pareto"] > 0


@pytest.mark.usefixtures("few_draws")
def test_order_and_names_of_encoders_move_nothing() -> None:
    cells = random_cells(3, 8)
    rows = analyse(cells)
    assert panel_from(dict(reversed(cells.items()))) == panel_from(cells)
    renamed = {f"x{9 - int(encoder[1:])}": own for encoder, own in cells.items()}
    for row, other in zip(rows, analyse(renamed), strict=True):  # draws hang on the panel's id, which is the same
        for name in (*AXIS_COLUMNS, *COMPONENT_COLUMNS, "tau_b", "top_3_overlap", "is_top_3_unchanged"):
            assert other[name] == pytest.approx(row[name], abs=1e-12)


@pytest.mark.usefixtures("few_draws")
def test_small_and_equal_panels() -> None:
    three = analyse({encoder: HAND[encoder] for encoder in "abc"})
    assert {(row["top_3_overlap"], row["is_top_3_unchanged"], row["reason"]) for row in three} == {
        (None, None, "too_few_units")
    }
    assert all(row["tau_b"] is not None for row in three)
    alone = analyse({"a": HAND["a"]})
    assert {(row["n_encoders"], row["tau_b"], row["reason"]) for row in alone} == {(1, None, "too_few_units")}
    equal = analyse(dict.fromkeys("abcdefghijklm", HAND["a"]))
    assert {(row["tau_b"], row["is_top_3_unchanged"], row["reason"]) for row in equal} == {(None, True, "no_spread")}
