"""Which candidate dominates which, and how surely.

What lives here: the rows of ``dominance``. What stays out: the replicates (``scores.resampling``), and dominance
against a panel's members as a part of the score (``scores.components``).
Source: protocol page, sections 7 and 8. That a relation counts as established from .95 on is ours.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from crsbench_assets.analyses.population import analysis_frame
from crsbench_assets.config.protocol import Protocol
from crsbench_assets.metrics.replicates import LEVEL
from crsbench_assets.scores.ensemble import dominance_of_pairs
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.resampling import resampled_scores, scored_candidates


def dominance(
    cell_axes: pl.DataFrame, axis_replicates: pl.DataFrame, encoders: pl.DataFrame, panel: Panel, protocol: Protocol
) -> pl.DataFrame:
    """Return for every ordered pair of scored candidates whether the first dominates the second.

    At least as good on all axes of the unclipped profile and better on one, exactly as P counts it; its probability
    is the share of the ``seed_test`` replicates in which it holds, and .95 establishes it. Neither of two equal
    encoders dominates.

    Args:
        cell_axes: rows of the table ``cell_axes`` of all cells.
        axis_replicates: rows of the table ``axis_replicates`` of all cells.
        encoders: active encoders (encoder_id, role, dataset_ids); controls are left out, members or not stay.
        panel: frozen or provisional; its anchors place the profiles.
        protocol: the one the panel was formed under.

    Returns:
        m (m - 1) rows for m candidates with a score, sorted by both ids; none for fewer than two. The probability of
        a pair is NULL with the reason of ``resampled_scores``, or ``no_replicates`` where one of the two has none.
    """
    candidates = scored_candidates(cell_axes, encoders, panel, protocol)
    resampled = resampled_scores("seed_test", cell_axes, axis_replicates, encoders, panel, protocol)
    is_dominating = dominance_of_pairs(candidates.point.x_raw)[0]
    place: dict[str, int] = {}
    if isinstance(resampled, str):
        reason = resampled
    else:
        reason = "no_replicates"
        place = {encoder: i for i, encoder in enumerate(resampled.encoders)}
        probability = dominance_of_pairs(resampled.scores.x_raw).mean(axis=0)
    rows = []
    for i, first in enumerate(candidates.encoders):
        for j, second in enumerate(candidates.encoders):
            if i == j:
                continue
            row: dict[str, Any] = {
                "panel_id": panel.panel_id,
                "encoder_id": first,
                "other_encoder_id": second,
                "is_dominating": bool(is_dominating[i, j]),
            }
            if first in place and second in place:
                p = float(probability[place[first], place[second]])
                row |= {"p_dominates": p, "is_established": p >= LEVEL}
            else:
                row["reason"] = reason
            rows.append(row)
    return analysis_frame("dominance", rows)
