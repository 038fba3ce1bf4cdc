from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from crsbench_assets.analyses.axis_correlations import axis_correlations
from crsbench_assets.config.protocol import AXES
from crsbench_assets.config.registry import load_protocol
from crsbench_assets_tests.analyses.test_label_efficiency_informativeness import plain_units
from crsbench_assets_tests.scores.conftest import Cohort, freeze_cohort
from crsbench_assets_tests.tables.rows import written

PROTOCOL = load_protocol("crs-1", Path())
Key = tuple[str, str, str, str, str]

# One dataset. D ascends, C swaps neighbours, L is the same for all, R descends.
#
#             D    C    L    R        D - .25  C - .25
#   alpha    .1   .2   .5   .8         -.15     -.05
#   beta     .2   .1   .5   .6         -.05     -.15
#   gamma    .3   .4   .5   .4          .05      .15
#   delta    .4   .3   .5   .2          .15      .05
#
# D with C: products .0075 twice and .0075 twice, .03, over squares .05: .6 for values and ranks alike.
ONE: Cohort = {
    "alpha": {"near": (0.1, 0.2, 0.5, 0.8)},
    "beta": {"near": (0.2, 0.1, 0.5, 0.6)},
    "gamma": {"near": (0.3, 0.4, 0.5, 0.4)},
    "delta": {"near": (0.4, 0.3, 0.5, 0.2)},
}


def analyse(cohort: Cohort, controls: tuple[str, ...] = ()) -> dict[Key, dict[str, Any]]:
    panel = freeze_cohort(cohort, PROTOCOL, controls)
    found = axis_correlations(panel)
    written(found, "axis_correlations")
    assert found.height == 64 + len(panel.datasets)
    key = ("level", "centring", "dataset_id", "axis", "other_axis")
    return {tuple(row[name] for name in key): row for row in found.to_dicts()}


def test_every_number_by_hand() -> None:
    rows = analyse(ONE)
    pearson, spearman = (
        [math.tanh(math.log(2) + sign * 1.959963984540054 * math.sqrt(v)) for sign in (-1, 1)] for v in (1, 1.18)
    )
    for key in (("encoder", "raw", ""), ("cell", "raw", ""), ("cell", "within_dataset", ""), ("cell", "raw", "near")):
        row = rows[(*key, "discrimination", "calibration")]
        assert (row["n_units"], row["reason"]) == (4, None)
        assert (row["pearson"], row["spearman"]) == pytest.approx((0.6, 0.6), abs=1e-12)
        assert [row["pearson_ci_low"], row["pearson_ci_high"]] == pytest.approx(pearson, abs=1e-12)
        assert [row["spearman_ci_low"], row["spearman_ci_high"]] == pytest.approx(spearman, abs=1e-12)
    flat = rows["encoder", "raw", "", "discrimination", "label_efficiency"]
    assert (flat["pearson"], flat["pearson_ci_low"], flat["reason"]) == (None, None, "no_spread")
    assert rows["encoder", "raw", "", "label_efficiency", "label_efficiency"]["reason"] == "no_spread"
    against = rows["encoder", "raw", "", "discrimination", "robustness"]
    assert (against["pearson"], against["spearman"]) == pytest.approx((-1, -1), abs=1e-12)
    assert (against["pearson_ci_low"], against["spearman_ci_high"]) == (None, None)
    assert against["reason"] == "perfect_correlation"
    itself = rows["encoder", "raw", "", "discrimination", "discrimination"]
    numbers = [itself[f"{name}{part}"] for name in ("pearson", "spearman") for part in ("", "_ci_low", "_ci_high")]
    assert numbers == pytest.approx([1.0] * 6, abs=1e-12)
    assert itself["reason"] is None


def random_cohort(seed: int) -> Cohort:
    draw = random.Random(seed)
    cohort: Cohort = {}
    for e in range(draw.randint(5, 12)):
        own = [d for d in ("near", "far", "new") if draw.random() < 0.8] or ["near"]
        cohort[f"e{e}"] = {dataset: tuple(draw.random() for _ in AXES) for dataset in own}
    return cohort


@pytest.mark.parametrize("seed", range(10))
def test_agrees_with_plain_python(seed: int) -> None:
    cohort = random_cohort(seed)
    n_datasets = len({dataset for cells in cohort.values() for dataset in cells})
    for (level, centring, dataset, axis, other), row in analyse(cohort).items():
        used = [dataset] if dataset else ["near", "far", "new"]
        first, second = (
            plain_units(
                {(e, d): v[AXES.index(name)] for e, own in cohort.items() for d, v in own.items() if d in used},
                level,
                centring,
            )
            for name in (axis, other)
        )
        assert row["n_units"] == len(first)
        if len(first) < 3:
            assert row["reason"] == "too_few_units"
            continue
        m = len(first) - (n_datasets - 1 if (level, centring) == ("cell", "within_dataset") else 0)
        for name, r in (
            ("pearson", stats.pearsonr(first, second).statistic),
            ("spearman", stats.spearmanr(first, second).statistic),
        ):
            assert row[name] == pytest.approx(r, abs=1e-12)
            if row[f"{name}_ci_low"] is None:
                assert row["reason"] in ("too_few_units", "perfect_correlation")
            elif axis != other:
                half = stats.norm.ppf(0.975) * math.sqrt((1 + (name == "spearman") * r**2 / 2) / (m - 3))
                right = math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)
                assert (row[f"{name}_ci_low"], row[f"{name}_ci_high"]) == pytest.approx(right, abs=1e-11)


def test_symmetric_and_blind_to_order_and_names() -> None:
    cohort = random_cohort(3)
    rows = analyse(cohort)
    renamed = {f"x{name[::-1]}": cells for name, cells in reversed(cohort.items())}
    for key, row in analyse(renamed).items():
        transposed = rows[(*key[:3], key[4], key[3])] if key[2] == "" else rows[key]
        for name, value in row.items():
            if isinstance(value, float):
                assert value == pytest.approx(rows[key][name], abs=1e-12)
                assert value == pytest.approx(transposed[name], abs=1e-12)


def test_controls_move_nothing() -> None:
    cohort = random_cohort(4)
    untrained: Cohort = {"untrained": {"near": (0.0, 0.0, 1.0, 1.0)}}
    assert analyse({**cohort, **untrained}, ("untrained",)) == analyse(cohort)


def test_few_and_equal_encoders() -> None:
    two = analyse({name: ONE[name] for name in ("alpha", "beta")})
    assert {row["reason"] for row in two.values()} == {"too_few_units"}
    three = analyse({name: ONE[name] for name in ("alpha", "beta", "gamma")})
    row = three["encoder", "raw", "", "discrimination", "calibration"]
    assert row["pearson"] == pytest.approx(stats.pearsonr([1, 2, 3], [2, 1, 4]).statistic)
    assert (row["pearson_ci_low"], row["reason"]) == (None, "too_few_units")
    equal = analyse({name: {"near": (0.5, 0.6, 0.7, 0.8)} for name in ("a", "b", "c", "d")})
    assert {(row["pearson"], row["pearson_ci_low"], row["reason"]) for row in equal.values()} == {
        (None, None, "no_spread")
    }
