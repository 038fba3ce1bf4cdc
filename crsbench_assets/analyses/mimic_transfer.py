"""Whether the score foretells discrimination at another institution.

What lives here: the rows of ``mimic_transfer``. What stays out: AUROC at both institutions
(``institutional_shift``), and other datasets as what is foretold (``lodo_transfer``).
Source: protocol page, section 8. The score's robustness is ``corruption_only``, so that it knows nothing of the
institution that it foretells.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from crsbench_assets.aggregates.axes import CORRUPTION_ONLY
from crsbench_assets.analyses.population import analysis_frame
from crsbench_assets.analyses.renormalisation import renormalised_crs, shared_reason, with_variants
from crsbench_assets.analyses.transfer import Transfer, transfer, undefined_transfer
from crsbench_assets.config.protocol import ScoreRules
from crsbench_assets.scores.ensemble import members_of
from crsbench_assets.scores.panel import Panel

TARGETS = {"shift": "shift_macro_auroc", "source": "source_macro_auroc"}
"""What is foretold -> column of ``institutional_shift``."""


def mimic_transfer(
    institutional_shift: pl.DataFrame, cell_axes: pl.DataFrame, datasets: pl.DataFrame, panel: Panel, rules: ScoreRules
) -> pl.DataFrame:
    """Return how well CRS without the shift term foretells macro AUROC at the shift target, and at the source.

    The score is that of all members with their frozen values but robustness ``corruption_only``, anchors and P
    recomputed. The encoders of a row are the members with a cell on the dataset.

    Args:
        institutional_shift: rows of that table of any encoders: AUROC over the labels that both institutions define.
        cell_axes: rows of the table ``cell_axes`` of any cells, for robustness ``corruption_only``.
        datasets: dataset_id, shift_id (NULL without a shift target) of all datasets.
        panel: frozen or provisional.
        rules: weights of the score.

    Returns:
        One row per dataset of the panel with a shift target, sorted, and target (``shift``, ``source``). Where a
        member lacks a value nothing is compared: the reason is the one that all missing values share, such as
        ``no_access``, else ``incomplete``; further reasons as
        :func:`crsbench_assets.analyses.transfer.transfer`.
    """
    cohort = members_of(panel)
    values = with_variants(cohort, cell_axes, {"robustness": CORRUPTION_ONLY})
    scores = (
        values
        if isinstance(values, str)
        else dict(zip(cohort.encoders, renormalised_crs(values, rules).tolist(), strict=True))
    )
    found = {(row["encoder_id"], row["dataset_id"]): row for row in institutional_shift.iter_rows(named=True)}
    shift_ids = dict(datasets.filter(pl.col("shift_id").is_not_null()).select("dataset_id", "shift_id").iter_rows())
    rows = []
    for dataset in panel.datasets:
        if dataset in shift_ids:
            of_members = {member: found.get((member, dataset), {}) for member in panel.values[dataset]}
            for target, column in TARGETS.items():
                key = {"panel_id": panel.panel_id, "dataset_id": dataset, "shift_id": shift_ids[dataset]}
                rows.append(key | {"target": target} | _transfer(scores, of_members, column)._asdict())
    return analysis_frame("mimic_transfer", rows)


def _transfer(scores: dict[str, float] | str, of_members: dict[str, dict[str, Any]], column: str) -> Transfer:
    """Return the statistics of one target, or why a score or a target is missing."""
    if isinstance(scores, str):
        return undefined_transfer(len(of_members), scores)
    lacking = {row.get("reason") or "incomplete" for row in of_members.values() if row.get(column) is None}
    if lacking:
        return undefined_transfer(len(of_members), shared_reason(lacking))
    return transfer([scores[member] for member in of_members], [row[column] for row in of_members.values()])
