"""Publishing the warehouse: an immutable DuckDB file behind a link.

What lives here: which partitions are published, making a snapshot of them, and pointing the link at it. What stays out:
the statements (``tables.ddl``), opening snapshots (``snapshots``) and questions to them (``sql``), the lake's own files
(``lake``, ``lake_gc``) and what is stale (``planning``).
Source: interfaces page, "Warehouse rule". A new file renamed over one that a user held open made readers fail, or
replayed the user's rows into the new file; a link to a new name did neither.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from crsbench_assets.config.errors import StorageError
from crsbench_assets.config.hashes import content_hash
from crsbench_assets.config.ids import PROVISIONAL
from crsbench_assets.storage.files import locked, replace_json, storage_errors, sync
from crsbench_assets.storage.lake import Lake, Pointer
from crsbench_assets.storage.layout import HomeLayout, PartitionKey
from crsbench_assets.storage.project import Project, code_release
from crsbench_assets.storage.snapshots import linked_record, moved_from, numbered, snapshot_state
from crsbench_assets.tables.ddl import (
    VIEWS,
    WAREHOUSE_INFO,
    create_table,
    files_view,
    literal,
    quoted,
    reader_view,
)
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import TableSpec
from crsbench_assets.tables.validate import conform

if TYPE_CHECKING:
    import duckdb
    import polars as pl

STORAGE_VERSION = "v1.2.0"
"""Oldest DuckDB whose clients open a warehouse; by default a file asks for the version that wrote it."""

KEPT_SNAPSHOTS = 2
"""The linked snapshot and the one before, which readers may have open."""

OUTDATED_SCHEMA = "outdated_schema"
"""Status, in table ``partitions``, of one written in another shape: it is recomputed or migrated, not published."""

WITHHELD_CELLS = ("failed", "not_applicable")
"""Statuses of cells whose earlier results are not published: they speak of inputs that are gone."""

_SCHEMA = "main"

_TORN_ROUNDS = 20

_TORN_WAIT_S = 0.1

_OF_CELLS = frozenset(spec.name for spec in TABLES.values() if spec.grain == "cell" and not spec.explains_failure)
"""Tables whose rows depend on the status of their cell."""

_JUDGED = _OF_CELLS | {"cells", "partitions"}
"""Relations for which the planner has to look at the cells."""


class CellStatus(Protocol):
    """A cell of the grid as the planner found it (``planning.plan.CellState``)."""

    @property
    def encoder_id(self) -> str:
        """Encoder."""

    @property
    def dataset_id(self) -> str:
        """Dataset."""

    @property
    def status(self) -> str:
        """Status of the cell."""

    @property
    def reason(self) -> str | None:
        """Why it is not ok."""


@dataclass(frozen=True)
class Partition:
    """One partition of the lake, resolved; ``withheld`` is the cell whose status keeps its rows from publication."""

    table: str
    key: PartitionKey
    folder: str
    pointer: Pointer
    withheld: CellStatus | None = None

    @property
    def files(self) -> list[str]:
        """Absolute paths of its files."""
        return [f"{self.folder}/{name}" for name in self.pointer.files]

    @property
    def is_published(self) -> bool:
        """Whether its rows are part of a snapshot."""
        is_current = self.pointer.schema_version == TABLES[self.table].schema_version
        return self.pointer.status == "ok" and is_current and self.withheld is None


@dataclass(frozen=True)
class Publication:
    """What a publication made; ``n_rows`` counts native tables and the rows behind the views of bulk tables."""

    number: int
    path: Path
    n_tables: int
    n_partitions: int
    n_rows: int
    n_bytes: int
    seconds: float


def resolve_partitions(project: Project, tables: Collection[str] = TABLES.keys()) -> list[Partition]:
    """Return the partitions of all active datasets and cells, retired encoders included, as they stand now.

    Tables of one stage are taken from one commit: while somebody is between the pointers of a stage, its partition is
    read again, for two seconds in all. A process killed there leaves a partition that the planner calls stale.

    Args:
        project: the opened home.
        tables: names of the tables to resolve.
    """
    lake, registry = project.lake, project.registry
    keys: list[PartitionKey] = [()]
    keys += [(dataset_id,) for dataset_id in registry.datasets]
    keys += [(encoder_id, dataset_id) for encoder_id in registry.encoders for dataset_id in registry.datasets]
    root = project.layout.lake / lake.arm
    present = [spec for spec in TABLES.values() if spec.name in tables and (root / spec.name).is_dir()]
    found = {key: _partitions_at(lake, present, key) for key in keys}
    for _ in range(_TORN_ROUNDS):
        torn = [key for key, partitions in found.items() if _is_torn(partitions)]
        if not torn:
            break
        time.sleep(_TORN_WAIT_S)
        found |= {key: _partitions_at(lake, present, key) for key in torn}
    return [found[key][spec.name] for spec in present for key in keys if spec.name in found[key]]


def publish(project: Project, cells: Iterable[CellStatus]) -> Publication:
    """Publish the lake as it stands now, and point ``warehouse.duckdb`` at it.

    Readers of earlier snapshots are not disturbed: their file stays as it is. Two publications of one lake hold equal
    rows, but for ``warehouse_info``. Publishers of one machine wait for each other. Of a cell that failed or is not
    applicable, only the tables that explain the failure are published.

    Args:
        project: the opened home.
        cells: the planner's cells.

    Raises:
        StorageError: the disk refuses, or the lake holds rows that no warehouse may.
    """
    started = time.monotonic()
    layout, cells = project.layout, list(cells)
    with storage_errors(layout.published), _publisher_lock(layout):
        number, folder = _claim(layout)
        try:
            partitions = _judged(resolve_partitions(project), cells)
            building = folder / "warehouse.duckdb"
            n_rows = _build(project, building, number, partitions, cells)
            sync(building)
            path = layout.published / f"warehouse-{number}.duckdb"
            os.replace(building, path)
            sync(layout.published)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        _write_record(layout, path, number, partitions, _contents(project, partitions, cells))
        _point(layout, path)
        _prune(layout, number)
    return Publication(
        number=number,
        path=path,
        n_tables=len(TABLES) + 1,
        n_partitions=len(partitions),
        n_rows=n_rows,
        n_bytes=path.stat().st_size,
        seconds=time.monotonic() - started,
    )


def is_published(project: Project, cells: Iterable[CellStatus]) -> bool:
    """Whether the snapshot that ``warehouse.duckdb`` names is as it was made, and what `publish` would make now."""
    layout, cells = project.layout, list(cells)
    record = linked_record(layout)
    if record is None or moved_from(layout) or snapshot_state(layout) not in ("pristine", "locked"):
        return False
    partitions = _judged(resolve_partitions(project), cells)
    return bool(record.get("contents") == _contents(project, partitions, cells))


def connect_live(
    project: Project, cells: Callable[[], Iterable[CellStatus]], wanted: Collection[str]
) -> duckdb.DuckDBPyConnection:
    """Return an in-memory connection on the lake as it stands now, with the wanted relations of a warehouse; close it.

    Args:
        project: the opened home.
        cells: gives the planner's cells; called only where they are wanted.
        wanted: tables and views, with those that the views are made from.
    """
    import duckdb

    tables = TABLES.keys() if "partitions" in wanted else wanted
    connection = duckdb.connect()
    try:
        with _lake_errors("The lake cannot be read"):
            partitions = resolve_partitions(project, tables)
            found = list(cells()) if _JUDGED & set(wanted) else []
            _fill(connection, project, 0, _judged(partitions, found), found, wanted)
    except StorageError:
        connection.close()
        raise
    return connection


def _partitions_at(lake: Lake, tables: Sequence[TableSpec], key: PartitionKey) -> dict[str, Partition]:
    found = {}
    for spec in tables:
        if len(spec.grain_key) == len(key):
            pointer = lake.pointer(spec.name, key)
            if pointer is not None:
                found[spec.name] = Partition(spec.name, key, lake.layout.partition(spec, key, lake.arm), pointer)
    return found


def _judged(partitions: Iterable[Partition], cells: Iterable[CellStatus]) -> list[Partition]:
    """Return the partitions, those of failed and inapplicable cells withheld unless they explain the failure."""
    withheld = {(cell.encoder_id, cell.dataset_id): cell for cell in cells if cell.status in WITHHELD_CELLS}
    return [
        replace(partition, withheld=withheld.get((partition.key[0], partition.key[1])))
        if partition.table in _OF_CELLS
        else partition
        for partition in partitions
    ]


def _is_torn(partitions: dict[str, Partition]) -> bool:
    """Whether two tables that are written together come from different commits."""
    return any(
        table in partitions and partitions[table].pointer.content_hash != content
        for partition in partitions.values()
        for table, content in partition.pointer.stage_contents.items()
    )


def _claim(layout: HomeLayout) -> tuple[int, Path]:
    """Return a new number and a folder to build in; making the folder claims the number."""
    layout.published.mkdir(parents=True, exist_ok=True)
    number = max((number for number, _ in numbered(layout)), default=0)
    while True:
        number += 1
        folder = layout.published / f"warehouse-{number}.building"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return number, folder


def _build(
    project: Project, path: Path, number: int, partitions: Sequence[Partition], cells: Iterable[CellStatus]
) -> int:
    import duckdb

    with closing(duckdb.connect()) as connection, _lake_errors("Nothing was published"):
        connection.execute(f"ATTACH {literal(str(path))} AS building (STORAGE_VERSION '{STORAGE_VERSION}')")
        connection.execute("USE building")
        connection.execute("BEGIN")  # one commit instead of a flushed log for each of a thousand comments
        n_rows = _fill(connection, project, number, partitions, cells)
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT building")
        connection.execute("USE memory")
        connection.execute("DETACH building")
    return n_rows


def _fill(
    connection: duckdb.DuckDBPyConnection,
    project: Project,
    number: int,
    partitions: Sequence[Partition],
    cells: Iterable[CellStatus],
    wanted: Collection[str] | None = None,
) -> int:
    """Make tables and views in the connection's current database, and return the number of rows.

    ``wanted`` None makes a snapshot: all of them, with the rows of results copied; else only views over the lake.
    """
    import polars as pl

    files: dict[str, list[str]] = {}
    n_rows: Counter[str] = Counter()
    for partition in partitions:
        if partition.is_published and partition.pointer.n_rows:
            files.setdefault(partition.table, []).extend(partition.files)
            n_rows[partition.table] += partition.pointer.n_rows
    for spec in TABLES.values():
        if spec.grain == "publication" or (wanted is not None and spec.name not in wanted):
            continue
        if spec.is_bulk or wanted is not None:
            connection.execute(files_view(spec, _SCHEMA, files.get(spec.name, ())))
        else:
            connection.execute(create_table(spec, _SCHEMA))
            if spec.name in files:
                _insert(connection, spec, _rows_of(spec, files[spec.name]))
    made_here = {
        "cells": [
            {"encoder_id": c.encoder_id, "dataset_id": c.dataset_id, "status": c.status, "reason": c.reason}
            for c in cells
        ],
        "partitions": [_provenance(project.lake.arm, partition) for partition in partitions],
        "warehouse_info": [_warehouse_info(project, number)],
    }
    for spec in (*(spec for spec in TABLES.values() if spec.grain == "publication"), WAREHOUSE_INFO):
        if wanted is None or spec.name in wanted:
            connection.execute(create_table(spec, _SCHEMA))
            rows = conform(pl.DataFrame(made_here[spec.name], schema=spec.polars_schema()), spec)
            _insert(connection, spec, rows)
            n_rows[spec.name] += rows.height
    for view in VIEWS:
        if wanted is None or view.name in wanted:
            connection.execute(reader_view(view, _SCHEMA))
    return n_rows.total()


def _rows_of(spec: TableSpec, files: Sequence[str]) -> pl.DataFrame:
    """Return the rows of all partitions of a table.

    Polars reads thousands of small files in a quarter of DuckDB's time. Sorted by partition: the order of threads would
    change the file, and long runs of an id compress and load faster.
    """
    import polars as pl

    order = list(dict.fromkeys((*spec.grain_key, *spec.key)))
    rows = pl.scan_parquet(list(files), hive_partitioning=False).select(spec.column_names)
    return rows.sort(order).collect(engine="streaming")


def _insert(connection: duckdb.DuckDBPyConnection, spec: TableSpec, rows: pl.DataFrame) -> None:
    connection.register("_rows", rows.to_arrow())
    connection.execute(f"INSERT INTO {quoted(spec.name)} SELECT * FROM _rows")
    connection.unregister("_rows")


def _provenance(arm: str, partition: Partition) -> dict[str, Any]:
    pointer, spec = partition.pointer, TABLES[partition.table]
    key = dict(zip(spec.grain_key, partition.key, strict=True))
    status, reason = pointer.status, pointer.reason
    if pointer.schema_version != spec.schema_version:
        status = OUTDATED_SCHEMA
    elif status == "ok" and partition.withheld is not None:
        status, reason = partition.withheld.status, partition.withheld.reason
    return {
        "arm": arm,
        "table_name": partition.table,
        "encoder_id": key.get("encoder_id", ""),
        "dataset_id": key.get("dataset_id", ""),
        "status": status,
        "reason": reason,
        "n_rows": pointer.n_rows,
        "n_bytes": pointer.n_bytes,
        "seconds": pointer.seconds,
        "host": pointer.host,
        "run_id": pointer.run_id,
        "written_at": pointer.written_at,
        "code_version": pointer.code_version,
        "schema_version": pointer.schema_version,
        "inputs_hash": pointer.inputs_hash,
        "content_hash": pointer.content_hash,
    }


def _warehouse_info(project: Project, number: int) -> dict[str, Any]:
    import duckdb

    return {
        "number": number,
        "home": str(project.layout.root),
        "home_id": project.home_id,
        "published_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "release": code_release(),
        "protocol_id": project.registry.protocol.label,
        "label_policy": project.registry.settings.label_policy,
        "panel_id": _latest_panel(project.layout),
        "duckdb_version": duckdb.__version__,
    }


def _latest_panel(layout: HomeLayout) -> str:
    """Return the id of the panel frozen last; a panel's file is written once, so its time is the freeze."""
    panels = [(path.stat().st_mtime_ns, path.stem) for path in layout.panels.glob("*.json")]
    return max(panels)[1] if panels else PROVISIONAL


def _contents(project: Project, partitions: Iterable[Partition], cells: Iterable[CellStatus]) -> str:
    """Return the hash of what a publication is made of; where and when it was made is no part of it."""
    info = _warehouse_info(project, 0)
    return content_hash(
        [
            sorted([p.table, *p.key, p.pointer.content_hash, p.pointer.status] for p in partitions),
            sorted([cell.encoder_id, cell.dataset_id, cell.status, cell.reason or ""] for cell in cells),
            [info[name] for name in ("release", "protocol_id", "label_policy", "panel_id")],
        ]
    )


def _write_record(layout: HomeLayout, path: Path, number: int, partitions: Sequence[Partition], contents: str) -> None:
    status = path.stat()
    files = [
        name.removeprefix(f"{layout.lake}/")
        for partition in partitions
        if TABLES[partition.table].is_bulk and partition.is_published
        for name in partition.files
    ]
    record = {
        "number": number,
        "home": str(layout.root),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "contents": contents,
        "files": files,
    }
    replace_json(path.with_suffix(".json"), record)


def _point(layout: HomeLayout, path: Path) -> None:
    """Let ``warehouse.duckdb`` name a snapshot, at once; relative, so that the home can be moved."""
    temporary = layout.warehouse.with_name(f".{layout.warehouse.name}.{uuid.uuid4().hex}.tmp")
    temporary.symlink_to(path.relative_to(layout.root))
    os.replace(temporary, layout.warehouse)
    sync(layout.root)


def _prune(layout: HomeLayout, newest: int) -> None:
    """Remove all but the newest snapshots, and what publications that died left behind."""
    finished = {number for number, path in numbered(layout) if path.suffix == ".json"}
    kept = set(sorted(number for number in finished if number <= newest)[-KEPT_SNAPSHOTS:])
    kept.add(newest)
    for number, path in list(numbered(layout)):
        if number in kept or number > newest:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _publisher_lock(layout: HomeLayout) -> Iterator[None]:
    """Let publishers of one machine wait for each other, so that the link never goes back to an older snapshot.

    Where a file system has no locks, the number that a publisher claims is still its alone.
    """
    layout.published.mkdir(parents=True, exist_ok=True)
    with locked(layout.published / ".lock"):
        yield


@contextmanager
def _lake_errors(consequence: str) -> Iterator[None]:
    """Turn what DuckDB and Polars say about the lake or the disk into one sentence."""
    import duckdb
    import polars as pl

    try:
        yield
    except (duckdb.Error, pl.exceptions.PolarsError) as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, str(error)) from error
        raise StorageError(
            f"{consequence}: {one_line(error)}. Where this names a file or table of the lake, remove the "
            f"`_current.json` of that partition and run `crsbench materialize`, which computes it again."
        ) from error


def one_line(error: Exception) -> str:
    """Return what DuckDB or Polars says of an error as part of a sentence."""
    return " ".join(str(error).split()).rstrip(".")
