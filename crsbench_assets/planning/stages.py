"""Stages: which tables are computed together, from what.

What lives here: the declared inputs of every stage, from which the planner derives staleness and Dagster its
dependencies. What stays out: the computation (``worker`` binds it) and the shapes (``tables``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import Grain, TableSpec

External = Literal["cohort_files", "vector_files", "panels", "cards", "grid"]


@dataclass(frozen=True)
class StageSpec:
    """One stage.

    Args:
        name: a verb.
        group: the Dagster group, a stage of the house.
        tables: written together, in this order; the first one holds the lease, the last one's pointer is put last,
            so a stage is complete when its last table is.
        reads: upstream tables.
        protocol_fields, encoder_fields, dataset_fields, settings_fields: dotted names of the fields it depends on.
        external: the user's files it reads, and ``grid``: who is scored on what.
        pool: Dagster pool that bounds how many run at once.
        is_on_request: computed only where somebody names one of its tables; no plan asks for it.
        kinds: what the Dagster UI shows it is made with.
    """

    name: str
    group: str
    tables: tuple[str, ...]
    reads: tuple[str, ...] = ()
    protocol_fields: tuple[str, ...] = ()
    encoder_fields: tuple[str, ...] = ()
    dataset_fields: tuple[str, ...] = ()
    settings_fields: tuple[str, ...] = ()
    external: tuple[External, ...] = ()
    pool: str | None = None
    is_on_request: bool = False
    kinds: tuple[str, ...] = ("polars",)

    @cached_property
    def grain(self) -> Grain:
        """Grain of all its tables."""
        grains = {TABLES[name].grain for name in self.tables}
        if len(grains) != 1:
            raise ValueError(f"stage {self.name} mixes the grains {sorted(grains)}")
        return grains.pop()

    @cached_property
    def specs(self) -> tuple[TableSpec, ...]:
        """Shapes of its tables."""
        return tuple(TABLES[name] for name in self.tables)

    @property
    def lease_table(self) -> str:
        """Table whose folder holds the lease."""
        return self.tables[0]

    @property
    def last_table(self) -> str:
        """Table whose pointer is put last."""
        return self.tables[-1]


def _analysis(
    table: str,
    reads: tuple[str, ...] = (),
    protocol_fields: tuple[str, ...] = (),
    settings_fields: tuple[str, ...] = (),
    *,
    is_on_request: bool = False,
) -> StageSpec:
    """Return the stage of one analysis: named for its table, and about the panels that are scored against."""
    return StageSpec(
        table,
        group="analyses",
        tables=(table,),
        reads=("dataset_statistics", "cell_axes", *reads),
        protocol_fields=protocol_fields,
        settings_fields=("label_policy", "caps", *settings_fields),
        external=("panels", "grid"),
        is_on_request=is_on_request,
    )


_RESAMPLED = ("scores", "seeds")
"""What scores under resampling depend on beside the tables."""

STAGES: tuple[StageSpec, ...] = (
    StageSpec(
        "describe",
        group="catalogue",
        tables=("encoders", "datasets"),
        settings_fields=("label_policy", "retired"),
        external=("cards",),
    ),
    StageSpec(
        "index",
        group="data",
        tables=("quarantine", "images"),
        dataset_fields=("task", "classes", "source", "shift"),
        settings_fields=("label_policy", "group_salt"),
        external=("cohort_files",),
    ),
    StageSpec(
        "split",
        group="data",
        tables=("leakage_violations", "dataset_statistics", "splits"),
        reads=("quarantine", "images"),
        protocol_fields=("seeds", "splits", "label_fractions"),
        dataset_fields=("source",),  # draws are keyed by raw group ids, which only the source knows
        settings_fields=("caps",),
        external=("cohort_files",),
    ),
    StageSpec(
        "extract",
        group="embeddings",
        tables=("embedding_failures", "shift_embeddings", "embeddings"),
        reads=("images", "splits"),
        protocol_fields=("corruptions",),
        dataset_fields=("modality",),
        encoder_fields=("kind", "weights", "preprocessing", "embedding", "cells"),
        external=("vector_files",),
        pool="gpu",
    ),
    StageSpec(
        "probe",
        group="probes",
        tables=("probe_fits", "probe_weights", "predictions"),
        reads=("images", "dataset_statistics", "splits", "embeddings", "shift_embeddings"),
        protocol_fields=("seeds", "label_fractions", "probe", "corruptions"),
        dataset_fields=("task", "classes"),
        settings_fields=("predictions",),
        pool="cpu_heavy",
        kinds=("pytorch",),
    ),
    StageSpec(
        "calibrate",
        group="probes",
        tables=("calibrated_records",),
        reads=("images", "probe_fits", "predictions"),
        protocol_fields=("seeds", "metrics"),
        dataset_fields=("task", "classes"),
        kinds=("scipy",),
    ),
    StageSpec(
        "measure",
        group="metrics",
        tables=("reliability_bins", "label_metrics", "run_records"),
        reads=("images", "embeddings", "probe_fits", "probe_weights", "predictions"),
        protocol_fields=("seeds", "label_fractions", "metrics", "corruptions"),
        dataset_fields=("task", "classes"),
        kinds=("numpy",),
    ),
    StageSpec(
        "aggregate",
        group="aggregates",
        tables=("seed_aggregates",),
        reads=("run_records",),
        protocol_fields=("seeds",),
    ),
    StageSpec(
        "derive_axes",
        group="aggregates",
        tables=("cell_axes",),
        reads=("label_metrics", "run_records"),
        protocol_fields=("seeds", "label_fractions", "corruptions", "axes", "metrics.near_chance_auroc"),
    ),
    StageSpec(
        "replicate",
        group="aggregates",
        tables=("axis_replicates",),
        reads=("images", "embeddings", "probe_fits", "probe_weights", "predictions", "cell_axes"),
        protocol_fields=("seeds", "label_fractions", "metrics", "corruptions", "axes"),
        dataset_fields=("task", "classes"),
        kinds=("numpy",),
    ),
    StageSpec(
        "estimate",
        group="probes",
        tables=("estimator_fits", "estimator_records", "estimator_axes"),
        reads=("images", "dataset_statistics", "splits", "embeddings", "shift_embeddings"),
        protocol_fields=("seeds", "label_fractions", "probe", "metrics", "corruptions", "axes"),
        dataset_fields=("task", "classes"),
        pool="cpu_heavy",
        is_on_request=True,
        kinds=("pytorch", "scikitlearn"),
    ),
    StageSpec(
        "anchor",
        group="scores",
        tables=("reference_panels",),
        reads=("dataset_statistics", "cell_axes"),
        external=("panels", "grid"),
    ),
    StageSpec(
        "score",
        group="scores",
        tables=("cell_scores", "crs_scores"),
        reads=("dataset_statistics", "cell_axes", "reference_panels"),
        protocol_fields=("scores", "label_fractions", "seeds"),
        settings_fields=("label_policy", "caps"),
        external=("panels", "grid"),
    ),
    StageSpec(
        "rank",
        group="scores",
        tables=("ranks",),
        reads=("dataset_statistics", "cell_axes", "axis_replicates", "crs_scores"),
        protocol_fields=_RESAMPLED,
        settings_fields=("label_policy", "caps"),
        external=("panels", "grid"),
    ),
    _analysis("crs_variants", ("encoders", "datasets"), ("scores",)),
    _analysis("axis_reliability", ("axis_replicates",), _RESAMPLED),
    _analysis("bootstrap_ranks", ("axis_replicates",), _RESAMPLED),
    _analysis("dominance", ("axis_replicates",), _RESAMPLED),
    _analysis("panel_perturbations", (), ("scores",)),
    _analysis("insertion_trials", (), ("scores",)),
    _analysis("rank_agreement", ("axis_replicates",), _RESAMPLED),
    _analysis("rank_displacement", (), ("scores",)),
    _analysis("label_efficiency_informativeness"),
    _analysis("axis_correlations"),
    _analysis("weight_perturbations", (), ("scores",)),
    _analysis("lodo_transfer", (), ("scores",)),
    StageSpec(
        "institutional_shift",
        group="analyses",
        tables=("institutional_shift",),
        reads=("label_metrics", "run_records", "encoders", "datasets"),
        protocol_fields=("seeds",),
        external=("grid",),
    ),
    _analysis("mimic_transfer", ("institutional_shift", "datasets"), ("scores",)),
    _analysis("metric_sensitivity", ("seed_aggregates", "datasets"), ("scores",)),
    _analysis("estimator_dependence", ("estimator_axes", "probe_fits"), ("scores",), is_on_request=True),
    _analysis("institutional_shift_test", ("institutional_shift", "encoders")),
    _analysis("label_scarcity", ("seed_aggregates", "encoders"), ("label_fractions",)),
    StageSpec(
        "calibration_repair",
        group="analyses",
        tables=("calibration_repair",),
        reads=("calibrated_records", "run_records"),
    ),
    _analysis("corruption_miscalibration", ("seed_aggregates",), ("corruptions",)),
    _analysis("specialization", ("encoders", "datasets"), ("scores",)),
    _analysis("selection_regret", ("axis_replicates",), _RESAMPLED, ("selection_weights",)),
)

PLANNED: tuple[StageSpec, ...] = tuple(stage for stage in STAGES if not stage.is_on_request)
"""Stages that a plan asks for by itself."""

STAGE_OF_TABLE: dict[str, StageSpec] = {table: stage for stage in STAGES for table in stage.tables}
"""Stage that computes a table; a table that is absent here is declared and not computed yet."""

EXTRACTION = ("extract",)
"""Stages of the job ``extract_cells``: the ones that may need a GPU."""


def stages_of(grain: Grain) -> tuple[StageSpec, ...]:
    """Return the stages of one grain that a plan asks for, upstream first."""
    return tuple(stage for stage in PLANNED if stage.grain == grain)


def stage_named(name: str) -> StageSpec:
    """Return a stage by name."""
    return next(stage for stage in STAGES if stage.name == name)
