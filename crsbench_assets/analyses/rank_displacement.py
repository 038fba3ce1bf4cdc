"""Who rises and who falls when CRS takes the place of AUROC.

What lives here: the rows of ``rank_displacement``. What stays out: the orders, and how far they agree as a whole
(``rank_agreement``).
Source: protocol page, section 8.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from crsbench_assets.analyses.population import analysis_frame
from crsbench_assets.analyses.rank_agreement import orders_of_members
from crsbench_assets.config.protocol import ScoreRules
from crsbench_assets.scores.ensemble import ranks_of_replicates
from crsbench_assets.scores.panel import Panel


def rank_displacement(panel: Panel, rules: ScoreRules) -> pl.DataFrame:
    """Return every member's rank by AUROC and by CRS, for the pairs of orders of ``rank_agreement``.

    ``rank_displacement`` is the rank by AUROC less that by CRS: positive where the encoder rises under CRS. The sum
    over the members is 0 where no ranks tie.

    Args:
        panel: frozen or provisional; its members are ranked among themselves, by the values they were frozen with.
        rules: weights of the score.

    Returns:
        Four rows per member, sorted by pair of orders, then member. An order that is undefined has NULL with
        ``no_common_dataset`` or ``undefined_term`` (``rank_agreement.OrderPair``); the other one keeps its values.
    """
    rows = []
    for pair in orders_of_members(panel, rules):
        for i, member in enumerate(panel.members):
            row: dict[str, Any] = {
                "panel_id": panel.panel_id,
                "auroc_variant": pair.auroc_variant,
                "crs_variant": pair.crs_variant,
                "encoder_id": member,
                "reason": pair.reason,
            }
            if pair.auroc is not None:
                row |= {
                    "auroc_score": float(pair.auroc[0, i]),
                    "rank_auroc": int(ranks_of_replicates(pair.auroc)[0, i]),
                }
            if pair.crs is not None:
                row |= {"crs": float(pair.crs[0, i]), "rank_crs": int(ranks_of_replicates(pair.crs)[0, i])}
            if pair.reason is None:
                row["rank_displacement"] = row["rank_auroc"] - row["rank_crs"]
            rows.append(row)
    return analysis_frame("rank_displacement", rows)
