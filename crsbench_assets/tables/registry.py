"""Every table of the project, by name.

What lives here: the one dictionary that DDL, checks, docs, Dagster schemas and fixtures are made from.
What stays out: the shapes themselves, which stand beside their subject.
"""

from __future__ import annotations

from crsbench_assets.tables.analyses import ANALYSIS_TABLES
from crsbench_assets.tables.cohorts import COHORT_TABLES
from crsbench_assets.tables.results import RESULT_TABLES
from crsbench_assets.tables.schema import TableSpec
from crsbench_assets.tables.scores import PUBLICATION_TABLES, SCORE_TABLES

TABLES: dict[str, TableSpec] = {
    table.name: table
    for table in (*COHORT_TABLES, *RESULT_TABLES, *SCORE_TABLES, *ANALYSIS_TABLES, *PUBLICATION_TABLES)
}
