"""Whether the ranking survives the loss of some members of its panel.

What lives here: the rows of ``panel_perturbations``. What stays out: encoders that join (``insertion_trials``), and
how firm a rank is under seeds and test images (``bootstrap_ranks``).
Source: protocol page, section 8: 15 leave-one-out, 200 drop-3 and 200 drop-5 distinct subsets of the paper's panel,
415 in all. How many a smaller panel has is ours.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable

import numpy as np
import polars as pl

from crsbench_assets.analyses.agreement import agreement
from crsbench_assets.analyses.population import analysis_frame
from crsbench_assets.analyses.renormalisation import renormalised_crs
from crsbench_assets.config.protocol import ScoreRules
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.scores.ensemble import members_of
from crsbench_assets.scores.panel import Panel

N_DROPPED = (1, 3, 5)

N_SUBSETS = 200
"""Subsets drawn of each size, where there are more."""

LEAST_SURVIVORS = 3
"""Fewest members that a drawn subset leaves: the order of two says little, and the top 3 nothing."""


def panel_perturbations(panel: Panel, rules: ScoreRules) -> pl.DataFrame:
    """Return how far the ranking of a panel without some members agrees with the full one, restricted to the rest.

    Anchors and P are recomputed among the survivors. Subsets are drawn without repetition, keyed by the panel's id
    and their size.

    Args:
        panel: frozen or provisional, of m members.
        rules: weights of the score.

    Returns:
        m rows that leave one member out, in order of id (none where m is 1), then min(200, C(m, n)) that drop n = 3
        and n = 5, where at least three members are left: 415 for 15 members, 8 + 56 + 56 for 8, 6 + 20 for 6, only
        the leave-one-out for 5 and fewer. All subsets there are stand in order of their ids. ``no_spread`` where all
        survivors, or all members, score alike; ``too_few_units`` where three survivors or fewer have no top 3, or one
        alone no order.
    """
    cohort = members_of(panel)
    full = renormalised_crs(cohort.values, rules)
    m = len(cohort.encoders)
    rows = []
    for n_dropped in N_DROPPED:
        for number, dropped in enumerate(_subsets(m, n_dropped, panel.panel_id)):
            kept = np.delete(np.arange(m), dropped)
            rows.append(
                {
                    "panel_id": panel.panel_id,
                    "n_dropped": n_dropped,
                    "perturbation_id": f"subset-{number:03}",
                    "dropped_encoders": json.dumps([cohort.encoders[i] for i in dropped]),
                    "n_encoders": len(kept),
                    **agreement(full[kept], renormalised_crs(cohort.values[kept], rules))._asdict(),
                }
            )
    return analysis_frame("panel_perturbations", rows)


def _subsets(m: int, n_dropped: int, panel_id: str) -> Iterable[tuple[int, ...]]:
    """Return the sets of members (positions, ascending) that are dropped."""
    if m - n_dropped < (1 if n_dropped == 1 else LEAST_SURVIVORS):
        return []
    if n_dropped == 1 or math.comb(m, n_dropped) <= N_SUBSETS:
        return itertools.combinations(range(m), n_dropped)
    generator = keyed_generator("panel_perturbations", panel_id, n_dropped)
    drawn: dict[tuple[int, ...], None] = {}  # in the order of the draws
    while len(drawn) < N_SUBSETS:
        drawn[tuple(sorted(generator.choice(m, n_dropped, replace=False).tolist()))] = None
    return drawn
