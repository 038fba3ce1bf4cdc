"""A lost ``dagster/`` folder: ``reconcile`` tells Dagster what the lake holds, and nothing is computed again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from crsbench_assets.defs import build_definitions
from crsbench_assets.orchestration.keys import asset_key
from crsbench_assets.orchestration.partitions import CELLS, dagster_key
from crsbench_assets.planning.attempts import partitions
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import open_project
from crsbench_assets_tests.integration.homes import copy_home, instance_of, pointers, succeed


@pytest.mark.slow  # materialises a whole home: 20 s
def test_everything_is_materialised_again_without_computing(filled: HomeLayout, tmp_path: Path) -> None:
    layout = copy_home(filled, tmp_path / "home")
    shutil.rmtree(layout.dagster)
    before = pointers(layout)

    said = succeed(layout, "reconcile")
    assert f"Reported {len(before) + 1} partition(s)" in said, "with the published warehouse"
    assert pointers(layout) == before, "content, times and runs of every partition are as they were"

    project = open_project(layout.root)
    graph = build_definitions().resolve_asset_graph()
    with instance_of(layout) as instance:
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        n_seen = 0
        for stage, key in partitions(project):
            for table in () if stage.is_on_request else stage.tables:
                partition = dagster_key(stage.grain, key)
                if partition is None:
                    assert instance.get_latest_materialization_event(asset_key(table)) is not None, table
                else:
                    assert partition in instance.get_materialized_partitions(asset_key(table)), (table, key)
                status = resolver.get_status(asset_key(table), partition)
                assert status == StaleStatus.FRESH, (table, key, resolver.get_stale_causes(asset_key(table), partition))
                n_seen += 1
        assert n_seen == len(before)
        publication = instance.get_latest_materialization_event(asset_key("warehouse"))
        assert publication is not None and publication.asset_materialization is not None
        path = str(publication.asset_materialization.metadata["path"].value)
        assert path == str(layout.warehouse.resolve())
        for name in ("encoder", "dataset"):
            assert set(instance.get_dynamic_partitions(name)) == set(getattr(project.registry, f"{name}s"))
        assert len(CELLS.get_partition_keys(dynamic_partitions_store=instance)) == 4

    assert "Reported 0 partition(s)" in succeed(layout, "reconcile")
    succeed(layout, "materialize")
    assert pointers(layout) == before, "a moved home is published again, and nothing else"
