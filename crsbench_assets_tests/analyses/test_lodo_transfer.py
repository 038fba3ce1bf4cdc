from __future__ import annotations

from typing import Any

import pytest

from crsbench_assets.analyses.lodo_transfer import lodo_transfer
from crsbench_assets.analyses.transfer import transfer
from crsbench_assets_tests.analyses.plain_score import (
    RULES,
    Cells,
    panel_from,
    plain_anchors,
    plain_crs,
    random_cells,
)
from crsbench_assets_tests.tables.rows import written

STATISTICS = (
    "spearman",
    "spearman_ci_low",
    "spearman_ci_high",
    "spearman_chance_p95",
    "top_3_overlap",
    "top_3_overlap_chance",
    "is_winner_recovered",
)


def analyse(cells: Cells) -> dict[str, dict[str, Any]]:
    found = lodo_transfer(panel_from(cells), RULES)
    written(found, "lodo_transfer")
    return {row["dataset_id"]: row for row in found.to_dicts()}


# All four axes are equal, so a position is the score: P rises with it, B and W are it. The order is that of the value.
#
#              near   far           far held out: a b c d against b a d c: sum d^2 = 4, rho = 1 - 24 / 60 = .6
#   a          1      .75           top 3: a b c against b a d, 2 / 3; first: a against b
#   b          .5     1
#   c          .25    0
#   d          0      .5
HAND: Cells = {
    "a": {"near": [1.0] * 4, "far": [0.75] * 4},
    "b": {"near": [0.5] * 4, "far": [1.0] * 4},
    "c": {"near": [0.25] * 4, "far": [0.0] * 4},
    "d": {"near": [0.0] * 4, "far": [0.5] * 4},
}


def test_four_members_by_hand() -> None:
    rows = analyse(HAND)
    assert list(rows) == ["far", "near"]
    for row in rows.values():
        assert row["n_encoders"] == 4
        assert row["spearman"] == pytest.approx(0.6, abs=1e-15)
        assert row["spearman_chance_p95"] == pytest.approx(0.8, abs=1e-15)
        assert (row["top_3_overlap"], row["top_3_overlap_chance"]) == pytest.approx((2 / 3, 3 / 4), abs=1e-15)
        assert (row["is_winner_recovered"], row["reason"]) == (False, None)


def test_anchors_of_the_others_are_those_of_all_their_members() -> None:
    # e has no cell on far, and on near it leads by far on discrimination alone. So with far held out the others stand
    # low on that axis, and P is taken without e.
    cells: Cells = {
        "a": {"near": [0.6, 0.0, 0.0, 0.0], "far": [1.0] * 4},
        "b": {"near": [0.0, 0.3, 0.3, 0.3], "far": [0.75] * 4},
        "c": {"near": [0.5, 0.1, 0.1, 0.1], "far": [0.5] * 4},
        "d": {"near": [0.1, 0.2, 0.2, 0.2], "far": [0.0] * 4},
        "e": {"near": [9.0, 0.0, 0.0, 0.0]},
    }
    near = {encoder: {"near": own["near"]} for encoder, own in cells.items()}
    compared = {encoder: own for encoder, own in near.items() if encoder != "e"}
    with_e, without_e = (plain_crs(compared, anchors=plain_anchors(of)) for of in (near, compared))
    assert sorted(with_e, key=with_e.__getitem__) != sorted(without_e, key=without_e.__getitem__)
    row = analyse(cells)["far"]
    found = [4.0, 3.0, 2.0, 1.0]  # by the equal axes of far
    assert row["n_encoders"] == 4
    assert row["spearman"] == pytest.approx(transfer([with_e[e] for e in "abcd"], found).spearman, abs=1e-12)
    assert row["spearman"] != pytest.approx(transfer([without_e[e] for e in "abcd"], found).spearman, abs=1e-3)


def test_held_out_order_is_that_of_the_published_cells() -> None:
    # e has a cell on far alone: it is not compared, but it is a member there, and its discrimination sets the anchor.
    cells: Cells = {
        "a": {"far": [0.6, 0.0, 0.0, 0.0], "near": [1.0] * 4},
        "b": {"far": [0.0, 0.3, 0.3, 0.3], "near": [0.75] * 4},
        "c": {"far": [0.5, 0.1, 0.1, 0.1], "near": [0.5] * 4},
        "d": {"far": [0.1, 0.2, 0.2, 0.2], "near": [0.0] * 4},
        "e": {"far": [9.0, 0.0, 0.0, 0.0]},
    }
    far = {encoder: {"far": own["far"]} for encoder, own in cells.items()}
    published, without_e = plain_crs(far), plain_crs({encoder: own for encoder, own in far.items() if encoder != "e"})
    row = analyse(cells)["far"]
    foretold = [4.0, 3.0, 2.0, 1.0]  # by the equal axes of near
    assert row["n_encoders"] == 4
    assert row["spearman"] == pytest.approx(transfer(foretold, [published[e] for e in "abcd"]).spearman, abs=1e-12)
    assert row["spearman"] != pytest.approx(transfer(foretold, [without_e[e] for e in "abcd"]).spearman, abs=1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_plain_python(seed: int) -> None:
    cells = random_cells(seed, 3 + seed % 10)
    rows = analyse(cells)
    assert list(rows) == sorted({dataset for own in cells.values() for dataset in own})
    for held_out, row in rows.items():
        compared = [encoder for encoder, own in cells.items() if held_out in own and len(own) > 1]
        others = {e: {d: v for d, v in own.items() if d != held_out} for e, own in cells.items()}
        of_compared = {encoder: others[encoder] for encoder in compared}
        foretold = plain_crs(of_compared, anchors=plain_anchors(others)) if compared else {}
        found = plain_crs({e: {held_out: own[held_out]} for e, own in cells.items() if held_out in own})
        right = transfer([round(foretold[e], 12) for e in compared], [round(found[e], 12) for e in compared])
        assert row["n_encoders"] == len(compared)
        for name in STATISTICS:
            assert row[name] == pytest.approx(getattr(right, name), abs=1e-12), (held_out, name)
        assert row["reason"] == (right.reason if compared else "no_other_dataset")


def test_order_and_names_of_encoders_move_nothing() -> None:
    cells = random_cells(3, 8)
    rows = analyse(cells)
    assert panel_from(dict(reversed(cells.items()))) == panel_from(cells)
    renamed = analyse({f"x{9 - int(encoder[1:])}": own for encoder, own in cells.items()})
    for dataset, row in rows.items():
        for name in STATISTICS:
            assert renamed[dataset][name] == pytest.approx(row[name], abs=1e-12)


def test_one_dataset_foretells_nothing() -> None:
    row = analyse({encoder: {"near": own["near"]} for encoder, own in HAND.items()})["near"]
    assert (row["n_encoders"], row["spearman"], row["reason"]) == (0, None, "no_other_dataset")
    apart = analyse({"a": {"near": [1.0] * 4}, "b": {"far": [1.0] * 4}})
    assert {row["reason"] for row in apart.values()} == {"no_other_dataset"}


def test_few_and_equal_members() -> None:
    two = analyse({encoder: HAND[encoder] for encoder in "ab"})
    assert {(row["n_encoders"], row["spearman"], row["reason"]) for row in two.values()} == {(2, None, "too_few_units")}
    equal = analyse(dict.fromkeys("abcde", HAND["a"]))
    for row in equal.values():
        assert (row["spearman"], row["is_winner_recovered"], row["reason"]) == (None, None, "no_spread")
        assert row["n_encoders"] == 5
