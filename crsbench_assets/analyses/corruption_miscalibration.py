"""Whether corruption spoils the stated probabilities, and whether AUROC would have shown it.

What lives here: the rows of ``corruption_miscalibration``. What stays out: records under corruption (``metrics``),
their means over seeds (``aggregates.seeds``), and the repair of calibration (``calibration_repair``).
Source: protocol page, sections 6 and 8. The mean relative loss of AUROC is one less the corruption-only robustness of
the cell, so that the two tables speak of one number.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from crsbench_assets.aggregates.axes import CORRUPTION_ONLY
from crsbench_assets.analyses.inference import Correlation, correlation
from crsbench_assets.analyses.population import Cell, analysis_frame, member_cells
from crsbench_assets.config.ids import CLEAN
from crsbench_assets.scores.panel import Panel


def corruption_miscalibration(
    seed_aggregates: pl.DataFrame,
    cell_axes: pl.DataFrame,
    scored: pl.DataFrame,
    panel: Panel,
    conditions: Sequence[str],
) -> pl.DataFrame:
    """Return the rise of ECE under corruption of every cell, and how it goes with the loss of AUROC over a panel.

    A rise is ECE under the condition less the clean ECE (means over seeds, probes on all labels), in [-1, 1], lower is
    better; of equal worst conditions the first in order is named.

    Args:
        seed_aggregates: encoder_id, dataset_id, label_fraction, condition_id, ece_mean, reason.
        cell_axes: rows of the table ``cell_axes`` of the same cells.
        scored: active encoders (encoder_id, dataset_ids), controls too.
        panel: frozen or provisional.
        conditions: the protocol's corrupted conditions, in order.

    Returns:
        One row per cell of a member, or of an active encoder on a dataset of the panel, sorted by encoder and dataset.
        Pearson's correlation over the members' cells (``n_cells`` of them have both values) repeats in every row, the
        largest mean rise of a dataset's members in its rows. Reasons: that of the first record without ECE or of the
        axis, ``incomplete`` where there is none; for what is pooled ``incomplete`` where a member's cell lacks a
        value, because the number of a part is not the panel's, ``too_few_units`` and ``no_spread``.
    """
    full = seed_aggregates.filter(pl.col("label_fraction") == 1.0)
    keys = ("encoder_id", "dataset_id", "condition_id")
    eces: dict[tuple[str, str, str], tuple[float | None, str | None]] = {
        (e, d, condition): (ece, reason)
        for e, d, condition, ece, reason in full.select(*keys, "ece_mean", "reason").iter_rows()
    }
    axis = cell_axes.filter((pl.col("axis") == "robustness") & (pl.col("variant") == CORRUPTION_ONLY))
    robustness: dict[Cell, tuple[float | None, str | None]] = {
        (e, d): (value, reason)
        for e, d, value, reason in axis.select("encoder_id", "dataset_id", "value", "reason").iter_rows()
    }
    members = member_cells(panel)
    active = scored.select("encoder_id", "dataset_ids").iter_rows()
    cells = {*members, *((e, d) for e, applicable in active for d in applicable if d in panel.values)}
    own = {cell: _cell(eces, robustness, cell, conditions) for cell in sorted(cells)}
    rises = {cell: own[cell]["mean_delta_ece"] for cell in members}
    losses = {cell: own[cell]["mean_relative_auroc_loss"] for cell in members}
    n_cells = sum(rises[cell] is not None and losses[cell] is not None for cell in members)
    pooled = Correlation(None, None, "incomplete")
    if n_cells == len(members):
        pooled = correlation(list(losses.values()), list(rises.values()))
    rows = []
    for (encoder, dataset), row in own.items():
        of_dataset = [rises[cell] for cell in members if cell[1] == dataset]
        is_whole = all(rise is not None for rise in of_dataset)
        rows.append(
            {"panel_id": panel.panel_id, "encoder_id": encoder, "dataset_id": dataset}
            | row
            | {
                "max_mean_delta_ece": max(of_dataset) if is_whole else None,
                "n_cells": n_cells,
                "pearson": pooled.pearson,
                "reason": row["reason"] or pooled.reason,
            }
        )
    return analysis_frame("corruption_miscalibration", rows)


def _cell(
    eces: Mapping[tuple[str, str, str], tuple[float | None, str | None]],
    robustness: Mapping[Cell, tuple[float | None, str | None]],
    cell: Cell,
    conditions: Sequence[str],
) -> dict[str, Any]:
    """Return the numbers of one cell, each None where a record or the axis it needs has no value."""
    absent = (None, "incomplete")
    found = {condition: eces.get((*cell, condition), absent) for condition in (CLEAN, *conditions)}
    axis, axis_reason = robustness.get(cell, absent)
    row: dict[str, Any] = {
        "n_conditions": sum(found[condition][0] is not None for condition in conditions),
        "mean_delta_ece": None,
        "mean_relative_auroc_loss": None if axis is None else 1 - axis,
    }
    known = {condition: ece for condition, (ece, _) in found.items() if ece is not None}
    lacking = [reason or "incomplete" for ece, reason in found.values() if ece is None]
    if axis is None:
        lacking.append(axis_reason or "incomplete")
    if len(known) == len(found):
        rises = {condition: known[condition] - known[CLEAN] for condition in conditions}
        worst = max(conditions, key=rises.__getitem__)
        row |= {
            "mean_delta_ece": statistics.fmean(rises.values()),
            "worst_delta_ece": rises[worst],
            "worst_condition_id": worst,
        }
    return row | {"reason": lacking[0] if lacking else None}
