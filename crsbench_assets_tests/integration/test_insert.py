"""Inserting an encoder: no earlier number moves by a single bit, and nothing is computed that need not be.

``enc-a`` sorts before every other encoder and beats every anchor of the frozen panel, which is where a score that
was taken relative to the cohort would move. An encoder that fails on one image is inserted in ``test_checks``, one
into a panel of fifteen, whose analyses have more to say, in ``test_demo``.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl
import pytest

from crsbench_assets.planning.stages import STAGE_OF_TABLE, stages_of
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import open_project
from crsbench_assets.tables.analyses import ANALYSIS_TABLES
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.worker.run import run_stage
from crsbench_assets_tests.integration.homes import (
    STANDING,
    add_encoder,
    copy_home,
    exact_rows,
    moved_columns,
    pointers,
    table_rows,
)

POOLED = {table for stage in stages_of("whole") for table in stage.tables}


@pytest.mark.parametrize("table", ["crs_scores", "cell_scores", "cell_axes", "run_records", "label_metrics"])
def test_every_earlier_row_has_the_same_bits(filled: HomeLayout, extended: HomeLayout, table: str) -> None:
    before, after = table_rows(filled, table), table_rows(extended, table)
    earlier = after.filter(pl.col("encoder_id") != "enc-a")
    assert before.height and after.height > earlier.height, "the new encoder has rows"
    assert exact_rows(earlier) == exact_rows(before)


def test_a_card_that_comes_while_a_pooled_stage_runs_waits_for_the_next_run(filled: HomeLayout, tmp_path: Path) -> None:
    layout = copy_home(filled, tmp_path / "home")
    before = pointers(layout)
    add_encoder(layout, "enc-a")
    project = open_project(layout.root)
    for stage in stages_of("whole"):
        if not stage.is_on_request and "describe" not in stage.name:
            run_stage(project, stage, ())
    after = pointers(layout)
    assert after["institutional_shift"].content_hash == before["institutional_shift"].content_hash


@pytest.mark.parametrize("table", ["ranks", *sorted(POOLED & {spec.name for spec in ANALYSIS_TABLES})])
def test_no_earlier_row_of_an_analysis_moves_but_where_an_encoder_stands(
    filled: HomeLayout, extended: HomeLayout, table: str
) -> None:
    assert moved_columns(filled, extended, table, "enc-a") <= STANDING.get(table, set())


def test_the_new_encoder_beats_every_anchor(filled: HomeLayout, extended: HomeLayout) -> None:
    scores = table_rows(extended, "crs_scores").filter(pl.col("status") == "ok")
    assert set(scores.get_column("encoder_id")) == {"enc-a", "enc-b", "enc-c"}
    assert scores.sort("crs").get_column("encoder_id")[-1] == "enc-a"
    assert exact_rows(table_rows(extended, "reference_panels")) == exact_rows(table_rows(filled, "reference_panels"))


def test_only_its_own_and_the_pooled_partitions_are_written(filled: HomeLayout, extended: HomeLayout) -> None:
    before, after = pointers(filled), pointers(extended)
    changed = {name for name, pointer in after.items() if before.get(name) != pointer}
    own = {name for name in changed if "encoder_id=enc-a" in name}
    assert {name.split("/")[0] for name in own} == {table for stage in stages_of("cell") for table in stage.tables}
    assert changed - own <= POOLED, changed - own
    # a frozen panel and what is compared with it stand still; the catalogue and the scores have one row more
    assert {"encoders", "crs_scores", "cell_scores", "ranks"} <= changed
    assert after["reference_panels"].content_hash == before["reference_panels"].content_hash


def test_files_of_earlier_cells_are_untouched(filled: HomeLayout, extended: HomeLayout) -> None:
    for name, pointer in pointers(filled).items():
        if STAGE_OF_TABLE[name.split("/")[0]].grain == "whole":
            continue
        for file in pointer.files:
            path = Path("lake", "main", name, file)
            assert (extended.root / path).read_bytes() == (filled.root / path).read_bytes(), path


def test_a_published_row_of_every_score_table_is_what_the_lake_holds(extended: HomeLayout) -> None:
    with duckdb.connect(str(extended.warehouse), read_only=True) as connection:
        arrow = connection.execute("SELECT * FROM main.crs_scores").to_arrow_table()
        published = pl.DataFrame(arrow).select(TABLES["crs_scores"].column_names)
    key = list(TABLES["crs_scores"].key)
    assert exact_rows(published.sort(key)) == exact_rows(open_project(extended.root).lake.read("crs_scores", ()))
