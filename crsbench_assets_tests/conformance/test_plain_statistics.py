"""The plain statistics against SciPy, and against numbers known without a computer.

What lives here: checks of the second implementation itself. What stays out: its use (``test_analyses``).
Source: the identities of the paper's own figures (protocol page, section 8, last paragraph).
"""

from __future__ import annotations

import doctest
import math
from collections.abc import Sequence
from types import ModuleType

import pytest
from scipy import special, stats

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets_tests.conformance import plain_analyses, plain_replicates, plain_statistics
from crsbench_assets_tests.conformance.plain_statistics import (
    hedges_g,
    incomplete_beta,
    pearson,
    permutation_p,
    spearman,
    spearman_chance,
    t_quantile,
    tau_b,
    top_overlap,
    welch,
)


@pytest.mark.parametrize("module", [plain_statistics, plain_analyses, plain_replicates])
def test_the_examples_hold(module: ModuleType) -> None:
    done = doctest.testmod(module)
    assert done.attempted and not done.failed


def samples(trial: int, n: int = 9) -> tuple[list[float], list[float]]:
    """Draw two related columns of coarse numbers, so that there are ties."""
    generator = keyed_generator("plain statistics", trial)
    one = generator.integers(0, 8, size=n).astype(float)
    return one.tolist(), (one + generator.integers(0, 6, size=n)).tolist()


def named(values: Sequence[float]) -> dict[str, float]:
    return {f"e{i:02}": value for i, value in enumerate(values)}


@pytest.mark.parametrize("trial", range(5))
def test_statistics_of_two_columns_are_scipy_s(trial: int) -> None:
    one, other = samples(trial)
    assert pearson(one, other) == pytest.approx(stats.pearsonr(one, other).statistic, abs=1e-12)
    assert spearman(one, other) == pytest.approx(stats.spearmanr(one, other).statistic, abs=1e-12)
    assert tau_b(named(one), named(other)) == pytest.approx(stats.kendalltau(one, other).statistic, abs=1e-12)


@pytest.mark.parametrize("trial", range(5))
def test_tests_of_two_groups_are_scipy_s(trial: int) -> None:
    one, other = samples(trial)
    other = other[:6]
    found, right = welch(one, other), stats.ttest_ind(one, other, equal_var=False)
    assert found is not None
    assert (found.t, found.df, found.p) == pytest.approx((right.statistic, right.df, right.pvalue), abs=1e-12)
    # SciPy's two-sided p doubles a tail; ours counts differences as large in either direction.
    every = stats.permutation_test(
        (one, other),
        lambda a, b, axis: abs(a.mean(axis) - b.mean(axis)),
        vectorized=True,
        alternative="greater",
        n_resamples=10_000,
    )
    assert permutation_p(one, other) == pytest.approx(every.pvalue, abs=1e-12)


@pytest.mark.parametrize(("a", "b", "x"), [(6.5, 0.5, 0.9), (2.0, 3.0, 0.2), (0.5, 6.0, 0.01), (50.0, 0.5, 0.99)])
def test_the_incomplete_beta_function_is_scipy_s(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), abs=1e-12)


@pytest.mark.parametrize("df", [1.5, 4.0, 13.0, 60.0])
def test_the_quantile_of_t_is_scipy_s(df: float) -> None:
    assert t_quantile(0.975, df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-12)


def test_hedges_g_is_the_difference_in_pooled_deviations_times_the_exact_factor() -> None:
    """Groups 1, 2, 3 and 3, 4, 5: difference -2, pooled sd 1, factor Gamma(2) / (sqrt(2) Gamma(1.5)) = .7979."""
    assert hedges_g([1.0, 2.0, 3.0], [3.0, 4.0, 5.0]) == pytest.approx(-2.0 * math.sqrt(2.0 / math.pi), abs=1e-12)


def swapped(n: int, n_discordant: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return an order and one with as many discordant pairs: the last moved up, place by place."""
    order = list(range(n))
    left = n_discordant
    for start in range(n):
        step = min(left, n - 1 - start)
        order.insert(start, order.pop(start + step))
        left -= step
    return named([float(i) for i in range(n)]), named([float(i) for i in order])


@pytest.mark.parametrize(
    ("n", "n_discordant", "tau"), [(15, 21, 0.600), (15, 1, 0.981), (15, 2, 0.962), (13, 2, 0.949), (13, 3, 0.923)]
)
def test_the_paper_s_tau_follows_from_its_pairs(n: int, n_discordant: int, tau: float) -> None:
    one, other = swapped(n, n_discordant)
    assert plain_statistics.pairs(one, other).discordant == n_discordant
    assert tau_b(one, other) == pytest.approx(tau, abs=5e-4)


@pytest.mark.parametrize(
    ("n", "squares", "rho"), [(15, 106, 0.811), (13, 106, 0.709), (15, 252, 0.550), (15, 264, 0.529), (15, 76, 0.864)]
)
def test_the_paper_s_rho_follows_from_its_squared_displacements(n: int, squares: int, rho: float) -> None:
    generator = keyed_generator("squared displacements", n, squares)
    order = list(range(n))
    # Swaps of neighbours in a row, kept where they come no further from the wanted sum, reach it.
    while (distance := abs(sum((i - own) ** 2 for i, own in enumerate(order)) - squares)) != 0:
        i, j = generator.integers(0, n, size=2)
        order[i], order[j] = order[j], order[i]
        if abs(sum((k - own) ** 2 for k, own in enumerate(order)) - squares) > distance:
            order[i], order[j] = order[j], order[i]
    assert spearman([float(i) for i in range(n)], [float(own) for own in order]) == pytest.approx(rho, abs=5e-4)


def test_a_tie_at_the_edge_of_the_top_shares_the_places_that_are_left() -> None:
    one = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 2.0, "e": 1.0}
    assert top_overlap(one, {**one, "d": 1.5}, 3) == pytest.approx((1.0 + 1.0 + 0.5) / 3.0)
    assert top_overlap(one, one, 5) is None


def test_chance_of_random_orders_is_exceeded_by_one_in_twenty() -> None:
    generator = keyed_generator("random orders")
    orders = [generator.permutation(12).tolist() for _ in range(2_000)]
    chance = spearman_chance(12)
    above = sum((spearman(list(range(12)), order) or 0.0) > chance for order in orders)
    assert abs(above / 2_000 - 0.05) <= 4 * math.sqrt(0.05 * 0.95 / 2_000)
