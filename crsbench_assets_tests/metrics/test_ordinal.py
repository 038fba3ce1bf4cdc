"""Quadratic weighted kappa and ordinal error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score, mean_absolute_error

from crsbench_assets.metrics.ordinal import ordinal_mean_absolute_error, quadratic_weighted_kappa


def test_by_hand():
    # truth      0 1 2    squared differences 0 1 0, sum w O = 1
    # predicted  0 2 2    margins (1, 1, 1) and (1, 0, 2), E = their product / 3:
    #                     column 0: (0 + 1 + 4) / 3, column 2: 2 (4 + 1 + 0) / 3, sum w E = 5
    truth, predicted = np.array([0, 1, 2]), np.array([0, 2, 2])
    assert quadratic_weighted_kappa(truth, predicted, 3) == pytest.approx(1 - 1 / 5)
    assert ordinal_mean_absolute_error(truth, predicted) == pytest.approx(1 / 3)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=60))
def test_agrees_with_scikit_learn(pairs):
    truth, predicted = np.array(pairs).T
    kappa = quadratic_weighted_kappa(truth, predicted, 5)
    if len(set(truth) | set(predicted)) == 1:
        assert kappa is None
    else:
        expected = cohen_kappa_score(truth, predicted, labels=range(5), weights="quadratic")
        assert kappa == pytest.approx(expected, abs=1e-9)
        assert -1.0 <= kappa <= 1.0
    assert ordinal_mean_absolute_error(truth, predicted) == pytest.approx(mean_absolute_error(truth, predicted))


def test_limits():
    grades = np.arange(5)
    assert quadratic_weighted_kappa(grades, grades, 5) == 1.0
    assert quadratic_weighted_kappa(grades, grades[::-1], 5) == -1.0
    assert quadratic_weighted_kappa(grades, np.zeros(5, dtype=int), 5) == 0.0


def test_nothing_is_undefined():
    empty = np.array([], dtype=int)
    assert quadratic_weighted_kappa(empty, empty, 5) is None
    assert ordinal_mean_absolute_error(empty, empty) is None
