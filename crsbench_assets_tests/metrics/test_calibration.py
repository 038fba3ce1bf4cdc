"""Probabilities, calibration errors, scoring rules and the floor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.metrics import brier_score_loss, log_loss

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.metrics.calibration import (
    brier_score,
    class_probabilities,
    debiased_calibration_error,
    ece_floor,
    equal_mass_bins,
    equal_width_bins,
    expected_calibration_error,
    logistic,
    logistic_loss,
    softmax_loss,
    top_label,
)
from crsbench_assets.metrics.columns import rank_columns

# Thousandths hit bin edges exactly or stay clear of them, so the strict formula below is the right answer.
THOUSANDTHS = st.integers(0, 1000).map(lambda i: i / 1000)
PROBABILITIES_AND_LABELS = st.lists(
    st.tuples(THOUSANDTHS | st.sampled_from([0.0, 0.2, 0.4, 1.0]), st.integers(-1, 1)),
    min_size=1,
    max_size=50,
)


def _column(pairs):
    p, y = zip(*pairs, strict=True)
    (column,) = rank_columns(np.array(p)[:, None], np.array(y, dtype=np.int8)[:, None])
    return column


def _ece_by_masks(p, y, n_bins):
    """Return the ECE by its formula, one mask per bin (strict edges)."""
    edges = np.arange(n_bins + 1) / n_bins
    total = 0.0
    for b in range(n_bins):
        inside = (p > edges[b]) & (p <= edges[b + 1]) | ((b == 0) & (p == 0))
        if inside.any():
            total += inside.mean() * abs(y[inside].mean() - p[inside].mean())
    return total


def _adaptive_ece_by_hand(pairs, n_bins):
    """Return the adaptive ECE by walking through the sorted entries."""
    entries = sorted(pair for pair in pairs if pair[1] >= 0)
    n, total, start = len(entries), 0.0, 0
    for b in range(1, n_bins + 1):
        end = -(-b * n // n_bins)
        while 0 < end < n and entries[end][0] == entries[end - 1][0]:
            end += 1
        if end > start:
            total += abs(sum(p - y for p, y in entries[start:end]))
            start = end
    return total / n if n else np.nan


def test_equal_width_by_hand():
    # two bins       p            y        gap of the means   weight
    # (0, .5]        .2 .4        1 0      |.3 - .5| = .2     2/5
    # (.5, 1]        .6 .8 1.     1 1 0    |.8 - 2/3| = 2/15  3/5     ECE = .08 + .08 = .16
    p = np.array([[0.2], [0.4], [0.6], [0.8], [1.0]])
    y = np.array([[1], [0], [1], [1], [0]], dtype=np.int8)
    assert expected_calibration_error(equal_width_bins(*rank_columns(p, y), 2)) == pytest.approx(0.16)


def test_equal_mass_by_hand():
    # sorted p  .1 .2 | .2 .9  cut after ceil(4/2) = 2 moves to the end of the run .2 .2, after 3
    # y          0  1    0  1  gaps: |.5 - 1| = .5 (sum), |.9 - 1| = .1 (sum) -> .6 / 4
    p = np.array([[0.2], [0.1], [0.9], [0.2]])
    y = np.array([[1], [0], [1], [0]], dtype=np.int8)
    bins = equal_mass_bins(*rank_columns(p, y), 2)
    assert bins.n.tolist() == [3, 1]
    assert expected_calibration_error(bins) == pytest.approx(0.15)


def test_debiased_by_hand():
    # one bin of 4: mean p .5, mean y .75; squared gap .0625, variance .75 * .25 / 3 = .0625 -> 0
    # mean y 1: squared gap .25, variance 0 -> root .5
    p = np.full((4, 2), 0.5)
    y = np.array([[1, 1], [1, 1], [1, 1], [0, 1]], dtype=np.int8)
    errors = [debiased_calibration_error(equal_width_bins(column, 1)) for column in rank_columns(p, y)]
    assert errors == pytest.approx([0.0, 0.5], abs=1e-8)


def test_debiased_estimate_is_nearer_the_truth_than_the_plug_in():
    # A perfectly calibrated model: the squared error is 0. Mean over 200 test sets of 150 images.
    rng = np.random.default_rng(0)
    p = rng.random((150, 200))
    y = (rng.random((150, 200)) < p).astype(np.int8)
    sets = [equal_width_bins(column, 15) for column in rank_columns(p, y)]
    plug_in = [(bins.n / 150 * ((bins.sum_y - bins.sum_p) / np.maximum(bins.n, 1)) ** 2).sum() for bins in sets]
    assert np.mean([debiased_calibration_error(bins) ** 2 for bins in sets]) < 0.3 * np.mean(plug_in)


@settings(max_examples=60, deadline=None)
@given(PROBABILITIES_AND_LABELS, st.sampled_from([1, 2, 10, 15]))
def test_calibration_errors_agree_with_their_formulas(pairs, n_bins):
    column = _column(pairs)
    p, y = np.array([pair for pair in pairs if pair[1] >= 0]).reshape(-1, 2).T
    equal_width = expected_calibration_error(equal_width_bins(column, n_bins))
    equal_mass = expected_calibration_error(equal_mass_bins(column, n_bins))
    assert equal_mass == pytest.approx(_adaptive_ece_by_hand(pairs, n_bins), abs=1e-12, nan_ok=True)
    if len(p):
        assert equal_width == pytest.approx(_ece_by_masks(p, y, n_bins), abs=1e-12)
        assert 0.0 <= equal_width <= 1.0
        assert 0.0 <= debiased_calibration_error(equal_width_bins(column, n_bins)) <= 1.0
    else:
        assert np.isnan(equal_width)


@settings(max_examples=40, deadline=None)
@given(PROBABILITIES_AND_LABELS, st.randoms(use_true_random=False))
def test_calibration_errors_ignore_order_and_duplication(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    for binned in (equal_width_bins, equal_mass_bins):
        value = expected_calibration_error(binned(_column(pairs), 15))
        for other in (shuffled, pairs + pairs):
            changed = expected_calibration_error(binned(_column(other), 15))
            assert changed == pytest.approx(value, abs=1e-12, nan_ok=True)


def test_fewer_entries_than_bins():
    bins = equal_mass_bins(_column([(0.3, 0), (0.6, 1)]), 15)
    assert bins.n.sum() == 2
    assert expected_calibration_error(bins) == pytest.approx((0.3 + 0.4) / 2)


def test_probabilities_outside_the_unit_interval_are_refused():
    with pytest.raises(ValueError, match="outside"):
        equal_width_bins(_column([(1.5, 1)]), 15)


def test_softmax_gives_absent_classes_zero_and_needs_two():
    p = class_probabilities(np.array([[1.0, np.nan, 1.0]]), "single_label")
    assert p.tolist() == [[0.5, 0.0, 0.5]]
    assert np.isnan(class_probabilities(np.array([[1.0, np.nan, np.nan]]), "ordinal")).all()


def test_logistic_over_the_whole_range_of_floats():
    z = np.array([-np.inf, -800.0, -700.0, -30.0, -1e-9, 0.0, 1.5, 40.0, 800.0, np.inf, np.nan])
    np.testing.assert_allclose(logistic(z), expit(z), rtol=4e-16, atol=1e-307)
    ordered = np.sort(np.random.default_rng(0).normal(scale=8, size=200_000).astype(np.float32))
    assert (np.diff(logistic(ordered)) >= 0).all()  # what sorts the logits sorts the probabilities


def test_nothing_counts():
    column = _column([(0.5, -1)])
    bins = equal_width_bins(column, 15)
    values = (expected_calibration_error(bins), debiased_calibration_error(bins))
    assert np.isnan([*values, brier_score(column), logistic_loss(column)]).all()
    assert equal_mass_bins(column, 15).n.sum() == 0


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_damaged_logits_are_refused(bad):
    with pytest.raises(ValueError, match=r"columns \[1\]"):
        class_probabilities(np.array([[0.0, bad], [0.0, 1.0]]), "multi_label")


def test_top_label_tie_goes_to_the_lowest_index():
    confidence, is_right = top_label(np.array([[0.4, 0.4, 0.2]]), np.array([[0, 1, 0]], dtype=np.int8))
    assert (confidence.tolist(), is_right.tolist()) == ([[0.4]], [[0]])


def test_scoring_rules_agree_with_scikit_learn():
    rng = np.random.default_rng(3)
    logits, labels = 3 * rng.normal(size=(200, 4)), rng.integers(-1, 2, size=(200, 4)).astype(np.int8)
    p = class_probabilities(logits, "multi_label")
    brier = [brier_score(column) for column in rank_columns(p, labels)]
    loss = [logistic_loss(column) for column in rank_columns(logits, labels)]
    for c in range(4):
        known = labels[:, c] >= 0
        assert brier[c] == pytest.approx(brier_score_loss(labels[known, c], p[known, c]), abs=1e-9)
        assert loss[c] == pytest.approx(log_loss(labels[known, c], p[known, c]), abs=1e-9)
    truth = rng.integers(0, 4, size=200)
    softmax = class_probabilities(logits, "single_label")
    assert softmax_loss(logits, truth) == pytest.approx(log_loss(truth, softmax, labels=range(4)), abs=1e-9)


def test_losses_stay_exact_where_probabilities_saturate():
    # p rounds to 1 at z = 800, yet -log(1 - p) = 800 + log(1 + exp(-800)) = 800
    assert logistic_loss(_column([(800.0, 0)])) == 800.0
    assert logistic_loss(_column([(-40.0, 0), (40.0, 1)])) == np.exp(-40.0)  # log1p(x) is x for so small an x
    assert softmax_loss(np.array([[800.0, 0.0]]), np.array([1])) == 800.0


def test_softmax_loss_is_undefined_for_a_class_without_probability():
    logits = np.array([[1.0, np.nan, 0.0]])
    assert softmax_loss(logits, np.array([1])) is None
    assert softmax_loss(logits, np.array([0])) == pytest.approx(np.log1p(np.exp(-1.0)))


def test_floor_of_one_bin_against_the_binomial():
    # p = .5 everywhere: the ECE is |K / n - .5| with K binomial(n, .5); for n = 4 its mean is
    # (2 * 1 * .5 + 2 * 4 * .25 + 6 * 0) / 16 = 3 / 16
    mean, p95 = ece_floor(np.full((4, 1), 0.5), "multi_label", 1, keyed_generator("floor"), n_draws=20_000)
    assert mean == pytest.approx(3 / 16, abs=0.004)
    assert p95 == 0.5  # P(|K - 2| = 2) = 2 / 16 > 5 %


@pytest.mark.parametrize("task", ["single_label", "multi_label"])
def test_floor_agrees_with_drawing_whole_label_sets(task):
    rng = np.random.default_rng(4)
    p = class_probabilities(2 * rng.normal(size=(150, 3)), task)
    if task == "multi_label":
        p[:40, 1] = np.nan  # unknown labels are left out of the floor as of the ECE
    mean, p95 = ece_floor(p, task, 15, keyed_generator("floor", task), n_draws=1000)
    columns = p.max(axis=1, keepdims=True) if task == "single_label" else p
    drawn = []
    for _ in range(1000):
        labels = (rng.random(columns.shape) < columns).astype(np.int8)
        drawn.append(
            [expected_calibration_error(equal_width_bins(column, 15)) for column in rank_columns(columns, labels)]
        )
    macros = np.mean(drawn, axis=1)
    assert mean == pytest.approx(macros.mean(), abs=5 * macros.std() * np.sqrt(2 / 1000))
    assert p95 == pytest.approx(np.quantile(macros, 0.95), rel=0.05)


def test_floor_of_certain_predictions_is_zero_and_of_nothing_undefined():
    certain = np.array([[0.0], [1.0]])
    assert ece_floor(certain, "multi_label", 15, keyed_generator("floor")) == (0.0, 0.0)
    assert ece_floor(np.empty((0, 3)), "single_label", 15, keyed_generator("floor")) == (None, None)
    assert ece_floor(np.full((2, 3), np.nan), "single_label", 15, keyed_generator("floor")) == (None, None)
