"""Asset keys, and the metadata that the UI shows of a table.

What lives here: key = [arm, table], the same address as in lake and warehouse, and the Dagster form of a shape.
What stays out: the shapes (``tables``).
"""

from __future__ import annotations

from typing import Any

import dagster as dg

from crsbench_assets.storage.lake import Pointer
from crsbench_assets.storage.layout import MAIN_ARM
from crsbench_assets.tables.schema import DUCKDB_TYPES, TableSpec

OWNERS = ["team:crsbench"]


def asset_key(table: str, arm: str = MAIN_ARM) -> dg.AssetKey:
    """Return the asset key of a table."""
    return dg.AssetKey([arm, table])


def column_schema(table: TableSpec) -> dg.TableSchema:
    """Return the shape of a table as the UI shows it."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                column.name,
                DUCKDB_TYPES[column.type],
                column.description,
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in table.columns
        ]
    )


def result_metadata(pointer: Pointer, table: TableSpec, *, is_reused: bool) -> dict[str, Any]:
    """Return what the UI shows of one materialisation."""
    row_count = "dagster/partition_row_count" if table.grain != "whole" else "dagster/row_count"
    return {
        row_count: pointer.n_rows,
        "status": pointer.status,
        "reason": pointer.reason or "",
        "seconds": pointer.seconds,
        "bytes": pointer.n_bytes,
        "inputs_hash": pointer.inputs_hash,
        "is_reused": is_reused,
    }
