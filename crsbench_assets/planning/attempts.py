"""Attempts that ended without a word: their process is gone.

What lives here: finding and marking them in the lake. What stays out: Dagster's runs (``orchestration.reaper``).
"""

from __future__ import annotations

from collections.abc import Iterator

from crsbench_assets.planning.stages import STAGES, StageSpec
from crsbench_assets.storage.lake import partition_label
from crsbench_assets.storage.layout import PartitionKey
from crsbench_assets.storage.leases import mark_died
from crsbench_assets.storage.project import Project


def partitions(project: Project) -> Iterator[tuple[StageSpec, PartitionKey]]:
    """Yield every partition that the active cards span, upstream stages first."""
    grid = [(cell.encoder_id, cell.dataset_id) for cell in project.grid if cell.is_applicable]
    datasets = [(dataset_id,) for dataset_id in project.registry.datasets]
    keys: dict[str, list[PartitionKey]] = {"whole": [()], "dataset": [*datasets], "cell": [*grid]}
    for stage in STAGES:
        for key in keys[stage.grain]:
            yield stage, key


def dead_attempts(project: Project) -> list[tuple[StageSpec, PartitionKey]]:
    """Return the partitions whose attempt says running and whose process is gone."""
    found = []
    for stage, key in partitions(project):
        attempt = project.lake.attempt(stage.lease_table, key)
        if attempt is not None and attempt.state == "running" and not attempt.is_running():
            found.append((stage, key))
    return found


def bury(project: Project) -> list[str]:
    """Mark dead attempts as died and return one sentence for each."""
    sentences = []
    for stage, key in dead_attempts(project):
        attempt = mark_died(project.lake.folder(stage.lease_table, key))
        if attempt is not None:
            sentences.append(
                f"{partition_label(stage.last_table, key)}: process {attempt.pid} on {attempt.host} died during "
                f"{stage.name}; it is computed again."
            )
    return sentences
