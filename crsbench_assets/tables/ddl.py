"""The SQL of every shape: tables with constraints and comments, typed empty views, and the views for readers.

What lives here: the statements that make a warehouse out of shapes, and the shapes that only a warehouse has
(``warehouse_info``, ``leaderboard``, ``label_curves``). What stays out: the shapes of the tables (``registry``), and
running the statements (``storage.warehouse``, ``storage.sql``).
Source: interfaces page, "Warehouse rule". Uniqueness of a key is checked where rows enter the lake (``validate``): a
primary key on wide text columns made a warehouse of 1.2 million rows 142 MB instead of 4 MB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from crsbench_assets.tables.columns import DATASET_ID, ENCODER_ID, LABEL_FRACTION, PANEL_ID, RULES
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import DUCKDB_TYPES, ColumnSpec, TableSpec

WAREHOUSE_INFO = TableSpec(
    "warehouse_info",
    "One row: when, where and from what this warehouse was published.",
    "publication",
    (),
    (
        ColumnSpec("number", "integer", "Number of the publication in its home; 0 where the lake is read", low=0),
        ColumnSpec("home", "text", "Absolute path of the home; the views of bulk tables name files below it"),
        ColumnSpec("home_id", "text", "Id that the home was born with"),
        ColumnSpec("published_at", "text", "UTC time, ISO 8601"),
        ColumnSpec("release", "text", "Version of crsbench that published it"),
        *RULES,
        ColumnSpec("panel_id", "text", "Panel of the leaderboard: the one frozen last, else `provisional`"),
        ColumnSpec("duckdb_version", "text", "Version of DuckDB that wrote it"),
    ),
)


@dataclass(frozen=True)
class ViewSpec:
    """One view for readers.

    Args:
        name: of the view.
        description: starts "One row per ...".
        columns: in order; names and types are those of the query.
        query: SELECT over tables of the warehouse.
    """

    name: str
    description: str
    columns: tuple[ColumnSpec, ...]
    query: str


def _columns_of(table: str, *names: str) -> tuple[ColumnSpec, ...]:
    columns = {column.name: column for column in TABLES[table].columns}
    return tuple(columns[name] for name in names)


_PROFILE = ("x_discrimination", "x_calibration", "x_label_efficiency", "x_robustness")
_LABEL_CURVE = (
    "n_seeds",
    "macro_auroc_mean",
    "macro_auroc_sd",
    "macro_auroc_ci_seed_low",
    "macro_auroc_ci_seed_high",
    "macro_auroc_ci_test_low",
    "macro_auroc_ci_test_high",
    "reason",
)

VIEWS: tuple[ViewSpec, ...] = (
    ViewSpec(
        "leaderboard",
        "One row per encoder, best first, against the panel frozen last (or the provisional cohort before one is). "
        "Controls stand below the candidates, without a rank; so does a candidate without a score, with its reason.",
        (
            *_columns_of("ranks", "rank"),
            ENCODER_ID,
            *_columns_of("encoders", "name", "role", "category"),
            *_columns_of("crs_scores", "crs"),
            *_columns_of("ranks", "rank_lo", "rank_hi", "tie_group", "p_best"),
            ColumnSpec("crs_corruption_only", "real", "Score without the shift term (`crs_variants`)", nullable=True),
            ColumnSpec(
                "crs_without_exposed", "real", "Score less terms of shift targets seen in pretraining", nullable=True
            ),
            *_columns_of("crs_scores", "pareto", "balance", "worst", *_PROFILE, "n_datasets"),
            ColumnSpec("is_synthetic", "boolean", "The vectors, or a dataset of the panel, are simulated"),
            *_columns_of("crs_scores", "is_member", "rank_panel"),
            *_columns_of("ranks", "n_ranked"),
            PANEL_ID,
            *_columns_of("crs_scores", "status", "reason"),
            *RULES,
        ),
        f"""\
SELECT r.rank, s.encoder_id, e.name, e.role, e.category, s.crs, r.rank_lo, r.rank_hi, r.tie_group, r.p_best,
    c.crs AS crs_corruption_only, x.crs AS crs_without_exposed,
    s.pareto, s.balance, s.worst, {", ".join(f"s.{name}" for name in _PROFILE)}, s.n_datasets,
    e.is_synthetic OR s.panel_id IN (
        SELECT p.panel_id FROM reference_panels p JOIN datasets d USING (dataset_id) WHERE d.is_synthetic
    ) AS is_synthetic,
    s.is_member, s.rank_panel, r.n_ranked, s.panel_id, s.status, coalesce(s.reason, r.reason) AS reason,
    s.protocol_id, s.label_policy
FROM crs_scores s LEFT JOIN ranks r USING (encoder_id, panel_id) LEFT JOIN encoders e USING (encoder_id)
    LEFT JOIN (FROM crs_variants WHERE variant = 'corruption_only') c USING (encoder_id, panel_id)
    LEFT JOIN (FROM crs_variants WHERE variant = 'without_exposed') x USING (encoder_id, panel_id)
WHERE s.panel_id = (SELECT panel_id FROM warehouse_info)
ORDER BY e.role IS NOT DISTINCT FROM 'control', r.rank NULLS LAST, s.crs DESC NULLS LAST, s.encoder_id""",
    ),
    ViewSpec(
        "label_curves",
        "One row per encoder, dataset and label fraction: macro AUROC on clean images over the labels used.",
        (*RULES, ENCODER_ID, DATASET_ID, LABEL_FRACTION, *_columns_of("seed_aggregates", *_LABEL_CURVE)),
        f"""\
SELECT protocol_id, label_policy, encoder_id, dataset_id, label_fraction, {", ".join(_LABEL_CURVE)}
FROM seed_aggregates
WHERE condition_id = 'clean'
ORDER BY encoder_id, dataset_id, label_fraction""",
    ),
)


def create_table(spec: TableSpec, schema: str) -> str:
    """Return the statements that make a table with its constraints and comments.

    NULL is refused where a column is not nullable, and NaN, infinity and values out of bounds everywhere: DuckDB
    orders NaN above every number, so that one NaN would lead every ranking.

    Example:
        >>> spec = TableSpec("t", "One row.", "whole", (), (ColumnSpec("ece", "real", "Error", low=0),))
        >>> print(create_table(spec, "main").splitlines()[1])
          "ece" DOUBLE NOT NULL CHECK (NOT isnan("ece") AND NOT isinf("ece") AND "ece" >= 0)
    """
    name = qualified(schema, spec.name)
    columns = ",\n".join(f"  {_definition(column)}" for column in spec.columns)
    return f"CREATE TABLE {name} (\n{columns}\n);\n" + _comments("TABLE", name, spec.description, spec.columns)


def empty_view(spec: TableSpec, schema: str) -> str:
    """Return the statements that make a view with the table's columns, types and comments, and no row."""
    nulls = ", ".join(f"CAST(NULL AS {DUCKDB_TYPES[c.type]}) AS {quoted(c.name)}" for c in spec.columns)
    return _create_view(schema, spec.name, spec.description, spec.columns, f"SELECT {nulls} WHERE false")


def files_view(spec: TableSpec, schema: str, files: Iterable[str]) -> str:
    """Return the statements that make a view over exactly these Parquet files; none gives an empty view."""
    paths = list(files)
    if not paths:
        return empty_view(spec, schema)
    return _create_view(schema, spec.name, spec.description, spec.columns, select_files(spec, paths))


def reader_view(view: ViewSpec, schema: str) -> str:
    """Return the statements that make a view for readers; the schema must be the current one."""
    return _create_view(schema, view.name, view.description, view.columns, view.query)


def select_files(spec: TableSpec, files: Iterable[str]) -> str:
    """Return the SELECT of a table's columns from Parquet files.

    Columns are matched by name: by position, a column added in one file would pass or fail depending on which file
    sorts first. The folders' names are no columns, because the rows carry their keys themselves.
    """
    columns = ", ".join(quoted(name) for name in spec.column_names)
    paths = ", ".join(literal(path) for path in files)
    return f"SELECT {columns} FROM read_parquet([{paths}], union_by_name=true, hive_partitioning=false)"


def literal(text: str) -> str:
    """Return ``text`` as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Return ``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def qualified(schema: str, name: str) -> str:
    """Return the identifier of a table or view in a schema."""
    return f"{quoted(schema)}.{quoted(name)}"


def _definition(column: ColumnSpec) -> str:
    name = quoted(column.name)
    rules = []
    if column.type in ("real", "real32"):
        rules += [f"NOT isnan({name})", f"NOT isinf({name})"]
    if column.type in ("reals", "reals64"):  # NaN is the largest of a list that holds one
        rules += [f"isfinite(list_max({name}))", f"isfinite(list_min({name}))"]
    if column.low is not None:
        rules.append(f"{name} >= {column.low:g}")
    if column.high is not None:
        rules.append(f"{name} <= {column.high:g}")
    null = "" if column.nullable else " NOT NULL"
    check = f" CHECK ({' AND '.join(rules)})" if rules else ""
    return f"{name} {DUCKDB_TYPES[column.type]}{null}{check}"


def _create_view(schema: str, name: str, description: str, columns: tuple[ColumnSpec, ...], query: str) -> str:
    view = qualified(schema, name)
    return f"CREATE VIEW {view} AS {query};\n" + _comments("VIEW", view, description, columns)


def _comments(kind: str, name: str, description: str, columns: tuple[ColumnSpec, ...]) -> str:
    lines = [f"COMMENT ON {kind} {name} IS {literal(description)};"]
    lines += [f"COMMENT ON COLUMN {name}.{quoted(c.name)} IS {literal(c.description)};" for c in columns]
    return "\n".join(lines) + "\n"
