"""Whom a pooled statistic is about: the members of a panel, their cells, and the units made of them.

What lives here: the cells that a panel's members have, the datasets that all of them share, their replicates, and a
quantity per unit (encoder or cell, raw or centred). What stays out: who is a member (``scores.panel``): controls never
are, and an encoder that joins after the freeze changes nothing here. Source: protocol page, sections 7 and 8.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import polars as pl

from crsbench_assets.scores.ensemble import Floats, members_of
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.resampling import Resampled
from crsbench_assets.tables.analyses import ANALYSIS_TABLES

Cell = tuple[str, str]
"""Encoder id, dataset id."""

Level = Literal["encoder", "cell"]
Centring = Literal["raw", "within_dataset"]

LEVELS: tuple[Level, ...] = ("encoder", "cell")
CENTRINGS: tuple[Centring, ...] = ("raw", "within_dataset")

GENERALIST = "generalist"

MEDICAL = {
    "broad_medical": ("broad_medical",),
    "specialty": ("specialty",),
    "medical": ("broad_medical", "specialty"),
}
"""Category of a row -> categories of its encoders."""


def member_cells(panel: Panel) -> list[Cell]:
    """Return the cells of a panel's members, sorted."""
    return sorted((member, dataset) for dataset, of_members in panel.values.items() for member in of_members)


def common_datasets(panel: Panel) -> list[str]:
    """Return the datasets that every member has a cell on, sorted; possibly none."""
    return [dataset for dataset in panel.datasets if set(panel.members) <= panel.values[dataset].keys()]


def member_replicates(resampled: Resampled | str, panel: Panel) -> Floats | str:
    """Return the replicates of a panel's members, axis values (b, m, d, k), or the reason why they have none.

    Reasons: the one that ``resampled`` is; ``no_replicates`` where a member has none (it is no longer active or
    complete) or has other cells than those it was frozen with.
    """
    if isinstance(resampled, str):
        return resampled
    if not set(panel.members) <= set(resampled.encoders):
        return "no_replicates"
    values = resampled.values[:, [resampled.encoders.index(member) for member in panel.members]]
    has_same_cells = np.array_equal(np.isnan(values[0]), np.isnan(members_of(panel).values))
    return values if has_same_cells else "no_replicates"


def unit_values(values: Mapping[Cell, float], level: Level, centring: Centring) -> list[float]:
    """Return a quantity of every unit, units in sorted order.

    Args:
        values: the quantity of every cell of the population.
        level: ``cell``, or ``encoder``: mean over the encoder's cells.
        centring: ``within_dataset`` first takes the mean of the dataset's cells off each of them, so that datasets
            of different difficulty, and encoders with different datasets, can be pooled; a dataset with one cell
            contributes 0.

    Returns:
        m values, one per encoder or cell; of an empty mapping none. Means are rounded once, so no bit depends on
        the order of ``values``.
    """
    offsets = _means(values, by=1) if centring == "within_dataset" else {}
    shifted = {cell: value - offsets.get(cell[1], 0.0) for cell, value in sorted(values.items())}
    return list(shifted.values()) if level == "cell" else list(_means(shifted, by=0).values())


def analysis_frame(table: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Return rows of an analysis table in its computed columns and their types.

    A column that a row does not mention is NULL there.
    """
    (spec,) = (spec for spec in ANALYSIS_TABLES if spec.name == table)
    return spec.computed(rows)


def _means(values: Mapping[Cell, float], by: int) -> dict[str, float]:
    """Return the mean of the cells of each encoder (``by`` 0) or dataset (``by`` 1), by sorted id."""
    parts: dict[str, list[float]] = {}
    for cell, value in values.items():
        parts.setdefault(cell[by], []).append(value)
    return {name: statistics.mean(part) for name, part in sorted(parts.items())}
