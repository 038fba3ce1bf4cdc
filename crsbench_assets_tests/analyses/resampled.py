"""How any axis values of replicates become what an analysis is handed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crsbench_assets.scores.ensemble import Floats, frozen_anchors, members_of, score_ensemble
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.resampling import Resampled
from crsbench_assets_tests.analyses.plain_score import RULES, random_cells


def resampled_of(panel: Panel, values: Floats, encoders: Sequence[str] | None = None) -> Resampled:
    """Return replicates with axis values (b, m, d, k) of encoders, by default the panel's members."""
    ids = tuple(encoders or panel.members)
    is_member = np.array([encoder in panel.members for encoder in ids])
    anchors = frozen_anchors(panel)
    scores = score_ensemble(values, *anchors, RULES, is_member)
    point = score_ensemble(values[:1], *anchors, RULES, is_member)
    return Resampled(ids, panel.datasets, is_member, values, scores, point)


def unmoved(panel: Panel, b: int) -> Floats:
    """Return b replicates that all have the values of the panel."""
    return np.repeat(members_of(panel).values[None], b, axis=0)


def noisy(panel: Panel, b: int, sd: float, seed: int = 0) -> Floats:
    """Return b replicates with independent normal errors of every value."""
    draw = np.random.default_rng(seed)
    values = unmoved(panel, b)
    return values + sd * draw.standard_normal(values.shape)


def random_unit_cells(seed: int, n_encoders: int | None = None) -> dict[str, dict[str, list[float]]]:
    """Return random encoders whose axis values lie in [0, 1], as an AUROC does."""
    return {
        encoder: {dataset: [value / 2 for value in values] for dataset, values in own.items()}
        for encoder, own in random_cells(seed, n_encoders).items()
    }
