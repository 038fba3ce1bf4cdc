from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
import pytest

from benchmarks.fabricate import fabricate_cells
from benchmarks.warehouse import n_mixed, rows_of
from crsbench_assets.config.errors import StorageError
from crsbench_assets.planning.plan import CellState, plan
from crsbench_assets.planning.stages import PLANNED, STAGE_OF_TABLE, stages_of
from crsbench_assets.scores.panel import freeze
from crsbench_assets.scores.profile import axis_values
from crsbench_assets.storage import warehouse
from crsbench_assets.storage.lake import Provenance
from crsbench_assets.storage.lake_gc import remove_superseded, superseded_files
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.leases import lease
from crsbench_assets.storage.project import Project, create_home, open_project
from crsbench_assets.storage.warehouse import (
    Publication,
    QueryResult,
    is_published,
    open_live,
    open_published,
    parse_select,
    publish,
    published_rows,
    query,
    resolve_partitions,
    snapshot_state,
)
from crsbench_assets.tables.ddl import VIEWS, WAREHOUSE_INFO, ViewSpec, create_table, empty_view
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import DUCKDB_TYPES, ColumnSpec, TableSpec
from crsbench_assets.worker.pooled_stages import current_conditions, encoders_frame
from crsbench_assets.worker.run import run_stage
from crsbench_assets_tests.fabricate import fabricated_home

LAKE_TABLES = [spec for spec in TABLES.values() if spec.grain != "publication"]
EMPTY_WHERE_ALL_IS_WELL = {"quarantine", "leakage_violations", "embedding_failures", "shift_embeddings"}
EMPTY_WITHOUT_SHIFT = {"institutional_shift", "institutional_shift_test", "mimic_transfer"}
ALL_RELATIONS = [*TABLES, WAREHOUSE_INFO.name, *(view.name for view in VIEWS)]


@pytest.fixture
def home(tmp_path: Path) -> Project:
    return fabricated_home(tmp_path / "home")


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A published home, for tests that only read it."""
    project = fabricated_home(tmp_path_factory.mktemp("published") / "home")
    published(project)
    return project


@pytest.fixture(scope="module")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A home without results, published."""
    layout = HomeLayout(tmp_path_factory.mktemp("empty") / "home")
    create_home(layout, "")
    project = open_project(layout.root)
    published(project)
    return project


def published(project: Project) -> Publication:
    return publish(project, plan(project).cells)


def ask(project: Project, sql: str, *, live: bool = False) -> QueryResult:
    return query(project, sql, cells=lambda: plan(project).cells, live=live)


def frame(result: QueryResult) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(result.table))


def raw(path: Path, *queries: str) -> list[pl.DataFrame]:
    """Answers of a plain DuckDB reader."""
    with closing(duckdb.connect(str(path), read_only=True)) as connection:
        return [pl.DataFrame(pl.from_arrow(connection.sql(sql).to_arrow_table())) for sql in queries]


def raw_relations(path: Path) -> set[str]:
    (names,) = raw(path, "SELECT table_name FROM information_schema.tables")
    return set(names.get_column("table_name"))


def lake_rows(project: Project, spec: TableSpec) -> pl.DataFrame:
    lake = project.lake
    parts = [p for p in resolve_partitions(project) if p.table == spec.name and p.pointer.status == "ok"]
    return pl.concat([spec.empty(), *(lake.read(spec.name, part.key) for part in parts)])


# --- the fabricated home itself


def test_the_planner_finds_every_fabricated_partition_current(snapshot: Project) -> None:
    found = plan(snapshot)
    assert not any(task.is_due for task in found.tasks)
    assert [cell.status for cell in found.cells] == ["ok"] * 6


def test_repeated_cells_are_current_too(tmp_path: Path) -> None:
    project = fabricated_home(tmp_path / "wide", n_encoders=1, n_datasets=4)  # the fourth dataset repeats the first
    assert not any(task.is_due for task in plan(project).tasks)
    first, fourth = (project.lake.read("run_records", ("encoder-000", f"dataset-00{i}")) for i in (0, 3))
    assert fourth.get_column("dataset_id").unique().to_list() == ["dataset-003"]
    assert fourth.drop("dataset_id", "inputs_hash").equals(first.drop("dataset_id", "inputs_hash"))


# --- what a publication holds


def test_a_publication_holds_exactly_the_lake(snapshot: Project) -> None:
    for spec in LAKE_TABLES:
        order = list(dict.fromkeys((*spec.grain_key, *spec.key)))
        expected = lake_rows(snapshot, spec).sort(order)
        found = frame(ask(snapshot, f"FROM {spec.name}")).cast(spec.polars_schema())  # type: ignore[arg-type]
        assert found.sort(order).equals(expected), spec.name
        is_empty = spec.name in EMPTY_WHERE_ALL_IS_WELL | EMPTY_WITHOUT_SHIFT
        is_filled = STAGE_OF_TABLE.get(spec.name) in PLANNED and not is_empty
        assert (expected.height > 0) == is_filled, spec.name


def test_every_relation_has_its_columns_types_and_comments(snapshot: Project) -> None:
    shapes: list[TableSpec | ViewSpec] = [*TABLES.values(), WAREHOUSE_INFO, *VIEWS]
    rows = frame(ask(snapshot, "SELECT table_name, column_name, data_type, comment FROM duckdb_columns()")).rows()
    found: dict[str, list[tuple[str, str, str]]] = {}
    for table, *column in rows:
        found.setdefault(table, []).append(tuple(column))
    for shape in shapes:
        assert found[shape.name] == [(c.name, DUCKDB_TYPES[c.type], c.description) for c in shape.columns]
    tables = dict(frame(ask(snapshot, "SELECT table_name, comment FROM duckdb_tables()")).iter_rows())
    views = dict(frame(ask(snapshot, "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal")).iter_rows())
    assert tables | views == {shape.name: shape.description for shape in shapes}
    assert views.keys() == {spec.name for spec in LAKE_TABLES if spec.is_bulk} | {view.name for view in VIEWS}


def test_cells_partitions_and_info(snapshot: Project) -> None:
    cells = frame(ask(snapshot, "FROM cells"))
    assert cells.height == 6
    assert cells.get_column("status").unique().to_list() == ["ok"]
    partitions = frame(ask(snapshot, "FROM partitions"))
    assert partitions.height == len(resolve_partitions(snapshot))
    row = partitions.row(by_predicate=pl.col("table_name") == "crs_scores", named=True)
    pointer = snapshot.lake.pointer("crs_scores", ())
    assert pointer is not None
    assert (row["encoder_id"], row["content_hash"], row["n_rows"]) == ("", pointer.content_hash, pointer.n_rows)
    (info,) = frame(ask(snapshot, "FROM warehouse_info")).to_dicts()
    assert (info["home"], info["number"], info["panel_id"]) == (str(snapshot.layout.root), 1, "provisional")


def test_two_publications_hold_equal_rows_in_equal_order(home: Project) -> None:
    first, second = published(home).path, published(home).path
    assert first != second
    relations = [name for name in ALL_RELATIONS if name != WAREHOUSE_INFO.name]
    queries = [f"FROM {name}" for name in relations]
    for name, before, after in zip(relations, raw(first, *queries), raw(second, *queries), strict=True):
        assert before.equals(after), name


def test_the_link_is_relative_and_the_last_two_snapshots_stay(home: Project) -> None:
    published(home)
    wal = home.layout.published / "warehouse-1.duckdb.wal"
    wal.write_bytes(b"left by a session that was killed")
    died = home.layout.published / "warehouse-4.building"
    died.mkdir()
    (died / "warehouse.duckdb").write_bytes(b"left by a publication that was killed")
    assert [published(home).number for _ in range(2)] == [5, 6]  # a number is never used twice
    assert home.layout.warehouse.readlink() == Path("published/warehouse-6.duckdb")
    left = {path.name for path in home.layout.published.iterdir()} - {".lock"}
    assert left == {"warehouse-5.duckdb", "warehouse-5.json", "warehouse-6.duckdb", "warehouse-6.json"}


def test_an_empty_home_publishes_empty_tables(empty_home: Project) -> None:
    queries = [f"FROM {name}" for name in ALL_RELATIONS]
    for name, rows in zip(ALL_RELATIONS, raw(empty_home.layout.warehouse, *queries), strict=True):
        assert rows.height == (1 if name == WAREHOUSE_INFO.name else 0), name


def test_before_the_first_publication_the_lake_answers(tmp_path: Path) -> None:
    layout = HomeLayout(tmp_path / "home")
    create_home(layout, "")
    result = ask(open_project(layout.root), "FROM leaderboard")
    assert (result.origin, result.table.num_rows) == ("lake", 0)
    assert result.note == "No warehouse is published yet. The lake answers; `crsbench publish` makes it new."


def test_partitions_of_another_shape_are_listed_and_not_published(
    home: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = TABLES["run_records"]
    monkeypatch.setitem(TABLES, "run_records", replace(spec, schema_version=spec.schema_version + 1))
    for path in (home.layout.lake / "main" / "run_records").rglob("_current.json"):
        if "encoder_id=encoder-000/dataset_id=dataset-000" not in str(path):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": spec.schema_version + 1}))
    published(home)
    rows = frame(ask(home, "SELECT DISTINCT encoder_id, dataset_id FROM run_records"))
    assert rows.height == 5
    outdated = frame(ask(home, "SELECT encoder_id, table_name FROM partitions WHERE status = 'outdated_schema'"))
    assert outdated.rows() == [("encoder-000", "run_records")]


def with_cell(project: Project, status: str, reason: str) -> list[CellState]:
    """The planner's cells, with another status of encoder-000 x dataset-000."""
    cells = plan(project).cells
    return [replace(c, status=status, reason=reason) if (c == cells[0]) else c for c in cells]


@pytest.mark.parametrize("status", ["failed", "not_applicable"])
def test_of_a_cell_that_ended_only_the_explanation_is_published(home: Project, status: str) -> None:
    key = ("encoder-000", "dataset-000")
    cells = with_cell(home, status, "incomplete_support")
    assert (cells[0].encoder_id, cells[0].dataset_id) == key
    failure = pl.DataFrame(
        [(*key, "clean", "image", "missing")], schema=TABLES["embedding_failures"].polars_schema(), orient="row"
    )
    home.lake.commit("embedding_failures", key, failure, Provenance("inputs", {}, 0.0))
    old = home.lake.pointer("predictions", key)
    publish(home, cells)
    of_cell = f"WHERE encoder_id = '{key[0]}' AND dataset_id = '{key[1]}'"
    for live in (False, True):

        def answer(sql: str, live: bool = live) -> pl.DataFrame:
            return frame(query(home, f"{sql} {of_cell}", cells=lambda: cells, live=live))

        for name in ("run_records", "seed_aggregates", "cell_axes", "embeddings", "predictions", "label_curves"):
            assert answer(f"SELECT encoder_id FROM {name}").is_empty(), name
        assert answer("SELECT image_id, reason FROM embedding_failures").rows() == [("image", "missing")]
        found = answer("SELECT table_name, status, reason, n_rows FROM partitions")
        stated = {table: tuple(rest) for table, *rest in found.iter_rows()}
        assert old is not None
        assert stated.pop("embedding_failures") == ("ok", None, 1)
        assert stated["predictions"] == (status, "incomplete_support", old.n_rows)
        assert {value[:2] for value in stated.values()} == {(status, "incomplete_support")}
        rest = frame(query(home, "SELECT DISTINCT encoder_id, dataset_id FROM run_records", cells=list, live=False))
        assert rest.height == 5


# --- whether there is anything to publish


def test_what_was_published_needs_no_publication(home: Project, tmp_path: Path) -> None:
    assert not is_published(home, plan(home).cells)
    published(home)
    assert is_published(home, plan(home).cells)
    (tmp_path / "link").symlink_to(home.layout.root)
    linked = open_project(tmp_path / "link")
    assert is_published(linked, plan(linked).cells)
    fabricate_cells(home.layout.root, home.registry.hash, [("encoder-000", "dataset-000")], version=1)
    assert not is_published(home, plan(home).cells)


def test_a_publication_that_died_before_the_link_is_made_again(home: Project) -> None:
    published(home)
    fabricate_cells(home.layout.root, home.registry.hash, [("encoder-000", "dataset-000")], version=1)
    second = published(home)
    home.layout.warehouse.unlink()
    home.layout.warehouse.symlink_to("published/warehouse-1.duckdb")
    assert second.path.with_suffix(".json").exists()
    assert not is_published(home, plan(home).cells)


def test_a_reason_a_release_and_a_panel_are_published_too(home: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(home, with_cell(home, "failed", "incomplete_support"))
    assert is_published(home, with_cell(home, "failed", "incomplete_support"))
    assert not is_published(home, with_cell(home, "failed", "not_converged"))
    assert not is_published(home, plan(home).cells)
    published(home)
    with monkeypatch.context() as patch:
        patch.setattr(warehouse, "code_release", lambda: "9.9.9")
        assert not is_published(home, plan(home).cells)
    cells = plan(home).cells
    assert is_published(home, cells)
    (home.layout.panels / "frozen.json").write_text("{}", encoding="utf-8")
    assert not is_published(home, cells)


def test_tables_of_one_stage_come_from_one_commit(home: Project) -> None:
    key, registry_hash = ("encoder-000", "dataset-000"), home.registry.hash

    def write() -> None:
        for version in range(1, 6):
            fabricate_cells(home.layout.root, registry_hash, [key], version=version)

    writer = threading.Thread(target=write)
    writer.start()
    n_versions = set()
    while writer.is_alive():
        contents = {p.table: p.pointer for p in resolve_partitions(home) if p.key == key}
        for stage in stages_of("cell"):
            last = contents[stage.last_table]
            assert {table: contents[table].content_hash for table in stage.tables} == last.stage_contents
        n_versions.add(contents["run_records"].content_hash)
    writer.join()
    assert len(n_versions) > 1  # it did change while we looked


# --- the leaderboard


def test_leaderboard_ranks_candidates_and_puts_controls_below(snapshot: Project) -> None:
    board = frame(ask(snapshot, "FROM leaderboard"))
    scores = snapshot.lake.read("crs_scores", ())
    # fabricated: encoder-000 and -001 are candidates, encoder-002 is a control
    candidates = scores.filter(pl.col("encoder_id") != "encoder-002").sort("crs", descending=True)
    assert board.get_column("encoder_id").to_list() == [*candidates.get_column("encoder_id"), "encoder-002"]
    assert board.get_column("rank").to_list() == [1, 2, None]
    assert board.get_column("role").to_list() == ["candidate"] * 2 + ["control"]
    assert board.get_column("crs").to_list()[:2] == candidates.get_column("crs").to_list()
    assert board.get_column("is_synthetic").all()
    assert board.get_column("panel_id").unique().to_list() == ["provisional"]


def test_leaderboard_follows_the_panel_frozen_last(home: Project) -> None:
    lake = home.lake
    axes = lake_rows(home, TABLES["cell_axes"])
    statistics = lake_rows(home, TABLES["dataset_statistics"])
    conditions = current_conditions(home, statistics, "shift")
    ids = []
    for name, age in (("zz-first", 1_000), ("aa-second", 2_000)):  # the later one sorts first by name
        panel, _ = freeze(name, axis_values(axes, "shift"), encoders_frame(home), conditions)
        path = home.layout.panels / f"{panel.panel_id}.json"
        path.write_text(panel.to_json())
        os.utime(path, (age, age))
        ids.append(panel.panel_id)
    for stage in stages_of("whole"):
        run_stage(home, stage, ())
    assert set(lake.read("crs_scores", ()).get_column("panel_id")) == set(ids)
    published(home)
    assert frame(ask(home, "FROM leaderboard")).get_column("panel_id").unique().to_list() == [ids[1]]


def test_label_curves_are_the_clean_aggregates(snapshot: Project) -> None:
    curves = frame(ask(snapshot, "FROM label_curves"))
    clean = lake_rows(snapshot, TABLES["seed_aggregates"]).filter(pl.col("condition_id") == "clean")
    assert curves.equals(clean.select(curves.columns).sort("encoder_id", "dataset_id", "label_fraction"))
    assert curves.height == 6 * 5


# --- what may not get in


BOUNDED = TableSpec(
    "bounded",
    "One row.",
    "whole",
    ("name",),
    (
        ColumnSpec("name", "text", "It's a name"),
        ColumnSpec("share", "real", "Share", nullable=True, low=0, high=1),
        ColumnSpec("seed_values", "reals", "Values", nullable=True),
    ),
)


@pytest.mark.parametrize(
    "values",
    [
        "(NULL, 0.5, NULL)",
        "('a', 'nan'::DOUBLE, NULL)",
        "('a', 'inf'::DOUBLE, NULL)",
        "('a', 1.5, NULL)",
        "('a', -0.5, NULL)",
        "('a', 0.5, [1.0, 'nan'::FLOAT])",
        "('a', 0.5, ['-inf'::FLOAT, NULL])",
    ],
)
def test_constraints_refuse(values: str) -> None:
    with closing(duckdb.connect()) as connection:
        connection.execute(create_table(BOUNDED, "main"))
        with pytest.raises(duckdb.ConstraintException):
            connection.execute(f"INSERT INTO bounded VALUES {values}")


def test_constraints_allow_what_is_defined_or_null() -> None:
    with closing(duckdb.connect()) as connection:
        connection.execute(create_table(BOUNDED, "main"))
        connection.execute("INSERT INTO bounded VALUES ('a', 0, [NULL, 1]), ('b', 1, []), ('c', NULL, NULL)")
        assert connection.execute("SELECT count(*) FROM bounded").fetchone() == (3,)


@pytest.mark.parametrize("spec", LAKE_TABLES, ids=lambda spec: spec.name)
def test_an_empty_view_has_the_types_of_the_table(spec: TableSpec) -> None:
    with closing(duckdb.connect()) as connection:
        connection.execute(empty_view(spec, "main"))
        found = connection.execute(f"DESCRIBE {spec.name}").fetchall()
        assert [row[:2] for row in found] == [(c.name, DUCKDB_TYPES[c.type]) for c in spec.columns]
        assert connection.execute(f"SELECT count(*) FROM {spec.name}").fetchone() == (0,)


def test_nan_past_the_gate_stops_the_publication_and_the_snapshot_before_stays(home: Project) -> None:
    first = published(home)
    (path,) = home.lake.files("run_records", ("encoder-000", "dataset-000"))
    pl.read_parquet(path).with_columns(ece=pl.lit(float("nan"))).write_parquet(path)
    with pytest.raises(StorageError, match=r"CHECK constraint failed on table .run_records"):
        published(home)
    assert snapshot_state(home.layout) == "pristine"
    assert home.layout.warehouse.resolve() == first.path.resolve()
    assert {path.suffix for path in home.layout.published.iterdir()} <= {".duckdb", ".json", ""}
    (worst,) = frame(ask(home, "SELECT max(ece) AS ece FROM run_records")).get_column("ece")
    assert worst < 1


# --- SELECT only


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


# --- the lake, live


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


# --- superseded files


def test_superseded_files_stay_while_a_snapshot_names_them(home: Project) -> None:
    assert superseded_files(home) == []
    published(home)
    key = ("encoder-001", "dataset-001")
    old = {name: home.lake.files(name, key)[0] for name in ("run_records", "predictions")}
    fabricate_cells(home.layout.root, home.registry.hash, [key], version=1)
    assert remove_superseded(home, grace_s=3600) == []
    removed = {file.path for file in remove_superseded(home, grace_s=0)}
    assert old["run_records"] in removed  # its rows are in the snapshot
    assert old["predictions"] not in removed  # the snapshot's view reads it
    expected = frame(ask(home, "SELECT count(*) AS n FROM predictions")).get_column("n")[0]
    assert ask(home, "SELECT count(*) AS n FROM predictions").origin == "warehouse"
    assert expected == lake_rows(home, TABLES["predictions"]).height
    published(home)
    assert old["predictions"].exists()  # the snapshot before still names it
    published(home)
    assert old["predictions"] in {file.path for file in remove_superseded(home, grace_s=0)}
    assert not any(task.is_due for task in plan(home).tasks if task.stage.grain == "cell")


def test_half_written_files_go_and_partitions_at_work_are_left_alone(home: Project) -> None:
    key = ("encoder-000", "dataset-000")
    folder = home.lake.folder("predictions", key)
    half = folder / ".part-0123.parquet.abc.tmp"
    half.write_bytes(b"half")
    with lease(home.lake.folder("probe_fits", key), "probe", None):
        assert remove_superseded(home, grace_s=0) == []
    assert [file.path for file in remove_superseded(home, grace_s=0)] == [half]
    with pytest.raises(StorageError, match="grace period"):
        remove_superseded(home, grace_s=-1)


# --- somebody else has the file open, or changed it


SESSIONS = {
    "created a table": "c.execute('CREATE TABLE mine AS SELECT 1 AS a')",
    "inserted rows": "c.execute('INSERT INTO run_records SELECT * REPLACE (99 AS seed) FROM run_records')",
    "deleted rows": "c.execute('DELETE FROM run_records')",
}


@contextmanager
def session(layout: HomeLayout, action: str, then: str = "") -> Iterator[subprocess.Popen[str]]:
    """Open the warehouse for writing in another process, act, wait for a line, act again, close."""
    code = (
        f"import sys, duckdb\nc = duckdb.connect({str(layout.warehouse)!r})\n{action}\n"
        f"print('ready', flush=True)\nsys.stdin.readline()\n{then or 'pass'}\nc.close()\nprint('closed', flush=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("action", "end"),
    [
        ("created a table", "closes"),
        ("inserted rows", "is killed"),
        ("deleted rows", "writes after the publication"),
    ],
)
def test_a_users_session_reaches_nobody(home: Project, action: str, end: str) -> None:
    layout = home.layout
    published(home)
    sql = "SELECT * FROM run_records ORDER BY ALL"
    right = frame(ask(home, sql))
    relations = raw_relations(layout.warehouse)
    after = SESSIONS["inserted rows"] if end == "writes after the publication" else ""
    with session(layout, SESSIONS[action], after) as process:
        during = ask(home, sql)
        assert during.origin == "lake"
        assert during.note is not None
        assert "open for writing" in during.note
        assert frame(during).equals(right)
        assert snapshot_state(layout) == "locked"
        if end == "is killed":
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        elif end == "closes":
            process.communicate("\n")
        between = ask(home, sql)
        assert frame(between).equals(right)
        number = published(home).number
        assert (number, snapshot_state(layout)) == (2, "pristine")
        if end == "writes after the publication":
            assert process.communicate("\n")[0] == "closed\n"
        answer = ask(home, sql)
        assert (answer.origin, answer.note) == ("warehouse", None)
        assert frame(answer).equals(right)
        assert raw_relations(layout.warehouse) == relations
        assert raw(layout.warehouse, sql)[0].equals(right)


def test_a_changed_snapshot_is_noticed(home: Project) -> None:
    assert snapshot_state(home.layout) == "absent"
    with pytest.raises(StorageError, match="No warehouse is published"):
        open_published(home.layout)
    first = published(home)
    assert snapshot_state(home.layout) == "pristine"
    with session(home.layout, SESSIONS["created a table"]) as process:
        process.communicate("\n")
    assert snapshot_state(home.layout) == "changed"
    result = ask(home, "SELECT count(*) FROM run_records")
    assert result.origin == "lake"
    assert result.note == (
        f"Somebody changed {home.layout.warehouse} after it was published. The lake answers; `crsbench publish` makes "
        "it new."
    )
    with pytest.raises(StorageError, match="Somebody changed"):
        open_published(home.layout)
    first.path.write_bytes(b"no database")
    assert snapshot_state(home.layout) == "changed"


def test_published_rows_come_from_the_newest_snapshot_that_is_unchanged(home: Project) -> None:
    assert published_rows(home.layout, "crs_scores").equals(TABLES["crs_scores"].empty())
    first = home.lake.read("crs_scores", ())
    published(home)
    assert published_rows(home.layout, "crs_scores").equals(first)
    keys = [(encoder, dataset) for encoder in home.registry.encoders for dataset in home.registry.datasets]
    fabricate_cells(home.layout.root, home.registry.hash, keys, version=1)
    for stage in stages_of("whole"):
        run_stage(home, stage, ())
    second = home.lake.read("crs_scores", ())
    assert not second.equals(first)
    published(home)
    assert published_rows(home.layout, "crs_scores").equals(second)
    with session(home.layout, SESSIONS["created a table"]):
        assert published_rows(home.layout, "crs_scores").equals(first)


def test_rows_published_in_another_shape_are_none(home: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    published(home)
    spec = TABLES["crs_scores"]
    assert published_rows(home.layout, "crs_scores").height == 3
    without_balance = tuple(column for column in spec.columns if column.name != "balance")
    as_text = tuple(replace(column, type="text") if column.name == "crs" else column for column in spec.columns)
    new_column = (*spec.columns, ColumnSpec("added_later", "real", "Not in the snapshot", nullable=True))
    monkeypatch.setitem(TABLES, "crs_scores", replace(spec, columns=without_balance))
    assert published_rows(home.layout, "crs_scores").columns == [column.name for column in without_balance]
    for columns in (new_column, as_text):
        newer = replace(spec, columns=columns)
        monkeypatch.setitem(TABLES, "crs_scores", newer)
        assert published_rows(home.layout, "crs_scores").equals(newer.empty())
    monkeypatch.setitem(TABLES, "added_later", replace(spec, name="added_later"))
    assert published_rows(home.layout, "added_later").equals(spec.empty())


def test_a_home_whose_path_speaks_of_locks_is_not_a_locked_one(tmp_path: Path) -> None:
    home = fabricated_home(tmp_path / "lock")
    published(home).path.write_bytes(b"no database")
    assert snapshot_state(home.layout) == "changed"


def test_a_moved_home_answers_from_the_lake_until_it_is_published_again(home: Project) -> None:
    published(home)
    right = frame(ask(home, "SELECT count(*) FROM predictions"))
    moved_to = home.layout.root.with_name("moved")
    home.layout.root.rename(moved_to)
    moved = open_project(moved_to)
    result = ask(moved, "SELECT count(*) FROM predictions")
    assert result.origin == "lake"
    assert result.note is not None
    assert str(home.layout.root) in result.note
    assert str(moved_to) in result.note
    assert frame(result).equals(right)
    with pytest.raises(StorageError, match="published at"):
        open_published(moved.layout)
    published(moved)
    again = ask(moved, "SELECT count(*) FROM predictions")
    assert (again.origin, again.note) == ("warehouse", None)
    assert frame(again).equals(right)


def test_a_home_reached_through_a_link_is_not_a_moved_one(snapshot: Project, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(snapshot.layout.root)
    linked = open_project(tmp_path / "link")
    result = ask(linked, "SELECT count(*) AS n FROM predictions")
    assert (result.origin, result.note) == ("warehouse", None)
    assert frame(result).item() == lake_rows(snapshot, TABLES["predictions"]).height


# --- other versions of DuckDB


def test_duckdb_1_5_5_opens_it(snapshot: Project) -> None:
    folder = Path(tempfile.gettempdir()) / "crsbench-tests-duckdb-1.5.5"
    if not (folder / "duckdb-1.5.5.dist-info").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        online = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # the one test that asks
        done = subprocess.run([*install, "duckdb==1.5.5"], capture_output=True, text=True, env=online)
        if done.returncode:
            pytest.skip(f"duckdb 1.5.5 cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    code = f"""
import duckdb, json
assert duckdb.__version__ == "1.5.5"
c = duckdb.connect({str(snapshot.layout.warehouse)!r}, read_only=True)
board = c.execute("SELECT encoder_id, rank FROM leaderboard").fetchall()
n = {{t: c.execute(f"SELECT count(*) FROM {{t}}").fetchone()[0] for t in {list(TABLES)!r}}}
comment = c.execute("SELECT comment FROM duckdb_tables() WHERE table_name = 'run_records'").fetchone()[0]
print(json.dumps([board, n, comment]))
"""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert child.returncode == 0, child.stderr
    board, n_rows, comment = json.loads(child.stdout)
    names = list(TABLES)
    ours = raw(snapshot.layout.warehouse, "SELECT encoder_id, rank FROM leaderboard", *(f"FROM {t}" for t in names))
    assert board == [list(row) for row in ours[0].rows()]
    assert n_rows == {name: rows.height for name, rows in zip(names, ours[1:], strict=True)}
    assert comment == TABLES["run_records"].description


def test_files_are_written_for_the_oldest_supported_clients(snapshot: Project) -> None:
    with closing(duckdb.connect()) as connection:
        connection.execute(f"ATTACH '{snapshot.layout.warehouse.resolve()}' AS w (READ_ONLY)")
        rows = connection.execute("SELECT tags FROM duckdb_databases() WHERE database_name = 'w'").fetchall()
    assert warehouse.STORAGE_VERSION in str(rows)


# --- what `bench warehouse` calls a mixture


def test_a_mixture_of_two_versions_is_counted() -> None:
    n = rows_of(7)
    assert 100 <= n <= 5000
    assert n_mixed([("e", "d", n, 7.0, 7.0)]) == 0
    assert n_mixed([("e", "d", n, 7.0, 8.0), ("e", "d", n - 1, 7.0, 7.0), ("e", "d", n, 7.0, 7.0)]) == 2
