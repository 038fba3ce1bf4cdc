"""The lake: immutable Parquet files, and one pointer per partition that says which of them count.

What lives here: reading and committing partitions. What stays out: who may compute them (``leases``), which are
stale (``planning``), and the warehouse made of them (``warehouse``).
Why not renaming files over each other: DuckDB reads a file's footer and data at different moments, so readers saw
failed queries and mixed partitions; with pointers they saw none. Why not Delta Lake: it has no status for a failed
or empty partition, costs 0.1 s a commit, and plain readers need its log anyway. ``docs/warehouse.md`` has both.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from crsbench_assets.config.errors import StorageError, reason_of
from crsbench_assets.storage import leases
from crsbench_assets.storage.files import read_json, replace_json, storage_errors, write_synced
from crsbench_assets.storage.hashing import arrow_hash
from crsbench_assets.storage.layout import MAIN_ARM, HomeLayout, PartitionKey
from crsbench_assets.storage.processes import this_process
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import TableSpec
from crsbench_assets.tables.validate import conform

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

POINTER_FILE = "_current.json"


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a partition is: its files and where they came from.

    ``status`` is ``ok``, ``failed`` or ``not_applicable``; only ``ok`` has files. A partition that is done and has
    no rows has status ``ok``, one empty file and ``n_rows`` 0, which differs from a partition that is not there.
    ``inputs`` are the parts of ``inputs_hash`` by name, so that staleness can say why. ``stage_contents`` are the
    content hashes of all tables written together: the pointer put last is the commit of them all.
    """

    files: tuple[str, ...]
    n_rows: int
    status: str
    reason: str | None
    detail: str | None
    schema_version: int
    code_version: int
    inputs_hash: str
    inputs: dict[str, str]
    content_hash: str
    stage_contents: dict[str, str]
    run_id: str | None
    pid: int
    host: str
    seconds: float
    n_bytes: int
    written_at: str


_POINTER_FIELDS = frozenset(each.name for each in fields(Pointer))


@dataclass(frozen=True)
class Provenance:
    """What a commit records beside the rows."""

    inputs_hash: str
    inputs: dict[str, str]
    seconds: float
    run_id: str | None = None
    stage_contents: dict[str, str] = field(default_factory=dict)


class Lake:
    """Partitions of one home and arm."""

    def __init__(self, layout: HomeLayout, arm: str = MAIN_ARM) -> None:
        self.layout = layout
        self.arm = arm

    def folder(self, table: str, key: PartitionKey) -> Path:
        """Return the folder of a partition."""
        return Path(self.layout.partition(TABLES[table], key, self.arm))

    def pointer(self, table: str, key: PartitionKey) -> Pointer | None:
        """Return the pointer of a partition, or None where nothing was ever committed.

        Raises:
            StorageError: it is damaged, or a newer crsbench wrote it.
        """
        spec = TABLES[table]
        pointer = read_pointer(f"{self.layout.partition(spec, key, self.arm)}/{POINTER_FILE}")
        if pointer is not None and (
            pointer.schema_version > spec.schema_version or pointer.code_version > spec.code_version
        ):
            raise _newer(partition_label(table, key))
        return pointer

    def attempt(self, table: str, key: PartitionKey) -> leases.Attempt | None:
        """Return the last attempt that did not end in a commit, of the stage whose first table this is."""
        return leases.read_attempt(self.layout.partition(TABLES[table], key, self.arm))

    def files(self, table: str, key: PartitionKey) -> list[Path]:
        """Return the files that a partition's pointer names; none where it is absent or not ``ok``."""
        pointer = self.pointer(table, key)
        folder = self.folder(table, key)
        return [folder / name for name in pointer.files] if pointer else []

    def read(self, table: str, key: PartitionKey, columns: Iterable[str] | None = None) -> pl.DataFrame:
        """Return the rows of a partition.

        Raises:
            StorageError: it is absent or not ``ok``, with its reason, or a file it names is gone.
        """
        return self.read_all(table, [key], columns)

    def read_all(
        self,
        table: str,
        keys: Sequence[PartitionKey],
        columns: Iterable[str] | None = None,
        where: pl.Expr | None = None,
    ) -> pl.DataFrame:
        """Return the rows of some partitions, one partition after the other; none give none.

        Args:
            table: name of the table.
            keys: values of its grain key, of every partition.
            columns: those wanted; None for all of them.
            where: which rows; the others are left out while the files are read. None for all of them.

        Raises:
            StorageError: one is absent or not ``ok``, with its reason, or a file it names is gone.
        """
        import polars as pl

        paths = [path for key in keys for path in self._files_to_read(table, key)]
        # one scan of all files: opened and decoded one by one, a thousand small ones take three times as long
        rows = pl.scan_parquet(paths, hive_partitioning=False) if paths else TABLES[table].empty().lazy()
        if where is not None:
            rows = rows.filter(where)
        if columns is not None:
            rows = rows.select(list(columns))
        try:
            return rows.collect()
        except (OSError, pl.exceptions.PolarsError) as error:
            if len(keys) > 1:
                for key in keys:  # which one it is, the error does not say
                    self.read(table, key, columns)
            label, pointer = partition_label(table, keys[0]), self.folder(table, keys[0]) / POINTER_FILE
            raise StorageError(
                f"{label}: a file that its pointer names cannot be read ({reason_of(error)}). Remove {pointer} and run "
                "`crsbench materialize` to compute it again."
            ) from error

    def _files_to_read(self, table: str, key: PartitionKey) -> list[Path]:
        """Return the files of a partition that must have some."""
        pointer = self.pointer(table, key)
        label = partition_label(table, key)
        if pointer is None:
            raise StorageError(f"{label} is not there yet: run `crsbench materialize`.")
        if pointer.status != "ok":
            raise StorageError(f"{label} has no rows: {pointer.status}, {pointer.reason} ({pointer.detail}).")
        folder = self.folder(table, key)
        return [folder / name for name in pointer.files]

    def commit(
        self,
        table: str,
        key: PartitionKey,
        frame: pl.DataFrame,
        provenance: Provenance,
        *,
        status: str = "ok",
        reason: str | None = None,
        detail: str | None = None,
        lease: tuple[Path, leases.Attempt] | None = None,
    ) -> Pointer:
        """Write rows, then put the pointer; readers see the old or the new partition.

        Args:
            table: name of the table.
            key: values of its grain key.
            frame: the rows; checked against the table's shape.
            provenance: what they were computed from.
            status: ``ok``, ``failed`` or ``not_applicable``.
            reason: code of a status that is not ``ok``.
            detail: the same in words.
            lease: folder and attempt of the lease it was computed under; the commit is refused when it was lost.

        Raises:
            StorageError: the disk refuses, or the lease was lost.
            ValueError: the rows do not have the table's shape; a programming error.
        """
        spec = TABLES[table]
        rows = conform(frame, spec).to_arrow().cast(spec.arrow_schema())
        content = arrow_hash(rows, spec)
        folder = self.folder(table, key)
        names: tuple[str, ...] = ()
        n_bytes = 0
        if status == "ok":
            has_volatile = any(column.volatile for column in spec.columns)
            name = f"part-{arrow_hash(rows, spec, with_volatile=True) if has_volatile else content}.parquet"
            n_bytes = _write_parquet(folder / name, rows, spec)
            names = (name,)
        if lease is not None and not leases.still_held(*lease):
            raise StorageError(f"{partition_label(table, key)}: the lease was taken over; this result is dropped.")
        process = this_process()
        pointer = Pointer(
            files=names,
            n_rows=rows.num_rows if status == "ok" else 0,
            status=status,
            reason=reason,
            detail=detail,
            schema_version=spec.schema_version,
            code_version=spec.code_version,
            inputs_hash=provenance.inputs_hash,
            inputs=provenance.inputs,
            content_hash=content if status == "ok" else f"{status}:{reason}",
            stage_contents=provenance.stage_contents,
            run_id=provenance.run_id,
            pid=process.pid,
            host=process.host,
            seconds=round(provenance.seconds, 3),
            n_bytes=n_bytes,
            written_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )
        own = {table: pointer.content_hash}
        pointer = replace(pointer, stage_contents=pointer.stage_contents | own)
        replace_json(folder / POINTER_FILE, asdict(pointer))
        return pointer


def read_pointer(path: Path | str) -> Pointer | None:
    """Return the pointer in a file, or None where there is none.

    Raises:
        StorageError: the file holds no pointer, or one with fields that this version does not know.
    """
    value = read_json(path)
    if value is None:
        return None
    try:
        return pointer_from_json(value)
    except (TypeError, KeyError, ValueError) as error:
        if isinstance(value, dict) and value.keys() - _POINTER_FIELDS:
            raise _newer(str(path)) from error
        raise StorageError(
            f"{path} is damaged (no pointer of this version): remove it, and what it described is computed again."
        ) from error


def pointer_from_json(value: Mapping[str, object]) -> Pointer:
    """Return the pointer that a JSON mapping describes."""
    known = dict(value)
    known["files"] = tuple(known["files"])  # type: ignore[arg-type]
    return Pointer(**known)  # type: ignore[arg-type]


def _newer(what: str) -> StorageError:
    return StorageError(f"{what} was written by a newer crsbench than this one: upgrade crsbench.")


def partition_label(table: str, key: PartitionKey) -> str:
    """Return how a partition is named to people, such as ``run_records of dinov2 x isic2019``."""
    return f"{table} of {' x '.join(key)}" if key else table


def _write_parquet(path: Path, rows: pa.Table, spec: TableSpec) -> int:
    """Write an immutable file and return its size; one of that name that holds these rows is left alone.

    Where it does not, somebody or the disk damaged it, and it is replaced.
    """
    import pyarrow as pa

    if path.exists() and _holds(path, rows):
        return path.stat().st_size
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with storage_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_synced(temporary, parquet_bytes(rows, spec))
            os.replace(temporary, path)  # the folder reaches the disk together with the pointer, right after
        except pa.ArrowException as error:
            raise OSError(*_os_error(error)) from error
        finally:
            temporary.unlink(missing_ok=True)
    return path.stat().st_size


def parquet_bytes(rows: pa.Table, spec: TableSpec) -> memoryview:
    """Return rows of a table as the bytes of a file of the lake; encoded in memory, so that the file is one write."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    floats = {"real32": "{}", "reals": "{}.list.element"}
    buffer = pa.BufferOutputStream()
    pq.write_table(
        rows,
        buffer,
        compression="zstd",
        use_dictionary=[c.name for c in spec.columns if c.type == "text"],
        # bytes of equal significance side by side: a tenth smaller and faster to read
        column_encoding={floats[c.type].format(c.name): "BYTE_STREAM_SPLIT" for c in spec.columns if c.type in floats}
        or None,
    )
    return memoryview(buffer.getvalue())


def _holds(path: Path, rows: pa.Table) -> bool:
    """Whether a file can be read and holds exactly these rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found: pa.Table = pq.read_table(path, partitioning=None)
    except (OSError, pa.ArrowException):
        return False
    return bool(found.equals(rows))


def _os_error(error: Exception) -> tuple[int, str]:
    """Return errno and text of an Arrow error; Arrow hides the number in its message."""
    import errno

    return (errno.ENOSPC if "No space left" in str(error) else errno.EIO, str(error))
