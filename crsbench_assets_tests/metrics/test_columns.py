"""Columns, sorted once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crsbench_assets.metrics.columns import rank_columns

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
ENTRIES = st.lists(
    st.tuples(FINITE | st.sampled_from([0.0, -0.0, 1.5, -1.5, 2.0**-149, np.nan]), st.integers(-1, 1)), max_size=40
)


def _one(entries, dtype):
    scores = np.array([score for score, _ in entries], dtype=dtype).reshape(-1, 1)
    labels = np.array([label for _, label in entries], dtype=np.int8).reshape(-1, 1)
    (column,) = rank_columns(scores, labels)
    return column


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype):
    # image   0    1    2    3    4    5      left out: 2 (unknown), 4 (no score)
    # score   1   -2   -9   -2  nan   -0.     ascending: -2 (3, negative), -2 (1, positive), 0 (5), 1 (0)
    # label   0    1   -1    0    1    1
    column = _one([(1.0, 0), (-2.0, 1), (-9.0, -1), (-2.0, 0), (np.nan, 1), (-0.0, 1)], dtype)
    assert column.scores.tolist() == [-2.0, -2.0, 0.0, 1.0]
    assert column.scores.dtype == dtype
    assert column.is_positive.tolist() == [False, True, True, False]
    assert column.positives.tolist() == [1, 2]
    assert column.images.tolist() == [3, 1, 5, 0]
    assert (column.n_positive, column.n_negative) == (2, 2)


@settings(max_examples=100, deadline=None)
@given(ENTRIES, st.sampled_from([np.float32, np.float64]))
def test_agrees_with_python_sort(entries, dtype):
    # -0.0 and 0.0 are equal for sorted() too; stable, hence by image where score and label are equal
    kept = [(score, label, i) for i, (score, label) in enumerate(entries) if label >= 0 and score == score]
    expected = sorted(kept, key=lambda entry: entry[:2])
    column = _one(entries, dtype)
    assert column.scores.tolist() == [score for score, _, _ in expected]
    assert column.is_positive.tolist() == [label == 1 for _, label, _ in expected]
    assert column.images.tolist() == [i for _, _, i in expected]
    assert column.positives.tolist() == [place for place, entry in enumerate(expected) if entry[1] == 1]


def test_many_rows_and_columns():
    # more rows than are copied at a time; a column that was not fitted beside others
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3000, 4)).astype(np.float32)
    scores[:, 1] = np.nan
    labels = rng.integers(0, 2, size=(3000, 4)).astype(np.int8)
    columns = list(rank_columns(scores, labels))
    assert [len(column.scores) for column in columns] == [3000, 0, 3000, 3000]
    for c in (0, 2, 3):
        order = scores[:, c].argsort(kind="stable")
        np.testing.assert_array_equal(columns[c].images, order)
        np.testing.assert_array_equal(columns[c].is_positive, labels[order, c] == 1)


def test_other_scores_in_the_same_order():
    column = _one([(2.0, 1), (1.0, 0)], np.float32)
    squared = column.rescored(column.scores.astype(np.float64) ** 2)
    assert squared.scores.tolist() == [1.0, 4.0]
    assert squared.images.tolist() == column.images.tolist() == [1, 0]
