from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from crsbench_assets.analyses.rank_agreement import rank_agreement
from crsbench_assets.config.protocol import ScoreRules
from crsbench_assets.scores.ensemble import Floats
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.resampling import Resampled
from crsbench_assets_tests.analyses.plain_score import (
    RULES,
    Cells,
    panel_from,
    plain_anchors,
    plain_crs,
    plain_dominates,
    plain_tau_b,
)
from crsbench_assets_tests.analyses.resampled import noisy, random_unit_cells, resampled_of, unmoved
from crsbench_assets_tests.tables.rows import written

# One dataset with anchors 0 and 1 on every axis, so the values are the profile. CRS = .5 P + .3 B + .2 W.
#
#          D    C    L    R     P     B                 W    CRS       without D: P     B                   W    CRS
#   ace    1    0    .5   .5    1/2   1 - sqrt(.375)    0    .366288              1/4   1 - sqrt(.5)        0    .212868
#   bow    .75  .75  .75  .75   5/8   .75               .75  .6875                5/8   .75                 .75  .6875
#   cub    .5   1    1    1     5/8   .75               .5   .6375                7/8   1                   1    .9375
#   dud    0    .25  0    0     1/4   1 - sqrt(.890625) 0    .141881              1/4   1 - sqrt(.854167)   0    .147737
#
# By AUROC ace, bow, cub, dud; by CRS bow, cub, ace, dud: ace is reversed against bow and cub, and ranks move by 2, 1, 1
# and 0. Without discrimination cub, bow, ace, dud: so is bow against cub, and ranks move by 2, 0, 2 and 0.
HAND: Cells = {
    "ace": {"near": [1.0, 0.0, 0.5, 0.5]},
    "bow": {"near": [0.75, 0.75, 0.75, 0.75]},
    "cub": {"near": [0.5, 1.0, 1.0, 1.0]},
    "dud": {"near": [0.0, 0.25, 0.0, 0.0]},
}
Rows = dict[tuple[str, str], dict[str, Any]]


def analyse(panel: Panel, resampled: Resampled | str = "no_replicates", rules: ScoreRules = RULES) -> Rows:
    found = rank_agreement(panel, resampled, rules)
    written(found, "rank_agreement")
    assert found.height == 4
    return {(row["auroc_variant"], row["crs_variant"]): row for row in found.to_dicts()}


def test_four_members_by_hand() -> None:
    panel = panel_from(HAND)
    rows = analyse(panel, resampled_of(panel, unmoved(panel, 40)))
    for variant in ("profile", "raw_common_datasets"):
        right = {"n_encoders": 4, "n_pairs": 6, "n_reversed": 2, "n_resolved_reversed": 2, "reason": None}
        row = rows[variant, "primary"]
        assert {name: row[name] for name in right} == right
        assert row["tau_b"] == pytest.approx(1 / 3, abs=1e-12)
        assert row["spearman"] == pytest.approx(1 - 6 * 6 / 60, abs=1e-12)
        assert row["mean_absolute_rank_displacement"] == 1.0
        row = rows[variant, "without_discrimination"]
        assert (row["n_reversed"], row["n_resolved_reversed"], row["mean_absolute_rank_displacement"]) == (3, 3, 1.0)
        assert row["tau_b"] == pytest.approx(0.0, abs=1e-12)
        assert row["spearman"] == pytest.approx(1 - 6 * 8 / 60, abs=1e-12)


def test_the_identities_of_the_papers_figures() -> None:
    # 15 members whose other three axes are equal to each other: CRS without discrimination follows them. Their order
    # against AUROC has 21 of 105 pairs reversed, sum |d| = 28 and sum d^2 = 106.
    order = [2, 1, 0, 3, 4, 5, 9, 6, 13, 12, 11, 10, 8, 7, 14]
    cells = {f"e{i:02}": {"near": [i / 14, *[place / 14] * 3]} for i, place in enumerate(order)}
    row = analyse(panel_from(cells))["profile", "without_discrimination"]
    assert (row["n_pairs"], row["n_reversed"]) == (105, 21)
    assert row["tau_b"] == pytest.approx(0.600, abs=1e-12)
    assert row["mean_absolute_rank_displacement"] == pytest.approx(28 / 15, abs=1e-12)
    assert row["spearman"] == pytest.approx(1 - 6 * 106 / (15 * 224), abs=1e-12)
    assert round(row["spearman"], 3) == 0.811


@pytest.mark.parametrize(("n_other", "n_resolved"), [(0, 2), (1, 2), (2, 1)])
def test_a_pair_is_resolved_where_39_of_40_replicates_have_its_direction(n_other: int, n_resolved: int) -> None:
    panel = panel_from(HAND)
    values = unmoved(panel, 40)
    values[:n_other, [0, 1], 0, 0] = [0.75, 1.0]  # bow before ace by AUROC, as it is by CRS
    assert analyse(panel, resampled_of(panel, values))["profile", "primary"]["n_resolved_reversed"] == n_resolved


def test_both_orders_have_to_resolve_the_pair() -> None:
    panel = panel_from(HAND)
    values = unmoved(panel, 40)
    values[:2, 0, 0, 1:] = 1.0  # ace is best of all by CRS, and by AUROC it stays so
    assert analyse(panel, resampled_of(panel, values))["profile", "primary"]["n_resolved_reversed"] == 0


def test_leaders_beyond_the_anchor_are_told_apart() -> None:
    # A draw of easy test groups raises everybody's AUROC by 1, so clipped profiles tie there.
    panel = panel_from(HAND)
    values = unmoved(panel, 40)
    values[::2, :, :, 0] += 1.0
    rows = analyse(panel, resampled_of(panel, values))
    assert rows["profile", "without_discrimination"]["n_resolved_reversed"] == 3
    assert rows["raw_common_datasets", "without_discrimination"]["n_resolved_reversed"] == 3


def test_without_replicates_the_rest_stands() -> None:
    panel = panel_from(HAND)
    whole = analyse(panel, resampled_of(panel, unmoved(panel, 2)))
    names = ("ace", "bow", "cub")
    two_cells = {encoder: {**own, "far": own["near"]} for encoder, own in HAND.items()}
    two = panel_from(two_cells)
    changed = unmoved(two, 2)
    changed[:, 0, 0] = np.nan  # ace was frozen with both datasets
    cases: list[tuple[Panel, Resampled | str, str]] = [
        (panel, "one_seed", "one_seed"),
        (panel, resampled_of(panel, unmoved(panel, 2)[:, :3], names), "no_replicates"),
        (two, resampled_of(two, changed), "no_replicates"),
    ]
    for of_case, resampled, reason in cases:
        for key, row in analyse(of_case, resampled).items():
            assert (row["n_resolved_reversed"], row["reason"]) == (None, reason)
            assert (row["n_reversed"], row["spearman"]) == (whole[key]["n_reversed"], whole[key]["spearman"])


def plain_without_discrimination(cells: Cells, anchors: Cells) -> dict[str, float]:
    """Return CRS of three axes against the anchors of some cells, in plain Python."""

    def position(dataset: str, k: int, value: float) -> float:
        column = [own[dataset][k] for own in anchors.values() if dataset in own]
        low, high = min(column), max(column)
        return 0.5 if high - low <= 1e-12 else (value - low) / (high - low)

    raw, x = {}, {}
    for encoder, own in cells.items():
        z = [[position(dataset, k, own[dataset][k]) for dataset in sorted(own)] for k in (1, 2, 3)]
        raw[encoder] = [sum(column) / len(column) for column in z]
        x[encoder] = [sum(min(max(value, 0.0), 1.0) for value in column) / len(column) for column in z]
    scores = {}
    for encoder in cells:
        won = sum(plain_dominates(raw[encoder], raw[other]) for other in cells)
        lost = sum(plain_dominates(raw[other], raw[encoder]) for other in cells)
        balance = 1 - math.sqrt(sum((1 - value) ** 2 / 3 for value in x[encoder]))
        scores[encoder] = 0.25 * (1 + (won - lost) / len(cells)) + 0.3 * balance + 0.2 * min(x[encoder])
    return scores


def plain_orders(cells: Cells, anchors: Cells) -> dict[str, list[float]]:
    """Return both AUROC and both CRS orders of cells against the anchors of others, in plain Python."""
    bounds = plain_anchors(anchors)
    common = [d for d in sorted({d for own in cells.values() for d in own}) if all(d in own for own in cells.values())]

    def profile(own: dict[str, Sequence[float]]) -> float:
        z = []
        for dataset, values in own.items():
            low, high = bounds[dataset, 0]
            z.append(0.5 if high - low <= 1e-12 else (values[0] - low) / (high - low))
        return sum(z) / len(z)

    orders = {
        "profile": [profile(dict(own)) for own in cells.values()],
        "primary": list(plain_crs(cells, bounds).values()),
        "without_discrimination": list(plain_without_discrimination(cells, anchors).values()),
    }
    if common:
        orders["raw_common_datasets"] = [sum(own[d][0] for d in common) / len(common) for own in cells.values()]
    return orders


def cells_of(values: Floats, panel: Panel) -> Cells:
    return {
        member: {d: values[i, j].tolist() for j, d in enumerate(panel.datasets) if not math.isnan(values[i, j, 0])}
        for i, member in enumerate(panel.members)
    }


def test_agrees_with_plain_python() -> None:
    counts = [reversals_that_agree(seed) for seed in range(12)]
    n_reversed, n_resolved = (sum(column) for column in zip(*counts, strict=True))
    assert n_reversed > n_resolved + 20 > 100


def reversals_that_agree(seed: int) -> tuple[int, int]:
    """Compare the four rows of a random panel, and return how many reversals they have, and how many resolved."""
    cells = random_unit_cells(seed)
    panel = panel_from(cells)
    replicates = noisy(panel, 20, 0.02, seed)
    rows = analyse(panel, resampled_of(panel, replicates))
    points = plain_orders(cells, cells)
    drawn = [plain_orders(cells_of(values, panel), cells) for values in replicates]
    m, n_all, n_all_resolved = len(cells), 0, 0
    for (auroc_variant, crs_variant), row in rows.items():
        if auroc_variant not in points:
            assert (row["n_reversed"], row["tau_b"], row["reason"]) == (None, None, "no_common_dataset")
            continue
        a, c = points[auroc_variant], points[crs_variant]
        reversed_pairs = [(i, j) for i in range(m) for j in range(m) if a[i] - a[j] > 1e-12 and c[j] - c[i] > 1e-12]
        assert (row["n_pairs"], row["n_reversed"]) == (m * (m - 1) // 2, len(reversed_pairs))
        n_resolved = 0
        for i, j in reversed_pairs:
            by_auroc = sum(of[auroc_variant][i] > of[auroc_variant][j] for of in drawn) / len(drawn)
            by_crs = sum(of[crs_variant][j] > of[crs_variant][i] for of in drawn) / len(drawn)
            n_resolved += by_auroc >= 0.975 and by_crs >= 0.975
        assert row["n_resolved_reversed"] == n_resolved
        n_all, n_all_resolved = n_all + len(reversed_pairs), n_all_resolved + n_resolved
        tau_b = plain_tau_b(a, c)
        assert row["tau_b"] == (None if tau_b is None else pytest.approx(tau_b, abs=1e-12))
        rounded = [[round(value, 12) for value in order] for order in (a, c)]
        ranks = [stats.rankdata([-value for value in order], method="min") for order in rounded]
        displacement = sum(abs(p - q) for p, q in zip(*ranks, strict=True)) / m
        assert row["mean_absolute_rank_displacement"] == pytest.approx(displacement, abs=1e-12)
        if m > 2 and tau_b is not None:
            assert row["spearman"] == pytest.approx(stats.spearmanr(*rounded).statistic, abs=1e-12)
    return n_all, n_all_resolved


def test_order_and_names_of_encoders_move_nothing() -> None:
    cells = random_unit_cells(3, n_encoders=9)
    panel = panel_from(cells)
    rows = analyse(panel, resampled_of(panel, noisy(panel, 20, 0.02)))
    back = panel_from(dict(reversed(cells.items())))
    assert analyse(back, resampled_of(back, noisy(back, 20, 0.02))) == rows
    names = {encoder: f"x{9 - i}" for i, encoder in enumerate(cells)}
    renamed = panel_from({names[encoder]: own for encoder, own in cells.items()})
    again = analyse(renamed, resampled_of(renamed, noisy(panel, 20, 0.02)[:, ::-1]))
    for key, row in rows.items():
        for name, value in row.items():
            assert again[key][name] == (pytest.approx(value, abs=1e-12) if isinstance(value, float) else value)


def test_who_is_no_member_moves_nothing() -> None:
    panel = panel_from(HAND)
    values = noisy(panel, 40, 0.2)
    late = np.full((40, 1, 1, 4), 9.0)
    joined = resampled_of(panel, np.concatenate([late, values], axis=1), ("aaa", *panel.members))
    assert analyse(panel, joined) == analyse(panel, resampled_of(panel, values))


def test_where_nothing_can_be_said() -> None:
    def row_of(cells: Cells, variant: str = "profile") -> dict[str, Any]:
        panel = panel_from(cells)
        return analyse(panel, resampled_of(panel, unmoved(panel, 2)))[variant, "primary"]

    names = ("n_pairs", "n_reversed", "n_resolved_reversed", "tau_b", "spearman", "mean_absolute_rank_displacement")
    equal = row_of({encoder: {"near": [0.5] * 4} for encoder in HAND})
    assert [equal[name] for name in (*names, "reason")] == [6, 0, 0, None, None, 0.0, "no_spread"]
    two = row_of({name: HAND[name] for name in ("ace", "bow")})  # ace 1 0 0 0, bow 0 1 1 1
    assert [two[name] for name in (*names, "reason")] == [1, 1, 1, -1.0, None, 1.0, "too_few_units"]
    alone = row_of({"ace": HAND["ace"]})
    assert [alone[name] for name in (*names, "reason")] == [0, 0, 0, None, None, 0.0, "too_few_units"]
    apart: Cells = {"ace": {"near": [0.5] * 4}, "bow": {"far": [0.5] * 4}, "cub": {"far": [0.75] * 4}}
    raw = row_of(apart, "raw_common_datasets")
    assert [raw[name] for name in (*names, "reason")] == [3, *[None] * 5, "no_common_dataset"]


def test_an_axis_without_range_orders_nobody() -> None:
    level = {encoder: {"near": [0.8, *own["near"][1:]]} for encoder, own in HAND.items()}
    row = analyse(panel_from(level), "no_replicates")["profile", "primary"]
    assert (row["n_reversed"], row["tau_b"], row["reason"]) == (0, None, "no_spread")


def test_all_weight_on_discrimination_leaves_nothing_without_it() -> None:
    weights = {"discrimination": 1.0, "calibration": 0.0, "label_efficiency": 0.0, "robustness": 0.0}
    panel = panel_from(HAND)
    rows = analyse(panel, resampled_of(panel, unmoved(panel, 2)), RULES.model_copy(update={"axis_weights": weights}))
    row = rows["profile", "without_discrimination"]
    assert (row["n_reversed"], row["n_resolved_reversed"], row["tau_b"], row["reason"]) == (
        None,
        None,
        None,
        "undefined_term",
    )
    assert rows["profile", "primary"]["reason"] is None
