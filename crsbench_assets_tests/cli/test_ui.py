"""``crsbench ui``: one per home, and what an earlier one left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from crsbench_assets.cli import ui
from crsbench_assets.config.errors import CrsbenchError
from crsbench_assets.operations.unfinished import UI_FILE
from crsbench_assets.storage.files import replace_json
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.processes import this_process
from crsbench_assets.storage.project import open_project

SLEEP = "import time; time.sleep(60)"


def spawn(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SLEEP, *arguments], start_new_session=True)


@pytest.fixture
def leftover() -> Iterator[subprocess.Popen[bytes]]:
    """A process of an earlier UI, in its own group."""
    process = spawn("dagster")
    yield process
    process.kill()
    process.wait()


def record(layout: HomeLayout, group: int, host: str) -> Path:
    path = layout.dagster / UI_FILE
    replace_json(path, {"host": host, "pid": 1, "started": 0.0, "group": group, "port": 3000})
    return path


def test_what_an_earlier_ui_left_here_is_ended(tiny_home: HomeLayout, leftover: subprocess.Popen[bytes]) -> None:
    path = record(tiny_home, leftover.pid, this_process().host)
    ui.end_leftovers(path)
    assert leftover.wait(5) != 0 and not path.exists()


def test_the_group_of_another_host_is_not_ours(tiny_home: HomeLayout, leftover: subprocess.Popen[bytes]) -> None:
    ui.end_leftovers(record(tiny_home, leftover.pid, "elsewhere"))
    assert leftover.poll() is None


def test_processes_that_we_may_not_see_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "getpgid", refuse)
    assert ui._members(os.getpgrp()) == []


def test_of_two_at_once_one_is_refused(tiny_home: HomeLayout) -> None:
    project = open_project(tiny_home.root)
    with ui._only_one(tiny_home), pytest.raises(CrsbenchError, match=r"runs already \(it is starting\): use that one"):
        ui.serve(project, 3000)


def test_a_ui_whose_record_cannot_be_written_leaves_no_process(
    tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: Any, **__: Any) -> subprocess.Popen[bytes]:
        started.append(spawn())
        return started[0]

    def refuse(*_: Any) -> None:
        raise CrsbenchError("the disk is full")

    monkeypatch.setattr(ui, "_StopSignal", lambda: None)
    monkeypatch.setattr(ui, "_prepare_instance", lambda _: None)
    monkeypatch.setattr(ui, "subprocess", SimpleNamespace(Popen=start))
    monkeypatch.setattr(ui, "replace_json", refuse)
    with pytest.raises(CrsbenchError, match="the disk is full"):
        ui.serve(open_project(tiny_home.root), 3000)
    assert not psutil.pid_exists(started[0].pid)
