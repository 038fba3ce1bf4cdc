from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

from crsbench_assets.analyses.mimic_transfer import mimic_transfer
from crsbench_assets.analyses.transfer import transfer
from crsbench_assets.config.protocol import AXES
from crsbench_assets.scores.panel import Panel
from crsbench_assets_tests.analyses.plain_score import RULES, Cells, panel_from, plain_crs, random_cells
from crsbench_assets_tests.tables.rows import written

Aurocs = Mapping[str, tuple[float | None, float | None, str | None]]
"""Encoder -> macro AUROC at the shift target and at the source, and why one is missing."""

DATASETS = pl.DataFrame({"dataset_id": ["d0", "d1", "d2"], "shift_id": [None, "other", None]})


def shift_frame(aurocs: Aurocs, dataset: str = "d1") -> pl.DataFrame:
    names = ("encoder_id", "dataset_id", "shift_id", "shift_macro_auroc", "source_macro_auroc", "reason")
    schema = dict.fromkeys(names, pl.String) | {"shift_macro_auroc": pl.Float64, "source_macro_auroc": pl.Float64}
    return pl.DataFrame([(e, dataset, "other", *values) for e, values in aurocs.items()], schema=schema, orient="row")


def axes_frame(robustness: Mapping[tuple[str, str], float | None], reason: str | None = None) -> pl.DataFrame:
    rows = [(*cell, "robustness", "corruption_only", value, reason) for cell, value in robustness.items()]
    rows += [(*cell, "robustness", "primary", 0.123, None) for cell in robustness]
    rows += [(*cell, "calibration", "corruption_only", 0.321, None) for cell in robustness]
    names = ("encoder_id", "dataset_id", "axis", "variant", "value", "reason")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String) | {"value": pl.Float64}, orient="row")


def analyse(aurocs: Aurocs, axes: pl.DataFrame, panel: Panel) -> dict[str, dict[str, Any]]:
    found = mimic_transfer(shift_frame(aurocs), axes, DATASETS, panel, RULES)
    written(found, "mimic_transfer")
    return {row["target"]: row for row in found.to_dicts()}


# Equal axes, so the score orders like the value. Frozen robustness is upside down; corruption-only puts it right.
#
#        D = C = L    R frozen    R corruption_only    shift    source
#   a    1            0           1                    .8       .9
#   b    .5           .25         .5                   .9       .8       shift: b a c d, sum d^2 = 2, rho = .8
#   c    .25          .5          .25                  .7       .7       source: a b c d, rho = 1
#   d    0            1           0                    .6       .6
HAND: Cells = {
    "a": {"d1": [1.0, 1.0, 1.0, 0.0]},
    "b": {"d1": [0.5, 0.5, 0.5, 0.25]},
    "c": {"d1": [0.25, 0.25, 0.25, 0.5]},
    "d": {"d1": [0.0, 0.0, 0.0, 1.0]},
}
ROBUSTNESS = {("a", "d1"): 1.0, ("b", "d1"): 0.5, ("c", "d1"): 0.25, ("d", "d1"): 0.0}
AUROCS: Aurocs = {"a": (0.8, 0.9, None), "b": (0.9, 0.8, None), "c": (0.7, 0.7, None), "d": (0.6, 0.6, None)}


def test_four_members_by_hand() -> None:
    rows = analyse(AUROCS, axes_frame(ROBUSTNESS), panel_from(HAND))
    assert list(rows) == ["shift", "source"]
    shift, source = rows["shift"], rows["source"]
    assert (shift["dataset_id"], shift["shift_id"], shift["n_encoders"]) == ("d1", "other", 4)
    assert shift["spearman"] == pytest.approx(0.8, abs=1e-15)
    assert (shift["top_3_overlap"], shift["is_winner_recovered"], shift["reason"]) == (1.0, False, None)
    assert source["spearman"] == pytest.approx(1.0, abs=1e-15)
    assert (source["is_winner_recovered"], source["reason"]) == (True, "perfect_correlation")


@pytest.mark.parametrize("seed", range(10))
def test_agrees_with_plain_python(seed: int) -> None:
    draw = random.Random(seed)
    cells = random_cells(seed, 4 + seed)
    robustness = {(e, d): round(draw.random(), 2) for e, own in cells.items() for d in own}
    drawn = {e: (draw.random(), draw.random()) for e, own in cells.items() if "d1" in own}
    aurocs: Aurocs = {encoder: (*values, None) for encoder, values in drawn.items()}
    replaced = {e: {d: [*v[:3], robustness[e, d]] for d, v in own.items()} for e, own in cells.items()}
    assert AXES[3] == "robustness"
    crs = plain_crs(replaced)
    for position, target in enumerate(("shift", "source")):
        row = analyse(aurocs, axes_frame(robustness), panel_from(cells))[target]
        right = transfer([round(crs[e], 12) for e in drawn], [values[position] for values in drawn.values()])
        for name, value in right._asdict().items():
            assert row[name] == (value if name == "reason" else pytest.approx(value, abs=1e-12)), name


def test_who_is_no_member_and_the_order_move_nothing() -> None:
    axes, panel = axes_frame(ROBUSTNESS), panel_from(HAND)
    rows = analyse(AUROCS, axes, panel)
    more = {**AUROCS, "late": (0.99, 0.99, None), "untrained": (None, None, "missing_seed")}
    late = axes_frame({**ROBUSTNESS, ("late", "d1"): 1.0})
    assert analyse(dict(reversed(more.items())), late.reverse(), panel) == rows


def test_names_move_nothing() -> None:
    names = dict(zip("abcd", "zyxw", strict=True))
    renamed = analyse(
        {names[e]: values for e, values in AUROCS.items()},
        axes_frame({(names[e], d): value for (e, d), value in ROBUSTNESS.items()}),
        panel_from({names[e]: own for e, own in HAND.items()}),
    )
    for target, row in analyse(AUROCS, axes_frame(ROBUSTNESS), panel_from(HAND)).items():
        for name in ("spearman", "spearman_ci_low", "top_3_overlap", "is_winner_recovered"):
            assert renamed[target][name] == pytest.approx(row[name], abs=1e-12)


def test_no_access_to_the_shift_target() -> None:
    closed: Aurocs = dict.fromkeys(AUROCS, (None, 0.8, "no_access"))
    rows = analyse(closed, axes_frame(ROBUSTNESS), panel_from(HAND))
    assert (rows["shift"]["spearman"], rows["shift"]["reason"]) == (None, "no_access")
    assert rows["shift"]["n_encoders"] == 4
    assert rows["source"]["reason"] == "no_spread"
    nothing = analyse({}, axes_frame(ROBUSTNESS), panel_from(HAND))
    assert {row["reason"] for row in nothing.values()} == {"incomplete"}


def test_a_missing_value_is_nobodys_transfer() -> None:
    lacking: Aurocs = {**AUROCS, "b": (None, 0.8, "missing_seed"), "c": (None, 0.7, "no_access")}
    rows = analyse(lacking, axes_frame(ROBUSTNESS), panel_from(HAND))
    assert (rows["shift"]["reason"], rows["source"]["reason"]) == ("incomplete", "perfect_correlation")
    unmeasured = axes_frame(dict.fromkeys(ROBUSTNESS), "missing_seed")
    rows = analyse(AUROCS, unmeasured, panel_from(HAND))
    assert {(row["n_encoders"], row["spearman"], row["reason"]) for row in rows.values()} == {(4, None, "missing_seed")}


def test_without_a_shift_target_there_is_nothing_to_foretell() -> None:
    panel = panel_from({encoder: {"d0": own["d1"]} for encoder, own in HAND.items()})
    assert analyse(AUROCS, axes_frame({(e, "d0"): 0.5 for e in HAND}), panel) == {}


def test_two_members() -> None:
    two = {encoder: HAND[encoder] for encoder in "ab"}
    rows = analyse(AUROCS, axes_frame(ROBUSTNESS), panel_from(two))
    assert {(row["n_encoders"], row["spearman"], row["reason"]) for row in rows.values()} == {
        (2, None, "too_few_units")
    }
