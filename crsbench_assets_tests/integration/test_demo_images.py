"""The demo panel: drawn images in official layouts through real pretrained encoders to a leaderboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from crsbench_assets.storage.project import open_project
from crsbench_assets_tests.integration.test_real_vectors import crsbench

pytestmark = pytest.mark.slow  # a hundred seconds of computation on two cores


def rows(home: Path, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(crsbench("sql", "--home", str(home), "--format", "json", query))
    return found


def test_five_candidates_are_ranked_and_two_controls_stand_beside(demo: tuple[Path, str]) -> None:
    home, printed = demo
    board = rows(home, "SELECT rank, rank_lo, rank_hi, p_best, encoder_id, role, status, crs FROM leaderboard")
    candidates = [row for row in board if row["role"] == "candidate"]
    assert sorted(row["rank"] for row in candidates) == [1, 2, 3, 4, 5]
    assert all(row["rank_lo"] <= row["rank"] <= row["rank_hi"] for row in candidates)
    assert sum(row["p_best"] for row in candidates) == pytest.approx(1)
    assert {row["encoder_id"] for row in board if row["rank"] is None} == {"handcrafted", "random_vit"}
    assert {row["status"] for row in board} == {"ok"} and all(row["crs"] is not None for row in board)
    assert rows(home, "SELECT status, count(*) AS n FROM cells GROUP BY status") == [{"status": "ok", "n": 21}]
    assert "images/s" in printed and "Leaderboard against panel demo-" in printed


def test_everything_is_marked_synthetic(demo: tuple[Path, str]) -> None:
    home, printed = demo
    assert rows(home, "SELECT count(*) AS n FROM datasets WHERE NOT is_synthetic") == [{"n": 0}]
    assert "Everything here is synthetic" in printed
    assert all("drawn" in row["name"] for row in rows(home, "SELECT name FROM datasets"))


def test_pretrained_encoders_see_more_than_the_random_control(demo: tuple[Path, str]) -> None:
    home, _ = demo
    query = "SELECT encoder_id, x_discrimination AS x FROM crs_scores"
    found = {row["encoder_id"]: row["x"] for row in rows(home, query)}
    assert found.pop("random_vit") <= min(found.values())


def test_duplicates_and_views_of_one_lesion_stay_together(demo: tuple[Path, str]) -> None:
    project = open_project(demo[0])
    for dataset_id in ("demo-isic", "demo-aptos", "demo-cxr"):
        assert project.lake.read("leakage_violations", (dataset_id,)).is_empty()
        assert project.lake.read("quarantine", (dataset_id,)).is_empty()
    images = project.lake.read("images", ("demo-aptos",))
    twins = images.filter(pl.col("pixel_sha256").is_duplicated())
    assert twins.height == 8 and twins.get_column("group_index").n_unique() == 4


def test_a_second_demo_in_the_same_home_does_nothing(demo: tuple[Path, str]) -> None:
    assert "Nothing to do" in crsbench("materialize", "--home", str(demo[0]))
