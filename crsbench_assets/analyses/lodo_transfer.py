"""Whether the score on some datasets foretells the score on another.

What lives here: the rows of ``lodo_transfer``, leave one dataset out. What stays out: the statistics of a row
(``analyses.transfer``), and the same institution's AUROC as what is foretold (``mimic_transfer``).
Source: protocol page, section 8. That the held-out order is the published score of its cells, and that an encoder
without a second dataset takes no part, is ours.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from crsbench_assets.analyses.population import analysis_frame
from crsbench_assets.analyses.renormalisation import renormalised_crs
from crsbench_assets.analyses.transfer import Transfer, transfer, undefined_transfer
from crsbench_assets.config.protocol import ScoreRules
from crsbench_assets.scores.ensemble import Cohort, anchors_of, members_of, score_ensemble
from crsbench_assets.scores.panel import Panel


def lodo_transfer(panel: Panel, rules: ScoreRules) -> pl.DataFrame:
    """Return how well the ranking on the other datasets foretells the ranking on the one held out.

    The encoders are the members with a cell on the dataset held out and on another. The one order is their score on
    the other datasets: anchors over all members of these, P among the encoders. The other is the score of their cells
    on the dataset held out, against all members that have it.

    Args:
        panel: frozen or provisional.
        rules: weights of the score.

    Returns:
        One row per dataset of the panel, sorted. ``no_other_dataset`` where no member of the dataset has another one,
        as in a panel of one dataset; further reasons as :func:`crsbench_assets.analyses.transfer.transfer`.
    """
    cohort = members_of(panel)
    rows = [
        {"panel_id": panel.panel_id, "dataset_id": dataset, **_held_out(cohort, held_out, rules)._asdict()}
        for held_out, dataset in enumerate(cohort.datasets)
    ]
    return analysis_frame("lodo_transfer", rows)


def _held_out(cohort: Cohort, held_out: int, rules: ScoreRules) -> Transfer:
    has_cell = ~np.isnan(cohort.values[:, :, 0])
    has_it = has_cell[:, held_out]
    others = np.delete(cohort.values, held_out, axis=1)
    is_compared = has_it & (has_cell.sum(axis=1) > 1)
    if not is_compared.any():
        return undefined_transfer(0, "no_other_dataset")
    foretold = score_ensemble(others[None, is_compared], *anchors_of(others), rules).crs[0]
    found = renormalised_crs(cohort.values[has_it, held_out : held_out + 1], rules)
    return transfer(foretold.tolist(), found[is_compared[has_it]].tolist())
