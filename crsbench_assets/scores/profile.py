"""Which axis values are scored.

What lives here: the selection of one variant per axis from the axes of all cells, and the choice between robustness
with and without the shift target. What stays out: the axes' definitions (``aggregates.axes``), anchors
(``scores.panel``) and the score (``scores.crs``).
Source: protocol page, sections 6 and 7.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import polars as pl

from crsbench_assets.aggregates.axes import CORRUPTION_ONLY, PRIMARY

RobustnessVariant = Literal["shift", "corruption_only"]
"""``shift``: with the shift term where the dataset has a shift target; ``corruption_only``: never."""

AXIS_VALUES_SCHEMA: dict[str, pl.DataType] = {
    "encoder_id": pl.String(),
    "dataset_id": pl.String(),
    "axis": pl.String(),
    "value": pl.Float64(),
    "reason": pl.String(),
}

ENCODERS_SCHEMA: dict[str, pl.DataType] = {
    "encoder_id": pl.String(),
    "role": pl.String(),
    "dataset_ids": pl.List(pl.String()),
}
"""The active encoders: ``role`` is candidate or control, ``dataset_ids`` are the datasets it has a cell on."""

CellValues = dict[tuple[str, str], dict[str, float]]
"""(encoder id, dataset id) -> axis -> defined value."""


def axis_values(cell_axes: pl.DataFrame, robustness_variant: RobustnessVariant) -> pl.DataFrame:
    """Return the axis values that enter a score.

    Args:
        cell_axes: rows of the table ``cell_axes`` of all cells.
        robustness_variant: with or without the shift target; the same for every encoder of a panel.

    Returns:
        One row per cell and axis (encoder_id, dataset_id, axis, value, reason), sorted by these; ``value`` is NULL
        with its reason where undefined. An empty frame gives an empty frame.
    """
    selected = cell_axes.filter(is_scored(robustness_variant))
    return selected.select(pl.col(name).cast(dtype) for name, dtype in AXIS_VALUES_SCHEMA.items()).sort(
        "encoder_id", "dataset_id", "axis"
    )


def is_scored(robustness_variant: RobustnessVariant) -> pl.Expr:
    """Return whether a row with an axis and a variant is one that enters a score: one variant per axis."""
    robustness = PRIMARY if robustness_variant == "shift" else CORRUPTION_ONLY
    wanted = pl.when(pl.col("axis") == "robustness").then(pl.lit(robustness)).otherwise(pl.lit(PRIMARY))
    return pl.col("variant") == wanted


def provisional_robustness_variant(
    cell_axes: pl.DataFrame, candidates: Collection[str], shift_datasets: Collection[str]
) -> RobustnessVariant:
    """Return the robustness variant of a cohort without a frozen panel (protocol page, section 6).

    ``corruption_only`` as soon as, on one dataset with a shift target, no candidate has a defined primary robustness:
    nobody could be measured there, so nobody is. Else ``shift``: an encoder that lacks the term alone is incomplete.

    Args:
        cell_axes: rows of the table ``cell_axes`` of all cells.
        candidates: ids of the active candidates.
        shift_datasets: ids of the datasets with a shift target; none gives ``shift``, which then changes nothing.
    """
    with_shift_term = cell_axes.filter(
        (pl.col("axis") == "robustness")
        & (pl.col("variant") == PRIMARY)
        & pl.col("value").is_not_null()
        & pl.col("encoder_id").is_in(list(candidates))
    )
    measured = set(with_shift_term.get_column("dataset_id"))
    return "shift" if set(shift_datasets) <= measured else "corruption_only"


def values_by_cell(values: pl.DataFrame) -> CellValues:
    """Return the defined axis values of a frame as :func:`axis_values` makes it, by cell.

    Raises:
        ValueError: a NaN, or two values for one cell and axis.
    """
    if values.get_column("value").is_nan().any():
        raise ValueError("NaN among the axis values: an undefined value is null with a reason")
    if values.select("encoder_id", "dataset_id", "axis").is_duplicated().any():
        raise ValueError("two values for one cell and axis: select one variant with `axis_values` first")
    cells: CellValues = {}
    for row in values.filter(pl.col("value").is_not_null()).iter_rows(named=True):
        cells.setdefault((row["encoder_id"], row["dataset_id"]), {})[row["axis"]] = row["value"]
    return cells
