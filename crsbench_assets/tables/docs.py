"""The page about lake and warehouse, made from the shapes.

What lives here: the text of ``docs/warehouse.md``. What stays out: the shapes (``registry``, ``ddl``), and writing
the file (``operations.generated_docs``). Source: interfaces page, "Lake rule", "Warehouse rule" and "Tables".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from crsbench_assets.tables.ddl import VIEWS, WAREHOUSE_INFO
from crsbench_assets.tables.reasons import REASONS
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import DUCKDB_TYPES, ColumnSpec, Grain, TableSpec

_INTRODUCTION = """\
# The warehouse

*Made from the table shapes in `crsbench_assets/tables` by `python -m crsbench_assets.operations.generated_docs`; a
test compares the two.*

Results live twice in a home: in the **lake**, where they are computed, and in the **warehouse**, where they are read.

    crsbench sql "SELECT * FROM leaderboard"            # the published warehouse
    crsbench sql --live "SELECT * FROM leaderboard"     # the lake, in the middle of a backfill too
    duckdb crsbench_home/warehouse.duckdb               # any DuckDB client from 1.2 on

## The rule of the warehouse

`warehouse.duckdb` is a link to `published/warehouse-<n>.duckdb`, a file that is written once. A publication builds
the next file under another name, puts it on disk and then moves the link. The last two files stay.

- No process of ours opens a published file for writing. You may: a session that writes to it blocks nothing, and its
  rows reach no later publication. What was changed is noticed (size, time, a write-ahead log): `crsbench sql` then
  answers from the lake and says so, as it does while somebody holds the file open for writing.
- Tables of results are native, with comments, NOT NULL and CHECK constraints. NaN stands nowhere: DuckDB orders it
  above every number, so a single one would lead the leaderboard. A value that is undefined is NULL, with a reason.
- Bulk tables (marked below) are views over exactly the lake files that were current at the publication, so all tables
  of a snapshot belong together whatever is computed afterwards. The paths are absolute; `warehouse_info.home` says
  where they were true. After moving a home, publish again.
- Of a cell that failed, or that is not applicable any more, earlier results are left out: they speak of inputs that are
  gone. `cells` and `partitions` say its status and reason, and `embedding_failures` keeps its rows.
- A table that has no rows yet, or that this version does not compute, is there with its columns and is empty.
- Files are written for DuckDB 1.2 and later clients, whatever version wrote them.
- Keys are unique because rows are checked when they enter the lake. They are no PRIMARY KEY: on wide text keys that
  made a file of 1.2 million rows 142 MB instead of 4 MB.

Why a link, and not a new file renamed over the old one: readers of a file that was replaced under an open session
failed ("WAL does not match"), or saw that session's rows replayed into the new file. With a link, every reader
before, during and after a publication saw exactly the published rows.

## The rule of the lake

    lake/<arm>/<table>/encoder_id=<id>/dataset_id=<id>/part-<content hash>.parquet    immutable
    lake/<arm>/<table>/encoder_id=<id>/dataset_id=<id>/_current.json                  the partition

A commit writes immutable files and then puts the pointer, atomically. Readers resolve pointers to lists of files;
they never list a folder and never use a pattern. A pointer also says what no file can: that a partition is done and
empty, that it failed and why, and what it was computed from. Superseded files go after a grace period, never while
a published snapshot names them.

Why not rename new Parquet files over old ones: DuckDB reads a file's footer and its data at different moments. In ten
seconds with two writers and two readers, renaming gave between 11 and 53 failed queries and up to 376 partitions read
as a mixture of two versions, without an error; pointers gave none of either.

Why not Delta Lake: it passed the same test, and is the well-kept library for this. It has no status for a partition
that failed or is empty, a commit takes about 0.1 s per table, and plain readers need its log as well. `storage.lake`
is the one place that commits, so it could be swapped.

## Questions and answers

Which encoders lead, and how far apart are they?

    SELECT rank, name, crs, rank_lo, rank_hi, tie_group FROM leaderboard;

Where does a score come from?

    SELECT dataset_id, axis, z_raw, z, crs FROM cell_scores WHERE encoder_id = 'ENCODER' ORDER BY ALL;

How does AUROC grow with the labels?

    SELECT encoder_id, dataset_id, label_fraction, macro_auroc_mean FROM label_curves ORDER BY ALL;

Which corruption costs most?

    SELECT a.condition_id, avg(c.macro_auroc_mean - a.macro_auroc_mean) AS mean_drop
    FROM seed_aggregates a JOIN seed_aggregates c USING (encoder_id, dataset_id, label_fraction)
    WHERE a.label_fraction = 1 AND c.condition_id = 'clean'
    GROUP BY a.condition_id ORDER BY mean_drop DESC;

What is missing, and why? What did a cell cost?

    SELECT * FROM cells WHERE status <> 'ok';
    SELECT table_name, seconds, host, written_at FROM partitions WHERE encoder_id = 'ENCODER' ORDER BY written_at;

`PIVOT` is more than one statement to DuckDB: `crsbench sql` refuses it, your own client takes it. What a column means
stands in the file too:

    SELECT column_name, data_type, comment FROM duckdb_columns() WHERE table_name = 'run_records';
"""

_GRAINS: dict[Grain, tuple[str, str]] = {
    "whole": ("Tables of the whole benchmark", "One partition each."),
    "dataset": ("Tables of a dataset", "One partition per dataset."),
    "cell": ("Tables of a cell", "One partition per encoder and dataset."),
    "publication": ("Tables made at publication", "They are not in the lake."),
}


def warehouse_markdown(computed: Collection[str]) -> str:
    """Return the page.

    Args:
        computed: names of the tables that some stage of this version computes; tables made at publication count by
            themselves.

    Raises:
        ValueError: a name that is no table.
    """
    unknown = sorted(set(computed) - TABLES.keys())
    if unknown:
        raise ValueError(f"no such tables: {', '.join(unknown)}")
    parts = [_INTRODUCTION, "## Views\n"]
    parts += [f"### {view.name}\n\n{view.description}\n\n{_columns(view.columns)}" for view in VIEWS]
    for grain, (title, partition) in _GRAINS.items():
        specs = [spec for spec in TABLES.values() if spec.grain == grain]
        if grain == "publication":
            specs.append(WAREHOUSE_INFO)
        parts.append(f"## {title}\n\n{partition}\n")
        parts += [_table(spec, is_computed=grain == "publication" or spec.name in computed) for spec in specs]
    parts.append("## Reasons\n\nWhy a value is NULL, or a cell has no result.\n")
    parts.append("| reason | meaning |\n|---|---|\n" + _rows((f"`{code}`", text) for code, text in REASONS.items()))
    return "\n".join(parts)


def _table(spec: TableSpec, *, is_computed: bool) -> str:
    notes = []
    if spec.key:
        notes.append(f"Key: {', '.join(f'`{name}`' for name in dict.fromkeys((*spec.grain_key, *spec.key)))}.")
    if spec.is_bulk:
        notes.append("Bulk: a view over lake files.")
    if spec.stays_home:
        notes.append("Speaks of single images: no part of `crsbench export`.")
    if not is_computed:
        notes.append("**Not computed in this version**: always empty.")
    text = f"### {spec.name}\n\n{spec.description}\n"
    return text + (f"\n{' '.join(notes)}\n" if notes else "") + f"\n{_columns(spec.columns)}"


def _columns(columns: Iterable[ColumnSpec]) -> str:
    rows = (
        (f"`{c.name}`", f"{DUCKDB_TYPES[c.type]}{_bounds(c)}", "yes" if c.nullable else "", c.description)
        for c in columns
    )
    return "| column | type | NULL | |\n|---|---|---|---|\n" + _rows(rows)


def _bounds(column: ColumnSpec) -> str:
    if column.low is not None and column.high is not None:
        return f", {column.low:g} to {column.high:g}"
    if column.low is not None:
        return f", at least {column.low:g}"
    return f", at most {column.high:g}" if column.high is not None else ""


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)
