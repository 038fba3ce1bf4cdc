"""What one loses by choosing an encoder by AUROC, by CRS or at random.

What lives here: the rows of ``selection_regret``. What stays out: how the two orders differ as a whole
(``rank_agreement``), and which encoders cannot be told from the best (``ranks``).
Source: protocol page, section 8; Edwards and Hsu (1983), Multiple comparisons with the best treatment, JASA 78,
965-971; Beran (1988), Balanced simultaneous confidence sets, JASA 83, 679-686.

The question is that of a reader who has chosen: what is lost by having *this* encoder. So the choice stays as it is in
the panel, and the interval is about its distance to the best, whoever that may be. Made again in every replicate, the
choice by AUROC would lose nothing on discrimination by definition.

The regret is the largest of the differences x_j - x_choice; in replicates they are of x_raw, because x would hide what
is better than the choice where both pass the anchor. A percentile interval of that largest would be wrong: the best of
noisy members lies above the best. The upper bound is the largest of the members' upper percentiles, which needs no
correction, because the truly best is one fixed j. The lower bound is the largest of lower bounds that hold for all j
at once: percentiles at one common level, at which 97.5 % of the replicates keep to all of them. Where 15 members are
equal and one is chosen by another axis, it is above 0 in .03 of simulated panels, the percentile of the largest in .5;
where they differ, and the choice is made on the same data, the interval misses the true regret in at most .04.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from crsbench_assets.analyses.population import analysis_frame, member_replicates
from crsbench_assets.config.protocol import AXES, ScoreRules
from crsbench_assets.metrics.replicates import LEVEL
from crsbench_assets.scores.ensemble import Floats, frozen_anchors, members_of, score_ensemble
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.resampling import Resampled

WEIGHTED = "weighted"
"""In the column ``axis``: the mean of the four under the user's weights."""


def selection_regret(
    panel: Panel, resampled: Resampled | str, rules: ScoreRules, axis_weights: Mapping[str, float]
) -> pl.DataFrame:
    """Return the regret of three rules of choice on every axis and under the user's weights.

    Regret is the best profile value (x) of a member less that of the choice, in [0, 1]; 0 is no loss. ``auroc``
    chooses the member with the largest x on discrimination, ``crs`` that with the largest score, of equal ones the
    first by id; ``random`` stands for the mean over all members. The module says what the 95 % interval under
    ``seed_test`` is; its lower bound is above 0 where some member is surely better than the choice.

    Args:
        panel: frozen or provisional; the choice is among its members, by the values they were frozen with.
        resampled: replicates under ``seed_test`` of encoders, the members among them, or why there are none.
        rules: weights of the score, which ``crs`` chooses by.
        axis_weights: what the user asks of an encoder: a weight per axis, at least 0, sum 1; they touch no score.

    Returns:
        Fifteen rows: rule by axis and ``weighted``. Where all members agree on an axis nothing is lost by any choice.
        The bounds are NULL with the reason of ``population.member_replicates``.

    Raises:
        ValueError: weights that are no distribution.
    """
    weights = [axis_weights[axis] for axis in AXES]
    if min(weights) < 0 or abs(sum(weights) - 1) > 1e-9:
        raise ValueError(f"axis weights {dict(axis_weights)}; expected none below 0, and the sum 1")
    anchors = frozen_anchors(panel)
    scores = score_ensemble(members_of(panel).values[None], *anchors, rules)
    points = _with_weighted(scores.x_raw, weights)
    values = member_replicates(resampled, panel)
    replicates = (
        values if isinstance(values, str) else _with_weighted(score_ensemble(values, *anchors, rules).x_raw, weights)
    )
    choices = {
        "auroc": int(points[0, :, AXES.index("discrimination")].argmax()),
        "crs": int(scores.crs[0].argmax()),
        "random": None,
    }
    rows = []
    for rule, choice in choices.items():
        for k, axis in enumerate((*AXES, WEIGHTED)):
            row: dict[str, Any] = {
                "panel_id": panel.panel_id,
                "rule": rule,
                "axis": axis,
                **{f"weight_{name}": weight for name, weight in zip(AXES, weights, strict=True)},
                "chosen_encoder_id": "" if choice is None else panel.members[choice],
                "best_encoder_id": panel.members[int(points[0, :, k].argmax())],
                "regret": min(1.0, float(_losses(points[:, :, k], choice).max())),
            }
            if isinstance(replicates, str):
                row["reason"] = replicates
            else:
                row["regret_ci_low"], row["regret_ci_high"] = _interval(_losses(replicates[:, :, k], choice))
            rows.append(row)
    return analysis_frame("selection_regret", rows)


def _with_weighted(x_raw: Floats, weights: list[float]) -> Floats:
    """Return profiles (b, m, k + 1), with their weighted mean as the last axis."""
    weighted = sum((weight * x_raw[:, :, k] for k, weight in enumerate(weights)), np.zeros(x_raw.shape[:2]))
    return np.concatenate([x_raw, weighted[:, :, None]], axis=2)


def _losses(x_raw: Floats, choice: int | None) -> Floats:
    """Return what every member (b, m) has more than the choice; None is the mean over the members."""
    if choice is None:
        # the mean of differences, because that of equal members is 0 to the bit
        return np.asarray((x_raw[:, :, None] - x_raw[:, None, :]).mean(axis=2))
    return x_raw - x_raw[:, [choice]]


def _interval(losses: Floats) -> tuple[float, float]:
    """Return the interval, cut to [0, 1], of the largest of m quantities from their replicates (b, m)."""
    b = len(losses)
    tail = (1 - LEVEL) / 2
    ordered = np.sort(losses, axis=0)
    # The largest k such that at least 97.5 % of the replicates are nowhere below the k-th smallest of the column.
    n_not_above = [np.searchsorted(column, own, side="right") for column, own in zip(ordered.T, losses.T, strict=True)]
    k = np.sort(np.min(n_not_above, axis=0))[math.floor(tail * b)]
    low, high = ordered[k - 1].max(), np.quantile(losses, 1 - tail, axis=0).max()
    return min(max(0.0, float(low)), 1.0), min(max(0.0, float(high)), 1.0)
