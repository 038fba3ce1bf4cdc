"""Filled homes for tests: fabricated once per process, copied for each test.

What lives here: the copies. What stays out: the fabrication (``benchmarks.fabricate``).
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from benchmarks.fabricate import fabricate
from crsbench_assets.storage.project import Project, open_project


def fabricated_home(folder: Path, n_encoders: int = 3, n_datasets: int = 2) -> Project:
    """Copy a filled home to ``folder``, which must not exist, and return it opened; every partition is current."""
    shutil.copytree(_template(n_encoders, n_datasets), folder)
    return open_project(folder)


@cache
def _template(n_encoders: int, n_datasets: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="crsbench-fabricated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    fabricate(folder / "home", n_encoders, n_datasets)
    return folder / "home"
