"""A shift target whose agreement nobody recorded: everything else runs, and whatever rests on it says ``no_access``."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import yaml

from crsbench_assets.operations.doctor import examine
from crsbench_assets.operations.panels import freeze_panel
from crsbench_assets.planning.plan import plan
from crsbench_assets.planning.stages import stage_named
from crsbench_assets.report.html import write_report
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets.storage.warehouse import publish
from crsbench_assets.tables.reasons import REASONS
from crsbench_assets.worker.run import run_stage
from crsbench_assets_tests.fixtures import DATASET, ENCODERS, compute, dataset_card, due, vectors, write_card

ALPHA, COHORT = ("alpha", DATASET), (DATASET,)
CELL = ("index", "split", "extract", "probe", "measure")
SHIFT, CONDITION = "elsewhere", "shift_elsewhere"
HOW = "ask the other hospital at https://elsewhere.example"


@pytest.fixture
def closed(tiny_home: HomeLayout) -> Project:
    """A home with a shift target: the labels and vectors are there, the agreement is not recorded."""
    files = tiny_home.root / "files"
    labels = pl.read_csv(files / "labels.csv", infer_schema=False)
    labels.head(60).write_csv(files / "elsewhere.csv")
    for encoder_id in ENCODERS:
        rows = vectors(encoder_id)
        shifted = rows.filter(pl.col("condition_id") == "blur-s1").with_columns(condition_id=pl.lit(CONDITION))
        pl.concat([rows, shifted]).write_parquet(files / f"{encoder_id}.parquet")
    columns = {"image_id": "image_id", "class_column": "label", "group": "pair"}
    source = {"layout": "manifest", "manifest": "../files/elsewhere.csv", "columns": columns}
    shift = {"id": SHIFT, "name": "Elsewhere", "source": source, "agreement": "their-terms", "access": HOW}
    write_card(tiny_home.root, "datasets", dataset_card(shift=shift))
    return open_project(tiny_home.root)


def record_agreement(layout: HomeLayout) -> Project:
    settings: dict[str, Any] = yaml.safe_load(layout.settings.read_text(encoding="utf-8"))
    settings["agreements"] = {"their-terms": {"accepted_by": "me", "accepted_on": "2026-01-31"}}
    layout.settings.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return open_project(layout.root)


def shifted(project: Project, table: str) -> set[tuple[Any, ...]]:
    """Return (value, reason) of every row of a cell's table under the shift target, with its first metric."""
    value = {"label_metrics": "auroc", "seed_aggregates": "macro_auroc_mean"}.get(table, "macro_auroc")
    rows = project.lake.read(table, ALPHA).filter(pl.col("condition_id") == CONDITION)
    return set(rows.select(value, "reason").rows())


def test_the_records_say_so(closed: Project) -> None:
    compute(closed, CELL)
    assert set(closed.lake.read("images", COHORT)["source_id"]) == {"primary"}
    assert shifted(closed, "run_records") == {(None, "no_access")}
    others = closed.lake.read("run_records", ALPHA).filter(pl.col("condition_id") != CONDITION)
    assert others["macro_auroc"].null_count() == 0


@pytest.mark.slow
def test_everything_else_is_computed(closed: Project) -> None:
    compute(closed)
    run_stage(closed, stage_named("estimate"), ALPHA)
    assert {cell.status for cell in plan(closed).cells} == {"ok"}
    assert due(closed) == set()
    for table in ("label_metrics", "run_records", "seed_aggregates", "calibrated_records", "estimator_records"):
        assert shifted(closed, table) == {(None, "no_access")}, table

    axes = closed.lake.read("cell_axes", ALPHA).filter(pl.col("axis") == "robustness")
    found = {variant: (value, reason) for variant, value, reason in axes.select("variant", "value", "reason").rows()}
    assert found["primary"] == (None, "no_access")
    assert found["corruption_only"][0] is not None and found["corruption_only"][1] is None

    panel = freeze_panel(closed, "mine").panel
    assert (panel.conditions.robustness_variant, panel.members) == ("corruption_only", ENCODERS)
    compute(closed)
    scores = closed.lake.read("crs_scores", ())
    assert scores["status"].to_list() == ["ok", "ok"] and scores["crs"].null_count() == 0
    lost = closed.lake.read("institutional_shift", ())
    assert set(lost.select("shift_macro_auroc", "reason").rows()) == {(None, "no_access")}

    publish(closed, plan(closed).cells)
    page = write_report(closed.layout).read_text(encoding="utf-8")
    assert REASONS["no_access"] in page


def test_the_doctor_says_how_to_get_access(closed: Project) -> None:
    (finding,) = (f for f in examine(closed.layout) if f.check == "agreement their-terms")
    assert finding.verdict == "warning"
    assert finding.found == f"not recorded: the shift target {SHIFT} of {DATASET} is not read, everything else is"
    assert finding.remedy.startswith(f"{HOW}; then add `agreements: {{their-terms: ")


def test_with_the_agreement_the_target_is_read(closed: Project) -> None:
    compute(closed, CELL[:2])
    opened = record_agreement(closed.layout)
    assert ("index", COHORT) in due(opened)
    compute(opened, CELL)
    assert set(opened.lake.read("images", COHORT)["source_id"]) == {"primary", SHIFT}
    assert {reason for _, reason in shifted(opened, "run_records")} == {None}
