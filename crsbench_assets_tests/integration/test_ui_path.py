"""The way of the Dagster UI: the same numbers as the command line, and cards that become scores by themselves."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import duckdb
import psutil
import pytest
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.definitions.sensor_definition import SensorExecutionData

from crsbench_assets.defs import build_definitions
from crsbench_assets.orchestration.instance import environment
from crsbench_assets.orchestration.resources import ProjectResource
from crsbench_assets.storage.layout import HOME_VARIABLE, HomeLayout
from crsbench_assets_tests.integration.homes import (
    CELL_TABLES,
    DagsterUi,
    add_encoder,
    assert_nothing_hangs,
    children,
    content_hashes,
    copy_home,
    crsbench,
    failure_sentence,
    finished_run,
    instance_of,
    is_alive,
    make_home,
    pointers,
    served,
    succeed,
    wait_for,
)

BAR_S = 6.0


@pytest.fixture(scope="module")
def ui(filled: HomeLayout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterUi]:
    """The UI of a copy of the filled home, in which everything is current."""
    with served(copy_home(filled, tmp_path_factory.mktemp("ui") / "home")) as running:
        yield running


def home_of(ui: DagsterUi) -> HomeLayout:
    """Return the home that a UI serves."""
    return HomeLayout(Path(psutil.Process(ui.command.pid).environ()[HOME_VARIABLE]))


def partitions_of(names: dict[str, str], encoder_id: str, dataset_id: str) -> dict[str, str]:
    """Return the entries of one cell."""
    return {name: value for name, value in names.items() if f"encoder_id={encoder_id}/dataset_id={dataset_id}" in name}


@pytest.mark.slow  # starts the Dagster UI
def test_a_cell_launched_in_the_ui_has_the_content_of_the_command_line(ui: DagsterUi, filled: HomeLayout) -> None:
    layout = home_of(ui)
    before = pointers(layout)
    run = finished_run(layout, ui.launch(CELL_TABLES, "tiny-a|enc-b"))
    assert run.is_success
    after = pointers(layout)
    cell = partitions_of({name: name for name in before}, "enc-b", "tiny-a")
    assert len(cell) == len(CELL_TABLES)
    assert {name for name in after if after[name].run_id == run.run_id} == set(cell), "computed anew, and nothing else"
    assert content_hashes(layout) == content_hashes(filled)


@pytest.mark.slow  # the daemon looks for backfills every half minute
def test_a_backfill_has_the_content_of_the_command_line(ui: DagsterUi, filled: HomeLayout) -> None:
    layout = home_of(ui)
    backfill_id = ui.backfill(CELL_TABLES, ["tiny-a|enc-c", "tiny-b|enc-c"])
    with instance_of(layout) as instance:
        tag = dg.RunsFilter(tags={"dagster/backfill": backfill_id})
        wait_for(lambda: len(instance.get_runs(tag)) == 2, "two runs", every=0.5)
        runs = instance.get_runs(tag)
    for run in runs:
        assert finished_run(layout, run.run_id).is_success
    assert {pointers(layout)[name].run_id for name in partitions_of(content_hashes(layout), "enc-c", "tiny-b")} <= {
        run.run_id for run in runs
    }
    assert content_hashes(layout) == content_hashes(filled)


@pytest.mark.slow  # starts the Dagster UI
def test_a_key_without_a_card_names_the_file_to_add(ui: DagsterUi) -> None:
    layout = home_of(ui)
    ui.add_key("encoder", "by-hand")
    run = finished_run(layout, ui.launch(CELL_TABLES, "tiny-a|by-hand"))
    assert run.is_failure
    sentence = failure_sentence(layout, run.run_id)
    assert sentence.startswith("No active card describes the encoder 'by-hand': add encoders/by-hand.yaml to the home")
    assert not partitions_of(content_hashes(layout), "by-hand", "tiny-a")

    said = succeed(layout, "reconcile", "--remove-unknown-keys")
    assert "Removed partition keys without a card: encoder by-hand." in said
    with instance_of(layout) as instance:
        assert set(instance.get_dynamic_partitions("encoder")) == {"enc-b", "enc-c"}


@pytest.mark.slow  # starts the Dagster UI
def test_a_second_ui_is_refused_and_sigterm_ends_the_first(ui: DagsterUi) -> None:
    layout = home_of(ui)
    second = crsbench(layout, "ui", "--port", str(ui.port + 1))
    assert second.returncode == 1
    assert second.stderr.splitlines() == [
        f"crsbench: The Dagster UI of {layout.root} runs already (process {ui.command.pid}): use that one, or end it "
        "with Ctrl-C."
    ]
    family = children(ui.command.pid)
    assert len(family) > 3, "dagster dev, code server, webserver, daemon"
    begin = time.monotonic()
    ui.command.process.send_signal(signal.SIGTERM)
    assert ui.command.wait(30) == 0
    seconds = time.monotonic() - begin
    assert not [child for child in family if is_alive(child)]
    assert seconds < BAR_S, f"{seconds:.1f} s at a load of {psutil.getloadavg()[0]:.1f}"
    assert_nothing_hangs(layout)


def tick(definitions: dg.Definitions, instance: dg.DagsterInstance) -> SensorExecutionData:
    """Evaluate ``registry_sensor`` once, as the daemon does."""
    context = dg.build_sensor_context(
        instance=instance, repository_def=definitions.get_repository_def(), resources={"project": ProjectResource()}
    )
    with partition_loading_context(dynamic_partitions_store=instance):
        return definitions.resolve_sensor_def("registry_sensor").evaluate_tick(context)


@pytest.mark.slow  # materialises what two sensors ask for: half a minute
def test_a_card_becomes_keys_then_cells_then_a_leaderboard(
    filled: HomeLayout, extended: HomeLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the daemon does in minutes, tick by tick in this process."""
    layout = copy_home(filled, tmp_path / "home")
    for name, value in environment(layout).items():
        monkeypatch.setenv(name, value)
    definitions = build_definitions()
    job = definitions.resolve_implicit_global_asset_job_def()
    with instance_of(layout) as instance:
        assert tick(definitions, instance).skip_message, "everything is current"
        now = datetime.now(UTC)
        quiet = dg.evaluate_automation_conditions(definitions, instance, evaluation_time=now)
        add_encoder(layout, "enc-a")

        keys = tick(definitions, instance)
        assert not keys.run_requests
        assert [(r.partitions_def_name, list(r.partition_keys)) for r in keys.dynamic_partitions_requests or ()] == [
            ("encoder", ["enc-a"])
        ]
        instance.add_dynamic_partitions("encoder", ["enc-a"])

        requests = tick(definitions, instance).run_requests or ()
        assert {str(request.partition_key) for request in requests} == {"None", "tiny-a|enc-a", "tiny-b|enc-a"}
        assert len({request.run_key for request in requests}) == len(requests)
        for request in requests:
            done = job.execute_in_process(
                instance=instance,
                asset_selection=list(request.asset_selection or ()),
                partition_key=request.partition_key,
                tags=request.tags,
            )
            assert done.success
        assert tick(definitions, instance).skip_message, "the cells are asked for once"

        changed = dg.evaluate_automation_conditions(
            definitions, instance, cursor=quiet.cursor, evaluation_time=now + timedelta(minutes=6)
        )
        pooled = [
            key for key in sorted(job.asset_layer.asset_graph.get_all_asset_keys()) if changed.get_num_requested(key)
        ]
        assert {key.path[-1] for key in pooled} >= {"crs_scores", "ranks", "warehouse"}
        assert not {key.path[-1] for key in pooled} & set(CELL_TABLES), "cells are the planner's to ask for"
        assert job.execute_in_process(instance=instance, asset_selection=pooled).success
    assert content_hashes(layout) == content_hashes(extended)
    assert set(leaderboard(layout)) == {"enc-a", "enc-b", "enc-c"}
    assert None not in leaderboard(layout).values()


def leaderboard(layout: HomeLayout) -> dict[str, float | None]:
    """Return the scores of the published leaderboard by encoder; empty where nothing is published."""
    try:
        with duckdb.connect(str(layout.warehouse), read_only=True) as connection:
            return dict(connection.execute("SELECT encoder_id, crs FROM leaderboard").fetchall())
    except duckdb.Error:
        return {}


@pytest.mark.slow  # waits for ticks of 30 s and publications of a minute: about five minutes
def test_cards_become_scores_without_a_command(tmp_path: Path) -> None:
    layout = make_home(tmp_path / "home", settings="publish_minutes: 1")
    with served(layout):
        wait_for(lambda: set(leaderboard(layout)) == {"enc-b", "enc-c"}, "the first leaderboard", 600, every=1)
        wait_for(lambda: all(v is not None for v in leaderboard(layout).values()), "all scores", 300, every=1)
        add_encoder(layout, "enc-a")
        wait_for(lambda: leaderboard(layout).get("enc-a") is not None, "the score of the new card", 600, every=1)
    copy = copy_home(layout, tmp_path / "copy")
    shutil.rmtree(copy.root / "lake" / "main")
    succeed(copy, "materialize")
    assert content_hashes(layout) == content_hashes(copy)
