"""Computing what the planner says, in child processes that the command owns.

What lives here: the waves (datasets, cells, pooled), the children and their deaths, progress. What stays out: the
plan (``planning``) and the runs (``orchestration.execution``). A child can be killed, run out of memory or crash
without taking the command down; Ctrl-C ends the children at once, also while they wait for a slot.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any

from crsbench_assets.cli.display import console, say
from crsbench_assets.config.errors import CrsbenchError
from crsbench_assets.planning.attempts import bury
from crsbench_assets.planning.plan import CURRENT, FAILED, Plan, Task, plan
from crsbench_assets.planning.stages import STAGE_OF_TABLE, STAGES, StageSpec, stages_of
from crsbench_assets.planning.status import blocked_sentences
from crsbench_assets.storage.files import storage_errors
from crsbench_assets.storage.layout import HOME_VARIABLE, HomeLayout, PartitionKey
from crsbench_assets.storage.project import Project, open_project, write_snapshot
from crsbench_assets.tables.schema import Grain

MAX_DEATHS = 2
"""A partition whose process died this often is reported as failed instead of being tried again."""


SAY_EVERY_S = 10.0
"""Seconds between two lines of progress where there is no terminal to draw a bar on."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it: 128 and the number of SIGINT."""


@dataclass(frozen=True)
class Selection:
    """What to compute: ids and tables to restrict to (empty means all), and whether current ones are computed too."""

    encoders: frozenset[str] = frozenset()
    datasets: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()
    force: bool = False

    def stages(self, grain: Grain) -> list[StageSpec]:
        """Return the stages of a grain that are wanted: those of the tables, and what they are computed from."""
        if not self.tables:
            return list(stages_of(grain))
        wanted = {STAGE_OF_TABLE[table].name for table in self.tables}
        for stage in reversed(STAGES):
            if stage.name in wanted:
                wanted |= {STAGE_OF_TABLE[table].name for table in stage.reads}
        return [stage for stage in STAGES if stage.grain == grain and stage.name in wanted]

    def has(self, grain: Grain, key: PartitionKey) -> bool:
        """Whether a partition is wanted."""
        encoder_id = key[0] if grain == "cell" else None
        dataset_id = key[-1] if key else None
        return (not self.encoders or encoder_id is None or encoder_id in self.encoders) and (
            not self.datasets or dataset_id is None or dataset_id in self.datasets
        )


@dataclass
class Outcome:
    """What was done: labels of finished partitions, and (label, sentence) of failed ones."""

    finished: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)


def check_selection(project: Project, selection: Selection) -> None:
    """Check that every id and table of a selection exists.

    Raises:
        CrsbenchError: naming the unknown one and what there is.
    """
    for encoder_id in selection.encoders:
        project.registry.encoder(encoder_id)
    for dataset_id in selection.datasets:
        project.registry.dataset(dataset_id)
    for table in sorted(selection.tables - STAGE_OF_TABLE.keys()):
        near = get_close_matches(table, STAGE_OF_TABLE)
        hint = f"did you mean {' or '.join(near)}?" if near else "`crsbench sql 'SHOW TABLES'` lists what is published."
        raise CrsbenchError(f"No stage computes a table {table!r}; {hint}")


def materialize(project: Project, selection: Selection, before_scores: Callable[[], None] = lambda: None) -> Outcome:
    """Compute what is due, wave by wave, then score and publish; print what happens.

    ``before_scores`` is called between cells and scores.

    Raises:
        CrsbenchError: an unknown id, or a home that cannot be written.
        SystemExit: Ctrl-C or SIGTERM, after the children are gone and their attempts are marked.
    """
    check_selection(project, selection)
    outcome = Outcome()
    registry_hash = write_snapshot(project)
    with workers(project.layout, project.registry.settings.workers) as pool:
        datasets = _units(plan(project), selection, "dataset")
        pool.compute(datasets, registry_hash, selection.force, outcome, "datasets")
        cells = _units(plan(project), selection, "cell")
        ready = without_failed_datasets(cells, [label for label, _ in outcome.failed])
        pool.compute(ready, registry_hash, selection.force, outcome, "cells")
        before_scores()
        pooled = [table for stage in selection.stages("whole") for table in stage.tables]
        # what was asked for by name joins what is published; before the first scores there is nothing to join
        if pooled or (outcome.finished and project.layout.warehouse.exists()):
            unit = Unit("whole", (), (*pooled, "warehouse"))
            pool.compute([unit], registry_hash, selection.force, outcome, "scores")
    return outcome


@dataclass(frozen=True)
class Unit:
    """One Dagster run: tables of one partition."""

    grain: Grain
    key: PartitionKey
    tables: tuple[str, ...]

    @property
    def label(self) -> str:
        """The partition, as people read it."""
        return " x ".join(self.key) if self.key else "scores"


def _units(current: Plan, selection: Selection, grain: Grain) -> list[Unit]:
    stages = {stage.name for stage in selection.stages(grain)}
    tasks: dict[PartitionKey, list[Task]] = {}
    for task in current.tasks:
        if task.stage.grain == grain and task.stage.name in stages and selection.has(grain, task.key):
            tasks.setdefault(task.key, []).append(task)
    return [
        Unit(grain, key, tuple(table for task in found for table in task.stage.tables))
        for key, found in tasks.items()
        if _is_wanted(found, selection.force)
    ]


def without_failed_datasets(cells: Sequence[Unit], failed: Sequence[str]) -> list[Unit]:
    """Return the cells whose dataset did not fail just now, and say which ones are left out.

    A dataset whose check failed has tables, so the planner alone would let its cells be computed from them.
    """
    for dataset_id in failed:
        left_out = sum(unit.key[1] == dataset_id for unit in cells)
        if left_out:
            say(f"not computed: {left_out} cell(s) of {dataset_id}, because the dataset failed.")
    return [unit for unit in cells if unit.key[1] not in failed]


def _is_wanted(tasks: Sequence[Task], force: bool) -> bool:
    if any(task.is_outdated for task in tasks):
        return True
    return force and any(task.state in (CURRENT, FAILED) for task in tasks)


def nothing_due(current: Plan, selection: Selection) -> bool:
    """Whether a selection asks for nothing at all."""
    return not any(_units(current, selection, grain) for grain in ("whole", "dataset", "cell"))


def report_blocked(current: Plan) -> None:
    """Print what cannot be computed as things stand, and failed cells that are not tried again by themselves."""
    for sentence in blocked_sentences(current):
        say(f"not computed: {sentence}")
    failed = [task for task in current.tasks if task.state == FAILED]
    for task in failed:
        say(f"failed earlier: {' x '.join(task.key)}, {task.stage.name}: {task.reason}: {task.why}")
    if failed:
        say("Failed cells are computed again when an input changes, or with --force.")


class Worker:
    """One child process."""

    def __init__(self, layout: HomeLayout, n_threads: int) -> None:
        log = layout.dagster / "logs"
        with storage_errors(log):
            log.mkdir(parents=True, exist_ok=True)
            self._log = (log / f"materialize-{os.getpid()}.log").open("ab", buffering=0)
            # a full disk shows here, and not as a child that ends without a word
            self._log.write(f"a child of process {os.getpid()} starts\n".encode())
        threads = {name: str(n_threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        environment = os.environ | threads | {"POLARS_MAX_THREADS": str(n_threads), HOME_VARIABLE: str(layout.root)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "crsbench_assets.cli.child", str(layout.root), self._log.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches us alone; we end the child
        )
        self._is_ready = False

    def ask(self, request: dict[str, Any], on_progress: Any = None) -> dict[str, Any] | None:
        """Send a request and return its answer, or None when the child died."""
        assert self.process.stdin is not None and self.process.stdout is not None
        if not self._is_ready:
            first: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
            if "error" in first:
                raise CrsbenchError(first["error"])
            self._is_ready = "ready" in first
            if not self._is_ready and self.process.wait() != -signal.SIGKILL:
                raise CrsbenchError(f"The process that executes Dagster runs cannot start; {self._log.name} says why.")
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, OSError, ValueError):
            return None
        for line in self.process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if "progress" in answer and on_progress:
                on_progress(answer["progress"])
            if "done" in answer:
                return answer
        return None

    def end(self) -> None:
        """End the child at once and wait for it."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


class WorkerPool:
    """Children that compute units; one thread here for each."""

    def __init__(self, layout: HomeLayout, n_workers: int) -> None:
        self._layout = layout
        self._n_workers = n_workers
        self._n_threads = max(1, (os.cpu_count() or 1) // n_workers)
        self._workers: list[Worker | None] = [None] * n_workers
        self._stopping = False

    def ask_one(self, request: dict[str, Any], on_progress: Any = None) -> dict[str, Any]:
        """Send a request to the first child.

        Raises:
            CrsbenchError: the child died, or says what is wrong.
        """
        answer = self._worker(0).ask(request, on_progress)
        if answer is None:
            raise CrsbenchError(
                f"The process that executes Dagster runs ended; its log is in {self._layout.dagster / 'logs'}."
            )
        if "error" in answer:
            raise CrsbenchError(answer["error"])
        return answer

    def compute(self, units: Sequence[Unit], registry_hash: str, force: bool, outcome: Outcome, title: str) -> None:
        """Compute units, as many at a time as there are children."""
        if not units:
            return
        todo: queue.SimpleQueue[tuple[Unit, int]] = queue.SimpleQueue()
        for unit in units:
            todo.put((unit, 0))
        events: queue.SimpleQueue[tuple[str, Unit, str]] = queue.SimpleQueue()

        def tell(unit: Unit, text: str) -> None:
            events.put(("progress", unit, text))

        def work(number: int) -> None:
            try:
                work_off(number)
            except CrsbenchError as error:
                events.put(("broken", units[0], str(error)))
            events.put(("idle", units[0], ""))

        def work_off(number: int) -> None:
            while not self._stopping:
                try:
                    unit, n_deaths = todo.get_nowait()
                except queue.Empty:
                    break
                events.put(("started", unit, ""))
                request = {
                    "do": "run",
                    "grain": unit.grain,
                    "key": list(unit.key),
                    "tables": list(unit.tables),
                    "registry": registry_hash,
                    "only_stale": not force,
                }
                answer = self._worker(number).ask(request, partial(tell, unit))
                if answer is None and not self._stopping:
                    self._restart(number)
                    events.put(("died", unit, str(n_deaths + 1)))
                    if n_deaths + 1 < MAX_DEATHS:
                        todo.put((unit, n_deaths + 1))
                    else:
                        events.put(("failed", unit, f"its process died {MAX_DEATHS} times"))
                elif answer is not None:
                    events.put(("failed", unit, answer["error"]) if "error" in answer else ("finished", unit, ""))

        threads = [
            threading.Thread(target=work, args=(i,), daemon=True) for i in range(min(self._n_workers, len(units)))
        ]
        for thread in threads:
            thread.start()
        self._follow(units, len(threads), events, outcome, title)

    def _follow(self, units: Sequence[Unit], n_threads: int, events: Any, outcome: Outcome, title: str) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}"),
        )
        n_finished = 0
        at_work: dict[str, str] = {}
        said = time.monotonic()
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task(title, total=len(units), now="")
            while n_threads:
                try:
                    kind, unit, text = events.get(timeout=0.2)
                except queue.Empty:
                    continue
                if kind == "broken":
                    raise CrsbenchError(text)
                if kind == "idle":
                    n_threads -= 1
                    continue
                if kind in ("started", "progress"):
                    at_work[unit.label] = text
                else:
                    at_work.pop(unit.label, None)
                if kind == "finished":
                    outcome.finished.append(unit.label)
                elif kind == "failed":
                    outcome.failed.append((unit.label, text))
                    progress.console.print(f"failed: {unit.label}: {text}", markup=False, soft_wrap=True)
                elif kind == "died":
                    progress.console.print(
                        f"died: the process that computed {unit.label}; it is started again.", markup=False
                    )
                n_finished += kind in ("finished", "failed")
                now = "; ".join(f"{label}: {text}" if text else label for label, text in at_work.items())
                progress.update(bar, completed=n_finished, now=now)
                if not console.is_terminal and kind == "finished":
                    say(f"{title} {n_finished}/{len(units)}: {unit.label}")
                elif not console.is_terminal and kind == "progress" and time.monotonic() - said > SAY_EVERY_S:
                    said = time.monotonic()
                    say(f"{unit.label}: {text}")

    def _worker(self, number: int) -> Worker:
        worker = self._workers[number]
        if worker is None:
            worker = self._workers[number] = Worker(self._layout, self._n_threads)
        return worker

    def _restart(self, number: int) -> None:
        worker = self._workers[number]
        if worker is not None:
            worker.end()
        self._workers[number] = None
        self._worker(number).ask({"do": "reap"})

    def end(self) -> None:
        """End all children."""
        self._stopping = True
        for worker in self._workers:
            if worker is not None:
                worker.end()


@contextmanager
def workers(layout: HomeLayout, n_workers: int) -> Iterator[WorkerPool]:
    """Yield a pool of children that is gone afterwards, however the block ends.

    SIGTERM is treated as Ctrl-C: the children end, attempts that were cut off are marked so that nobody waits for
    them, one sentence says so, and the command exits with 130.
    """
    pool = WorkerPool(layout, n_workers)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield pool
    except KeyboardInterrupt:
        pool.end()
        bury(open_project(layout.root))
        # Typer would turn the interrupt into this exit code without a word
        sys.stderr.write("crsbench: stopped; everything that was finished is kept.\n")
        raise SystemExit(INTERRUPTED) from None
    finally:
        pool.end()
        signal.signal(signal.SIGTERM, before)
