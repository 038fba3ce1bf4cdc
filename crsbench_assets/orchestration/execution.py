"""Executing planned partitions in this process, through the same assets as the UI.

What lives here: one Dagster run per partition, and the housekeeping a command asks for. What stays out: the process
around it (``cli.child``) and the choice of partitions (``planning``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from crsbench_assets.orchestration.keys import asset_key
from crsbench_assets.orchestration.partitions import dagster_key
from crsbench_assets.orchestration.progress import listening
from crsbench_assets.orchestration.reaper import process_tags, reap
from crsbench_assets.orchestration.reconcile import remove_unknown_keys, report_unknown_partitions
from crsbench_assets.orchestration.requests import add_missing_keys
from crsbench_assets.orchestration.resources import ONLY_STALE_TAG, REGISTRY_TAG
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import open_project
from crsbench_assets.tables.schema import Grain

Progress = Callable[[str], None]


class Executor:
    """Runs of one home in one process."""

    def __init__(self, definitions: dg.Definitions, instance: dg.DagsterInstance, layout: HomeLayout) -> None:
        self._job = definitions.resolve_implicit_global_asset_job_def()
        self._instance = instance
        self._layout = layout

    def serve(self, request: dict[str, Any], progress: Progress) -> dict[str, Any]:
        """Do what a request asks for: ``run``, ``reap``, ``reconcile`` or ``remove_unknown_keys``.

        Raises:
            CrsbenchError: the home cannot be opened.
        """
        if request["do"] == "run":
            return self._run(
                request["grain"],
                tuple(request["key"]),
                request["tables"],
                registry_hash=request["registry"],
                only_stale=request["only_stale"],
                progress=progress,
            )
        project = open_project(self._layout.root)
        if request["do"] == "reap":
            return {"sentences": reap(project, self._instance)}
        if request["do"] == "remove_unknown_keys":
            return {"removed": remove_unknown_keys(project, self._instance)}
        return {"n_reported": report_unknown_partitions(project, self._instance, progress)}

    def _run(
        self,
        grain: Grain,
        key: tuple[str, ...],
        tables: Sequence[str],
        *,
        registry_hash: str,
        only_stale: bool,
        progress: Progress,
    ) -> dict[str, Any]:
        add_missing_keys(self._instance, open_project(self._layout.root))
        tags = {REGISTRY_TAG: registry_hash, **process_tags()}
        if only_stale:
            tags[ONLY_STALE_TAG] = "true"
        with listening(progress):
            result = self._job.execute_in_process(
                instance=self._instance,
                asset_selection=[asset_key(table) for table in tables],
                partition_key=dagster_key(grain, key),
                tags=tags,
                raise_on_error=False,
            )
        if result.success:
            return {"run_id": result.run_id}
        return {"run_id": result.run_id, "error": _first_failure(result)}


def _first_failure(result: dg.ExecuteInProcessResult) -> str:
    """Return one sentence about why a run failed: what a stage or a check says before what Dagster says of it."""
    failures = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    for failure in failures:
        if failure.user_failure_data is not None and failure.user_failure_data.description:
            return str(failure.user_failure_data.description)
    for evaluation in result.get_asset_check_evaluations():
        if not evaluation.passed:
            found = evaluation.metadata.get("found") or evaluation.metadata.get("moved")
            what = found.value if found else "the Dagster UI shows what was found"
            return f"check {evaluation.check_name} of {evaluation.asset_key.path[-1]} failed: {what}"
    for failure in failures:
        if failure.error is not None:
            return " ".join((failure.error.cause or failure.error).message.split())
    return "the run failed; its log in the Dagster UI says why"
