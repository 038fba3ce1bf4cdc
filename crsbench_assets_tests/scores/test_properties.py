"""What must hold of the score of any cohort, of encoders and of cells; ``test_crs`` has more of encoders alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.scores.crs import crs_scores
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.ranks import ranks
from crsbench_assets_tests.scores.conftest import Cohort, encoders_frame, freeze_cohort, values_frame

PARTS = ("crs", "pareto", "balance", "worst")
PROFILE = tuple(f"x_{axis}" for axis in AXES)

Rows = dict[str, dict[str, Any]]
CellRows = dict[tuple[str, str], list[dict[str, Any]]]
"""Encoder, dataset -> the rows of the four axes."""


def score(cohort: Cohort, panel: Panel, protocol: Protocol) -> tuple[Rows, CellRows]:
    scores, cells = crs_scores(values_frame(cohort), encoders_frame(cohort), panel, protocol, code_version=1)
    by_cell: CellRows = {}
    for row in cells.to_dicts():
        by_cell.setdefault((row["encoder_id"], row["dataset_id"]), []).append(row)
    return {row["encoder_id"]: row for row in scores.to_dicts()}, by_cell


# Sixteenths, so that ties and dominance happen and differences are exact. Members lie in [0, 1] and have near, some of
# them far too; others reach beyond the anchors on both sides.


def cohorts(low: int, high: int, prefix: str, least: int, most: int) -> st.SearchStrategy[Cohort]:
    value = st.integers(low, high).map(lambda n: n / 16)
    of_cell = st.tuples(value, value, value, value)
    cells = st.fixed_dictionaries({"near": of_cell}, optional={"far": of_cell})
    drawn = st.lists(cells, min_size=least, max_size=most)
    return drawn.map(lambda items: {f"{prefix}{i}": dict(item) for i, item in enumerate(items)})


members = cohorts(0, 16, "m", 1, 5)
others = cohorts(-16, 32, "o", 0, 4)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def plain_beats(first: Sequence[float], second: Sequence[float]) -> bool:
    return all(a >= b for a, b in zip(first, second, strict=True)) and list(first) != list(second)


def plain_parts(x_raw: Sequence[float], x: Sequence[float], members_raw: Sequence[Sequence[float]]) -> list[float]:
    """Return CRS, P, B and W from the formulas of the protocol page, section 7."""
    n_won = sum(plain_beats(x_raw, member) for member in members_raw)
    n_lost = sum(plain_beats(member, x_raw) for member in members_raw)
    pareto = (1 + (n_won - n_lost) / len(members_raw)) / 2
    balance = 1 - math.sqrt(sum((1 - value) ** 2 for value in x) / 4)
    return [0.5 * pareto + 0.3 * balance + 0.2 * min(x), pareto, balance, min(x)]


def plain_positions(base: Cohort, cells: dict[str, tuple[float | None, ...]]) -> dict[str, list[float]]:
    """Return z_raw on every dataset that a member has."""
    positions = {}
    for dataset, values in cells.items():
        columns = list(zip(*(own[dataset] for own in base.values() if dataset in own), strict=True))
        if columns:
            positions[dataset] = [
                0.5 if max(column) == min(column) else (value - min(column)) / (max(column) - min(column))
                for value, column in zip(values, columns, strict=True)
            ]
    return positions


def means(rows: Sequence[Sequence[float]], low: float = -math.inf, high: float = math.inf) -> list[float]:
    return [math.fsum(min(max(z, low), high) for z in column) / len(rows) for column in zip(*rows, strict=True)]


@quick
@given(members, others)
def test_agrees_with_plain_python(protocol: Protocol, base: Cohort, more: Cohort) -> None:
    cohort = base | more
    rows, cells = score(cohort, freeze_cohort(base, protocol), protocol)
    positions = {name: plain_positions(base, own) for name, own in cohort.items()}
    members_raw = [means(list(positions[name].values())) for name in base]
    for name, of_datasets in positions.items():
        z_raw = list(of_datasets.values())
        x = means(z_raw, 0.0, 1.0)
        assert [rows[name][column] for column in PROFILE] == pytest.approx(x, abs=1e-12)
        right = plain_parts(means(z_raw), x, members_raw)
        assert [rows[name][part] for part in PARTS] == pytest.approx(right, abs=1e-12)
        for dataset, z in of_datasets.items():
            own = cells[name, dataset]
            right = plain_parts(z, means([z], 0.0, 1.0), [positions[m][dataset] for m in base if dataset in base[m]])
            for axis, row in enumerate(own):
                assert [row[part] for part in PARTS] == pytest.approx(right, abs=1e-12)
                assert row["z_raw"] == pytest.approx(z[axis], abs=1e-12)
                assert row["z"] == pytest.approx(min(max(z[axis], 0.0), 1.0), abs=1e-12)


@quick
@given(members, others)
def test_scores_of_cells_lie_in_the_unit_interval(protocol: Protocol, base: Cohort, more: Cohort) -> None:
    _, cells = score(base | more, freeze_cohort(base, protocol), protocol)
    for own in cells.values():
        for row in own:
            assert row["status"] == "no_anchor" or all(0 <= row[name] <= 1 for name in ("z", *PARTS))


@quick
@given(members, others, st.randoms(use_true_random=False))
def test_order_and_names_move_neither_cells_nor_ranks(
    protocol: Protocol, base: Cohort, more: Cohort, random: Any
) -> None:
    def results(cohort: Cohort, base: Cohort) -> tuple[CellRows, dict[str, int]]:
        panel = freeze_cohort(base, protocol)
        encoders = encoders_frame(cohort)
        scores, _ = crs_scores(values_frame(cohort), encoders, panel, protocol, code_version=1)
        ranked = ranks(scores.sample(fraction=1.0, shuffle=True, seed=0), encoders)
        return score(cohort, panel, protocol)[1], dict(ranked.select("encoder_id", "rank").iter_rows())

    cohort = base | more
    new_names = [f"r{i}" for i in range(len(cohort))]
    random.shuffle(new_names)
    name_of = dict(zip(cohort, new_names, strict=True))
    cells, rank_of = results(cohort, base)
    renamed: Cohort = {name_of[name]: own for name, own in reversed(cohort.items())}
    again, new_rank_of = results(renamed, {name_of[name]: base[name] for name in base})
    assert {name_of[name]: rank for name, rank in rank_of.items()} == new_rank_of
    for (name, dataset), own in cells.items():
        for row, other in zip(own, again[name_of[name], dataset], strict=True):
            columns = ("axis", "z_raw", "z", *PARTS, "reason")
            assert [row[column] for column in columns] == [other[column] for column in columns]


@quick
@given(members, st.integers(0, 4))
def test_a_second_copy_of_a_member_moves_dominance_alone(protocol: Protocol, base: Cohort, which: int) -> None:
    # Anchors stay, so no profile, B or W moves a bit, and the copies are equal. P of whoever the member beats, or is
    # beaten by, does: the count over m becomes one over m + 1, with the copy counted.
    original = sorted(base)[which % len(base)]
    panel = freeze_cohort(base, protocol)
    larger = freeze_cohort(base | {"z-copy": base[original]}, protocol)
    assert larger.anchors == panel.anchors
    before, _ = score(base, panel, protocol)
    after, _ = score(base | {"z-copy": base[original]}, larger, protocol)
    assert [after["z-copy"][c] for c in (*PARTS, *PROFILE, "rank_panel")] == [
        after[original][c] for c in (*PARTS, *PROFILE, "rank_panel")
    ]
    raw = {name: means(list(plain_positions(base, own).values())) for name, own in base.items()}
    m = len(base)
    for name in base:
        unmoved = ("balance", "worst", *PROFILE)
        assert [after[name][column] for column in unmoved] == [before[name][column] for column in unmoved]
        net = (2 * before[name]["pareto"] - 1) * m
        net += plain_beats(raw[name], raw[original]) - plain_beats(raw[original], raw[name])
        assert after[name]["pareto"] == pytest.approx((1 + net / (m + 1)) / 2, abs=1e-12)


@quick
@given(members, others)
def test_a_panel_of_which_every_member_is_there_twice_gives_the_same_scores(
    protocol: Protocol, base: Cohort, more: Cohort
) -> None:
    twice = base | {f"z-{name}": cells for name, cells in base.items()}
    before, cells = score(base | more, freeze_cohort(base, protocol), protocol)
    after, cells_after = score(base | more, freeze_cohort(twice, protocol), protocol)
    for name in base | more:
        assert [after[name][c] for c in (*PARTS, *PROFILE)] == [before[name][c] for c in (*PARTS, *PROFILE)]
    for key, own in cells.items():
        assert [[row[part] for part in PARTS] for row in cells_after[key]] == [[row[p] for p in PARTS] for row in own]


@quick
@given(members, others, st.sampled_from(AXES), st.integers(1, 32))
def test_raising_one_axis_never_lowers_the_score_of_the_cell(
    protocol: Protocol, base: Cohort, more: Cohort, axis: str, sixteenths: int
) -> None:
    panel = freeze_cohort(base, protocol)
    raised = {name: raise_axis(cells, axis, sixteenths / 16) for name, cells in (base | more).items()}
    _, before = score(base | more, panel, protocol)
    _, after = score(raised, panel, protocol)
    for key, own in before.items():
        assert own[0]["status"] == "no_anchor" or after[key][0]["crs"] >= own[0]["crs"]


@quick
@given(members, st.integers(0, 4), st.sampled_from(AXES), st.integers(1, 32))
def test_a_member_that_was_better_before_the_freeze_scores_no_less(
    protocol: Protocol, base: Cohort, which: int, axis: str, sixteenths: int
) -> None:
    # It may move the anchors: then the others stand lower, never it itself.
    better = sorted(base)[which % len(base)]
    cohort = base | {better: raise_axis(base[better], axis, sixteenths / 16)}
    before, _ = score(base, freeze_cohort(base, protocol), protocol)
    after, _ = score(cohort, freeze_cohort(cohort, protocol), protocol)
    assert after[better]["crs"] >= before[better]["crs"]


def raise_axis(cells: dict[str, tuple[float | None, ...]], axis: str, gain: float) -> dict[str, Any]:
    """Return the values with more on one axis of the dataset near."""
    near = [(value or 0.0) + gain * (name == axis) for name, value in zip(AXES, cells["near"], strict=True)]
    return cells | {"near": tuple(near)}


@quick
@given(members, others)
def test_dominance_in_a_cell_is_a_higher_score_of_the_cell(protocol: Protocol, base: Cohort, more: Cohort) -> None:
    _, cells = score(base | more, freeze_cohort(base, protocol), protocol)
    for dataset in ("near", "far"):
        z_raw = {
            name: [row["z_raw"] for row in own]
            for (name, of), own in cells.items()
            if of == dataset and own[0]["status"] == "ok"
        }
        for i, j in ((i, j) for i in z_raw for j in z_raw if plain_beats(z_raw[i], z_raw[j])):
            first, second = cells[i, dataset][0]["crs"], cells[j, dataset][0]["crs"]
            assert first > second if {i, j} & base.keys() else first >= second


@quick
@given(members, others, st.integers(-3, 3), st.integers(-8, 8))
def test_the_unit_of_an_axis_does_not_count(
    protocol: Protocol, base: Cohort, more: Cohort, exponent: int, shift: int
) -> None:
    # Powers of two and sixteenths, so that the change itself rounds nothing.
    def changed(cohort: Cohort) -> Cohort:
        return {
            name: cells | {"near": (*cells["near"][:3], (cells["near"][3] or 0.0) * 2.0**exponent + shift)}
            for name, cells in cohort.items()
        }

    before, cells = score(base | more, freeze_cohort(base, protocol), protocol)
    after, cells_after = score(changed(base | more), freeze_cohort(changed(base), protocol), protocol)
    for name in base | more:
        assert [after[name][c] for c in (*PARTS, *PROFILE)] == [before[name][c] for c in (*PARTS, *PROFILE)]
    assert {key: own[0]["crs"] for key, own in cells_after.items()} == {
        key: own[0]["crs"] for key, own in cells.items()
    }


@quick
@given(members, others)
def test_on_one_dataset_the_encoder_is_its_cell(protocol: Protocol, base: Cohort, more: Cohort) -> None:
    cohort: Cohort = {name: {"near": cells["near"]} for name, cells in (base | more).items()}
    panel = freeze_cohort({name: cohort[name] for name in base}, protocol)
    rows, cells = score(cohort, panel, protocol)
    for (name, _), own in cells.items():
        assert [own[0][part] for part in PARTS] == [rows[name][part] for part in PARTS]
        assert [row["z"] for row in own] == [rows[name][column] for column in PROFILE]
