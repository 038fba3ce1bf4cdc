"""Kill -9 of every kind of process that computes: the next command says what died, and finishes what it left.

What is compared: the content hash of every partition, with those of a copy of the same home that nobody disturbed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets_tests.integration.homes import (
    CELL_TABLES,
    DagsterUi,
    add_encoder,
    assert_nothing_hangs,
    children,
    content_hashes,
    copy_home,
    finished_run,
    instance_of,
    is_alive,
    kill,
    running_attempt,
    served,
    started,
    succeed,
    wait_for,
)


@pytest.fixture
def due(filled: HomeLayout, tmp_path: Path) -> HomeLayout:
    """A copy of the filled home in which the encoder ``enc-a`` is still to be computed."""
    layout = copy_home(filled, tmp_path / "home")
    add_encoder(layout, "enc-a")
    return layout


def at_work(layout: HomeLayout, *, but: int | None = None) -> Callable[[], dict[str, Any] | None]:
    """Return a look for an attempt that runs in another process than ``but``."""

    def look() -> dict[str, Any] | None:
        attempt = running_attempt(layout)
        return attempt if attempt and attempt["pid"] != but else None

    return look


def n_failed_runs(layout: HomeLayout) -> int:
    """Return how many runs of a home ended as failures."""
    with instance_of(layout) as instance:
        return sum(run.is_failure for run in instance.get_runs())


@pytest.mark.slow  # computes cells in children: half a minute
def test_a_killed_child_is_replaced_within_the_command(due: HomeLayout, extended: HomeLayout) -> None:
    with started(due, "materialize") as command:
        attempt = wait_for(at_work(due), "a cell is being computed")
        assert attempt["pid"] in [child.pid for child in children(command.pid)]
        kill(attempt["pid"])
        assert command.wait() == 0, command.said
        said = command.said
    assert "died: the process that computed enc-a x tiny-" in said
    assert content_hashes(due) == content_hashes(extended)
    assert n_failed_runs(due) == 1
    assert_nothing_hangs(due)


@pytest.mark.slow  # four children of the command start one after another
def test_a_partition_whose_process_dies_twice_is_left_to_the_next_command(
    due: HomeLayout, extended: HomeLayout
) -> None:
    with started(due, "materialize", "--encoder", "enc-a", "--dataset", "tiny-a") as command:
        first = wait_for(at_work(due), "a cell is being computed")
        kill(first["pid"])
        second = wait_for(at_work(due, but=first["pid"]), "it is computed again")
        assert second["run_id"] != first["run_id"]
        kill(second["pid"])
        assert command.wait() == 1, command.said
        assert "its process died 2 times" in command.said
    assert_nothing_hangs(due)
    said = succeed(due, "materialize")
    assert content_hashes(due) == content_hashes(extended), said
    assert_nothing_hangs(due)


@pytest.mark.slow  # computes cells in children: half a minute
def test_a_killed_command_takes_its_children_along(due: HomeLayout, extended: HomeLayout) -> None:
    with started(due, "materialize") as command:
        attempt = wait_for(at_work(due), "a cell is being computed")
        family = children(command.pid)
        kill(command.pid)
        wait_for(lambda: not any(is_alive(child) for child in family), "its children end", timeout=5)
    assert not psutil.pid_exists(attempt["pid"]) or not is_alive(psutil.Process(attempt["pid"]))

    said = succeed(due, "status")
    assert f"process {attempt['pid']}" in said and "it is computed again" in said, said
    assert "marked failed" in said
    assert_nothing_hangs(due)

    succeed(due, "materialize")
    assert content_hashes(due) == content_hashes(extended)
    assert_nothing_hangs(due)


def add_cells_in_ui(ui: DagsterUi, layout: HomeLayout) -> dict[str, Any]:
    """Launch a cell of ``enc-a`` in the UI and return the attempt of its run worker."""
    ui.add_key("encoder", "enc-a")
    ui.launch(CELL_TABLES, "tiny-a|enc-a")
    return wait_for(at_work(layout), "the run worker computes")


@pytest.mark.slow  # starts the Dagster UI and kills it: about a minute on two idle cores
@pytest.mark.parametrize("victims", ["dagster dev", "everything below crsbench ui"])
def test_a_killed_ui_is_reaped_by_the_next_command(due: HomeLayout, extended: HomeLayout, victims: str) -> None:
    with served(due) as ui:
        attempt = add_cells_in_ui(ui, due)
        family = children(ui.command.pid)
        (dagster_dev,) = psutil.Process(ui.command.pid).children()
        for victim in [dagster_dev] if victims == "dagster dev" else family:
            kill(victim.pid)
        assert ui.command.wait(30) == 1, "the UI ended by itself"
        assert "the Dagster UI ended by itself" in ui.command.said
        assert not [child for child in family if is_alive(child)], "code server, webserver, daemon and run workers too"

    said = succeed(due, "status")
    if victims != "dagster dev":  # else the run worker was asked to end, and closed its run itself
        assert f"process {attempt['pid']}" in said and "marked failed" in said, said
    assert_nothing_hangs(due)
    succeed(due, "materialize")
    assert content_hashes(due) == content_hashes(extended)
    assert_nothing_hangs(due)


@pytest.mark.slow  # starts the Dagster UI twice
def test_what_is_left_of_a_killed_ui_command_is_ended_by_the_next(due: HomeLayout, extended: HomeLayout) -> None:
    with served(due) as ui:
        add_cells_in_ui(ui, due)
        family = children(ui.command.pid)
        kill(ui.command.pid)
        ui.command.wait(10)
        with served(due) as second:
            assert "ending what was left of an earlier Dagster UI" in second.command.said
            assert not [child for child in family if is_alive(child)]
    succeed(due, "materialize")
    assert content_hashes(due) == content_hashes(extended)
    assert_nothing_hangs(due)


@pytest.mark.slow  # starts the Dagster UI and waits for its daemon to see the death: about a minute
def test_a_killed_run_worker_of_the_ui(due: HomeLayout, extended: HomeLayout) -> None:
    with served(due) as ui:
        attempt = add_cells_in_ui(ui, due)
        kill(attempt["pid"])
        said = succeed(due, "materialize")
        assert content_hashes(due) == content_hashes(extended), said
        killed = finished_run(due, attempt["run_id"])
        assert killed.is_failure
        # Dagster starts a run whose process died once more; it ends like any other
        wait_for(lambda: not unfinished_runs(due), "every run ends", timeout=180, every=1)
        assert content_hashes(due) == content_hashes(extended)
    assert_nothing_hangs(due)


def unfinished_runs(layout: HomeLayout) -> list[str]:
    """Return the ids of runs that have not ended."""
    with instance_of(layout) as instance:
        return [run.run_id for run in instance.get_runs() if not run.is_finished]
