"""The probes of a cell: which rows they see, and that their stored weights say what their predictions say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from crsbench_assets.config.ids import CLEAN, VALIDATION_CONDITION
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.probes.fit import (
    ProbeInputs,
    fit_cell,
    prediction_rows,
    raw_probes,
    standardisation,
)
from crsbench_assets.probes.logistic import Certificate, Design, LogisticFit, fit_logistic

N, D = 90, 6
CLASSES = ("a", "b", "c")
IDS = [f"image{i:02d}" for i in range(N)]


def inputs(task: str = "single_label", d: int = D) -> ProbeInputs:
    """60 training images, 10 of validation, 20 of test; vectors far from the origin and of unlike scales."""
    generator = keyed_generator("test of the probes of a cell", task)
    truth = generator.integers(3, size=N)
    labels = np.eye(3, dtype=np.int8)[truth]
    features = generator.normal(size=(N, d)) + labels @ generator.normal(size=(3, d)) * 2
    features = (features * np.logspace(-2, 2, d) + 50).astype(np.float32)
    if task == "multi_label":
        labels[generator.random(labels.shape) < 0.1] = -1
    test = np.arange(70, 90)
    return ProbeInputs(
        task=task,  # type: ignore[arg-type]
        classes=CLASSES,
        image_ids=IDS,
        features=features,
        labels=labels,
        train={0: np.arange(60), 1: np.arange(59, -1, -1)},
        validation={0: np.arange(60, 70), 1: np.arange(60, 70)},
        fraction_sizes={(s, f): size for s in (0, 1) for f, size in ((0.1, None), (0.5, 30), (1.0, 60))},
        test={CLEAN: ([IDS[i] for i in test], features[test]), "blur-s1": ([IDS[i] for i in test], features[test] + 1)},
        c=1.0,
        gap=1e-8,
        sd_floor=1e-6,
    )


def matrix(rows: pl.DataFrame) -> np.ndarray:
    return np.array([[np.nan if x is None else x for x in row] for row in rows.get_column("logits").to_list()])


@pytest.mark.parametrize("task", ["single_label", "multi_label"])
def test_predictions_are_those_of_the_probe_on_standardised_vectors(task: str) -> None:
    given = inputs(task)
    found = fit_cell(given).predictions.filter((pl.col("seed") == 1) & (pl.col("label_fraction") == 0.5))
    rows = given.train[1]
    z = standardisation(given.features[rows], given.sd_floor)
    fit = fit_logistic(
        Design(z.apply(given.features[rows])).prefix(30), given.labels[rows[:30]], given.task, given.c, gap=given.gap
    )
    for condition, (ids, vectors) in given.test.items():
        part = found.filter(pl.col("condition_id") == condition)
        assert part.get_column("image_id").to_list() == ids
        np.testing.assert_allclose(matrix(part), z.apply(vectors) @ fit.weights.T + fit.intercept, rtol=2e-4, atol=2e-4)


def test_the_standardisation_is_that_of_the_whole_train_split() -> None:
    given = inputs()
    train = given.features[given.train[0]].astype(np.float64)
    z = standardisation(given.features[given.train[0]], 1e-6)
    np.testing.assert_allclose(z.mean, train.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(z.scale, 1 / train.std(axis=0), rtol=1e-9)


def test_a_dimension_without_spread_is_set_to_0() -> None:
    given = inputs()
    given.features[:, 2] = 7.0
    ids, vectors = given.test[CLEAN]
    elsewhere = vectors.copy()
    elsewhere[:, 2] += 9.0
    found = fit_cell(replace(given, test={CLEAN: (ids, vectors), "blur-s1": (ids, elsewhere)}))
    assert set(found.probe_fits.get_column("n_dims_dropped")) == {1}
    clean, moved = (found.predictions.filter(pl.col("condition_id") == name) for name in (CLEAN, "blur-s1"))
    assert clean.get_column("logits").equals(moved.get_column("logits"))


@pytest.mark.parametrize("task", ["single_label", "multi_label"])
def test_stored_weights_make_the_stored_logits_again_bit_by_bit(task: str) -> None:
    given = inputs(task)
    given.labels[given.train[0][:30], 2] = 0  # class c is not among the first half's labels
    if task != "multi_label":
        given.labels[given.train[0][:30]] = np.eye(3, dtype=np.int8)[[0, 1] * 15]
    found = fit_cell(given)
    for seed in (0, 1):
        probes = raw_probes(found.probe_weights, seed, CLASSES, D)
        again = prediction_rows(seed, "blur-s1", *given.test["blur-s1"][:1], probes, given.test["blur-s1"][1])
        kept = found.predictions.filter((pl.col("seed") == seed) & (pl.col("condition_id") == "blur-s1"))
        assert again.equals(kept)
    absent = found.probe_weights.filter(pl.col("weights").is_null())
    reason = "one_class_train" if task == "multi_label" else "class_absent_train"
    assert set(absent.select("seed", "label_fraction", "class_name", "reason").iter_rows()) == {(0, 0.5, "c", reason)}


def test_validation_images_are_predicted_at_all_labels_and_never_fitted() -> None:
    given = inputs()
    found = fit_cell(given)
    held_out = found.predictions.filter(pl.col("condition_id") == VALIDATION_CONDITION)
    assert set(held_out.get_column("label_fraction")) == {1.0}
    assert held_out.filter(pl.col("seed") == 0).get_column("image_id").to_list() == IDS[60:70]
    given.labels[60:70] = given.labels[60:70][:, ::-1]
    given.features[70:] = 0
    again = fit_cell(given)
    assert again.probe_fits.equals(found.probe_fits) and again.probe_weights.equals(found.probe_weights)


def test_an_infeasible_fraction_has_fits_that_say_so_and_no_predictions() -> None:
    found = fit_cell(inputs("multi_label"))
    fits = found.probe_fits.filter(pl.col("label_fraction") == 0.1)
    assert fits.get_column("problem").to_list() == [*CLASSES, *CLASSES]
    assert set(fits.get_column("reason")) == {"infeasible_fraction"}
    assert set(found.predictions.get_column("label_fraction")) == {0.5, 1.0}


@pytest.mark.parametrize("d", [D, 28])
def test_a_seed_alone_has_the_bits_that_it_has_among_others(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if d > D:  # as with vectors of real width, whose fits share the eigenbasis of the pool
        monkeypatch.setattr("crsbench_assets.probes.solver.NEWTON_MAX_COEFFICIENTS", 0)
    given = inputs(d=d)
    found = fit_cell(given)
    alone = fit_cell(
        replace(
            given,
            train={1: given.train[1]},
            fraction_sizes={key: size for key, size in given.fraction_sizes.items() if key[0] == 1},
        )
    )
    for name in ("probe_fits", "probe_weights", "predictions"):
        assert getattr(alone, name).equals(getattr(found, name).filter(pl.col("seed") == 1)), name


def test_without_validation_images_there_are_no_rows_for_them() -> None:
    nobody = np.empty(0, dtype=np.int64)
    found = fit_cell(replace(inputs(), validation={0: nobody, 1: nobody}))
    assert set(found.predictions.get_column("condition_id")) == {CLEAN, "blur-s1"}
    assert set(found.probe_fits.get_column("n_val")) == {0}


def test_a_fit_beyond_the_gap_is_recorded_as_not_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    found = Certificate(1.0, 1.0, 2e-5, 7, "batched:test", None)

    def unsolved(design: Design, labels: np.ndarray, *_: object, gap: float) -> LogisticFit:
        asked.append(gap)
        return LogisticFit(np.zeros((3, D)), np.zeros(3), (found,))

    monkeypatch.setattr("crsbench_assets.probes.fit.fit_logistic", unsolved)
    for gap, is_converged in ((1e-5, False), (1e-4, True)):
        asked.clear()
        fits = fit_cell(replace(inputs(), gap=gap)).probe_fits.filter(pl.col("reason").is_null())
        assert set(asked) == {gap}
        assert set(fits.get_column("is_converged")) == {is_converged}
