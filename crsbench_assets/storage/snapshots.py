"""Published snapshots: what ``warehouse.duckdb`` names, whether somebody changed it, and reading it.

What lives here: the records of the snapshots, opening one, and why there is none to open. What stays out: making one
(``warehouse``), what a query may do (``sql``) and what is stale (``planning``).
Source: interfaces page, "Warehouse rule".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from crsbench_assets.config.errors import StorageError
from crsbench_assets.storage.files import read_json
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.tables.ddl import literal, quoted
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import DUCKDB_TYPES
from crsbench_assets.tables.validate import conform

if TYPE_CHECKING:
    import duckdb
    import polars as pl

SnapshotState = Literal["absent", "pristine", "changed", "locked"]

_LOCKED = "Could not set lock on file"
"""What DuckDB says of a file that another process holds open; a path may hold any word."""


def snapshot_state(layout: HomeLayout) -> SnapshotState:
    """Return whether the published snapshot is still what was published.

    ``absent``: nothing is published. ``locked``: another process holds it open for writing. ``changed``: its size or
    time differ from the record made at publication, a write-ahead log lies beside it, or it cannot be read.
    """
    snapshot = _open_file(layout.warehouse.resolve())
    if not isinstance(snapshot, str):
        snapshot.close()
        return "pristine"
    return snapshot


def open_published(layout: HomeLayout) -> duckdb.DuckDBPyConnection:
    """Return a read-only connection on the published snapshot; close it.

    Raises:
        StorageError: there is none, or it is not what was published.
    """
    found = published_or_why(layout)
    if isinstance(found, str):
        raise StorageError(f"{found} Run `crsbench publish`.")
    return found


def published_or_why(layout: HomeLayout) -> duckdb.DuckDBPyConnection | str:
    """Return a read-only connection on the published snapshot, or the sentence that says why there is none."""
    home = moved_from(layout)
    if home:
        return f"The warehouse was published at {home} and names files there; the home is {layout.root} now."
    found = _open_file(layout.warehouse.resolve())
    reasons = {
        "absent": "No warehouse is published yet.",
        "locked": f"Somebody holds {layout.warehouse} open for writing.",
        "changed": f"Somebody changed {layout.warehouse} after it was published.",
    }
    return reasons[found] if isinstance(found, str) else found


def published_rows(layout: HomeLayout, table: str) -> pl.DataFrame:
    """Return the rows of a table as they were published last; no row where nothing was, or in another shape.

    The newest snapshot that is as it was published counts; one that somebody changed or writes to is passed over.
    """
    import polars as pl

    spec = TABLES[table]
    for record in reversed(published_records(layout)):
        snapshot = _open_file(layout.published / f"warehouse-{record['number']}.duckdb")
        if not isinstance(snapshot, str):
            with closing(snapshot):
                shape = f"SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = {literal(table)}"
                if not {(c.name, DUCKDB_TYPES[c.type]) for c in spec.columns} <= set(snapshot.sql(shape).fetchall()):
                    return spec.empty()
                columns = ", ".join(quoted(name) for name in spec.column_names)
                rows = pl.from_arrow(snapshot.sql(f"SELECT {columns} FROM {quoted(table)}").to_arrow_table())
            return conform(pl.DataFrame(rows), spec)
    return spec.empty()


def published_records(layout: HomeLayout) -> list[dict[str, Any]]:
    """Return the records of the snapshots that are there, oldest first.

    A record has ``number``, ``home``, ``size`` and ``mtime_ns`` of the finished file, and ``files``: the files that
    its views name, relative to the lake.
    """
    paths = {number: path for number, path in numbered(layout) if path.suffix == ".json"}
    records = [read_json(path) for _, path in sorted(paths.items())]
    return [record for record in records if record is not None]


def numbered(layout: HomeLayout) -> Iterator[tuple[int, Path]]:
    """Yield everything that carries a snapshot's number, a user's forgotten write-ahead log too."""
    if not layout.published.is_dir():
        return
    for path in layout.published.iterdir():
        match = re.match(r"warehouse-(\d+)\.", path.name)
        if match:
            yield int(match[1]), path


def _open_file(path: Path) -> duckdb.DuckDBPyConnection | Literal["absent", "changed", "locked"]:
    """Return a connection on a published snapshot, or why there is none.

    The file is opened before it is compared with its record: while we read, nobody can open it for writing.
    """
    import duckdb

    if not path.is_file():
        return "absent"
    connection = duckdb.connect()
    try:
        connection.execute(f"ATTACH {literal(str(path))} AS warehouse (READ_ONLY)")
        connection.execute("USE warehouse")
    except duckdb.Error as error:
        connection.close()
        return "locked" if _LOCKED in str(error) else "changed"
    record = read_json(path.with_suffix(".json"))
    status = path.stat()
    is_same = record is not None and (record["size"], record["mtime_ns"]) == (status.st_size, status.st_mtime_ns)
    if not is_same or path.with_name(f"{path.name}.wal").exists():
        connection.close()
        return "changed"
    return connection


def linked_record(layout: HomeLayout) -> dict[str, Any] | None:
    """Return the record of the snapshot that ``warehouse.duckdb`` names, or None where there is none."""
    record: dict[str, Any] | None = read_json(layout.warehouse.resolve().with_suffix(".json"))
    return record


def moved_from(layout: HomeLayout) -> str | None:
    """Return the home that the published snapshot was made in where that is another folder, or None."""
    record = linked_record(layout)
    if record is None:
        return None
    home = Path(record["home"])
    is_here = home.exists() and home.samefile(layout.root)
    return None if is_here else str(home)
