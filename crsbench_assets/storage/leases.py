"""Leases: who computes a partition right now, and what became of the last attempt.

What lives here: ``_attempt.json``, which is the lease against double work, the reason shown for a killed cell, and
what the reaper reads. What stays out: Dagster's runs (``orchestration.reaper``).
Source: interfaces page, "Home"; a lease is a file with a heartbeat, not a lock that dies with a mount.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crsbench_assets.config.errors import CrsbenchError, LeaseHeldError, StorageError
from crsbench_assets.storage.files import locked, read_json, replace_json, storage_errors
from crsbench_assets.storage.processes import ProcessIdentity, this_process

ATTEMPT_FILE = "_attempt.json"
HEARTBEAT_S = 20.0
FOREIGN_TIMEOUT_S = 120.0
"""A lease of another host is dead after this long without a heartbeat; on our own host we look for the process."""


@dataclass(frozen=True)
class Attempt:
    """One attempt to compute a partition.

    ``state`` is ``running``, ``failed`` (it ended with an error) or ``died`` (its process is gone).
    """

    token: str
    state: str
    stage: str
    run_id: str | None
    host: str
    pid: int
    started: float
    heartbeat: float
    reason: str | None = None
    message: str | None = None

    @property
    def process(self) -> ProcessIdentity:
        """The process that made the attempt."""
        return ProcessIdentity(self.host, self.pid, self.started)

    def is_running(self) -> bool:
        """Whether somebody computes the partition right now."""
        if self.state != "running":
            return False
        if self.process.is_here():
            return self.process.is_alive()
        return time.time() - self.heartbeat < FOREIGN_TIMEOUT_S


def read_attempt(folder: Path | str) -> Attempt | None:
    """Return the last attempt of a partition that did not end in a commit, or None.

    Raises:
        StorageError: the file holds no attempt.
    """
    value = read_json(f"{folder}/{ATTEMPT_FILE}")
    try:
        return None if value is None else Attempt(**value)
    except TypeError as error:
        raise StorageError(
            f"{folder}/{ATTEMPT_FILE} is damaged (no attempt of this version): remove it once nobody computes there."
        ) from error


@contextmanager
def lease(folder: Path, stage: str, run_id: str | None) -> Iterator[Attempt]:
    """Hold the lease of a partition while computing it.

    On success the attempt file is gone; on an error it stays and says what happened.

    Args:
        folder: folder of the partition.
        stage: name of the stage, for the reader of the file.
        run_id: Dagster run, where there is one.

    Raises:
        LeaseHeldError: somebody alive holds it.
        StorageError: the folder cannot be written.
    """
    attempt = _acquire(folder, stage, run_id)
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(folder, attempt, stop), daemon=True)
    beat.start()
    try:
        yield attempt
    except BaseException as error:
        stop.set()
        beat.join()
        _record_failure(folder, attempt, error)
        raise
    stop.set()
    beat.join()
    release(folder, attempt)


def release(folder: Path, attempt: Attempt) -> None:
    """Remove the attempt file when it is still ours."""
    with _transition(folder):
        current = read_attempt(folder)
        if current is not None and current.token == attempt.token:
            (folder / ATTEMPT_FILE).unlink(missing_ok=True)


def mark_died(folder: Path) -> Attempt | None:
    """Turn a running attempt whose process is gone into a ``died`` one, and return it; else None."""
    with _transition(folder):
        current = read_attempt(folder)
        if current is None or current.state != "running" or current.is_running():
            return None
        dead = _with(current, state="died", reason="died", message=f"process {current.pid} on {current.host} is gone")
        replace_json(folder / ATTEMPT_FILE, asdict(dead))
        return dead


def still_held(folder: Path, attempt: Attempt) -> bool:
    """Whether the lease is still ours; asked right before a commit."""
    current = read_attempt(folder)
    return current is not None and current.token == attempt.token


def _acquire(folder: Path, stage: str, run_id: str | None) -> Attempt:
    process = this_process()
    attempt = Attempt(
        token=uuid.uuid4().hex,
        state="running",
        stage=stage,
        run_id=run_id,
        host=process.host,
        pid=process.pid,
        started=process.started,
        heartbeat=time.time(),
    )
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _transition(folder):
        holder = read_attempt(folder)
        if holder is not None and holder.is_running():
            raise LeaseHeldError(
                f"{folder} is being computed by process {holder.pid} on {holder.host} (stage {holder.stage}): wait "
                "for it, or end that process."
            )
        replace_json(folder / ATTEMPT_FILE, asdict(attempt))
    return attempt


def _transition(folder: Path) -> AbstractContextManager[None]:
    """Serialise changes of one partition's attempt file between the processes of a machine.

    The lock is held for the milliseconds of one change, never during computation. Where a file system has no
    locks, two acquirers of one free lease may both win; the commit still lets one of them through (`still_held`).
    """
    return locked(folder / ".lock")


def _with(attempt: Attempt, **changes: Any) -> Attempt:
    return Attempt(**{**asdict(attempt), **changes})


def _beat(folder: Path, attempt: Attempt, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_S):
        try:
            with _transition(folder):
                if still_held(folder, attempt):
                    replace_json(folder / ATTEMPT_FILE, asdict(_with(attempt, heartbeat=time.time())))
        except CrsbenchError:
            continue  # a full disk must not end the computation; the next beat tries again


def _record_failure(folder: Path, attempt: Attempt, error: BaseException) -> None:
    message = str(error) or type(error).__name__
    reason = getattr(error, "reason", "error")
    if not isinstance(error, Exception):  # Ctrl-C and SIGTERM are no property of the partition
        release(folder, attempt)
        return
    try:
        with _transition(folder):
            if still_held(folder, attempt):
                failed = _with(attempt, state="failed", reason=reason, message=message[:2000])
                replace_json(folder / ATTEMPT_FILE, asdict(failed))
    except CrsbenchError:
        return  # the first error is the one to report
