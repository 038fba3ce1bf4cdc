"""Content hashes of tables and of the user's files.

What lives here: the hash that says whether two partitions hold the same rows, and a cache of file hashes.
What stays out: hashes of cards and settings (``config.hashes``). Source: interfaces page, "Identity".
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crsbench_assets.config.errors import ConfigError, StorageError
from crsbench_assets.config.hashes import HASH_LENGTH
from crsbench_assets.storage.files import read_json, replace_json
from crsbench_assets.tables.schema import TableSpec

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


def frame_hash(frame: pl.DataFrame, table: TableSpec) -> str:
    """Return the content hash of a partition.

    The hash covers names, types and values of all columns but the volatile ones, with rows in the order of the key.
    It does not depend on the order of rows given, nor on the version of a file format.

    Args:
        frame: rows of the table's shape.
        table: the shape.
    """
    ordered = frame.sort(table.key) if table.key else frame
    return arrow_hash(ordered.to_arrow().cast(table.arrow_schema()), table)


def arrow_hash(rows: pa.Table, table: TableSpec, *, with_volatile: bool = False) -> str:
    """Return the content hash of rows that are in the table's Arrow schema and in the order of its key.

    ``with_volatile`` covers the volatile columns too: the hash that names a file.
    """
    digest = hashlib.sha256()
    digest.update(str(rows.num_rows).encode())
    for column in table.columns:
        if with_volatile or not column.volatile:
            digest.update(f"\n{column.name}:{column.type}\n".encode())
            _update(digest, rows.column(column.name).combine_chunks())
    return digest.hexdigest()[:HASH_LENGTH]


def _update(digest: Any, array: pa.Array) -> None:
    """Feed which values are NULL, and the others: lengths before content where they vary in length."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if array.null_count:
        digest.update(np.packbits(array.is_null().to_numpy(zero_copy_only=False)).tobytes())
    else:
        digest.update(bytes((len(array) + 7) // 8))
    if pa.types.is_list(array.type):
        digest.update(_filled(pc.list_value_length(array), 0).to_numpy().astype(np.int64).tobytes())
        _update(digest, array.drop_null().flatten())
    elif pa.types.is_string(array.type):
        filled = _filled(array, "")
        digest.update(pc.binary_length(filled).to_numpy().astype(np.int64).tobytes())
        digest.update(_text(filled))
    elif pa.types.is_boolean(array.type):
        digest.update(np.packbits(_filled(array, False).to_numpy(zero_copy_only=False)).tobytes())
    else:
        digest.update(_filled(array, 0).to_numpy().tobytes())


def _filled(array: pa.Array, value: Any) -> pa.Array:
    return array.fill_null(value) if array.null_count else array


def _text(array: pa.Array) -> memoryview | bytes:
    """Return the bytes of all strings of an array, one after the other."""
    import numpy as np

    if len(array) == 0:
        return b""
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    return memoryview(data)[bounds[0] : bounds[-1]] if data is not None else b""


class FileFingerprints:
    """Hashes of the user's files, remembered by path, size and time so that a look costs one ``stat``."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._known = self._load()

    def fingerprint(self, path: str | Path, what: str) -> str:
        """Return the sha256 of a file.

        Args:
            path: the file.
            what: for the error: what the file is to us.

        Raises:
            ConfigError: the file does not exist or cannot be read.
        """
        path = Path(path)
        try:
            status = path.stat()
            stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
            known = self._known.get(str(path))
            if known and known["stamp"] == stamp:
                return str(known["sha256"])
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(
                f"{what}: {path} cannot be read ({error.strerror}). Put the file there or correct the path in the card."
            ) from error
        self._known[str(path)] = {"stamp": stamp, "sha256": digest}
        self._save()
        return digest

    def _load(self) -> dict[str, dict[str, Any]]:
        try:
            known = read_json(self._cache)
        except StorageError:
            known = None  # damaged: the files are hashed again, and the cache is written anew
        return known if isinstance(known, dict) else {}

    def _save(self) -> None:
        try:
            replace_json(self._cache, self._known)
        except StorageError:
            return  # a read-only home hashes again next time; nothing else depends on the cache
