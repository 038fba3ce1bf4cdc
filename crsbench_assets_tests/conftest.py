"""Fixtures that every folder shares: an environment without a user's home, tiny homes, and disks to spoil.

All tests run without a network, in this process and its children (``offline/sitecustomize.py``).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crsbench_assets.storage.layout import HOME_VARIABLE, HomeLayout
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets_tests.fixtures import Disk, can_mount, compute_home, write_tiny_home
from crsbench_assets_tests.offline import sitecustomize as offline


def pytest_configure() -> None:
    folder = str(Path(offline.__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # started in the background of a script; commands under test would inherit it and not hear Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("markexpr") == "not slow":
        return "left out: tests marked slow (whole panels, live daemons, other DuckDB versions); `make slow` runs them"
    return None


@pytest.fixture(autouse=True)
def _no_home_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (HOME_VARIABLE, "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tiny_home(tmp_path: Path) -> HomeLayout:
    """A home with cards and files in which nothing is computed."""
    return write_tiny_home(tmp_path / "home")


@pytest.fixture(scope="session")
def computed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The computed home that copies are made of; nobody writes into it."""
    layout = write_tiny_home(tmp_path_factory.mktemp("computed") / "home")
    compute_home(layout.root)
    return layout.root


@pytest.fixture
def computed_home(computed_once: Path, tmp_path: Path) -> HomeLayout:
    """A copy of the computed home, to change at will."""
    return HomeLayout(Path(shutil.copytree(computed_once, tmp_path / "home")))


@pytest.fixture
def computed(computed_home: HomeLayout) -> Project:
    return open_project(computed_home.root)


@pytest.fixture
def disk(computed_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A computed home on a disk that can be filled or made read-only."""
    print(f"disk: {'tmpfs' if can_mount() else 'replaced system calls'}")  # said where somebody asks
    mount = tmp_path / "disk"
    mount.mkdir()
    if can_mount():
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount)], check=True)
    try:
        shutil.copytree(computed_once, mount / "home")
        yield Disk(HomeLayout(mount / "home"), monkeypatch)
    finally:
        if can_mount():
            subprocess.run(["umount", "-l", str(mount)], check=True)
