"""The law of the house: who may import whom."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import crsbench_assets

ROOT = Path(crsbench_assets.__file__).parents[1]
TOOLS = Path(sys.executable).parent

BLOCKED = """
import importlib, pkgutil, sys

NUMERICS = ("metrics", "aggregates", "scores", "analyses")
REFUSED = {
    "torch", "timm", "open_clip", "transformers", "peft", "duckdb", "dagster", "dagster_duckdb", "pyarrow.parquet",
    *(f"crsbench_assets.{name}" for name in (
        "storage", "planning", "data", "encoders", "embeddings", "probes", "worker", "operations", "orchestration",
        "defs", "cli",
    )),
}

sys.modules.update(dict.fromkeys(REFUSED))  # importing a name that stands for None fails
for package in NUMERICS:
    module = importlib.import_module(f"crsbench_assets.{package}")
    for found in pkgutil.walk_packages(module.__path__, module.__name__ + "."):
        importlib.import_module(found.name)
        print(found.name)
"""


def test_contracts() -> None:
    done = subprocess.run([TOOLS / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_numerics_import_where_everything_else_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"crsbench_assets.metrics.calibration", "crsbench_assets.scores.crs"} <= set(done.stdout.split())


def test_every_module_says_what_lives_there() -> None:
    silent = []
    for path in sorted((ROOT / "crsbench_assets").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name in ("__init__.py", "__main__.py", "definitions.py"):
            continue
        docstring = text.split('"""')[1]
        if "What lives here" not in docstring or "stays\nout" not in docstring.replace(" out", "\nout"):
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []
