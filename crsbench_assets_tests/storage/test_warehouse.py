from __future__ import annotations

import json
import os
import threading
from contextlib import closing
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
from crsbench_assets.storage.leases import lease
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets.storage.snapshots import snapshot_state
from crsbench_assets.storage.sql import query
from crsbench_assets.storage.warehouse import is_published, publish, resolve_partitions
from crsbench_assets.tables.ddl import VIEWS, WAREHOUSE_INFO, ViewSpec, create_table, empty_view
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import DUCKDB_TYPES, ColumnSpec, TableSpec
from crsbench_assets.worker.pooled_stages import current_conditions, encoders_frame
from crsbench_assets.worker.run import run_stage
from crsbench_assets_tests.fabricate import fabricated_home
from crsbench_assets_tests.storage.conftest import ALL_RELATIONS, ask, frame, lake_rows, published, raw

LAKE_TABLES = [spec for spec in TABLES.values() if spec.grain != "publication"]

EMPTY_WHERE_ALL_IS_WELL = {"quarantine", "leakage_violations", "embedding_failures", "shift_embeddings"}

EMPTY_WITHOUT_SHIFT = {"institutional_shift", "institutional_shift_test", "mimic_transfer"}


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


def test_files_are_written_for_the_oldest_supported_clients(snapshot: Project) -> None:
    with closing(duckdb.connect()) as connection:
        connection.execute(f"ATTACH '{snapshot.layout.warehouse.resolve()}' AS w (READ_ONLY)")
        rows = connection.execute("SELECT tags FROM duckdb_databases() WHERE database_name = 'w'").fetchall()
    assert warehouse.STORAGE_VERSION in str(rows)


def test_a_mixture_of_two_versions_is_counted() -> None:
    n = rows_of(7)
    assert 100 <= n <= 5000
    assert n_mixed([("e", "d", n, 7.0, 7.0)]) == 0
    assert n_mixed([("e", "d", n, 7.0, 8.0), ("e", "d", n - 1, 7.0, 7.0), ("e", "d", n, 7.0, 7.0)]) == 2
