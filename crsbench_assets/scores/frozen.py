"""Whether published scores stood still.

What lives here: the comparison behind the check ``frozen_scores_unchanged``. What stays out: the scores (``crs``).
Source: protocol page, section 7: inserting an encoder changes no earlier score by a single bit.
"""

from __future__ import annotations

import polars as pl

from crsbench_assets.config.ids import PROVISIONAL


def moved_scores(before: pl.DataFrame | None, now: pl.DataFrame) -> list[str]:
    """Return ``encoder against panel`` of every frozen score whose bits differ although its inputs are the same."""
    if before is None:
        return []
    keys = ["panel_id", "encoder_id", "inputs_hash"]
    frozen = before.filter(pl.col("panel_id") != PROVISIONAL)
    same_inputs = frozen.select(keys).join(now, on=keys, how="inner").select(frozen.columns)
    moved = same_inputs.join(frozen, on=frozen.columns, how="anti", nulls_equal=True)
    return [f"{row['encoder_id']} against {row['panel_id']}" for row in moved.sort(keys).iter_rows(named=True)]
