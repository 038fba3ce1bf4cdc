"""Which partitions the sensor asks for: once, never what somebody computes, and every one in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict

import dagster as dg
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from crsbench_assets.orchestration import requests
from crsbench_assets.orchestration.partitions import dagster_key
from crsbench_assets.orchestration.requests import RECONCILE_JOB, renew_requests, run_requests
from crsbench_assets.planning.plan import plan
from crsbench_assets.planning.stages import stage_named, stages_of
from crsbench_assets.storage.files import replace_json
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.leases import ATTEMPT_FILE, Attempt
from crsbench_assets.storage.processes import this_process
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets_tests.fixtures import DATASET, compute

CELLS = [("cell", "alpha", DATASET), ("cell", "beta", DATASET)]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def project(tiny_home: HomeLayout) -> Project:
    """A home whose dataset is ready and whose cells are missing."""
    made = open_project(tiny_home.root)
    compute(made, ["describe", "index", "split"])
    return made


def asked(project: Project, instance: dg.DagsterInstance) -> list[tuple[str, ...]]:
    """Return (grain, partition) of every request."""
    found = run_requests(project, plan(project), "hash", instance)
    return [tuple(str(request.run_key).split(":")[: 3 if request.partition_key else 1]) for request in found]


def add_run(
    instance: dg.DagsterInstance, status: dg.DagsterRunStatus, job: str = "cells", **tags: str
) -> dg.DagsterRun:
    repository = RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin("localhost", 1), "crsbench")
    return instance.add_run(
        dg.DagsterRun(
            job_name=job,
            status=status,
            tags={f"dagster/{name}": value for name, value in tags.items()},
            remote_job_origin=RemoteJobOrigin(repository, job),  # Dagster wants one of a queued run
        )
    )


def test_every_missing_cell_is_asked_for(project: Project, instance: dg.DagsterInstance) -> None:
    assert asked(project, instance) == CELLS


@pytest.mark.parametrize("status", ["QUEUED", "NOT_STARTED", "STARTING", "STARTED"])
def test_a_cell_with_an_unfinished_run_is_not_asked_for(
    project: Project, instance: dg.DagsterInstance, status: str
) -> None:
    add_run(instance, dg.DagsterRunStatus[status], partition=str(dagster_key("cell", ("alpha", DATASET))))
    assert asked(project, instance) == CELLS[1:]


def test_a_cell_whose_run_ended_is_asked_for(project: Project, instance: dg.DagsterInstance) -> None:
    add_run(instance, dg.DagsterRunStatus.FAILURE, partition=str(dagster_key("cell", ("alpha", DATASET))))
    assert asked(project, instance) == CELLS


def test_a_cell_that_a_command_computes_is_not_asked_for(project: Project, instance: dg.DagsterInstance) -> None:
    compute(project, ["extract"])  # so that its next stages are what is due, under another run key
    stage = stage_named("probe")
    process = this_process()
    attempt = Attempt("t", "running", stage.name, None, process.host, process.pid, process.started, time.time())
    replace_json(project.lake.folder(stage.lease_table, ("beta", DATASET)) / ATTEMPT_FILE, asdict(attempt))
    assert asked(project, instance) == CELLS[:1]


def test_requests_that_were_made_leave_their_place_to_others(
    project: Project, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_REQUESTS", 1)
    (first,) = run_requests(project, plan(project), "hash", instance)
    add_run(instance, dg.DagsterRunStatus.FAILURE, run_key=str(first.run_key))
    assert asked(project, instance) == CELLS[1:]


def test_the_night_asks_once_for_scores_that_nobody_asked_for(project: Project, instance: dg.DagsterInstance) -> None:
    compute(project, [stage.name for stage in stages_of("cell")])
    assert asked(project, instance) == [], "the day is the condition's"
    renew_requests(project)
    (request,) = run_requests(project, plan(project), "hash", instance)
    tables = {key.path[-1] for key in request.asset_selection or ()}
    assert request.partition_key is None
    pooled = {name for stage in stages_of("whole") if stage.reads for name in stage.tables}
    assert tables == {*pooled, "warehouse"}

    reconcile = add_run(instance, dg.DagsterRunStatus.STARTED, job=RECONCILE_JOB)
    assert asked(project, instance) == [("scores",)], "the schedule's own run computes nothing"
    instance.delete_run(reconcile.run_id)
    running = add_run(instance, dg.DagsterRunStatus.STARTED, job="pooled")
    assert asked(project, instance) == [], "the condition's run is at it"
    instance.delete_run(running.run_id)
    add_run(instance, dg.DagsterRunStatus.FAILURE, run_key=str(request.run_key))
    assert asked(project, instance) == [], "once a night"


def test_the_night_waits_for_cells_before_scores(project: Project, instance: dg.DagsterInstance) -> None:
    renew_requests(project)
    assert asked(project, instance) == CELLS
