"""Status, sensor tick and publication on 150 and on 1,500 fabricated cells.

What lives here: the measurement behind ``crsbench bench scale``. What stays out: making the homes (``fabricate``).
The bars are those of the project: at 50 encoders x 30 datasets, status under 1 s, a sensor tick under 2 s, a
publication under 10 s.
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
from crsbench_assets.planning.plan import plan
from crsbench_assets.storage.project import Project
from crsbench_assets.storage.warehouse import publish

SIZES = ((15, 10), (50, 30))
BARS_S = {"status": 1.0, "sensor tick": 2.0, "publication": 10.0}
REPEATS = 3

console = Console(highlight=False)


@dataclass(frozen=True)
class Measured:
    """Seconds by name, for one number of cells."""

    n_cells: int
    seconds: dict[str, float]


def run(work: Path | None = None) -> int:
    """Print the measurements; return 0 where every bar is met at the largest size, else 1.

    Args:
        work: folder for the fabricated homes; a temporary one by default, removed afterwards.
    """
    folder = work or Path(tempfile.mkdtemp(prefix="crsbench-scale-"))
    try:
        results = [_measure(folder, *size) for size in SIZES]
    finally:
        if work is None:
            shutil.rmtree(folder)
    return _report(results)


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
    }
    return Measured(n_encoders * n_datasets, seconds)


def _best(action: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
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
