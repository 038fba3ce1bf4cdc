from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from scipy import stats

from crsbench_assets.analyses.estimator_dependence import ESTIMATORS, estimator_dependence
from crsbench_assets.config.protocol import AXES
from crsbench_assets.config.registry import load_protocol
from crsbench_assets.scores.panel import Panel
from crsbench_assets_tests.scores.conftest import MEMBERS, Cohort, freeze_cohort
from crsbench_assets_tests.tables.rows import written

PROTOCOL = load_protocol("crs-1", Path())
OTHERS = ESTIMATORS[1:]

# The four members on one dataset: the primary orders alpha > beta > gamma > delta on every axis, ridge swaps alpha with
# beta and puts delta before gamma, on every axis alike. Anchors are 0 and 1, so the profile is the value v itself, and
# P is 1/2 (1 + (number below - number above) / 4), B = W = v, CRS = .5 P + .5 v.
#
#            primary v  P      CRS        ridge v  P      CRS       rank     moves   width
#   alpha    1          .875   .9375      .5       .625   .5625     1 -> 2   -1       64
#   beta     .5         .625   .5625      1        .875   .9375     2 -> 1   +1      256
#   gamma    .25        .375   .3125      0        .125   .0625     3 -> 4   -1      128
#   delta    0          .125   .0625      .25      .375   .3125     4 -> 3   +1      512
PRIMARY: Cohort = {
    encoder: {"near": (v,) * 4} for encoder, v in (("alpha", 1.0), ("beta", 0.5), ("gamma", 0.25), ("delta", 0.0))
}
RIDGE: Cohort = {
    encoder: {"near": (v,) * 4} for encoder, v in (("alpha", 0.5), ("beta", 1.0), ("gamma", 0.0), ("delta", 0.25))
}
WIDTHS = {"alpha": 64, "beta": 256, "gamma": 128, "delta": 512}


def analyse(
    primary: Cohort,
    others: Mapping[str, Cohort],
    widths: Mapping[str, int] = WIDTHS,
    panel: Panel | None = None,
) -> dict[tuple[str, str], dict[str, Any]]:
    rows = [
        (estimator, encoder, dataset, axis, variant, value if variant == "primary" else 0.123, None)
        for estimator, cohort in others.items()
        for encoder, cells in cohort.items()
        for dataset, of_cell in cells.items()
        for axis, value in zip(AXES, of_cell, strict=True)
        for variant in ("primary", "corruption_only")
    ]
    names = ("estimator", "encoder_id", "dataset_id", "axis", "variant", "value", "reason")
    types = (*(pl.String(),) * 5, pl.Float64(), pl.String())
    axes = pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")
    # the narrower width of a second dataset does not count
    frame = pl.DataFrame(
        [(encoder, width) for encoder, own in widths.items() for width in (own, own // 64)],
        schema={"encoder_id": pl.String, "n_dims": pl.Int64},
        orient="row",
    )
    panel = panel or freeze_cohort(primary, PROTOCOL)
    found = estimator_dependence(axes, frame, panel, PROTOCOL.scores)
    written(found, "estimator_dependence")
    assert found.height == len(ESTIMATORS) * len(panel.members)
    return {(row["estimator"], row["encoder_id"]): row for row in found.to_dicts()}


def test_every_number_by_hand() -> None:
    rows = analyse(PRIMARY, {"ridge": RIDGE})
    right = {
        ("primary", "alpha"): (0.9375, 1, 0),
        ("primary", "beta"): (0.5625, 2, 0),
        ("primary", "gamma"): (0.3125, 3, 0),
        ("primary", "delta"): (0.0625, 4, 0),
        ("ridge", "alpha"): (0.5625, 2, -1),
        ("ridge", "beta"): (0.9375, 1, 1),
        ("ridge", "gamma"): (0.0625, 4, -1),
        ("ridge", "delta"): (0.3125, 3, 1),
    }
    for key, (crs, rank, displacement) in right.items():
        row = rows[key]
        assert row["crs"] == pytest.approx(crs, abs=1e-12)
        assert (row["rank"], row["rank_displacement"], row["n_dims"]) == (rank, displacement, WIDTHS[key[1]])
        assert (row["is_most_moved"], row["n_encoders"], row["reason"]) == (key[0] == "ridge", 4, None)
        # 2 of 6 pairs are swapped: tau 1 - 4/6; the top three share alpha and beta
        shared = (1.0, 1.0) if key[0] == "primary" else (1 / 3, 2 / 3)
        assert (row["tau_b"], row["top_3_overlap"]) == pytest.approx(shared, abs=1e-12)
        # ranks of width 1 3 2 4 against primary 4 3 2 1 and ridge 3 4 1 2, in the order of the table
        rho = -0.8 if key[0] == "primary" else 1 - 6 * (4 + 1 + 1 + 4) / 60
        assert [row[f"spearman_width_{axis}"] for axis in AXES] == pytest.approx([rho] * 4, abs=1e-12)


def plain_scores(cohort: Cohort) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return profiles and scores of a cohort against its own anchors."""
    profiles = {}
    for encoder, cells in cohort.items():
        profile = []
        for k in range(4):
            places = []
            for dataset in cells:
                column = [float(own[dataset][k] or 0) for own in cohort.values() if dataset in own]
                low, high = min(column), max(column)
                places.append(((cells[dataset][k] or 0) - low) / (high - low) if high - low > 1e-12 else 0.5)
            profile.append(sum(places) / len(places))
        profiles[encoder] = profile
    scores = {}
    for encoder, x in profiles.items():
        won = sum(all(a >= b for a, b in zip(x, y, strict=True)) and x != y for y in profiles.values())
        lost = sum(all(b >= a for a, b in zip(x, y, strict=True)) and x != y for y in profiles.values())
        pareto = 0.5 * (1 + (won - lost) / len(profiles))
        balanced = 1 - (sum((1 - value) ** 2 for value in x) / 4) ** 0.5
        scores[encoder] = 0.5 * pareto + 0.3 * balanced + 0.2 * min(x)
    return profiles, scores


def random_cohorts(seed: int) -> tuple[Cohort, dict[str, Cohort], dict[str, int]]:
    draw = random.Random(seed)
    cells = {
        f"e{e}": [d for d in ("near", "far", "new") if draw.random() < 0.8] or ["near"]
        for e in range(draw.randint(4, 12))
    }

    def cohort() -> Cohort:
        return {encoder: {d: tuple(draw.random() for _ in AXES) for d in own} for encoder, own in cells.items()}

    widths = {encoder: draw.choice([64, 128, 256, 512]) for encoder in cells} | {"e0": 64, "e1": 512}
    return cohort(), {estimator: cohort() for estimator in OTHERS}, widths


@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_plain_python(seed: int) -> None:
    primary, others, widths = random_cohorts(seed)
    rows = analyse(primary, others, widths)
    members = sorted(primary)
    _, reference = plain_scores(primary)
    for estimator, cohort in {"primary": primary, **others}.items():
        profiles, scores = plain_scores(cohort)
        ranks = {e: 1 + sum(other > scores[e] for other in scores.values()) for e in members}
        moves = {e: 1 + sum(other > reference[e] for other in reference.values()) - ranks[e] for e in members}
        furthest = max(map(abs, moves.values()))
        tau = stats.kendalltau([reference[e] for e in members], [scores[e] for e in members]).statistic
        tops = [set(sorted(members, key=lambda e: -values[e])[:3]) for values in (reference, scores)]
        for encoder in members:
            row = rows[estimator, encoder]
            assert row["crs"] == pytest.approx(scores[encoder], abs=1e-12)
            assert (row["rank"], row["rank_displacement"]) == (ranks[encoder], moves[encoder])
            assert row["is_most_moved"] == (0 < furthest == abs(moves[encoder]))
            assert row["tau_b"] == pytest.approx(tau, abs=1e-12)
            assert row["top_3_overlap"] == pytest.approx(len(tops[0] & tops[1]) / 3, abs=1e-12)
            for k, axis in enumerate(AXES):
                rho = stats.spearmanr([profiles[e][k] for e in members], [widths[e] for e in members]).statistic
                assert row[f"spearman_width_{axis}"] == pytest.approx(rho, abs=1e-12)


def test_order_and_names_of_encoders_move_nothing() -> None:
    primary, others, widths = random_cohorts(1)
    rows = analyse(primary, others, widths)
    turned = {estimator: dict(reversed(cohort.items())) for estimator, cohort in reversed(others.items())}
    assert analyse(dict(reversed(primary.items())), turned, widths) == rows
    names = {e: f"x{20 - i:02}" for i, e in enumerate(primary)}
    renamed = analyse(
        {names[e]: own for e, own in primary.items()},
        {estimator: {names[e]: own for e, own in cohort.items()} for estimator, cohort in others.items()},
        {names[e]: width for e, width in widths.items()},
    )
    for (estimator, encoder), row in rows.items():
        other = renamed[estimator, names[encoder]]
        for name, value in row.items():
            if name not in ("panel_id", "encoder_id"):
                assert other[name] == (pytest.approx(value, abs=1e-12) if isinstance(value, float) else value)


def test_who_is_no_member_moves_nothing() -> None:
    panel = freeze_cohort(PRIMARY, PROTOCOL)
    late: Cohort = {"late": {"near": (2.0,) * 4, "elsewhere": (0.1,) * 4}}
    more = analyse(PRIMARY, {"ridge": {**RIDGE, **late}}, WIDTHS | {"late": 9}, panel)
    assert more == analyse(PRIMARY, {"ridge": RIDGE}, WIDTHS, panel)


def test_the_panel_says_which_robustness_counts() -> None:
    frozen = freeze_cohort(PRIMARY, PROTOCOL)
    conditions = frozen.conditions.model_copy(update={"robustness_variant": "corruption_only"})
    rows = analyse(PRIMARY, {"ridge": RIDGE}, WIDTHS, frozen.model_copy(update={"conditions": conditions}))
    # all have .123 there, so the axis is degenerate and in the middle: alpha and beta have W = .5 now
    assert rows["ridge", "beta"]["crs"] == pytest.approx(0.5 * 0.875 + 0.3 * 0.75 + 0.2 * 0.5)
    assert rows["ridge", "beta"]["spearman_width_robustness"] is None
    assert rows["ridge", "beta"]["reason"] == "no_spread"


def test_an_estimator_without_all_members_has_no_score() -> None:
    rows = analyse(PRIMARY, {"ridge": {e: RIDGE[e] for e in ("alpha", "beta", "gamma")}})
    for encoder in PRIMARY:
        row = rows["ridge", encoder]
        assert (row["crs"], row["rank"], row["tau_b"], row["is_most_moved"]) == (None, None, None, None)
        assert (row["n_encoders"], row["reason"]) == (3, "incomplete")
        assert (rows["knn", encoder]["n_encoders"], rows["knn", encoder]["reason"]) == (0, "incomplete")
        assert rows["primary", encoder]["crs"] is not None
    holed: Cohort = {**RIDGE, "delta": {"near": (0.25, None, 0.25, 0.25)}}
    assert analyse(PRIMARY, {"ridge": holed})["ridge", "alpha"]["reason"] == "incomplete"


def test_widths_that_say_nothing() -> None:
    unknown = {encoder: width for encoder, width in WIDTHS.items() if encoder != "beta"}
    row = analyse(PRIMARY, {"ridge": RIDGE}, unknown)["ridge", "beta"]
    assert (row["n_dims"], row["spearman_width_calibration"], row["reason"]) == (None, None, "incomplete")
    assert row["tau_b"] == pytest.approx(1 / 3)
    row = analyse(PRIMARY, {"ridge": RIDGE}, dict.fromkeys(WIDTHS, 64))["ridge", "beta"]
    assert (row["spearman_width_calibration"], row["reason"]) == (None, "no_spread")


def test_few_and_equal_encoders() -> None:
    two = {e: PRIMARY[e] for e in ("alpha", "beta")}
    row = analyse(two, {"ridge": {e: RIDGE[e] for e in two}})["ridge", "beta"]
    assert (row["tau_b"], row["top_3_overlap"], row["spearman_width_robustness"], row["reason"]) == (
        -1.0,
        None,
        None,
        "too_few_units",
    )
    equal: Cohort = {encoder: {"near": (0.5, 0.6, 0.7, 0.8)} for encoder in PRIMARY}
    for row in analyse(equal, {"ridge": equal}).values():
        if row["estimator"] in ("primary", "ridge"):
            assert (row["rank"], row["tau_b"], row["is_most_moved"], row["reason"]) == (1, None, False, "no_spread")


def test_members_of_the_hand_computed_panel_keep_their_published_scores() -> None:
    rows = analyse(MEMBERS, {}, {})
    for encoder, crs in (("alpha", 0.649481), ("beta", 0.503489), ("gamma", 0.083333)):
        assert rows["primary", encoder]["crs"] == pytest.approx(crs, abs=1e-6)
