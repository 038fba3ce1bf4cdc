"""What the log of a run says when a stage is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crsbench_assets.defs.assets import done_sentence
from crsbench_assets.planning.stages import stage_named, stages_of
from crsbench_assets.storage.project import Project
from crsbench_assets.worker.run import StageResult, run_stage
from crsbench_assets_tests.fixtures import DATASET

KEY = ("alpha", DATASET)
ALL = {table for stage in stages_of("cell") for table in stage.tables}


@pytest.mark.parametrize(
    ("stage", "selected", "end"),
    [
        ("probe", ALL, "; next: calibrate, measure, aggregate, derive_axes, replicate"),
        ("measure", {"run_records", "cell_axes"}, "; next: derive_axes"),
        ("replicate", ALL, "; the last stage of this run"),
    ],
)
def test_it_names_what_is_next_in_the_run(computed: Project, stage: str, selected: set[str], end: str) -> None:
    kept = run_stage(computed, stage_named(stage), KEY, only_stale=True)
    assert (
        done_sentence(stage_named(stage), KEY, kept, selected) == f"{stage} of alpha x {DATASET} is current: kept{end}"
    )


def test_it_says_how_much_was_made_and_how_fast(computed: Project) -> None:
    stage = stage_named("extract")
    result = run_stage(computed, stage, KEY)
    n_rows = result.pointers["embeddings"].n_rows
    said = done_sentence(stage, KEY, result, {"embeddings"})
    assert said.startswith(f"extract of alpha x {DATASET}: {n_rows:,} rows of embeddings in ")
    assert said.endswith(" vectors/s; the last stage of this run")


def test_nothing_follows_a_stage_that_failed(computed: Project) -> None:
    stage = stage_named("extract")
    result = run_stage(computed, stage, KEY)
    failed = {
        name: replace(pointer, status="failed", reason="too_few_images") for name, pointer in result.pointers.items()
    }
    said = done_sentence(stage, KEY, StageResult(failed, is_reused=False), ALL)
    assert said == f"extract of alpha x {DATASET}: failed (too_few_images); nothing of this partition follows"
