"""Superseded files of the lake: which they are, and removing them once nobody can need them.

What lives here: files that no pointer and no published snapshot names, and their removal after a grace period. What
stays out: what a home keeps besides (``operations``) and the snapshots themselves (``warehouse``).
Source: interfaces page, "Lake rule": superseded files go after a grace period, never while the published warehouse
names them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crsbench_assets.config.errors import StorageError
from crsbench_assets.storage.files import storage_errors
from crsbench_assets.storage.lake import POINTER_FILE, read_pointer
from crsbench_assets.storage.leases import ATTEMPT_FILE, read_attempt
from crsbench_assets.storage.project import Project
from crsbench_assets.storage.snapshots import published_records

GRACE_S = 3600.0
"""Longest that a reader or a publication works with pointers that it has read; far above both."""


@dataclass(frozen=True)
class SupersededFile:
    """A file that nothing names.

    ``since`` is when that began at the latest: seconds since the epoch, of the pointer or of the file itself,
    whichever is younger.
    """

    path: Path
    n_bytes: int
    since: float


def superseded_files(project: Project) -> list[SupersededFile]:
    """Return the files of all arms that neither their pointer nor a published snapshot names, sorted by path.

    Half-written files of processes that died are among them. A partition that somebody computes right now is left
    alone: its result may turn out to be a file that is already there.

    Raises:
        StorageError: a pointer or the record of a snapshot is damaged, so nobody can say what is needed.
    """
    lake = project.layout.lake
    named = {lake / name for record in published_records(project.layout) for name in record["files"]}
    busy = {_address(path.parent) for path in lake.glob(f"*/*/**/{ATTEMPT_FILE}") if _is_running(path.parent)}
    found = []
    for folder in sorted({path.parent for path in _part_files(lake)}):
        if _address(folder) in busy:
            continue
        pointer_file = folder / POINTER_FILE
        pointer = read_pointer(pointer_file)
        current = {folder / name for name in pointer.files} if pointer else set()
        put_at = pointer_file.stat().st_mtime if pointer else 0.0
        for path in sorted(_part_files(folder)):
            if path not in current and path not in named:
                status = path.stat()
                found.append(SupersededFile(path, status.st_size, max(put_at, status.st_mtime)))
    return found


def remove_superseded(project: Project, grace_s: float = GRACE_S) -> list[SupersededFile]:
    """Remove the superseded files that have been so for ``grace_s`` seconds, and return them.

    Raises:
        StorageError: the disk refuses, or see :func:`superseded_files`.
    """
    if grace_s < 0:
        raise StorageError(f"A grace period of {grace_s} s was asked for: expected 0 or more seconds.")
    deadline = time.time() - grace_s
    old = [file for file in superseded_files(project) if file.since <= deadline]
    for file in old:
        with storage_errors(file.path):
            file.path.unlink(missing_ok=True)
    return old


def _part_files(folder: Path) -> Iterator[Path]:
    """Yield data files and half-written ones, at any depth."""
    yield from folder.glob("**/part-*.parquet")
    yield from folder.glob("**/.part-*.tmp")


def _address(folder: Path) -> tuple[str, ...]:
    """Return the values of the grain key that a partition's folder stands for: shared by all tables of a stage."""
    return tuple(part for part in folder.parts if "=" in part)


def _is_running(folder: Path) -> bool:
    attempt = read_attempt(folder)
    return attempt is not None and attempt.is_running()
