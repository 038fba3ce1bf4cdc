"""Status, sensor tick, publication and scores on 150 and on 1,500 fabricated cells; the analyses of 15 encoders.

What lives here: the measurement behind ``crsbench bench scale``. What stays out: making the homes (``fabricate``,
``crsbench demo``). The bars are those of the project: at 50 encoders x 30 datasets, status under 1 s, a sensor tick
under 2 s, a publication and the scores under 10 s each; of the panel ``synthetic15``, all analyses that a plan asks for
under 60 s, 10,000 replicates of the seeds under 0.3 s, and all their draws enumerated under 20 ms.

Scores: the stages that form the panels, score and rank, as a worker runs them, on the 10 replicates that a fabricated
cell has. What the protocol's 1,000 replicates cost is put together: these stages, the resampling of 1,000 replicates in
memory, and their reading, which is timed on the 43 cells of ``synthetic15`` and scaled to all cells.
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

import polars as pl
from rich.console import Console
from rich.table import Table

from benchmarks.fabricate import fabricate
from crsbench_assets.config.machine import one_thread
from crsbench_assets.planning.plan import plan
from crsbench_assets.planning.stages import PLANNED, stage_named
from crsbench_assets.scores.panel import provisional_panel
from crsbench_assets.scores.profile import axis_values, is_scored
from crsbench_assets.scores.resampling import SEED_REPLICATES, enumerated_scores, resampled_scores
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets.storage.warehouse import publish
from crsbench_assets.worker.pooled_stages import current_conditions, encoders_frame, provisional_variant, read_panels
from crsbench_assets.worker.run import run_stage

SIZES = ((15, 10), (50, 30))
BARS_S = {"status": 1.0, "sensor tick": 2.0, "publication": 10.0, "scores": 10.0}
PANEL_BARS_S = {"analyses": 60.0, "seed replicates": 0.3, "enumeration": 0.02}
SCORING = ("anchor", "score", "rank")
REPEATS = 3

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Measured:
    """Seconds by name, for one number of cells; ``resampling`` is of all replicates, in memory."""

    n_cells: int
    seconds: dict[str, float]
    resampling: float


def run(work: Path | None = None) -> int:
    """Print the measurements; return 0 where every bar is met (cells: at the largest size), else 1.

    Args:
        work: folder for the homes; a temporary one by default, removed afterwards.
    """
    folder = work or Path(tempfile.mkdtemp(prefix="crsbench-scale-"))
    try:
        results = [_measure(folder, *size) for size in SIZES]
        project = _synthetic15(folder / "synthetic15")
        met = [_panel_is_met(project), _scoring_is_met(project, results[-1])]
    finally:
        if work is None:
            shutil.rmtree(folder)
    return _report(results) or int(not all(met))


def _measure(folder: Path, n_encoders: int, n_datasets: int) -> Measured:
    home = folder / f"{n_encoders}x{n_datasets}"
    with console.status(f"fabricating {n_encoders} x {n_datasets} cells"):
        started = time.perf_counter()
        project = fabricate(home, n_encoders, n_datasets, processes=os.cpu_count() or 1)
    console.print(f"fabricated {n_encoders} x {n_datasets} cells in {time.perf_counter() - started:.0f} s")
    seconds = {
        "status": _best(lambda: _status(home)),
        "sensor tick": _tick(project),
        "publication": _best(lambda: publish(project, plan(project).cells)),
        "scores": _best(lambda: [run_stage(project, stage_named(name), ()) for name in SCORING]),
    }
    return Measured(n_encoders * n_datasets, seconds, _resampling(project))


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


def _rows(project: Project, table: str) -> pl.DataFrame:
    """Return the rows of a table of all cells, one partition after the other, as a stage reads them."""
    of_encoders = encoders_frame(project).select("encoder_id", "dataset_ids").iter_rows()
    return pl.concat([project.lake.read(table, (e, d)) for e, datasets in of_encoders for d in datasets])


def _resampling(project: Project) -> float:
    """Seconds to score as many replicates of seeds and test groups as the protocol has, from tables in memory."""
    encoders, axes, protocol = encoders_frame(project), _rows(project, "cell_axes"), project.registry.protocol
    statistics = pl.concat([project.lake.read("dataset_statistics", (d,)) for d in project.registry.datasets])
    variant = provisional_variant(project, axes)
    conditions = current_conditions(project, statistics, variant)
    panel, _ = provisional_panel(axis_values(axes, variant), encoders, conditions)
    assert panel is not None
    numbers = pl.DataFrame({"replicate": range(protocol.metrics.test_replicates)})
    # the values of a replicate do not change what it costs, so each is the seeds' own
    scored = axes.filter(is_scored(variant)).select("encoder_id", "dataset_id", "axis", "variant", "seed_values")
    replicates = scored.join(numbers, how="cross")
    return _best(lambda: resampled_scores("seed_test", axes, replicates, encoders, panel, protocol))


def _synthetic15(home: Path) -> Project:
    """Return the computed home of the panel ``synthetic15``."""
    with console.status("computing the panel synthetic15, a few minutes"):
        command = [sys.executable, "-m", "crsbench_assets.cli", "demo", "--panel", "synthetic15", "--home", str(home)]
        subprocess.run(command, check=True, capture_output=True)
    return open_project(home)


def _scoring_is_met(project: Project, largest: Measured) -> bool:
    """Print what scoring takes with all replicates; ``project`` says how long a cell's are read."""
    n_cells = sum(len(datasets) for datasets in encoders_frame(project).get_column("dataset_ids"))
    reading = _best(lambda: _rows(project, "axis_replicates")) / n_cells * largest.n_cells
    parts = {"stages": largest.seconds["scores"], "resampling": largest.resampling, "reading": reading}
    total, bar = sum(parts.values()), BARS_S["scores"]
    console.print(
        f"{largest.n_cells:,} cells scored with {project.registry.protocol.metrics.test_replicates:,} replicates: "
        f"{total:.2f} s ({', '.join(f'{name} {seconds:.2f} s' for name, seconds in parts.items())}), bar {bar:g} s: "
        f"{'met' if total <= bar else 'MISSED'}"
    )
    return total <= bar


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
    axes = _rows(project, "cell_axes")
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
        f"{results[-1].n_cells:,} cells: {largest}; bars {', '.join(f'{b:g} s' for b in BARS_S.values())}: {verdict}"
    )
    return 1 if missed else 0
