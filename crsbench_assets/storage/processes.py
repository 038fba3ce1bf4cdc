"""Who computes: this process, and whether another still lives.

What lives here: the identity of a process that survives the reuse of its number. What stays out: leases.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class ProcessIdentity:
    """A process on a host; ``started`` tells it from a later one with the same number."""

    host: str
    pid: int
    started: float

    def is_here(self) -> bool:
        """Whether the process ran on this host, so that we can look for it."""
        return self.host == socket.gethostname()

    def is_alive(self) -> bool:
        """Whether the process still runs; meaningful on its own host only."""
        started = process_start(self.pid)
        # psutil and the kernel round differently across versions; two processes never share a pid within 1 s
        return started is not None and abs(started - self.started) < 1.0


def process_start(pid: int) -> float | None:
    """Return the start time of a running process in seconds since the epoch, or None where there is none."""
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time())
    except psutil.NoSuchProcess:
        return None


@cache
def _identity_of(pid: int) -> ProcessIdentity:
    return ProcessIdentity(socket.gethostname(), pid, process_start(pid) or 0.0)


def this_process() -> ProcessIdentity:
    """Return the identity of the calling process, also after a fork."""
    return _identity_of(os.getpid())
