"""How the shape of a table is written down.

What lives here: column types, :class:`ColumnSpec` and :class:`TableSpec`. What stays out: the tables themselves
(``registry``) and what is made of a shape (``ddl``, ``validate``, ``docs``, and the Dagster schema above).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

Grain = Literal["whole", "dataset", "cell", "publication"]

ColumnType = Literal["text", "integer", "real", "real32", "boolean", "reals", "reals64", "integers"]
"""``real`` is float64, ``real32`` float32, ``reals`` a list of float32, ``reals64`` of float64, ``integers`` int8."""

DUCKDB_TYPES: dict[ColumnType, str] = {
    "text": "VARCHAR",
    "integer": "BIGINT",
    "real": "DOUBLE",
    "real32": "FLOAT",
    "boolean": "BOOLEAN",
    "reals": "FLOAT[]",
    "reals64": "DOUBLE[]",
    "integers": "TINYINT[]",
}

GRAIN_KEYS: dict[Grain, tuple[str, ...]] = {
    "whole": (),
    "dataset": ("dataset_id",),
    "cell": ("encoder_id", "dataset_id"),
    "publication": (),
}
"""Columns that a partition of a grain is addressed by, in the order of the lake's folders."""


_OF_IMAGES = frozenset({"group_id", "group_index", "path", "detail"})
"""Columns beside image ids that name an image, its patient or its file."""


@dataclass(frozen=True)
class ColumnSpec:
    """One column.

    Args:
        name: ids end ``_id``, counts start ``n_``, booleans ``is_`` or ``has_``, units are suffixes.
        type: see :data:`ColumnType`.
        description: what stands in it, with unit, range and direction.
        nullable: whether NULL may stand in it; a nullable number needs a reason beside it.
        low, high: inclusive bounds of a number.
        volatile: left out of the content hash, because it may differ between homes with equal results.
    """

    name: str
    type: ColumnType
    description: str
    nullable: bool = False
    low: float | None = None
    high: float | None = None
    volatile: bool = False


@dataclass(frozen=True)
class TableSpec:
    """One table.

    Args:
        name: also the last part of its Dagster key and its name in the warehouse.
        description: starts "One row per ...".
        grain: what a partition is.
        key: columns whose values are unique together.
        columns: in order; they include the key.
        code_version: raised when the same inputs give other values.
        schema_version: raised when a column is added, removed or changes its type.
        is_bulk: published as a view over the snapshot's files instead of a copy.
        explains_failure: published also of a cell that failed or is not applicable, because its rows say why.
        stays_home: no part of an exported bundle, because its rows speak of single images.
    """

    name: str
    description: str
    grain: Grain
    key: tuple[str, ...]
    columns: tuple[ColumnSpec, ...]
    code_version: int = 1
    schema_version: int = 1
    is_bulk: bool = False
    explains_failure: bool = False
    stays_home: bool = False

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        of_images = [name for name in names if name in _OF_IMAGES or name.startswith("image_id")]
        if of_images and not self.stays_home:
            raise ValueError(f"table {self.name}: its columns {of_images} speak of single images, so it stays home")
        unknown = [name for name in (*self.key, *GRAIN_KEYS[self.grain]) if name not in names]
        if len(set(names)) != len(names) or unknown:
            raise ValueError(f"table {self.name}: repeated columns, or key columns {unknown} that it does not have")

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def grain_key(self) -> tuple[str, ...]:
        """Columns that address a partition."""
        return GRAIN_KEYS[self.grain]

    @property
    def constants(self) -> tuple[str, ...]:
        """Columns that are the same in every row of a partition: whoever writes the partition adds them.

        The inputs are those of a cell; in a pooled table each row names its own.
        """
        shared = ("protocol_id", "label_policy", *(("inputs_hash",) if self.grain == "cell" else ()))
        return tuple(name for name in self.column_names if name in (*self.grain_key, *shared))

    def computed_schema(self) -> dict[str, pl.DataType]:
        """Return column name -> polars type of what a computation returns: all columns but :attr:`constants`."""
        return {name: kind for name, kind in self.polars_schema().items() if name not in self.constants}

    def computed(self, rows: Sequence[Mapping[str, Any]] = ()) -> pl.DataFrame:
        """Return rows in the computed columns and types; what a row does not mention is NULL there."""
        import polars as pl

        return pl.DataFrame(list(rows), schema=self.computed_schema())

    def polars_schema(self) -> dict[str, pl.DataType]:
        """Return column name -> polars type, in order."""
        import polars as pl

        types: dict[ColumnType, pl.DataType] = {
            "text": pl.String(),
            "integer": pl.Int64(),
            "real": pl.Float64(),
            "real32": pl.Float32(),
            "boolean": pl.Boolean(),
            "reals": pl.List(pl.Float32()),
            "reals64": pl.List(pl.Float64()),
            "integers": pl.List(pl.Int8()),
        }
        return {column.name: types[column.type] for column in self.columns}

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema that partitions are written with."""
        import pyarrow as pa

        types: dict[ColumnType, pa.DataType] = {
            "text": pa.string(),
            "integer": pa.int64(),
            "real": pa.float64(),
            "real32": pa.float32(),
            "boolean": pa.bool_(),
            "reals": pa.list_(pa.float32()),
            "reals64": pa.list_(pa.float64()),
            "integers": pa.list_(pa.int8()),
        }
        return pa.schema([pa.field(c.name, types[c.type], nullable=True) for c in self.columns])

    def empty(self) -> pl.DataFrame:
        """Return a frame of this shape without rows."""
        import polars as pl

        return pl.DataFrame(schema=self.polars_schema())
