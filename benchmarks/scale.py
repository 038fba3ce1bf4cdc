"""Status, sensor tick, publication and scores on 150 and on 1,500 fabricated cells; the analyses of 15 encoders.

What lives here: the measurement behind ``crsbench bench scale``. What stays out: making the homes (``fabricate``,
``crsbench demo``). The bars are those of the project: at 50 encoders x 30 datasets, status under 1 s, a sensor tick
under 2 s, a publication and the scores under 10 s each; of the panel ``synthetic15``, all analyses that a plan asks for
under 60 s, 10,000 replicates of the seeds under 0.3 s, and all their draws enumerated under 20 ms.

Scores: the stages that form the panels, score and rank, as a worker runs them, on all replicates that the protocol has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.fabricate import fabricate
from crsbench_assets.config.machine import one_thread
from crsbench_assets.planning.plan import plan
from crsbench_assets.planning.stages import PLANNED, stage_named
from crsbench_assets.scores.resampling import SEED_REPLICATES, enumerated_scores, resampled_scores
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets.storage.warehouse import publish
from crsbench_assets.worker.context import StageContext
from crsbench_assets.worker.pooled_stages import encoders_frame, read_panels
from crsbench_assets.worker.run import run_stage

SIZES = ((15, 10), (50, 30))
BARS_S = {"status": 1.0, "sensor tick": 2.0, "publication": 10.0, "scores": 10.0}
PANEL_BARS_S = {"analyses": 60.0, "seed replicates": 0.3, "enumeration": 0.02}
N_REPLICATES = 1_000
"""Of the test groups, as the protocol draws."""

SCORING = ("anchor", "score", "rank")
REPEATS = 3

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Measured:
    """Seconds by name, for one number of cells; ``scores_cpu`` tells a busy machine from slow scores."""

    n_cells: int
    seconds: dict[str, float]
    scores_cpu: float


def run(work: Path | None = None) -> int:
    """Print the measurements; return 0 where every bar is met (cells: at the largest size), else 1.

    Args:
        work: folder for the homes; a temporary one by default, removed afterwards.
    """
    folder = work or Path(tempfile.mkdtemp(prefix="crsbench-scale-"))
    try:
        results = [_measure(folder, *size) for size in SIZES]
        is_panel_met = _panel_is_met(_synthetic15(folder / "synthetic15"))
    finally:
        if work is None:
            shutil.rmtree(folder)
    return _report(results) or int(not is_panel_met)


def _measure(folder: Path, n_encoders: int, n_datasets: int) -> Measured:
    home = folder / f"{n_encoders}x{n_datasets}"
    with console.status(f"fabricating {n_encoders} x {n_datasets} cells"):
        started = time.perf_counter()
        project = fabricate(home, n_encoders, n_datasets, processes=os.cpu_count() or 1, n_replicates=N_REPLICATES)
    console.print(f"fabricated {n_encoders} x {n_datasets} cells in {time.perf_counter() - started:.0f} s")
    seconds = {
        "status": _best(lambda: _status(home)),
        "sensor tick": _tick(project),
        "publication": _best(lambda: publish(project, plan(project).cells)),
        "scores": _best(lambda: _score(project)),
    }
    return Measured(n_encoders * n_datasets, seconds, _best(lambda: _score(project), time.process_time))


def _score(project: Project) -> None:
    for name in SCORING:
        run_stage(project, stage_named(name), ())


def _best(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    times = []
    for _ in range(REPEATS):
        started = clock()
        action()
        times.append(clock() - started)
    return min(times)


def _status(home: Path) -> None:
    command = [sys.executable, "-m", "crsbench_assets.cli", "status", "--home", str(home), "--format", "json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _tick(project: Project) -> float:
    """Seconds of one evaluation of ``registry_sensor``, keys known, nothing due."""
    import dagster as dg

    from crsbench_assets.defs import build_definitions
    from crsbench_assets.orchestration.instance import environment, open_instance
    from crsbench_assets.orchestration.requests import missing_keys
    from crsbench_assets.orchestration.resources import ProjectResource

    definitions = build_definitions()
    os.environ.update(environment(project.layout))
    sensor = definitions.get_sensor_def("registry_sensor")
    with open_instance(project.layout) as instance:
        for request in missing_keys(instance, project):
            instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))

        def tick() -> None:
            context = dg.build_sensor_context(
                instance=instance, definitions=definitions, resources={"project": ProjectResource()}
            )
            with context:
                data = sensor.evaluate_tick(context)
            if data.run_requests or data.dynamic_partitions_requests:
                raise RuntimeError("the fabricated home is not current, so the tick measured something else")

        return _best(tick)


def _synthetic15(home: Path) -> Project:
    """Return the computed home of the panel ``synthetic15``."""
    with console.status("computing the panel synthetic15, a few minutes"):
        command = [sys.executable, "-m", "crsbench_assets.cli", "demo", "--panel", "synthetic15", "--home", str(home)]
        subprocess.run(command, check=True, capture_output=True)
    return open_project(home)


def _panel_is_met(project: Project) -> bool:
    """Print what the analyses of the panel ``synthetic15`` take, and its draws of the seeds on one core."""
    taken = {}
    for stage in PLANNED:
        if stage.group == "analyses":
            started = time.perf_counter()
            run_stage(project, stage, ())
            taken[stage.name] = time.perf_counter() - started
    slowest = sorted(taken, key=lambda name: -taken[name])[:3]
    console.print(f"slowest analyses: {', '.join(f'{name} {taken[name]:.2f} s' for name in slowest)}")

    (panel,), encoders, protocol = read_panels(project), encoders_frame(project), project.registry.protocol
    axes = StageContext(project, stage_named("score"), (), "").read_all("cell_axes")
    with one_thread():
        seconds = {
            "analyses": sum(taken.values()),
            "seed replicates": _best(
                lambda: resampled_scores("seed", axes, axes, encoders, panel, protocol), time.process_time
            ),
            "enumeration": _best(lambda: enumerated_scores(axes, encoders, panel, protocol), time.process_time),
        }
    what = {
        "analyses": f"{len(taken)} analyses of 15 encoders",
        "seed replicates": f"{SEED_REPLICATES:,} replicates of the seeds, 15 encoders, one core",
        "enumeration": "every draw of 5 seeds, one core",
    }
    for name, bar in PANEL_BARS_S.items():
        verdict = "met" if seconds[name] <= bar else "MISSED"
        console.print(f"{what[name]}: {seconds[name]:.3f} s, bar {bar:g} s: {verdict}")
    return all(seconds[name] <= bar for name, bar in PANEL_BARS_S.items())


def _report(results: list[Measured]) -> int:
    table = Table("", *[f"{result.n_cells:,} cells" for result in results], "bar")
    missed = []
    for name, bar in BARS_S.items():
        table.add_row(name, *[f"{result.seconds[name]:.2f} s" for result in results], f"{bar:g} s")
        if results[-1].seconds[name] > bar:
            missed.append(name)
    console.print(table)
    largest = ", ".join(f"{name} {results[-1].seconds[name]:.2f} s" for name in BARS_S)
    verdict = f"MISSED: {', '.join(missed)}" if missed else "met"
    console.print(
        f"{results[-1].n_cells:,} cells: {largest} ({results[-1].scores_cpu:.2f} s of CPU); "
        f"bars {', '.join(f'{b:g} s' for b in BARS_S.values())}: {verdict}"
    )
    return 1 if missed else 0
