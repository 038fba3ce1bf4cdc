"""Stages of the analyses: one call per panel that is scored against.

What lives here: handing tables and panels to the pure functions of ``analyses``. What stays out: those functions. A
panel that is refused under today's conditions has no rows here; ``crs_scores`` says ``panel_mismatch``.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from crsbench_assets.analyses.axis_correlations import axis_correlations
from crsbench_assets.analyses.axis_reliability import axis_reliability
from crsbench_assets.analyses.bootstrap_ranks import bootstrap_ranks
from crsbench_assets.analyses.calibration_repair import calibration_repair
from crsbench_assets.analyses.corruption_miscalibration import corruption_miscalibration
from crsbench_assets.analyses.crs_variants import crs_variants
from crsbench_assets.analyses.dominance import dominance
from crsbench_assets.analyses.estimator_dependence import estimator_dependence
from crsbench_assets.analyses.insertion_trials import insertion_trials
from crsbench_assets.analyses.institutional_shift import institutional_shift
from crsbench_assets.analyses.institutional_shift_test import institutional_shift_test
from crsbench_assets.analyses.label_efficiency_informativeness import label_efficiency_informativeness
from crsbench_assets.analyses.label_scarcity import label_scarcity
from crsbench_assets.analyses.lodo_transfer import lodo_transfer
from crsbench_assets.analyses.metric_sensitivity import metric_sensitivity
from crsbench_assets.analyses.mimic_transfer import mimic_transfer
from crsbench_assets.analyses.panel_perturbations import panel_perturbations
from crsbench_assets.analyses.rank_agreement import rank_agreement
from crsbench_assets.analyses.rank_displacement import rank_displacement
from crsbench_assets.analyses.selection_regret import selection_regret
from crsbench_assets.analyses.specialization import specialization
from crsbench_assets.analyses.weight_perturbations import weight_perturbations
from crsbench_assets.config.protocol import AXES
from crsbench_assets.scores.panel import Panel
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.worker.context import StageContext, StageOutput
from crsbench_assets.worker.pooled_stages import encoders_frame, panels_at_work, resampling_tables, seed_test

Analysis = Callable[[StageContext], Callable[[Panel], pl.DataFrame]]
"""Reads the tables of a stage, and returns what makes the rows of one panel."""


def _crs_variants(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    axes, scored = context.read_all("cell_axes"), encoders_frame(context.project)
    encoders, datasets = context.read_all("encoders"), context.read_all("datasets")
    return lambda panel: crs_variants(axes, scored, encoders, datasets, panel, context.protocol.scores)


def _axis_reliability(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    resampled = seed_test(context)
    return lambda panel: axis_reliability(panel, resampled(panel))


def _bootstrap_ranks(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    tables = resampling_tables(context)
    return lambda panel: bootstrap_ranks(*tables(panel), panel, context.protocol)


def _dominance(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    tables = resampling_tables(context)
    return lambda panel: dominance(*tables(panel), panel, context.protocol)


def _panel_perturbations(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    return lambda panel: panel_perturbations(panel, context.protocol.scores)


def _insertion_trials(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    return lambda panel: insertion_trials(panel, context.protocol)


def _rank_agreement(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    resampled = seed_test(context)
    return lambda panel: rank_agreement(panel, resampled(panel), context.protocol.scores)


def _rank_displacement(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    return lambda panel: rank_displacement(panel, context.protocol.scores)


def _label_efficiency_informativeness(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    axes = context.read_all("cell_axes")
    return lambda panel: label_efficiency_informativeness(axes, panel)


def _axis_correlations(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    return axis_correlations


def _weight_perturbations(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    return lambda panel: weight_perturbations(panel, context.protocol.scores)


def _lodo_transfer(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    return lambda panel: lodo_transfer(panel, context.protocol.scores)


def _mimic_transfer(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    shifts, axes = context.read_all("institutional_shift"), context.read_all("cell_axes")
    datasets = context.read_all("datasets")
    return lambda panel: mimic_transfer(shifts, axes, datasets, panel, context.protocol.scores)


def _metric_sensitivity(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    axes, aggregates = context.read_all("cell_axes"), context.read_all("seed_aggregates")
    datasets = context.read_all("datasets")
    return lambda panel: metric_sensitivity(axes, aggregates, datasets, panel, context.protocol.scores)


def _estimator_dependence(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    axes = context.read_all("estimator_axes")
    widths = context.read_all("probe_fits").select("encoder_id", "n_dims").unique()
    return lambda panel: estimator_dependence(axes, widths, panel, context.protocol.scores)


def _institutional_shift_test(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    shifts, encoders = context.read_all("institutional_shift"), context.read_all("encoders")
    return lambda panel: institutional_shift_test(shifts, encoders, panel)


def _label_scarcity(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    aggregates, encoders = context.read_all("seed_aggregates"), context.read_all("encoders")
    return lambda panel: label_scarcity(aggregates, encoders, panel, context.protocol.label_fractions)


def _corruption_miscalibration(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    aggregates, axes = context.read_all("seed_aggregates"), context.read_all("cell_axes")
    scored, conditions = encoders_frame(context.project), context.protocol.corruption_conditions
    return lambda panel: corruption_miscalibration(aggregates, axes, scored, panel, conditions)


def _specialization(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    encoders, datasets = context.read_all("encoders"), context.read_all("datasets")
    return lambda panel: specialization(panel, encoders, datasets, context.protocol.scores)


def _selection_regret(context: StageContext) -> Callable[[Panel], pl.DataFrame]:
    resampled, rules = seed_test(context), context.protocol.scores
    stated = context.project.registry.settings.selection_weights or rules.axis_weights
    weights = {axis: stated.get(axis, 0.0) for axis in AXES}
    return lambda panel: selection_regret(panel, resampled(panel), rules, weights)


def shift_of_institution(context: StageContext) -> StageOutput:
    """Return macro AUROC at home and at the other institution, of every encoder; no panel takes part."""
    labels, records = context.read_all("label_metrics"), context.read_all("run_records")
    encoders, datasets = context.read_all("encoders"), context.read_all("datasets")
    # a card that came since the others were described is for the run that describes it
    scored = encoders_frame(context.project).join(encoders, on="encoder_id", how="semi")
    rows = institutional_shift(labels, records, encoders, datasets, scored, context.protocol.seeds)
    return StageOutput({"institutional_shift": rows})


def repair_of_calibration(context: StageContext) -> StageOutput:
    """Return calibration before and after post-hoc repair, of every cell; no panel takes part."""
    rows = calibration_repair(context.read_all("calibrated_records"), context.read_all("run_records"))
    return StageOutput({"calibration_repair": rows})


def _of_panels(analysis: Analysis) -> Callable[[StageContext], StageOutput]:
    """Return the stage that makes the rows of one table over all panels."""

    def stage(context: StageContext) -> StageOutput:
        (spec,) = (TABLES[name] for name in context.stage.tables)
        of_panel = analysis(context)
        rows = [of_panel(panel) for panel, differing in panels_at_work(context) if not differing]
        return StageOutput({spec.name: pl.concat([spec.computed(), *rows])})

    return stage


COMPUTE: dict[str, Callable[[StageContext], StageOutput]] = {
    "institutional_shift": shift_of_institution,
    "calibration_repair": repair_of_calibration,
    **{
        name: _of_panels(analysis)
        for name, analysis in {
            "crs_variants": _crs_variants,
            "axis_reliability": _axis_reliability,
            "bootstrap_ranks": _bootstrap_ranks,
            "dominance": _dominance,
            "panel_perturbations": _panel_perturbations,
            "insertion_trials": _insertion_trials,
            "rank_agreement": _rank_agreement,
            "rank_displacement": _rank_displacement,
            "label_efficiency_informativeness": _label_efficiency_informativeness,
            "axis_correlations": _axis_correlations,
            "weight_perturbations": _weight_perturbations,
            "lodo_transfer": _lodo_transfer,
            "mimic_transfer": _mimic_transfer,
            "metric_sensitivity": _metric_sensitivity,
            "estimator_dependence": _estimator_dependence,
            "institutional_shift_test": _institutional_shift_test,
            "label_scarcity": _label_scarcity,
            "corruption_miscalibration": _corruption_miscalibration,
            "specialization": _specialization,
            "selection_regret": _selection_regret,
        }.items()
    },
}
"""Analysis -> its stage."""
