from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from crsbench_assets.analyses.bootstrap_ranks import bootstrap_ranks, leading_tier
from crsbench_assets.config.protocol import Protocol
from crsbench_assets.config.registry import load_protocol
from crsbench_assets.scores.ensemble import Scores
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.resampling import Resampled, Resampling, resampled_scores
from crsbench_assets_tests.scores.replicates import (
    Case,
    Cell,
    cell_axes_frame,
    encoders_of,
    every_axis,
    freeze_cells,
    protocol_of,
    replicates_frame,
)
from crsbench_assets_tests.tables.rows import written

Key = tuple[str, str, str]
"""Resampling, anchors, encoder."""


@pytest.fixture(scope="module")
def protocol() -> Protocol:
    return load_protocol("crs-1", Path())


def analyse(
    cells: Mapping[Cell, Any],
    replicates: Mapping[Cell, Any],
    panel: Panel,
    protocol: Protocol,
    encoders: pl.DataFrame | None = None,
) -> dict[Key, dict[str, Any]]:
    encoders = encoders_of(cells) if encoders is None else encoders
    found = bootstrap_ranks(cell_axes_frame(cells), replicates_frame(replicates), encoders, panel, protocol)
    written(found, "bootstrap_ranks")
    n_candidates = encoders.filter(pl.col("role") == "candidate").height
    assert found.height == 6 * n_candidates
    assert set(found["panel_id"]) <= {panel.panel_id}
    return {(row["resampling"], row["anchors"], row["encoder_id"]): row for row in found.to_dicts()}


def still(cells: Mapping[Cell, Any], b: int = 20) -> dict[Cell, Any]:
    """Return replicates that are all as the seeds are."""
    return {cell: np.tile(np.asarray(values, dtype=np.float64), (b, 1, 1)) for cell, values in cells.items()}


# Two seeds; the scores under every draw stand in crsbench_assets_tests/scores/test_resampling.py:
#
#   draw      share   steady             swing    floor, copy
#   0, 0      1/4     .9375              .5625    .125
#   0, 1      2/4     .875               .875     .125
#   1, 1      1/4     .8125 (.645833)    .9375    .125        in brackets: anchors of the draw
#
# P(best) = 1/4 + 2/4 x 1/2 = .5 for both; floor and copy share the third place.
CELLS: dict[Cell, Any] = {
    ("floor", "near"): every_axis(0.0, 0.0),
    ("copy", "near"): every_axis(0.0, 0.0),
    ("steady", "near"): every_axis(0.5, 0.5),
    ("swing", "near"): every_axis(0.25, 0.75),
}


def test_seeds_by_hand(protocol: Protocol) -> None:
    two_seeds = protocol_of(protocol, 2)
    rows = analyse(CELLS, still(CELLS), freeze_cells(CELLS, two_seeds), two_seeds)
    low = {"frozen": 0.8125, "recomputed": 0.3125 + 0.2 + 0.4 / 3}
    for anchors in ("frozen", "recomputed"):
        steady, swing = rows["seed", anchors, "steady"], rows["seed", anchors, "swing"]
        assert [steady[n] for n in ("crs", "crs_ci_low", "crs_ci_high")] == pytest.approx([0.875, low[anchors], 0.9375])
        assert [swing[n] for n in ("crs", "crs_ci_low", "crs_ci_high")] == pytest.approx([0.875, 0.5625, 0.9375])
        for row in (steady, swing):
            assert (row["n_replicates"], row["rank_lo"], row["rank_hi"], row["reason"]) == (10_000, 1, 2, None)
            assert (row["p_best_enumerated"], row["p_top_3_enumerated"], row["p_top_3"]) == (0.5, 1.0, 1.0)
            assert abs(row["p_best"] - 0.5) < 0.02
            assert row["is_in_tier"]
        for encoder in ("floor", "copy"):
            row = rows["seed", anchors, encoder]
            assert (row["crs"], row["rank_lo"], row["rank_hi"]) == (0.125, 3, 3)
            assert (row["p_best"], row["p_top_3"], row["p_top_3_enumerated"]) == (0.0, 0.5, 0.5)
            assert not row["is_in_tier"]
    of_seeds = [row for row in rows.values() if row["resampling"] == "seed"]
    found = {
        (r["n_draws_enumerated"], r["is_enumeration_agreed"], r["n_tier"], r["enumeration_reason"]) for r in of_seeds
    }
    assert found == {(4, True, 2, None)}


def test_other_resamplings_are_not_enumerated(protocol: Protocol) -> None:
    # nothing moves between replicates of the test groups, so `test` has one score only: the point's
    two_seeds = protocol_of(protocol, 2)
    rows = analyse(CELLS, still(CELLS), freeze_cells(CELLS, two_seeds), two_seeds)
    for (resampling, _, _), row in rows.items():
        if resampling == "seed":
            continue
        assert row["n_replicates"] == 20
        assert row["enumeration_reason"] == "not_enumerated"
        names = ("n_draws_enumerated", "p_best_enumerated", "p_top_3_enumerated", "is_enumeration_agreed", "n_tier")
        assert {row[name] for name in (*names, "is_in_tier")} == {None}
        if resampling == "test":
            assert row["crs_ci_low"] == row["crs_ci_high"] == row["crs"]
    assert [rows["test", "frozen", e]["p_best"] for e in ("steady", "swing")] == [0.5, 0.5]


# Independent plain Python --------------------------------------------------------------------------------------------


def plain_share(scores: Mapping[str, float], encoder: str, k: int) -> float:
    n_better = sum(score > scores[encoder] for score in scores.values())
    n_tied = sum(score == scores[encoder] for score in scores.values())
    return min(max((k - n_better) / n_tied, 0.0), 1.0)


def plain_quantile(values: Sequence[float], q: float) -> float:
    ordered, place = sorted(values), q * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_plain_python(seed: int, protocol: Protocol) -> None:
    three_seeds = protocol_of(protocol, 3)
    case = Case(seed, three_seeds)
    encoders = encoders_of(case.active, controls=("e2",))
    rows = analyse(case.cells, case.replicates, case.panel, three_seeds, encoders)
    names = sorted({encoder for encoder, _ in case.active} - {"e2"})
    resamplings: tuple[Resampling, ...] = ("test", "seed_test")
    for resampling, is_recomputed in product(resamplings, (False, True)):
        scores = [
            case.plain(resampling, r, drawn, is_recomputed=is_recomputed)
            for r, drawn in enumerate(case.draws(resampling))
        ]
        for encoder in names:
            row = rows[resampling, "recomputed" if is_recomputed else "frozen", encoder]
            own = [of_replicate[encoder] for of_replicate in scores]
            places = sorted(1 + sum(other > s[encoder] for other in s.values()) for s in scores)
            assert (row["rank_lo"], row["rank_hi"], row["n_replicates"]) == (places[1], places[-2], 40)
            found = [row[name] for name in ("crs_ci_low", "crs_ci_high", "p_best", "p_top_3")]
            right = [
                plain_quantile(own, 0.025),
                plain_quantile(own, 0.975),
                sum(plain_share(s, encoder, 1) for s in scores) / 40,
                sum(plain_share(s, encoder, 3) for s in scores) / 40,
            ]
            assert found == pytest.approx(right, rel=0, abs=1e-12)
    point = case.plain("seed", 0, [0, 1, 2], is_recomputed=False)
    orders = list(product(range(3), repeat=3))
    for is_recomputed in (False, True):
        scores = [case.plain("seed", 0, list(drawn), is_recomputed=is_recomputed) for drawn in orders]
        tops = [
            {frozenset(e for e in names if plain_share(s, e, k) == 1.0) for s in scores} for k in range(1, len(names))
        ]
        tiers = [next(iter(top)) for k, top in enumerate(tops, start=1) if len(top) == 1 and len(next(iter(top))) == k]
        for encoder in names:
            row = rows["seed", "recomputed" if is_recomputed else "frozen", encoder]
            assert row["crs"] == pytest.approx(point[encoder], rel=0, abs=1e-12)
            right = [sum(plain_share(s, encoder, k) for s in scores) / 27 for k in (1, 3)]
            found = [row["p_best_enumerated"], row["p_top_3_enumerated"]]
            assert found == pytest.approx(right, rel=0, abs=1e-12)
            assert (row["n_draws_enumerated"], row["is_enumeration_agreed"]) == (27, True)
            assert row["n_tier"] == (len(tiers[0]) if tiers else None)
            assert row["is_in_tier"] == ((encoder in tiers[0]) if tiers else None)


def test_drawn_seeds_agree_with_the_enumeration_of_five(protocol: Protocol) -> None:
    case = Case(0, protocol)
    rows = analyse(case.cells, case.replicates, case.panel, protocol, encoders_of(case.active, controls=("e2",)))
    of_seeds = [row for row in rows.values() if row["resampling"] == "seed"]
    assert {(row["n_draws_enumerated"], row["is_enumeration_agreed"]) for row in of_seeds} == {(3125, True)}
    for row in of_seeds:
        for name in ("p_best", "p_top_3"):
            p = row[f"{name}_enumerated"]
            assert abs(row[name] - p) <= 4 * (p * (1 - p) / 10_000) ** 0.5


def test_disagreement_is_seen(protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 replicates that all are the draw 0, 0: steady is best in each, where it should be in half of them
    two_seeds = protocol_of(protocol, 2)

    def one_draw(*args: Any) -> Any:
        found = resampled_scores(*args)
        assert isinstance(found, Resampled)
        is_drawn = np.flatnonzero(found.values[:, 3, 0, 0] == 0.25)[:100] if args[0] == "seed" else slice(None)
        parts = [getattr(found.scores, field.name)[is_drawn] for field in dataclasses.fields(found.scores)]
        return dataclasses.replace(found, values=found.values[is_drawn], scores=Scores(*parts))

    monkeypatch.setattr("crsbench_assets.analyses.bootstrap_ranks.resampled_scores", one_draw)
    rows = analyse(CELLS, still(CELLS), freeze_cells(CELLS, two_seeds), two_seeds)
    agreed = {encoder: rows["seed", "frozen", encoder]["is_enumeration_agreed"] for encoder, _ in CELLS}
    assert agreed == {"floor": True, "copy": True, "steady": False, "swing": False}
    assert rows["seed", "frozen", "steady"]["n_replicates"] == 100


# Planted truth -------------------------------------------------------------------------------------------------------


def planted(levels: Mapping[str, float], rng: np.random.Generator, sd: float = 0.002) -> dict[Cell, Any]:
    """Return cells on two datasets around each encoder's level, with five seeds."""
    return {
        (encoder, dataset): level + rng.normal(0, sd, (4, 5))
        for encoder, level in levels.items()
        for dataset in ("near", "far")
    }


def test_three_planted_leaders_are_the_tier(protocol: Protocol) -> None:
    levels = {"lead1": 0.8, "lead2": 0.8, "lead3": 0.8, "mid": 0.7, "other": 0.65, "low": 0.6}
    cells = planted(levels, np.random.default_rng(3), sd=0.02)
    rows = analyse(cells, still(cells), freeze_cells(cells, protocol), protocol)
    for encoder in levels:
        row = rows["seed", "frozen", encoder]
        assert (row["n_tier"], row["is_in_tier"]) == (3, encoder.startswith("lead"))
        assert row["p_top_3"] == row["p_top_3_enumerated"] == float(encoder.startswith("lead"))
        assert (row["rank_hi"] <= 3) is encoder.startswith("lead")


def test_an_equal_panel_has_no_tier(protocol: Protocol) -> None:
    one = planted({"any": 0.7}, np.random.default_rng(0), sd=0.02)
    cells = {(encoder, dataset): values for (_, dataset), values in one.items() for encoder in "abcdef"}
    rows = analyse(cells, still(cells), freeze_cells(cells, protocol), protocol)
    for row in rows.values():
        assert row["p_best"] == pytest.approx(1 / 6)
        assert row["p_top_3"] == pytest.approx(0.5)
        assert (row["rank_lo"], row["rank_hi"]) == (1, 1)
        if row["resampling"] == "seed":
            assert (row["n_tier"], row["is_in_tier"], row["enumeration_reason"]) == (None, None, "no_tier")
            assert row["is_enumeration_agreed"]


def test_a_constant_winner_is_a_tier_of_one(protocol: Protocol) -> None:
    one = planted({"any": 0.7}, np.random.default_rng(0), sd=0.02)
    rest = {(encoder, dataset): values for (_, dataset), values in one.items() for encoder in "abcd"}
    cells = rest | {("winner", dataset): values + 0.1 for (_, dataset), values in one.items()}
    rows = analyse(cells, still(cells), freeze_cells(cells, protocol), protocol)
    for encoder in ("winner", *"abcd"):
        row = rows["seed", "frozen", encoder]
        is_winner = encoder == "winner"
        assert (row["n_tier"], row["is_in_tier"], row["p_best"]) == (1, is_winner, float(is_winner))
        assert row["p_best_enumerated"] == float(is_winner)
        assert row["p_top_3"] == (1.0 if is_winner else 0.5)
    without = analyse(rest, still(rest), freeze_cells(rest, protocol), protocol)
    assert {row["enumeration_reason"] for key, row in without.items() if key[0] == "seed"} == {"no_tier"}


def test_tiers_by_hand() -> None:
    assert leading_tier(np.array([[0.9, 0.8, 0.1], [0.8, 0.9, 0.1]])).tolist() == [True, True, False]  # type: ignore[union-attr]
    assert leading_tier(np.array([[0.9, 0.8, 0.1], [0.1, 0.9, 0.8]])) is None
    assert leading_tier(np.array([[0.9, 0.8, 0.8]])).tolist() == [True, False, False]  # type: ignore[union-attr]
    assert leading_tier(np.array([[0.9, 0.9, 0.9]])) is None
    assert leading_tier(np.array([[0.9, 0.5, 0.5], [0.9, 0.95, 0.5]])) is None  # a tie for the second place once
    assert leading_tier(np.array([[0.9]])) is None


# Undefined -----------------------------------------------------------------------------------------------------------


def test_two_encoders_and_one_dataset(protocol: Protocol) -> None:
    cells: dict[Cell, Any] = {("a", "near"): [[0.5] * 5] * 4, ("b", "near"): [[0.6] * 5] * 4}
    rows = analyse(cells, still(cells), freeze_cells(cells, protocol), protocol)
    for (resampling, _, encoder), row in rows.items():
        assert (row["p_best"], row["p_top_3"]) == (float(encoder == "b"), 1.0)
        if resampling == "seed":
            assert (row["n_tier"], row["is_in_tier"]) == (1, encoder == "b")
    alone = {("a", "near"): cells["a", "near"]}
    row = analyse(alone, still(alone), freeze_cells(alone, protocol), protocol)["seed", "frozen", "a"]
    # alone its axes have no range: z .5 everywhere, CRS = .5 x .5 + .3 x .5 + .2 x .5
    assert (row["crs"], row["p_best"], row["rank_hi"], row["enumeration_reason"]) == (0.5, 1.0, 1, "no_tier")


def test_who_has_no_score_has_rows_that_say_so(protocol: Protocol) -> None:
    levels = {"a": 0.6, "b": 0.7, "c": 0.8}
    members = planted(levels, np.random.default_rng(0))
    panel = freeze_cells(members, protocol)
    broken = np.full((4, 5), 0.7)
    broken[1] = np.nan
    cells = members | {("half", "near"): broken, ("away", "new"): np.full((4, 5), 0.7)}
    replicates = still(members)
    del replicates["c", "far"]
    rows = analyse(cells, replicates, panel, protocol)
    assert {key: row for key, row in rows.items() if key[0] == "seed" and key[2] in levels} == {
        key: row for key, row in analyse(members, replicates, panel, protocol).items() if key[0] == "seed"
    }
    for resampling, anchors in product(("seed", "test", "seed_test"), ("frozen", "recomputed")):
        for encoder, reason in (("half", "incomplete"), ("away", "no_anchor")):
            row = rows[resampling, anchors, encoder]
            assert (row["reason"], row["crs"], row["p_best"], row["n_replicates"]) == (reason, None, None, 0)
        row = rows[resampling, anchors, "c"]
        if resampling != "seed":
            assert (row["reason"], row["p_best"], row["rank_lo"], row["n_replicates"]) == (
                "no_replicates",
                None,
                None,
                0,
            )
            assert row["crs"] == rows["seed", "frozen", "c"]["crs"]
            assert rows[resampling, anchors, "b"]["p_best"] == 1.0  # among those with replicates


def test_without_replicates_of_test_groups(protocol: Protocol) -> None:
    cells = planted({"a": 0.6, "b": 0.7}, np.random.default_rng(0))
    rows = analyse(cells, {}, freeze_cells(cells, protocol), protocol)
    for (resampling, _, _), row in rows.items():
        assert row["reason"] == (None if resampling == "seed" else "no_replicates")
        assert row["crs"] is not None


def test_one_seed_and_eight(protocol: Protocol) -> None:
    one = protocol_of(protocol, 1)
    cells: dict[Cell, Any] = {("a", "near"): every_axis(0.5), ("b", "near"): every_axis(0.6)}
    rows = analyse(cells, still(cells), freeze_cells(cells, one), one)
    for (resampling, _, _), row in rows.items():
        assert row["reason"] == (None if resampling == "test" else "one_seed")
        assert row["enumeration_reason"] == ("one_seed" if resampling == "seed" else "not_enumerated")
    eight = protocol_of(protocol, 8)
    cells = {cell: [[values[0][0]] * 8] * 4 for cell, values in cells.items()}
    rows = analyse(cells, still(cells), freeze_cells(cells, eight), eight)
    row = rows["seed", "frozen", "b"]
    assert (row["p_best"], row["n_draws_enumerated"], row["enumeration_reason"]) == (1.0, None, "not_enumerated")


def test_nobody_is_there(protocol: Protocol) -> None:
    panel = freeze_cells(CELLS, protocol_of(protocol, 2))
    assert analyse(CELLS, {}, panel, protocol_of(protocol, 2), encoders_of(CELLS).clear()) == {}
