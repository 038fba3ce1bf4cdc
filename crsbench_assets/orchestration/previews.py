"""What the Dagster UI shows of rows: the first of them, and small plots of scores and ranks.

What lives here: rows as a table of the UI, and a plot as a picture of text and lines that is drawn without a library.
What stays out: which results have one (``defs``), and the figures of the report (``report``), which say more. A plot is
kept in Dagster's database with every materialisation, so it is bounded, and no cell has one.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import dagster as dg

from crsbench_assets.orchestration.keys import column_schema
from crsbench_assets.tables.schema import TableSpec

if TYPE_CHECKING:
    import polars as pl

N_ROWS = 20
"""Rows that the UI shows of a table."""

N_DIGITS = 6
"""Significant digits that the UI shows of a number; the warehouse has all of them."""

MAX_PLOTTED = 60
"""Encoders of one plot, best first: a picture of fewer than 50 kB."""

ROW_PX, NAME_PX, SCALE_PX, EDGE_PX = 18, 190, 300, 24


@dataclass(frozen=True)
class Mark:
    """One line of a plot: a value with its interval, which may be absent."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


def first_rows(table: TableSpec, rows: pl.DataFrame) -> dg.TableMetadataValue:
    """Return the first rows of a table as the UI shows them, with columns that the rows have."""
    head = rows.head(N_ROWS).select(name for name in table.column_names if name in rows.columns)
    schema = column_schema(table)
    columns = [column for column in schema.columns if column.name in head.columns]
    return dg.MetadataValue.table(
        [dg.TableRecord({name: _shown(value) for name, value in row.items()}) for row in head.iter_rows(named=True)],
        schema=dg.TableSchema(columns=columns),
    )


def previews(table: TableSpec, rows: pl.DataFrame) -> dict[str, Any]:
    """Return what the UI shows of a pooled table: its first rows, and of scores and ranks one plot per panel."""
    import polars as pl

    if table.name not in _PLOTTED:
        return {"first rows": first_rows(table, rows)}
    value, low, high, is_descending = _PLOTTED[table.name]
    ordered = rows.sort("panel_id", value, descending=[False, is_descending], nulls_last=True, maintain_order=True)
    shown: dict[str, Any] = {"first rows": first_rows(table, ordered)}
    for (panel_id,), of_panel in ordered.filter(pl.col(value).is_not_null()).group_by("panel_id", maintain_order=True):
        marks = [
            Mark(row["encoder_id"], row[value], row[low] if low else None, row[high] if high else None)
            for row in of_panel.head(MAX_PLOTTED).iter_rows(named=True)
        ]
        drawn = f", the first {len(marks)} of {of_panel.height} encoders" if of_panel.height > len(marks) else ""
        shown[f"plot {panel_id}"] = _picture(f"{value} against panel {panel_id}{drawn}", marks)
    return shown


_PLOTTED: dict[str, tuple[str, str | None, str | None, bool]] = {
    "crs_scores": ("crs", None, None, True),
    "ranks": ("rank", "rank_lo", "rank_hi", False),
}
"""Table -> column that is drawn, ends of its interval, and whether larger is better."""


def interval_plot(title: str, marks: Sequence[Mark]) -> str:
    """Return a plot as SVG: one line per mark, its name, its interval as a bar, its value as a dot and in digits.

    The scale reaches from the smallest to the largest number drawn; one value alone stands in the middle.
    """
    numbers = [x for mark in marks for x in (mark.value, mark.low, mark.high) if x is not None]
    least, most = min(numbers, default=0.0), max(numbers, default=1.0)

    def place(value: float) -> float:
        share = (value - least) / (most - least) if most > least else 0.5
        return round(NAME_PX + EDGE_PX + share * SCALE_PX, 1)

    width, height = NAME_PX + SCALE_PX + 6 * EDGE_PX, ROW_PX * (len(marks) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12" fill="#333"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="4" y="13" font-weight="bold">{escape(title)}</text>'
    ]
    for n, mark in enumerate(marks, start=1):
        y = ROW_PX * n + ROW_PX / 2
        at = place(mark.value)
        name = mark.name if len(mark.name) <= 28 else f"{mark.name[:27]}…"
        parts.append(f'<text x="4" y="{y + 4}">{escape(name)}</text>')
        right = at
        if mark.low is not None and mark.high is not None:
            right = place(mark.high)
            parts.append(f'<path d="M{place(mark.low)} {y}H{right}" stroke="#4f43dd" stroke-width="3"/>')
        parts.append(f'<circle cx="{at}" cy="{y}" r="4" fill="#222"/>')
        parts.append(f'<text x="{right + 8}" y="{y + 4}">{_digits(mark)}</text>')
    return "".join([*parts, "</svg>"])


def _digits(mark: Mark) -> str:
    interval = "" if mark.low is None or mark.high is None else f" [{mark.low:.4g}, {mark.high:.4g}]"
    return f"{mark.value:.4g}{interval}"


def _picture(title: str, marks: Sequence[Mark]) -> dg.MarkdownMetadataValue:
    data = base64.b64encode(interval_plot(title, marks).encode()).decode()
    return dg.MetadataValue.md(f"![{title}](data:image/svg+xml;base64,{data})")


def _shown(value: Any) -> str | int | float | bool | None:
    if isinstance(value, float):
        return float(f"{value:.{N_DIGITS}g}")
    return value if value is None or isinstance(value, str | int | bool) else str(value)
