"""How much of the differences between encoders on an axis is more than error.

What lives here: the rows of ``axis_reliability``. What stays out: the replicates that the error comes from
(``scores.resampling``), and whether the axis tells two given encoders apart (``dominance``, tie groups of ``ranks``).
Source: protocol page, section 6; Lord and Novick (1968), Statistical Theories of Mental Test Scores, chapter 3
(reliability: true over observed variance); Beckerman et al. (2001), doi:10.1023/A:1013138911638 (smallest detectable
difference: 1.96 times the standard deviation of the error in a difference).

The error of the reliability is each member's own, as the protocol defines it. Members share their test images and
seeds, so part of it moves all of them alike, neither parts them nor hides a difference: reliability is then too low.
The detectable difference counts what is left in the difference of two members under the same replicate, on average
over all pairs, so it stays true. Redrawing s seeds gives (s - 1) / s of the variance of their mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from crsbench_assets.analyses.inference import SPREAD_TOLERANCE
from crsbench_assets.analyses.population import analysis_frame, member_replicates
from crsbench_assets.config.protocol import AXES
from crsbench_assets.scores.ensemble import Floats, members_of
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.resampling import Resampled

LEAST_RELIABILITY = 0.7
"""Reliability below which the report warns."""

_NORMAL_QUANTILE = 1.959963984540054  # of .975


def axis_reliability(panel: Panel, resampled: Resampled | str) -> pl.DataFrame:
    """Return the reliability of every axis of every dataset over a panel's members that have the cell.

    reliability = 1 - error variance / between variance: at most 1, larger is better, negative where the members
    differ by less than their error. The error variance is the mean over the members of the variance (ddof 1) of the
    axis over the replicates, the between variance that (ddof 1) of the members' frozen values, which contains the
    error. Smallest detectable difference: 1.96 sqrt(mean over pairs i < j of Var(v_i - v_j)), in units of the axis.

    Args:
        panel: frozen or provisional.
        resampled: replicates under ``seed_test`` of encoders, the members among them, or why there are none.

    Returns:
        One row per dataset and axis, in this order. NULL: ``too_few_units`` for one member alone, except its error
        variance; ``no_spread`` for the reliability where all members agree; and for all but the between variance
        the reason of ``population.member_replicates``.
    """
    replicates = member_replicates(resampled, panel)
    values = members_of(panel).values
    rows = []
    for j, dataset in enumerate(panel.datasets):
        has_cell = ~np.isnan(values[:, j, 0])
        for k, axis in enumerate(AXES):
            row = {"panel_id": panel.panel_id, "dataset_id": dataset, "axis": axis, "n_encoders": int(has_cell.sum())}
            of_replicates = replicates if isinstance(replicates, str) else replicates[:, has_cell, j, k]
            rows.append(row | _reliability(values[has_cell, j, k], of_replicates))
    return analysis_frame("axis_reliability", rows)


def _reliability(values: Floats, replicates: Floats | str) -> dict[str, Any]:
    """Return the numbers of one axis of m members from values (m,) and replicates (b, m)."""
    m = len(values)
    row: dict[str, Any] = {"between_variance": float(values.var(ddof=1)) if m > 1 else None}
    if isinstance(replicates, str):
        return row | {"reason": replicates}
    row["error_variance"] = float(replicates.var(axis=0, ddof=1).mean())
    if m < 2:
        return row | {"reason": "too_few_units"}
    row["smallest_detectable_difference"] = _NORMAL_QUANTILE * _mean_variance_of_differences(replicates) ** 0.5
    if np.ptp(values) <= SPREAD_TOLERANCE:
        return row | {"reason": "no_spread"}
    row["reliability"] = 1 - row["error_variance"] / row["between_variance"]
    return row | {"is_reliable": row["reliability"] >= LEAST_RELIABILITY}


def _mean_variance_of_differences(replicates: Floats) -> float:
    """Return the mean over pairs i < j of the variance (ddof 1) of v_i - v_j over replicates (b, m)."""
    b, _ = replicates.shape
    deviations = replicates - replicates.mean(axis=0)
    # the mean over pairs of a squared difference is twice the variance (ddof 1) of a sample
    return float(2 * deviations.var(axis=1, ddof=1).sum() / (b - 1))
