"""The lake against one shared DuckDB file, written and read by many processes at once.

What lives here: the same writers and readers on both sides, in one run, and the figures: commits per second, failed
queries, partitions seen as a mixture of two versions. What stays out: publication at scale (``benchmarks.scale``).

Both sides hold the same partitions of 100 to 5,000 rows. A writer draws a partition and replaces its rows by others
that all carry one version, from which their number follows; a reader reads every partition in one query and checks
both. Writers never pause, readers pause 0.2 s. The lake flushes every commit to disk. The peer is what a project
without a lake would do: open the shared file, delete and insert in a transaction, close; a file in use is tried again
after a random pause.

Run from a clone: ``crsbench bench warehouse``, or ``python -m benchmarks.warehouse``.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

import duckdb
import numpy as np
import polars as pl

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.storage.lake import Lake, Provenance
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.tables.ddl import create_table, select_files
from crsbench_assets.tables.registry import TABLES

N_WRITERS, N_READERS = 8, 4
READ_PAUSE_S = 0.2
PEER_SECONDS = 20.0
BAR = 20.0
"""Least ratio of the lake's commits per second to the shared file's."""

SPEC = TABLES["axis_replicates"]
_ONE_THREAD: dict[str, str | bool | int | float | list[str]] = {"threads": 1}
KEYS = tuple((f"encoder-{i}", f"dataset-{j}") for i in range(8) for j in range(4))


@dataclass
class Tally:
    """What one process did; ``n_mixed`` counts partitions read with a wrong number of rows or two versions."""

    n_commits: int = 0
    n_queries: int = 0
    n_failed: int = 0
    n_mixed: int = 0
    n_refused: int = 0
    first_error: str = ""


Step = Callable[[Path, int, Tally], None]
"""(folder, number that makes the step unique, tally) -> nothing."""


def rows_of(version: int) -> int:
    """Return the number of rows that a version has, in 100 to 5,000."""
    return 100 + int(keyed_generator("bench warehouse rows", version).integers(4901))


def partition_rows(key: tuple[str, str], version: int) -> pl.DataFrame:
    """Return rows of one partition that all carry ``version``."""
    n = rows_of(version)
    return pl.DataFrame({"replicate": np.arange(n)}).select(
        encoder_id=pl.lit(key[0]),
        dataset_id=pl.lit(key[1]),
        axis=pl.lit("robustness"),
        variant=pl.lit("primary"),
        replicate=pl.col("replicate"),
        n_seeds=pl.lit(version),
        seed_values=pl.concat_list(pl.lit(float(version))),
        **{c.name: pl.lit(None, SPEC.polars_schema()[c.name]) for c in SPEC.columns[7:]},
    )


def n_mixed(partitions: Iterable[tuple[str, str, int, float, float]]) -> int:
    """Return how many of the partitions read (ids, rows, smallest and largest version) are not of one version."""
    return sum(low != high or rows_of(int(low)) != n for _, _, n, low, high in partitions)


def write_lake(folder: Path, number: int, tally: Tally) -> None:
    """Commit one partition to the lake."""
    key = _key(number)
    provenance = Provenance(inputs_hash=str(number), inputs={}, seconds=0.0)
    Lake(HomeLayout(folder)).commit(SPEC.name, key, partition_rows(key, number), provenance)
    tally.n_commits += 1


def read_lake(folder: Path, number: int, tally: Tally) -> None:
    """Resolve every pointer, and read the files that they name in one query."""
    lake = Lake(HomeLayout(folder))
    files = [str(path) for key in KEYS for path in lake.files(SPEC.name, key)]
    with closing(duckdb.connect(config=_ONE_THREAD)) as connection:
        _read(connection, f"({select_files(SPEC, files)})", tally)


def write_shared_file(folder: Path, number: int, tally: Tally) -> None:
    """Replace one partition of the shared file."""
    key = _key(number)
    rows = partition_rows(key, number).to_arrow()
    with closing(_opened(folder, number, tally, read_only=False)) as connection:
        connection.execute("BEGIN")
        connection.execute(f"DELETE FROM {SPEC.name} WHERE encoder_id = ? AND dataset_id = ?", list(key))
        connection.register("_rows", rows)
        connection.execute(f"INSERT INTO {SPEC.name} SELECT * FROM _rows")
        connection.execute("COMMIT")
    tally.n_commits += 1


def read_shared_file(folder: Path, number: int, tally: Tally) -> None:
    """Read every partition of the shared file in one query."""
    with closing(_opened(folder, number, tally, read_only=True)) as connection:
        _read(connection, SPEC.name, tally)


def run(seconds: float) -> int:
    """Run both sides, print the figures and return the exit code: 1 where a bar is missed."""
    with tempfile.TemporaryDirectory(prefix="crsbench-bench-") as name:
        folder = Path(name)
        for i, key in enumerate(KEYS):
            Lake(HomeLayout(folder)).commit(SPEC.name, key, partition_rows(key, i), Provenance(str(i), {}, 0.0))
        with closing(duckdb.connect(str(folder / "shared.duckdb"))) as connection:
            connection.execute(create_table(SPEC, "main"))
            connection.register("_rows", pl.concat([partition_rows(key, i) for i, key in enumerate(KEYS)]).to_arrow())
            connection.execute(f"INSERT INTO {SPEC.name} SELECT * FROM _rows")
        peer_seconds = min(seconds, PEER_SECONDS)
        peer = _side("one shared DuckDB file", folder, write_shared_file, read_shared_file, peer_seconds)
        ours = _side("lake", folder, write_lake, read_lake, seconds)
    ratio = (ours.n_commits / seconds) / (peer.n_commits / peer_seconds) if peer.n_commits else float("inf")
    is_met = ratio >= BAR and ours.n_failed == 0 and ours.n_mixed == 0 and ours.n_queries > 0
    _say(
        f"warehouse: {ratio:.1f} x the commits of one shared file, bar {BAR:g} x; {ours.n_failed} failed queries, "
        f"{ours.n_mixed} mixed partitions, bar 0: {'met' if is_met else 'MISSED'}"
    )
    return 0 if is_met else 1


def main(seconds: float = 60.0) -> int:
    """Run the comparison; see :func:`run`."""
    return run(seconds)


def _side(name: str, folder: Path, write: Step, read: Step, seconds: float) -> Tally:
    """Run the writers and readers of one side for some seconds, and print and return what they did together."""
    context = multiprocessing.get_context("spawn")
    os.environ["POLARS_MAX_THREADS"] = "1"  # as DuckDB's: twelve processes need no threads of their own
    barrier = context.Barrier(N_WRITERS + N_READERS)
    results = context.SimpleQueue()
    processes = [
        context.Process(target=_work, args=(step, pause, i, folder, seconds, barrier, results))
        for i, (step, pause) in enumerate([(write, 0.0)] * N_WRITERS + [(read, READ_PAUSE_S)] * N_READERS)
    ]
    for process in processes:
        process.start()
    tallies = [results.get() for _ in processes]
    for process in processes:
        process.join()
    total = Tally(
        **{
            f: sum(getattr(t, f) for t in tallies)
            for f in ("n_commits", "n_queries", "n_failed", "n_mixed", "n_refused")
        },
        first_error=next((t.first_error for t in tallies if t.first_error), ""),
    )
    _say(
        f"{name}: {N_WRITERS} writers, {N_READERS} readers, {seconds:g} s: {total.n_commits / seconds:.1f} commits/s, "
        f"{total.n_queries} queries, {total.n_failed} failed, {total.n_mixed} mixed partitions, "
        f"{total.n_refused} times refused and tried again"
        + (f"; first error: {total.first_error}" if total.first_error else "")
    )
    return total


def _work(
    step: Step,
    pause: float,
    worker: int,
    folder: Path,
    seconds: float,
    barrier: Barrier,
    results: multiprocessing.SimpleQueue[Tally],
) -> None:
    tally = Tally()
    barrier.wait()
    end = time.monotonic() + seconds
    number = (worker + 1) * 1_000_000
    while time.monotonic() < end:
        number += 1
        try:
            step(folder, number, tally)
        except Exception as error:
            tally.n_failed += 1
            tally.first_error = tally.first_error or " ".join(str(error).split())
        time.sleep(pause)
    results.put(tally)


def _key(number: int) -> tuple[str, str]:
    return KEYS[int(keyed_generator("bench warehouse key", number).integers(len(KEYS)))]


def _read(connection: duckdb.DuckDBPyConnection, source: str, tally: Tally) -> None:
    sql = f"SELECT encoder_id, dataset_id, count(*), min(n_seeds), max(n_seeds) FROM {source} GROUP BY ALL"
    partitions = connection.execute(sql).fetchall()
    tally.n_queries += 1
    tally.n_mixed += n_mixed(partitions) + len(KEYS) - len(partitions)


def _opened(folder: Path, number: int, tally: Tally, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    """Return a connection on the shared file, tried again while somebody else has it."""
    jitter = keyed_generator("bench warehouse jitter", number)
    while True:
        try:
            return duckdb.connect(str(folder / "shared.duckdb"), read_only=read_only, config=_ONE_THREAD)
        except duckdb.IOException as error:
            if "lock" not in str(error):
                raise
            tally.n_refused += 1
            time.sleep(float(jitter.uniform(0.002, 0.03)))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
