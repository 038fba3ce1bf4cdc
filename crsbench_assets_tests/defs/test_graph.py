"""The whole graph, compared with a copy that a person has looked at.

Run with UPDATE_SNAPSHOTS=1 to write ``graph.json`` anew, and read its diff: a changed key, mapping or partition breaks
the history that homes have in Dagster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import crsbench_assets
from crsbench_assets.defs import build_definitions
from crsbench_assets.planning.stages import STAGES, stages_of

ROOT = Path(crsbench_assets.__file__).parents[1]
SNAPSHOT = Path(__file__).parent / "graph.json"


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> dg.Definitions:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("no-home"))  # a home beside the clone would bring its own settings
        return build_definitions()


def name_of(value: object) -> str | None:
    return None if value is None else type(value).__name__


def label_of(condition: Any) -> str | None:
    return None if condition is None else condition.get_label()


def partitions_of(definition: Any) -> list[str] | None:
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return sorted(dimension.name for dimension in definition.partitions_defs)
    return None if definition is None else [definition.name]


def snapshot(definitions: dg.Definitions) -> dict[str, Any]:
    """Return everything about the graph that a user or another machine relies on."""
    graph = definitions.resolve_asset_graph()
    assets = {
        spec.key.to_user_string(): {
            "group": spec.group_name,
            "owners": list(spec.owners),
            "kinds": sorted(spec.kinds),
            "partitions": partitions_of(spec.partitions_def),
            "condition": label_of(spec.automation_condition),
            "deps": {dep.asset_key.to_user_string(): name_of(dep.partition_mapping) for dep in spec.deps},
        }
        for spec in definitions.resolve_all_asset_specs()
    }
    checks = {
        f"{key.asset_key.to_user_string()}:{key.name}": {
            "blocking": graph.get_check_spec(key).blocking,
            "partitions": partitions_of(graph.get_check_spec(key).partitions_def),
        }
        for key in graph.asset_check_keys
    }
    jobs = {
        job.name: sorted(key.to_user_string() for key in job.asset_layer.selected_asset_keys)
        for job in definitions.resolve_all_job_defs()
        if not job.name.startswith("__")
    }
    repository = definitions.get_repository_def()

    def resolved(selection: dg.AssetSelection | None) -> set[dg.AssetKey]:
        return set() if selection is None else set(selection.resolve(graph))

    sensors = {
        sensor.name: {
            "type": sensor.sensor_type.value,
            "status": sensor.default_status.value,
            "seconds": sensor.minimum_interval_seconds,
            "assets": sorted(key.to_user_string() for key in resolved(sensor.asset_selection)),
        }
        for sensor in repository.sensor_defs
    }
    schedules = {
        schedule.name: {
            "cron": schedule.cron_schedule,
            "job": schedule.job_name,
            "status": schedule.default_status.value,
        }
        for schedule in repository.schedule_defs
    }
    return {"assets": assets, "checks": checks, "jobs": jobs, "sensors": sensors, "schedules": schedules}


def test_the_graph_is_the_one_that_was_looked_at(definitions: dg.Definitions) -> None:
    found = json.loads(json.dumps(snapshot(definitions), sort_keys=True))
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    expected = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    for part in expected:
        assert found[part] == expected[part], f"{part} of the graph changed: UPDATE_SNAPSHOTS=1, then read the diff"
    assert found.keys() == expected.keys()


def test_every_table_of_a_stage_is_an_asset_with_its_declared_inputs(definitions: dg.Definitions) -> None:
    specs = {spec.key: spec for spec in definitions.resolve_all_asset_specs()}
    for stage in STAGES:
        for table in stage.tables:
            spec = specs[dg.AssetKey(["main", table])]
            assert {dep.asset_key.path[-1] for dep in spec.deps} == set(stage.reads)
            assert spec.description and spec.code_version and spec.metadata["dagster/column_schema"]
    written = {table for stage in STAGES for table in stage.tables}
    assert {key.path[-1] for key in specs} == written | {"warehouse", "report"}


def test_groups_stand_in_the_order_of_the_stages(definitions: dg.Definitions) -> None:
    specs = {spec.key.path[-1]: spec for spec in definitions.resolve_all_asset_specs()}
    in_order = [specs[table].group_name for stage in STAGES for table in stage.tables] + [specs["warehouse"].group_name]
    assert sorted(set(in_order), key=str) == list(dict.fromkeys(in_order)), "the UI sorts them by name"


def test_every_description_says_what_a_row_is(definitions: dg.Definitions) -> None:
    for spec in definitions.resolve_all_asset_specs():
        if spec.key.path[-1] not in ("warehouse", "report"):
            assert str(spec.description).startswith("One row per "), spec.key


def test_pooled_tables_link_to_the_report(definitions: dg.Definitions) -> None:
    specs = {spec.key.path[-1]: spec for spec in definitions.resolve_all_asset_specs()}
    for name in ("crs_scores", "bootstrap_ranks", "warehouse"):
        assert "(/assets/main/report)" in str(specs[name].description)
    assert specs["report"].automation_condition is None, "written when somebody asks"


def test_only_pooled_assets_act_by_themselves(definitions: dg.Definitions) -> None:
    automatic = {spec.key.path[-1] for spec in definitions.resolve_all_asset_specs() if spec.automation_condition}
    pooled = {table for stage in stages_of("whole") for table in stage.tables}
    assert automatic == pooled | {"warehouse"}


def test_cells_depend_on_their_own_dataset_alone(definitions: dg.Definitions) -> None:
    mapping = next(
        dep.partition_mapping
        for spec in definitions.resolve_all_asset_specs()
        if spec.key.path[-1] == "embeddings"
        for dep in spec.deps
        if dep.asset_key.path[-1] == "splits"
    )
    assert isinstance(mapping, dg.MultiToSingleDimensionPartitionMapping)
    assert mapping.partition_dimension_name == "dataset"


def test_dagster_accepts_the_workspace() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "CRSBENCH_HOME")}
    done = subprocess.run(
        [Path(sys.executable).parent / "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Validation successful for code location crsbench" in done.stdout + done.stderr
