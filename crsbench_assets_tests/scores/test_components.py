from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import euclidean

from crsbench_assets.scores.components import (
    balance,
    clinical_reliability_score,
    dominates,
    pareto_score,
    worst_axis,
    z_scores,
)

QUARTERS = [0.25] * 4
# Three members: first and second each dominate third and not each other.
MEMBERS = np.array([[1.0, 0.75, 1.0, 0.5], [0.25, 0.5, 0.25, 0.75], [0.0, 0.0, 0.0, 0.0]])

unit_profiles = arrays(np.float64, 4, elements=st.floats(0, 1))
raw_profiles = arrays(np.float64, 4, elements=st.floats(-2, 3))


def test_position_between_anchors() -> None:
    z = z_scores([0.5, 0.25, 1.0, -1.0], [0.0, 0.25, 0.0, 0.0], [1.0, 0.75, 0.5, 2.0], degenerate_range=1e-12)
    assert z.tolist() == [0.5, 0.0, 2.0, -0.5]


def test_degenerate_range_is_the_middle_for_everybody() -> None:
    z = z_scores([[0.0], [5.0]], [0.25], [0.25 + 1e-13], degenerate_range=1e-12)
    assert z.tolist() == [[0.5], [0.5]]


def test_pareto_by_hand() -> None:
    # D - U: first +1, second +1, third -2, over m = 3.
    assert pareto_score(MEMBERS, MEMBERS).tolist() == pytest.approx([2 / 3, 2 / 3, 1 / 6])
    assert float(pareto_score([2.0] * 4, MEMBERS)) == 1.0
    assert float(pareto_score([-1.0] * 4, MEMBERS)) == 0.0


def test_identical_profiles_do_not_dominate_each_other() -> None:
    assert not dominates(MEMBERS[0], MEMBERS[0])
    assert dominates(MEMBERS[0], MEMBERS[2]) and not dominates(MEMBERS[2], MEMBERS[0])
    barely = np.nextafter(MEMBERS[0], 2)
    assert dominates(barely, MEMBERS[0])  # exact, without tolerance


def test_balance_and_worst_axis_by_hand() -> None:
    assert float(balance([1.0, 0.75, 1.0, 0.5], QUARTERS)) == pytest.approx(1 - math.sqrt(0.078125))
    assert float(balance([1.0] * 4, QUARTERS)) == 1.0
    assert float(balance([0.0] * 4, QUARTERS)) == 0.0
    assert worst_axis(MEMBERS).tolist() == [0.5, 0.25, 0.0]


def test_score_by_hand() -> None:
    crs = clinical_reliability_score(2 / 3, 0.7204915, 0.5, [0.5, 0.3, 0.2])
    assert float(crs) == pytest.approx(0.649481, abs=1e-6)
    assert float(clinical_reliability_score(1.0, 1.0, 1.0, [0.5, 0.3, 0.2])) == 1.0


def test_weights_that_sum_to_a_little_more_than_one_stay_in_range() -> None:
    assert float(balance([0.0] * 4, [0.25, 0.25, 0.25, 0.25 + 5e-10])) == 0.0
    assert float(clinical_reliability_score(1.0, 1.0, 1.0, [0.5, 0.3, 0.2 + 5e-10])) == 1.0


def test_axis_above_the_anchor() -> None:
    # Profile (.6, .6, .6) and a first axis at, and beyond, the best member.
    raw = [[first, 0.6, 0.6, 0.6] for first in (1.0, 1.2, 1.5)]
    assert len(set(balance(np.clip(raw, 0, 1), QUARTERS).tolist())) == 1
    with pytest.raises(ValueError, match="clip"):
        balance(raw, QUARTERS)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_refuses_missing_axes(bad: float) -> None:
    profile = [bad, 0.5, 0.5, 0.5]
    calls: tuple[Callable[[], object], ...] = (
        lambda: z_scores(profile, [0.0] * 4, [1.0] * 4, degenerate_range=0.0),
        lambda: pareto_score(profile, MEMBERS),
        lambda: pareto_score(MEMBERS[0], [profile]),
        lambda: balance(profile, QUARTERS),
        lambda: worst_axis(profile),
        lambda: clinical_reliability_score(bad, 0.5, 0.5, [0.5, 0.3, 0.2]),
    )
    for call in calls:
        with pytest.raises(ValueError, match="missing or infinite"):
            call()


def test_refuses_wrong_weights_anchors_and_no_member() -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        balance([0.5] * 4, [0.25, 0.25, 0.25, 0.5])
    with pytest.raises(ValueError, match="exceed"):
        z_scores([0.5], [1.0], [0.0], degenerate_range=1e-12)
    with pytest.raises(ValueError, match="m >= 1"):
        pareto_score([0.5] * 4, np.empty((0, 4)))


@settings(max_examples=100, deadline=None)
@given(unit_profiles, arrays(np.float64, 4, elements=st.floats(0.01, 1)))
def test_balance_agrees_with_the_weighted_distance_of_scipy(x: np.ndarray, weights: np.ndarray) -> None:
    w = weights / weights.sum()
    assert float(balance(x, w)) == pytest.approx(1 - euclidean(np.ones(4), x, w), abs=1e-9)
    assert 0 <= float(balance(x, w)) <= 1


@settings(max_examples=100, deadline=None)
@given(raw_profiles, arrays(np.float64, (5, 4), elements=st.floats(-2, 3)))
def test_pareto_agrees_with_plain_counting(x: np.ndarray, members: np.ndarray) -> None:
    def beats(a: np.ndarray, b: np.ndarray) -> bool:
        return all(p >= q for p, q in zip(a, b, strict=True)) and any(p > q for p, q in zip(a, b, strict=True))

    net = sum(beats(x, m) - beats(m, x) for m in members)
    assert float(pareto_score(x, members)) == pytest.approx((1 + net / 5) / 2)


@settings(max_examples=100, deadline=None)
@given(raw_profiles, st.integers(0, 3), st.floats(0, 2))
def test_raising_one_axis_lowers_no_part(x: np.ndarray, axis: int, gain: float) -> None:
    raised = x.copy()
    raised[axis] += gain
    before, after = np.clip(x, 0, 1), np.clip(raised, 0, 1)
    assert pareto_score(raised, MEMBERS) >= pareto_score(x, MEMBERS)
    assert balance(after, QUARTERS) >= balance(before, QUARTERS)
    assert worst_axis(after) >= worst_axis(before)


@settings(max_examples=50, deadline=None)
@given(arrays(np.float64, (7, 4), elements=st.floats(0, 1)))
def test_a_batch_has_the_bits_of_its_rows(x: np.ndarray) -> None:
    assert balance(x, [0.4, 0.3, 0.2, 0.1]).tolist() == [float(balance(row, [0.4, 0.3, 0.2, 0.1])) for row in x]
    assert pareto_score(x, MEMBERS).tolist() == [float(pareto_score(row, MEMBERS)) for row in x]
