"""The one door for SQL: a question, and an answer of the published snapshot or of the lake.

What lives here: which statements only read, what they may see, and the lake shaped as a warehouse in memory. What
stays out: making and opening snapshots (``warehouse``, ``snapshots``) and how an answer is shown (``cli``).
Source: interfaces page, "Warehouse rule".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from crsbench_assets.config.errors import StorageError
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import Project
from crsbench_assets.storage.snapshots import linked_record, open_published, published_or_why
from crsbench_assets.storage.warehouse import CellStatus, connect_live, one_line
from crsbench_assets.tables.ddl import VIEWS, WAREHOUSE_INFO, literal
from crsbench_assets.tables.registry import TABLES

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

Origin = Literal["warehouse", "lake"]

_QUERY_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
"""What a query that only reads is made of; a data-modifying CTE is a node of its own."""

_RELATIONS = frozenset((*TABLES, WAREHOUSE_INFO.name, *(view.name for view in VIEWS)))
"""Everything that a warehouse answers for."""


@dataclass(frozen=True)
class QueryResult:
    """Rows of a query, where they come from, and a sentence why that is not what was asked for."""

    table: pa.Table
    origin: Origin
    note: str | None


def open_live(
    project: Project, cells: Callable[[], Iterable[CellStatus]], relations: Collection[str] | None = None
) -> duckdb.DuckDBPyConnection:
    """Return an in-memory connection on the lake as it stands now, shaped as a warehouse; close it.

    Args:
        project: the opened home.
        cells: gives the planner's cells; called only where they are wanted.
        relations: the tables and views wanted; None for all of them. Every file of a table is opened to make it.
    """
    return connect_live(project, cells, _RELATIONS if relations is None else _with_sources(relations))


def query(project: Project, sql: str, *, cells: Callable[[], Iterable[CellStatus]], live: bool = False) -> QueryResult:
    """Return the answer to one SELECT.

    The warehouse answers, or the lake where ``live`` asks for it or the snapshot is not what was published. The query
    can write nothing and read no file outside of the lake; of the lake it may name any file, the registry snapshots
    with their ``group_salt`` too.

    Args:
        project: the opened home.
        sql: one statement: SELECT, WITH ... SELECT, FROM, VALUES, DESCRIBE, SHOW or SUMMARIZE.
        cells: gives the planner's cells; called only where the lake answers.
        live: read the lake even where a snapshot could answer.

    Raises:
        StorageError: it is no SELECT, or DuckDB refuses it, in one sentence with DuckDB's own words.
    """
    relations = parse_select(sql)
    layout = project.layout
    found = None if live else published_or_why(layout)
    if found is not None and not isinstance(found, str):
        return QueryResult(_answer(found, layout, sql), "warehouse", None)
    note = found and f"{found} The lake answers; `crsbench publish` makes it new."
    return QueryResult(_answer(open_live(project, cells, relations), layout, sql), "lake", note)


def query_published(layout: HomeLayout, sql: str) -> QueryResult:
    """Return the answer of the published snapshot to one SELECT; needs neither cards nor settings.

    Raises:
        StorageError: as :func:`query`, or there is no snapshot as it was published.
    """
    parse_select(sql)
    return QueryResult(_answer(open_published(layout), layout, sql), "warehouse", None)


def _answer(connection: duckdb.DuckDBPyConnection, layout: HomeLayout, sql: str) -> pa.Table:
    import duckdb

    with closing(connection):
        _confine(connection, layout)
        try:
            return connection.sql(sql).to_arrow_table()
        except duckdb.Error as error:
            raise StorageError(f"The query failed: {one_line(error)}.") from error


def parse_select(sql: str) -> frozenset[str] | None:
    """Check that a text is exactly one statement that only reads, and return which tables and views it names.

    Returns:
        Names in lower case; None where the statement may ask about any of them (SHOW, a table function, a name that a
        warehouse does not have).

    Raises:
        StorageError: it is not, or cannot be parsed.
    """
    import duckdb

    with closing(duckdb.connect()) as connection:
        try:
            statements = connection.extract_statements(sql)
        except duckdb.Error as error:
            raise StorageError(f"The query cannot be parsed: {one_line(error)}.") from error
        kinds = [statement.type.name for statement in statements]
        if kinds == ["SELECT"]:
            row = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
            tree = json.loads(row[0]) if row else {"error": True}
            nodes = [node for node in _nodes(tree) if isinstance(node.get("type"), str)]
            queries = {node["type"] for node in nodes if node["type"].endswith("_NODE")}
            # DuckDB 2 also calls a SELECT what copies, inserts or deletes in its WITH clause
            if not tree["error"] and queries <= _QUERY_NODES:
                names = frozenset(node["table_name"].lower() for node in nodes if node["type"] == "BASE_TABLE")
                is_closed = not any(node["type"] in ("TABLE_FUNCTION", "SHOW_REF") for node in nodes)
                return names if is_closed and names <= _RELATIONS else None
            kinds = ["a SELECT with another statement inside"]
    raise StorageError(
        "Expected exactly one SELECT (also FROM, WITH, DESCRIBE, SHOW or SUMMARIZE), found "
        f"{', '.join(kinds) or 'no statement'}: ask one question at a time; to change data, copy it into a database "
        "of your own with any DuckDB client."
    )


def _confine(connection: duckdb.DuckDBPyConnection, layout: HomeLayout) -> None:
    """Let a query see the lake's files and no other, and no variable of this program."""
    connection.execute("SET python_enable_replacements = false")
    folders = {str(layout.lake), str(layout.lake.resolve())}
    record = linked_record(layout)
    if record is not None:
        folders.add(str(Path(record["home"]) / layout.lake.name))  # the same folder, by the name that views use
    allowed = ", ".join(literal(folder) for folder in sorted(folders))
    connection.execute(f"SET allowed_directories = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _with_sources(relations: Collection[str]) -> frozenset[str]:
    """Return the relations with those that the views among them are made from."""
    sources = (parse_select(view.query) for view in VIEWS if view.name in relations)
    return frozenset(relations).union(*(_RELATIONS if names is None else names for names in sources))


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a JSON value."""
    if isinstance(tree, dict):
        yield tree
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(value)
