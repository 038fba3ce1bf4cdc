from __future__ import annotations

import itertools
import statistics
from typing import Any

import numpy as np
import pytest

from crsbench_assets.analyses.axis_reliability import axis_reliability
from crsbench_assets.config.protocol import AXES
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.resampling import Resampled
from crsbench_assets_tests.analyses.plain_score import Cells, panel_from
from crsbench_assets_tests.analyses.resampled import noisy, random_unit_cells, resampled_of, unmoved
from crsbench_assets_tests.tables.rows import written

Rows = dict[tuple[str, str], dict[str, Any]]

# Discrimination is 0, .5, 1, so its variance (ddof 1) is .25; calibration has no range.
HAND: Cells = {
    "ace": {"near": [0.0, 0.5, 0.5, 0.5], "far": [0.5, 0.5, 0.5, 0.5]},
    "bow": {"near": [0.5, 0.5, 0.5, 0.5]},
    "cub": {"near": [1.0, 0.5, 0.5, 0.5]},
}


def analyse(panel: Panel, resampled: Resampled | str) -> Rows:
    found = axis_reliability(panel, resampled)
    written(found, "axis_reliability")
    assert found.select("dataset_id", "axis").rows() == [(d, axis) for d in panel.datasets for axis in AXES]
    return {(row["dataset_id"], row["axis"]): row for row in found.to_dicts()}


def with_errors(panel: Panel) -> Resampled:
    # Errors in four replicates, on every axis: variance .04 / 3 (ddof 1) of each member; the difference of ace and bow
    # has none, that of either and cub .2, -.2, .2, -.2, variance .16 / 3.
    #
    #   ace  .1  -.1   .1  -.1      bow  .1  -.1   .1  -.1      cub  -.1   .1  -.1   .1
    errors = np.array([[0.1, 0.1, -0.1], [-0.1, -0.1, 0.1]] * 2)
    return resampled_of(panel, unmoved(panel, 4) + errors[:, :, None, None])


def test_three_members_by_hand() -> None:
    panel = panel_from(HAND)
    row = analyse(panel, with_errors(panel))["near", "discrimination"]
    assert row["n_encoders"] == 3
    assert row["between_variance"] == pytest.approx(0.25, abs=1e-12)
    assert row["error_variance"] == pytest.approx(0.04 / 3, abs=1e-12)
    assert row["reliability"] == pytest.approx(1 - 0.16 / 3, abs=1e-12)
    assert row["smallest_detectable_difference"] == pytest.approx(1.959964 * (0.32 / 9) ** 0.5, abs=1e-6)
    assert (row["is_reliable"], row["reason"]) == (True, None)


def test_errors_that_all_members_share_hide_no_difference() -> None:
    panel = panel_from(HAND)
    shared = np.array([0.3, -0.3, 0.3, -0.3])[:, None, None, None]
    row = analyse(panel, resampled_of(panel, unmoved(panel, 4) + shared))["near", "discrimination"]
    assert row["smallest_detectable_difference"] == pytest.approx(0.0, abs=1e-12)
    assert row["reliability"] == pytest.approx(1 - 0.12 / 0.25, abs=1e-12)  # the protocol's, which counts them
    assert row["is_reliable"] is False


def test_members_that_differ_by_less_than_their_error() -> None:
    panel = panel_from({name: {"near": [0.5 + 0.01 * i] * 4} for i, name in enumerate(HAND)})
    row = analyse(panel, with_errors(panel))["near", "discrimination"]
    assert row["reliability"] == pytest.approx(1 - 0.04 / 3 / 0.0001, abs=1e-6)
    assert (row["is_reliable"], row["reason"]) == (False, None)


def test_without_error_reliability_is_one() -> None:
    panel = panel_from(HAND)
    row = analyse(panel, resampled_of(panel, unmoved(panel, 3)))["near", "discrimination"]
    assert (row["reliability"], row["error_variance"], row["smallest_detectable_difference"]) == (1.0, 0.0, 0.0)


def test_where_it_is_undefined() -> None:
    panel = panel_from(HAND)
    rows = analyse(panel, with_errors(panel))
    flat = rows["near", "calibration"]
    assert (flat["between_variance"], flat["reliability"], flat["is_reliable"], flat["reason"]) == (
        0.0,
        None,
        None,
        "no_spread",
    )
    assert flat["error_variance"] == pytest.approx(0.04 / 3, abs=1e-12)
    assert flat["smallest_detectable_difference"] is not None
    alone = rows["far", "discrimination"]
    names = ("n_encoders", "between_variance", "reliability", "smallest_detectable_difference", "reason")
    assert [alone[name] for name in names] == [1, None, None, None, "too_few_units"]
    assert alone["error_variance"] == pytest.approx(0.04 / 3, abs=1e-12)
    for row in analyse(panel, "one_seed").values():
        assert [row[name] for name in names[2:]] == [None, None, "one_seed"]
        assert (row["between_variance"] is None) == (row["dataset_id"] == "far")
    gone = resampled_of(panel, unmoved(panel, 2)[:, :2], ("ace", "bow"))
    assert {row["reason"] for row in analyse(panel, gone).values()} == {"no_replicates"}


def test_agrees_with_plain_python() -> None:
    n_compared = 0
    for seed in range(10):
        cells = random_unit_cells(seed)
        panel = panel_from(cells)
        values = noisy(panel, 8, 0.1, seed)
        for (dataset, axis), row in analyse(panel, resampled_of(panel, values)).items():
            j, k = panel.datasets.index(dataset), AXES.index(axis)
            own = [i for i, member in enumerate(panel.members) if dataset in cells[member]]
            assert row["n_encoders"] == len(own)
            if len(own) < 2:
                continue
            series = [values[:, i, j, k].tolist() for i in own]
            error = statistics.fmean(statistics.variance(of_member) for of_member in series)
            between = statistics.variance(cells[panel.members[i]][dataset][k] for i in own)
            differences = [
                statistics.variance([a - b for a, b in zip(first, second, strict=True)])
                for first, second in itertools.combinations(series, 2)
            ]
            detectable = 1.959963984540054 * statistics.fmean(differences) ** 0.5
            assert row["error_variance"] == pytest.approx(error, abs=1e-12)
            assert row["between_variance"] == pytest.approx(between, abs=1e-12)
            assert row["smallest_detectable_difference"] == pytest.approx(detectable, abs=1e-12)
            assert row["reliability"] == pytest.approx(1 - error / between, rel=1e-12, abs=1e-12)
            assert row["is_reliable"] == (1 - error / between >= 0.7)
            n_compared += 1
    assert n_compared > 60


def test_equal_members_differ_by_less_than_is_detectable_in_95_percent() -> None:
    # a value is .5 and an error, a replicate the value and another: about 5 % of all pairs lie further apart
    draw = np.random.default_rng(0)
    n_further = n_pairs = 0
    for i in range(40):
        panel = panel_from({f"e{m}": {"near": (0.5 + 0.02 * draw.standard_normal(4)).tolist()} for m in range(8)})
        for (_, axis), row in analyse(panel, resampled_of(panel, noisy(panel, 200, 0.02, i))).items():
            column = [own[axis] for own in panel.values["near"].values()]
            gaps = [abs(a - b) for a, b in itertools.combinations(column, 2)]
            n_further += sum(gap > row["smallest_detectable_difference"] for gap in gaps)
            n_pairs += len(gaps)
    assert n_further / n_pairs == pytest.approx(0.05, abs=0.02)


def test_order_names_and_who_is_no_member_move_nothing() -> None:
    cells = random_unit_cells(3, n_encoders=6)
    panel = panel_from(cells)
    values = noisy(panel, 20, 0.1)
    rows = analyse(panel, resampled_of(panel, values))
    back = panel_from({encoder: cells[encoder] for encoder in reversed(list(cells))})
    late = np.full((20, 1, len(panel.datasets), 4), 9.0)
    joined = resampled_of(back, np.concatenate([late, values], axis=1), ("aaa", *panel.members))
    assert analyse(back, joined) == rows
    names = {encoder: f"x{6 - i}" for i, encoder in enumerate(cells)}
    renamed = panel_from({names[encoder]: own for encoder, own in cells.items()})
    for key, row in analyse(renamed, resampled_of(renamed, values[:, ::-1])).items():
        for name, value in row.items():
            assert value == (pytest.approx(rows[key][name], abs=1e-12) if isinstance(value, float) else rows[key][name])
