"""Replicates under resampled groups, and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.metrics import replicates
from crsbench_assets.metrics.compute import record_metrics
from crsbench_assets.metrics.records import Record, measure_records
from crsbench_assets.metrics.replicates import (
    auroc_replicates,
    ece_interval,
    ece_replicates,
    exact_auroc_replicates,
    group_weights,
    image_level_auroc_interval,
    image_level_ece_interval,
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
            assert ece_interval(drawn.values, drawn.point) == (None, None, "unstable")


def test_single_label_record_that_was_not_fitted_has_no_replicates():
    logits, labels, groups = _single_label_record(n=20, n_groups=5)
    arguments = (np.full_like(logits, np.nan), labels, "single_label", groups, group_weights("demo", 5, 10))
    for drawn in (auroc_replicates(*arguments), ece_replicates(*arguments, n_bins=15)):
        assert drawn.point is None
        assert np.isnan(drawn.values).all()


def test_intervals_by_hand():
    # 0 .. 100 in hundredths: mean .5, percentiles .025 and .975
    values = np.arange(101) / 100
    assert percentile_interval(values) == (pytest.approx(0.025), pytest.approx(0.975), None)
    # From .3: 2 x .09 - .975^2 < 0, and sqrt(2 x .09 - .025^2).
    assert ece_interval(values, 0.3) == (0.0, pytest.approx(0.423527, abs=1e-6), None)
    # From .8: sqrt(2 x .64 - .975^2), and sqrt(2 x .64 - .025^2) > 1.
    assert ece_interval(values, 0.8) == (pytest.approx(0.573912, abs=1e-6), 1.0, None)
    # All replicates below sqrt(2) x .2: nothing but noise is known, and the upper end is what is left of it.
    low, high, reason = ece_interval(0.25 + values / 20, 0.2)
    assert (low, high, reason) == (0.0, pytest.approx(0.129898, abs=1e-6), None)


@pytest.mark.parametrize(("n_missing", "reason"), [(5, None), (6, "unstable")])
def test_interval_needs_95_percent_of_the_replicates(n_missing, reason):
    values = np.linspace(0, 1, 100)
    values[:n_missing] = np.nan
    assert percentile_interval(values).reason == reason
    assert ece_interval(values, 0.5).reason == reason


def test_no_replicates_and_no_point():
    assert percentile_interval(np.empty(0)) == (None, None, "unstable")
    assert ece_interval(np.linspace(0, 1, 10), None) == (None, None, "unstable")


def _near_duplicates(number, n_patients=100, n_images=20):
    """Return a cohort whose images of a patient differ by a tenth of the spread of patients, and its true AUROC.

    A patient's score is normal with mean 1.2 times the label; an image adds noise of sd .1. The difference of a
    positive and a negative image is then normal with mean 1.2 and variance 2 (1 + .01).
    """
    rng = keyed_generator("near duplicates", number)
    labels = rng.integers(0, 2, n_patients, dtype=np.int8)
    patients = 1.2 * labels + rng.normal(size=n_patients)
    scores = np.repeat(patients, n_images) + rng.normal(scale=0.1, size=n_patients * n_images)
    groups = np.repeat(np.arange(n_patients), n_images)
    return scores[:, None].astype(np.float32), labels[groups][:, None], groups, norm.cdf(1.2 / np.sqrt(2.02))


def test_clustered_interval_covers_where_the_image_level_one_does_not():
    # 600 cohorts, so that the share of those covered has a standard deviation of 1 point (300: 1.3). In the long run
    # (2,500 cohorts) it is 94.3 % for the exact bootstrap and 94.2 % by influence: 3.9 % of the intervals lie above the
    # truth and 1.8 % below, since percentiles do not correct for the skewness of an AUROC from 50 + 50 patients.
    weights = group_weights("near duplicates", 100, 1000)
    covered = np.zeros(3)
    ratios = []
    for number in range(600):
        logits, labels, groups, truth = _near_duplicates(number)
        exact, influence = (
            percentile_interval(replicate(logits, labels, "multi_label", groups, weights).values)
            for replicate in (exact_auroc_replicates, auroc_replicates)
        )
        by_image = image_level_auroc_interval(logits, labels, "multi_label")
        covered += [interval.low <= truth <= interval.high for interval in (exact, influence, by_image)]
        widths = [interval.high - interval.low for interval in (exact, influence, by_image)]
        ratios.append((widths[0] / widths[2], widths[1] / widths[2]))
    covered /= 600
    ratio = np.mean(ratios, axis=0)
    found = (
        f"coverage: exact {covered[0]:.3f}, influence {covered[1]:.3f}, image-level {covered[2]:.3f}; clustered over "
        f"image-level width: exact {ratio[0]:.2f}, influence {ratio[1]:.2f}"
    )
    assert (covered[:2] >= 0.92).all() and (covered[:2] <= 0.98).all(), found
    assert covered[2] < 0.5, found
    assert (ratio >= 2.5).all() and (ratio <= 5.0).all(), found


def test_image_level_auroc_interval_of_one_column_is_that_of_delong():
    # The variance from the pairwise kernel itself: S10 / n_pos + S01 / n_neg (DeLong et al. 1988, eq. 4 and 5)
    rng = np.random.default_rng(7)
    labels = rng.permutation(np.repeat(np.array([0, 1], dtype=np.int8), [50, 30]))
    scores = np.round(rng.normal(size=80) + labels, 1)
    positives, negatives = scores[labels == 1], scores[labels == 0]
    kernel = (positives[:, None] > negatives) + 0.5 * (positives[:, None] == negatives)
    sd = np.sqrt(kernel.mean(axis=1).var(ddof=1) / 30 + kernel.mean(axis=0).var(ddof=1) / 50)
    expected = kernel.mean() + norm.ppf([0.025, 0.975]) * sd
    found = image_level_auroc_interval(scores[:, None], labels[:, None], "multi_label")
    assert found == (pytest.approx(expected[0], abs=1e-12), pytest.approx(expected[1], abs=1e-12), None)


@pytest.mark.parametrize(
    ("make", "task"), [(_multi_label_record, "multi_label"), (_single_label_record, "single_label")]
)
def test_image_level_intervals_are_near_those_of_resampled_images(make, task):
    logits, labels, _ = make(n=600)
    if task == "multi_label":
        labels[:100, 1] = -1
    images = np.arange(600)
    weights = group_weights("images", 600, 2000)
    auroc = percentile_interval(exact_auroc_replicates(logits, labels, task, images, weights).values)
    drawn = ece_replicates(logits, labels, task, images, weights, n_bins=15)
    ece = ece_interval(drawn.values, drawn.point)
    found_auroc = image_level_auroc_interval(logits, labels, task)
    found_ece = image_level_ece_interval(
        logits, labels, task, n_bins=15, n_replicates=2000, generator=keyed_generator("images", task)
    )
    for found, expected in ((found_auroc, auroc), (found_ece, ece)):
        assert found[:2] == pytest.approx(expected[:2], abs=0.1 * (expected.high - expected.low))


def test_image_level_intervals_without_enough_images():
    labels = np.zeros((40, 1), dtype=np.int8)
    logits = np.random.default_rng(8).normal(size=(40, 1))

    def reasons():
        ece = image_level_ece_interval(
            logits, labels, "multi_label", n_bins=15, n_replicates=50, generator=keyed_generator("few")
        )
        return image_level_auroc_interval(logits, labels, "multi_label").reason, ece.reason

    # With m positives of 40, (1 - m / 40)^40 of the resamples have none: 13 % of m = 2, 4.4 % of m = 3.
    for n_positive, reason in ((0, "unstable"), (1, "unstable"), (2, "unstable"), (3, None)):
        labels[:n_positive] = 1
        assert reasons() == (reason, None)
    labels[1:] = -1  # one known entry
    assert reasons() == ("unstable", "unstable")
    logits[:] = np.nan
    assert reasons() == ("unstable", "unstable")
    logits, labels = logits[:0], labels[:0]
    assert reasons() == ("unstable", "unstable")


def test_replicates_equal_a_loop_over_scikit_learn():
    logits, labels, groups = _multi_label_record(n=400, k=2, n_groups=90)
    weights = group_weights("demo", 90, 60)
    drawn = exact_auroc_replicates(logits.astype(np.float32), labels, "multi_label", groups, weights)
    for r in range(60):
        rows = np.repeat(np.arange(400), weights[r, groups].astype(int))
        for c in range(2):
            expected = roc_auc_score(labels[rows, c], logits[rows, c].astype(np.float32))
            assert drawn.per_label[r, c] == pytest.approx(expected, abs=1e-12)


def test_chunks_of_replicates_change_no_bit(monkeypatch):
    logits, labels, groups = _multi_label_record(n=200, n_groups=50)
    weights = group_weights("demo", 50, 30)
    arguments = (logits, labels, "multi_label", groups, weights)
    whole = exact_auroc_replicates(*arguments)
    monkeypatch.setattr(replicates, "_CHUNK_ENTRIES", 7 * 200)
    np.testing.assert_array_equal(exact_auroc_replicates(*arguments).per_label, whole.per_label)


def test_records_say_which_intervals_they_have():
    logits, labels, groups = _multi_label_record(n=300, n_groups=60)
    logits = logits.astype(np.float32)
    labels[:, 2] = 0
    labels[np.flatnonzero(groups == 7), 2] = 1  # all positives of label 2 are in group 7: dropped where it is not drawn
    records = [
        Record(0, 1.0, "clean", logits, labels, groups),
        Record(0, 1.0, "blur_1", logits[:, :2], labels[:, :2], groups),
        Record(0, 1.0, "shift_target", logits[:, :2], labels[:, :2], groups, source_id="target"),
        Record(0, 0.1, "clean", logits, labels, groups),
    ]
    found = measure_records(
        records,
        dataset_id="demo",
        task="multi_label",
        classes=["a", "b", "c"],
        n_bins=15,
        n_replicates=200,
        encoder_id="encoder",
    ).run_records.rows(named=True)
    absent = int((group_weights("demo/primary", 60, 200)[:, 7] == 0).sum())
    assert [row["macro_auroc_ci_method"] for row in found] == ["exact", "influence", "exact", None]
    assert [row["n_replicates_dropped"] for row in found] == [absent, 0, 0, None]
    assert [row["interval_reason"] for row in found] == ["unstable", None, None, None]
    bounds = [f"{name}_ci{level}" for name in ("macro_auroc", "ece") for level in ("", "_image")]
    assert {name: found[0][f"{name}_low"] is None for name in bounds} == {
        "macro_auroc_ci": True,
        "macro_auroc_ci_image": False,
        "ece_ci": False,
        "ece_ci_image": False,
    }
    assert found[1].pop("ece_ci_image_low") is found[1].pop("ece_ci_image_high") is None, "of shown records only"
    for row in found[1:3]:
        assert all(row[f"{name}_low"] < row[f"{name}_high"] for name in bounds if f"{name}_low" in row)
        assert row["macro_auroc_ci_image_low"] < row["macro_auroc"] < row["macro_auroc_ci_image_high"]
    assert all(found[3][f"{name}_low"] is None for name in bounds)


def test_a_binary_softmax_has_the_image_level_interval_of_its_margin():
    generator = np.random.default_rng(3)
    truth = (np.arange(100) < 3).astype(np.int8)  # 4.8 % of the resamples lack the three: counted twice it is unstable
    margin = (generator.normal(size=100) + 2 * truth).astype(np.float32)
    softmax = image_level_auroc_interval(
        np.stack([-margin, margin], axis=1) / 2, np.stack([1 - truth, truth], axis=1), "single_label"
    )
    unit = image_level_auroc_interval(margin[:, None], truth[:, None], "multi_label")
    assert softmax.reason is None and softmax == pytest.approx(unit)


def test_one_group_is_a_reason_of_its_own():
    logits, labels, _ = _multi_label_record(n=60, n_groups=6)
    record = Record(0, 1.0, "clean", logits.astype(np.float32), labels, np.zeros(60, dtype=np.int64))
    (row,) = measure_records(
        [record],
        dataset_id="demo",
        task="multi_label",
        classes=["a", "b", "c"],
        n_bins=15,
        n_replicates=100,
        encoder_id="encoder",
    ).run_records.rows(named=True)
    assert (row["macro_auroc_ci_low"], row["ece_ci_low"], row["interval_reason"]) == (None, None, "one_group")
