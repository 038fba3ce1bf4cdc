"""``crsbench ui``: the Dagster UI of a home, as one process group.

What lives here: starting it, refusing a second one, and ending it with all its children. What stays out: what the UI
shows (``defs``).
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crsbench_assets.cli.display import say
from crsbench_assets.config.errors import CrsbenchError
from crsbench_assets.operations.unfinished import UI_FILE, running_ui
from crsbench_assets.storage.files import read_json, replace_bytes, replace_json, storage_errors
from crsbench_assets.storage.layout import HOME_VARIABLE, HomeLayout
from crsbench_assets.storage.processes import this_process
from crsbench_assets.storage.project import Project

TERM_WAIT_S = 4.0
"""After SIGTERM to the group, its members get this long before SIGKILL."""

WORKSPACE = """\
load_from:
  - python_module:
      module_name: crsbench_assets.definitions
      location_name: crsbench
"""


def serve(project: Project, port: int) -> int:
    """Run the UI until Ctrl-C or SIGTERM; return its exit code.

    Raises:
        CrsbenchError: another one serves this home.
    """
    with _only_one(project.layout):
        return _serve(project.layout, port)


@contextmanager
def _only_one(layout: HomeLayout) -> Iterator[None]:
    """Hold the home's UI: of two that start at once, one is refused."""
    with storage_errors(layout.dagster):
        handle = os.open(layout.dagster / ".crsbench_ui.lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            other, is_taken = running_ui(layout), False
        except BlockingIOError:
            other, is_taken = running_ui(layout), True
        if is_taken or other is not None:
            who = f"process {other.pid}" if other else "it is starting"
            raise CrsbenchError(
                f"The Dagster UI of {layout.root} runs already ({who}): use that one, or end it with Ctrl-C."
            )
        yield
    finally:
        os.close(handle)


def _serve(layout: HomeLayout, port: int) -> int:
    end_leftovers(layout.dagster / UI_FILE)
    workspace = layout.dagster / "workspace.yaml"
    # before the databases: a disk that refuses ends in a sentence here, and in SQLite's traceback there
    replace_bytes(workspace, WORKSPACE.encode())
    _prepare_instance(layout)
    environment = os.environ | {
        HOME_VARIABLE: str(layout.root),
        "DAGSTER_HOME": str(layout.dagster),
        "DAGSTER_DISABLE_TELEMETRY": "1",
    }
    command = [sys.executable, "-m", "dagster", "dev", "-w", str(workspace), "-h", "127.0.0.1", "-p", str(port)]
    stop = _StopSignal()
    process = None
    try:
        process = subprocess.Popen(command, cwd=layout.dagster, env=environment, start_new_session=True)
        mine = this_process()
        replace_json(
            layout.dagster / UI_FILE,
            {"host": mine.host, "pid": mine.pid, "started": mine.started, "group": process.pid, "port": port},
        )
        say(f"Dagster UI of {layout.root}: http://127.0.0.1:{port} (Ctrl-C ends it)")
        while process.poll() is None and not stop.is_set:
            time.sleep(0.1)
        if not stop.is_set:
            say(f"crsbench: the Dagster UI ended by itself (exit code {process.returncode}).")
    finally:
        if process is not None:
            end_group(process.pid)
            process.wait()
        (layout.dagster / UI_FILE).unlink(missing_ok=True)
    return 0 if stop.is_set else 1


def _prepare_instance(layout: HomeLayout) -> None:
    """Make databases and pool limits before webserver and daemon meet in a home that has none."""
    from crsbench_assets.orchestration.instance import open_instance

    with open_instance(layout):
        return


def end_leftovers(record: Path) -> None:
    """End what is left of a UI that was killed: members of the process group that it was started as.

    On another host the number of the group says nothing here.
    """
    value = read_json(record)
    if value is None or value["host"] != this_process().host:
        return
    if any("dagster" in command for _, command in _members(value["group"])):
        say("crsbench: ending what was left of an earlier Dagster UI of this home.")
        end_group(value["group"])
    record.unlink(missing_ok=True)


def end_group(group: int) -> None:
    """End every process of a group: SIGTERM, then SIGKILL."""
    _signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + TERM_WAIT_S
    while time.monotonic() < deadline and _members(group):
        time.sleep(0.1)
    _signal_group(group, signal.SIGKILL)


def _members(group: int) -> list[tuple[int, str]]:
    """Return (pid, command line) of the living processes of a group."""
    import psutil

    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append((process.pid, " ".join(process.info["cmdline"] or [])))
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return found


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


class _StopSignal:
    """Remembers that Ctrl-C or SIGTERM arrived."""

    def __init__(self) -> None:
        self.is_set = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def _stop(self, *_: object) -> None:
        self.is_set = True
