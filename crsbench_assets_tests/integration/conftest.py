"""Homes that the tests copy: computed once, with a frozen panel, and the same with one encoder more."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets_tests.integration.homes import add_encoder, change_settings, copy_home, make_home, succeed

ROOT = Path(__file__).parents[2]

DEMO_LIMIT_S = 120
"""What the project promises for two cores that have nothing else to do; printed, not asserted."""


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> HomeLayout:
    """A home of two encoders on two cohorts, everything current, panel ``base`` frozen; tests copy it.

    It is filled by two processes that meet in a home without databases.
    """
    layout = make_home(tmp_path_factory.mktemp("filled") / "home", settings="workers: 2")
    succeed(layout, "materialize")
    change_settings(layout, "workers: 1")
    succeed(layout, "panel", "freeze", "base")
    return layout


@pytest.fixture(scope="session")
def extended(filled: HomeLayout, tmp_path_factory: pytest.TempPathFactory) -> HomeLayout:
    """A copy of ``filled`` with the encoder ``enc-a`` computed by an undisturbed ``materialize``."""
    layout = copy_home(filled, tmp_path_factory.mktemp("extended") / "home")
    add_encoder(layout, "enc-a")
    succeed(layout, "materialize")
    return layout


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The home that ``make demo`` leaves, and what it printed."""
    home = tmp_path_factory.mktemp("demo") / "home"
    # the environment is as it is: an installation has no place in a test
    command = ["make", "--directory", str(ROOT), "--old-file", ".venv/.stamp", "demo", f"DEMO_HOME={home}"]
    if not (ROOT / ".venv" / "bin" / "crsbench").exists():
        command = [sys.executable, "-m", "crsbench_assets.cli", "demo", "--home", str(home)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    print(f"demo: {time.monotonic() - started:.0f} s (promised: {DEMO_LIMIT_S} s on two idle cores)")
    assert done.returncode == 0, done.stdout + done.stderr
    return home, done.stdout
