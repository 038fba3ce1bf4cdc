from __future__ import annotations

from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from benchmarks.fabricate import fabricate_cells
from crsbench_assets.config.errors import StorageError
from crsbench_assets.planning.plan import plan
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import Project, create_home, open_project
from crsbench_assets.storage.snapshots import open_published
from crsbench_assets.storage.sql import open_live, parse_select
from crsbench_assets.tables.ddl import WAREHOUSE_INFO
from crsbench_assets.tables.registry import TABLES
from crsbench_assets_tests.storage.conftest import ALL_RELATIONS, ask, frame, published


def test_before_the_first_publication_the_lake_answers(tmp_path: Path) -> None:
    layout = HomeLayout(tmp_path / "home")
    create_home(layout, "")
    result = ask(open_project(layout.root), "FROM leaderboard")
    assert (result.origin, result.table.num_rows) == ("lake", 0)
    assert result.note == "No warehouse is published yet. The lake answers; `crsbench publish` makes it new."


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO cells VALUES ('a', 'b', 'ok', NULL)",
        "CREATE TABLE t AS SELECT 1",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE cells",
        "COPY cells TO '{folder}/out.csv'",
        "WITH x AS (COPY (SELECT 1) TO '{folder}/out.csv') FROM x",
        "SELECT (WITH x AS (COPY (SELECT 1) TO '{folder}/out.csv') SELECT 1)",
        "WITH x AS (DELETE FROM cells RETURNING *) FROM x",
        "EXPLAIN ANALYZE COPY cells TO '{folder}/out.csv'",
        "ATTACH '{folder}/out.csv'",
        "SET threads = 1",
        "PRAGMA version",
        "CALL pragma_version()",
        "INSTALL httpfs",
        "-- nothing",
        "",
        "SELEC 1",
    ],
)
@pytest.mark.parametrize("live", [False, True])
def test_anything_but_one_select_is_refused(empty_home: Project, sql: str, live: bool) -> None:
    with pytest.raises(StorageError, match=r"^(Expected exactly one SELECT|The query cannot be parsed)"):
        ask(empty_home, sql.format(folder=empty_home.layout.lake), live=live)
    assert not list(empty_home.layout.root.rglob("out.csv"))


@pytest.mark.parametrize(
    "sql",
    [
        "FROM read_text('{outside}')",
        "FROM read_text('{lake}/../../secret.txt')",
        "FROM glob('/etc/*')",
        "FROM read_parquet('https://example.org/x.parquet')",
        "FROM query('CREATE TABLE t AS SELECT 1')",
        "FROM local_frame",
        "SELECT nonsense FROM cells",
    ],
)
@pytest.mark.parametrize("live", [False, True])
def test_a_query_sees_the_tables_of_the_home_and_nothing_else(
    empty_home: Project, tmp_path: Path, sql: str, live: bool
) -> None:
    local_frame = pl.DataFrame({"a": [1]})  # DuckDB would find it by its name in our frames
    outside = tmp_path / "secret.txt"
    outside.write_text("secret")
    with pytest.raises(StorageError, match=r"^The query failed: .*[^.]\.$") as raised:
        ask(empty_home, sql.format(outside=outside, lake=empty_home.layout.lake), live=live)
    assert "\n" not in str(raised.value)
    assert local_frame.height == 1


@pytest.mark.parametrize(
    ("sql", "relations"),
    [
        ("SELECT * FROM Run_Records JOIN cells USING (encoder_id, dataset_id)", {"run_records", "cells"}),
        ("SELECT 1 WHERE 1 IN (SELECT rank FROM leaderboard)", {"leaderboard"}),
        ("FROM cells UNION ALL BY NAME FROM ranks", {"cells", "ranks"}),
        ("VALUES (1)", set()),
        ("WITH x AS (FROM cells) FROM x", None),
        ("SHOW TABLES", None),
        ("DESCRIBE cells", None),
        ("SUMMARIZE cells", None),
        ("FROM query_table('cells')", None),
        ("FROM information_schema.tables", None),
    ],
)
def test_selects_are_allowed_and_say_what_they_name(empty_home: Project, sql: str, relations: set[str] | None) -> None:
    assert parse_select(sql) == relations
    of_warehouse, of_lake = ask(empty_home, sql), ask(empty_home, sql, live=True)
    assert (of_warehouse.origin, of_lake.origin) == ("warehouse", "lake")
    assert of_warehouse.table.column_names == of_lake.table.column_names


def test_live_shows_what_was_computed_since_and_the_snapshot_does_not(home: Project) -> None:
    published(home)
    key = ("encoder-001", "dataset-001")
    before = {name: home.lake.read(name, key) for name in ("run_records", "label_metrics", "predictions")}
    fabricate_cells(home.layout.root, home.registry.hash, [key], version=1)
    for name, old in before.items():
        new = home.lake.read(name, key)
        assert not new.equals(old)
        sql = f"FROM {name} WHERE encoder_id = '{key[0]}' AND dataset_id = '{key[1]}'"
        order = list(TABLES[name].key)
        assert frame(ask(home, sql)).sort(order).equals(old.sort(order)), name
        assert frame(ask(home, sql, live=True)).sort(order).equals(new.sort(order)), name


def test_live_has_every_relation_of_the_warehouse(snapshot: Project) -> None:
    cells = plan(snapshot).cells
    with closing(open_live(snapshot, lambda: cells)) as live, closing(open_published(snapshot.layout)) as file:
        for relation in ALL_RELATIONS:
            sql = f"SELECT * FROM {relation} ORDER BY ALL"
            is_equal = live.sql(sql).to_arrow_table().equals(file.sql(sql).to_arrow_table())
            assert is_equal or relation == WAREHOUSE_INFO.name, relation


def test_a_missing_lake_file_is_named(home: Project) -> None:
    (path,) = home.lake.files("run_records", ("encoder-000", "dataset-000"))
    path.unlink()
    for read in (lambda: ask(home, "FROM run_records", live=True), lambda: published(home)):
        with pytest.raises(StorageError, match=path.name):
            read()
