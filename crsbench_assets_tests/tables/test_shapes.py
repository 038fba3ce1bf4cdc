"""The shapes of all tables, the gate through which rows enter the lake, and what DuckDB makes of the shapes."""

from __future__ import annotations

import math
from typing import Any

import duckdb
import polars as pl
import pytest

from crsbench_assets.planning.stages import STAGE_OF_TABLE, STAGES
from crsbench_assets.tables.columns import RULES
from crsbench_assets.tables.ddl import VIEWS, WAREHOUSE_INFO, ViewSpec, create_table, empty_view
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import GRAIN_KEYS, ColumnSpec, TableSpec
from crsbench_assets.tables.validate import conform, faulty_rows, violations

SPEC = TableSpec(
    "sample",
    "One row per thing.",
    "whole",
    ("thing_id",),
    (
        ColumnSpec("thing_id", "text", "Thing"),
        ColumnSpec("n_parts", "integer", "Parts", low=0),
        ColumnSpec("share", "real", "Share", nullable=True, low=0, high=1),
        ColumnSpec("weight", "real32", "Weight", nullable=True),
        ColumnSpec("is_new", "boolean", "New", nullable=True),
        ColumnSpec("logits", "reals", "Logits", nullable=True),
        ColumnSpec("marks", "integers", "Marks", nullable=True),
        ColumnSpec("reason", "text", "Why", nullable=True),
    ),
)
ROW: dict[str, Any] = {
    "thing_id": "a",
    "n_parts": 2,
    "share": 0.5,
    "weight": 1.5,
    "is_new": True,
    "logits": [0.25, None],
    "marks": [1, None],
    "reason": None,
}
SPECS = [*TABLES.values(), WAREHOUSE_INFO]


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([ROW | row for row in rows], schema=SPEC.polars_schema())


def test_good_rows_come_back_sorted_by_the_key() -> None:
    rows = conform(frame({"thing_id": "b"}, {"thing_id": "a"}).select(reversed(SPEC.column_names)), SPEC)
    assert rows.columns == list(SPEC.column_names)
    assert rows.get_column("thing_id").to_list() == ["a", "b"]
    assert rows.schema == pl.Schema(SPEC.polars_schema())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"share": math.nan}, "share is not finite in 1 row(s)"),
        ({"share": math.inf}, "share is not finite in 1 row(s)"),
        ({"weight": -math.inf}, "weight is not finite in 1 row(s)"),
        ({"logits": [0.0, math.nan]}, "logits holds a value that is not finite in 1 row(s)"),
        ({"logits": [math.inf]}, "logits holds a value that is not finite in 1 row(s)"),
        ({"thing_id": None}, "thing_id is NULL in 1 row(s)"),
        ({"n_parts": None}, "n_parts is NULL in 1 row(s)"),
        ({"n_parts": -1}, "n_parts is below 0 in 1 row(s)"),
        ({"share": -1e-9}, "share is below 0 in 1 row(s)"),
        ({"share": 1 + 1e-9}, "share is above 1 in 1 row(s)"),
        ({"reason": "because"}, "reason is no code of tables.reasons in 1 row(s)"),
    ],
)
def test_the_gate_refuses(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match="table sample") as raised:
        conform(frame({"thing_id": "b"}, change), SPEC)
    assert fault in str(raised.value)


UNRULED = {"encoders", "datasets", "cells", "partitions"}
"""What speaks of cards and of a publication, and of no result."""


@pytest.mark.parametrize("table", [spec for spec in TABLES.values() if not spec.stays_home], ids=lambda spec: spec.name)
def test_a_row_of_a_result_says_under_which_protocol_and_label_policy(table: TableSpec) -> None:
    assert (table.columns[:2] == RULES) == (table.name not in UNRULED)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_a_row_for_readers_says_it_too(view: ViewSpec) -> None:
    assert set(RULES) <= set(view.columns)


@pytest.mark.parametrize(
    ("table", "constants"),
    [
        ("predictions", ("encoder_id", "dataset_id")),
        ("cell_axes", ("protocol_id", "label_policy", "encoder_id", "dataset_id", "inputs_hash")),
        ("dataset_statistics", ("protocol_id", "label_policy", "dataset_id")),
        ("crs_scores", ("protocol_id", "label_policy")),  # the inputs are those of each row
        ("datasets", ("label_policy",)),
        ("encoders", ()),
    ],
)
def test_constant_columns_are_added_by_whoever_writes(table: str, constants: tuple[str, ...]) -> None:
    spec = TABLES[table]
    assert spec.constants == constants
    assert list(spec.computed_schema()) == [name for name in spec.column_names if name not in constants]


def test_computed_rows_have_their_types_also_without_a_value() -> None:
    rows = TABLES["cell_axes"].computed([{"axis": "calibration", "variant": "primary", "n_seeds": 0}])
    assert rows.schema == pl.Schema(TABLES["cell_axes"].computed_schema())
    assert rows.row(0, named=True)["value"] is None
    assert TABLES["cell_axes"].computed().schema == rows.schema


def test_what_publication_adds_may_quote_the_planner() -> None:
    cell = {"encoder_id": "a", "dataset_id": "b", "status": "failed", "reason": "extract: incomplete_support"}
    assert violations(pl.DataFrame([cell]), TABLES["cells"]) == []


def test_the_gate_refuses_repeated_keys() -> None:
    with pytest.raises(ValueError, match=r"1 row\(s\) repeat the key \(thing_id\)"):
        conform(frame({}, {"n_parts": 3}), SPEC)


def test_the_gate_refuses_other_columns() -> None:
    with pytest.raises(ValueError, match=r"missing columns \['share'\], unknown columns \['extra'\]"):
        conform(frame({}).drop("share").with_columns(extra=1), SPEC)


def test_the_gate_refuses_what_is_no_number() -> None:
    with pytest.raises(pl.exceptions.InvalidOperationError):
        conform(frame({}).with_columns(n_parts=pl.lit("many")), SPEC)


def test_bounds_and_nulls_pass() -> None:
    rows = frame(
        {"share": 0.0, "n_parts": 0},
        {"thing_id": "b", "share": 1.0, "logits": None, "marks": [], "reason": "no_positive"},
    )
    assert violations(rows, SPEC) == []


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_no_row_is_a_shape_too(spec: TableSpec) -> None:
    assert conform(spec.empty(), spec).schema == pl.Schema(spec.polars_schema())
    assert violations(spec.empty(), spec) == []


@pytest.mark.parametrize("spec", TABLES.values(), ids=lambda spec: spec.name)
def test_every_table_is_described_and_keyed(spec: TableSpec) -> None:
    assert TABLES[spec.name] is spec
    assert spec.description.startswith("One row per ") and spec.description.endswith(".")
    assert all(column.description for column in spec.columns)
    assert spec.key, "two rows of a table can always be told apart"
    # the folder names of a partition stand in its rows too, so that files can be read without their folders
    assert set(GRAIN_KEYS[spec.grain]) <= set(spec.column_names)
    nullable = {column.name for column in spec.columns if column.nullable}
    assert not nullable & {*spec.key, *spec.grain_key}


@pytest.mark.parametrize("spec", TABLES.values(), ids=lambda spec: spec.name)
def test_a_nullable_number_stands_beside_a_reason(spec: TableSpec) -> None:
    numbers = [c.name for c in spec.columns if c.nullable and c.type in ("real", "real32", "integer")]
    if numbers:
        assert any(column.endswith("reason") for column in spec.column_names), numbers


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_names_follow_the_rules(spec: TableSpec) -> None:
    for column in spec.columns:
        assert column.name == column.name.lower()
        if column.type == "boolean":
            assert column.name.startswith(("is_", "has_", "dominates", "same_", "unchanged", "top_", "recovered")), (
                column.name
            )
        if column.name.startswith("n_"):
            assert column.type == "integer" and column.low == 0, column.name
        if column.name.endswith("_id"):
            assert column.type == "text", column.name
        assert "percent" not in column.name and "pct" not in column.name


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_duckdb_takes_the_statements(spec: TableSpec) -> None:
    with duckdb.connect() as connection:
        connection.execute(create_table(spec, "main"))
        connection.execute("CREATE SCHEMA views")
        connection.execute(empty_view(spec, "views"))
        for schema in ("main", "views"):
            found = connection.execute(
                "SELECT column_name, comment FROM duckdb_columns() WHERE schema_name = ? AND table_name = ? "
                "ORDER BY column_index",
                [schema, spec.name],
            ).fetchall()
            assert found == [(column.name, column.description) for column in spec.columns]
            relation = connection.table(f"{schema}.{spec.name}").to_arrow_table()
            assert relation.num_rows == 0
            assert pl.DataFrame(relation).schema == pl.Schema(spec.polars_schema())


@pytest.mark.parametrize(
    "change",
    [
        {"share": math.nan},
        {"share": math.inf},
        {"share": 1.1},
        {"weight": math.nan},
        {"n_parts": -1},
        {"n_parts": None},
        {"logits": [math.nan]},
        {"logits": [0.0, math.inf]},
        {"logits": [-math.inf, 0.0]},
    ],
)
def test_duckdb_refuses_what_the_gate_refuses(change: dict[str, Any]) -> None:
    with duckdb.connect() as connection:
        connection.execute(create_table(SPEC, "main"))
        for rows, is_good in ((frame({}), True), (frame({"thing_id": "b"} | change), False)):
            connection.register("rows", rows.to_arrow())
            assert (violations(rows, SPEC) == []) is is_good
            if is_good:
                connection.execute("INSERT INTO sample SELECT * FROM rows")
            else:
                with pytest.raises(duckdb.ConstraintException):
                    connection.execute("INSERT INTO sample SELECT * FROM rows")


def test_why_nan_must_never_enter() -> None:
    with duckdb.connect() as connection:
        winner = connection.execute("SELECT max(x) FROM (VALUES (0.9), ('nan'::DOUBLE)) t(x)").fetchone()
    assert winner is not None and math.isnan(winner[0])


@pytest.mark.parametrize(
    "columns",
    [
        (ColumnSpec("a", "text", "A"), ColumnSpec("a", "text", "A")),
        (ColumnSpec("b", "text", "B"),),
    ],
)
def test_a_shape_with_repeated_or_missing_columns_cannot_be_written(columns: tuple[ColumnSpec, ...]) -> None:
    with pytest.raises(ValueError, match="table t: repeated columns, or key columns"):
        TableSpec("t", "One row per a.", "whole", ("a",), columns)


def test_every_stage_writes_tables_of_one_grain() -> None:
    assert [stage.grain for stage in STAGES].count("cell") == 8
    written = [name for stage in STAGES for name in stage.tables]
    assert len(written) == len(set(written)), "two stages write one table"
    assert set(written) <= TABLES.keys()
    for stage in STAGES:
        # upstream first: a stage reads only what an earlier stage wrote
        earlier = {name for other in STAGES[: STAGES.index(stage)] for name in other.tables}
        assert set(stage.reads) <= earlier
    assert set(STAGE_OF_TABLE) == set(written)


def test_the_rows_that_break_the_shape_are_named() -> None:
    # thing_id  n_parts  share
    # a         2        0.5
    # b        -1        0.5     n_parts too small
    # c         2        1.5     share too large
    # c         2        0.5     key again
    changes: list[dict[str, Any]] = [
        {"thing_id": "a"},
        {"thing_id": "b", "n_parts": -1},
        {"thing_id": "c", "share": 1.5},
        {"thing_id": "c"},
    ]
    rows = pl.concat([frame(change) for change in changes])
    assert faulty_rows(rows, SPEC).select("thing_id", "n_parts", "share").rows() == [
        ("b", -1, 0.5),
        ("c", 2, 1.5),
        ("c", 2, 0.5),
    ]
    assert faulty_rows(rows.head(1), SPEC).is_empty()
    assert faulty_rows(SPEC.empty(), SPEC).is_empty()
