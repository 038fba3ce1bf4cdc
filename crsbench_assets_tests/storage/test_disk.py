"""A disk that is full or read-only: one sentence, and nothing that was finished is lost.

Where the tests run as root, the disks are real: a small tmpfs, and the same mounted read-only. Elsewhere the
system calls are replaced by ones that fail alike. Run with ``-rP`` to see which it was.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from crsbench_assets.config.errors import StorageError
from crsbench_assets.operations.homes import init_home
from crsbench_assets.planning.plan import plan
from crsbench_assets.planning.stages import stage_named
from crsbench_assets.storage.files import replace_bytes, storage_errors
from crsbench_assets.storage.lake import Provenance
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import Project, open_project, write_snapshot
from crsbench_assets.storage.sql import query
from crsbench_assets.worker.run import run_stage
from crsbench_assets_tests.fixtures import DATASET, FULL, Disk, disk_error, file_bytes

CELL = ("alpha", DATASET)


def force(project: Project, stage: str = "aggregate") -> None:
    """Compute a stage of a cell again, whether or not it is current."""
    run_stage(project, stage_named(stage), CELL)


def test_a_full_disk_is_one_sentence_and_the_old_partition_stays(disk: Disk) -> None:
    project = open_project(disk.layout.root)
    before = project.lake.read("seed_aggregates", CELL)
    files = file_bytes(project.lake.folder("seed_aggregates", CELL))
    records = project.lake.read("run_records", CELL)
    disk.fill()
    with pytest.raises(StorageError, match="The disk is full") as raised:
        project.lake.commit(
            "run_records", CELL, records.with_columns(n=records["n"] + 1), Provenance("inputs", {}, 0.0)
        )
    assert "everything finished so far is kept" in str(raised.value)
    with pytest.raises(StorageError, match="The disk is full"):
        force(project)
    assert project.lake.read("seed_aggregates", CELL).equals(before)
    assert project.lake.read("run_records", CELL).equals(records)
    assert file_bytes(project.lake.folder("seed_aggregates", CELL)) == files
    assert not list(disk.layout.lake.rglob("*.tmp"))
    disk.free()
    force(project)
    assert project.lake.read("seed_aggregates", CELL).equals(before)


def test_a_full_disk_keeps_small_files_whole(disk: Disk) -> None:
    path = disk.layout.root / "small.json"
    replace_bytes(path, b"old")
    disk.fill()
    with pytest.raises(StorageError, match=r"The disk is full: .*small\.json could not be written"):
        replace_bytes(path, b"new" * 4096)
    assert path.read_bytes() == b"old"
    disk.free()
    replace_bytes(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_home_half_made_on_a_full_disk_is_made_when_there_is_space(disk: Disk) -> None:
    layout = HomeLayout(disk.layout.root / "another")
    disk.fill()
    with pytest.raises(StorageError, match="The disk is full"):
        init_home(layout)
    assert not layout.settings.exists()
    disk.free()
    assert init_home(layout)
    assert open_project(layout.root).registry.encoders == {}


@pytest.mark.parametrize("stop_before", ["dagster.yaml", "crsbench_home_id", "_layout.json", "crsbench.yaml"])
def test_an_init_that_was_cut_off_anywhere_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_before: str
) -> None:
    layout = HomeLayout(tmp_path / "home")
    replace = os.replace

    def cut_off(source: Any, target: Any) -> None:
        if Path(target).name == stop_before:
            raise disk_error(FULL)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", cut_off)
        with pytest.raises(StorageError, match="The disk is full"):
            init_home(layout)
    assert init_home(layout)
    mark = (layout.dagster / "crsbench_home_id").read_text(encoding="utf-8")
    assert open_project(layout.root).home_id == mark


def test_a_lost_settings_file_is_not_replaced_over_results(computed_home: HomeLayout) -> None:
    computed_home.settings.unlink()
    before = file_bytes(computed_home.root)
    with pytest.raises(StorageError, match="is not empty and no crsbench home"):
        init_home(computed_home)
    assert file_bytes(computed_home.root) == before


def test_a_read_only_home_is_read(disk: Disk) -> None:
    disk.make_read_only()
    before = file_bytes(disk.layout.root)
    project = open_project(disk.layout.root)
    assert {cell.status for cell in plan(project).cells} == {"ok"}
    answer = query(project, "SELECT count(*) AS n FROM run_records", cells=lambda: plan(project).cells)
    assert answer.table.to_pylist() == [{"n": 24}] and answer.origin == "lake"
    assert file_bytes(disk.layout.root) == before


def test_a_read_only_home_refuses_work_in_one_sentence(disk: Disk) -> None:
    project = open_project(disk.layout.root)
    disk.make_read_only()
    for work in (lambda: force(project), lambda: write_snapshot(project)):
        with pytest.raises(StorageError, match=r"cannot be written: Read-only file system\. Make the home writable"):
            work()
    assert project.lake.read("run_records", CELL).height == 12


def test_a_folder_of_somebody_else_is_no_home(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("ten years", encoding="utf-8")
    with pytest.raises(StorageError, match="is not empty and no crsbench home"):
        init_home(HomeLayout(tmp_path))
    assert file_bytes(tmp_path) == {"thesis.tex": b"ten years"}


def test_a_home_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for root in (tmp_path / "file", tmp_path / "file" / "home"):
        with pytest.raises(StorageError, match=str(root)):
            init_home(HomeLayout(root))


def test_other_errors_of_the_disk_are_sentences_too(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Input/output error"), storage_errors(tmp_path):
        raise disk_error(5)
