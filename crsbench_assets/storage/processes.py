"""Who computes: this process, and whether another still lives.

What lives here: the identity of a process that survives the reuse of its number and a step of the clock. What stays
out: leases.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class ProcessIdentity:
    """A process on a host; ``started`` tells it from a later one with the same number (see :func:`start_mark`)."""

    host: str
    pid: int
    started: float

    def is_here(self) -> bool:
        """Whether the process ran on this host, so that we can look for it."""
        return self.host == socket.gethostname()

    def is_alive(self) -> bool:
        """Whether the process still runs; meaningful on its own host only."""
        started = process_start(self.pid)
        if started is None:
            return False
        # seconds, where nothing better was at hand: psutil and the kernel round differently across versions, and two
        # processes never share a pid within 1 s
        return self.started == start_mark(self.pid) or abs(started - self.started) < 1.0


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


def start_mark(pid: int) -> float | None:
    """Return a number that no other process with this pid has, or None where there is none.

    On Linux it is made of the boot and of the clock ticks between boot and start, which a step of the clock does not
    change; elsewhere it is the start in seconds since the epoch.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        ticks = int(status.rpartition(")")[2].split()[19])  # field 22; the name before field 3 may hold spaces
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
    except (OSError, ValueError, IndexError):
        return process_start(pid)
    # at most 52 bits, so that a float holds it, and never below 2 ** 36, where seconds since the epoch are
    return float((int(boot[:4], 16) // 2 + 1) * 2**36 + ticks)


@cache
def _identity_of(pid: int) -> ProcessIdentity:
    return ProcessIdentity(socket.gethostname(), pid, start_mark(pid) or 0.0)


def this_process() -> ProcessIdentity:
    """Return the identity of the calling process, also after a fork."""
    return _identity_of(os.getpid())
