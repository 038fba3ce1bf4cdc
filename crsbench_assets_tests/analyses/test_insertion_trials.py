from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from crsbench_assets.analyses.insertion_trials import insertion_trials
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.protocol import Protocol
from crsbench_assets_tests.analyses.plain_score import PROTOCOL, Cells, panel_from, plain_crs, random_cells
from crsbench_assets_tests.tables.rows import written


def analyse(cells: Cells) -> list[dict[str, Any]]:
    found = insertion_trials(panel_from(cells), PROTOCOL)
    written(found, "insertion_trials")
    return found.to_dicts()


def by_mode(rows: list[dict[str, Any]], mode: str) -> Mapping[int, dict[str, dict[str, Any]]]:
    trials: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["mode"] == mode:
            trials.setdefault(row["trial"], {})[row["encoder_id"]] = row
    return trials


# Two members, one axis: a is at 1, b at 0; the rest is equal, so z is .5 there, and .5 throughout for a base of one.
#
#                       P      B                        W      CRS
#   either alone        .5     1 - sqrt(1/4)   = .5     .5     .5
#   a beside b          .75    1 - sqrt(3/16)           .5     .645096      moved by .145096
#   b beside a          .25    1 - sqrt(7/16)           0      .226569      moved by .273431
def test_two_members_by_hand() -> None:
    rows = analyse({"a": {"near": [1.0, 0.5, 0.5, 0.5]}, "b": {"near": [0.0, 0.5, 0.5, 0.5]}})
    right = {"a": (0.645096, 0.145096), "b": (0.226569, 0.273431)}
    assert len(rows) == 60
    for row in rows:
        assert (row["n_base"], row["n_inserted"], row["reason"]) == (1, 1, None)
        assert row["crs_before"] == pytest.approx(0.5)
        if row["mode"] == "fixed_reference":
            assert (row["crs_after"], row["displacement"]) == (row["crs_before"], 0.0)
        else:
            after, displacement = right[row["encoder_id"]]
            assert (row["crs_after"], row["displacement"]) == pytest.approx((after, displacement), abs=1e-6)
    assert {row["encoder_id"] for row in rows} == {"a", "b"}


@pytest.fixture(scope="module")
def fifteen() -> list[dict[str, Any]]:
    return analyse(random_cells(5, 15))


def test_thirty_trials_of_eight_and_seven(fifteen: list[dict[str, Any]]) -> None:
    assert len(fifteen) == 30 * 2 * 8
    assert {(row["n_base"], row["n_inserted"]) for row in fifteen} == {(8, 7)}
    fixed, cohort = by_mode(fifteen, "fixed_reference"), by_mode(fifteen, "cohort")
    bases = {trial: frozenset(members) for trial, members in fixed.items()}
    assert bases == {trial: frozenset(members) for trial, members in cohort.items()}
    assert len(set(bases.values())) > 25


def test_fixed_reference_moves_no_bit_and_renormalisation_does(fifteen: list[dict[str, Any]]) -> None:
    for row in fifteen:
        if row["mode"] == "fixed_reference":
            assert row["crs_after"] == row["crs_before"]
            assert row["displacement"] == 0.0
    moved = [row["displacement"] for row in fifteen if row["mode"] == "cohort"]
    assert sum(displacement > 1e-6 for displacement in moved) > len(moved) / 2


def test_fifteen_agree_with_plain_python(fifteen: list[dict[str, Any]]) -> None:
    assert_plain(random_cells(5, 15), fifteen)


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_plain_python(seed: int) -> None:
    cells = random_cells(seed, 4 + seed)
    assert_plain(cells, analyse(cells))


def assert_plain(cells: Cells, rows: list[dict[str, Any]]) -> None:
    for members in by_mode(rows, "cohort").values():
        base = {encoder: cells[encoder] for encoder in members}
        datasets = {dataset for own in base.values() for dataset in own}
        union = {
            encoder: {dataset: values for dataset, values in own.items() if dataset in datasets}
            for encoder, own in cells.items()
        }
        union = {encoder: own for encoder, own in union.items() if own}
        before, after = plain_crs(base), plain_crs(union)
        for encoder, row in members.items():
            assert row["n_inserted"] == len(union) - len(base)
            assert row["crs_before"] == pytest.approx(before[encoder], abs=1e-12)
            if row["n_inserted"]:
                assert row["crs_after"] == pytest.approx(after[encoder], abs=1e-12)
                assert row["displacement"] == pytest.approx(abs(after[encoder] - before[encoder]), abs=1e-12)


def test_a_member_on_other_datasets_is_not_inserted() -> None:
    cells: Cells = {"a": {"near": [0.1, 0.2, 0.3, 0.4]}, "b": {"far": [0.4, 0.3, 0.2, 0.1]}}
    for row in analyse(cells):
        assert (row["n_base"], row["n_inserted"], row["crs_before"]) == (1, 0, pytest.approx(0.5))
        assert (row["crs_after"], row["displacement"], row["reason"]) == (None, None, "too_few_units")
    alone = analyse({"a": {"near": [0.1, 0.2, 0.3, 0.4]}})
    assert {(row["n_base"], row["n_inserted"], row["reason"]) for row in alone} == {(1, 0, "too_few_units")}


def test_equal_members_stay_where_they_are() -> None:
    rows = analyse({encoder: {"near": [0.5, 0.5, 0.5, 0.5]} for encoder in "abcd"})
    assert {(row["crs_before"], row["crs_after"], row["displacement"]) for row in rows} == {(0.5, 0.5, 0.0)}


def test_order_of_the_frame_moves_nothing() -> None:
    cells = random_cells(2, 4)
    assert panel_from(dict(reversed(cells.items()))) == panel_from(cells)


def test_a_panel_of_another_protocol_is_refused() -> None:
    other = Protocol.model_validate(PROTOCOL.model_dump() | {"seeds": (0,)})
    with pytest.raises(ConfigError, match="never mixed"):
        insertion_trials(panel_from(random_cells(0, 3)), other)
