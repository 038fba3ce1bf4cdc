"""The Dagster instance of a home.

What lives here: the settings it is made with, and opening it from a process that Dagster did not start. What stays
out: the home itself (``storage.project``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from crsbench_assets.config.machine import has_gpu
from crsbench_assets.storage.files import locked
from crsbench_assets.storage.layout import HOME_VARIABLE, HomeLayout


def pool_limits() -> dict[str, int]:
    """Return the pools that differ from the default limit of dagster.yaml; set once, then the user's.

    Without a GPU, extraction is work for processors like any other.
    """
    return {"publish": 1} | ({"gpu": 1} if has_gpu() else {})


def environment(layout: HomeLayout) -> dict[str, str]:
    """Return the variables that make a process work on a home."""
    return {HOME_VARIABLE: str(layout.root), "DAGSTER_HOME": str(layout.dagster), "DAGSTER_DISABLE_TELEMETRY": "1"}


@contextmanager
def open_instance(layout: HomeLayout) -> Iterator[dg.DagsterInstance]:
    """Yield the Dagster instance of a home, after making its databases and pools where they are new."""
    os.environ.update(environment(layout))
    # one process at a time makes tables and pools: Dagster looks for a row, then inserts it, without a lock
    with locked(layout.dagster / ".crsbench.lock"):
        instance = dg.DagsterInstance.get()
        known = {info.name for info in instance.event_log_storage.get_pool_limits()}
        for pool, limit in pool_limits().items():
            if pool not in known:
                instance.event_log_storage.set_concurrency_slots(pool, limit)
    with instance:
        yield instance
