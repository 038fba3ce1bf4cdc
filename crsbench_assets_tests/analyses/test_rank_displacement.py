from __future__ import annotations

from typing import Any

import pytest
from scipy import stats

from crsbench_assets.analyses.rank_agreement import rank_agreement
from crsbench_assets.analyses.rank_displacement import rank_displacement
from crsbench_assets.config.protocol import AXES, ScoreRules
from crsbench_assets.scores.crs import crs_scores
from crsbench_assets.scores.panel import Panel
from crsbench_assets_tests.analyses.plain_score import PROTOCOL, RULES, Cells, panel_from, plain_crs
from crsbench_assets_tests.analyses.resampled import random_unit_cells
from crsbench_assets_tests.analyses.test_rank_agreement import HAND
from crsbench_assets_tests.scores.conftest import Cohort, encoders_frame, values_frame
from crsbench_assets_tests.tables.rows import written

Rows = dict[tuple[str, str, str], dict[str, Any]]


def analyse(panel: Panel, rules: ScoreRules = RULES) -> Rows:
    found = rank_displacement(panel, rules)
    written(found, "rank_displacement")
    assert found.height == 4 * len(panel.members)
    return {(row["auroc_variant"], row["crs_variant"], row["encoder_id"]): row for row in found.to_dicts()}


def test_four_members_by_hand() -> None:
    # the panel of test_rank_agreement
    rows = analyse(panel_from(HAND))
    right = {
        # AUROC, its rank; CRS, its rank; without discrimination, its rank
        "ace": (1.0, 1, 0.366288, 3, 0.212868, 3),
        "bow": (0.75, 2, 0.6875, 1, 0.6875, 2),
        "cub": (0.5, 3, 0.6375, 2, 0.9375, 1),
        "dud": (0.0, 4, 0.141881, 4, 0.147737, 4),
    }
    for encoder, (auroc, rank_auroc, crs, rank_crs, without, rank_without) in right.items():
        for variant in ("profile", "raw_common_datasets"):
            for name, score, rank in (("primary", crs, rank_crs), ("without_discrimination", without, rank_without)):
                row = rows[variant, name, encoder]
                assert (row["auroc_score"], row["rank_auroc"], row["rank_crs"]) == (auroc, rank_auroc, rank)
                assert row["crs"] == pytest.approx(score, abs=1e-6)
                assert (row["rank_displacement"], row["reason"]) == (rank_auroc - rank, None)


def test_without_discrimination_the_other_weights_keep_their_ratio() -> None:
    # .3, .2 and .1 become 1/2, 1/3 and 1/6: ace has (0, .5, .5), P 1/4 and W 0, so B is 1 - sqrt(1/2 + 1/12 + 1/24)
    weights = dict(zip(AXES, (0.4, 0.3, 0.2, 0.1), strict=True))
    rows = analyse(panel_from(HAND), RULES.model_copy(update={"axis_weights": weights}))
    right = 0.125 + 0.3 * (1 - (1 / 2 + 1 / 12 + 1 / 24) ** 0.5)
    assert rows["profile", "without_discrimination", "ace"]["crs"] == pytest.approx(right, abs=1e-12)


def test_raw_means_are_over_the_datasets_that_all_have() -> None:
    # far is easier: the raw mean of both would put cub, which lacks it, last
    cells: Cells = {
        "ace": {"near": [0.7] * 4, "far": [0.9] * 4},
        "bow": {"near": [0.6] * 4, "far": [0.95] * 4},
        "cub": {"near": [0.8] * 4},
    }
    rows = analyse(panel_from(cells))
    raw = [rows["raw_common_datasets", "primary", encoder] for encoder in cells]
    assert [row["auroc_score"] for row in raw] == pytest.approx([0.7, 0.6, 0.8])
    assert [row["rank_auroc"] for row in raw] == [2, 3, 1]
    # profile: ace (.5 + 0) / 2, bow (0 + 1) / 2, cub 1
    profile = [rows["profile", "primary", encoder] for encoder in cells]
    assert [row["auroc_score"] for row in profile] == pytest.approx([0.25, 0.5, 1.0])


def test_equal_members_share_their_ranks() -> None:
    cells = {**HAND, "bow2": HAND["bow"]}
    rows = analyse(panel_from(cells))
    for name in ("crs", "rank_crs", "rank_auroc", "rank_displacement"):
        assert rows["profile", "primary", "bow"][name] == rows["profile", "primary", "bow2"][name]
    assert rows["profile", "primary", "cub"]["rank_auroc"] == 4


@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_scipy_the_published_score_and_rank_agreement(seed: int) -> None:
    cells = random_unit_cells(seed)
    panel = panel_from(cells)
    rows = analyse(panel)
    cohort: Cohort = {encoder: {d: tuple(values) for d, values in own.items()} for encoder, own in cells.items()}
    published, _ = crs_scores(values_frame(cohort), encoders_frame(cohort), panel, PROTOCOL, code_version=1)
    plain = plain_crs(cells)
    for encoder, crs, x, rank in published.select("encoder_id", "crs", "x_discrimination", "rank_panel").iter_rows():
        row = rows["profile", "primary", encoder]
        assert (row["crs"], row["auroc_score"]) == pytest.approx((crs, x), abs=1e-12)
        assert row["crs"] == pytest.approx(plain[encoder], abs=1e-12)
        assert row["rank_crs"] == rank
    for pooled in rank_agreement(panel, "no_replicates", RULES).to_dicts():
        variants = pooled["auroc_variant"], pooled["crs_variant"]
        own = [rows[(*variants, encoder)] for encoder in panel.members]
        if pooled["reason"] == "no_common_dataset":
            assert {(row["auroc_score"], row["rank_displacement"], row["reason"]) for row in own} == {
                (None, None, "no_common_dataset")
            }
            assert None not in {row["rank_crs"] for row in own}
            continue
        for score, rank in (("auroc_score", "rank_auroc"), ("crs", "rank_crs")):
            right = stats.rankdata([-round(row[score], 12) for row in own], method="min")
            assert [row[rank] for row in own] == right.tolist()
        moved = sum(abs(row["rank_displacement"]) for row in own) / len(own)
        assert pooled["mean_absolute_rank_displacement"] == pytest.approx(moved, abs=1e-12)


def test_order_and_names_of_encoders_move_nothing() -> None:
    cells = random_unit_cells(3, n_encoders=7)
    rows = analyse(panel_from(cells))
    assert analyse(panel_from(dict(reversed(cells.items())))) == rows
    names = {encoder: f"x{7 - i}" for i, encoder in enumerate(cells)}
    renamed = analyse(panel_from({names[encoder]: own for encoder, own in cells.items()}))
    for (auroc, crs, encoder), row in rows.items():
        assert renamed[auroc, crs, names[encoder]] == {**row, "encoder_id": names[encoder]}
