"""Telling Dagster what the lake holds.

What lives here: runless events for partitions that Dagster does not know or knows otherwise: imported, copied, or
made before its database was lost. Without them a lost ``dagster/`` folder would recompute everything.
Encoders that are retired are left out: nothing is asked for them. What stays out: the state of the lake itself
(``planning``).
https://docs.dagster.io/api/dagster/instance (report_runless_asset_event)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg

from crsbench_assets.orchestration.keys import asset_key, result_metadata
from crsbench_assets.orchestration.partitions import dagster_key
from crsbench_assets.orchestration.requests import add_missing_keys, unknown_keys
from crsbench_assets.planning.attempts import partitions
from crsbench_assets.storage.project import Project
from crsbench_assets.storage.snapshots import published_records
from crsbench_assets.tables.registry import TABLES

DATA_VERSION_TAG = "dagster/data_version"


def report_unknown_partitions(
    project: Project, instance: dg.DagsterInstance, progress: Callable[[str], None] = lambda message: None
) -> int:
    """Report every partition of the lake that Dagster does not know with its data version, and the last publication.

    Returns:
        How many were reported.
    """
    add_missing_keys(instance, project)
    known: dict[str, dict[str, str]] = {}
    n_reported = 0
    for stage, key in partitions(project):
        for table in stage.tables:
            pointer = project.lake.pointer(table, key)
            if pointer is None or pointer.status == "failed":
                continue
            if table not in known:
                known[table] = _known_versions(instance, table)
            partition = dagster_key(stage.grain, key)
            if known[table].get(partition or "") == pointer.content_hash:
                continue
            instance.report_runless_asset_event(
                dg.AssetMaterialization(
                    asset_key(table),
                    partition=partition,
                    metadata=result_metadata(pointer, TABLES[table], is_reused=True),
                    tags={DATA_VERSION_TAG: pointer.content_hash},
                )
            )
            n_reported += 1
            progress(f"{table} {partition or ''}")
    return n_reported + _report_publication(project, instance)


def _report_publication(project: Project, instance: dg.DagsterInstance) -> int:
    """Report the newest published snapshot where Dagster does not know it; return how many were reported, 0 or 1."""
    records = published_records(project.layout)
    if not records:
        return 0
    path = project.layout.published / f"warehouse-{records[-1]['number']}.duckdb"
    event = instance.get_latest_materialization_event(asset_key("warehouse"))
    known = event.asset_materialization.metadata.get("path") if event and event.asset_materialization else None
    if known is not None and Path(str(known.value)).name == path.name:  # a home that moved has published nothing new
        return 0
    instance.report_runless_asset_event(
        dg.AssetMaterialization(asset_key("warehouse"), metadata={"path": dg.MetadataValue.path(str(path))})
    )
    return 1


def remove_unknown_keys(project: Project, instance: dg.DagsterInstance) -> list[str]:
    """Remove the partition keys that no active card describes; return them."""
    removed = []
    for name, keys in unknown_keys(instance, project).items():
        for key in keys:
            instance.delete_dynamic_partition(name, key)
            removed.append(f"{name} {key}")
    return removed


def _known_versions(instance: dg.DagsterInstance, table: str) -> dict[str, str]:
    """Return the data version of the latest materialisation by partition; the empty key where there are none."""
    if TABLES[table].grain == "whole":
        event = instance.get_latest_materialization_event(asset_key(table))
        materialization = event.asset_materialization if event else None
        return {"": (materialization.tags or {}).get(DATA_VERSION_TAG, "")} if materialization else {}
    tags = instance.event_log_storage.get_latest_tags_by_partition(
        asset_key(table), dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION_TAG]
    )
    return {partition: found.get(DATA_VERSION_TAG, "") for partition, found in tags.items()}
