"""Whether rows have the shape that their table promises.

What lives here: the check that every commit passes. What stays out: the shapes (``registry``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crsbench_assets.tables.reasons import REASONS
from crsbench_assets.tables.schema import TableSpec

if TYPE_CHECKING:
    import polars as pl


def conform(frame: pl.DataFrame, table: TableSpec) -> pl.DataFrame:
    """Return the rows in the table's column order and types, sorted by its key.

    Raises:
        ValueError: a column is missing or unknown, NaN or a value out of bounds stands in it, NULL stands where none
            may, or two rows share a key. This is the one gate through which numbers enter the lake.
    """
    missing = [name for name in table.column_names if name not in frame.columns]
    unknown = [name for name in frame.columns if name not in table.column_names]
    if missing or unknown:
        raise ValueError(f"table {table.name}: missing columns {missing}, unknown columns {unknown}")
    rows = frame.select(table.column_names).cast(table.polars_schema())  # type: ignore[arg-type]
    rows = rows.sort(table.key) if table.key else rows
    faults = [fault for fault in violations(rows, table) if fault]
    if faults:
        raise ValueError(f"table {table.name}: {'; '.join(faults)}")
    return rows


def violations(rows: pl.DataFrame, table: TableSpec) -> list[str]:
    """Return every rule of the table's shape that rows break, in words; empty when none.

    Args:
        rows: in the order of the table's key, as every partition is stored.
        table: the shape.
    """
    checks = _checks(table)
    counts = rows.select(
        [expression.fill_null(False).sum().alias(text) for text, expression in checks.items()]
    ).to_dicts()[0]
    faults = [f"{text} in {n} row(s)" for text, n in counts.items() if n]
    if table.key:
        n_repeated = int(rows.select(_repeats_key(table).slice(1).sum()).item())
        if n_repeated:
            faults.append(f"{n_repeated} row(s) repeat the key ({', '.join(table.key)})")
    return faults


def faulty_rows(rows: pl.DataFrame, table: TableSpec) -> pl.DataFrame:
    """Return the rows that :func:`violations` counts, in their order; of rows that share a key, all but the first."""
    import polars as pl

    faults = [expression.fill_null(False) for expression in _checks(table).values()]
    if table.key:
        faults.append(_repeats_key(table) & (pl.int_range(pl.len()) > 0))
    return rows.filter(pl.any_horizontal(faults)) if faults else rows.clear()


def _checks(table: TableSpec) -> dict[str, pl.Expr]:
    """Return what no row may be, by what is said of it; NULL counts as false."""
    import polars as pl

    checks: dict[str, pl.Expr] = {}
    for column in table.columns:
        value = pl.col(column.name)
        if not column.nullable:
            checks[f"{column.name} is NULL"] = value.is_null()
        # what publication adds quotes the planner, which names the stage beside the code
        is_reason = column.name == "reason" or column.name.endswith("_reason")
        if is_reason and table.grain != "publication":
            checks[f"{column.name} is no code of tables.reasons"] = value.is_in(list(REASONS)).not_()
        if column.type in ("real", "real32"):
            checks[f"{column.name} is not finite"] = value.is_finite().not_()
        if column.type in ("reals", "reals64"):
            checks[f"{column.name} holds a value that is not finite"] = value.list.eval(
                pl.element().is_finite().not_()
            ).list.any()
        if column.low is not None:
            checks[f"{column.name} is below {column.low:g}"] = value < column.low
        if column.high is not None:
            checks[f"{column.name} is above {column.high:g}"] = value > column.high
    return checks


def _repeats_key(table: TableSpec) -> pl.Expr:
    """Return whether a row has the key of the row before it; of the first row it means nothing."""
    import polars as pl

    return pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift()) for name in table.key)
