"""Runs whose process is gone.

What lives here: failing them and freeing their slots. Dagster's run monitoring cannot do it for local runs: no
launcher in its core supports health checks, so a run killed with its daemon stays STARTED for ever and keeps its
slot. What stays out: attempts in the lake (``planning.attempts``).
"""

from __future__ import annotations

import time

import dagster as dg

from crsbench_assets.planning.attempts import bury
from crsbench_assets.storage.processes import ProcessIdentity, process_start, this_process
from crsbench_assets.storage.project import Project

PROCESS_TAG = "crsbench/process"
"""Run tag of runs that `crsbench materialize` executes: host, pid and start time of the process."""

UNFINISHED = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.CANCELING]

START_TIMEOUT_S = 180.0
"""A run that a daemon took from the queue has this long to get a process; Dagster's own default, for which it needs a
daemon again."""


def process_tags() -> dict[str, str]:
    """Return the tags by which the reaper finds the process of a run that this process executes."""
    process = this_process()
    return {PROCESS_TAG: f"{process.host}/{process.pid}/{process.started}", "dagster/max_retries": "0"}


def reap(project: Project, instance: dg.DagsterInstance) -> list[str]:
    """Fail dead runs, free their slots, mark dead attempts; return one sentence for each death."""
    sentences = bury(project)
    not_started = dg.RunsFilter(statuses=[*UNFINISHED, dg.DagsterRunStatus.NOT_STARTED])
    is_local = isinstance(instance.run_launcher, dg.DefaultRunLauncher)
    for record in instance.get_run_records(not_started):
        run = record.dagster_run
        if not is_local and PROCESS_TAG not in run.tags:
            continue  # another launcher's processes are elsewhere, and theirs to watch
        process = _process_of(instance, run)
        if process is None:
            # runs of the queue without a process are Dagster's own to start
            waited = time.time() - record.update_timestamp.timestamp()
            if run.status != dg.DagsterRunStatus.STARTING or waited < START_TIMEOUT_S:
                continue
        elif not process.is_here() or process.is_alive():
            continue
        pid = process.pid if process else "?"
        message = f"The process of this run ({pid}) is gone; it was reaped by crsbench."
        if run.status == dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, message=message)
        else:
            instance.report_run_failed(run, message=message)
        partition = run.tags.get("dagster/partition", "")
        sentences.append(f"run {run.run_id[:8]} {partition}: its process {pid} died; marked failed.")
    _free_slots(instance)
    return sentences


def _process_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> ProcessIdentity | None:
    """Return the process of a run: from our tag, or from the first number that the run logged of itself.

    Later ones are its steps' (multiprocess executor), which end while the run goes on.
    """
    if PROCESS_TAG in run.tags:
        host, number, since = run.tags[PROCESS_TAG].split("/")
        return ProcessIdentity(host, int(number), float(since))
    records = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT).records
    for record in records:
        event = record.event_log_entry.dagster_event
        metadata = event.engine_event_data.metadata if event else {}
        if "pid" in metadata:
            pid = int(str(metadata["pid"].value))
            logged = record.event_log_entry.timestamp
            started = process_start(pid)
            # a process that began after the event was logged has inherited the number
            alive = started is not None and started <= logged + 1.0
            return ProcessIdentity(this_process().host, pid, started if alive and started else 0.0)
    return None


def _free_slots(instance: dg.DagsterInstance) -> None:
    """Free the slots that finished or vanished runs still hold."""
    storage = instance.event_log_storage
    for pool in storage.get_concurrency_keys():
        info = storage.get_concurrency_info(pool)
        holders = info.active_run_ids | info.pending_run_ids | info.assigned_run_ids
        for run_id in holders:
            run = instance.get_run_by_id(run_id)
            if run is None or run.is_finished:
                storage.free_concurrency_slots_for_run(run_id)
