"""Blocking checks: what is wrong stops its own chain, says so in one sentence, and touches nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from crsbench_assets.defs import build_definitions
from crsbench_assets.orchestration.execution import Executor
from crsbench_assets.orchestration.instance import environment
from crsbench_assets.orchestration.keys import asset_key
from crsbench_assets.planning.stages import stage_named, stages_of
from crsbench_assets.storage.lake import Provenance
from crsbench_assets.storage.layout import HomeLayout, PartitionKey
from crsbench_assets.storage.project import open_project, write_snapshot
from crsbench_assets.tables.analyses import ANALYSIS_TABLES
from crsbench_assets.tables.registry import TABLES
from crsbench_assets_tests.integration.homes import (
    CELL_TABLES,
    add_broken_encoder,
    content_hashes,
    copy_home,
    crsbench,
    exact_rows,
    instance_of,
    moved_columns,
    pointers,
    succeed,
    table_rows,
)
from crsbench_assets_tests.orchestration.checks import run_check


class Home:
    """A copy of the filled home whose runs are executed in this process."""

    def __init__(self, layout: HomeLayout, instance: dg.DagsterInstance) -> None:
        self.layout, self.instance = layout, instance
        self._executor = Executor(build_definitions(), instance, layout)

    def run(self, grain: str, key: PartitionKey, *tables: str, only_stale: bool = True) -> dict[str, str]:
        """Execute a run, by default one that keeps what is current, and return its answer."""
        request = {"do": "run", "grain": grain, "key": key, "tables": tables, "only_stale": only_stale}
        registry_hash = write_snapshot(open_project(self.layout.root))
        return self._executor.serve({**request, "registry": registry_hash}, lambda _: None)

    def alter(
        self, table: str, key: PartitionKey, change: pl.Expr | None = None, row: dict[str, object] | None = None
    ) -> None:
        """Commit a partition with other rows, as if its stage had computed them from the same inputs."""
        lake = open_project(self.layout.root).lake
        pointer, frame = lake.pointer(table, key), lake.read(table, key)
        assert pointer is not None
        changed = frame.with_columns(change) if change is not None else frame
        if row is not None:
            changed = pl.concat([changed, pl.DataFrame([row], schema=frame.schema)])
        assert exact_rows(changed) != exact_rows(frame)
        contents = {name: value for name, value in pointer.stage_contents.items() if name != table}
        lake.commit(table, key, changed, Provenance(pointer.inputs_hash, pointer.inputs, 0.0, None, contents))

    def failed_checks(self, run_id: str) -> set[tuple[str, str]]:
        """Return (table, check) of every check that failed in a run."""
        failed = set()
        for record in self.instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
            assert record.dagster_event is not None
            evaluation = record.dagster_event.asset_check_evaluation_data
            if not evaluation.passed:
                failed.add((evaluation.asset_key.path[-1], evaluation.check_name))
        return failed


@pytest.fixture
def home(filled: HomeLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    layout = copy_home(filled, tmp_path / "home")
    for name, value in environment(layout).items():
        monkeypatch.setenv(name, value)
    with instance_of(layout) as instance:
        yield Home(layout, instance)


@pytest.mark.slow  # materialises a whole home: 40 s
def test_one_image_without_a_vector_fails_its_cell_alone(filled: HomeLayout, tmp_path: Path) -> None:
    layout = copy_home(filled, tmp_path / "home")
    image_id = add_broken_encoder(layout, "enc-broken", like="enc-b", broken_on="tiny-b")
    before = content_hashes(layout)
    done = crsbench(layout, "materialize")
    assert done.returncode == 1, done.stdout + done.stderr
    sentence = next(line for line in done.stdout.splitlines() if line.startswith("failed: enc-broken x tiny-b"))
    assert repr(image_id) in sentence and "'clean'" in sentence

    after = pointers(layout)
    cell = "encoder_id=enc-broken/dataset_id=tiny-b"
    written = {name.split("/")[0]: pointer for name, pointer in after.items() if cell in name}
    assert set(written) == set(stage_named("extract").tables), "nothing downstream of the failed extraction"
    assert written["embeddings"].status == "failed" and written["embeddings"].reason == "incomplete_support"
    failures = open_project(layout.root).lake.read("embedding_failures", ("enc-broken", "tiny-b"))
    assert failures.get_column("image_id").to_list() == [image_id]
    with instance_of(layout) as instance:
        for table in CELL_TABLES:
            known = instance.get_materialized_partitions(asset_key(table))
            assert ("tiny-b|enc-broken" in known) == (table in written and written[table].status == "ok"), table
            assert "tiny-a|enc-broken" in known, "its other cell is computed"

    pooled = {table for stage in stages_of("whole") for table in stage.tables}
    assert {name: after[name].content_hash for name in before if name not in pooled} == {
        name: value for name, value in before.items() if name not in pooled
    }
    for table in ("crs_scores", "cell_scores", "cell_axes"):
        rows = table_rows(layout, table).filter(pl.col("encoder_id") != "enc-broken")
        assert exact_rows(rows) == exact_rows(table_rows(filled, table))
    for table in ("ranks", *(spec.name for spec in ANALYSIS_TABLES)):
        assert not moved_columns(filled, layout, table, "enc-broken"), table  # it has no score, so it stands nowhere
    score = table_rows(layout, "crs_scores").filter(pl.col("encoder_id") == "enc-broken").row(0, named=True)
    assert score["crs"] is None and score["reason"] is not None

    cells = json.loads(succeed(layout, "status", "--format", "json"))["cells"]
    assert [(c["dataset_id"], c["status"]) for c in cells if c["encoder_id"] == "enc-broken"] == [
        ("tiny-a", "ok"),
        ("tiny-b", "failed"),
    ]
    said = crsbench(layout, "materialize").stdout
    assert "failed earlier: enc-broken x tiny-b, extract: incomplete_support" in said
    assert pointers(layout) == after, "a failure of the data is not tried again by itself"


def test_a_leak_between_splits_fails_its_check(home: Home) -> None:
    tables = stage_named("split").tables
    assert "error" not in home.run("dataset", ("tiny-a",), *tables)
    constants = home_row(home, "leakage_violations")
    home.alter("leakage_violations", ("tiny-a",), row=constants)
    answer = home.run("dataset", ("tiny-a",), *tables)
    assert answer["error"].startswith("check no_leakage of leakage_violations failed: 1 row(s), first: ")
    assert home.failed_checks(answer["run_id"]) == {("leakage_violations", "no_leakage")}


def home_row(home: Home, table: str) -> dict[str, object]:
    """Return a row of a table of violations that its shape allows."""
    values: dict[str, object] = {"text": "a000001", "integer": 1, "real": 0.5, "boolean": True}
    pointer = open_project(home.layout.root).lake.pointer(table, ("tiny-a",))
    assert pointer is not None
    row = {column.name: values[column.type] for column in TABLES[table].columns}
    return row | {"dataset_id": "tiny-a", "inputs_hash": pointer.inputs_hash}


def test_a_probe_that_did_not_converge_stops_the_cell(home: Home) -> None:
    key = ("enc-b", "tiny-a")
    assert "error" not in home.run("cell", key, *CELL_TABLES)
    first = pl.col("seed") == 0
    home.alter("probe_fits", key, pl.when(first).then(False).otherwise(pl.col("is_converged")).alias("is_converged"))
    before = pointers(home.layout)
    answer = home.run("cell", key, *CELL_TABLES)
    assert "check converged of probe_fits failed" in answer["error"] and "not converged" in answer["error"]
    assert home.failed_checks(answer["run_id"]) == {("probe_fits", "converged")}
    assert pointers(home.layout) == before
    steps = {e.step_key for e in home.instance.all_logs(answer["run_id"], of_type=dg.DagsterEventType.STEP_SUCCESS)}
    assert {"extract", "probe"} <= steps and not steps & {"measure", "aggregate", "derive_axes"}


def test_a_published_score_that_differs_from_the_lake_is_a_warning(home: Home) -> None:
    def found() -> tuple[bool, object]:
        result = run_check(home.instance, "warehouse", "published_rows_match")
        (evaluation,) = result.get_asset_check_evaluations()
        assert result.success and evaluation.severity == dg.AssetCheckSeverity.WARN
        return evaluation.passed, evaluation.metadata["found"].value

    assert found() == (True, "2 row(s) published, 2 in the lake")
    home.alter("crs_scores", (), pl.col("crs") / 2)
    assert found() == (False, "2 row(s) published, 2 in the lake")


def test_a_frozen_score_that_moved_by_one_bit_is_not_published(home: Home) -> None:
    tables = (*stage_named("score").tables, "warehouse")
    assert "error" not in home.run("whole", (), *tables)
    snapshot = home.layout.warehouse.readlink()
    one_bit = pl.col("crs").map_elements(lambda value: math.nextafter(value, 2.0), return_dtype=pl.Float64)
    home.alter(
        "crs_scores", (), pl.when(pl.col("encoder_id") == "enc-c").then(one_bit).otherwise(pl.col("crs")).alias("crs")
    )
    answer = home.run("whole", (), *tables)
    assert "check frozen_scores_unchanged of crs_scores failed: enc-c against base-" in answer["error"]
    assert home.failed_checks(answer["run_id"]) == {("crs_scores", "frozen_scores_unchanged")}
    assert home.layout.warehouse.readlink() == snapshot, "the last good snapshot stays"

    # computed again from the same inputs, the score has its old bits
    assert "error" not in home.run("whole", (), *tables, only_stale=False)
    assert home.layout.warehouse.readlink() != snapshot
