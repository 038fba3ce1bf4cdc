"""Ctrl-C and SIGTERM during ``materialize``: one sentence, exit code 130, nobody left behind, within two seconds.

Also while it waits for a pool slot or for a partition that another process computes: in-process waiting of Dagster
cannot be interrupted, which is why a child waits.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.test_utils import create_run_for_test

from crsbench_assets.orchestration.reaper import process_tags
from crsbench_assets.storage.lake import Lake
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.leases import lease
from crsbench_assets_tests.integration.homes import (
    Command,
    add_encoder,
    assert_nothing_hangs,
    children,
    copy_home,
    instance_of,
    is_alive,
    running_attempt,
    started,
    succeed,
    wait_for,
)

BAR_S = 2.0


@pytest.fixture
def due(filled: HomeLayout, tmp_path: Path) -> HomeLayout:
    """A copy of the filled home in which the encoder ``enc-a`` is still to be computed."""
    layout = copy_home(filled, tmp_path / "home")
    add_encoder(layout, "enc-a")
    return layout


def assert_ends_at_once(command: Command, number: signal.Signals) -> None:
    """Send a signal and check the exit code, the one sentence, the children and the time."""
    family = children(command.pid)
    assert family, "a child computes"
    begin = time.monotonic()
    command.process.send_signal(number)
    code = command.wait(timeout=30)
    seconds = time.monotonic() - begin
    said = command.said
    assert code == 130, said
    assert said.strip().splitlines()[-1] == "crsbench: stopped; everything that was finished is kept."
    assert "Traceback" not in said and said.count("crsbench:") == 1, said
    assert not [child for child in family if is_alive(child)]
    assert seconds < BAR_S, f"{seconds:.2f} s at a load of {psutil.getloadavg()[0]:.1f}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_computing(due: HomeLayout, number: signal.Signals) -> None:
    with started(due, "materialize") as command:
        wait_for(lambda: running_attempt(due), "a cell is being computed")
        assert_ends_at_once(command, number)
    assert running_attempt(due) is None, "nobody waits for what was cut off"
    assert "marked failed" in succeed(due, "status")
    assert_nothing_hangs(due)


@pytest.mark.slow  # a command starts its children and waits
def test_while_waiting_for_a_pool_slot(due: HomeLayout) -> None:
    with instance_of(due) as instance:
        storage = instance.event_log_storage
        storage.set_concurrency_slots("gpu", 1)  # as on a machine with a GPU
        holder = create_run_for_test(instance, status=dg.DagsterRunStatus.STARTED, tags=process_tags())
        assert storage.claim_concurrency_slot("gpu", holder.run_id, "extract").is_claimed
        with started(due, "materialize") as command:
            wait_for(
                lambda: any(step.run_id != holder.run_id for step in storage.get_concurrency_info("gpu").pending_steps),
                "the cell waits for the slot",
            )
            time.sleep(1.0)
            assert command.process.poll() is None
            assert running_attempt(due) is None, "nothing is computed without a slot"
            assert_ends_at_once(command, signal.SIGINT)
        assert storage.get_concurrency_info("gpu").active_run_ids == {holder.run_id}


@pytest.mark.slow  # a command starts its children and waits
def test_while_waiting_for_another_process(due: HomeLayout) -> None:
    folder = Lake(due).folder("embedding_failures", ("enc-a", "tiny-a"))
    with lease(folder, "extract", None) as held, started(due, "materialize") as command:
        log = due.dagster / "logs" / f"materialize-{command.pid}.log"
        wait_for(lambda: log.exists() and "waiting: " in log.read_text(), "the cell waits for the lease")
        assert_ends_at_once(command, signal.SIGINT)
        attempt = running_attempt(due, "embedding_failures")
        assert attempt is not None and attempt["token"] == held.token, "the other's lease is its own"
