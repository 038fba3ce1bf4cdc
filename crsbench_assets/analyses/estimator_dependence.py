"""Whether the order of the encoders is one of encoders or of the probe.

What lives here: the rows of ``estimator_dependence``. What stays out: the estimators and the axes under them
(``estimator_axes``), the score (``scores.ensemble``), and agreement of two orders (``agreement``).
Source: protocol page, sections 4 and 8. A probe with one fixed penalty has more miscalibration the wider the vectors
are; the correlations with the width show how much of an axis that could be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from crsbench_assets.analyses.agreement import agreement
from crsbench_assets.analyses.inference import Correlation, correlation
from crsbench_assets.analyses.population import analysis_frame, member_cells
from crsbench_assets.config.protocol import AXES, ScoreRules
from crsbench_assets.scores.ensemble import Cohort, Floats, anchors_of, members_of, score_ensemble
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.profile import axis_values, values_by_cell
from crsbench_assets.scores.ranks import competition_ranks

PRIMARY_ESTIMATOR = "primary"
ESTIMATORS = (PRIMARY_ESTIMATOR, "tuned_c", "knn", "mlp", "ridge")


def estimator_dependence(
    estimator_axes: pl.DataFrame, widths: pl.DataFrame, panel: Panel, rules: ScoreRules
) -> pl.DataFrame:
    """Return the full score of a panel's members under every estimator, and how far the order agrees with the primary.

    Anchors and P are those of the members under that estimator. Under ``primary`` the values are those that members
    were frozen with.

    Args:
        estimator_axes: rows of the table ``estimator_axes`` of any cells; only the members' count.
        widths: encoder_id, n_dims; of an encoder with several widths the largest counts.
        panel: frozen or provisional.
        rules: weights of the score.

    Returns:
        Rows by estimator and member. ``n_encoders`` are the members with all axes of all their cells; where that is
        not all of them, everything of the estimator is NULL (``incomplete``), because the anchors of a part are not the
        panel's. Agreement and the Spearman correlations, of the profile (x) with the width, repeat per estimator;
        ``too_few_units`` and ``no_spread`` as in ``agreement`` and ``correlation``, ``incomplete`` where a width is
        unknown. ``is_most_moved`` marks all that move furthest; nobody where no rank moves.
    """
    cohort = members_of(panel)
    width_of = dict(widths.group_by("encoder_id").agg(pl.col("n_dims").max()).iter_rows())
    primary = _scores(cohort.values, rules)
    rows = []
    for estimator in ESTIMATORS:
        values = cohort.values
        if estimator != PRIMARY_ESTIMATOR:
            values = _values(estimator_axes.filter(pl.col("estimator") == estimator), cohort, panel)
        is_lacking = np.isnan(values) & ~np.isnan(cohort.values)
        complete = ~is_lacking.any(axis=(1, 2))
        shared: dict[str, Any] = {"panel_id": panel.panel_id, "estimator": estimator, "n_encoders": int(complete.sum())}
        if not complete.all():
            rows += [
                shared | {"encoder_id": e, "n_dims": width_of.get(e), "reason": "incomplete"} for e in cohort.encoders
            ]
            continue
        x, crs = _scores(values, rules)
        found = agreement(primary[1], crs)
        of_width = _width_correlations(x, [width_of.get(encoder) for encoder in cohort.encoders])
        reason = found.reason or next((c.reason for c in of_width.values() if c.reason), None)
        shared |= {
            "tau_b": found.tau_b,
            "top_3_overlap": found.top_3_overlap,
            "reason": reason,
            **{f"spearman_width_{axis}": of_axis.spearman for axis, of_axis in of_width.items()},
        }
        ranks = competition_ranks(crs)
        moves = competition_ranks(primary[1]) - ranks
        furthest = int(abs(moves).max())
        for i, encoder in enumerate(cohort.encoders):
            rows.append(
                shared
                | {
                    "encoder_id": encoder,
                    "n_dims": width_of.get(encoder),
                    "crs": float(crs[i]),
                    "rank": int(ranks[i]),
                    "rank_displacement": int(moves[i]),
                    "is_most_moved": 0 < furthest == abs(int(moves[i])),
                }
            )
    return analysis_frame("estimator_dependence", rows)


def _values(estimator_axes: pl.DataFrame, cohort: Cohort, panel: Panel) -> Floats:
    """Return the members' axis values (m, d, k) under one estimator, NaN where there is none."""
    found = values_by_cell(axis_values(estimator_axes, panel.conditions.robustness_variant))
    values = np.full_like(cohort.values, np.nan)
    for encoder, dataset in member_cells(panel):
        of_cell: Mapping[str, float] = found.get((encoder, dataset), {})
        row = [of_cell.get(axis, np.nan) for axis in AXES]
        values[cohort.encoders.index(encoder), cohort.datasets.index(dataset)] = row
    return values


def _scores(values: Floats, rules: ScoreRules) -> tuple[Floats, Floats]:
    """Return profiles (m, k) and scores (m,) against the encoders' own anchors."""
    scores = score_ensemble(values[None], *anchors_of(values), rules)
    return scores.x[0], scores.crs[0]


def _width_correlations(x: Floats, widths: list[int | None]) -> dict[str, Correlation]:
    """Return the correlation of every axis of the profiles (m, k) with the width of the vectors."""
    known = [float(width) for width in widths if width is not None]
    if len(known) < len(widths):
        return dict.fromkeys(AXES, Correlation(None, None, "incomplete"))
    return {axis: correlation(x[:, k].tolist(), known) for k, axis in enumerate(AXES)}
