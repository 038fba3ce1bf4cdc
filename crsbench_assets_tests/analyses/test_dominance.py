from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from crsbench_assets.analyses.dominance import dominance
from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.config.registry import load_protocol
from crsbench_assets.scores.panel import Panel
from crsbench_assets_tests.scores.replicates import (
    Case,
    Cell,
    cell_axes_frame,
    encoders_of,
    freeze_cells,
    replicates_frame,
)
from crsbench_assets_tests.tables.rows import written


@pytest.fixture(scope="module")
def protocol() -> Protocol:
    return load_protocol("crs-1", Path())


def analyse(
    cells: Mapping[Cell, Any],
    replicates: Mapping[Cell, Any],
    panel: Panel,
    protocol: Protocol,
    encoders: pl.DataFrame | None = None,
) -> dict[tuple[str, str], dict[str, Any]]:
    encoders = encoders_of(cells) if encoders is None else encoders
    found = dominance(cell_axes_frame(cells), replicates_frame(replicates), encoders, panel, protocol)
    written(found, "dominance")
    assert found.rows() == found.sort("encoder_id", "other_encoder_id").rows()
    return {(row["encoder_id"], row["other_encoder_id"]): row for row in found.to_dicts()}


# Axis values D C L R of all five seeds, and in 20 replicates, of which the first differ:
#
#   top     .8 .8 .8 .8
#   mid     .7 .7 .7 .7     D .9 in replicate 0, so top dominates it in 19 of 20: .95, established
#   twin    .7 .7 .7 .7     D .9 in replicates 0 and 1: .9
#   odd     .9 .5 .6 .6     neither dominates nor is dominated, for D is best
VALUES = {"top": (0.8,) * 4, "mid": (0.7,) * 4, "twin": (0.7,) * 4, "odd": (0.9, 0.5, 0.6, 0.6)}
CELLS: dict[Cell, Any] = {(e, "near"): np.repeat(np.array(v)[:, None], 5, axis=1) for e, v in VALUES.items()}


def hand_replicates() -> dict[Cell, Any]:
    replicates = {cell: np.tile(values, (20, 1, 1)) for cell, values in CELLS.items()}
    replicates["mid", "near"][:1, 0] = 0.9
    replicates["twin", "near"][:2, 0] = 0.9
    return replicates


def test_every_pair_by_hand(protocol: Protocol) -> None:
    rows = analyse(CELLS, hand_replicates(), freeze_cells(CELLS, protocol), protocol)
    assert len(rows) == 12
    right = {
        ("top", "mid"): (True, 0.95, True),
        ("top", "twin"): (True, 0.9, False),
        ("twin", "mid"): (False, 0.05, False),  # better in replicate 1, equal in the others
        # D .9 of mid ties with that of odd in replicate 0, and the other axes are better
        ("mid", "odd"): (False, 0.05, False),
        ("twin", "odd"): (False, 0.1, False),
    }
    for pair, row in rows.items():
        found = (row["is_dominating"], row["p_dominates"], row["is_established"])
        assert found == right.get(pair, (False, 0.0, False)), pair
        assert row["reason"] is None


def test_agrees_with_plain_python(protocol: Protocol) -> None:
    assert sum(n_dominated_in_plain_python(seed, protocol) for seed in range(8)) > 5


def n_dominated_in_plain_python(seed: int, protocol: Protocol) -> int:
    """Compare every pair of a random panel, and return how many ever dominate."""
    case = Case(seed, protocol)
    encoders = encoders_of(case.active, controls=("e2",))
    rows = analyse(case.cells, case.replicates, case.panel, protocol, encoders)
    names = sorted({encoder for encoder, _ in case.active} - {"e2"})
    assert list(rows) == [(i, j) for i in names for j in names if i != j]

    def profile(encoder: str, r: int | None, drawn: list[int]) -> list[float]:
        own = {dataset: values for (e, dataset), values in case.active.items() if e == encoder}
        means = []
        for k, axis in enumerate(AXES):
            z = []
            for dataset, of_seeds in own.items():
                value = 0.0
                for seed in drawn:
                    point = float(of_seeds[k, seed])
                    replicate = point if r is None else float(case.replicates[encoder, dataset][r, k, seed])
                    value += (2 * point - replicate if axis == "calibration" else replicate) / len(drawn)
                anchor = case.panel.anchors[dataset][axis]
                value = min(max(value, 0.0), 1.0) if axis == "calibration" else value
                span = anchor.high - anchor.low
                z.append((value - anchor.low) / span if span > 1e-12 else 0.5)
            means.append(sum(z) / len(z))
        return means

    def dominates(one: list[float], other: list[float]) -> bool:
        return all(a >= b for a, b in zip(one, other, strict=True)) and one != other

    point = {encoder: profile(encoder, None, [0, 1, 2, 3, 4]) for encoder in names}
    replicates = [{e: profile(e, r, drawn) for e in names} for r, drawn in enumerate(case.draws("seed_test"))]
    for (i, j), row in rows.items():
        assert row["is_dominating"] is dominates(point[i], point[j])
        share = sum(dominates(of[i], of[j]) for of in replicates) / len(replicates)
        assert row["p_dominates"] == pytest.approx(share, rel=0, abs=1e-12)
        assert row["is_established"] is (row["p_dominates"] >= 0.95)
    return sum(row["p_dominates"] > 0 for row in rows.values())


def test_order_and_names_move_nothing(protocol: Protocol) -> None:
    replicates = hand_replicates()
    panel = freeze_cells(CELLS, protocol)
    rows = analyse(CELLS, replicates, panel, protocol)
    turned = dict(reversed(CELLS.items()))
    assert analyse(turned, dict(reversed(replicates.items())), panel, protocol) == rows
    names = {"top": "a", "mid": "z", "twin": "b", "odd": "k"}

    def renamed(cells: Mapping[Cell, Any]) -> dict[Cell, Any]:
        return {(names[encoder], dataset): values for (encoder, dataset), values in cells.items()}

    found = analyse(renamed(CELLS), renamed(replicates), freeze_cells(renamed(CELLS), protocol), protocol)
    for (i, j), row in rows.items():
        other = found[names[i], names[j]]
        assert (row["is_dominating"], row["p_dominates"]) == (other["is_dominating"], other["p_dominates"])


def test_equal_encoders_do_not_dominate_each_other(protocol: Protocol) -> None:
    case = Case(1, protocol)
    own = {dataset: values for (encoder, dataset), values in case.active.items() if encoder == "e3"}
    twins = {(encoder, dataset): values for encoder in ("t1", "t2") for dataset, values in own.items()}
    replicates = case.replicates | {(e, dataset): case.replicates["e3", dataset] for e, dataset in twins}
    encoders = encoders_of(case.active | twins, controls=("e2",))
    rows = analyse(case.cells | twins, replicates, case.panel, protocol, encoders)
    for pair in (("t1", "t2"), ("t2", "t1"), ("e3", "t1"), ("t2", "e3")):
        assert (rows[pair]["is_dominating"], rows[pair]["p_dominates"]) == (False, 0.0)


def test_who_has_no_replicates_or_no_score(protocol: Protocol) -> None:
    replicates = hand_replicates()
    del replicates["twin", "near"]
    panel = freeze_cells(CELLS, protocol)
    cells = CELLS | {("away", "new"): CELLS["top", "near"], ("null", "near"): CELLS["top", "near"]}
    rows = analyse(cells, replicates, panel, protocol, encoders_of(cells, controls=("null",)))
    assert {name for pair in rows for name in pair} == set(VALUES)
    for pair, row in rows.items():
        assert row["reason"] == ("no_replicates" if "twin" in pair else None)
        assert (row["p_dominates"] is None) is (row["is_established"] is None) is ("twin" in pair)
    assert rows["top", "twin"]["is_dominating"] is True
    nothing = analyse(CELLS, {}, panel, protocol)
    assert {row["reason"] for row in nothing.values()} == {"no_replicates"}
    assert nothing["top", "mid"]["is_dominating"] is True


def test_two_encoders_one_and_none(protocol: Protocol) -> None:
    cells = {cell: values for cell, values in CELLS.items() if cell[0] in ("top", "mid")}
    rows = analyse(cells, hand_replicates(), freeze_cells(cells, protocol), protocol)
    assert {pair: row["p_dominates"] for pair, row in rows.items()} == {("mid", "top"): 0.0, ("top", "mid"): 0.95}
    alone = {("top", "near"): CELLS["top", "near"]}
    panel = freeze_cells(alone, protocol)
    assert analyse(alone, hand_replicates(), panel, protocol) == {}
    assert analyse(alone, {}, panel, protocol, encoders_of(alone).clear()) == {}
