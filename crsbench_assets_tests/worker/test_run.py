"""One stage of one partition: what it may read, what it writes, and that its numbers stay what they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from crsbench_assets.config.errors import ConfigError, StorageError
from crsbench_assets.planning.plan import plan
from crsbench_assets.planning.stages import PLANNED, STAGES, stage_named, stages_of
from crsbench_assets.storage.hashing import frame_hash
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.leases import read_attempt
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets.storage.snapshots import open_published
from crsbench_assets.storage.warehouse import publish
from crsbench_assets.tables.ddl import WAREHOUSE_INFO
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.worker import run
from crsbench_assets.worker.context import StageContext, StageOutput
from crsbench_assets.worker.run import failure_of, run_stage
from crsbench_assets_tests.fixtures import (
    DATASET,
    compute,
    compute_home,
    encoder_card,
    file_bytes,
    vectors,
    write_card,
)

ALPHA, BETA, COHORT = ("alpha", DATASET), ("beta", DATASET), (DATASET,)

GOLDEN = {
    "images": "596e04a7cfd3b191e9665f01c5d3bcee",
    "splits": "b6297134101d5f34637e8e4ef41d11ad",
    "dataset_statistics": "1d7071325d1c036170812f0ff216fb14",
    "embeddings": "faa4601a75b44b47c5b0fe365e23843c",
    "probe_fits": "6fad7a55829be5c05507ab626758d718",
    "predictions": "e775556854560bc97257d2ae6963494c",
    "reliability_bins": "73c0cc10aad27305d7f0fbf9fe7503bb",
    "label_metrics": "93a35cf73b6c57943bf6d683db01dec5",
    "run_records": "d1dfd34cb58276a8f684b5643f35f67b",
    "seed_aggregates": "345e84162475ee9f9180be3ac0da80e6",
    "cell_axes": "b0e196c85e7a768edc763fd45c7fbb77",
}
"""Content hashes of the tables behind one cell, floats rounded (:func:`rounded`)."""


def rounded(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows with what may differ between machines taken out.

    Processors add in different orders, so floats keep 5 significant digits; what tells how a fit went, and not what
    came out, is dropped, and so is the hash of the inputs, which covers the bytes of a Parquet file.
    """
    dropped = {"n_iter": 0, "objective": None, "grad_norm": None, "relative_gap": None, "inputs_hash": ""}
    kept = frame.with_columns(
        pl.lit(value, dtype=frame.schema[name]).alias(name) for name, value in dropped.items() if name in frame.columns
    )
    digits = pl.selectors.float().round_sig_figs(5) + 0.0  # + 0.0: rounding may leave -0.0
    listed = pl.selectors.by_dtype(pl.List(pl.Float32)).list.eval(pl.element().round_sig_figs(5) + 0.0)
    return kept.with_columns(digits, listed)


def damage(home: HomeLayout, encoder_id: str, image_id: str, condition: str, value: float | None) -> None:
    """Put ``value`` into one vector of an encoder's file; None removes the row."""
    is_hit = (pl.col("image_id") == image_id) & (pl.col("condition_id") == condition)
    rows = vectors(encoder_id)
    if value is None:
        rows = rows.filter(~is_hit)
    else:
        broken = pl.lit([value] + [0.0] * 7, dtype=pl.List(pl.Float32))
        rows = rows.with_columns(vector=pl.when(is_hit).then(broken).otherwise("vector"))
    rows.write_parquet(home.root / "files" / f"{encoder_id}.parquet")


def parts_of(home: HomeLayout, encoder_id: str) -> dict[str, bytes]:
    """Return the data files of an encoder's cells; pointers beside them carry times."""
    files = file_bytes(home.lake / "main")
    return {name: data for name, data in files.items() if f"encoder_id={encoder_id}" in name and "/part-" in name}


def test_every_row_says_the_rules_of_its_home(tiny_home: HomeLayout) -> None:
    text = tiny_home.settings.read_text(encoding="utf-8")
    tiny_home.settings.write_text(text.replace("u_zeros", "u_ones"), encoding="utf-8")
    project = compute_home(tiny_home.root)
    publish(project, plan(project).cells)
    rules = {(project.registry.protocol.label, "u_ones")}
    with open_published(project.layout) as connection:
        said = {
            spec.name: set(connection.sql(f"SELECT DISTINCT protocol_id, label_policy FROM {spec.name}").fetchall())
            for spec in (*TABLES.values(), WAREHOUSE_INFO)
            if {"protocol_id", "label_policy"} <= set(spec.column_names)
        }
    assert [table for table, found in said.items() if found not in (set(), rules)] == []
    assert len([table for table, found in said.items() if found]) > 30


def test_the_golden_cell(computed_once: Path) -> None:
    project = open_project(computed_once)
    found = {}
    for table in GOLDEN:
        spec = TABLES[table]
        key = ALPHA if spec.grain == "cell" else COHORT
        found[table] = frame_hash(rounded(project.lake.read(table, key)), spec)
    moved = [table for table in GOLDEN if found[table] != GOLDEN[table]]
    assert not moved, (
        f"other numbers from the same inputs: raise code_version of {' and '.join(moved)}, so that homes compute "
        f"them again, and put the new hashes here: {found}"
    )


def test_computing_again_gives_the_same_bits(computed_home: HomeLayout) -> None:
    project = open_project(computed_home.root)
    for stage in stages_of("cell"):
        before = {name: project.lake.pointer(name, ALPHA) for name in stage.tables}
        again = run_stage(project, stage, ALPHA, run_id="again")
        assert not again.is_reused
        for name, pointer in again.pointers.items():
            old = before[name]
            assert old is not None and pointer.content_hash == old.content_hash, name
            assert (pointer.inputs_hash, pointer.run_id) == (old.inputs_hash, "again")


def test_the_order_of_files_and_rows_is_nothing(computed_home: HomeLayout) -> None:
    project = open_project(computed_home.root)
    before = project.lake.pointer("cell_axes", ALPHA)
    order = np.random.default_rng(0).permutation(360)
    vectors("alpha")[order].write_parquet(computed_home.root / "files" / "alpha.parquet")
    results = compute(open_project(computed_home.root))
    assert {name for name, _ in results} == {"extract"}
    assert project.lake.pointer("cell_axes", ALPHA) == before


def test_only_stale_keeps_what_is_current(computed: Project) -> None:
    before = file_bytes(computed.layout.lake)
    for stage in PLANNED:
        key = {"cell": ALPHA, "dataset": COHORT, "whole": ()}[stage.grain]
        result = run_stage(computed, stage, key, only_stale=True)
        assert result.is_reused and set(result.pointers) == set(stage.tables)
        assert failure_of(result, stage, key) is None
    assert file_bytes(computed.layout.lake) == before


def test_a_stage_reads_only_what_it_declared(computed: Project) -> None:
    context = StageContext(computed, stage_named("aggregate"), ALPHA, "")
    assert context.read("run_records").height == 12
    for read in (context.read, context.read_all):
        with pytest.raises(ValueError, match="stage aggregate reads predictions, which is not among its inputs"):
            read("predictions")


def test_a_pooled_stage_reads_all_cells_or_some_of_their_rows(computed: Project) -> None:
    context = StageContext(computed, stage_named("rank"), (), "")
    axes = context.read_all("cell_axes")
    parts = [computed.lake.read("cell_axes", key) for key in (ALPHA, BETA)]
    assert axes.equals(pl.concat(parts)) and axes is context.read_all("cell_axes")
    is_wanted = pl.col("axis") == "calibration"
    some = context.read_all("cell_axes", ["encoder_id", "variant"], is_wanted)
    assert some.equals(axes.filter(is_wanted).select("encoder_id", "variant"))
    assert 0 < some.height < axes.height


def test_every_declared_input_is_read_and_no_other(computed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    # a declared input that nobody reads makes partitions stale for nothing
    read: set[str] = set()
    check = StageContext._check_declared

    def remember(context: StageContext, table: str) -> None:
        check(context, table)
        read.add(table)

    monkeypatch.setattr(StageContext, "_check_declared", remember)
    unread = {}
    for stage in STAGES:
        read.clear()
        run_stage(computed, stage, {"cell": ALPHA, "dataset": COHORT, "whole": ()}[stage.grain])
        if set(stage.reads) - read:
            unread[stage.name] = set(stage.reads) - read
    # the panel's rows are read from its file, the table only makes the stage stale; weights where logits were not kept
    assert unread == {
        "score": {"reference_panels"},
        "measure": {"probe_weights"},
        "replicate": {"probe_weights"},
    }


def test_an_absent_input_is_one_sentence(tiny_home: HomeLayout) -> None:
    project = open_project(tiny_home.root)
    with pytest.raises(StorageError, match=r"images of tiny is not there yet: run `crsbench materialize`"):
        run_stage(project, stage_named("split"), COHORT)
    attempt = read_attempt(project.lake.folder(stage_named("split").lease_table, COHORT))
    assert attempt is not None and attempt.state == "failed" and "images of tiny" in str(attempt.message)


def test_an_id_without_a_card_is_one_sentence(computed: Project) -> None:
    for key, kind in ((("nobody", DATASET), "encoder"), (("alpha", "nothing"), "dataset")):
        with pytest.raises(ConfigError, match=f"No active card describes the {kind}"):
            run_stage(computed, stage_named("extract"), key)


def test_an_inapplicable_cell_has_a_status_and_no_file(computed_home: HomeLayout) -> None:
    card = encoder_card("gamma", not_applicable={DATASET: "trained on it"}, vectors={"other": ["x.parquet"]})
    write_card(computed_home.root, "encoders", card)
    project = open_project(computed_home.root)
    key = ("gamma", DATASET)
    for stage in stages_of("cell"):
        result = run_stage(project, stage, key)
        for name in stage.tables:
            pointer = project.lake.pointer(name, key)
            assert pointer is not None and pointer == result.pointers[name]
            assert (pointer.status, pointer.reason, pointer.files) == ("not_applicable", "excluded_by_card", ())
            assert list(project.lake.folder(name, key).glob("part-*")) == []
        assert failure_of(result, stage, key) is None


@pytest.mark.parametrize(
    ("condition", "value", "reason"),
    [
        ("clean", float("nan"), "not_finite"),
        ("clean", float("inf"), "not_finite"),
        ("clean", None, "missing"),
        ("blur-s3", None, "missing"),
    ],
)
def test_one_image_without_a_vector_fails_its_cell_and_no_other(
    computed_once: Path, tiny_home: HomeLayout, condition: str, value: float | None, reason: str
) -> None:
    whole = open_project(computed_once)
    splits = whole.lake.read("splits", COHORT)
    image_id = splits.filter(pl.col("split") == "test")["image_id"].unique().sort()[3]
    damage(tiny_home, "alpha", image_id, condition, value)
    project = open_project(tiny_home.root)
    result = compute(project)["extract", ALPHA]
    pointer = result.pointers["embeddings"]
    assert (pointer.status, pointer.reason, pointer.files) == ("failed", "incomplete_support", ())
    assert f"of image {image_id!r} under {condition!r} ({reason})" in str(pointer.detail)
    failure = failure_of(result, stage_named("extract"), ALPHA)
    assert failure is not None
    assert str(failure).startswith("embeddings of alpha x tiny failed (incomplete_support): 1 vector(s)")
    rows = project.lake.read("embedding_failures", ALPHA).select("image_id", "condition_id", "reason").rows()
    assert rows == [(image_id, condition, reason)]
    assert project.lake.pointer("predictions", ALPHA) is None
    scores = project.lake.read("crs_scores", ()).select("encoder_id", "crs", "status").rows()
    assert scores[0] == ("alpha", None, "incomplete") and scores[1][2] == "ok"
    # the other encoder's rows are the same to the byte as beside a whole alpha
    assert parts_of(tiny_home, "beta") == parts_of(whole.layout, "beta")


def test_vectors_that_break_later_leave_the_earlier_result_and_end_the_score(computed_home: HomeLayout) -> None:
    before = file_bytes(computed_home.lake / "main" / "cell_axes")
    others = parts_of(computed_home, "beta")
    damage(computed_home, "alpha", "image000", "clean", float("nan"))
    project = open_project(computed_home.root)
    compute(project)
    assert file_bytes(computed_home.lake / "main" / "cell_axes") == before
    assert parts_of(computed_home, "beta") == others
    assert {c.encoder_id: c.status for c in plan(project).cells} == {"alpha": "failed", "beta": "ok"}
    scores = project.lake.read("crs_scores", ())
    assert dict(scores.select("encoder_id", "status").iter_rows()) == {"alpha": "incomplete", "beta": "ok"}


def test_a_train_image_needs_no_corrupted_vector(computed_home: HomeLayout) -> None:
    project = open_project(computed_home.root)
    splits = project.lake.read("splits", COHORT)
    image_id = splits.filter((pl.col("split") == "train") & (pl.col("seed") == 0))["image_id"].sort()[0]
    before = project.lake.pointer("embeddings", ALPHA)
    damage(computed_home, "alpha", image_id, "blur-s1", None)
    after = run_stage(open_project(computed_home.root), stage_named("extract"), ALPHA).pointers["embeddings"]
    assert before is not None and (after.status, after.content_hash) == ("ok", before.content_hash)


def test_conditions_without_vectors_are_null_with_a_reason(computed_home: HomeLayout) -> None:
    vectors("alpha", ("clean", "blur-s1")).write_parquet(computed_home.root / "files" / "alpha.parquet")
    project = open_project(computed_home.root)
    before = project.lake.read("run_records", ALPHA)
    compute(project)
    records = project.lake.read("run_records", ALPHA)
    # 2 seeds x 2 fractions of blur-s3
    absent = records.filter(pl.col("condition_id") == "blur-s3")
    assert absent["reason"].to_list() == ["no_vectors"] * 4
    assert absent["macro_auroc"].null_count() == absent["ece"].null_count() == 4
    kept = pl.col("condition_id") != "blur-s3"
    assert records.filter(kept).drop("inputs_hash").equals(before.filter(kept).drop("inputs_hash"))
    axes = project.lake.read("cell_axes", ALPHA).filter(pl.col("variant") == "primary")
    robustness = axes.filter(pl.col("axis") == "robustness")
    assert robustness["value"].to_list() == [None] and robustness["reason"][0] is not None
    assert axes.filter(pl.col("axis") != "robustness")["value"].null_count() == 0


def test_no_clean_vector_at_all_fails_the_cell(computed_home: HomeLayout) -> None:
    vectors("alpha", ("blur-s1", "blur-s3")).write_parquet(computed_home.root / "files" / "alpha.parquet")
    project = open_project(computed_home.root)
    pointer = run_stage(project, stage_named("extract"), ALPHA).pointers["embeddings"]
    assert (pointer.status, pointer.reason) == ("failed", "incomplete_support")
    assert str(pointer.detail).startswith("120 vector(s)")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: pl.concat([rows, rows[:1]]), r"1 row\(s\) repeat an image and condition"),
        (lambda rows: rows.rename({"vector": "v"}), "has the columns image_id, condition_id, v; expected image_id"),
        (lambda rows: rows.with_columns(vector=pl.lit(1.0)), "and vector, a list of numbers"),
        (
            lambda rows: rows.with_columns(condition_id=pl.col("condition_id").replace("blur-s3", "blur_s3")),
            "unknown condition.s. 'blur_s3'; the protocol has clean, blur-s1, blur-s3",
        ),
    ],
)
def test_a_bad_vector_file_is_one_sentence(computed_home: HomeLayout, change: Any, expected: str) -> None:
    change(vectors("alpha")).write_parquet(computed_home.root / "files" / "alpha.parquet")
    project = open_project(computed_home.root)
    before = project.lake.read("embeddings", ALPHA)
    with pytest.raises(ConfigError, match=expected) as raised:
        run_stage(project, stage_named("extract"), ALPHA)
    assert str(raised.value).startswith("vectors of encoder 'alpha' for 'tiny': ")
    assert project.lake.read("embeddings", ALPHA).equals(before)


def test_a_file_that_is_no_parquet_is_one_sentence(computed_home: HomeLayout) -> None:
    (computed_home.root / "files" / "alpha.parquet").write_text("image_id,vector\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        run_stage(open_project(computed_home.root), stage_named("extract"), ALPHA)


def test_rows_that_break_the_shape_are_not_committed(computed: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before = computed.lake.read("seed_aggregates", ALPHA)

    def nan(context: StageContext) -> StageOutput:
        bad = before.drop("encoder_id", "dataset_id").with_columns(macro_auroc_mean=float("nan"))
        return StageOutput({"seed_aggregates": bad})

    monkeypatch.setitem(run.COMPUTE, "aggregate", nan)
    with pytest.raises(ValueError, match="macro_auroc_mean is not finite"):
        run_stage(computed, stage_named("aggregate"), ALPHA)
    assert computed.lake.read("seed_aggregates", ALPHA).equals(before)


def test_the_pointer_of_a_stage_that_is_put_last_is_the_commit(computed: Project) -> None:
    for stage in PLANNED:
        key = {"cell": ALPHA, "dataset": COHORT, "whole": ()}[stage.grain]
        pointers = {name: computed.lake.pointer(name, key) for name in stage.tables}
        last = pointers[stage.last_table]
        assert last is not None
        assert last.stage_contents == {name: p.content_hash for name, p in pointers.items() if p is not None}


def test_progress_and_provenance(computed: Project) -> None:
    said: list[str] = []
    result = run_stage(computed, stage_named("probe"), ALPHA, run_id="run-9", progress=said.append)
    assert said[-1] == "4 of 4 fits", "one line in two seconds, and one at the end"
    assert {pointer.run_id for pointer in result.pointers.values()} == {"run-9"}
    names = {"code version", "protocol", "settings", "dataset card", *stage_named("probe").reads}
    assert set(result.pointers["predictions"].inputs) == names


def test_stages_are_bound_to_functions() -> None:
    assert sorted(run.COMPUTE) == sorted(stage.name for stage in STAGES)


def test_a_cap_leaves_images_out_and_moves_no_other(computed_home: HomeLayout) -> None:
    project = open_project(computed_home.root)
    before = project.lake.read("splits", COHORT)
    registry = replace(project.registry, settings=project.registry.settings.model_copy(update={"caps": {DATASET: 100}}))
    run_stage(replace(project, registry=registry), stage_named("split"), COHORT)
    after = project.lake.read("splits", COHORT)
    assert after.filter(pl.col("split") == "left_out")["image_id"].n_unique() == 20
    kept = after.filter(pl.col("split") == "test")["image_id"].unique()
    # who stays in the test split was there before: a cap takes images away and brings none in
    assert set(kept) <= set(before.filter(pl.col("split") == "test")["image_id"])


def test_logits_that_are_not_kept_are_made_again_bit_by_bit(computed_home: HomeLayout) -> None:
    def rows(project: Project) -> dict[str, pl.DataFrame]:
        tables = [name for stage in stages_of("cell") for name in stage.tables]
        return {name: project.lake.read(name, ALPHA).drop("inputs_hash", strict=False) for name in tables}

    before = rows(open_project(computed_home.root))
    settings = computed_home.settings.read_text(encoding="utf-8")
    computed_home.settings.write_text(f"{settings}predictions: clean_and_shift\n", encoding="utf-8")
    project = open_project(computed_home.root)
    assert ("measure", ALPHA) in compute(project)
    after = rows(project)
    assert [name for name in before if not after[name].equals(before[name])] == ["predictions"]
    kept = after["predictions"].get_column("condition_id").unique().sort().to_list()
    assert kept == ["clean", "validation"]
