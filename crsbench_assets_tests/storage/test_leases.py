"""Who computes a partition: one at a time, and nobody waits for the dead."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from crsbench_assets.config.errors import LeaseHeldError, StageError, StorageError
from crsbench_assets.storage import leases
from crsbench_assets.storage.files import replace_json
from crsbench_assets.storage.leases import ATTEMPT_FILE, FOREIGN_TIMEOUT_S, Attempt, lease, mark_died, read_attempt
from crsbench_assets.storage.processes import ProcessIdentity, process_start, start_mark, this_process

HOLDER = """
import sys, time
from pathlib import Path
from crsbench_assets.storage.leases import lease
with lease(Path(sys.argv[1]), "probe", "run-7"):
    print("held", flush=True)
    time.sleep(60)
"""

RACER = """
import sys, time
from pathlib import Path
from crsbench_assets.config.errors import LeaseHeldError
from crsbench_assets.storage.leases import lease
folder = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    with lease(folder, "probe", None):
        print("won", flush=True)
        sys.stdin.readline()
except LeaseHeldError:
    print("refused", flush=True)
"""


def start(code: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def foreign(folder: Path, heartbeat: float) -> Attempt:
    """Write the attempt of a process of another machine, whose number belongs to somebody else here."""
    attempt = Attempt("token", "running", "probe", None, "another-machine", os.getpid(), 0.0, heartbeat)
    replace_json(folder / ATTEMPT_FILE, asdict(attempt))
    return attempt


def test_a_lease_is_held_and_then_gone(tmp_path: Path) -> None:
    with lease(tmp_path, "probe", "run-1") as attempt:
        assert read_attempt(tmp_path) == attempt
        assert attempt.is_running() and leases.still_held(tmp_path, attempt)
        assert (attempt.stage, attempt.run_id, attempt.pid) == ("probe", "run-1", os.getpid())
    assert read_attempt(tmp_path) is None
    assert not leases.still_held(tmp_path, attempt)


def test_a_second_one_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    with lease(tmp_path, "probe", None) as first:
        with pytest.raises(LeaseHeldError, match=f"is being computed by process {os.getpid()} on ") as raised:
            lease(tmp_path, "probe", None).__enter__()
        assert "wait for it, or end that process" in str(raised.value)
        assert read_attempt(tmp_path) == first


def test_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    holder = start(HOLDER, tmp_path)
    try:
        assert line_of(holder) == "held"
        with pytest.raises(LeaseHeldError, match=f"process {holder.pid} on"):
            lease(tmp_path, "probe", None).__enter__()
    finally:
        end(holder)
    left = read_attempt(tmp_path)
    assert left is not None and left.state == "running" and not left.is_running()
    with lease(tmp_path, "probe", None) as attempt:
        assert attempt.pid == os.getpid()


def test_the_dead_are_marked_once(tmp_path: Path) -> None:
    holder = start(HOLDER, tmp_path)
    assert line_of(holder) == "held"
    assert mark_died(tmp_path) is None
    end(holder)
    dead = mark_died(tmp_path)
    assert dead is not None and (dead.state, dead.reason, dead.run_id) == ("died", "died", "run-7")
    assert str(dead.message).startswith(f"process {holder.pid} on ")
    assert mark_died(tmp_path) is None


def test_a_number_that_was_given_again_is_another_process(tmp_path: Path) -> None:
    with lease(tmp_path, "probe", None) as attempt:
        older = replace(attempt, started=attempt.started - 3600)
        replace_json(tmp_path / ATTEMPT_FILE, asdict(older))
        assert not older.is_running()
        with lease(tmp_path, "probe", None) as second:
            assert second.token != attempt.token


def test_another_machine_is_judged_by_its_heartbeat(tmp_path: Path) -> None:
    attempt = foreign(tmp_path, time.time() - 0.5 * FOREIGN_TIMEOUT_S)
    assert attempt.is_running()
    assert mark_died(tmp_path) is None
    with pytest.raises(LeaseHeldError, match="on another-machine"):
        lease(tmp_path, "probe", None).__enter__()
    foreign(tmp_path, time.time() - 1.5 * FOREIGN_TIMEOUT_S)
    with lease(tmp_path, "probe", None) as taken:
        assert taken.host == this_process().host


def test_the_heart_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_S", 0.02)
    with lease(tmp_path, "probe", None) as attempt:
        deadline = time.monotonic() + 10
        while (now := read_attempt(tmp_path)) is not None and now.heartbeat <= attempt.heartbeat:
            assert time.monotonic() < deadline, "no heartbeat within 10 s"
            time.sleep(0.01)
        assert now is not None and replace(now, heartbeat=attempt.heartbeat) == attempt


@pytest.mark.parametrize(
    ("error", "reason"), [(StageError("not_converged", "gap 0.1"), "not_converged"), (ValueError("gap 0.1"), "error")]
)
def test_a_failure_is_recorded(tmp_path: Path, error: Exception, reason: str) -> None:
    with pytest.raises(type(error)), lease(tmp_path, "probe", None):
        raise error
    left = read_attempt(tmp_path)
    assert left is not None and (left.state, left.reason, left.message) == ("failed", reason, "gap 0.1")
    assert not left.is_running()
    with lease(tmp_path, "probe", None):
        pass
    assert read_attempt(tmp_path) is None


def test_ctrl_c_is_no_property_of_the_partition(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), lease(tmp_path, "probe", None):
        raise KeyboardInterrupt
    assert read_attempt(tmp_path) is None


def test_who_lost_the_lease_does_not_touch_the_next_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), lease(tmp_path, "probe", None):
        other = foreign(tmp_path, time.time())
        raise ValueError("mine")
    assert read_attempt(tmp_path) == other
    leases.release(tmp_path, replace(other, token="not the one"))
    assert read_attempt(tmp_path) == other


@pytest.mark.parametrize("content", [b"{}", b"[]", b"{", b'{"token": "t", "colour": "red"}'])
def test_a_damaged_attempt_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ATTEMPT_FILE).write_bytes(content)
    with pytest.raises(StorageError, match=r"_attempt\.json is damaged .*remove it"):
        read_attempt(tmp_path)


def test_of_eight_processes_exactly_one_wins(tmp_path: Path) -> None:
    racers = [start(RACER, tmp_path / "partition") for _ in range(8)]
    try:
        assert [line_of(racer) for racer in racers] == ["ready"] * 8
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("\n")
            racer.stdin.flush()
        assert sorted(line_of(racer) for racer in racers) == ["refused"] * 7 + ["won"]
    finally:
        for racer in racers:
            end(racer)


def test_a_process_knows_itself() -> None:
    me = this_process()
    assert me.is_here() and me.is_alive()
    assert me.started == start_mark(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    identity = ProcessIdentity(me.host, child.pid, start_mark(child.pid) or 0.0)
    child.wait()
    assert not identity.is_alive()
    assert process_start(child.pid) is None and start_mark(child.pid) is None


def test_a_process_is_also_known_by_its_start_in_seconds() -> None:
    me = this_process()
    in_seconds = replace(me, started=process_start(me.pid) or 0.0)
    assert in_seconds.is_alive() and not replace(in_seconds, started=in_seconds.started - 60).is_alive()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system counts no ticks since its boot")
def test_a_step_of_the_clock_kills_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = psutil.Process.create_time
    with lease(tmp_path, "probe", None) as attempt:
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: begun(process) + 3600)
        left = read_attempt(tmp_path)
        assert left == attempt and left.is_running()
        assert mark_died(tmp_path) is None
