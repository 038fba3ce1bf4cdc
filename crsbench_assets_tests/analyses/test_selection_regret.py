from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from crsbench_assets.analyses.selection_regret import selection_regret
from crsbench_assets.config.protocol import AXES
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.resampling import Resampled
from crsbench_assets_tests.analyses.plain_score import RULES, Cells, panel_from, plain_anchors, plain_crs
from crsbench_assets_tests.analyses.resampled import noisy, random_unit_cells, resampled_of, unmoved
from crsbench_assets_tests.tables.rows import written

EQUAL = RULES.axis_weights
Rows = dict[tuple[str, str], dict[str, Any]]

# One dataset with anchors 0 and 1 on every axis, so the values are the profile; CRS as in test_rank_agreement.
#
#           D      C    L      R      mean      CRS
#   ace     1      0    .5     .5     .5        .366288     what AUROC chooses
#   bow     .75    .75  .75    .75    .75       .6875       what CRS chooses
#   cub     .5     1    1      1      .875      .6375
#   dud     0      .25  0      0      .0625     .141881
#
#   mean    .5625  .5   .5625  .5625  .546875
#   best    ace    cub  cub    cub    cub
HAND: Cells = {
    "ace": {"near": [1.0, 0.0, 0.5, 0.5]},
    "bow": {"near": [0.75, 0.75, 0.75, 0.75]},
    "cub": {"near": [0.5, 1.0, 1.0, 1.0]},
    "dud": {"near": [0.0, 0.25, 0.0, 0.0]},
}
COLUMNS = (*AXES, "weighted")


def analyse(panel: Panel, resampled: Resampled | str, weights: Mapping[str, float] = EQUAL) -> Rows:
    found = selection_regret(panel, resampled, RULES, weights)
    written(found, "selection_regret")
    rows = {(row["rule"], row["axis"]): row for row in found.to_dicts()}
    assert list(rows) == [(rule, axis) for rule in ("auroc", "crs", "random") for axis in COLUMNS]
    assert [{name: row[f"weight_{name}"] for name in AXES} for row in rows.values()] == [dict(weights)] * 15
    return rows


def test_four_members_by_hand() -> None:
    panel = panel_from(HAND)
    rows = analyse(panel, resampled_of(panel, unmoved(panel, 10)))
    right = {
        "auroc": ("ace", [0.0, 1.0, 0.5, 0.5, 0.375]),
        "crs": ("bow", [0.25, 0.25, 0.25, 0.25, 0.125]),
        "random": ("", [0.4375, 0.5, 0.4375, 0.4375, 0.328125]),
    }
    for rule, (chosen, regrets) in right.items():
        for axis, best, regret in zip(COLUMNS, ("ace", "cub", "cub", "cub", "cub"), regrets, strict=True):
            row = rows[rule, axis]
            assert (row["chosen_encoder_id"], row["best_encoder_id"], row["reason"]) == (chosen, best, None)
            # replicates that never move leave no doubt
            bounds = [row[name] for name in ("regret", "regret_ci_low", "regret_ci_high")]
            assert bounds == pytest.approx([regret] * 3, abs=1e-12)


def test_weights_are_the_users_and_touch_no_score() -> None:
    panel = panel_from(HAND)
    weights = {"discrimination": 0.5, "calibration": 0.5, "label_efficiency": 0.0, "robustness": 0.0}
    rows = analyse(panel, "no_replicates", weights)
    # ace .5, bow .75, cub .75, dud .125: of equal ones the first by id
    assert [rows[rule, "weighted"]["regret"] for rule in ("auroc", "crs", "random")] == [0.25, 0.0, 0.21875]
    assert {row["best_encoder_id"] for row in rows.values() if row["axis"] == "weighted"} == {"bow"}
    assert rows["crs", "calibration"]["chosen_encoder_id"] == "bow"
    with pytest.raises(ValueError, match="sum 1"):
        selection_regret(panel, "no_replicates", RULES, dict.fromkeys(AXES, 0.5))
    with pytest.raises(ValueError, match="below 0"):
        selection_regret(panel, "no_replicates", RULES, dict(zip(AXES, (1.5, -0.5, 0.0, 0.0), strict=True)))


def test_the_choice_stays_and_the_best_is_found_again() -> None:
    # In 4 of 40 replicates bow has AUROC 1 and ace .5: whoever chose ace lost .5 there, more than 2.5 % of the time.
    panel = panel_from(HAND)
    values = unmoved(panel, 40)
    values[:4, [0, 1], 0, 0] = [0.5, 1.0]
    row = analyse(panel, resampled_of(panel, values))["auroc", "discrimination"]
    assert (row["chosen_encoder_id"], row["best_encoder_id"], row["regret"]) == ("ace", "ace", 0.0)
    assert (row["regret_ci_low"], row["regret_ci_high"]) == (0.0, 0.5)


def test_what_is_better_beyond_the_anchor_is_not_hidden() -> None:
    # as above, but a draw of easy test groups raises everybody, so clipped profiles tie
    panel = panel_from(HAND)
    values = unmoved(panel, 40)
    values[:, :, :, 0] += 1.0
    values[:4, [0, 1], 0, 0] = [1.5, 2.0]
    row = analyse(panel, resampled_of(panel, values))["auroc", "discrimination"]
    assert (row["regret"], row["regret_ci_high"]) == (0.0, 0.5)


def plain_interval(replicates: list[list[float]]) -> tuple[float, float]:
    """Return the bounds, both cut to [0, 1].

    Low: the k-th smallest of every column, for the largest k that 97.5 % of the replicates respect everywhere.
    """
    columns = [sorted(column) for column in zip(*replicates, strict=True)]
    kept = [
        k
        for k in range(len(replicates))
        if sum(all(v >= c[k] for v, c in zip(of, columns, strict=True)) for of in replicates) >= 0.975 * len(replicates)
    ]
    low = max(column[max(kept)] for column in columns)
    high = max(float(np.quantile(column, 0.975)) for column in columns)
    return min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)


def test_agrees_with_plain_python() -> None:
    for seed in range(5):
        cells = random_unit_cells(seed)
        panel = panel_from(cells)
        values = noisy(panel, 200, 0.1, seed)
        weights = dict(zip(AXES, (0.4, 0.3, 0.2, 0.1), strict=True))
        anchors = plain_anchors(cells)

        def profiles(
            of: Cells, anchors: dict[tuple[str, int], tuple[float, float]] = anchors
        ) -> list[tuple[float, ...]]:
            """Return x_raw on the four axes and their weighted mean, of every encoder."""
            found = []
            for own in of.values():
                x = []
                for k in range(4):
                    z = [
                        0.5
                        if anchors[dataset, k][1] - anchors[dataset, k][0] <= 1e-12
                        else (cell[k] - anchors[dataset, k][0]) / (anchors[dataset, k][1] - anchors[dataset, k][0])
                        for dataset, cell in own.items()
                    ]
                    x.append(sum(z) / len(z))
                found.append((*x, 0.4 * x[0] + 0.3 * x[1] + 0.2 * x[2] + 0.1 * x[3]))
            return found

        points = profiles(cells)
        drawn = [
            profiles(
                {
                    member: {d: v[i, j].tolist() for j, d in enumerate(panel.datasets) if d in cells[member]}
                    for i, member in enumerate(panel.members)
                }
            )
            for v in values
        ]
        crs = plain_crs(cells)
        choices = {
            "auroc": max(range(len(cells)), key=lambda i: points[i][0]),
            "crs": max(range(len(cells)), key=lambda i: round(list(crs.values())[i], 12)),
            "random": None,
        }
        rows = analyse(panel, resampled_of(panel, values), weights)
        for (rule, axis), row in rows.items():
            k, choice = COLUMNS.index(axis), choices[rule]

            def losses(of: list[tuple[float, ...]], k: int = k, choice: int | None = choice) -> list[float]:
                column = [x[k] for x in of]
                return [value - (statistics.fmean(column) if choice is None else column[choice]) for value in column]

            assert row["regret"] == pytest.approx(min(1.0, max(losses(points))), abs=1e-12)
            replicates = [losses(of) for of in drawn]
            low, high = plain_interval(replicates)
            assert (row["regret_ci_low"], row["regret_ci_high"]) == pytest.approx((low, high), abs=1e-12)


def test_equal_members_cost_nothing_for_sure_and_a_planted_loss_is_found() -> None:
    # 60 panels of 10 members that are truly equal: values and replicates are errors alone. With star, which is better
    # by 10 errors on calibration and worse on discrimination, choosing by AUROC costs something for sure.
    draw = np.random.default_rng(0)
    n_false = n_missed = 0
    for i in range(60):
        cells = {f"e{m}": {"near": (0.5 + 0.01 * draw.standard_normal(4)).tolist()} for m in range(10)}
        panel = panel_from(cells)
        n_false += sum(
            row["regret_ci_low"] > 0 for row in analyse(panel, resampled_of(panel, noisy(panel, 400, 0.01, i))).values()
        )
        star = {"near": (np.array([0.4, 0.6, 0.5, 0.5]) + 0.01 * draw.standard_normal(4)).tolist()}
        panel = panel_from({**cells, "star": star})
        row = analyse(panel, resampled_of(panel, noisy(panel, 200, 0.01, i)))["auroc", "calibration"]
        low, high = plain_anchors({**cells, "star": star})["near", 1]
        truth = min(0.1 / (high - low), 1.0)
        n_missed += not row["regret_ci_low"] <= truth <= row["regret_ci_high"]
        assert row["regret_ci_low"] > 0.1
    assert n_false < 0.05 * 60 * 15
    assert n_missed < 0.1 * 60


def test_without_replicates_the_regret_stands() -> None:
    panel = panel_from(HAND)
    gone = resampled_of(panel, unmoved(panel, 2)[:, 1:], ("bow", "cub", "dud"))
    for resampled, reason in (("one_seed", "one_seed"), (gone, "no_replicates")):
        row = analyse(panel, resampled)["crs", "calibration"]
        assert (row["regret"], row["regret_ci_low"], row["regret_ci_high"], row["reason"]) == (0.25, None, None, reason)


@pytest.mark.parametrize("n", [1, 2, 3, 15])
def test_equal_members_have_no_regret(n: int) -> None:
    panel = panel_from({f"e{i:02}": {"near": [0.7] * 4, "far": [0.3] * 4} for i in range(n)})
    weights = dict(zip(AXES, (0.1, 0.2, 0.3, 0.4), strict=True))
    for rule, row in analyse(panel, resampled_of(panel, noisy(panel, 20, 0.1)), weights).items():
        assert (row["regret"], row["regret_ci_low"], row["regret_ci_high"], row["reason"]) == (0.0, 0.0, 0.0, None)
        assert (row["best_encoder_id"], row["chosen_encoder_id"]) == ("e00", "" if rule[0] == "random" else "e00")


def test_order_names_and_who_is_no_member_move_nothing() -> None:
    cells = random_unit_cells(3, n_encoders=6)
    panel = panel_from(cells)
    values = noisy(panel, 20, 0.1)
    rows = analyse(panel, resampled_of(panel, values))
    back = panel_from({encoder: cells[encoder] for encoder in reversed(list(cells))})
    late = np.full((20, 1, len(panel.datasets), 4), 9.0)
    joined = resampled_of(back, np.concatenate([late, values], axis=1), ("aaa", *panel.members))
    assert analyse(back, joined) == rows
    names = {encoder: f"x{6 - i}" for i, encoder in enumerate(cells)} | {"": ""}
    renamed = panel_from({names[encoder]: own for encoder, own in cells.items()})
    for key, row in analyse(renamed, resampled_of(renamed, values[:, ::-1])).items():
        for name, value in row.items():
            right = names[rows[key][name]] if name.endswith("_encoder_id") else rows[key][name]
            assert value == (pytest.approx(right, abs=1e-12) if isinstance(value, float) else right)
