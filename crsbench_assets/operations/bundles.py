"""Result bundles: what of a home may leave it, in one file.

What lives here: writing a bundle of the published warehouse. What stays out: which tables speak of single images and
therefore stay home (``tables``, ``TableSpec.stays_home``), and publishing (``storage.warehouse``).
Source: interfaces page, "CLI": a result bundle without image-level rows.

A bundle is a zip of

- ``bundle.json``: version of the format, release, protocol, panel, and of every table its file, SHA-256, number of rows
  and versions of code and shape;
- ``tables/<name>.parquet``: the rows of every table that does not stay home;
- ``panels/<panel_id>.json``: the frozen panels.

Neither image ids nor paths, groups or the salt of their ids are in it, nor the folder and machines of the home. What a
stage said when it ended badly may name an image, so of such a sentence only the code remains.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crsbench_assets.config.errors import ConfigError, StorageError, reason_of
from crsbench_assets.storage.files import storage_errors
from crsbench_assets.storage.layout import HomeLayout, require_home
from crsbench_assets.storage.snapshots import open_published
from crsbench_assets.storage.warehouse import OUTDATED_SCHEMA
from crsbench_assets.tables.ddl import literal, quoted
from crsbench_assets.tables.reasons import REASONS
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import TableSpec

if TYPE_CHECKING:
    import duckdb

FORMAT = 1
"""Version of the layout of a bundle."""

WITHHELD = "withheld"
"""What stands where a reason was a sentence instead of a code."""

_CODES = ", ".join(literal(code) for code in REASONS)
_STAGE, _WORDS = r"^(\w+): ", r"^\w+: (.*)$"
_REPLACED: dict[tuple[str, str], str] = {
    # a stage and its code, or a code alone; anything else may name an image or a file
    (table, "reason"): f"CASE WHEN reason IN ({_CODES}) OR regexp_extract(reason, '{_WORDS}', 1) IN ({_CODES}) "
    f"THEN reason WHEN reason IS NOT NULL THEN regexp_extract(reason, '{_STAGE}') || '{WITHHELD}' END"
    for table in ("cells", "partitions")
} | {("partitions", "host"): "''"}
"""SQL in place of a column of a table."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of every file in a bundle: the earliest that a zip can hold, so that equal results give equal bytes."""


@dataclass(frozen=True)
class Bundle:
    """What was exported."""

    path: Path
    n_tables: int
    n_rows: int
    n_bytes: int
    n_outdated: int
    """Partitions of an older shape, whose rows are not in it."""


def exported_tables() -> list[TableSpec]:
    """Return the tables of a bundle, in the order of the registry."""
    return [spec for spec in TABLES.values() if not spec.stays_home]


def export_bundle(layout: HomeLayout, target: Path) -> Bundle:
    """Write the results that are published now into a new zip file.

    Args:
        layout: the home.
        target: the file to write; its folder exists.

    Raises:
        ConfigError: the file exists already, or is not named as a zip.
        StorageError: nothing is published, or the disk refuses.
    """
    require_home(layout)
    if target.suffix != ".zip":
        raise ConfigError(f"{target} is no name for a bundle: name a file that ends in .zip.")
    if target.exists():
        raise ConfigError(f"{target} exists already: name another file, or remove it.")
    if not target.parent.is_dir():
        raise ConfigError(f"There is no folder {target.parent}: make it, or name a file in another one.")
    partial = target.with_name(f".{target.name}.tmp")
    with storage_errors(target), closing(open_published(layout)) as connection:
        try:
            n_rows = _write(connection, layout, partial)
            outdated = f"SELECT count(*) FROM partitions WHERE status = {literal(OUTDATED_SCHEMA)}"
            ((n_outdated,),) = connection.sql(outdated).fetchall()
            partial.rename(target)
        finally:
            partial.unlink(missing_ok=True)
    return Bundle(target, len(exported_tables()), n_rows, target.stat().st_size, int(n_outdated))


def _write(connection: duckdb.DuckDBPyConnection, layout: HomeLayout, path: Path) -> int:
    """Write a bundle and return the number of its rows."""
    described: dict[str, Any] = {}
    with (
        zipfile.ZipFile(path, "w") as bundle,
        # beside the target: a bundle of many cells may be larger than the system's folder for such files
        tempfile.TemporaryDirectory(dir=path.parent, prefix=".crsbench-export-") as folder,
    ):
        for spec in exported_tables():
            file = Path(folder) / f"{spec.name}.parquet"
            n_rows = _copy(connection, spec, file)
            with file.open("rb") as data:
                sha256 = hashlib.file_digest(data, "sha256").hexdigest()
            name = f"tables/{file.name}"
            _add(bundle, name, file)
            file.unlink()
            described[spec.name] = {
                "file": name,
                "sha256": sha256,
                "n_rows": n_rows,
                "schema_version": spec.schema_version,
                "code_version": spec.code_version,
            }
        for panel in sorted(layout.panels.glob("*.json")):
            _add(bundle, f"panels/{panel.name}", panel)
        names = ("release", "protocol_id", "label_policy", "panel_id", "published_at")
        (info,) = connection.sql(f"SELECT {', '.join(names)} FROM warehouse_info").fetchall()
        content = {"format": FORMAT, **dict(zip(names, info, strict=True)), "tables": described}
        text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n"
        bundle.writestr(zipfile.ZipInfo("bundle.json", _EPOCH), text)
    return sum(table["n_rows"] for table in described.values())


def _copy(connection: duckdb.DuckDBPyConnection, spec: TableSpec, file: Path) -> int:
    """Write the rows of a table as Parquet, in the order of its key, and return their number."""
    import duckdb

    columns = ", ".join(
        f"{_REPLACED[spec.name, name]} AS {quoted(name)}" if (spec.name, name) in _REPLACED else quoted(name)
        for name in spec.column_names
    )
    order = ", ".join(quoted(name) for name in dict.fromkeys((*spec.grain_key, *spec.key)))
    select = f"SELECT {columns} FROM {quoted(spec.name)} ORDER BY {order}"
    try:
        copy = f"COPY ({select}) TO {literal(str(file))} (FORMAT parquet, COMPRESSION zstd)"
        ((n_rows,),) = connection.execute(copy).fetchall()
    except duckdb.Error as error:
        raise StorageError(
            f"Table {spec.name} cannot be exported ({reason_of(error)}): another version of crsbench published it. Run "
            "`crsbench materialize`, which computes and publishes what is of an older shape, then export again."
        ) from error
    return int(n_rows)


def _add(bundle: zipfile.ZipFile, name: str, path: Path) -> None:
    """Add a file as it is; Parquet is compressed already."""
    with path.open("rb") as source, bundle.open(zipfile.ZipInfo(name, _EPOCH), "w", force_zip64=True) as entry:
        while block := source.read(1 << 20):
            entry.write(block)
