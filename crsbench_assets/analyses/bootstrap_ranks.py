"""How firm the place of every candidate is, under resampled seeds, test groups, or both.

What lives here: the rows of ``bootstrap_ranks``: the interval of score and rank, the probability of the first place
and of the top 3, their exact values where the draws of the seeds can be enumerated, and the leading tier. What stays
out: the replicates (``scores.resampling``), and the interval and tie group of the published rank (``scores.ranks``,
from ``seed_test``).
Source: protocol page, section 8. Seeds alone are the paper's bootstrap; they leave the test images fixed, so that
they separate most pairs of equal encoders, and the page decides by ``seed_test``. Recomputed anchors are ours.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench_assets.analyses.agreement import N_TOP
from crsbench_assets.analyses.population import analysis_frame
from crsbench_assets.config.protocol import Protocol
from crsbench_assets.metrics.replicates import LEVEL
from crsbench_assets.scores.ensemble import Floats, top_shares
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.ranks import rank_intervals
from crsbench_assets.scores.resampling import (
    RESAMPLINGS,
    Resampled,
    enumerated_scores,
    recomputed_scores,
    resampled_scores,
    scored_candidates,
)

Anchors = Literal["frozen", "recomputed"]

ANCHORS: tuple[Anchors, ...] = ("frozen", "recomputed")

AGREEMENT_ERRORS = 4
"""Binomial standard errors within which a drawn probability agrees with the enumerated one."""


def bootstrap_ranks(
    cell_axes: pl.DataFrame, axis_replicates: pl.DataFrame, encoders: pl.DataFrame, panel: Panel, protocol: Protocol
) -> pl.DataFrame:
    """Return score, rank and probability of the first places of every candidate under every resampling.

    ``crs`` is today's score, the same in all rows of an encoder; its interval is the percentile interval of the
    replicates. Under ``seed`` the draws are also enumerated: all s^s ordered draws of the s seeds, as multisets. The
    leading tier is the smallest set of k < m encoders who are the first k, in any order, under every one of them.

    Args:
        cell_axes: rows of the table ``cell_axes`` of all cells.
        axis_replicates: rows of the table ``axis_replicates`` of all cells.
        encoders: active encoders (encoder_id, role, dataset_ids); controls are left out, members or not stay.
        panel: frozen or provisional.
        protocol: the one the panel was formed under.

    Returns:
        Six rows per active candidate: resampling x anchors. Ranks and probabilities are among the candidates with
        replicates. Reasons: that of the score (``incomplete``, ``no_anchor``); ``one_seed``; ``no_replicates``. For
        the enumeration alone: ``not_enumerated``, also where test groups are redrawn, or ``no_tier``.
    """
    candidates = scored_candidates(cell_axes, encoders, panel, protocol)
    crs = dict(zip(candidates.encoders, candidates.point.crs[0].tolist(), strict=True))
    rows = []
    for resampling in RESAMPLINGS:
        drawn = resampled_scores(resampling, cell_axes, axis_replicates, encoders, panel, protocol)
        listed = enumerated_scores(cell_axes, encoders, panel, protocol) if resampling == "seed" else "not_enumerated"
        for anchors in ANCHORS:
            numbers = {} if isinstance(drawn, str) else _numbers(drawn, _crs(drawn, anchors, panel, protocol))
            exact = {}
            if not isinstance(listed, str):
                resampled, n_ordered = listed
                exact = _exact_numbers(resampled, _crs(resampled, anchors, panel, protocol), n_ordered, numbers)
            for encoder in sorted(crs.keys() | candidates.reasons.keys()):
                row: dict[str, Any] = {
                    "panel_id": panel.panel_id,
                    "resampling": resampling,
                    "anchors": anchors,
                    "encoder_id": encoder,
                    "crs": crs.get(encoder),
                    "n_replicates": 0,
                    "reason": candidates.reasons.get(encoder),
                    "enumeration_reason": listed if isinstance(listed, str) else None,
                }
                if encoder in crs and encoder not in numbers:
                    row["reason"] = drawn if isinstance(drawn, str) else "no_replicates"
                rows.append(row | numbers.get(encoder, {}) | exact.get(encoder, {}))
    return analysis_frame("bootstrap_ranks", rows)


def _crs(resampled: Resampled, anchors: Anchors, panel: Panel, protocol: Protocol) -> Floats:
    if anchors == "frozen":
        return resampled.scores.crs
    return recomputed_scores(resampled, panel, protocol.scores).crs


def _numbers(drawn: Resampled, crs: Floats) -> dict[str, dict[str, Any]]:
    """Return what the replicates (b, m) say of every encoder."""
    low, high = np.quantile(crs, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    rank_lo, rank_hi = rank_intervals(crs)
    p_best, p_top_3 = top_shares(crs, 1).mean(axis=0), top_shares(crs, N_TOP).mean(axis=0)
    return {
        encoder: {
            "n_replicates": len(crs),
            "crs_ci_low": float(low[i]),
            "crs_ci_high": float(high[i]),
            "rank_lo": int(rank_lo[i]),
            "rank_hi": int(rank_hi[i]),
            "p_best": float(p_best[i]),
            "p_top_3": float(p_top_3[i]),
        }
        for i, encoder in enumerate(drawn.encoders)
    }


def _exact_numbers(
    listed: Resampled, crs: Floats, n_ordered: Floats, drawn: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return what the enumerated draws (q, m) say of every encoder, and whether the replicates agree."""
    n_draws = n_ordered.sum()
    p_best, p_top_3 = (n_ordered @ top_shares(crs, k) / n_draws for k in (1, N_TOP))
    tier = leading_tier(crs)
    return {
        encoder: {
            "n_draws_enumerated": int(n_draws),
            "p_best_enumerated": float(p_best[i]),
            "p_top_3_enumerated": float(p_top_3[i]),
            "is_enumeration_agreed": _agrees(drawn[encoder]["p_best"], p_best[i], drawn[encoder]["n_replicates"])
            and _agrees(drawn[encoder]["p_top_3"], p_top_3[i], drawn[encoder]["n_replicates"]),
            "n_tier": None if tier is None else int(tier.sum()),
            "is_in_tier": None if tier is None else bool(tier[i]),
            "enumeration_reason": "no_tier" if tier is None else None,
        }
        for i, encoder in enumerate(listed.encoders)
    }


def _agrees(drawn: float, exact: float, n_replicates: int) -> bool:
    # shares of ties vary less than a place won or lost, so the binomial error is the largest that can be
    return bool(abs(drawn - exact) <= AGREEMENT_ERRORS * np.sqrt(exact * (1 - exact) / n_replicates))


def leading_tier(scores: Floats) -> NDArray[np.bool_] | None:
    """Return the smallest set of k < m encoders who are the first k, in any order, in every replicate.

    Args:
        scores: (b, m), larger is better, b >= 1, no NaN.

    Returns:
        bool (m,); None where there is no such set. Encoders who tie for place k are no set of k.

    Example:
        >>> leading_tier(np.array([[0.9, 0.8, 0.1], [0.8, 0.9, 0.1]])).tolist()
        [True, True, False]
    """
    for k in range(1, scores.shape[1]):
        shares = top_shares(scores, k)
        if ((shares == shares[0]) & ((shares == 0) | (shares == 1))).all():
            return np.asarray(shares[0] == 1)
    return None
