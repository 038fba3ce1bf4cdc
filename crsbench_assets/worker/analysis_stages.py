"""Stages of the analyses: one call per panel that is scored against.

What lives here: handing tables and panels to the pure functions of ``analyses``. What stays out: those functions. A
panel that is refused under today's conditions has no rows here; ``crs_scores`` says ``panel_mismatch``.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from crsbench_assets.analyses.label_efficiency_informativeness import label_efficiency_informativeness
from crsbench_assets.analyses.label_scarcity import label_scarcity
from crsbench_assets.scores.panel import Panel
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.worker.context import StageContext, StageOutput
from crsbench_assets.worker.pooled_stages import panels_at_work


def informativeness_of_label_efficiency(context: StageContext) -> StageOutput:
    """Return how much label efficiency repeats full-label AUROC."""
    axes = context.read_all("cell_axes")
    return _of_panels(context, lambda panel: label_efficiency_informativeness(axes, panel))


def scarcity_of_labels(context: StageContext) -> StageOutput:
    """Return the lead of medically pretrained encoders at every label fraction."""
    aggregates, encoders = context.read_all("seed_aggregates"), context.read_all("encoders")
    fractions = context.protocol.label_fractions
    return _of_panels(context, lambda panel: label_scarcity(aggregates, encoders, panel, fractions))


def _of_panels(context: StageContext, analysis: Callable[[Panel], pl.DataFrame]) -> StageOutput:
    """Return the rows of the stage's one table over all panels."""
    (spec,) = (TABLES[name] for name in context.stage.tables)
    empty = spec.empty().drop("protocol_id")
    rows = [analysis(panel) for panel, differing in panels_at_work(context) if not differing]
    return StageOutput({spec.name: pl.concat([empty, *rows])})
