"""The order of the scored candidates, and how firm it is.

What lives here: competition ranks, the interval of a rank, tie groups, the probability of being best, and the rows of
the table. What stays out: the replicates (``scores.resampling``), the same numbers under each resampling and
treatment of the anchors (``analyses.bootstrap_ranks``), and the rank against the panel's members alone, which no other
candidate moves (``scores.crs``).
Source: protocol page, section 7: replicates are of test groups and seeds (``seed_test``). That an interval of ranks
ends at whole ranks is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from crsbench_assets.metrics.replicates import LEVEL
from crsbench_assets.scores.ensemble import Floats, ranks_of_replicates, top_shares
from crsbench_assets.scores.resampling import Resampled
from crsbench_assets.tables.scores import SCORE_TABLES

REPLICATE_COLUMNS = ("rank_lo", "rank_hi", "tie_group", "p_best")
"""Columns of the table ``ranks`` that come from replicates of seeds and test groups."""

SEPARATION = (1 + LEVEL) / 2
"""Smallest probability of being above that separates two encoders: two-sided, as the intervals are."""


def competition_ranks(scores: ArrayLike) -> NDArray[np.int64]:
    """Return 1 + the number of strictly larger scores: 1 is best, equal scores share the better rank ("1224").

    Args:
        scores: n finite scores, larger is better, unrounded. An empty array gives an empty array.

    Returns:
        int64 (n,), in 1 to n.

    Raises:
        ValueError: a NaN, which has no place in an order.

    Example:
        >>> competition_ranks([0.5, 0.9, 0.5, 0.1]).tolist()
        [2, 1, 2, 4]
    """
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        raise ValueError("NaN among the scores: an encoder without a score has no rank")
    return len(values) - np.searchsorted(np.sort(values), values, side="right") + 1


def rank_intervals(scores: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the 95 % percentile interval of every encoder's competition rank; 1 is best.

    The best and the worst rank that are left without the 2.5 % best and the 2.5 % worst ones: ranks that occur, never
    one between two, so the interval holds at least 95 % of the replicates.

    Args:
        scores: (b, m), larger is better, b >= 1, no NaN.

    Returns:
        Best and worst rank (m,), in 1 to m. Equal encoders share the better rank, hence the interval.

    Example:
        >>> low, high = rank_intervals(np.array([[0.9, 0.5, 0.1]] * 9 + [[0.4, 0.5, 0.1]]))
        >>> low.tolist(), high.tolist()
        ([1, 1, 3], [2, 2, 3])
    """
    ordered = np.sort(ranks_of_replicates(scores), axis=0)
    n_left_out = int(len(ordered) * (1 - LEVEL) / 2)
    return ordered[n_left_out], ordered[len(ordered) - 1 - n_left_out]


def tie_groups(order: Sequence[int], scores: Floats) -> NDArray[np.int64]:
    """Return the tie group of every encoder, 1 for the leading one: those of a group are not separable.

    In an order of the encoders, cut between places r and r + 1 where every encoder above has a larger score than
    every one below in at least 97.5 % of the replicates; groups are the runs between cuts.

    Args:
        order: the m encoders, best first; the order of equal ones does not matter, as nothing cuts between them.
        scores: (b, m), larger is better, b >= 1, no NaN.

    Returns:
        int64 (m,), in 1 to m.
    """
    placed = scores[:, order]
    p_above = (placed[:, :, None] > placed[:, None, :]).mean(axis=0)
    is_cut = [bool((p_above[:r, r:] >= SEPARATION).all()) for r in range(1, len(order))]
    groups = np.empty(len(order), dtype=np.int64)
    groups[list(order)] = np.cumsum([1, *is_cut])
    return groups


def ranks(
    crs_scores: pl.DataFrame, encoders: pl.DataFrame, resampled: Mapping[str, Resampled | str] | None = None
) -> pl.DataFrame:
    """Return the place of every encoder among the scored candidates of each panel.

    Args:
        crs_scores: rows of the table ``crs_scores``, of one or several panels.
        encoders: active encoders (encoder_id, role, dataset_ids).
        resampled: panel id -> replicates under ``seed_test``, or the reason why there are none; a panel that is not
            listed has none.

    Returns:
        One row per row of ``crs_scores``, sorted by panel and encoder, with the columns of the table ``ranks``. A
        control has no rank and takes none; an encoder without a score has no rank and keeps the score's reason.
        ``n_ranked`` counts the candidates with a score. What comes from replicates is among the ranked candidates
        that have them; the others keep their rank, and ``no_replicates`` or the panel's reason.

    Raises:
        ValueError: a scored encoder that ``encoders`` does not list, or a NaN.
    """
    (spec,) = (spec for spec in SCORE_TABLES if spec.name == "ranks")
    roles = dict(encoders.select("encoder_id", "role").iter_rows())
    unknown = sorted(set(crs_scores.get_column("encoder_id")) - roles.keys())
    if unknown:
        raise ValueError(f"scores of {', '.join(unknown)}, which are not among the active encoders")
    rows = []
    for panel_id in sorted(set(crs_scores.get_column("panel_id"))):
        of_panel = list(crs_scores.filter(pl.col("panel_id") == panel_id).sort("encoder_id").iter_rows(named=True))
        scored = {
            row["encoder_id"]: row["crs"]
            for row in of_panel
            if row["crs"] is not None and roles[row["encoder_id"]] == "candidate"
        }
        rank_of = dict(zip(scored, competition_ranks(list(scored.values())).tolist(), strict=True))
        replicates = (resampled or {}).get(panel_id, "no_replicates")
        firm = {} if isinstance(replicates, str) else _firmness(rank_of, replicates)
        lacking = replicates if isinstance(replicates, str) else "no_replicates"
        for row in of_panel:
            encoder = row["encoder_id"]
            reason = lacking if encoder in rank_of and encoder not in firm else row["reason"]
            own = {"encoder_id": encoder, "panel_id": panel_id, "rank": rank_of.get(encoder), "n_ranked": len(scored)}
            rows.append({**own, **firm.get(encoder, {}), "reason": reason})
    return spec.computed(rows)


def _firmness(rank_of: Mapping[str, int], resampled: Resampled) -> dict[str, dict[str, Any]]:
    """Return :data:`REPLICATE_COLUMNS` of every ranked candidate with replicates."""
    places = [i for i, encoder in enumerate(resampled.encoders) if encoder in rank_of]
    if not places:
        return {}
    encoders = [resampled.encoders[i] for i in places]
    # means add up in the order of memory, and `bootstrap_ranks` has the same mean
    crs = np.ascontiguousarray(resampled.scores.crs[:, places])
    low, high = rank_intervals(crs)
    order = sorted(range(len(encoders)), key=lambda i: (rank_of[encoders[i]], encoders[i]))
    groups = tie_groups(order, crs)
    p_best = top_shares(crs, 1).mean(axis=0)
    return {
        encoder: dict(
            zip(REPLICATE_COLUMNS, (int(low[i]), int(high[i]), int(groups[i]), float(p_best[i])), strict=True)
        )
        for i, encoder in enumerate(encoders)
    }
