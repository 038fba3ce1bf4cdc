"""Run one stage of one partition: lease, compute, check, commit.

What lives here: the bookkeeping around a stage, the same for the CLI, Dagster and a cluster. What stays out: the
computation (``cohort_stages``, ``cell_stages``, ``pooled_stages``) and the decision what to run (``planning``).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from crsbench_assets.config.cells import inapplicability
from crsbench_assets.config.errors import CrsbenchError
from crsbench_assets.planning.inputs import Inputs, InputsHasher, split_key
from crsbench_assets.planning.plan import pointers_for, upstream_contents
from crsbench_assets.planning.stages import StageSpec
from crsbench_assets.storage import leases
from crsbench_assets.storage.lake import Pointer, Provenance, partition_label
from crsbench_assets.storage.layout import PartitionKey
from crsbench_assets.storage.project import Project
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.worker import (
    analysis_stages,
    calibration_stages,
    cell_stages,
    cohort_stages,
    estimator_stages,
    pooled_stages,
    replicate_stage,
)
from crsbench_assets.worker.context import Progress, StageContext, StageOutput

COMPUTE: dict[str, Callable[[StageContext], StageOutput]] = {
    "describe": pooled_stages.describe,
    "index": cohort_stages.index,
    "split": cohort_stages.split,
    "extract": cell_stages.extract,
    "probe": cell_stages.probe,
    "calibrate": calibration_stages.calibrate,
    "measure": cell_stages.measure,
    "aggregate": cell_stages.aggregate,
    "derive_axes": cell_stages.derive_axes,
    "replicate": replicate_stage.replicate,
    "estimate": estimator_stages.estimate,
    "anchor": pooled_stages.anchor,
    "score": pooled_stages.score,
    "rank": pooled_stages.rank,
    **analysis_stages.COMPUTE,
}
"""Stage -> what computes it."""


@dataclass(frozen=True)
class StageResult:
    """Pointers of the tables of a stage; ``is_reused`` when they were current and nothing was computed."""

    pointers: dict[str, Pointer]
    is_reused: bool


def run_stage(
    project: Project,
    stage: StageSpec,
    key: PartitionKey,
    *,
    run_id: str | None = None,
    only_stale: bool = False,
    progress: Progress = lambda message: None,
) -> StageResult:
    """Compute and commit one stage of one partition.

    Args:
        project: the opened home.
        stage: the stage.
        key: values of its grain key.
        run_id: Dagster run, for provenance.
        only_stale: keep what is current, as planned runs do; a partition that somebody asked for by name is
            computed again.
        progress: called with one line now and then.

    Raises:
        LeaseHeldError: somebody else computes it right now.
        CrsbenchError: an input is absent or failed, an id has no card, the disk refuses.
    """
    encoder_id, dataset_id = split_key(stage, key)
    not_applicable = None
    if dataset_id is not None:
        dataset = project.registry.dataset(dataset_id)
        if encoder_id is not None:
            not_applicable = inapplicability(project.registry.encoder(encoder_id), dataset)
    pointer_of = pointers_for(project, stage)
    contents = upstream_contents(project, stage, key, pointer_of)
    inputs = InputsHasher(project).inputs(stage, key, contents)
    if only_stale and (current := _current(project, stage, key, inputs)):
        return StageResult(current, is_reused=True)
    folder = project.lake.folder(stage.lease_table, key)
    with leases.lease(folder, stage.name, run_id) as attempt:
        started = time.monotonic()
        if not_applicable is None:
            context = StageContext(project, stage, key, inputs.hash, pointer_of, progress)
            output = COMPUTE[stage.name](context)
            status = "ok" if output.reason is None else "failed"
        else:
            empty = {name: TABLES[name].computed() for name in stage.tables}
            output = StageOutput(empty, not_applicable, "the cell is not applicable")
            status = "not_applicable"
        frames = {name: with_constants(project, output.frames[name], name, key, inputs.hash) for name in stage.tables}
        pointers: dict[str, Pointer] = {}
        for name in stage.tables:
            explains = status == "failed" and name != stage.last_table and not output.frames[name].is_empty()
            pointers[name] = project.lake.commit(
                name,
                key,
                frames[name],
                Provenance(
                    inputs.hash,
                    inputs.parts,
                    time.monotonic() - started,
                    run_id,
                    {table: pointer.content_hash for table, pointer in pointers.items()},
                ),
                status="ok" if explains else status,
                reason=None if explains else output.reason,
                detail=None if explains else output.detail,
                lease=(folder, attempt),
            )
    if output.scratch is not None:
        shutil.rmtree(output.scratch, ignore_errors=True)
    return StageResult(pointers, is_reused=False)


def _current(project: Project, stage: StageSpec, key: PartitionKey, inputs: Inputs) -> dict[str, Pointer] | None:
    """Return the pointers of a stage when all of them were made from these inputs and none failed."""
    pointers: dict[str, Pointer] = {}
    for name in stage.tables:
        pointer = project.lake.pointer(name, key)
        if pointer is None or pointer.inputs_hash != inputs.hash or pointer.status == "failed":
            return None
        pointers[name] = pointer
    return pointers


def with_constants(
    project: Project, frame: pl.DataFrame, name: str, key: PartitionKey, inputs_hash: str
) -> pl.DataFrame:
    """Return computed rows of a partition with the columns that are the same in all of them."""
    table = TABLES[name]
    constants = {
        **dict(zip(table.grain_key, key, strict=True)),
        "protocol_id": project.registry.protocol.label,
        "label_policy": project.registry.settings.label_policy,
        "inputs_hash": inputs_hash,
    }
    missing = [column for column in table.constants if column not in frame.columns]  # a panel says its own rules
    return frame.with_columns(**{column: pl.lit(constants[column]) for column in missing})


def failure_of(result: StageResult, stage: StageSpec, key: PartitionKey) -> CrsbenchError | None:
    """Return the failure that a stage ended with, as an error for people, or None."""
    pointer = result.pointers[stage.last_table]
    if pointer.status != "failed":
        return None
    return CrsbenchError(f"{partition_label(stage.last_table, key)} failed ({pointer.reason}): {pointer.detail}.")
