"""Replicates under resampled groups, and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from crsbench_assets.metrics.compute import record_metrics
from crsbench_assets.metrics.replicates import (
    auroc_replicates,
    basic_interval,
    ece_replicates,
    exact_auroc_replicates,
    group_weights,
    percentile_interval,
)


def _multi_label_record(n=600, k=3, n_groups=150, seed=0):
    """Return logits, labels and groups in which images of a group resemble one another."""
    rng = np.random.default_rng(seed)
    groups = np.concatenate([np.arange(n_groups), rng.integers(0, n_groups, n - n_groups)])
    shared = rng.normal(size=(n_groups, k))[groups]
    labels = (shared + rng.normal(size=(n, k)) > 0.8).astype(np.int8)
    logits = 1.2 * labels + 0.7 * shared + rng.normal(size=(n, k)) - 1.0
    return np.round(logits, 1), labels, groups


def _single_label_record(n=300, k=4, n_groups=80, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.eye(k, dtype=np.int8)[rng.integers(0, k, n)]
    groups = np.concatenate([np.arange(n_groups), rng.integers(0, n_groups, n - n_groups)])
    return np.round(rng.normal(size=(n, k)) + labels, 1), labels, groups


def test_group_weights_are_counts_keyed_by_the_dataset():
    weights = group_weights("demo", 30, 400)
    assert weights.shape == (400, 30)
    assert (weights.sum(axis=1) == 30).all()
    np.testing.assert_array_equal(weights, group_weights("demo", 30, 400))
    assert (weights != group_weights("other", 30, 400)).any()
    # Multinomial: mean 1, variance 1 - 1/g
    assert weights.mean(axis=0).std() < 0.1
    assert weights.var() == pytest.approx(1 - 1 / 30, abs=0.05)
    with pytest.raises(ValueError, match="at least one"):
        group_weights("demo", 0, 10)


@pytest.mark.parametrize("n_images", [50, 600])
def test_equal_weights_give_the_point(n_images):
    for make, task in ((_multi_label_record, "multi_label"), (_single_label_record, "ordinal")):
        logits, labels, groups = make(n=n_images, n_groups=20)
        record = record_metrics(logits, labels, task, groups=groups, n_bins=15)
        ones = np.ones((1, 20))
        for replicate in (auroc_replicates, exact_auroc_replicates):
            drawn = replicate(logits, labels, task, groups, ones)
            assert drawn.point == pytest.approx(record.macro_auroc, abs=1e-15)
            assert drawn.values[0] == pytest.approx(record.macro_auroc, abs=1e-12)
        drawn = ece_replicates(logits, labels, task, groups, ones, n_bins=15)
        assert drawn.point == pytest.approx(record.ece, abs=1e-15)
        assert drawn.values[0] == pytest.approx(record.ece, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "task"), [(_multi_label_record, "multi_label"), (_single_label_record, "single_label")]
)
def test_exact_replicates_equal_repeating_the_images(make, task):
    logits, labels, groups = make(n=120, n_groups=30)
    weights = group_weights("demo", 30, 20)
    auroc = exact_auroc_replicates(logits, labels, task, groups, weights)
    ece = ece_replicates(logits, labels, task, groups, weights, n_bins=15)
    for r in range(20):
        images = np.repeat(np.arange(120), weights[r, groups].astype(int))
        record = record_metrics(logits[images], labels[images], task, groups=groups[images], n_bins=15)
        assert auroc.values[r] == pytest.approx(record.macro_auroc, abs=1e-12)
        assert ece.values[r] == pytest.approx(record.ece, abs=1e-12)


def test_influence_spread_is_within_two_percent_of_the_exact_bootstrap():
    logits, labels, groups = _multi_label_record(n=600, n_groups=150)
    weights = group_weights("demo", 150, 1000)
    fast = auroc_replicates(logits, labels, "multi_label", groups, weights)
    exact = exact_auroc_replicates(logits, labels, "multi_label", groups, weights)
    assert fast.values.std(ddof=1) == pytest.approx(exact.values.std(ddof=1), rel=0.02)
    np.testing.assert_allclose(fast.per_label.std(axis=0), exact.per_label.std(axis=0), rtol=0.02)
    assert np.corrcoef(fast.values, exact.values)[0, 1] > 0.995
    low, high, reason = percentile_interval(fast.values)
    exact_low, exact_high, _ = percentile_interval(exact.values)
    assert reason is None
    assert (low, high) == pytest.approx((exact_low, exact_high), abs=0.05 * (exact_high - exact_low))


def test_resampling_whole_groups_is_wider_than_resampling_images():
    rng = np.random.default_rng(5)
    groups = np.repeat(np.arange(60), 10)
    labels = np.repeat(rng.integers(0, 2, 60), 10)[:, None].astype(np.int8)
    logits = labels + np.repeat(rng.normal(size=60), 10)[:, None] + 0.1 * rng.normal(size=(600, 1))
    by_group = auroc_replicates(logits, labels, "multi_label", groups, group_weights("demo", 60, 500))
    by_image = auroc_replicates(logits, labels, "multi_label", np.arange(600), group_weights("demo", 600, 500))
    assert by_group.values.std() > 2 * by_image.values.std()


def test_perfect_ranking_has_no_spread():
    labels = np.repeat(np.array([[0], [1]], dtype=np.int8), 20, axis=0)
    drawn = auroc_replicates(labels.astype(float), labels, "multi_label", np.arange(40), group_weights("demo", 40, 100))
    assert drawn.point == 1.0
    assert (drawn.values == 1.0).all()


def test_replicates_in_which_a_label_is_undefined_are_dropped():
    # The only positive of label 1 is in group 0: the label is undefined where group 0 is not drawn.
    rng = np.random.default_rng(6)
    labels = np.zeros((40, 2), dtype=np.int8)
    labels[::2, 0] = 1
    labels[0, 1] = 1
    weights = group_weights("demo", 40, 200)
    absent = weights[:, 0] == 0
    assert 0 < absent.sum() < 200
    for replicate in (auroc_replicates, exact_auroc_replicates):
        drawn = replicate(rng.normal(size=(40, 2)), labels, "multi_label", np.arange(40), weights)
        np.testing.assert_array_equal(np.isnan(drawn.values), absent)
        assert np.isnan(drawn.per_label).sum(axis=0).tolist() == [0, absent.sum()]
        assert percentile_interval(drawn.values) == (None, None, "unstable")  # about 37 % are missing
        assert percentile_interval(drawn.per_label[:, 0]).reason is None


def test_unknown_and_unfitted_labels_stay_out_of_the_macro():
    logits, labels, groups = _multi_label_record(n=200, n_groups=50)
    weights = group_weights("demo", 50, 50)
    alone = (logits[:, :1], labels[:, :1], "multi_label", groups, weights)
    logits, labels = logits.copy(), labels.copy()
    logits[:, 1] = np.nan
    labels[:, 2] = -1
    together = (logits, labels, "multi_label", groups, weights)
    for replicate in (auroc_replicates, exact_auroc_replicates):
        np.testing.assert_allclose(replicate(*together).values, replicate(*alone).values, atol=1e-12)
    ece = ece_replicates(*together, n_bins=15)
    np.testing.assert_allclose(ece.values, ece_replicates(*alone, n_bins=15).values, atol=1e-12)
    assert np.isnan(ece.per_label).sum(axis=0).tolist() == [0, 50, 50]


@pytest.mark.parametrize("task", ["single_label", "multi_label"])
def test_one_group_and_no_images_carry_no_interval(task):
    logits, labels, _ = _single_label_record(n=20, n_groups=5)
    for n, point_is_defined in ((20, True), (0, False)):
        arguments = (logits[:n], labels[:n], task, np.zeros(n, dtype=int), group_weights("demo", 1, 10))
        for drawn in (
            auroc_replicates(*arguments),
            exact_auroc_replicates(*arguments),
            ece_replicates(*arguments, n_bins=15),
        ):
            assert (drawn.point is not None) == point_is_defined
            assert percentile_interval(drawn.values).reason == "unstable"
            assert basic_interval(drawn.values, drawn.point) == (None, None, "unstable")


def test_single_label_record_that_was_not_fitted_has_no_replicates():
    logits, labels, groups = _single_label_record(n=20, n_groups=5)
    arguments = (np.full_like(logits, np.nan), labels, "single_label", groups, group_weights("demo", 5, 10))
    for drawn in (auroc_replicates(*arguments), ece_replicates(*arguments, n_bins=15)):
        assert drawn.point is None
        assert np.isnan(drawn.values).all()


def test_intervals_by_hand():
    # 0 .. 100 in hundredths: percentiles .025 and .975; reflected at .3: .6 - .975 -> 0 and .6 - .025
    values = np.arange(101) / 100
    assert percentile_interval(values) == (pytest.approx(0.025), pytest.approx(0.975), None)
    assert basic_interval(values, 0.3) == (0.0, pytest.approx(0.575), None)
    assert basic_interval(values, 0.8) == (pytest.approx(0.625), 1.0, None)


@pytest.mark.parametrize(("n_missing", "reason"), [(5, None), (6, "unstable")])
def test_interval_needs_95_percent_of_the_replicates(n_missing, reason):
    values = np.linspace(0, 1, 100)
    values[:n_missing] = np.nan
    assert percentile_interval(values).reason == reason
    assert basic_interval(values, 0.5).reason == reason


def test_no_replicates_and_no_point():
    assert percentile_interval(np.empty(0)) == (None, None, "unstable")
    assert basic_interval(np.linspace(0, 1, 10), None) == (None, None, "unstable")
