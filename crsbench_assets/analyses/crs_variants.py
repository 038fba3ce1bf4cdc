"""The score without the shift term, and without the shift terms of encoders that saw the target in pretraining.

What lives here: the rows of ``crs_variants``, which stand beside the primary score on the leaderboard. What stays out:
how far the rankings agree as a whole (``metric_sensitivity``), and the axis itself (``aggregates.axes``).
Source: protocol page, section 6. The shift term carries most of the variance of robustness where it counts, and some
encoders were pretrained on the shift target, so a reader must see whether a place rests on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from crsbench_assets.aggregates.axes import CORRUPTION_ONLY, PRIMARY
from crsbench_assets.analyses.population import Cell, analysis_frame
from crsbench_assets.config.protocol import AXES, ScoreRules
from crsbench_assets.scores.ensemble import Floats, anchors_of, members_of, score_ensemble
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.profile import CellValues, axis_values, values_by_cell
from crsbench_assets.scores.ranks import competition_ranks

WITHOUT_EXPOSED = "without_exposed"

VARIANTS = (CORRUPTION_ONLY, WITHOUT_EXPOSED)

_ROBUSTNESS = AXES.index("robustness")


def crs_variants(
    cell_axes: pl.DataFrame,
    scored: pl.DataFrame,
    encoders: pl.DataFrame,
    datasets: pl.DataFrame,
    panel: Panel,
    rules: ScoreRules,
) -> pl.DataFrame:
    """Return the score of every candidate with another robustness, and its rank among them.

    ``corruption_only``: the mean over corruptions on every dataset. ``without_exposed``: only for an encoder and a
    dataset whose shift target its card says it has seen; an encoder of unknown exposure keeps the term. Anchors and P
    are recomputed over the members under the variant; members enter with the values that they were frozen with, but
    for robustness, which is today's.

    Args:
        cell_axes: rows of the table ``cell_axes`` of all cells.
        scored: active encoders (encoder_id, role, dataset_ids); each candidate gets a row per variant.
        encoders: encoder_id, exposure (JSON: dataset or shift id -> seen, not_seen, unknown).
        datasets: dataset_id, shift_id (NULL without a shift target).
        panel: frozen or provisional.
        rules: weights of the score.

    Returns:
        Rows sorted by variant and encoder. ``incomplete``: the candidate, or for all rows a member, lacks an axis
        under the variant; ``no_anchor``: the candidate has no dataset of the panel.
    """
    sources = {
        PRIMARY: values_by_cell(axis_values(cell_axes, panel.conditions.robustness_variant)),
        CORRUPTION_ONLY: values_by_cell(axis_values(cell_axes, "corruption_only")),
    }
    shift_of = dict(datasets.select("dataset_id", "shift_id").iter_rows())
    has_seen = {
        (encoder, dataset): shift is not None and json.loads(exposure).get(shift) == "seen"
        for encoder, exposure in encoders.select("encoder_id", "exposure").iter_rows()
        for dataset, shift in shift_of.items()
    }
    candidates = {
        encoder: [dataset for dataset in panel.datasets if dataset in own]
        for encoder, role, own in scored.sort("encoder_id").select("encoder_id", "role", "dataset_ids").iter_rows()
        if role == "candidate"
    }
    rows: list[dict[str, Any]] = []
    for variant in VARIANTS:
        robustness = {
            cell: sources[CORRUPTION_ONLY if variant == CORRUPTION_ONLY or has_seen.get(cell) else PRIMARY]
            .get(cell, {})
            .get("robustness")
            for cell in sources[PRIMARY].keys() | sources[CORRUPTION_ONLY].keys()
        }
        found = _scores(candidates, sources[PRIMARY], robustness, panel, rules)
        rows += [{"panel_id": panel.panel_id, "variant": variant, "encoder_id": e, **found[e]} for e in candidates]
    return analysis_frame("crs_variants", rows)


def _scores(
    candidates: Mapping[str, Sequence[str]],
    primary: CellValues,
    robustness: Mapping[Cell, float | None],
    panel: Panel,
    rules: ScoreRules,
) -> dict[str, dict[str, Any]]:
    """Return score and rank of every candidate, or why it has none."""
    members = members_of(panel)
    of_members = members.values.copy()
    for i, j in zip(*np.nonzero(~np.isnan(members.values[:, :, 0])), strict=True):
        value = robustness.get((members.encoders[i], members.datasets[j]))
        of_members[i, j, _ROBUSTNESS] = np.nan if value is None else value
    if np.isnan(of_members).sum() > np.isnan(members.values).sum():
        return {encoder: {"reason": "incomplete"} for encoder in candidates}
    found = dict(zip(members.encoders, of_members, strict=True))
    for encoder in candidates.keys() - found.keys():
        found[encoder] = np.full(of_members.shape[1:], np.nan)
        for dataset in candidates[encoder]:
            values = primary.get((encoder, dataset), {}) | {"robustness": robustness.get((encoder, dataset))}
            found[encoder][panel.datasets.index(dataset)] = [values.get(axis) for axis in AXES]
    complete = [e for e, own in candidates.items() if own and _cells(found[e], panel) == list(own)]
    order = [*complete, *(member for member in members.encoders if member not in complete)]
    stacked = np.stack([found[encoder] for encoder in order])[None]
    is_member = np.isin(order, members.encoders)
    crs = score_ensemble(stacked, *anchors_of(of_members), rules, is_member).crs[0, : len(complete)]
    scores = {
        e: {"crs": float(c), "rank": int(r)} for e, c, r in zip(complete, crs, competition_ranks(crs), strict=True)
    }
    return {e: {"reason": "incomplete" if own else "no_anchor"} for e, own in candidates.items()} | scores


def _cells(values: Floats, panel: Panel) -> list[str]:
    """Return the datasets on which an encoder has all axes."""
    return [dataset for dataset, of_cell in zip(panel.datasets, values, strict=True) if not np.isnan(of_cell).any()]
