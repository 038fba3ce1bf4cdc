"""The assets: one factory, one call per stage, and what is made of all tables: the warehouse and the report.

What lives here: read, call one stage, return metadata, say in the log what is next. What stays out: everything else:
what a stage computes is in ``worker``, what it reads in ``planning.stages``, what its tables look like in ``tables``.
"""

# Dagster reads annotations as objects, so this module does not postpone them.

import time
from collections.abc import Collection, Iterator
from typing import Any

import dagster as dg

from crsbench_assets.config.errors import LeaseHeldError
from crsbench_assets.orchestration.failures import one_sentence
from crsbench_assets.orchestration.keys import OWNERS, asset_key, column_schema, result_metadata
from crsbench_assets.orchestration.partitions import PARTITIONS, mapping, partition_of
from crsbench_assets.orchestration.previews import previews
from crsbench_assets.orchestration.progress import told
from crsbench_assets.orchestration.resources import ONLY_STALE_TAG, ProjectResource, WarehouseResource
from crsbench_assets.planning.plan import plan
from crsbench_assets.planning.stages import EXTRACTION, STAGE_OF_TABLE, STAGES, StageSpec
from crsbench_assets.scores.frozen import moved_scores
from crsbench_assets.storage.lake import partition_label
from crsbench_assets.storage.layout import PartitionKey
from crsbench_assets.storage.project import Project
from crsbench_assets.storage.snapshots import published_rows
from crsbench_assets.storage.warehouse import publish
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import TableSpec
from crsbench_assets.worker.run import StageResult, failure_of, run_stage

Condition = dg.AutomationCondition[dg.AssetKey]

LEASE_POLL_S = 1.0

RERUN = {
    "whole": "Recomputed whole whenever an input changed. Drawn in [the report](/assets/main/report).",
    "dataset": "An unreadable dataset fails its run with one sentence. Materialise one dataset to compute it again.",
    "cell": (
        "A failed or inapplicable cell has a status and a reason and no rows. Materialise one encoder x dataset to "
        "compute it again; 'only failed and missing' fills the rest."
    ),
}
"""What the UI says below a table's description, by grain."""

PUBLICATION = "publication"

GROUPS = {
    group: f"{number}_{group}"
    for number, group in enumerate(dict.fromkeys([*(stage.group for stage in STAGES), PUBLICATION]), start=1)
}
"""Stage group -> its name in the UI, which sorts groups by name: numbered, they stand in the order of the stages."""


def stage_assets(stage: StageSpec, arm: str, condition: Condition | None) -> dg.AssetsDefinition:
    """Return the assets of a stage: all tables that it writes together."""
    is_followed = stage.grain == "whole" and not stage.is_on_request
    specs = [_spec(table, stage, arm, condition if is_followed else None) for table in stage.specs]

    @dg.multi_asset(name=stage.name, specs=specs, partitions_def=PARTITIONS[stage.grain], pool=stage.pool)
    def assets(context: dg.AssetExecutionContext, project: ProjectResource) -> Iterator[Any]:
        home, result, key = execute(context, project, stage)
        for name, pointer in result.pointers.items():
            if pointer.status != "failed":  # a failed stage may keep rows that explain it
                metadata = result_metadata(pointer, TABLES[name], is_reused=result.is_reused)
                if stage.grain == "whole":
                    metadata |= previews(TABLES[name], home.lake.read(name, key))
                yield dg.MaterializeResult(
                    asset_key=asset_key(name, arm),
                    data_version=dg.DataVersion(pointer.content_hash),
                    metadata=metadata,
                )
        failure = failure_of(result, stage, key)
        if failure is not None:
            raise dg.Failure(description=str(failure), allow_retries=False)

    return assets


def execute(
    context: dg.AssetExecutionContext, resource: ProjectResource, stage: StageSpec
) -> tuple[Project, StageResult, PartitionKey]:
    """Run a stage for a Dagster step and return the opened home, the result and the partition.

    A user's mistake ends the step with one sentence instead of a traceback.
    A partition that somebody else computes is waited for, and then kept if it is what we would have computed.
    """
    tags = dict(context.run.tags)
    only_stale = ONLY_STALE_TAG in tags
    with one_sentence():
        project = resource.open(tags)
        key = partition_of(context, stage.grain)
        while True:
            try:
                result = run_stage(
                    project,
                    stage,
                    key,
                    run_id=context.run.run_id,
                    only_stale=only_stale,
                    progress=told(context.log.info),
                )
                context.log.info(done_sentence(stage, key, result, _selected_tables(context)))
                return project, result, key
            except LeaseHeldError as held:
                context.log.info(f"waiting: {held}")
                only_stale = True
                time.sleep(LEASE_POLL_S)


def done_sentence(stage: StageSpec, key: PartitionKey, result: StageResult, selected: Collection[str]) -> str:
    """Return what the log of a run says when a stage is done: what it made, how fast, and what is next.

    Args:
        stage: the stage.
        key: its partition.
        result: what it returned.
        selected: tables of the run.
    """
    last = result.pointers[stage.last_table]
    where = partition_label(stage.name, key)
    if result.is_reused:
        made = f"{where} is current: kept"
    elif last.status != "ok":
        made = f"{where}: {last.status} ({last.reason})"
    else:
        made = f"{where}: {last.n_rows:,} rows of {stage.last_table} in {last.seconds:.1f} s"
        if stage.name in EXTRACTION:
            made += f", {last.n_rows / max(last.seconds, 1e-9):,.0f} vectors/s"
    if last.status == "failed":
        return f"{made}; nothing of this partition follows"
    later = STAGES[STAGES.index(stage) + 1 :]
    following = [one.name for one in later if one.grain == stage.grain and set(one.tables) & set(selected)]
    return f"{made}; next: {', '.join(following)}" if following else f"{made}; the last stage of this run"


def warehouse_asset(arm: str, condition: Condition) -> dg.AssetsDefinition:
    """Return the asset that publishes the warehouse."""
    deps = [
        dg.AssetDep(asset_key(table, arm), partition_mapping=mapping("whole", stage.grain))
        for table, stage in STAGE_OF_TABLE.items()
    ]

    @dg.asset(
        key=asset_key("warehouse", arm),
        deps=deps,
        group_name=GROUPS[PUBLICATION],
        owners=OWNERS,
        kinds={"duckdb"},
        pool="publish",
        automation_condition=condition,
        description=(
            "The published DuckDB snapshot: `warehouse.duckdb` in the home links to it. Rebuilt whole; a session "
            "that somebody has open on an earlier snapshot is not touched. [The report](/assets/main/report) is made "
            "of it."
        ),
    )
    def warehouse(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult[None]:
        with one_sentence():
            home = project.open(dict(context.run.tags))
            publication = publish(home, plan(home).cells)
        return dg.MaterializeResult(
            metadata={
                "dagster/row_count": publication.n_rows,
                "path": dg.MetadataValue.path(str(publication.path)),
                "seconds": publication.seconds,
            }
        )

    return warehouse


def report_asset(arm: str) -> dg.AssetsDefinition:
    """Return the asset that writes the report, when somebody asks for it."""

    @dg.asset(
        key=asset_key("report", arm),
        deps=[asset_key("warehouse", arm)],
        group_name=GROUPS[PUBLICATION],
        owners=OWNERS,
        kinds={"html"},
        description=(
            "The report of the published warehouse: one HTML file that asks no host for anything. Written when it is "
            "materialised; `path` says where it is: open it in a browser."
        ),
    )
    def report(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult[None]:
        from crsbench_assets.report.html import write_report

        with one_sentence():
            path = write_report(project.open(dict(context.run.tags)).layout)
        return dg.MaterializeResult(
            metadata={"path": dg.MetadataValue.path(str(path)), "bytes": path.stat().st_size},
        )

    return report


def frozen_scores_unchanged(arm: str) -> dg.AssetChecksDefinition:
    """Return the check that no published score against a frozen panel moved by one bit."""

    @dg.asset_check(
        asset=asset_key("crs_scores", arm),
        name="frozen_scores_unchanged",
        blocking=True,
        description="a score of the same encoder, panel and inputs has the same bits as when it was published",
    )
    def check(context: dg.AssetCheckExecutionContext, project: ProjectResource) -> dg.AssetCheckResult:
        with one_sentence():
            home = project.open(dict(context.run.tags))
            before, now = published_rows(home.layout, "crs_scores"), home.lake.read("crs_scores", ())
        moved = moved_scores(before, now)
        return dg.AssetCheckResult(passed=not moved, metadata={"moved": ", ".join(moved) or "none"})

    return check


def published_rows_match(arm: str) -> dg.AssetChecksDefinition:
    """Return the check that a reader of the published file finds the scores of the lake."""

    @dg.asset_check(
        asset=asset_key("warehouse", arm),
        name="published_rows_match",
        description="crs_scores in warehouse.duckdb has the rows that the lake has, bit by bit",
    )
    def check(
        context: dg.AssetCheckExecutionContext, project: ProjectResource, warehouse_file: WarehouseResource
    ) -> dg.AssetCheckResult:
        import polars as pl

        spec = TABLES["crs_scores"]
        with one_sentence():
            home = project.open(dict(context.run.tags))
            is_scored = home.lake.pointer(spec.name, ()) is not None  # what is published may be older than any score
            lake = home.lake.read_all(spec.name, [()] if is_scored else []).sort(spec.key)
        with warehouse_file.get_connection() as connection:
            columns = ", ".join(f'"{name}"' for name in spec.column_names)
            rows = pl.DataFrame(connection.sql(f"SELECT {columns} FROM {spec.name}").to_arrow_table())
        published = rows.cast(lake.schema).sort(spec.key)
        return dg.AssetCheckResult(
            passed=published.equals(lake.select(spec.column_names)),
            severity=dg.AssetCheckSeverity.WARN,  # scores may be computed anew while the check reads
            metadata={"found": f"{published.height} row(s) published, {lake.height} in the lake"},
        )

    return check


def all_assets(arm: str, condition: Condition) -> list[dg.AssetsDefinition]:
    """Return every asset of an arm."""
    return [
        *(stage_assets(stage, arm, condition) for stage in STAGES),
        warehouse_asset(arm, condition),
        report_asset(arm),
    ]


def _spec(table: TableSpec, stage: StageSpec, arm: str, condition: Condition | None) -> dg.AssetSpec:
    deps = [
        dg.AssetDep(asset_key(name, arm), partition_mapping=mapping(stage.grain, STAGE_OF_TABLE[name].grain))
        for name in stage.reads
    ]
    return dg.AssetSpec(
        asset_key(table.name, arm),
        deps=deps,
        description=f"{table.description}\n\n{RERUN[table.grain]}",
        group_name=GROUPS[stage.group],
        owners=OWNERS,
        kinds=set(stage.kinds) | {"parquet"},
        code_version=f"{table.code_version}.{table.schema_version}",
        automation_condition=condition,
        metadata={"dagster/column_schema": column_schema(table), "dagster/table_name": table.name},
    )


def _selected_tables(context: dg.AssetExecutionContext) -> set[str]:
    return {key.path[-1] for key in context.job_def.asset_layer.selected_asset_keys}
