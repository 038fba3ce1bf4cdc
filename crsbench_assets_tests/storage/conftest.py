"""Fabricated homes with a published warehouse, and questions to it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import duckdb
import polars as pl
import pytest

from crsbench_assets.planning.plan import plan
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import Project, create_home, open_project
from crsbench_assets.storage.sql import QueryResult, query
from crsbench_assets.storage.warehouse import Publication, publish, resolve_partitions
from crsbench_assets.tables.ddl import VIEWS, WAREHOUSE_INFO
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import TableSpec
from crsbench_assets_tests.fabricate import fabricated_home

ALL_RELATIONS = [*TABLES, WAREHOUSE_INFO.name, *(view.name for view in VIEWS)]


@pytest.fixture
def home(tmp_path: Path) -> Project:
    return fabricated_home(tmp_path / "home")


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A published home, for tests that only read it."""
    project = fabricated_home(tmp_path_factory.mktemp("published") / "home")
    published(project)
    return project


@pytest.fixture(scope="module")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A home without results, published."""
    layout = HomeLayout(tmp_path_factory.mktemp("empty") / "home")
    create_home(layout, "")
    project = open_project(layout.root)
    published(project)
    return project


def published(project: Project) -> Publication:
    return publish(project, plan(project).cells)


def ask(project: Project, sql: str, *, live: bool = False) -> QueryResult:
    return query(project, sql, cells=lambda: plan(project).cells, live=live)


def frame(result: QueryResult) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(result.table))


def raw(path: Path, *queries: str) -> list[pl.DataFrame]:
    """Answers of a plain DuckDB reader."""
    with closing(duckdb.connect(str(path), read_only=True)) as connection:
        return [pl.DataFrame(pl.from_arrow(connection.sql(sql).to_arrow_table())) for sql in queries]


def raw_relations(path: Path) -> set[str]:
    (names,) = raw(path, "SELECT table_name FROM information_schema.tables")
    return set(names.get_column("table_name"))


def lake_rows(project: Project, spec: TableSpec) -> pl.DataFrame:
    lake = project.lake
    parts = [p for p in resolve_partitions(project) if p.table == spec.name and p.pointer.status == "ok"]
    return pl.concat([spec.empty(), *(lake.read(spec.name, part.key) for part in parts)])
