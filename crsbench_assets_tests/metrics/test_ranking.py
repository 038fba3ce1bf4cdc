"""AUROC and placement values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from crsbench_assets.metrics.columns import rank_columns
from crsbench_assets.metrics.ranking import auroc, placement_values, ranking_scores

SCORES_AND_LABELS = st.lists(st.tuples(st.integers(-3, 3), st.integers(-1, 1)), min_size=1, max_size=40)


def _column(pairs):
    scores, labels = zip(*pairs, strict=True)
    return np.array(scores, dtype=np.float64)[:, None], np.array(labels, dtype=np.int8)[:, None]


def _aurocs(scores, labels):
    return np.array([auroc(column) for column in rank_columns(scores, labels)])


def _placements(scores, labels):
    """Return the placement values (n, k) of all images, NaN where an image does not count."""
    placed = np.full(scores.shape, np.nan)
    for c, column in enumerate(rank_columns(scores, labels)):
        placed[column.images, c] = placement_values(column)
    return placed


def _pairwise_auroc(scores, labels):
    """Return the fraction of positive-negative pairs in order, by looking at each pair."""
    pairs = [(a, b) for a, i in zip(scores, labels, strict=True) for b, j in zip(scores, labels, strict=True)
             if i == 1 and j == 0]  # fmt: skip
    return sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs) if pairs else np.nan


def test_by_hand():
    # score  1  2  2  3      pairs (pos, neg): (2, 1) 1, (2, 2) 1/2, (3, 1) 1, (3, 2) 1 -> 3.5 / 4
    # label  0  1  0  1      placements: pos 2: 3/4, pos 3: 1; neg 1: 1, neg 2: 3/4
    scores = np.array([[1.0], [2.0], [2.0], [3.0]])
    labels = np.array([[0], [1], [0], [1]], dtype=np.int8)
    assert _aurocs(scores, labels).tolist() == [0.875]
    assert _placements(scores, labels)[:, 0].tolist() == [1.0, 0.75, 0.75, 1.0]


def test_columns_with_ties_and_unknown_labels_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    labels = rng.integers(-1, 2, size=(300, 6)).astype(np.int8)
    scores = np.round(rng.normal(size=(300, 6)) + labels, 1)
    values = _aurocs(scores, labels)
    for c in range(6):
        known = labels[:, c] >= 0
        assert values[c] == pytest.approx(roc_auc_score(labels[known, c], scores[known, c]), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(SCORES_AND_LABELS)
def test_agrees_with_looking_at_every_pair(pairs):
    scores, labels = _column(pairs)
    expected = _pairwise_auroc(scores[:, 0], labels[:, 0])
    assert _aurocs(scores, labels)[0] == pytest.approx(expected, abs=1e-12, nan_ok=True)
    placed = _placements(scores, labels)[:, 0]
    if np.isnan(expected):
        assert np.isnan(placed).all()
    else:
        assert np.isnan(placed[labels[:, 0] < 0]).all()
        assert placed[labels[:, 0] == 1].mean() == pytest.approx(expected, abs=1e-12)
        assert placed[labels[:, 0] == 0].mean() == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(SCORES_AND_LABELS, st.randoms(use_true_random=False))
def test_invariances(pairs, random):
    scores, labels = _column(pairs)
    value = _aurocs(scores, labels)
    shuffled = random.sample(pairs, len(pairs))
    np.testing.assert_array_equal(_aurocs(*_column(shuffled)), value)
    np.testing.assert_array_equal(_aurocs(*_column(pairs + pairs)), value)
    np.testing.assert_array_equal(_aurocs(np.exp(scores), labels), value)
    swapped = np.where(labels >= 0, 1 - labels, -1).astype(np.int8)
    np.testing.assert_allclose(_aurocs(scores, swapped), 1.0 - value, atol=1e-15)


@pytest.mark.parametrize(("only", "n"), [(1, 3), (0, 3), (-1, 3), (1, 0)])
def test_undefined_without_both_values(only, n):
    labels = np.full((n, 2), only, dtype=np.int8)
    assert np.isnan(_aurocs(np.zeros((n, 2)), labels)).all()
    assert np.isnan(_placements(np.zeros((n, 2)), labels)).all()


def test_column_that_was_not_fitted_is_undefined_and_leaves_the_others_alone():
    scores = np.array([[np.nan, 0.0], [np.nan, 1.0]])
    labels = np.array([[0, 0], [1, 1]], dtype=np.int8)
    assert np.isnan(_aurocs(scores, labels)[0])
    assert _aurocs(scores, labels)[1] == 1.0


def test_scores_that_are_ranked():
    logits = np.array([[40.0, -40.0], [50.0, -50.0], [0.0, 1.0]])
    assert ranking_scores(logits, "multi_label").tolist() == logits.tolist()
    assert ranking_scores(logits, "single_label")[:, 0].tolist() == [80.0, 100.0, -1.0]
    with pytest.raises(ValueError, match="partly NaN"):
        ranking_scores(np.array([[np.nan], [0.0]]), "multi_label")
    three = np.array([[0.0, np.nan, 0.0]])
    ranked = ranking_scores(three, "ordinal")
    np.testing.assert_array_equal(ranked, [[0.5, np.nan, 0.5]])
