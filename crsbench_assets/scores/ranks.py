"""The order of the scored candidates.

What lives here: competition ranks and the rows of ranks that need no replicate. What stays out: the interval of a
rank, tie groups and the probability of being best, which need replicates and are filled in beside these rows; the
rank against the panel's members alone, which no other candidate moves (``scores.crs``).
Source: protocol page, section 7.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from crsbench_assets.tables.scores import SCORE_TABLES

REPLICATE_COLUMNS = ("rank_lo", "rank_hi", "tie_group", "p_best")
"""Columns of the table ``ranks`` that come from replicates of seeds and test groups."""


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


def ranks(crs_scores: pl.DataFrame, encoders: pl.DataFrame) -> pl.DataFrame:
    """Return the place of every encoder among the scored candidates of each panel.

    Args:
        crs_scores: rows of the table ``crs_scores``, of one or several panels.
        encoders: active encoders (encoder_id, role, dataset_ids).

    Returns:
        One row per row of ``crs_scores``, sorted by panel and encoder, with the columns of the table ``ranks`` but
        :data:`REPLICATE_COLUMNS`. A control has no rank and takes none; an encoder without a score has no rank and
        keeps the score's reason. ``n_ranked`` counts the candidates with a score.

    Raises:
        ValueError: a scored encoder that ``encoders`` does not list, or a NaN.
    """
    (spec,) = (spec for spec in SCORE_TABLES if spec.name == "ranks")
    schema = {name: dtype for name, dtype in spec.polars_schema().items() if name not in REPLICATE_COLUMNS}
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
        rows += [
            {
                "encoder_id": row["encoder_id"],
                "panel_id": panel_id,
                "rank": rank_of.get(row["encoder_id"]),
                "n_ranked": len(scored),
                "reason": row["reason"],
            }
            for row in of_panel
        ]
    return pl.DataFrame(rows, schema=schema)
