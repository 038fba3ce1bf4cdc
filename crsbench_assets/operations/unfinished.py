"""Whether something of a home died, seen without importing Dagster.

What lives here: the cheap look that decides whether the reaper is worth starting. What stays out: the reaper
(``orchestration.reaper``), which imports Dagster and takes two seconds.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from crsbench_assets.planning.plan import Plan
from crsbench_assets.storage.files import read_json
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.processes import ProcessIdentity

UI_FILE = "crsbench_ui.json"

_UNFINISHED = """
    SELECT tags.value FROM runs LEFT JOIN run_tags tags ON tags.run_id = runs.run_id AND tags.key = 'crsbench/process'
    WHERE runs.status IN ('STARTED', 'STARTING', 'CANCELING')
       OR (runs.status = 'NOT_STARTED' AND tags.value IS NOT NULL)
"""


def needs_reaping(layout: HomeLayout, plan: Plan) -> bool:
    """Whether an attempt or a Dagster run of this home may have lost its process."""
    return any(task.has_died for task in plan.tasks) or _has_dead_run(layout)


def running_ui(layout: HomeLayout) -> ProcessIdentity | None:
    """Return the process of the Dagster UI that serves this home, or None."""
    value = read_json(layout.dagster / UI_FILE)
    if value is None:
        return None
    process = ProcessIdentity(value["host"], value["pid"], value["started"])
    return process if process.is_here() and process.is_alive() else None


def _has_dead_run(layout: HomeLayout) -> bool:
    database = layout.dagster / "history" / "runs.db"
    if not database.exists():
        return False  # no run yet, or another storage whose own monitoring is the user's
    try:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            tags = [row[0] for row in connection.execute(_UNFINISHED)]
    except sqlite3.Error:
        return True  # another schema or a lock: let the reaper look
    ui_is_alive = running_ui(layout) is not None
    return any(_is_dead(tag, ui_is_alive=ui_is_alive) for tag in tags)


def _is_dead(tag: str | None, *, ui_is_alive: bool) -> bool:
    if tag is None:
        return not ui_is_alive  # runs of a living UI are its own sensor's business
    host, pid, started = tag.split("/")
    process = ProcessIdentity(host, int(pid), float(started))
    return process.is_here() and not process.is_alive()
