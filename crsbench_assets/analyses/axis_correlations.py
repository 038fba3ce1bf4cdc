"""Whether the four axes say four things.

What lives here: the rows of ``axis_correlations``. What stays out: the axes (``aggregates.axes``), and what retention
shares with the area under the label curve (``label_efficiency_informativeness``).
Source: protocol page, section 8; a correlation within datasets is a partial correlation given the dataset (Fisher
1924, The distribution of the partial correlation coefficient, Metron 3), whose interval rests on as many units fewer
as there are further datasets. What the intervals cover for few units, and why those over cells are too narrow, stands
in ``inference``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from crsbench_assets.analyses.inference import correlation, pearson_interval, spearman_interval
from crsbench_assets.analyses.population import (
    CENTRINGS,
    LEVELS,
    analysis_frame,
    member_cells,
    unit_values,
)
from crsbench_assets.config.protocol import AXES
from crsbench_assets.metrics.replicates import Interval
from crsbench_assets.scores.panel import Panel

PAIR_OF_A_DATASET = ("discrimination", "calibration")
"""The two axes that are also compared on every dataset alone."""


def axis_correlations(panel: Panel) -> pl.DataFrame:
    """Return how the axes go together over a panel's members, by the values that these were frozen with.

    Values are those of the axes, larger is better on all four, and calibration is oriented. At encoder level a unit is
    the mean over the encoder's datasets, at cell level every cell is one; ``within_dataset`` takes the dataset's mean
    off first.

    Args:
        panel: frozen or provisional; its members have all axes of all their cells.

    Returns:
        All 16 ordered pairs of axes by level (encoder, cell) and centring (raw, within_dataset) with the empty dataset
        id, 64 rows; and for every dataset alone its cells' discrimination with calibration, raw. An axis with itself
        has 1 and (1, 1). Correlations are NULL below three units (``too_few_units``) and where all agree on one of
        the two (``no_spread``); the bounds alone below four units, and where a correlation is -1 or 1
        (``perfect_correlation``).
    """
    cells = member_cells(panel)
    axes = {axis: {(e, d): panel.values[d][e][axis] for e, d in cells} for axis in AXES}
    rows: list[dict[str, Any]] = []
    for level in LEVELS:
        for centring in CENTRINGS:
            units = {axis: unit_values(values, level, centring) for axis, values in axes.items()}
            n_means_off = len(panel.datasets) - 1 if (level, centring) == ("cell", "within_dataset") else 0
            key = {"panel_id": panel.panel_id, "level": level, "centring": centring, "dataset_id": ""}
            rows += [key | _row(units, axis, other, n_means_off) for axis in AXES for other in AXES]
    for dataset in panel.datasets:
        units = {axis: [value for cell, value in axes[axis].items() if cell[1] == dataset] for axis in AXES}
        key = {"panel_id": panel.panel_id, "level": "cell", "centring": "raw", "dataset_id": dataset}
        rows.append(key | _row(units, *PAIR_OF_A_DATASET, n_means_off=0))
    return analysis_frame("axis_correlations", rows)


def _row(units: Mapping[str, Sequence[float]], axis: str, other: str, n_means_off: int) -> dict[str, Any]:
    """Return the correlations of two axes; ``n_means_off`` are the datasets' means taken off beyond the first."""
    found = correlation(units[axis], units[other])
    intervals = {"pearson": Interval(None, None, None), "spearman": Interval(None, None, None)}
    if found.pearson is not None and found.spearman is not None:
        n_free = len(units[axis]) - n_means_off
        intervals["pearson"] = pearson_interval(found.pearson, n_free)
        intervals["spearman"] = spearman_interval(found.spearman, n_free)
        if axis == other:  # 1 by definition, whoever the units are
            intervals = dict.fromkeys(intervals, Interval(1.0, 1.0, None))
    row: dict[str, Any] = {"axis": axis, "other_axis": other, "n_units": len(units[axis])} | found._asdict()
    for name, interval in intervals.items():
        row |= {f"{name}_ci_low": interval.low, f"{name}_ci_high": interval.high}
    return row | {"reason": found.reason or intervals["pearson"].reason or intervals["spearman"].reason}
