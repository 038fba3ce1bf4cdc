"""Whole records."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    brier_score_loss,
    cohen_kappa_score,
    log_loss,
    roc_auc_score,
)

from crsbench_assets.metrics.calibration import class_probabilities
from crsbench_assets.metrics.compute import record_metrics, reliability_bins
from crsbench_assets.tables.results import METRICS


def _single(n, k, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.eye(k, dtype=np.int8)[rng.integers(0, k, n)]
    return (rng.normal(size=(n, k)) + 1.5 * labels).astype(np.float32), labels


def _multi(n, k, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.choice(np.array([-1, 0, 1], dtype=np.int8), p=[0.1, 0.6, 0.3], size=(n, k))
    return (rng.normal(size=(n, k)) + labels).astype(np.float32), labels


def _record(logits, labels, task):
    return record_metrics(logits, labels, task, groups=np.arange(len(logits)), n_bins=15)


def test_ordinal_record_agrees_with_scikit_learn():
    logits, labels = _single(400, 5)
    record = _record(logits, labels, "ordinal")
    p, truth = class_probabilities(logits, "ordinal"), labels.argmax(axis=1)
    predicted = p.argmax(axis=1)
    expected = {
        "macro_auroc": roc_auc_score(truth, p, multi_class="ovr", average="macro"),
        "brier": brier_score_loss(truth, p, labels=range(5), scale_by_half=False),
        "nll": log_loss(truth, p),
        "accuracy": accuracy_score(truth, predicted),
        "balanced_accuracy": balanced_accuracy_score(truth, predicted),
        "qwk": cohen_kappa_score(truth, predicted, weights="quadratic"),
        "ordinal_mae": np.abs(truth - predicted).mean(),
    }
    for name, value in expected.items():
        assert getattr(record, name) == pytest.approx(value, abs=1e-9), name
    assert record.brier == pytest.approx(sum(row.brier for row in record.labels), abs=1e-12)


def test_multi_label_record_agrees_with_scikit_learn():
    logits, labels = _multi(300, 4)
    record = _record(logits, labels, "multi_label")
    p = class_probabilities(logits, "multi_label")
    known = [labels[:, c] >= 0 for c in range(4)]
    columns = [(labels[known[c], c], p[known[c], c], logits[known[c], c]) for c in range(4)]
    expected = {
        "macro_auroc": np.mean([roc_auc_score(y, z) for y, _, z in columns]),
        "brier": np.mean([brier_score_loss(y, q) for y, q, _ in columns]),
        "nll": np.mean([log_loss(y, q) for y, q, _ in columns]),
        "accuracy": np.concatenate([(q >= 0.5) == (y == 1) for y, q, _ in columns]).mean(),
        "balanced_accuracy": np.mean([balanced_accuracy_score(y, q >= 0.5) for y, q, _ in columns]),
    }
    for name, value in expected.items():
        assert getattr(record, name) == pytest.approx(value, abs=1e-9), name
    assert record.qwk is None and record.ordinal_mae is None
    assert record.classwise_ece == record.ece == pytest.approx(np.mean([row.ece for row in record.labels]))


def test_single_label_record_has_no_ordinal_metrics_and_two_classes_share_one_auroc():
    logits, labels = _single(100, 2)
    record = _record(logits, labels, "single_label")
    assert record.qwk is None and record.ordinal_mae is None
    assert record.labels[0].auroc == record.labels[1].auroc == record.macro_auroc
    margin = logits[:, 1].astype(np.float64) - logits[:, 0]
    assert record.macro_auroc == pytest.approx(roc_auc_score(labels[:, 1], margin), abs=1e-12)


def test_two_class_auroc_does_not_suffer_from_saturated_probabilities():
    # softmax gives 1, 1, 1 for class 0; the logit difference still ranks
    logits = np.array([[300.0, 0.0], [200.0, 0.0], [100.0, 0.0]])
    labels = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.int8)
    assert _record(logits, labels, "single_label").macro_auroc == 1.0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(2, 5), st.integers(0, 10_000), st.sampled_from(["ordinal", "multi_label"]))
def test_every_value_is_in_its_range_or_none_with_a_reason(n, k, seed, task):  # fmt: skip
    make = _multi if task == "multi_label" else _single
    logits, labels = make(n, k, seed)
    rng = np.random.default_rng(seed)
    logits[:, rng.random(k) < 0.2] = np.nan
    record = _record(logits, labels, task)
    for spec in METRICS:
        value = getattr(record, spec.name)
        if value is not None:
            assert type(value) is float
            assert spec.low is not None
            assert spec.low - 1e-12 <= value <= (np.inf if spec.high is None else spec.high + 1e-12), spec.name
    expected = {spec.name for spec in METRICS} - (set() if task == "ordinal" else {"qwk", "ordinal_mae"})
    assert (record.reason is None) == all(getattr(record, name) is not None for name in expected)
    for row in record.labels:
        assert (row.auroc is None) == (row.auroc_reason is not None)
        assert (row.ece is None) == (row.brier is None) == (row.calibration_reason is not None)
        assert row.auroc is None or 0.0 <= row.auroc <= 1.0


@pytest.mark.parametrize(("make", "task"), [(_single, "ordinal"), (_multi, "multi_label")])
def test_order_and_duplication_of_images_change_nothing(make, task):
    logits, labels = make(80, 4)
    record = _record(logits, labels, task)
    order = np.random.default_rng(1).permutation(80)
    twice = np.concatenate([order, order])
    for images in (order, twice):
        other = _record(logits[images], labels[images], task)
        for spec in METRICS:
            if spec.name == "ece_debiased" and len(images) > 80:
                continue  # it estimates a variance, which twice the images halve
            assert getattr(other, spec.name) == pytest.approx(getattr(record, spec.name), abs=1e-12), spec.name


def test_relabelling_classes_permutes_the_labels_and_keeps_the_record():
    logits, labels = _single(90, 4)
    order = [2, 0, 3, 1]
    record, other = (_record(logits[:, c], labels[:, c], "single_label") for c in (range(4), order))
    assert [row.auroc for row in other.labels] == [record.labels[c].auroc for c in order]
    for name in ("macro_auroc", "ece", "adaptive_ece", "classwise_ece", "brier", "nll", "accuracy"):
        assert getattr(other, name) == pytest.approx(getattr(record, name), abs=1e-12), name


def test_label_that_was_not_fitted():
    logits, labels = _multi(50, 3)
    rest = _record(logits[:, 1:], labels[:, 1:], "multi_label")
    logits[:, 0] = np.nan
    record = _record(logits, labels, "multi_label")
    row = record.labels[0]
    assert (row.auroc, row.ece, row.brier) == (None, None, None)
    assert (row.auroc_reason, row.calibration_reason) == ("one_class_train", "one_class_train")
    assert row.n_pos == (labels[:, 0] == 1).sum()
    for spec in METRICS:
        assert getattr(record, spec.name) == getattr(rest, spec.name), spec.name


def test_class_that_was_not_fitted():
    # p = (1/2, 0, 1/2) for every image; true classes 0, 0, 1, 2
    logits = np.array([[0.0, np.nan, 0.0]] * 4)
    labels = np.eye(3, dtype=np.int8)[[0, 0, 1, 2]]
    record = _record(logits, labels, "single_label")
    assert record.labels[1].auroc_reason == record.labels[1].calibration_reason == "class_absent_train"
    assert (record.n_defined_auroc, record.n_defined_calibration) == (2, 2)
    assert record.macro_auroc == 0.5  # all tied
    assert record.nll is None  # an image of class 1 has likelihood 0
    assert record.reason == "class_absent_train"  # NULL never stands without a reason
    assert record.brier == pytest.approx((3 * 0.5 + 1.5) / 4)
    assert record.accuracy == 0.5  # argmax ties go to class 0
    assert record.balanced_accuracy == pytest.approx(1 / 3)
    assert record.ece == 0.0  # confidence .5, half right
    present = _record(logits[[0, 1, 3]], labels[[0, 1, 3]], "single_label")
    assert present.nll == pytest.approx(np.log(2))
    assert present.reason is None


@pytest.mark.parametrize("n_fitted", [0, 1])
def test_single_label_record_with_fewer_than_two_fitted_classes_is_undefined(n_fitted):
    logits, labels = _single(20, 3)
    logits[:, n_fitted:] = np.nan
    record = _record(logits, labels, "ordinal")
    assert all(getattr(record, spec.name) is None for spec in METRICS)
    assert record.reason == ("one_class_train" if n_fitted else "class_absent_train")
    assert reliability_bins(logits, labels, "ordinal", n_bins=15) == []


def test_test_set_of_one_class():
    logits, _ = _single(20, 3)
    labels = np.eye(3, dtype=np.int8)[np.zeros(20, dtype=int)]
    record = _record(logits, labels, "single_label")
    assert (record.macro_auroc, record.reason) == (None, "no_negative")
    assert [row.auroc_reason for row in record.labels] == ["no_negative", "no_positive", "no_positive"]
    assert record.ece is not None and record.nll is not None
    assert record.balanced_accuracy == record.accuracy


@pytest.mark.parametrize("task", ["single_label", "ordinal", "multi_label"])
def test_no_images(task):
    record = record_metrics(np.empty((0, 3)), np.empty((0, 3), np.int8), task, groups=np.empty(0, int), n_bins=15)
    assert (record.n, record.reason) == (0, "no_images")
    assert all(getattr(record, spec.name) is None for spec in METRICS)
    assert {row.auroc_reason for row in record.labels} == {"no_images"}
    assert reliability_bins(np.empty((0, 3)), np.empty((0, 3), np.int8), task, n_bins=15) == []


def test_counts_of_a_label():
    labels = np.array([[1], [1], [1], [0], [-1]], dtype=np.int8)
    record = record_metrics(np.zeros((5, 1)), labels, "multi_label", groups=np.array([7, 7, 2, 2, 0]), n_bins=15)
    row = record.labels[0]
    assert (row.n_pos, row.n_neg, row.n_groups_pos, record.n) == (3, 1, 2, 5)


@pytest.mark.parametrize(
    ("labels", "match"),
    [([[1, 1]], "one-hot"), ([[0, 0]], "one-hot"), ([[1, -1]], "one-hot"), ([[1, 0], [1, 0]], r"\(n, k\)")],
)
def test_wrong_labels_are_refused(labels, match):
    with pytest.raises(ValueError, match=match):
        _record(np.zeros((1, 2)), np.array(labels, dtype=np.int8), "single_label")


@pytest.mark.parametrize(("make", "task"), [(_single, "single_label"), (_multi, "multi_label")])
def test_reliability_bins_add_up_to_the_errors(make, task):
    logits, labels = make(200, 3)
    record = _record(logits, labels, task)
    rows = reliability_bins(logits, labels, task, n_bins=15)

    def error(class_index):
        bins = [row for row in rows if row.class_index == class_index]
        return sum(row.n * abs(row.mean_label - row.mean_confidence) for row in bins) / sum(row.n for row in bins)

    for c in range(3):
        assert error(c) == pytest.approx(record.labels[c].ece, abs=1e-12)
    if task == "single_label":
        assert error(None) == pytest.approx(record.ece, abs=1e-12)
    else:
        assert all(row.class_index is not None for row in rows)
    assert all(row.n > 0 and row.bin_low <= row.mean_confidence <= row.bin_high + 1e-12 for row in rows)


def test_columns_name_the_fields_of_a_record():
    fields = {field.name for field in dataclasses.fields(_record(*_single(5, 2), "single_label"))}
    names = {spec.name for spec in METRICS}
    assert fields - names == {"n", "n_defined_auroc", "n_defined_calibration", "reason", "labels"}
    assert names <= fields


def test_metrics_import_nothing_heavy():
    code = (
        "import sys\n"
        "for name in ('torch', 'duckdb', 'dagster', 'sklearn', 'pydantic'): sys.modules[name] = None\n"
        "import crsbench_assets.metrics.compute, crsbench_assets.metrics.replicates\n"
        "ours = {n.split('.')[1] for n in sys.modules if n.startswith('crsbench_assets.')}\n"
        "assert ours <= {'metrics', 'config'}, ours\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
