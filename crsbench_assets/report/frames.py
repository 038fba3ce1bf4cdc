"""What the report shows, as rows of one published warehouse.

What lives here: the queries, and the means over seeds that they take. What stays out: the drawing (``figures``), the
page (``html``), and every other computation: a number of the report is a number of the warehouse, or a mean over seeds
or a pooled bin of such numbers, which the queries below spell out.
Source: protocol page, sections 5 and 7; interfaces page, "Tables and their grain".
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crsbench_assets.config.errors import StorageError
from crsbench_assets.config.ids import CLEAN, shift_condition
from crsbench_assets.metrics.records import TOP_LABEL
from crsbench_assets.report.figures.charts import drawn_rows
from crsbench_assets.report.sections import LEADERBOARD, SECTIONS
from crsbench_assets.storage.snapshots import open_published
from crsbench_assets.tables.ddl import literal

if TYPE_CHECKING:
    import polars as pl

    from crsbench_assets.storage.layout import HomeLayout

_SHOWN = f"(condition_id = {literal(CLEAN)} OR condition_id = {literal(shift_condition(''))} || d.shift_id)"
"""Clean, and the shift target where the dataset has one: what reliability diagrams are drawn of."""

_OF_DIAGRAM = f"(d.task = 'multi_label' OR class_name = {literal(TOP_LABEL)})"
"""A diagram is of the predicted class, or of all labels; the bins of single classes stand in the same table."""

RELIABILITY = f"""
SELECT encoder_id, dataset_id, condition_id, bin_index, any_value(bin_low) AS bin_low, any_value(bin_high) AS bin_high,
    sum(n)::BIGINT AS n,
    sum(n * mean_confidence) / sum(n) AS mean_confidence,
    sum(n * mean_label) / sum(n) AS mean_label
FROM reliability_bins JOIN datasets d USING (dataset_id)
WHERE {_SHOWN} AND {_OF_DIAGRAM}
GROUP BY encoder_id, dataset_id, condition_id, bin_index
ORDER BY dataset_id, encoder_id, condition_id, bin_index"""


def _mean(name: str) -> str:
    """Return the mean over seeds of a column, NULL unless every seed has a value."""
    return f"CASE WHEN count({name}) = count(*) THEN avg({name}) END AS {name}"


def _why_null(name: str, reason: str) -> str:
    """Return why the mean over seeds of a column is NULL; NULL where it is not."""
    reasons = f"string_agg(DISTINCT {reason}, ', ' ORDER BY {reason})"
    return f"CASE count({name}) WHEN count(*) THEN NULL WHEN 0 THEN {reasons} ELSE 'missing_seed' END"


CALIBRATION = f"""
SELECT encoder_id, dataset_id, condition_id, count(*) AS n_seeds, max(n) AS n,
    {", ".join(_mean(name) for name in ("ece", "ece_ci_low", "ece_ci_high", "ece_floor", "ece_floor_p95"))},
    {_why_null("ece", "reason")} AS reason,
    {_why_null("ece_ci_low", "interval_reason")} AS interval_reason
FROM run_records JOIN datasets d USING (dataset_id)
WHERE label_fraction = 1 AND {_SHOWN}
GROUP BY encoder_id, dataset_id, condition_id
ORDER BY dataset_id, encoder_id, condition_id"""

LABELS = f"""
SELECT encoder_id, dataset_id, class_name,
    {", ".join(_mean(name) for name in ("auroc", "ece", "brier"))},
    max(n_pos) AS n_pos, max(n_groups_pos) AS n_groups_pos,
    coalesce({_why_null("auroc", "reason")}, {_why_null("ece", "reason")}, {_why_null("brier", "reason")}) AS reason
FROM label_metrics JOIN datasets d USING (dataset_id)
WHERE label_fraction = 1 AND condition_id = {literal(CLEAN)} AND d.task = 'multi_label'
GROUP BY encoder_id, dataset_id, class_name
ORDER BY dataset_id, encoder_id, class_name"""


@dataclass(frozen=True)
class ReportFrames:
    """Rows of one warehouse.

    Args:
        info: the row of ``warehouse_info``.
        leaderboard: the view, best first, controls last.
        encoders: the table, by id.
        datasets: the table, by id.
        cells: the table, by dataset and encoder: the grid.
        reliability: one row per encoder, dataset, condition and bin: counts summed over seeds (multi-label: and
            labels), ``mean_confidence`` and ``mean_label`` weighted by them.
        calibration: one row per encoder, dataset and condition at all labels: ECE, its bounds and its floor, each the
            mean over seeds, NULL with a reason unless every seed has a value.
        labels: one row per encoder, multi-label dataset and label, clean at all labels: means over seeds alike.
        sections: the rows of every section by its key; those of a panel are of the leaderboard's.
        drawn: the rows of every figure by the key of its section, in the order of its figures.
    """

    info: dict[str, Any]
    leaderboard: pl.DataFrame
    encoders: pl.DataFrame
    datasets: pl.DataFrame
    cells: pl.DataFrame
    reliability: pl.DataFrame
    calibration: pl.DataFrame
    labels: pl.DataFrame
    sections: dict[str, pl.DataFrame]
    drawn: dict[str, tuple[pl.DataFrame, ...]]


def read_frames(layout: HomeLayout) -> ReportFrames:
    """Read what the report shows, all of it from the one snapshot that is published now.

    Raises:
        StorageError: there is none, it is not what was published, or another version published it.
    """
    import duckdb
    import polars as pl

    # one connection: a publication between two queries must not mix two snapshots on one page
    with closing(open_published(layout)) as connection:

        def rows(sql: str) -> pl.DataFrame:
            try:
                return pl.DataFrame(pl.from_arrow(connection.sql(sql).to_arrow_table()))
            except (duckdb.CatalogException, duckdb.BinderException) as error:
                raise StorageError(
                    "The published warehouse lacks a table or column of the report, because another version of "
                    "crsbench published it: run `crsbench publish`, then `crsbench report` again."
                ) from error

        sections = {section.key: rows(section.query) for section in SECTIONS}
        figures = {section.key: section.figures for section in SECTIONS} | {"leaderboard": (LEADERBOARD,)}
        return ReportFrames(
            info=rows("FROM warehouse_info").row(0, named=True),
            leaderboard=rows("FROM leaderboard"),
            encoders=rows("FROM encoders ORDER BY encoder_id"),
            datasets=rows("FROM datasets ORDER BY dataset_id"),
            cells=rows("FROM cells ORDER BY dataset_id, encoder_id"),
            reliability=rows(RELIABILITY),
            calibration=rows(CALIBRATION),
            labels=rows(LABELS),
            sections=sections,
            drawn={
                key: tuple(drawn_rows(one, rows(one.query) if one.query else sections[key]) for one in several)
                for key, several in figures.items()
            },
        )
