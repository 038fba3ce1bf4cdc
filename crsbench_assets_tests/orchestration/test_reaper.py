"""Which process a run is judged by, and whose runs are left to others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.events import EngineEventData
from dagster._core.launcher.sync_in_memory_run_launcher import SyncInMemoryRunLauncher

from crsbench_assets.orchestration import reaper
from crsbench_assets.orchestration.reaper import reap
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import Project, open_project


@pytest.fixture
def project(tiny_home: HomeLayout) -> Project:
    return open_project(tiny_home.root)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        monkeypatch.setattr(made, "_run_launcher", dg.DefaultRunLauncher())
        yield made


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def started_run(instance: dg.DagsterInstance, *pids: int) -> str:
    """Add a started run that logged these processes, its own first."""
    run = instance.add_run(dg.DagsterRun(job_name="cells", status=dg.DagsterRunStatus.STARTED))
    for number, pid in enumerate(pids):
        message = f"Executing step in subprocess (pid: {pid})" if number else f"Started process for run (pid: {pid})."
        instance.report_engine_event(message, run, EngineEventData({"pid": dg.MetadataValue.text(str(pid))}))
    return run.run_id


def status(instance: dg.DagsterInstance, run_id: str) -> str:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status.value


def test_a_step_that_ended_is_not_the_run(project: Project, instance: dg.DagsterInstance) -> None:
    run_id = started_run(instance, os.getpid(), dead_pid())
    assert reap(project, instance) == []
    assert status(instance, run_id) == "STARTED"


def test_a_run_whose_own_process_is_gone_fails(project: Project, instance: dg.DagsterInstance) -> None:
    run_id = started_run(instance, dead_pid(), os.getpid())
    (sentence,) = reap(project, instance)
    assert "died; marked failed" in sentence
    assert status(instance, run_id) == "FAILURE"


def test_runs_of_another_launcher_are_left_alone(
    project: Project, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "_run_launcher", SyncInMemoryRunLauncher())
    unknown, elsewhere = started_run(instance), started_run(instance, dead_pid())
    assert reap(project, instance) == []
    assert (status(instance, unknown), status(instance, elsewhere)) == ("STARTED", "STARTED")


def test_a_run_that_left_the_queue_and_never_got_a_process_fails_in_the_end(
    project: Project, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.NOT_STARTED)
    taken, made = (instance.add_run(dg.DagsterRun(job_name="cells", status=s)).run_id for s in statuses)
    assert reap(project, instance) == [], "it may be about to start"
    monkeypatch.setattr(reaper, "START_TIMEOUT_S", -1.0)
    (sentence,) = reap(project, instance)
    assert taken[:8] in sentence
    assert (status(instance, taken), status(instance, made)) == ("FAILURE", "NOT_STARTED")
