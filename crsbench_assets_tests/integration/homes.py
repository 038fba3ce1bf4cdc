"""Tiny homes, and commands on them as a user gives them.

What lives here: a benchmark of two cohorts and two encoders that computes in seconds, the processes of ``crsbench``
started for a test, and what a lake holds. What stays out: what is asked of them (the tests beside this file).
The grid: ``tiny-a`` (two classes) and ``tiny-b`` (three grades, with a shift target), two seeds, two label fractions,
two corruptions, 100 replicates.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import numpy as np
import polars as pl
import psutil

from crsbench_assets.config.registry import load_registry
from crsbench_assets.data.cohort import read_cohorts
from crsbench_assets.encoders.synthetic import SyntheticVectors
from crsbench_assets.operations.homes import init_home
from crsbench_assets.planning.stages import stages_of
from crsbench_assets.storage.lake import Lake, Pointer, read_pointer
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.tables.registry import TABLES

ENCODERS = ("enc-b", "enc-c")
DATASETS = ("tiny-a", "tiny-b")

PROTOCOL = """\
id: tiny
seeds: [0, 1]
label_fractions: [0.5, 1.0]
splits: {test_fraction: 0.3, validation_fraction: 0.125}
corruptions: {kinds: [blur, jpeg], severities: [3]}
probe: {estimator: logistic, c: 1.0, relative_gap: 1.0e-8, sd_floor: 1.0e-6}
metrics: {ece_bins: 15, test_replicates: 100, near_chance_auroc: 0.55}
axes: {shift_weight: 0.5}
scores:
  dominance_weight: 0.5
  balance_weight: 0.3
  worst_weight: 0.2
  axis_weights: {discrimination: 0.25, calibration: 0.25, label_efficiency: 0.25, robustness: 0.25}
  degenerate_range: 1.0e-12
"""

DATASET_CARDS = {
    "tiny-a": """\
id: tiny-a
name: Tiny cohort of two classes
modality: other
task: single_label
classes: [healthy, ill]
source: {layout: synthetic, synthetic: {n_images: 160, prevalence: [0.5, 0.5]}}
is_synthetic: true
""",
    "tiny-b": """\
id: tiny-b
name: Tiny cohort of three grades
modality: other
task: ordinal
classes: [none, mild, severe]
source:
  layout: synthetic
  synthetic: {n_images: 180, mean_group_size: 1.5, prevalence: [0.4, 0.3, 0.3]}
shift:
  id: tiny-b-elsewhere
  name: The same grades at a second site
  source: {layout: synthetic, synthetic: {n_images: 90, prevalence: [0.2, 0.4, 0.4]}}
is_synthetic: true
""",
}

SIGNALS = {"enc-a": 6.0, "enc-b": 2.2, "enc-c": 1.4}
"""Distance of the classes by encoder: ``enc-a``, which sorts first, beats all others."""

T = TypeVar("T")


def encoder_card(encoder_id: str) -> str:
    """Return the card of a synthetic encoder on both cohorts."""
    cell = f"{{signal: {SIGNALS[encoder_id]}, n_nuisance: 4, norm_spread: 0.3, fragility: 0.4}}"
    cells = "".join(f"  {dataset_id}: {cell}\n" for dataset_id in DATASETS)
    return f"id: {encoder_id}\nname: Synthetic {encoder_id}\nkind: synthetic\ncategory: generalist\ncells:\n{cells}"


def make_home(
    root: Path, encoders: tuple[str, ...] = ENCODERS, datasets: tuple[str, ...] = DATASETS, settings: str = ""
) -> HomeLayout:
    """Make a home with a small protocol and cards, and nothing computed.

    Args:
        root: a folder that does not exist.
        encoders, datasets: cards to lay into it.
        settings: ``name: value`` lines that replace those of ``crsbench.yaml``.
    """
    layout = HomeLayout(root)
    init_home(layout)
    (root / "protocol.yaml").write_text(PROTOCOL, encoding="utf-8")
    change_settings(layout, f"protocol: protocol.yaml\n{settings}")
    for encoder_id in encoders:
        add_encoder(layout, encoder_id)
    for dataset_id in datasets:
        (root / "datasets" / f"{dataset_id}.yaml").write_text(DATASET_CARDS[dataset_id], encoding="utf-8")
    return layout


def change_settings(layout: HomeLayout, lines: str) -> None:
    """Replace lines of ``crsbench.yaml`` by ``name: value`` lines of the same names."""
    wanted = dict(line.split(": ", 1) for line in lines.splitlines())
    kept = [line for line in layout.settings.read_text().splitlines() if line.split(":")[0] not in wanted]
    layout.settings.write_text("\n".join([*kept, *(f"{k}: {v}" for k, v in wanted.items())]) + "\n")


def add_encoder(layout: HomeLayout, encoder_id: str) -> None:
    """Drop the card of a synthetic encoder into a home."""
    (layout.root / "encoders" / f"{encoder_id}.yaml").write_text(encoder_card(encoder_id), encoding="utf-8")


def add_broken_encoder(layout: HomeLayout, encoder_id: str, like: str, broken_on: str) -> str:
    """Drop the card of an encoder whose vectors are those of ``like``, but one of ``broken_on`` is NaN.

    Returns:
        The id of the image that has no vector.
    """
    registry = load_registry(layout.root)
    folder = layout.root / "vectors" / encoder_id
    folder.mkdir(parents=True)
    lines, broken_image = [], ""
    for dataset_id, dataset in registry.datasets.items():
        source, frames = SyntheticVectors(registry.encoder(like), dataset), []
        for condition in registry.protocol.conditions(dataset.shift.id if dataset.shift else None):
            cohorts = read_cohorts(dataset, registry.settings.label_policy)
            cohort = cohorts[dataset.shift.id if dataset.shift and condition.startswith("shift_") else "primary"]
            vectors = source.vectors(condition, cohort.image_ids, cohort.labels)
            if dataset_id == broken_on and condition == "clean":
                broken_image = cohort.image_ids[7]
                vectors[7] = np.nan
            frames.append(
                pl.DataFrame(
                    {
                        "image_id": cohort.image_ids,
                        "condition_id": [condition] * len(cohort.image_ids),
                        "vector": vectors.tolist(),
                    }
                )
            )
        pl.concat(frames).write_parquet(folder / f"{dataset_id}.parquet")
        lines.append(f"  {dataset_id}: [../vectors/{encoder_id}/{dataset_id}.parquet]\n")
    card = f"id: {encoder_id}\nname: Broken\nkind: precomputed\ncategory: generalist\nvectors:\n{''.join(lines)}"
    (layout.root / "encoders" / f"{encoder_id}.yaml").write_text(card, encoding="utf-8")
    return broken_image


def copy_home(layout: HomeLayout, root: Path) -> HomeLayout:
    """Copy a home that nothing writes to, with its salt and id, so that equal work gives equal content hashes."""
    shutil.copytree(layout.root, root, symlinks=True)
    return HomeLayout(root)


def _environment(layout: HomeLayout) -> dict[str, str]:
    # one thread each: the tests measure what survives, and share the machine with each other
    return {
        **{name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "CRSBENCH_HOME")},
        "CRSBENCH_HOME": str(layout.root),
        "POLARS_MAX_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def crsbench(layout: HomeLayout, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run a command on a home and return what it said."""
    return subprocess.run(
        [sys.executable, "-m", "crsbench_assets.cli", *arguments],
        env=_environment(layout),
        cwd=layout.root,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def succeed(layout: HomeLayout, *arguments: str) -> str:
    """Run a command that must succeed and return what it said."""
    done = crsbench(layout, *arguments)
    assert done.returncode == 0, f"crsbench {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@dataclass(frozen=True)
class Command:
    """A running command; what it says goes to a file, for a pipe that nobody reads stops who writes."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Number of its process."""
        return self.process.pid

    @property
    def said(self) -> str:
        """What it said so far."""
        return self.log.read_text(encoding="utf-8")

    def wait(self, timeout: float = 180) -> int:
        """Wait for its end and return its exit code."""
        return self.process.wait(timeout)


@contextmanager
def started(layout: HomeLayout, *arguments: str) -> Iterator[Command]:
    """Yield a running command; it and everything it started are gone afterwards, also when a test fails."""
    log = layout.root.with_name(f"{layout.root.name}-{uuid.uuid4().hex[:8]}.log")
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "crsbench_assets.cli", *arguments],
            env=_environment(layout),
            cwd=layout.root,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Command(process, log)
    finally:
        left = children(process.pid)
        kill(process.pid)
        for child in left:
            with suppress(psutil.Error):
                child.kill()
        process.wait()


def children(pid: int) -> list[psutil.Process]:
    """Return the living descendants of a process, zombies left out."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
    return found


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], T | None], what: str, timeout: float = 90.0, every: float = 0.02) -> T:
    """Return the first true value of ``condition``, asked again and again."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(every)
    raise AssertionError(f"waited {timeout:.0f} s in vain: {what}")


def running_attempt(layout: HomeLayout, table: str = "*") -> dict[str, Any] | None:
    """Return an attempt of the lake that says running, of a table where one is named."""
    for path in layout.lake.glob(f"main/{table}/**/_attempt.json"):
        with suppress(FileNotFoundError, ValueError):
            attempt: dict[str, Any] = json.loads(path.read_bytes())
            if attempt["state"] == "running":
                return attempt
    return None


def kill(pid: int) -> None:
    """Kill -9."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def pointers(layout: HomeLayout) -> dict[str, Pointer]:
    """Return every pointer of a lake by its folder below the lake."""
    found = {}
    for path in sorted(layout.lake.glob("main/**/_current.json")):
        pointer = read_pointer(path)
        assert pointer is not None
        found[str(path.parent.relative_to(layout.lake / "main"))] = pointer
    return found


def content_hashes(layout: HomeLayout) -> dict[str, str]:
    """Return the content hash of every partition."""
    return {name: pointer.content_hash for name, pointer in pointers(layout).items()}


@contextmanager
def instance_of(layout: HomeLayout) -> Iterator[dg.DagsterInstance]:
    """Yield the Dagster instance of a home."""
    with dg.DagsterInstance.from_config(str(layout.dagster)) as instance:
        yield instance


def is_daemons(run: dg.DagsterRun) -> bool:
    """Whether a daemon made a run, and ended before it had queued it or, out of the queue, given it a process."""
    made_by = {"dagster/sensor_name", "dagster/retry_number"} & run.tags.keys()
    return run.status in (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING) and bool(made_by)


def assert_nothing_hangs(layout: HomeLayout) -> None:
    """Check that no run is unfinished, no slot claimed and no attempt open.

    A queued run waits for the next daemon, and so does one that a daemon had made and not yet queued when it ended: the
    sensor's tick and the retry look for it and submit it. One that it had just taken from the queue is timed out, by
    the next daemon or the reaper.
    """
    with instance_of(layout) as instance:
        going = [run for run in instance.get_runs() if not run.is_finished]
        unfinished = [run for run in going if run.status != dg.DagsterRunStatus.QUEUED and not is_daemons(run)]
        assert not unfinished, [(run.run_id, run.status, run.tags) for run in unfinished]
        storage = instance.event_log_storage
        for pool in storage.get_concurrency_keys():
            info = storage.get_concurrency_info(pool)
            assert not info.claimed_slots and not info.pending_steps, (pool, info)
    assert running_attempt(layout) is None


@dataclass(frozen=True)
class DagsterUi:
    """The running Dagster UI of a home, asked as the browser asks it."""

    command: Command
    port: int

    def query(self, text: str, **variables: Any) -> Any:
        """Return the one field that a GraphQL document asks for."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            json.dumps({"query": text, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.loads(response.read())
        assert "errors" not in answer, answer
        (value,) = answer["data"].values()
        return value

    def launch(self, tables: Iterable[str], partition: str) -> str:
        """Launch a run of tables of one partition, as the button of the asset graph does; return its id."""
        selector = _REPOSITORY | {"jobName": "__ASSET_JOB", "assetSelection": _asset_paths(tables)}
        answer = self.query(
            "mutation Launch($p: ExecutionParams!) { launchPipelineExecution(executionParams: $p) { __typename "
            "... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }",
            p={
                "selector": selector,
                "mode": "default",
                "runConfigData": "{}",
                "executionMetadata": {"tags": [{"key": "dagster/partition", "value": partition}]},
            },
        )
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def backfill(self, tables: Iterable[str], partitions: list[str]) -> str:
        """Launch a backfill of tables over partitions, as the launch dialog does; return its id."""
        answer = self.query(
            "mutation Fill($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) { __typename "
            "... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }",
            p={"assetSelection": _asset_paths(tables), "partitionNames": partitions},
        )
        assert answer["__typename"] == "LaunchBackfillSuccess", answer
        return str(answer["backfillId"])

    def add_key(self, dimension: str, key: str) -> None:
        """Add a partition key by hand, as the dialog's "Add a partition" does."""
        answer = self.query(
            "mutation Add($r: RepositorySelector!, $d: String!, $k: String!) { addDynamicPartition("
            "repositorySelector: $r, partitionsDefName: $d, partitionKey: $k) { __typename } }",
            r=_REPOSITORY,
            d=dimension,
            k=key,
        )
        assert answer["__typename"] in ("AddDynamicPartitionSuccess", "DuplicateDynamicPartitionError"), answer


_REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "crsbench"}


def _asset_paths(tables: Iterable[str]) -> list[dict[str, list[str]]]:
    return [{"path": ["main", table]} for table in tables]


CELL_TABLES = tuple(table for stage in stages_of("cell") for table in stage.tables)


@contextmanager
def served(layout: HomeLayout) -> Iterator[DagsterUi]:
    """Yield the Dagster UI of a home once it answers; it is gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with started(layout, "ui", "--port", str(port)) as command:
        ui = DagsterUi(command, port)

        def answers() -> bool:
            assert command.process.poll() is None, command.said
            try:
                found = ui.query("{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }")
            except OSError:
                return False
            return bool(found.get("nodes"))

        wait_for(answers, "the UI answers", timeout=180, every=0.5)
        yield ui


def finished_run(layout: HomeLayout, run_id: str, timeout: float = 180) -> dg.DagsterRun:
    """Wait for a run and return it."""
    with instance_of(layout) as instance:

        def look() -> dg.DagsterRun | None:
            run = instance.get_run_by_id(run_id)
            return run if run is not None and run.is_finished else None

        return wait_for(look, f"run {run_id} ends", timeout=timeout, every=0.25)


def failure_sentence(layout: HomeLayout, run_id: str) -> str:
    """Return what the first failed step of a run says to people."""
    with instance_of(layout) as instance:
        (first, *_) = instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        event = first.dagster_event
        assert event is not None and event.step_failure_data.user_failure_data is not None, first
        return str(event.step_failure_data.user_failure_data.description)


def table_rows(layout: HomeLayout, table: str) -> pl.DataFrame:
    """Return the rows of all partitions of a table that have some."""
    lake, spec = Lake(layout), TABLES[table]
    names = [
        name for name, pointer in pointers(layout).items() if name.split("/")[0] == table and pointer.status == "ok"
    ]
    keys = [tuple(part.split("=")[1] for part in name.split("/")[1:]) for name in names]
    return pl.concat([spec.empty(), *(lake.read(table, key) for key in keys)]).sort(
        list(dict.fromkeys((*spec.grain_key, *spec.key)))
    )


def exact_rows(frame: pl.DataFrame) -> list[tuple[object, ...]]:
    """Return rows in which two floats are equal when all their bits are."""
    return [tuple(v.hex() if isinstance(v, float) else v for v in row) for row in frame.rows()]


STANDING = {
    "ranks": {"rank", "rank_lo", "rank_hi", "tie_group", "p_best", "n_ranked"},
    "crs_variants": {"rank"},
    "bootstrap_ranks": {
        "rank_lo",
        "rank_hi",
        "p_best",
        "p_top_3",
        "p_best_enumerated",
        "p_top_3_enumerated",
        "is_enumeration_agreed",
        "n_tier",
        "is_in_tier",
        "enumeration_reason",
    },
}
"""Columns that say where an encoder stands among all candidates: whoever joins may move these, and nothing else."""


def moved_columns(before: HomeLayout, after: HomeLayout, table: str, newcomer: str) -> set[str]:
    """Return the columns of a table in which a row that does not name the newcomer has other bits than before.

    A row that is missing or surplus moves every column.
    """
    old, new = table_rows(before, table), table_rows(after, table)
    for column in {"encoder_id", "other_encoder_id"} & set(new.columns):
        new = new.filter(pl.col(column) != newcomer)
    if old.height != new.height:
        return set(old.columns)
    return {name for name in old.columns if exact_rows(old.select(name)) != exact_rows(new.select(name))}
