from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.scores.crs import crs_scores
from crsbench_assets.scores.ensemble import (
    Floats,
    anchors_of,
    dominance_of_pairs,
    frozen_anchors,
    members_of,
    pareto_scores,
    ranks_of_replicates,
    score_ensemble,
    top_shares,
)
from crsbench_assets.scores.panel import Panel
from crsbench_assets_tests.scores.conftest import (
    DELTA,
    MEMBERS,
    Cohort,
    encoders_frame,
    freeze_cohort,
    values_frame,
)


def array_of(cohort: Cohort, datasets: tuple[str, ...]) -> Floats:
    """Return axis values (m, d, k) of the encoders in sorted order."""
    values = np.full((len(cohort), len(datasets), len(AXES)), np.nan)
    for i, encoder in enumerate(sorted(cohort)):
        for dataset, of_cell in cohort[encoder].items():
            values[i, datasets.index(dataset)] = of_cell
    return values


def test_the_panel_in_arrays(panel: Panel) -> None:
    cohort = members_of(panel)
    assert (cohort.encoders, cohort.datasets) == (("alpha", "beta", "gamma"), ("far", "near"))
    np.testing.assert_array_equal(cohort.values, array_of(MEMBERS, cohort.datasets))
    low, high = frozen_anchors(panel)
    assert low.tolist() == [[0.5, 0.25, 0.25, 0.625], [0.0] * 4]
    assert high.tolist() == [[0.75, 0.5, 0.75, 0.625], [1.0] * 4]
    for found, right in zip(anchors_of(cohort.values), (low, high), strict=True):
        np.testing.assert_array_equal(found, right)


def test_every_part_by_hand(panel: Panel, protocol: Protocol) -> None:
    # the table of conftest: alpha, beta, delta (no member), gamma
    values = array_of(MEMBERS | DELTA, panel.datasets)
    is_member = np.array([True, True, False, True])
    found = score_ensemble(values[None], *frozen_anchors(panel), protocol.scores, is_member)
    assert found.x_raw[0].tolist() == [[1, 0.75, 1, 0.5], [0.25, 0.5, 0.25, 0.75], [1.25, 0.75, 0.25, 0.75], [0] * 4]
    assert found.x[0, 2].tolist() == [1, 0.75, 0.25, 0.75]
    np.testing.assert_allclose(found.pareto[0], [2 / 3, 2 / 3, 5 / 6, 1 / 6], rtol=0, atol=1e-15)
    balance = [1 - math.sqrt(0.078125), 1 - math.sqrt(0.359375), 1 - math.sqrt(0.171875), 0]
    np.testing.assert_allclose(found.balance[0], balance, rtol=0, atol=1e-15)
    assert found.worst[0].tolist() == [0.5, 0.25, 0.25, 0]
    np.testing.assert_allclose(found.crs[0], [0.649481, 0.503489, 0.642293, 0.083333], rtol=0, atol=1e-6)


def random_cohort(rng: np.random.Generator, *, is_coarse: bool) -> Cohort:
    """Return 2 to 8 encoders on 1 to 3 datasets; coarse values tie often, and some axes are constant."""
    datasets = ("near", "far", "new")[: rng.integers(1, 4)]
    constant = {(dataset, axis) for dataset in datasets for axis in AXES if rng.random() < 0.1}
    cohort: Cohort = {}
    for i in range(rng.integers(2, 9)):
        own = [d for d in datasets if rng.random() < 0.8] or [datasets[0]]
        cells: dict[str, tuple[float | None, ...]] = {}
        for dataset in own:
            drawn = rng.integers(0, 5, 4) / 4 if is_coarse else rng.uniform(0.3, 1.0, 4)
            cells[dataset] = tuple(
                0.5 if (dataset, axis) in constant else float(value) for axis, value in zip(AXES, drawn, strict=True)
            )
        cohort[f"e{i}"] = cells
    return cohort


@pytest.mark.parametrize("is_coarse", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_agrees_with_the_published_score(seed: int, is_coarse: bool, protocol: Protocol) -> None:
    rng = np.random.default_rng(seed)
    cohort = random_cohort(rng, is_coarse=is_coarse)
    names = sorted(cohort)
    members = {name: cohort[name] for i, name in enumerate(names) if i < 2 or rng.random() < 0.7}
    panel = freeze_cohort(members, protocol)
    known = {
        name: {dataset: values for dataset, values in cells.items() if dataset in panel.values}
        for name, cells in cohort.items()
    }
    known = {name: cells for name, cells in known.items() if cells}
    frame, _ = crs_scores(values_frame(known), encoders_frame(known), panel, protocol, code_version=1)
    is_member = np.array([name in members for name in sorted(known)])
    values = array_of(known, panel.datasets)
    found = score_ensemble(values[None], *frozen_anchors(panel), protocol.scores, is_member)
    assert frame["encoder_id"].to_list() == sorted(known)
    for name, numbers in (
        ("crs", found.crs),
        ("pareto", found.pareto),
        ("balance", found.balance),
        ("worst", found.worst),
        *((f"x_{axis}", found.x[:, :, k]) for k, axis in enumerate(AXES)),
    ):
        np.testing.assert_allclose(numbers[0], frame[name].to_numpy(), rtol=0, atol=1e-12, err_msg=name)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_replicate_is_scored_as_it_is_alone(seed: int, protocol: Protocol) -> None:
    rng = np.random.default_rng(seed)
    b, m, d = 5, rng.integers(3, 7), 2
    values = rng.uniform(0, 1, (b, m, d, 4))
    values[:, 0, 1] = np.nan
    is_member = np.arange(m) < m - 1  # the first has no cell on the second dataset, the second has
    low, high = anchors_of(values[:, is_member])
    together = score_ensemble(values, low, high, protocol.scores, is_member)
    order = rng.permutation(m)
    for r in range(b):
        alone = score_ensemble(values[r : r + 1, order], low[r], high[r], protocol.scores, is_member[order])
        for part in ("x_raw", "x", "pareto", "balance", "worst", "crs"):
            np.testing.assert_array_equal(getattr(alone, part)[0], getattr(together, part)[r, order])
    for numbers in (together.x, together.pareto, together.balance, together.worst, together.crs):
        assert numbers.min() >= 0
        assert numbers.max() <= 1


def test_all_count_where_no_members_are_named(protocol: Protocol) -> None:
    values = np.random.default_rng(0).uniform(0, 1, (3, 5, 2, 4))
    low, high = np.zeros((2, 4)), np.ones((2, 4))
    everybody = score_ensemble(values, low, high, protocol.scores)
    named = score_ensemble(values, low, high, protocol.scores, np.ones(5, dtype=bool))
    np.testing.assert_array_equal(everybody.crs, named.crs)


def test_a_dataset_that_nobody_has_moves_nothing(protocol: Protocol) -> None:
    values = np.random.default_rng(0).uniform(0, 1, (2, 4, 2, 4))
    values[:, :, 1] = np.nan
    low, high = anchors_of(values)
    assert np.isnan(low[:, 1]).all()
    both = score_ensemble(values, low, high, protocol.scores)
    alone = score_ensemble(values[:, :, :1], low[:, :1], high[:, :1], protocol.scores)
    np.testing.assert_array_equal(both.crs, alone.crs)


def test_refuses_partial_cells(protocol: Protocol) -> None:
    values = np.full((2, 3, 1, 4), 0.5)
    low, high = np.zeros((1, 4)), np.ones((1, 4))
    for where in ((0, 1, 0, 2), (1, 1, 0)):  # one axis; one replicate
        partial = values.copy()
        partial[where] = np.nan
        with pytest.raises(ValueError, match="every cell all axes"):
            score_ensemble(partial, low, high, protocol.scores)
    nowhere = values.copy()
    nowhere[:, 2] = np.nan
    with pytest.raises(ValueError, match="every encoder needs a cell"):
        score_ensemble(nowhere, low, high, protocol.scores)


def test_dominance_of_every_pair() -> None:
    x_raw = np.random.default_rng(0).integers(0, 3, (30, 5, 4)).astype(float)
    x_raw[:, 4] = x_raw[:, 0]
    found = dominance_of_pairs(x_raw)
    for r, i, j in itertools.product(range(30), range(5), range(5)):
        pairs = list(zip(x_raw[r, i], x_raw[r, j], strict=True))
        assert found[r, i, j] == (all(a >= b for a, b in pairs) and any(a > b for a, b in pairs))
    assert not found[:, 0, 4].any()
    is_member = np.array([True, True, False, True, False])
    of_members = (found[:, :, is_member].sum(2) - found[:, is_member].sum(1)) / 3
    np.testing.assert_allclose(pareto_scores(x_raw, is_member), 0.5 * (1 + of_members), rtol=0, atol=1e-15)


def test_ranks_agree_with_scipy() -> None:
    scores = np.random.default_rng(0).integers(0, 4, (50, 6)) / 4
    np.testing.assert_array_equal(ranks_of_replicates(scores), rankdata(-scores, axis=1, method="min"))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_shares_are_means_over_the_orders_of_ties(k: int) -> None:
    scores = np.random.default_rng(k).integers(0, 3, (20, 4)) / 2
    for row, found in zip(scores, top_shares(scores, k), strict=True):
        orders = [o for o in itertools.permutations(range(4)) if (np.diff(row[list(o)]) <= 0).all()]
        share = [sum(i in order[:k] for order in orders) / len(orders) for i in range(4)]
        np.testing.assert_allclose(found, share, rtol=0, atol=1e-15)
        assert found.sum() == pytest.approx(k)
