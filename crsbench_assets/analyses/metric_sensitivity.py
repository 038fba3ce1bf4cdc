"""Whether the ranking hangs on the choice of a metric.

What lives here: the rows of ``metric_sensitivity``. What stays out: the variants of the axes
(``aggregates.axes``), other weights (``weight_perturbations``), other probes (``estimator_dependence``), and the
variant ``canonical_px``, which needs images of another size and runs on request.
Source: protocol page, section 8; quadratic weighted kappa: Cohen (1968), doi:10.1037/h0026256.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from crsbench_assets.aggregates.axes import CHANCE_CORRECTED, CORRUPTION_ONLY
from crsbench_assets.analyses.agreement import agreement, top_overlap
from crsbench_assets.analyses.population import analysis_frame
from crsbench_assets.analyses.renormalisation import renormalised_crs, with_variants
from crsbench_assets.config.ids import CLEAN
from crsbench_assets.config.protocol import AXES, ScoreRules
from crsbench_assets.scores.ensemble import Cohort, Floats, members_of, score_ensemble
from crsbench_assets.scores.panel import Panel

VARIANTS: Mapping[str, Mapping[str, str]] = {
    "adaptive_ece": {"calibration": "adaptive_ece"},
    "brier": {"calibration": "brier"},
    "ece_debiased": {"calibration": "ece_debiased"},
    "corruption_only": {"robustness": CORRUPTION_ONLY},
    "chance_corrected": {"label_efficiency": CHANCE_CORRECTED, "robustness": CHANCE_CORRECTED},
}
"""Variant of a metric -> axis -> variant of the axis in ``cell_axes``."""

ANCHOR_PERCENTILES = (5.0, 95.0)

ORDINAL_METRICS = {"qwk": ("qwk_mean", 1.0), "ordinal_mae": ("ordinal_mae_mean", -1.0)}
"""Variant -> column of ``seed_aggregates``, and the sign that makes larger better."""

N_TOP_WIDE = 5


def metric_sensitivity(
    cell_axes: pl.DataFrame, seed_aggregates: pl.DataFrame, datasets: pl.DataFrame, panel: Panel, rules: ScoreRules
) -> pl.DataFrame:
    """Return how far the ranking of a panel's members under another metric agrees with the primary one.

    Anchors and P are recomputed among the members under each variant; axes that it does not name keep the frozen
    values. ``percentile_anchors`` keeps all values and puts the anchors at the members' 5th and 95th percentile
    (linear between order statistics), so that members lie beyond them. On an ordinal dataset ``qwk`` and
    ``ordinal_mae`` take the place of discrimination in the score of its cells, which is compared with their primary
    score; the error enters with its sign turned, which is the same position between anchors as one less the error
    over the k - 1 grades.

    Args:
        cell_axes: rows of the table ``cell_axes`` of any cells; only the members' count.
        seed_aggregates: rows of the table ``seed_aggregates`` of any cells, for the ordinal metrics (clean, all
            labels, mean over seeds).
        datasets: dataset_id, task (``ordinal`` or another), shift_id (NULL without a shift target) of all datasets.
        panel: frozen or provisional.
        rules: weights of the score.

    Returns:
        Six rows with the empty dataset id, then two per ordinal dataset of the panel. Where a member lacks the
        variant nothing is compared, because the ranking of a part is not the panel's: the reason is the one that all
        missing values share, such as ``near_chance``, else ``incomplete``. ``other_robustness``: the chance-corrected
        robustness has the shift term and the panel, which is ``corruption_only``, has not. ``no_spread`` where all
        score alike, ``too_few_units`` for five encoders or fewer, whose top 5 is all of them.
    """
    cohort = members_of(panel)
    primary = renormalised_crs(cohort.values, rules)
    rows = []
    for variant, replaced in VARIANTS.items():
        values = with_variants(cohort, cell_axes, replaced)
        if variant == "chance_corrected" and _lacks_shift_term(panel, datasets):
            values = "other_robustness"
        rows.append(_row(variant, "", primary, values if isinstance(values, str) else renormalised_crs(values, rules)))
    low, high = np.nanpercentile(cohort.values, ANCHOR_PERCENTILES, axis=0)
    within = score_ensemble(cohort.values[None], low, high, rules).crs[0]
    rows.append(_row("percentile_anchors", "", primary, within))
    ordinal = set(datasets.filter(pl.col("task") == "ordinal").get_column("dataset_id"))
    for dataset in panel.datasets:
        if dataset in ordinal:
            cells = _cells_of(cohort, dataset)
            of_cells = renormalised_crs(cells.values, rules)
            for variant in ORDINAL_METRICS:
                values = _ordinal_values(cells, seed_aggregates, variant)
                other = values if isinstance(values, str) else renormalised_crs(values, rules)
                rows.append(_row(variant, dataset, of_cells, other))
    return analysis_frame("metric_sensitivity", [{"panel_id": panel.panel_id, **row} for row in rows])


def _lacks_shift_term(panel: Panel, datasets: pl.DataFrame) -> bool:
    """Return whether the panel leaves the shift term out that chance-corrected robustness has on its datasets."""
    with_target = set(datasets.filter(pl.col("shift_id").is_not_null()).get_column("dataset_id"))
    return panel.conditions.robustness_variant == "corruption_only" and not with_target.isdisjoint(panel.datasets)


def _cells_of(cohort: Cohort, dataset: str) -> Cohort:
    """Return the encoders with a cell on a dataset, on that dataset alone."""
    j = cohort.datasets.index(dataset)
    rows = np.flatnonzero(~np.isnan(cohort.values[:, j, 0]))
    return Cohort(tuple(cohort.encoders[i] for i in rows), (dataset,), cohort.values[rows, j : j + 1])


def _ordinal_values(cells: Cohort, seed_aggregates: pl.DataFrame, variant: str) -> Floats | str:
    """Return the axis values of the cells with an ordinal metric as discrimination, or why one is missing."""
    column, sign = ORDINAL_METRICS[variant]
    clean = seed_aggregates.filter(
        (pl.col("dataset_id") == cells.datasets[0])
        & (pl.col("label_fraction") == 1.0)
        & (pl.col("condition_id") == CLEAN)
    )
    found = dict(clean.select("encoder_id", column).iter_rows())
    metric = [found.get(encoder) for encoder in cells.encoders]
    values = cells.values.copy()
    for i, value in enumerate(metric):
        if value is None:
            return "incomplete"
        values[i, 0, AXES.index("discrimination")] = sign * value
    return values


def _row(variant: str, dataset: str, primary: Floats, other: Floats | str) -> dict[str, Any]:
    """Return the numbers of one variant, without the panel; ``other`` may be the reason why it has no score."""
    row = {"variant": variant, "dataset_id": dataset, "n_encoders": len(primary)}
    if isinstance(other, str):
        return row | {"reason": other}
    found = agreement(primary, other)
    wide = top_overlap(primary, other, N_TOP_WIDE)
    return row | {
        **found._asdict(),
        "top_5_overlap": wide,
        "mean_crs_shift": float((other - primary).mean()),
        "mean_absolute_crs_shift": float(np.abs(other - primary).mean()),
        "reason": found.reason or ("too_few_units" if wide is None else None),
    }
