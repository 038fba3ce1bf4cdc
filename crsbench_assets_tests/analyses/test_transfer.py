from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from crsbench_assets.analyses.transfer import chance_spearman, transfer, undefined_transfer


def test_four_encoders_by_hand() -> None:
    # ranks 1 2 3 4 against 1 2 4 3: sum d^2 = 2, rho = 1 - 12 / 60; the top 3 by the first is a b c, by the other a b d
    found = transfer([4.0, 3.0, 2.0, 1.0], [9.0, 8.0, 1.0, 2.0])
    assert found.n_encoders == 4
    assert found.spearman == pytest.approx(0.8, abs=1e-15)
    assert (found.top_3_overlap, found.top_3_overlap_chance) == pytest.approx((2 / 3, 3 / 4), abs=1e-15)
    assert found.is_winner_recovered is True
    assert found.reason is None
    # Fisher's z with variance (1 + .32) / 1
    half = stats.norm.ppf(0.975) * np.sqrt(1.32)
    bounds = np.tanh([np.arctanh(0.8) - half, np.arctanh(0.8) + half])
    assert (found.spearman_ci_low, found.spearman_ci_high) == pytest.approx(tuple(bounds), abs=1e-12)


def test_who_wins_where_encoders_tie() -> None:
    second = [1.0, 2.0, 3.0, 4.0]
    assert transfer([5.0, 1.0, 2.0, 5.0], second).is_winner_recovered is False  # a and d, against d
    assert transfer([5.0, 1.0, 2.0, 5.0], [7.0, 3.0, 1.0, 7.0]).is_winner_recovered is True


# All 24 orders of four: sum d^2 is 0 once (rho 1), 2 three times (.8), ... ; 95 % of 24 are 22.8, and the 23rd of the
# ascending values is .8. Of the 6 orders of three the sixth counts, 1.
def test_chance_of_few_by_hand() -> None:
    assert (chance_spearman(3), chance_spearman(4)) == pytest.approx((1.0, 0.8), abs=1e-15)


@pytest.mark.parametrize("m", [3, 4, 5])
def test_chance_agrees_with_all_orders_by_scipy(m: int) -> None:
    values = [stats.spearmanr(range(m), order).statistic for order in itertools.permutations(range(m))]
    level = chance_spearman(m)
    assert sum(value <= level + 1e-12 for value in values) >= 0.95 * len(values)
    assert sum(value < level - 1e-12 for value in values) < 0.95 * len(values)
    assert any(abs(value - level) < 1e-12 for value in values)


def test_chance_where_orders_are_no_longer_listed() -> None:
    # 9! orders: the exact level is one of the 121 values of rho, 1/60 apart; the t approximation lies beside it
    orders = np.array(list(itertools.permutations(range(9))), dtype=np.int16)
    rho = 1 - 6 * ((orders - np.arange(9)) ** 2).sum(axis=1) / (9**3 - 9)
    exact = float(np.quantile(rho, 0.95, method="inverted_cdf"))
    assert exact == pytest.approx(0.583333, abs=1e-6)
    assert chance_spearman(9) == pytest.approx(exact, abs=0.01)


def test_chance_of_many_is_near_the_random_orders() -> None:
    rng = np.random.default_rng(0)
    for m in (13, 15):
        ranks = np.arange(m)
        orders = rng.permuted(np.tile(ranks, (40_000, 1)), axis=1)
        rho = 1 - 6 * ((orders - ranks) ** 2).sum(axis=1) / (m**3 - m)
        assert chance_spearman(m) == pytest.approx(np.quantile(rho, 0.95), abs=0.012)


def test_level_falls_with_more_encoders() -> None:
    levels = [chance_spearman(m) for m in range(3, 40)]
    assert levels == sorted(levels, reverse=True)


def test_invariances() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.random((2, 11))
    right = transfer(list(first), list(second))
    shuffled = rng.permutation(11)
    assert transfer(list(first[shuffled]), list(second[shuffled])) == pytest.approx(right, abs=1e-12)
    assert transfer(list(second), list(first)) == pytest.approx(right, abs=1e-12)
    assert transfer(list(np.exp(first)), list(3 * second)) == pytest.approx(right, abs=1e-12)
    assert right.spearman == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)


def test_undefined() -> None:
    assert transfer([], []) == undefined_transfer(0, "too_few_units")
    assert transfer([1.0, 2.0], [1.0, 2.0]) == undefined_transfer(2, "too_few_units")
    three = transfer([1.0, 2.0, 3.0], [1.0, 3.0, 2.0])
    assert (three.spearman, three.spearman_chance_p95) == pytest.approx((0.5, 1.0))
    assert (three.spearman_ci_low, three.top_3_overlap, three.top_3_overlap_chance) == (None, None, None)
    assert (three.is_winner_recovered, three.reason) == (False, "too_few_units")
    equal = transfer([1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert (equal.spearman, equal.is_winner_recovered, equal.reason) == (None, None, "no_spread")
    assert equal.spearman_chance_p95 == pytest.approx(chance_spearman(5))
    perfect = transfer([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
    assert perfect.spearman == pytest.approx(1.0)
    assert perfect.spearman_ci_low is None
    assert (perfect.is_winner_recovered, perfect.reason) == (True, "perfect_correlation")
    with pytest.raises(ValueError, match="one of each"):
        transfer([1.0, 2.0], [1.0])
