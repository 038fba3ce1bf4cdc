"""How far choosing by AUROC and choosing by CRS agree.

What lives here: the rows of ``rank_agreement``, and the orders that they and ``rank_displacement`` compare. What stays
out: each encoder's two ranks (``rank_displacement``), tau-b (``analyses.agreement``) and what the choice costs
(``selection_regret``).
Source: protocol page, section 8; Kendall (1945), doi:10.1093/biomet/33.3.239; Spearman (1904), doi:10.2307/1412159.

CRS contains the discrimination that it is compared with, so part of the agreement is built in. CRS
``without_discrimination`` is the same score of the other three axes: dominance and worst axis over three, and balance
with their weights divided by their sum. What still agrees with AUROC then is a property of the encoders.

AUROC as an order is x_raw on discrimination. For members with the values they were frozen with, that is x; in
replicates x would tie the leaders wherever both pass the anchor, and hide what AUROC tells apart.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from crsbench_assets.analyses.agreement import agreement
from crsbench_assets.analyses.inference import correlation
from crsbench_assets.analyses.population import analysis_frame, common_datasets, member_replicates
from crsbench_assets.config.protocol import AXES, ScoreRules
from crsbench_assets.scores.components import balance, clinical_reliability_score, worst_axis
from crsbench_assets.scores.ensemble import (
    Floats,
    Scores,
    frozen_anchors,
    members_of,
    pareto_scores,
    ranks_of_replicates,
    score_ensemble,
)
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.ranks import SEPARATION
from crsbench_assets.scores.resampling import Resampled

_DISCRIMINATION = AXES.index("discrimination")
_OTHERS = [k for k in range(len(AXES)) if k != _DISCRIMINATION]


class OrderPair(NamedTuple):
    """Two scores of the same members in b replicates, both larger is better.

    Attributes:
        auroc_variant: ``profile`` or ``raw_common_datasets``.
        crs_variant: ``primary`` or ``without_discrimination``.
        auroc: (b, m), in [0, 1] for the values of the panel; None: no dataset has a cell of every member.
        crs: (b, m), in [0, 1]; None: all axis weight lies on discrimination, so that balance without it is undefined.
    """

    auroc_variant: str
    crs_variant: str
    auroc: Floats | None
    crs: Floats | None

    @property
    def reason(self) -> str | None:
        """Why the orders cannot be compared."""
        if self.auroc is None:
            return "no_common_dataset"
        return "undefined_term" if self.crs is None else None


def rank_agreement(panel: Panel, resampled: Resampled | str, rules: ScoreRules) -> pl.DataFrame:
    """Return how far the orders of a panel's members by AUROC and by CRS agree.

    ``n_reversed`` counts the pairs that stand strictly opposite. Such a pair is resolved where each order has the
    direction that it has in the panel in at least .975 of the replicates, as for tie groups.
    ``mean_absolute_rank_displacement`` is the mean distance of a member's two competition ranks.

    Args:
        panel: frozen or provisional; its members are compared, by the values they were frozen with.
        resampled: replicates under ``seed_test`` of encoders, the members among them, or why there are none.
        rules: weights of the score.

    Returns:
        Four rows: AUROC as x on discrimination (``profile``) and as raw mean over the datasets that all members have,
        by CRS ``primary`` and ``without_discrimination``. Reasons: ``no_common_dataset`` and ``undefined_term`` (see
        :class:`OrderPair`); ``no_spread``: an order has no two different scores; ``too_few_units``: Spearman's needs
        three members, tau-b two; for the resolved pairs alone that of ``population.member_replicates``.
    """
    replicates = member_replicates(resampled, panel)
    points = orders_of_members(panel, rules)
    replicated: list[OrderPair | None] = [None] * len(points)
    if not isinstance(replicates, str):
        replicated = [*order_pairs(replicates, panel, rules)]
    rows = []
    for point, pair in zip(points, replicated, strict=True):
        row: dict[str, Any] = {
            "panel_id": panel.panel_id,
            "auroc_variant": point.auroc_variant,
            "crs_variant": point.crs_variant,
            "n_encoders": len(panel.members),
            "n_pairs": math.comb(len(panel.members), 2),
            "reason": point.reason,
        }
        if point.auroc is not None and point.crs is not None:
            row |= _agreement(point.auroc, point.crs)
            is_reversed = _reversal(point.auroc, point.crs) == 1
            row["n_reversed"] = int(is_reversed.sum())
            if pair is not None and pair.auroc is not None and pair.crs is not None:
                is_resolved = _reversal(pair.auroc, pair.crs) >= SEPARATION
                row["n_resolved_reversed"] = int((is_reversed & is_resolved).sum())
            elif isinstance(replicates, str):
                row["reason"] = row["reason"] or replicates
        rows.append(row)
    return analysis_frame("rank_agreement", rows)


def orders_of_members(panel: Panel, rules: ScoreRules) -> list[OrderPair]:
    """Return the pairs of orders, (1, m) each, of a panel's members by the values they were frozen with."""
    return order_pairs(members_of(panel).values[None], panel, rules)


def order_pairs(values: Floats, panel: Panel, rules: ScoreRules) -> list[OrderPair]:
    """Return the four pairs of orders that are compared.

    Args:
        values: axis values (b, m, d, k) of the panel's members, in their order.
        panel: its anchors, and which datasets all members have.
        rules: weights of the score.
    """
    scores = score_ensemble(values, *frozen_anchors(panel), rules)
    common = [panel.datasets.index(dataset) for dataset in common_datasets(panel)]
    # summed in the order of the datasets, so that equal members have equal bits
    total = sum((values[:, :, j, _DISCRIMINATION] for j in common), np.zeros(values.shape[:2]))
    aurocs = {
        "profile": scores.x_raw[:, :, _DISCRIMINATION],
        "raw_common_datasets": total / len(common) if common else None,
    }
    crs = {"primary": scores.crs, "without_discrimination": _crs_without_discrimination(scores, rules)}
    return [OrderPair(first, second, aurocs[first], crs[second]) for first in aurocs for second in crs]


def _crs_without_discrimination(scores: Scores, rules: ScoreRules) -> Floats | None:
    weights = np.array([rules.axis_weights[AXES[k]] for k in _OTHERS])
    if not weights.any():
        return None
    x_raw, x = scores.x_raw[:, :, _OTHERS], scores.x[:, :, _OTHERS]
    components = [rules.dominance_weight, rules.balance_weight, rules.worst_weight]
    balanced = balance(x, weights / weights.sum())
    return clinical_reliability_score(pareto_scores(x_raw), balanced, worst_axis(x), components)


def _agreement(auroc: Floats, crs: Floats) -> dict[str, Any]:
    of_orders, of_ranks = agreement(auroc[0], crs[0]), correlation(auroc[0].tolist(), crs[0].tolist())
    displacement = np.abs(ranks_of_replicates(auroc) - ranks_of_replicates(crs))
    return {
        "tau_b": of_orders.tau_b,
        "spearman": of_ranks.spearman,
        "mean_absolute_rank_displacement": float(displacement.mean()),
        # agreement has a reason of its top 3 too, which is no column here
        "reason": of_orders.reason if of_orders.tau_b is None else of_ranks.reason,
    }


def _reversal(auroc: Floats, crs: Floats) -> Floats:
    """Return the share of replicates with i above j by AUROC or with j above i by CRS, whichever is smaller (m, m)."""

    def share_above(scores: Floats) -> Floats:
        return np.asarray((scores[:, :, None] > scores[:, None, :]).mean(axis=0))

    return np.minimum(share_above(auroc), share_above(crs).T)
