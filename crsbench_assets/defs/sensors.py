"""The sensor that turns cards into cells, and the nightly schedule.

What lives here: asking the planner and requesting what it says. What stays out: the decision itself (``planning``).
"""

# Dagster reads annotations as objects, so this module does not postpone them.

import dagster as dg

from crsbench_assets.orchestration.failures import one_sentence
from crsbench_assets.orchestration.reaper import reap
from crsbench_assets.orchestration.reconcile import report_unknown_partitions
from crsbench_assets.orchestration.requests import RECONCILE_JOB, missing_keys, renew_requests, run_requests
from crsbench_assets.orchestration.resources import ProjectResource
from crsbench_assets.planning.plan import plan
from crsbench_assets.storage.project import Project, write_snapshot


def registry_sensor(selection: dg.AssetSelection) -> dg.SensorDefinition:
    """Return the sensor that adds the keys of new cards in one tick and asks for their cells in the next."""

    @dg.sensor(
        name="registry_sensor",
        asset_selection=selection,
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Watches the cards of the home: adds partition keys, reaps dead runs, and requests every cell that is "
            "missing or stale; once a night also scores that nobody asked for."
        ),
    )
    def sensor(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SensorResult | dg.SkipReason:
        home = _open(project)
        for death in reap(home, context.instance):
            context.log.warning(death)
        new = missing_keys(context.instance, home)
        if new:
            return dg.SensorResult(dynamic_partitions_requests=new)
        requests = run_requests(home, plan(home), write_snapshot(home), context.instance)
        if not requests:
            return dg.SkipReason("everything is current, runs, was asked for, or waits for what the planner names")
        return dg.SensorResult(run_requests=requests)

    return sensor


@dg.op(description="Reap dead runs, report what the lake holds, and let the sensor ask again for what is missing.")
def reconcile_home(context: dg.OpExecutionContext, project: ProjectResource) -> None:
    """Report every partition that Dagster does not know, and renew the requests of the night."""
    home = _open(project)
    for death in reap(home, context.instance):
        context.log.warning(death)
    context.log.info(f"reported {report_unknown_partitions(home, context.instance)} partition(s)")
    renew_requests(home)


@dg.job(name=RECONCILE_JOB, description="What nightly_reconcile runs; computes nothing by itself.")
def reconcile() -> None:
    """Reconcile the home."""
    reconcile_home()


nightly_reconcile = dg.ScheduleDefinition(
    name="nightly_reconcile",
    job=reconcile,
    cron_schedule="0 3 * * *",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Tells Dagster what the lake holds, and asks once more for cells that failed or were lost.",
)


def _open(resource: ProjectResource) -> Project:
    with one_sentence():
        return resource.open()
