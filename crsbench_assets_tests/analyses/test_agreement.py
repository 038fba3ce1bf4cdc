from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from crsbench_assets.analyses.agreement import agreement, top_overlap
from crsbench_assets.analyses.inference import correlation
from crsbench_assets_tests.analyses.plain_score import plain_overlap, plain_tau_b

SCORES = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=10)


def order_with(n: int, n_swaps: int) -> list[int]:
    """Return 1..n with as many discordant pairs as asked: each neighbour swap of an ascending pair makes one."""
    order = list(range(1, n + 1))
    while n_swaps:
        for i in range(n - 1):
            if n_swaps and order[i] < order[i + 1]:
                order[i], order[i + 1] = order[i + 1], order[i]
                n_swaps -= 1
    return order


def n_discordant(order: list[int]) -> int:
    return sum(order[i] > order[j] for j in range(len(order)) for i in range(j))


# What the paper prints follows from counts of n ranks without ties (protocol-research, C.9): tau = 1 - 2 D / pairs.
#
#   n    pairs    discordant D    tau
#   15    105         21         .600
#   15    105          1         .981
#   15    105          2         .962
#   13     78          2         .949
#   13     78          3         .923
@pytest.mark.parametrize(
    ("n", "discordant", "printed"), [(15, 21, 0.600), (15, 1, 0.981), (15, 2, 0.962), (13, 2, 0.949), (13, 3, 0.923)]
)
def test_tau_of_the_paper(n: int, discordant: int, printed: float) -> None:
    order = order_with(n, discordant)
    assert n_discordant(order) == discordant
    tau = agreement(range(n), order).tau_b
    assert tau is not None
    assert tau == pytest.approx(1 - 2 * discordant / (n * (n - 1) / 2), abs=1e-12)
    assert round(tau, 3) == printed


def test_which_panels_have_these_taus() -> None:
    # .923 and .949 are no 1 - 2 D / 105, so they stand on the 13 encoders of aptos2019
    of_15, of_13 = ({round(1 - 2 * d / pairs, 3) for d in range(pairs + 1)} for pairs in (105, 78))
    assert {0.600, 0.981, 0.962} <= of_15
    assert {0.923, 0.949} <= of_13
    assert of_15.isdisjoint({0.923, 0.949})


def order_at_distance(n: int, squares: int) -> list[int]:
    """Return an order of 1..n whose squared rank differences sum to ``squares``, by swaps that do not lead away."""
    draw = random.Random(0)
    order = list(range(1, n + 1))

    def distance(candidate: list[int]) -> int:
        return abs(sum((value - i) ** 2 for i, value in enumerate(candidate, 1)) - squares)

    while distance(order):
        i, j = draw.sample(range(n), 2)
        candidate = list(order)
        candidate[i], candidate[j] = candidate[j], candidate[i]
        if distance(candidate) <= distance(order):
            order = candidate
    return order


# rho = 1 - 6 sum d^2 / (n^3 - n): ISIC, APTOS, CheXpert left out; MIMIC-CXR and CheXpert AUROC foretold; AUROC and CRS.
@pytest.mark.parametrize(
    ("n", "squares", "printed"),
    [(15, 106, 0.811), (15, 252, 0.550), (13, 106, 0.709), (15, 408, 0.271), (15, 264, 0.529), (15, 76, 0.864)],
)
def test_spearman_of_the_paper(n: int, squares: int, printed: float) -> None:
    order = order_at_distance(n, squares)
    assert sum((value - i) ** 2 for i, value in enumerate(order, 1)) == squares
    found = correlation(range(n), order).spearman
    assert found is not None
    assert found == pytest.approx(1 - 6 * squares / (n**3 - n), abs=1e-12)
    assert round(found, 3) == printed


def test_auroc_against_crs_of_the_paper() -> None:
    # One order of 15 has all of it: 21 of 105 pairs reversed is tau .600, displacements sum to 28 (mean 1.87), their
    # squares to 106 (rho .811).
    order = [2, 1, 3, 4, 10, 8, 7, 6, 5, 11, 15, 13, 12, 14, 9]
    differences = [abs(value - i) for i, value in enumerate(order, 1)]
    assert (n_discordant(order), sum(differences), sum(d * d for d in differences)) == (21, 28, 106)
    assert round(sum(differences) / 15, 2) == 1.87
    assert round(agreement(range(15), order).tau_b or 0, 3) == 0.600
    assert round(correlation(range(15), order).spearman or 0, 3) == 0.811


def test_aptos_cannot_have_fifteen_encoders() -> None:
    # Sums of squared differences are even; no even sum gives .709 for 15.
    assert not any(round(1 - 6 * squares / (15**3 - 15), 3) == 0.709 for squares in range(0, 1121, 2))


def test_overlap_by_hand() -> None:
    # top 3 of the first: a b c; of the second: a b d
    assert top_overlap([4, 3, 2, 1], [4, 3, 1, 2], 3) == pytest.approx(2 / 3, abs=1e-15)
    # b, c, d tie for places 2 and 3: two thirds of a place each; against a b c: 1 + 2/3 + 2/3
    assert top_overlap([4, 3, 2, 1], [4, 2, 2, 2], 3) == pytest.approx(7 / 9, abs=1e-15)
    assert top_overlap([4, 3, 2, 1], [1, 2, 3, 4], 1) == 0.0
    assert top_overlap([3, 2, 1], [1, 2, 3], 3) is None


@pytest.mark.parametrize("k", [3, 5])
def test_overlap_of_ties_is_at_most_one(k: int) -> None:
    for m in range(k + 1, 40):
        for n_ahead in range(k):  # the others tie, and their shares are fractions that do not sum exactly
            scores = [9.0 - i for i in range(n_ahead)] + [1.0] * (m - n_ahead)
            overlap = top_overlap(scores, scores, k)
            assert overlap is not None
            assert overlap <= 1.0
            assert overlap == pytest.approx(1.0, abs=1e-12)


def test_tau_b_with_ties_by_hand() -> None:
    # pairs ab, ac, bc: the second ties ab; of the others ac agrees and bc agrees: 2 / sqrt(3 * 2)
    assert agreement([3, 2, 1], [2, 2, 1]).tau_b == pytest.approx(2 / np.sqrt(6), abs=1e-15)


@settings(max_examples=150, deadline=None)
@given(SCORES, st.randoms(use_true_random=False))
def test_agreement_with_plain_python(first: list[float], draw: random.Random) -> None:
    second = [draw.choice(first) for _ in first]
    found = agreement(first, second)
    tau = plain_tau_b(first, second)
    assert found.tau_b == (None if tau is None else pytest.approx(tau, abs=1e-12))
    assert found.top_3_overlap == pytest.approx(plain_overlap(first, second, 3), abs=1e-12)
    assert found.reason == ("no_spread" if tau is None else "too_few_units" if len(first) <= 3 else None)
    if tau is not None:
        assert -1 <= tau <= 1
        assert tau == pytest.approx(stats.kendalltau(first, second).statistic, abs=1e-12)
    if found.top_3_overlap is not None:
        assert 0 <= found.top_3_overlap <= 1


def test_order_of_encoders_and_of_the_two_moves_nothing() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 6, (2, 12)).astype(float)
    shuffled = rng.permutation(12)
    right = agreement(first, second)
    for found in (agreement(first[shuffled], second[shuffled]), agreement(second, first)):
        assert (found.tau_b, found.top_3_overlap) == pytest.approx((right.tau_b, right.top_3_overlap), abs=1e-12)
    assert agreement(np.exp(first), 3 * second) == right  # only the order counts


def test_undefined() -> None:
    assert agreement([], []) == (None, None, "too_few_units")
    assert agreement([1.0], [2.0]) == (None, None, "too_few_units")
    assert agreement([1.0, 2.0], [2.0, 1.0]) == (-1.0, None, "too_few_units")
    assert agreement([1.0] * 4, [1.0, 2.0, 3.0, 4.0])[::2] == (None, "no_spread")
    with pytest.raises(ValueError, match="one score each"):
        agreement([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="no NaN"):
        agreement([1.0, float("nan")], [1.0, 2.0])
