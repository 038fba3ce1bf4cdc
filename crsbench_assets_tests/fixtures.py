"""A home small enough to compute in a second: 120 images in pairs, 2 classes, 2 encoders of width 8.

What lives here: making such a home, computing it without Dagster, snapshots of what lies in a lake, and disks that are
full or read-only. What stays out: the fixtures made of them (``conftest``), and cohorts of a single test.

Vectors are multiples of 1/64 made of keyed ranks: exact in float32, the same on every machine and with every NumPy.
"""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from numpy.typing import NDArray

from crsbench_assets.config.randomness import keyed_ranks
from crsbench_assets.operations.homes import dagster_yaml
from crsbench_assets.planning.plan import plan
from crsbench_assets.planning.stages import STAGES
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import Project, create_home, open_project, write_snapshot
from crsbench_assets.worker.run import StageResult, run_stage

ENCODERS, DATASET = ("alpha", "beta"), "tiny"
N_IMAGES, WIDTH = 120, 8
CONDITIONS = ("clean", "blur-s1", "blur-s3")

# 2 seeds, 2 fractions, 1 corruption at 2 severities, 100 replicates: the fewest that leave every stage something to do
PROTOCOL: dict[str, Any] = {
    "id": "tiny-1",
    "seeds": [0, 1],
    "label_fractions": [0.5, 1.0],
    "splits": {"test_fraction": 0.25, "validation_fraction": 0.125},
    "corruptions": {"kinds": ["blur"], "severities": [1, 3]},
    "probe": {"estimator": "logistic", "c": 1.0, "relative_gap": 1e-8, "sd_floor": 1e-6},
    "metrics": {"ece_bins": 15, "test_replicates": 100, "near_chance_auroc": 0.55},
    "axes": {"shift_weight": 0.5},
    "scores": {
        "dominance_weight": 0.5,
        "balance_weight": 0.3,
        "worst_weight": 0.2,
        "axis_weights": {"discrimination": 0.25, "calibration": 0.25, "label_efficiency": 0.25, "robustness": 0.25},
        "degenerate_range": 1e-12,
    },
}

SETTINGS = """\
# the settings of a tiny home
protocol: tiny.yaml   # a file of this home
label_policy: u_zeros
encoders: []          # nothing of the catalogue
datasets: []
group_salt: fixed
"""

SIGNAL = {"alpha": 48, "beta": 32}
"""Distance of a class from the origin on each of three dimensions, in 64ths."""


def image_ids() -> list[str]:
    return [f"image{i:03d}" for i in range(N_IMAGES)]


def labels() -> NDArray[np.int64]:
    """Two of five pairs of images are positive."""
    return np.asarray([int(i // 2 % 5 < 2) for i in range(N_IMAGES)])


def vectors(encoder_id: str, conditions: Sequence[str] = CONDITIONS) -> pl.DataFrame:
    """Return the rows of an encoder's file; a corruption halves and quarters the signal."""
    ids = image_ids()
    sign = 2 * labels() - 1
    frames = []
    for condition in conditions:
        noise = np.stack([keyed_ranks(ids, encoder_id, condition, j) for j in range(WIDTH)], axis=1)
        sixty_fourths = (noise % 257).astype(np.int64) - 128
        sixty_fourths[:, :3] += sign[:, None] * (SIGNAL[encoder_id] >> CONDITIONS.index(condition))
        matrix = (sixty_fourths / 64).astype(np.float32)
        frames.append(pl.DataFrame({"image_id": ids, "condition_id": condition, "vector": matrix.tolist()}))
    return pl.concat(frames).cast({"vector": pl.List(pl.Float32)})


def dataset_card(**changes: Any) -> dict[str, Any]:
    card: dict[str, Any] = {
        "id": DATASET,
        "name": "Tiny",
        "modality": "other",
        "task": "single_label",
        "classes": ["negative", "positive"],
        "source": {
            "layout": "manifest",
            "manifest": "../files/labels.csv",
            "columns": {"image_id": "image_id", "class_column": "label", "group": "pair"},
        },
    }
    return card | changes


def encoder_card(encoder_id: str, **changes: Any) -> dict[str, Any]:
    card: dict[str, Any] = {
        "id": encoder_id,
        "name": encoder_id.title(),
        "kind": "precomputed",
        "category": "generalist",
        "vectors": {DATASET: [f"../files/{encoder_id}.parquet"]},
    }
    return card | changes


def write_card(home: Path, kind: str, card: dict[str, Any]) -> Path:
    path = home / kind / f"{card['id']}.yaml"
    path.write_text(yaml.safe_dump(card, sort_keys=False), encoding="utf-8")
    return path


def write_protocol(home: Path, **changes: Any) -> None:
    (home / "tiny.yaml").write_text(yaml.safe_dump(PROTOCOL | changes, sort_keys=False), encoding="utf-8")


def write_tiny_home(home: Path) -> HomeLayout:
    """Make a home with the tiny cohort, its encoders and its protocol; nothing is computed."""
    layout = HomeLayout(home)
    create_home(layout, dagster_yaml())
    layout.settings.write_text(SETTINGS, encoding="utf-8")
    files = home / "files"
    files.mkdir()
    classes = ["positive" if label else "negative" for label in labels()]
    pairs = [f"pair{i // 2:02d}" for i in range(N_IMAGES)]
    pl.DataFrame({"image_id": image_ids(), "label": classes, "pair": pairs}).write_csv(files / "labels.csv")
    for encoder_id in ENCODERS:
        vectors(encoder_id).write_parquet(files / f"{encoder_id}.parquet")
        write_card(home, "encoders", encoder_card(encoder_id))
    write_card(home, "datasets", dataset_card())
    write_protocol(home)
    return layout


def compute(project: Project, stages: Iterable[str] | None = None) -> dict[tuple[str, tuple[str, ...]], StageResult]:
    """Run what the planner finds due, stage by stage, and return the results by (stage, partition)."""
    write_snapshot(project)
    wanted = set(stages) if stages is not None else {stage.name for stage in STAGES}
    results = {}
    for stage in STAGES:
        if stage.name in wanted:
            due = [task.key for task in plan(project).tasks if task.stage.name == stage.name and task.is_due]
            for key in due:
                results[stage.name, key] = run_stage(project, stage, key, only_stale=True)
    return results


def compute_home(home: Path) -> Project:
    project = open_project(home)
    compute(project)
    return project


def due(project: Project) -> set[tuple[str, tuple[str, ...]]]:
    """Return (stage, partition) of everything that is due, with what waits for it."""
    return {(task.stage.name, task.key) for task in plan(project).tasks if task.is_due}


def file_bytes(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with its bytes; locks and caches are nobody's result."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", "fingerprints.json")
    }


@cache
def can_mount() -> bool:
    """Whether this process may mount a file system: the honest way to a full or read-only disk."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        try:
            mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False
        if mounted:
            subprocess.run(["umount", folder], check=True)
        return mounted


def disk_error(number: int) -> OSError:
    """Return what the operating system raises, such as for ``errno.ENOSPC``."""
    return OSError(number, os.strerror(number))


FULL, READ_ONLY = errno.ENOSPC, errno.EROFS


@dataclass
class Disk:
    """A file system of a few megabytes with a computed home on it; without the right to mount one, the illusion."""

    layout: HomeLayout
    monkeypatch: pytest.MonkeyPatch

    def fill(self) -> None:
        """Leave no byte free."""
        if not can_mount():
            self._refuse(FULL)
            return
        handle = os.open(self.layout.root.parent / "ballast", os.O_CREAT | os.O_WRONLY)
        with suppress(OSError):
            while True:
                os.write(handle, b"0" * 4096)
        os.close(handle)

    def free(self) -> None:
        if can_mount():
            (self.layout.root.parent / "ballast").unlink()
        else:
            self.monkeypatch.undo()

    def make_read_only(self) -> None:
        if not can_mount():
            self._refuse(READ_ONLY)
            return
        subprocess.run(["mount", "-o", "remount,ro", str(self.layout.root.parent)], check=True)

    def _refuse(self, number: int) -> None:
        below = str(self.layout.root)
        opened, path_opened = os.open, Path.open

        def open_descriptor(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if str(path).startswith(below) and flags & (os.O_WRONLY | os.O_RDWR) and number == READ_ONLY:
                raise disk_error(number)
            return opened(path, flags, *arguments, **options)

        def open_path(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if str(path).startswith(below) and set(mode) & set("wax+"):
                raise disk_error(number)
            return path_opened(path, mode, *arguments, **options)

        def make(path: Path, *_: Any, exist_ok: bool = False, **__: Any) -> None:
            if not (exist_ok and path.is_dir()):
                raise disk_error(number)

        self.monkeypatch.setattr(os, "open", open_descriptor)
        self.monkeypatch.setattr(Path, "open", open_path)
        self.monkeypatch.setattr(Path, "mkdir", make)
