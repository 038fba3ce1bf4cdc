"""What the planner says of a tiny home: why something is due, and that nothing else is."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path

import polars as pl
import pytest

from crsbench_assets.config.settings import edit_list
from crsbench_assets.planning import stages
from crsbench_assets.planning.plan import (
    BLOCKED,
    CURRENT,
    FAILED,
    MISSING,
    RUNNING,
    STALE,
    Task,
    plan,
    pointers_for,
    upstream_partitions,
)
from crsbench_assets.planning.stages import PLANNED, STAGE_OF_TABLE, STAGES, stage_named
from crsbench_assets.planning.status import blocked_sentences, estimate, plan_json, status_json
from crsbench_assets.storage.files import replace_json
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.leases import ATTEMPT_FILE, Attempt, lease
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.worker.run import run_stage
from crsbench_assets_tests.fixtures import (
    DATASET,
    ENCODERS,
    PROTOCOL,
    compute,
    compute_home,
    dataset_card,
    due,
    encoder_card,
    vectors,
    write_card,
    write_protocol,
)

CELL_STAGES = ("extract", "probe", "calibrate", "measure", "aggregate", "derive_axes", "replicate")
ALPHA, BETA, COHORT = ("alpha", DATASET), ("beta", DATASET), (DATASET,)
OF_AGGREGATES = {"label_scarcity", "metric_sensitivity", "corruption_miscalibration"}
OF_REPLICATES = {"rank", "axis_reliability", "bootstrap_ranks", "dominance", "rank_agreement", "selection_regret"}
OF_PANELS = {
    "anchor",
    "score",
    "axis_correlations",
    "crs_variants",
    "insertion_trials",
    "institutional_shift_test",
    "label_efficiency_informativeness",
    "lodo_transfer",
    "mimic_transfer",
    "panel_perturbations",
    "rank_displacement",
    "specialization",
    "weight_perturbations",
    *OF_AGGREGATES,
    *OF_REPLICATES,
}
"""Pooled stages that read the axes of all cells, because they are about panels."""
OF_RECORDS = {"institutional_shift", "calibration_repair"}
"""Pooled stages that no panel takes part in."""
ON_REQUEST = {"estimate", "estimator_dependence"}


def pooled(names: set[str]) -> set[tuple[str, tuple[str, ...]]]:
    """Return pooled stages with their only partition."""
    return {(name, ()) for name in names}


POOLED = pooled(OF_PANELS | OF_RECORDS)


def chain(key: tuple[str, ...], start: str = "extract") -> set[tuple[str, tuple[str, ...]]]:
    """Return the stages of a cell from one on."""
    return {(name, key) for name in CELL_STAGES[CELL_STAGES.index(start) :]}


def task(project: Project, stage: str, key: tuple[str, ...]) -> Task:
    (found,) = (t for t in plan(project).tasks if (t.stage.name, t.key) == (stage, key))
    return found


def test_a_new_home_has_everything_before_it(tiny_home: HomeLayout) -> None:
    project = open_project(tiny_home.root)
    found = plan(project)
    assert {t.state for t in found.tasks} == {MISSING}
    assert (task(project, "index", COHORT).why, task(project, "index", COHORT).reason) == ("never computed", None)
    assert task(project, "split", COHORT).why == "index is missing"
    assert task(project, "aggregate", ALPHA).why == "measure is missing"
    assert due(project) == {(t.stage.name, t.key) for t in found.tasks if not t.stage.is_on_request}
    assert [(c.encoder_id, c.status, c.reason) for c in found.cells] == [
        (encoder_id, "missing", "index: never computed") for encoder_id in ENCODERS
    ]
    # 2 cells x 2 seeds x 2 fractions = 8 fits, x 3 conditions = 24 records, 12 aggregates
    assert list(asdict(found.counts).values()) == [2, 2, 8, 24, 12]


def test_a_computed_home_has_nothing_before_it(computed: Project) -> None:
    found = plan(computed)
    assert {t.stage.name for t in found.tasks if t.state != CURRENT} == ON_REQUEST, "what runs on request is not due"
    assert {(c.status, c.reason) for c in found.cells} == {("ok", None)}
    assert found.due("cell") == [] and blocked_sentences(found) == []


def test_every_input_of_a_stage_is_named_when_it_changes(computed_home: HomeLayout) -> None:
    settings = computed_home.settings.read_text(encoding="utf-8")
    computed_home.settings.write_text(f"{settings}caps: {{{DATASET}: 100}}\n", encoding="utf-8")
    project = open_project(computed_home.root)
    assert (task(project, "split", COHORT).state, task(project, "split", COHORT).why) == (STALE, "changed: caps")
    assert task(project, "extract", ALPHA).why == "split is stale"
    states = {(c.status, c.reason) for c in plan(project).cells}
    assert states == {("stale", "split: changed: caps")}
    assert due(project) == {("split", COHORT), *chain(ALPHA), *chain(BETA), *POOLED}


def test_a_description_makes_nothing_stale_but_the_table_it_stands_in(computed_home: HomeLayout) -> None:
    write_card(computed_home.root, "encoders", encoder_card("alpha", description="better", licence="MIT"))
    write_card(computed_home.root, "datasets", dataset_card(description="better"))
    project = open_project(computed_home.root)
    assert due(project) == {("describe", ())}
    assert task(project, "describe", ()).why == "changed: cards"


def test_other_bytes_of_a_vector_file_make_exactly_that_cell_stale(computed_home: HomeLayout) -> None:
    rows = vectors("alpha").with_columns(pl.col("vector").list.eval(pl.element() * 2))
    rows.write_parquet(computed_home.root / "files" / "alpha.parquet")
    project = open_project(computed_home.root)
    # what is stale is not scored, so the pooled stages follow at once
    assert due(project) == chain(ALPHA) | POOLED
    assert task(project, "extract", ALPHA).why == "changed: vector files"
    assert task(project, "derive_axes", ALPHA).why == "measure is stale"
    assert {c.encoder_id: c.status for c in plan(project).cells} == {"alpha": "stale", "beta": "ok"}


def test_who_is_scored_on_what_is_an_input_of_the_score(computed_home: HomeLayout) -> None:
    write_card(computed_home.root, "encoders", encoder_card("beta", not_applicable={DATASET: "not this one"}))
    project = open_project(computed_home.root)
    assert due(project) == {("describe", ())} | POOLED
    assert task(project, "score", ()).why == "changed: cell_axes, grid"


def test_another_group_column_is_another_draw(computed_home: HomeLayout) -> None:
    # draws are keyed by raw group ids, so other names of the same groups give other splits
    path = computed_home.root / "files" / "labels.csv"
    card = dataset_card()
    column = card["source"]["columns"]["group"]
    rows = pl.read_csv(path, infer_schema=False).with_columns(renamed=pl.lit("x") + pl.col(column))
    rows.write_csv(path)
    project = open_project(computed_home.root)
    compute(project)
    before = project.lake.read("splits", COHORT)
    card["source"]["columns"]["group"] = "renamed"
    write_card(computed_home.root, "datasets", card)
    project = open_project(computed_home.root)
    assert "dataset card" in task(project, "split", COHORT).why or ("index", COHORT) in due(project)
    compute(project)
    assert not project.lake.read("splits", COHORT).equals(before)


def test_equal_bytes_written_again_change_nothing(computed_home: HomeLayout) -> None:
    path = computed_home.root / "files" / "alpha.parquet"
    path.write_bytes(path.read_bytes())
    assert due(open_project(computed_home.root)) == set()


def test_what_is_equal_again_stops_the_chain(computed_home: HomeLayout) -> None:
    # a file of other bytes and equal rows: the vectors are read again, and nothing that rests on them is computed
    path = computed_home.root / "files" / "alpha.parquet"
    pl.read_parquet(path).write_parquet(path, compression="uncompressed")
    project = open_project(computed_home.root)
    results = compute(project)
    assert {name for name, _ in results} == {"extract"}
    assert due(project) == set()


def test_an_image_that_leaves_the_cohort_makes_all_stale(computed_home: HomeLayout) -> None:
    path = computed_home.root / "files" / "labels.csv"
    path.write_text("\n".join(path.read_text(encoding="utf-8").splitlines()[:-1]) + "\n", encoding="utf-8")
    project = open_project(computed_home.root)
    assert due(project) == {("index", COHORT), ("split", COHORT), *chain(ALPHA), *chain(BETA), *POOLED}
    assert task(project, "index", COHORT).why == "changed: cohort files"


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("seed_aggregates", {("aggregate", ALPHA), ("aggregate", BETA)} | pooled(OF_AGGREGATES)),
        ("cell_axes", chain(ALPHA, "derive_axes") | chain(BETA, "derive_axes") | pooled(OF_PANELS)),
        ("run_records", chain(ALPHA, "measure") | chain(BETA, "measure") | POOLED),
        ("crs_scores", {("score", ())}),
        ("reference_panels", {("anchor", ())}),
    ],
)
def test_a_code_version_makes_exactly_what_follows_stale(
    computed_home: HomeLayout,
    monkeypatch: pytest.MonkeyPatch,
    table: str,
    expected: set[tuple[str, tuple[str, ...]]],
) -> None:
    spec = TABLES[table]
    stage = STAGE_OF_TABLE[table]
    raised = replace(spec, code_version=spec.code_version + 1)
    monkeypatch.setitem(TABLES, table, raised)
    # a stage remembers its shapes, so the raised version is put where it remembers them
    specs = tuple(raised if s.name == table else s for s in stage.specs)
    monkeypatch.setitem(stage.__dict__, "specs", specs)
    project = open_project(computed_home.root)
    assert due(project) == expected
    key = next(key for name, key in expected if name == stage.name)
    assert task(project, stage.name, key).why == "changed: code version"


def test_pooled_stages_follow_when_the_cells_have_moved(computed_home: HomeLayout) -> None:
    rows = vectors("alpha").with_columns(pl.col("vector").list.eval(pl.element() * pl.element()))
    rows.write_parquet(computed_home.root / "files" / "alpha.parquet")
    project = open_project(computed_home.root)
    compute(project, CELL_STAGES)
    assert due(project) == POOLED
    assert task(project, "anchor", ()).why == "changed: cell_axes"
    compute(project)
    assert due(project) == set()


def test_a_protocol_field_touches_the_stages_that_read_it(tiny_home: HomeLayout) -> None:
    compute(open_project(tiny_home.root), ("describe", "index", "split"))
    # a home with results refuses another protocol, so what a change would touch is read off the declarations
    readers = {stage.name for stage in STAGES if any(f.split(".")[0] == "probe" for f in stage.protocol_fields)}
    assert readers == {"probe", "estimate"}
    weights = {stage.name for stage in STAGES if "scores" in stage.protocol_fields}
    cells = {"label_efficiency_informativeness", "axis_correlations", "institutional_shift_test", *OF_AGGREGATES}
    assert weights == OF_PANELS - {"anchor"} - cells | {"metric_sensitivity", "estimator_dependence"}


def test_a_retired_encoder_is_shown_and_not_computed(computed_home: HomeLayout) -> None:
    edit_list(computed_home.settings, "retired", add="alpha")
    project = open_project(computed_home.root)
    found = plan(project)
    assert [(c.encoder_id, c.status) for c in found.cells] == [("beta", "ok"), ("alpha", "retired")]
    assert {t.key for t in found.tasks if t.stage.grain == "cell"} == {BETA}
    assert due(project) == {("describe", ()), *POOLED}
    compute(project)
    scores = project.lake.read("crs_scores", ())
    assert scores.get_column("encoder_id").to_list() == ["beta"]
    assert project.lake.read("run_records", ALPHA).height == 12


def test_a_retired_encoder_comes_back_without_work(computed_home: HomeLayout) -> None:
    edit_list(computed_home.settings, "retired", add="alpha")
    edit_list(computed_home.settings, "retired", remove="alpha")
    assert due(open_project(computed_home.root)) == set()


def test_a_failed_cell_is_not_tried_again_and_blocks_what_follows(computed_home: HomeLayout) -> None:
    vectors("alpha")[1:].write_parquet(computed_home.root / "files" / "alpha.parquet")
    project = open_project(computed_home.root)
    compute(project)
    found = plan(project)
    assert task(project, "extract", ALPHA).state == FAILED
    assert task(project, "extract", ALPHA).reason == "incomplete_support"
    assert task(project, "probe", ALPHA).state == BLOCKED
    assert due(project) == set()
    assert {c.encoder_id: (c.status, c.reason) for c in found.cells} == {
        "alpha": ("failed", "extract: incomplete_support"),
        "beta": ("ok", None),
    }
    vectors("alpha").write_parquet(computed_home.root / "files" / "alpha.parquet")
    assert ("extract", ALPHA) in due(open_project(computed_home.root))


def test_a_file_that_is_gone_blocks_its_cell_with_a_sentence(computed_home: HomeLayout) -> None:
    (computed_home.root / "files" / "alpha.parquet").unlink()
    project = open_project(computed_home.root)
    blocked = task(project, "extract", ALPHA)
    assert blocked.state == BLOCKED
    assert "vectors of encoder 'alpha' for 'tiny'" in blocked.why and "cannot be read" in blocked.why
    assert due(project) == set()
    (sentence,) = blocked_sentences(plan(project))
    assert sentence == blocked.why
    assert {c.encoder_id: c.status for c in plan(project).cells} == {"alpha": "stale", "beta": "ok"}
    run_stage(project, stage_named("score"), ())
    scores = project.lake.read("crs_scores", ())
    assert scores["status"].to_list() == ["ok", "ok"], "what was computed counts, although its file was removed"


def test_what_this_version_cannot_do_is_blocked(tiny_home: HomeLayout) -> None:
    edit_list(tiny_home.settings, "datasets", add="isic2019")
    edit_list(tiny_home.settings, "encoders", add="resnet50")
    project = open_project(tiny_home.root)
    assert (task(project, "index", ("isic2019",)).state, task(project, "index", ("isic2019",)).reason) == (
        BLOCKED,
        "no_root",
    )
    cells = {(c.encoder_id, c.dataset_id): (c.status, c.reason) for c in plan(project).cells}
    assert cells["resnet50", "isic2019"] == ("missing", "index: no_root")
    assert cells["resnet50", DATASET] == ("not_applicable", "no_images")
    assert cells["alpha", "isic2019"] == ("not_applicable", "no_vectors")


def test_running_died_and_failed_attempts(tiny_home: HomeLayout) -> None:
    project = open_project(tiny_home.root)
    folder = project.lake.folder(stage_named("index").lease_table, COHORT)
    with lease(folder, "index", None):
        running = task(project, "index", COHORT)
        assert running.state == RUNNING and running.why.startswith("computed by process ")
        assert {c.status for c in plan(project).cells} == {"running"}
        assert ("index", COHORT) not in due(project)
    with pytest.raises(ValueError, match="boom"), lease(folder, "index", None):
        raise ValueError("boom")
    failed = task(project, "index", COHORT)
    assert (failed.state, failed.why, failed.reason) == (MISSING, "last attempt failed: boom", "error")
    assert failed.is_due
    foreign = Attempt("t", "running", "index", None, "elsewhere", 1, 0.0, time.time() - 3600)
    replace_json(folder / ATTEMPT_FILE, asdict(foreign))
    assert task(project, "index", COHORT).state == MISSING


def test_a_home_is_planned_without_its_dagster_folder(computed_home: HomeLayout) -> None:
    for path in computed_home.dagster.iterdir():
        path.unlink()
    computed_home.dagster.rmdir()
    assert due(open_project(computed_home.root)) == set()


def test_status_as_json(computed_home: HomeLayout) -> None:
    write_card(
        computed_home.root,
        "encoders",
        encoder_card("gamma", not_applicable={DATASET: "trained on it"}, vectors={"other": ["x"]}),
    )
    project = open_project(computed_home.root)
    value = status_json(project, plan(project))
    assert list(value) == ["home", "counts", "statuses", "cells"]
    assert value["home"] == str(computed_home.root)
    assert value["statuses"] == {"not_applicable": 1, "ok": 2}
    assert value["cells"][2] == {
        "encoder_id": "gamma",
        "dataset_id": DATASET,
        "status": "not_applicable",
        "reason": "excluded_by_card",
    }


def test_plan_as_json(tiny_home: HomeLayout) -> None:
    project = open_project(tiny_home.root)
    value = plan_json(project, plan(project))
    assert list(value) == ["home", "protocol", "counts", "due", "tasks"]
    assert value["protocol"] == f"tiny-1@{project.registry.protocol.hash[:12]}"
    assert len(value["tasks"]) == len([t for t in plan(project).tasks if not t.stage.is_on_request])
    assert value["tasks"][1] == {
        "stage": "index",
        "tables": ["quarantine", "images"],
        "partition": [DATASET],
        "state": MISSING,
        "reason": None,
        "why": "never computed",
    }
    assert (value["due"]["n_cells"], value["due"]["n_fits"], value["due"]["seconds"]) == (2, 8, None)


def test_images_that_nobody_counted_yet_are_not_nought(tiny_home: HomeLayout) -> None:
    project = open_project(tiny_home.root)
    found = estimate(project, plan(project))
    assert (found.n_cells, found.n_images, found.n_passes) == (2, None, 0)


def test_the_estimate_comes_from_what_was_computed(computed_home: HomeLayout) -> None:
    vectors("alpha", ("clean",)).write_parquet(computed_home.root / "files" / "alpha.parquet")
    project = open_project(computed_home.root)
    found = estimate(project, plan(project))
    # vectors that exist already need no pass through an encoder
    assert (found.n_cells, found.n_images, found.n_passes, found.n_fits) == (1, 120, 0, 4)
    expected = sum(
        (a.seconds + b.seconds) / 2
        for stage in CELL_STAGES
        for a, b in [[project.lake.pointer(stage_named(stage).last_table, key) for key in (ALPHA, BETA)]]
        if a and b
    )
    pooled = (project.lake.pointer(stage_named(name).last_table, key) for name, key in POOLED)
    expected += sum(pointer.seconds for pointer in pooled if pointer)
    assert found.seconds == pytest.approx(expected, abs=0.06)
    assert found.n_bytes is not None and found.n_bytes > 0


def test_two_homes_of_equal_cards_agree(computed_once: Path, tiny_home: HomeLayout) -> None:
    first, second = open_project(computed_once), compute_home(tiny_home.root)
    for stage in PLANNED:
        for name in stage.tables:
            for key in {t.key for t in plan(first).tasks if t.stage is stage}:
                one, other = first.lake.pointer(name, key), second.lake.pointer(name, key)
                assert one is not None and other is not None
                assert (one.content_hash, one.inputs_hash) == (other.content_hash, other.inputs_hash), (name, key)


def test_every_stage_declares_what_exists() -> None:
    settings = {"label_policy", "group_salt", "caps", "retired", "predictions", "selection_weights"}
    for stage in stages.STAGES:
        assert set(stage.settings_fields) <= settings
        for field in stage.protocol_fields:
            value = PROTOCOL
            for part in field.split("."):
                value = value[part]


def test_a_protocol_in_the_home_is_planned_with(tiny_home: HomeLayout) -> None:
    write_protocol(tiny_home.root, seeds=[0, 1, 2])
    # 2 cells x 3 seeds x 2 fractions
    assert plan(open_project(tiny_home.root)).counts.n_fits == 12


def test_what_runs_on_request_is_computed_where_somebody_names_it_and_asked_for_by_nobody(
    computed_home: HomeLayout,
) -> None:
    project = open_project(computed_home.root)
    assert (task(project, "estimate", ALPHA).state, task(project, "estimate", ALPHA).is_due) == (MISSING, False)
    assert "estimate" not in {found["stage"] for found in plan_json(project, plan(project))["tasks"]}
    run_stage(project, stage_named("estimate"), ALPHA)
    assert task(project, "estimate", ALPHA).state == CURRENT
    vectors("alpha", ("clean",)).write_parquet(computed_home.root / "files" / "alpha.parquet")
    project = open_project(computed_home.root)
    compute(project)
    # it is stale now, which is said and makes no cell stale
    found = task(project, "estimate", ALPHA)
    assert (found.state, found.is_outdated, found.is_due) == (STALE, True, False)
    assert "estimate" in {found["stage"] for found in plan_json(project, plan(project))["tasks"]}
    assert {c.status for c in plan(project).cells} == {"ok"}


def test_pooled_stages_look_at_what_they_rest_on_and_see_what_the_plan_sees(computed_home: HomeLayout) -> None:
    path = computed_home.root / "files" / "alpha.parquet"
    pl.read_parquet(path).with_columns(pl.col("vector") * 2).write_parquet(path)
    project = open_project(computed_home.root)
    settled = {(task.stage.name, task.key): task for task in plan(project).tasks}
    assert not settled["derive_axes", ALPHA].is_settled and settled["derive_axes", BETA].is_settled
    for stage in STAGES:
        if stage.grain == "whole":
            pointer_of = pointers_for(project, stage)
            for table in stage.reads:
                upstream = STAGE_OF_TABLE[table]
                for key in upstream_partitions(project, stage, table, ()):
                    task = settled[upstream.name, key]
                    expected = task.pointer if task.is_settled or upstream.grain == "whole" else None
                    assert pointer_of(table, key) == expected, (stage.name, table, key)
