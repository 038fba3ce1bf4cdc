from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fabricate import fabricate_cells
from crsbench_assets.config.errors import StorageError
from crsbench_assets.planning.stages import stages_of
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets.storage.snapshots import open_published, published_rows, snapshot_state
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import ColumnSpec
from crsbench_assets.worker.run import run_stage
from crsbench_assets_tests.fabricate import fabricated_home
from crsbench_assets_tests.storage.conftest import ask, frame, lake_rows, published, raw, raw_relations

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
