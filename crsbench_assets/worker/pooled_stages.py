"""Stages of the whole grid: describe the cards, form the panels, score.

What lives here: handing cards, axes and panel files to the pure functions of ``scores``. What stays out: those
functions, and freezing a panel (``operations.panels``).
"""

from __future__ import annotations

import json
from collections.abc import Callable

import polars as pl

from crsbench_assets.config.cells import scored_encoders
from crsbench_assets.config.hashes import content_hash
from crsbench_assets.config.registry import without_retired
from crsbench_assets.planning.inputs import placeless
from crsbench_assets.scores.crs import crs_scores, unscored
from crsbench_assets.scores.panel import (
    PROVISIONAL,
    Panel,
    PanelConditions,
    mismatches,
    provisional_panel,
    reference_panels,
)
from crsbench_assets.scores.profile import RobustnessVariant, axis_values, is_scored, provisional_robustness_variant
from crsbench_assets.scores.ranks import ranks
from crsbench_assets.scores.resampling import Resampled, resampled_scores
from crsbench_assets.storage.project import Project
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.worker.context import StageContext, StageOutput

CANONICAL_PX = 448
"""Shortest side of the canonical image (protocol section 3); part of what a panel is frozen under."""


def describe(context: StageContext) -> StageOutput:
    """Return every active card as a row."""
    registry = context.project.registry
    retired = set(registry.settings.retired)
    encoders = [
        {
            "encoder_id": card.id,
            "name": card.name,
            "kind": card.kind,
            "role": card.role,
            "category": card.category,
            "family": card.family,
            "pretraining_objective": card.pretraining_objective,
            "licence": card.licence,
            "is_non_commercial": card.non_commercial,
            "is_gated": card.weights is not None and card.weights.gated,
            "hub_id": card.weights.hub_id if card.weights else None,
            "revision": card.weights.revision if card.weights else None,
            "domains": json.dumps(card.domains),
            "exposure": json.dumps(card.exposure, sort_keys=True),
            "same_encoder_as": json.dumps(card.same_encoder_as),
            "is_inferred": card.inferred,
            "is_synthetic": card.kind == "synthetic",
            "is_retired": card.id in retired,
            "card_hash": content_hash(card.model_dump(mode="json", exclude={"vectors", "place"})),
        }
        for card in registry.encoders.values()
    ]
    datasets = [
        {
            "dataset_id": card.id,
            "name": card.name,
            "dataset_version": card.version,
            "modality": card.modality,
            "task": card.task,
            "n_classes": len(card.classes),
            "classes": json.dumps(card.classes),
            "shift_id": card.shift.id if card.shift else None,
            "licence": card.licence,
            "label_policy": registry.settings.label_policy,
            "is_synthetic": card.is_synthetic,
            "card_hash": content_hash(placeless(card)),
        }
        for card in registry.datasets.values()
    ]
    return StageOutput(
        {
            "encoders": pl.DataFrame(encoders, schema=TABLES["encoders"].polars_schema()),
            "datasets": pl.DataFrame(datasets, schema=TABLES["datasets"].polars_schema()),
        }
    )


def anchor(context: StageContext) -> StageOutput:
    """Return the anchors of every frozen panel, or of the provisional cohort before one is frozen."""
    panels = panels_at_work(context)
    rows = [reference_panels(panel, context.protocol.scores) for panel, _ in panels]
    return StageOutput({"reference_panels": pl.concat([TABLES["reference_panels"].empty(), *rows])})


def score(context: StageContext) -> StageOutput:
    """Return the score of every encoder against every panel."""
    encoders = encoders_frame(context.project)
    axes = context.read_all("cell_axes")
    score_rows, cell_rows = ([TABLES[name].computed()] for name in ("crs_scores", "cell_scores"))
    panels = panels_at_work(context)
    if not panels:
        score_rows.append(unscored(encoders, PROVISIONAL, "no_panel"))
    for panel, differing in panels:
        if differing:
            context.progress(f"panel {panel.panel_id} is refused: {', '.join(differing)} differ(s)")
            score_rows.append(unscored(encoders, panel.panel_id, "panel_mismatch"))
            continue
        values = axis_values(axes, panel.conditions.robustness_variant)
        of_encoders, of_cells = crs_scores(
            values, encoders, panel, context.protocol, code_version=TABLES["crs_scores"].code_version
        )
        score_rows.append(of_encoders)
        cell_rows.append(of_cells)
    return StageOutput({"cell_scores": pl.concat(cell_rows), "crs_scores": pl.concat(score_rows)})


def rank(context: StageContext) -> StageOutput:
    """Return the place of every encoder among the scored candidates, and how firm it is."""
    encoders, scores = encoders_frame(context.project), context.read_all("crs_scores")
    resampled = seed_test(context)
    of_panels = {panel.panel_id: resampled(panel) for panel, differing in panels_at_work(context) if not differing}
    return StageOutput({"ranks": ranks(scores, encoders, of_panels)})


def seed_test(context: StageContext) -> Callable[[Panel], Resampled | str]:
    """Return what makes the scores of a panel under resampled seeds and test groups."""
    tables = resampling_tables(context)
    return lambda panel: resampled_scores("seed_test", *tables(panel), panel, context.protocol)


def resampling_tables(context: StageContext) -> Callable[[Panel], tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]]:
    """Return what reads the tables that a panel's resampled scores rest on: axes, their replicates, encoders.

    Of the replicates, which are by far the most rows, only those are read that the panel scores by.
    """
    axes, encoders = context.read_all("cell_axes"), encoders_frame(context.project)
    columns = ("encoder_id", "dataset_id", "axis", "variant", "replicate", "seed_values")
    return lambda panel: (
        axes,
        context.read_all("axis_replicates", columns, is_scored(_variant(panel))),
        encoders,
    )


def encoders_frame(project: Project) -> pl.DataFrame:
    """Return the active, not retired encoders with their role and the datasets they have a cell on."""
    found = scored_encoders(project.registry)
    return pl.DataFrame(
        {
            "encoder_id": [scored.encoder_id for scored in found],
            "role": [scored.role for scored in found],
            "dataset_ids": [list(scored.dataset_ids) for scored in found],
        },
        schema={"encoder_id": pl.String, "role": pl.String, "dataset_ids": pl.List(pl.String)},
    )


def current_conditions(
    project: Project, statistics: pl.DataFrame, robustness_variant: RobustnessVariant
) -> PanelConditions:
    """Return the conditions that scores computed now rest on.

    Args:
        project: the project.
        statistics: rows of table ``dataset_statistics`` of all datasets.
        robustness_variant: with or without the shift target.
    """
    registry = project.registry
    per_dataset = statistics.unique(["dataset_id"], keep="first").sort("dataset_id").iter_rows(named=True)
    rows = list(per_dataset)
    return PanelConditions(
        protocol_id=registry.protocol.label,
        protocol_hash=registry.protocol.hash,
        arm=project.lake.arm,
        label_policy=registry.settings.label_policy,
        robustness_variant=robustness_variant,
        canonical_px=CANONICAL_PX,
        caps=dict(registry.settings.caps),
        test_set_hash={row["dataset_id"]: row["test_set_hash"] for row in rows},
        feasible_fractions={row["dataset_id"]: tuple(json.loads(row["feasible_fractions"])) for row in rows},
        code_versions={name: TABLES[name].code_version for name in ("run_records", "label_metrics", "cell_axes")},
    )


def provisional_variant(project: Project, axes: pl.DataFrame) -> RobustnessVariant:
    """Return the robustness variant of scores that no panel decides."""
    registry = without_retired(project.registry)
    candidates = [card.id for card in registry.encoders.values() if card.role == "candidate"]
    shifted = [card.id for card in registry.datasets.values() if card.shift is not None]
    if not shifted:
        return "corruption_only"  # the same numbers as "shift", and the truer word
    return provisional_robustness_variant(axes, candidates, shifted)


def read_panels(project: Project) -> list[Panel]:
    """Return the frozen panels, sorted by id.

    Raises:
        ConfigError: a panel file was changed after it was frozen.
    """
    files = sorted(project.layout.panels.glob("*.json"))
    return [Panel.from_json(path.read_text(encoding="utf-8")) for path in files]


def panels_at_work(context: StageContext) -> list[tuple[Panel, list[str]]]:
    """Return the panels to score against, each with the conditions in which it differs from today's."""
    statistics, axes = context.read_all("dataset_statistics"), context.read_all("cell_axes")
    frozen = read_panels(context.project)
    if frozen:
        return [
            (panel, mismatches(panel, current_conditions(context.project, statistics, _variant(panel))))
            for panel in frozen
        ]
    variant = provisional_variant(context.project, axes)
    conditions = current_conditions(context.project, statistics, variant)
    panel, _ = provisional_panel(axis_values(axes, variant), encoders_frame(context.project), conditions)
    return [] if panel is None else [(panel, [])]


def _variant(panel: Panel) -> RobustnessVariant:
    return panel.conditions.robustness_variant
