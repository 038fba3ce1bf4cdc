"""The whole graph of the frozen arm, put together once.

What lives here: assembly. What stays out: the parts (``assets``, ``sensors``, ``orchestration.checks``).
"""

from __future__ import annotations

import logging
import warnings

import dagster as dg

from crsbench_assets.config.errors import CrsbenchError
from crsbench_assets.config.settings import read_settings
from crsbench_assets.storage.layout import MAIN_ARM, HomeLayout, resolve_home

DEFAULT_PUBLISH_MINUTES = 5


def build_definitions() -> dg.Definitions:
    """Return assets, checks, jobs, sensors, schedule and resources.

    Loads without a home, so that `dagster definitions validate` works anywhere.
    """
    with warnings.catch_warnings():
        # three beta APIs carry the graph on purpose; pyproject pins Dagster to the minor version that was tested
        for category in (dg.BetaWarning, dg.PreviewWarning):
            warnings.simplefilter("ignore", category)
        return _build()


def _build() -> dg.Definitions:
    from crsbench_assets.defs import assets, sensors
    from crsbench_assets.orchestration.automation import changed_since_handled
    from crsbench_assets.orchestration.checks import stage_checks
    from crsbench_assets.orchestration.executors import executor
    from crsbench_assets.orchestration.keys import asset_key
    from crsbench_assets.orchestration.resources import project_resources
    from crsbench_assets.planning.stages import EXTRACTION, STAGES, stages_of

    minutes, executor_name = _home_settings(resolve_home())
    condition = changed_since_handled(minutes)
    pooled = [asset_key(name) for stage in stages_of("whole") if stage.reads for name in stage.tables]
    cell_tables = {stage.name: [asset_key(name) for name in stage.tables] for stage in stages_of("cell")}
    extraction = [key for name, keys in cell_tables.items() if name in EXTRACTION for key in keys]
    scoring = [key for name, keys in cell_tables.items() if name not in EXTRACTION for key in keys]
    on_request = [
        asset_key(name) for stage in STAGES if stage.is_on_request and stage.grain == "cell" for name in stage.tables
    ]
    return dg.Definitions(
        assets=assets.all_assets(MAIN_ARM, condition),
        asset_checks=[stage_checks(stage, MAIN_ARM) for stage in STAGES]
        + [
            assets.frozen_scores_unchanged(MAIN_ARM),
            assets.published_rows_match(MAIN_ARM),
        ],
        jobs=[
            dg.define_asset_job(
                "extract_cells",
                dg.AssetSelection.assets(*extraction),
                tags={"crsbench/device": "gpu"},
                description="The vectors of cells: the work that may need a GPU.",
            ),
            dg.define_asset_job(
                "score_cells",
                dg.AssetSelection.assets(*scoring),
                description="Probes, metrics, aggregates and axes of cells whose vectors are there: CPU work.",
            ),
            dg.define_asset_job(
                "request_cells",
                dg.AssetSelection.assets(*on_request),
                description="Sensitivities of cells that no plan asks for: they run where somebody starts them.",
            ),
            sensors.reconcile,
        ],
        sensors=[
            sensors.registry_sensor(dg.AssetSelection.all()),
            dg.AutomationConditionSensorDefinition(
                "publication_sensor",
                target=dg.AssetSelection.assets(*pooled, asset_key("warehouse")),
                default_status=dg.DefaultSensorStatus.RUNNING,
                minimum_interval_seconds=30,
                description="Scores and publishes when a cell changed, at most every few minutes.",
            ),
        ],
        schedules=[sensors.nightly_reconcile],
        resources=project_resources(),
        executor=executor(executor_name),
    )


def _home_settings(layout: HomeLayout) -> tuple[int, str]:
    """Return what a home says about how the graph runs; without a readable home, the defaults."""
    if not layout.settings.exists():
        return DEFAULT_PUBLISH_MINUTES, "in_process"
    try:
        settings = read_settings(layout.settings)
    except CrsbenchError as error:
        logging.getLogger("crsbench").error("%s", error)
        return DEFAULT_PUBLISH_MINUTES, "in_process"
    return settings.publish_minutes, settings.executor
