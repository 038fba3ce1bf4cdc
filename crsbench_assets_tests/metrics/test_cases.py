"""The cases on which other libraries go wrong, with their inputs written out."""

from __future__ import annotations

import numpy as np
import pytest

from crsbench_assets.aggregates.axes import common_macros
from crsbench_assets.metrics.calibration import (
    class_probabilities,
    equal_mass_bins,
    equal_width_bins,
    expected_calibration_error,
)
from crsbench_assets.metrics.columns import rank_columns
from crsbench_assets.metrics.compute import record_metrics
from crsbench_assets.metrics.ranking import auroc

UNKNOWN = -1


def test_ece_with_probabilities_of_exactly_zero_and_one():
    # bin (0, .5]: p 0, y 1 -> gap 1; bin (.5, 1]: p 1 1 1 1, y 0 0 1 1 -> gap .5; ECE = 1/5 + 4/5 * .5 = .6
    p = np.array([[1.0], [1.0], [1.0], [1.0], [0.0]])
    y = np.array([[0], [0], [1], [1], [1]], dtype=np.int8)
    bins = equal_width_bins(*rank_columns(p, y), 2)
    assert bins.n.tolist() == [1, 4]
    assert expected_calibration_error(bins) == pytest.approx(0.6, abs=1e-15)


def test_label_column_without_any_known_value():
    scores = np.array([[0.9, 0.2, 0.7], [0.1, 0.4, 0.6], [0.8, 0.3, 0.2]])
    labels = np.array([[1, UNKNOWN, 0], [0, UNKNOWN, 1], [1, UNKNOWN, 0]], dtype=np.int8)
    record = record_metrics(scores, labels, "multi_label", groups=np.arange(3), n_bins=15)
    assert [row.auroc for row in record.labels] == [1.0, None, 0.5]
    assert [row.auroc_reason for row in record.labels] == [None, "no_labels", None]
    assert [row.calibration_reason for row in record.labels] == [None, "no_labels", None]
    assert (record.macro_auroc, record.n_defined_auroc, record.n_defined_calibration) == (0.75, 2, 2)
    assert record.reason is None


def test_class_absent_from_test():
    p = np.array([[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1]])
    labels = np.eye(3, dtype=np.int8)[[0, 1, 0, 1]]
    record = record_metrics(np.log(p), labels, "single_label", groups=np.arange(4), n_bins=15)
    assert [row.auroc for row in record.labels] == [1.0, 1.0, None]
    assert [row.auroc_reason for row in record.labels] == [None, None, "no_positive"]
    assert (record.macro_auroc, record.n_defined_auroc) == (1.0, 2)


@pytest.mark.parametrize("batches", [[3], [1, 1, 1], [2, 1], [1, 2]])
def test_scores_outside_the_unit_interval(batches):
    scores = np.array([[-1.0], [0.0], [1.0]])
    labels = np.array([[1], [0], [1]], dtype=np.int8)
    cuts = np.cumsum(batches)[:-1]
    joined = np.concatenate(np.split(scores, cuts)), np.concatenate(np.split(labels, cuts))
    assert auroc(*rank_columns(*joined)) == 0.5
    # Neither does the value depend on whether all scores happen to lie in [0, 1].
    assert auroc(*rank_columns((joined[0] + 1.0) / 2.0, joined[1])) == 0.5
    assert record_metrics(*joined, "multi_label", groups=np.arange(3), n_bins=15).macro_auroc == 0.5


def test_label_missing_in_the_target():
    rng = np.random.default_rng(0)
    source_labels = rng.integers(0, 2, size=(60, 14)).astype(np.int8)
    target_labels = source_labels.copy()
    target_labels[:, 5] = UNKNOWN
    logits = rng.normal(size=(60, 14)) + source_labels
    source, target = (
        record_metrics(logits, labels, "multi_label", groups=np.arange(60), n_bins=15)
        for labels in (source_labels, target_labels)
    )
    assert (source.n_defined_auroc, target.n_defined_auroc) == (14, 13)
    reference, other = ({str(row.index): row.auroc for row in record.labels} for record in (source, target))
    pair = common_macros(reference, other)
    assert pair is not None and pair.n_defined == 13
    # The images are the same, so over the same labels the two means are equal; over their own they are not.
    assert pair.reference == pair.other
    assert source.macro_auroc != pair.reference


def test_adaptive_ece_does_not_depend_on_the_order_of_ties():
    rng = np.random.default_rng(1)
    p = rng.choice([0.1, 0.3, 0.3001, 0.9], size=(101, 1))
    y = rng.integers(0, 2, size=(101, 1)).astype(np.int8)
    values = set()
    for _ in range(50):
        order = rng.permutation(101)
        values.add(expected_calibration_error(equal_mass_bins(*rank_columns(p[order], y[order]), 15)))
    assert len(values) == 1  # to the last bit


def _bin_of(p):
    """Return the equal-width bin, of 15, of a single probability (1, 1)."""
    bins = equal_width_bins(*rank_columns(p, np.zeros((1, 1), dtype=np.int8)), 15)
    return bins.n.tolist().index(1)


@pytest.mark.parametrize("k", range(16))
def test_probability_on_a_bin_edge(k):
    expected_bin = max(k - 1, 0)  # counted from 0: p = k / 15 is the right edge of bin k - 1, and 0 is in the first
    p = np.array([[k / 15]])
    assert _bin_of(p) == expected_bin
    if 0 < k < 15:
        binary = np.log(p / (1 - p)).astype(np.float32)
        assert _bin_of(class_probabilities(binary, "multi_label")) == expected_bin
        pair = np.log(np.hstack([p, 1 - p])).astype(np.float32)
        assert _bin_of(class_probabilities(pair, "single_label")[:, :1]) == expected_bin
    if k:
        assert _bin_of(p - 1e-6) == expected_bin
    if k < 15:
        assert _bin_of(p + 1e-6) == k
