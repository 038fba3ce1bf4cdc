"""The score of some encoders against each other: anchors and P recomputed among them.

What lives here: that score, and the members' axis values with some axes in another variant. What stays out: the
published score against a fixed panel (``scores.crs``), and which encoders and variants are scored (the analysis).
Source: protocol page, sections 7 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from crsbench_assets.config.protocol import AXES, ScoreRules
from crsbench_assets.scores.ensemble import Cohort, Floats, anchors_of, score_ensemble


def renormalised_crs(values: Floats, rules: ScoreRules) -> Floats:
    """Return the score (m,) of encoders that are their own panel; larger is better, in [0, 1].

    Args:
        values: axis values (m, d, k), m >= 1, NaN where an encoder has no cell; a dataset that nobody has moves
            nothing.
        rules: weights of the score.

    Raises:
        ValueError: an encoder without any cell, or a cell with some axes only.
    """
    low, high = anchors_of(values)
    crs: Floats = score_ensemble(values[None], low, high, rules).crs[0]
    return crs


def with_variants(cohort: Cohort, cell_axes: pl.DataFrame, variants: Mapping[str, str]) -> Floats | str:
    """Return the axis values (m, d, k) of a cohort with some axes in another variant, NaN where it has no cell.

    Args:
        cohort: encoders with their cells.
        cell_axes: rows of the table ``cell_axes`` of any cells; only the cohort's count.
        variants: axis -> variant of it in ``cell_axes`` that replaces the cohort's values.

    Returns:
        The values; or, where one is missing, why: the reason that all missing ones share, else ``incomplete``.
    """
    found = {
        (encoder, dataset, axis): (value, reason)
        for encoder, dataset, axis, variant, value, reason in cell_axes.select(
            "encoder_id", "dataset_id", "axis", "variant", "value", "reason"
        ).iter_rows()
        if variants.get(axis) == variant
    }
    values, missing = cohort.values.copy(), set()
    for i, j in zip(*np.nonzero(~np.isnan(values[:, :, 0])), strict=True):
        for axis in variants:
            value, reason = found.get((cohort.encoders[i], cohort.datasets[j], axis), (None, None))
            if value is None:
                missing.add(reason or "incomplete")
            else:
                values[i, j, AXES.index(axis)] = value
    return shared_reason(missing) if missing else values


def shared_reason(reasons: set[str]) -> str:
    """Return the one reason of several missing values, or ``incomplete`` where they have several."""
    return next(iter(reasons)) if len(reasons) == 1 else "incomplete"
