"""Executing one check of the graph by itself, in this process and on the home of the environment."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from crsbench_assets.defs import build_definitions
from crsbench_assets.orchestration.keys import asset_key
from crsbench_assets.orchestration.resources import project_resources


def run_check(
    instance: dg.DagsterInstance, table: str, check: str, tags: Mapping[str, str] | None = None
) -> dg.ExecuteInProcessResult:
    """Execute a check of an unpartitioned table without its asset."""
    selection = dg.AssetSelection.checks(dg.AssetCheckKey(asset_key(table), check))
    job = dg.define_asset_job("check", selection).resolve(asset_graph=build_definitions().resolve_asset_graph())
    return job.execute_in_process(
        instance=instance, resources=project_resources(), raise_on_error=False, tags=dict(tags or {})
    )
