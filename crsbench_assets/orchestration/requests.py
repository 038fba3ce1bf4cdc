"""From the plan to run requests.

What lives here: which partitions of Dagster a plan asks for, and the keys by which a request is made once. What stays
out: the plan (``planning``) and when it is asked (sensor and schedule in ``defs``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import dagster as dg

from crsbench_assets.config.hashes import content_hash
from crsbench_assets.orchestration.keys import asset_key
from crsbench_assets.orchestration.partitions import DATASETS, ENCODERS, dagster_key
from crsbench_assets.orchestration.resources import ONLY_STALE_TAG, REGISTRY_TAG
from crsbench_assets.planning.plan import CURRENT, RUNNING, Plan, Task
from crsbench_assets.planning.stages import stage_named, stages_of
from crsbench_assets.storage.files import read_json, replace_json
from crsbench_assets.storage.layout import MAIN_ARM, PartitionKey
from crsbench_assets.storage.project import Project
from crsbench_assets.tables.schema import Grain

RENEWAL_FILE = "crsbench_renewal.json"

RECONCILE_JOB = "reconcile"
"""Job of the nightly schedule; computes nothing."""

MAX_REQUESTS = 200
"""Requests of one tick; the next tick asks for the rest, because what was asked for already does not count."""

_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


def missing_keys(instance: dg.DagsterInstance, project: Project) -> list[dg.AddDynamicPartitionsRequest]:
    """Return requests that add the active cards Dagster does not know yet."""
    requests = []
    for definition, cards in ((DATASETS, project.registry.datasets), (ENCODERS, project.registry.encoders)):
        new = sorted(set(cards) - set(instance.get_dynamic_partitions(str(definition.name))))
        if new:
            requests.append(definition.build_add_request(new))
    return requests


def add_missing_keys(instance: dg.DagsterInstance, project: Project) -> None:
    """Add the active cards that Dagster does not know yet; another process may add them in the same moment."""
    while requests := missing_keys(instance, project):
        try:
            for request in requests:
                instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        except Exception:
            # Dagster looks for a key, then inserts it: whoever comes second is refused the whole insertion
            if missing_keys(instance, project) == requests:
                raise


def unknown_keys(instance: dg.DagsterInstance, project: Project) -> dict[str, list[str]]:
    """Return the partition keys that no active card describes, by dimension."""
    found = {}
    for definition, cards in ((DATASETS, project.registry.datasets), (ENCODERS, project.registry.encoders)):
        name = str(definition.name)
        found[name] = sorted(set(instance.get_dynamic_partitions(name)) - set(cards))
    return {name: keys for name, keys in found.items() if keys}


def renew_requests(project: Project) -> None:
    """Make the work that is due a new request: what failed or was lost is asked for once more."""
    replace_json(project.layout.dagster / RENEWAL_FILE, {"renewed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})


def run_requests(project: Project, plan: Plan, registry_hash: str, instance: dg.DagsterInstance) -> list[dg.RunRequest]:
    """Return one request per partition that is due, whose upstream is ready and that nobody computes or will.

    Scores belong to the automation condition. Once a night, when nothing else is due or running and they still are,
    they are asked for here, so that an update that the condition never saw does not stay unscored.

    Args:
        project: the home.
        plan: its plan.
        registry_hash: snapshot that the runs work from.
        instance: its runs tell what is queued or was asked for already.
    """
    suffix = (read_json(project.layout.dagster / RENEWAL_FILE) or {}).get("renewed", "")
    tags = {REGISTRY_TAG: registry_hash, ONLY_STALE_TAG: "true"}
    requests = []
    taken = _taken(instance)
    whole = plan.of((), "whole")
    described = [task for task in whole if task.stage.name == "describe"]
    pooled = [task for task in whole if task.stage.name != "describe" and not task.stage.is_on_request]
    if _is_free("whole", (), described, taken):
        due = [task for task in described if task.is_due]
        requests.append(_request("whole", (), due, tags, suffix, [stage_named("describe").tables]))
    for grain in ("dataset", "cell"):
        for key in plan.due(grain):
            if not _is_free(grain, key, plan.of(key, grain), taken):
                continue
            if grain == "cell" and any(task.state != CURRENT for task in plan.of((key[1],), "dataset")):
                continue  # asked for in a later tick, when its dataset is indexed and split
            due = [task for task in plan.of(key, grain) if task.is_due]
            requests.append(_request(grain, key, due, tags, suffix, [s.tables for s in stages_of(grain)]))
    upstream = (task for task in plan.tasks if task not in whole or task in described)
    is_quiet = not any(task.is_due or task.state == RUNNING for task in upstream)
    if suffix and is_quiet and _is_free("whole", (), pooled, taken):
        names = [*(name for task in pooled for name in task.stage.tables), "warehouse"]
        # the key lacks the work: one request a night, whatever changes during the day is the condition's
        requests.append(
            dg.RunRequest(
                run_key=f"scores:{suffix}", asset_selection=[asset_key(name, MAIN_ARM) for name in names], tags=tags
            )
        )
    return _not_asked_for(instance, requests)[:MAX_REQUESTS]


def _taken(instance: dg.DagsterInstance) -> set[str]:
    """Return the Dagster keys of partitions with an unfinished run; the empty key for pooled tables."""
    records = instance.get_run_records(dg.RunsFilter(statuses=_UNFINISHED))
    runs = [record.dagster_run for record in records]
    return {run.tags.get("dagster/partition", "") for run in runs if run.job_name != RECONCILE_JOB}


def _is_free(grain: Grain, key: PartitionKey, tasks: Sequence[Task], taken: set[str]) -> bool:
    """Whether a partition has work to do that nobody does or is about to."""
    if not any(task.is_due for task in tasks) or any(task.state == RUNNING for task in tasks):
        return False
    return str(dagster_key(grain, key) or "") not in taken


def _not_asked_for(instance: dg.DagsterInstance, requests: list[dg.RunRequest]) -> list[dg.RunRequest]:
    """Return the requests whose key no run has; Dagster would drop the others after they have filled a tick."""
    if not requests:
        return []
    keys = [str(request.run_key) for request in requests]
    asked = {run.tags["dagster/run_key"] for run in instance.get_runs(dg.RunsFilter(tags={"dagster/run_key": keys}))}
    return [request for request in requests if request.run_key not in asked]


def _request(
    grain: Grain,
    key: PartitionKey,
    due: Iterable[Task],
    tags: dict[str, str],
    suffix: str,
    tables: Iterable[tuple[str, ...]],
) -> dg.RunRequest:
    # the hash names the work, so a cell that fails on the same inputs is not asked for again for ever
    work = content_hash([[task.stage.name, task.inputs.hash if task.inputs else None] for task in due])[:16]
    return dg.RunRequest(
        run_key=":".join(part for part in (grain, *key, work, suffix) if part),
        asset_selection=[asset_key(name, MAIN_ARM) for names in tables for name in names],
        partition_key=dagster_key(grain, key),
        tags=tags,
    )
