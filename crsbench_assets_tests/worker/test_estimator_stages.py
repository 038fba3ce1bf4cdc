"""The stage of other estimators: which rows it makes, and which labels it never reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from crsbench_assets.planning.stages import stage_named
from crsbench_assets.probes.fit import ProbeInputs
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.validate import conform
from crsbench_assets.worker import estimator_stages
from crsbench_assets.worker.cell_stages import probe_inputs
from crsbench_assets.worker.context import StageContext
from crsbench_assets_tests.fixtures import DATASET, compute, write_tiny_home

ESTIMATE = stage_named("estimate")
NAMES = ["tuned_c", "knn", "mlp", "ridge"]
KEY = ["estimator", "seed", "label_fraction"]

Frames = dict[str, pl.DataFrame]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A tiny home up to its vectors: 120 images in pairs, 2 seeds, 2 fractions, clean and 2 corruptions."""
    layout = write_tiny_home(Path(tmp_path_factory.mktemp("estimators")) / "home")
    opened = open_project(layout.root)
    compute(opened, ("describe", "index", "split", "extract"))
    return opened


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def frames(project: Project, said: list[str]) -> Frames:
    return estimator_stages.estimate(replace(context(project), progress=said.append)).frames


def context(project: Project) -> StageContext:
    return StageContext(project, ESTIMATE, ("alpha", DATASET), "")


def changed(project: Project, monkeypatch: pytest.MonkeyPatch, change: Callable[[ProbeInputs], ProbeInputs]) -> Frames:
    """Return the stage's rows where it sees other inputs."""
    monkeypatch.setattr(estimator_stages, "probe_inputs", lambda context: change(probe_inputs(context)))
    return estimator_stages.estimate(context(project)).frames


def test_rows_have_the_shape_of_their_tables(frames: Frames) -> None:
    constants = {
        "protocol_id": "tiny-1@0",
        "label_policy": "u_zeros",
        "encoder_id": "alpha",
        "dataset_id": DATASET,
        "inputs_hash": "0",
    }
    for name in ESTIMATE.tables:
        lacking = {key: pl.lit(value) for key, value in constants.items() if key in TABLES[name].column_names}
        assert conform(frames[name].with_columns(**lacking), TABLES[name]).height == frames[name].height


def test_rows_are_those_that_the_axes_read(frames: Frames) -> None:
    # fits: 4 estimators x 2 seeds x 2 fractions; records: at .5 clean, at 1 clean and 2 corruptions
    assert frames["estimator_fits"].height == 16
    records = frames["estimator_records"]
    assert records.height == 4 * 2 * (1 + 3)
    assert records.filter(pl.col("label_fraction") < 1).get_column("condition_id").unique().to_list() == ["clean"]
    assert records.get_column("estimator").unique(maintain_order=True).to_list() == NAMES
    # axes: 1 of discrimination, 4 of calibration, 2 of label efficiency, 2 of robustness
    axes = frames["estimator_axes"]
    assert axes.height == 4 * 9 and axes.get_column("value").null_count() == 0
    assert axes.get_column("n_seeds").unique().to_list() == [2]


def test_axes_follow_from_the_records(frames: Frames) -> None:
    def auroc(name: str, fraction: float, condition: str) -> list[float]:
        where = {"estimator": name, "label_fraction": fraction, "condition_id": condition}
        rows = frames["estimator_records"].filter(**where).sort("seed")
        return [float(value) for value in rows.get_column("macro_auroc")]

    for name in NAMES:
        clean, part = auroc(name, 1.0, "clean"), auroc(name, 0.5, "clean")
        mild, strong = auroc(name, 1.0, "blur-s1"), auroc(name, 1.0, "blur-s3")
        expected = {
            "discrimination": clean,
            "label_efficiency": [p / c for p, c in zip(part, clean, strict=True)],
            "robustness": [1 - ((c - m) / c + (c - s) / c) / 2 for c, m, s in zip(clean, mild, strong, strict=True)],
        }
        for axis, values in expected.items():
            row = frames["estimator_axes"].filter(estimator=name, axis=axis, variant="primary").row(0, named=True)
            assert row["seed_values"] == pytest.approx(values) and row["value"] == pytest.approx(np.mean(values))


def test_a_record_is_the_estimator_on_the_test_images(project: Project, frames: Frames) -> None:
    inputs = probe_inputs(context(project))
    train = inputs.train[1]
    features = inputs.features[train].astype(np.float64)
    mean, sd = features.mean(axis=0), features.std(axis=0)
    images = context(project).read("images", ["image_id", "group_index", "labels"])
    rows = {image: (group, labels) for image, group, labels in images.iter_rows()}
    groups = np.array([rows[inputs.image_ids[row]][0] for row in train])
    ids, vectors = inputs.test["blur-s1"]
    truth = [rows[image][1][1] for image in ids]
    for estimator in estimator_stages.estimators_of(inputs):
        model = estimator.fit(
            ((features - mean) / sd).astype(np.float32), inputs.labels[train], "single_label",
            groups=groups, names=(DATASET, 1),
        )  # fmt: skip
        z = model.logits(((vectors - mean) / sd).astype(np.float32))
        found = frames["estimator_records"].filter(estimator=estimator.name, seed=1, condition_id="blur-s1")
        assert found.get_column("macro_auroc").item() == pytest.approx(roc_auc_score(truth, z[:, 1] - z[:, 0]))
        fit = frames["estimator_fits"].filter(estimator=estimator.name, seed=1, label_fraction=1.0).row(0, named=True)
        assert (fit["setting"], fit["n_folds"], fit["n_fit"]) == (
            model.selection.setting, model.selection.n_folds, len(train)
        )  # fmt: skip


def test_labels_of_validation_and_test_images_are_never_read(
    project: Project, frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poison(inputs: ProbeInputs) -> ProbeInputs:
        # one seed alone, because every seed draws its own validation images
        labels = inputs.labels.copy()
        elsewhere = np.setdiff1d(np.arange(len(labels)), inputs.train[0])
        labels[elsewhere] = 99
        return replace(inputs, labels=labels, train={0: inputs.train[0]})

    poisoned = changed(project, monkeypatch, poison)
    for name in ("estimator_fits", "estimator_records"):
        assert poisoned[name].equals(frames[name].filter(pl.col("seed") == 0))


def test_a_fraction_reads_its_own_labels_alone(
    project: Project, frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poison(inputs: ProbeInputs) -> ProbeInputs:
        labels = inputs.labels.copy()
        size = inputs.fraction_sizes[1, 0.5]
        labels[inputs.train[1][size:]] = 1 - labels[inputs.train[1][size:]]
        return replace(inputs, labels=labels)

    poisoned = changed(project, monkeypatch, poison)
    half = (pl.col("seed") == 1) & (pl.col("label_fraction") == 0.5)
    for name in ("estimator_fits", "estimator_records"):
        assert poisoned[name].filter(half).equals(frames[name].filter(half))
    full = (pl.col("seed") == 1) & (pl.col("label_fraction") == 1.0)
    assert not poisoned["estimator_records"].filter(full).equals(frames["estimator_records"].filter(full))


def test_what_cannot_be_is_a_row_with_a_reason(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(inputs: ProbeInputs) -> ProbeInputs:
        sizes = {key: None if key[1] == 0.5 else size for key, size in inputs.fraction_sizes.items()}
        test = {name: part for name, part in inputs.test.items() if name != "blur-s3"}
        return replace(inputs, fraction_sizes=sizes, test=test)

    rows = changed(project, monkeypatch, without)
    fits, records, axes = (rows[name] for name in ESTIMATE.tables)
    half = fits.filter(label_fraction=0.5)
    assert half.height == 8 and half.get_column("reason").unique().to_list() == ["infeasible_fraction"]
    assert half.get_column("n_fit").unique().to_list() == [0]
    assert records.filter(label_fraction=0.5).get_column("reason").unique().to_list() == ["infeasible_fraction"]
    assert records.filter(condition_id="blur-s3").get_column("reason").unique().to_list() == ["no_vectors"]
    of_axis = {
        axis: axes.filter(axis=axis, variant="primary").get_column("reason").unique().to_list()
        for axis in ("discrimination", "label_efficiency", "robustness")
    }
    assert of_axis == {
        "discrimination": [None], "label_efficiency": ["infeasible_fraction"], "robustness": ["no_vectors"]
    }  # fmt: skip


def test_progress_is_told(frames: Frames, said: list[str]) -> None:
    assert said[-1] == "16 of 16 fits"


def test_a_shift_target_has_its_own_labels_and_an_unknown_label_enters_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    # two labels; in the second source the same ids have the first label swapped and no known second one
    rng = np.random.default_rng(0)
    ids = [f"image{i:03d}" for i in range(90)]
    labels = np.stack([np.arange(90) % 2, np.arange(90) // 2 % 2], axis=1).astype(np.int8)
    features = (labels.repeat(3, axis=1) * 2.0 + rng.normal(size=(90, 6))).astype(np.float32)
    swapped = [[1 - first, None] for first, _ in labels.tolist()]
    images = pl.concat(
        pl.DataFrame(
            {"image_id": ids, "source_id": source, "group_index": list(range(90)), "labels": rows},
            schema_overrides={"labels": pl.List(pl.Int8), "group_index": pl.Int64},
        )
        for source, rows in (("primary", labels.tolist()), ("elsewhere", swapped))
    )
    test = (ids[60:], features[60:])
    inputs = ProbeInputs(
        task="multi_label",
        classes=("edema", "fracture"),
        image_ids=ids,
        features=features,
        labels=labels,
        train={seed: np.arange(60) for seed in (0, 1)},
        validation={},
        fraction_sizes={(seed, f): round(60 * f) for seed in (0, 1) for f in (0.5, 1.0)},
        test=dict.fromkeys(("clean", "blur-s1", "blur-s3", "shift_elsewhere"), test),
        c=1.0,
        gap=1e-8,
        sd_floor=1e-6,
    )
    monkeypatch.setattr(estimator_stages, "probe_inputs", lambda context: inputs)
    monkeypatch.setattr(StageContext, "shift_id", "elsewhere")
    monkeypatch.setattr(StageContext, "read", lambda context, table, columns=None: images.select(columns))
    rows = estimator_stages.estimate(context(project)).frames
    records = rows["estimator_records"].filter(label_fraction=1.0, seed=0)
    for name in NAMES:
        clean, shifted = (
            records.filter(estimator=name, condition_id=condition).row(0, named=True)
            for condition in ("clean", "shift_elsewhere")
        )
        first = clean["macro_auroc"]
        assert first > 0.7 and shifted["n"] == 30
        # what was right at home is wrong there, and only the first label counts
        assert shifted["macro_auroc"] < 0.3
        primary, without_shift = (
            rows["estimator_axes"].filter(estimator=name, axis="robustness", variant=variant).get_column("value").item()
            for variant in ("primary", "corruption_only")
        )
        assert without_shift == pytest.approx(1.0) and primary < 0.8
