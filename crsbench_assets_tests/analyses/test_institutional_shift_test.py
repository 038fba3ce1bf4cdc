from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from crsbench_assets.analyses.institutional_shift_test import institutional_shift_test
from crsbench_assets.scores.panel import Panel
from crsbench_assets.tables.registry import TABLES
from crsbench_assets_tests.analyses.conftest import panel_of
from crsbench_assets_tests.tables.rows import written

Card = tuple[str | None, str | None]
Values = Mapping[str, tuple[float | None, float | None]]
"""Encoder -> shift macro AUROC, relative gap, on the dataset cxr."""

# encoder  category        family   AUROC abroad, gap
CARDS: dict[str, Card] = {
    "broad": ("broad_medical", "red"),  # .8   .1
    "skin": ("specialty", "red"),  #       .6   .1
    "chest": ("specialty", None),  #       .9   .1
    "plain": ("generalist", "red"),  #     .5   .2
    "other": ("generalist", "blue"),  #    .6   .3
    "odd": (None, "blue"),  #              .1   .9
}
VALUES: Values = {
    "broad": (0.8, 0.1),
    "skin": (0.6, 0.1),
    "chest": (0.9, 0.1),
    "plain": (0.5, 0.2),
    "other": (0.6, 0.3),
    "odd": (0.1, 0.9),
}


def analyse(
    values: Values, cards: Mapping[str, Card] = CARDS, panel: Panel | None = None
) -> dict[tuple[str, str], dict[str, Any]]:
    schema = {"encoder_id": pl.String, "dataset_id": pl.String, "shift_id": pl.String}
    shifts = pl.DataFrame(
        [(encoder, "cxr", "abroad", *pair) for encoder, pair in values.items()],
        schema={**schema, "shift_macro_auroc": pl.Float64, "relative_gap": pl.Float64},
        orient="row",
    )
    encoders = pl.DataFrame(
        [(encoder, *card) for encoder, card in cards.items()],
        schema={"encoder_id": pl.String, "category": pl.String, "family": pl.String},
        orient="row",
    )
    panel = panel or panel_of({encoder: ["cxr", "derm"] for encoder in values})
    found = institutional_shift_test(shifts, encoders, panel)
    written(found, "institutional_shift_test")
    assert found.height == 4
    assert set(found.get_column("dataset_id")) == {"cxr"}
    return {(row["quantity"], row["unit"]): row for row in found.to_dicts()}


def test_every_number_by_hand() -> None:
    row = analyse(VALUES)["shift_macro_auroc", "encoder"]
    # medical .8 .6 .9: mean 23/30, deviations 1/30 -5/30 4/30, variance 42/900/2 = 7/300
    # generalist .5 .6: mean .55, variance .005
    # squared errors 7/900 + .005/2 = 37/3600; df = (37/3600)^2 / ((7/900)^2 / 2 + (9/3600)^2 / 1)
    difference, error = 13 / 60, math.sqrt(37 / 3600)
    assert (row["n_medical"], row["n_generalist"], row["reason"]) == (3, 2, None)
    assert (row["mean_medical"], row["mean_generalist"]) == pytest.approx((23 / 30, 0.55), abs=1e-12)
    assert (row["sd_medical"], row["sd_generalist"]) == pytest.approx((math.sqrt(7 / 300), math.sqrt(0.005)), abs=1e-12)
    assert row["difference"] == pytest.approx(difference, abs=1e-12)
    assert row["welch_t"] == pytest.approx(difference / error, abs=1e-12)
    assert row["welch_df"] == pytest.approx((37 / 3600) ** 2 / ((7 / 900) ** 2 / 2 + (9 / 3600) ** 2), abs=1e-12)
    # pooled variance (14/300 + .005) / 3; 3 degrees of freedom: J = sqrt(pi) / 2 / sqrt(1.5)
    g = difference / math.sqrt((14 / 300 + 0.005) / 3) * math.sqrt(math.pi) / 2 / math.sqrt(1.5)
    assert row["hedges_g"] == pytest.approx(g, abs=1e-12)
    # pooled .5 .6 .6 .8 .9; of the 10 pairs of two generalists .5 with either .6 lies 13/60 off, and .8 with .9 17/60
    assert row["p_permutation"] == pytest.approx(3 / 10, abs=1e-12)


def test_a_family_is_one_unit_of_each_group() -> None:
    rows = analyse(VALUES)
    row = rows["shift_macro_auroc", "family"]
    # red among the medical: (.8 + .6) / 2 = .7, chest alone .9; both generalists stay: red has one in each group
    assert (row["n_medical"], row["n_generalist"]) == (2, 2)
    assert (row["mean_medical"], row["sd_medical"]) == pytest.approx((0.8, math.sqrt(0.02)), abs=1e-12)
    assert row["mean_generalist"] == pytest.approx(0.55, abs=1e-12)
    alone = {encoder: (category, None) for encoder, (category, _) in CARDS.items()}
    rows = analyse(VALUES, alone)
    for quantity in ("shift_macro_auroc", "relative_gap"):
        assert rows[quantity, "family"] | {"unit": ""} == rows[quantity, "encoder"] | {"unit": ""}


def random_panel(seed: int) -> tuple[dict[str, tuple[float, float]], dict[str, Card]]:
    draw = random.Random(seed)
    names = ["generalist", "broad_medical", "specialty", None]
    cards: dict[str, Card] = {
        f"e{i:02}": (draw.choices(names, [4, 3, 3, 1])[0], draw.choice(["red", "blue", "green", None]))
        for i in range(draw.randint(6, 15))
    }
    return {encoder: (draw.random(), draw.uniform(-0.2, 0.4)) for encoder in cards}, cards


def plain_units(values: Mapping[str, float], cards: Mapping[str, Card], wanted: set[str], unit: str) -> list[float]:
    own = [encoder for encoder in sorted(values) if cards[encoder][0] in wanted]
    if unit == "encoder":
        return [values[encoder] for encoder in own]
    units: dict[str, list[float]] = {}
    for encoder in own:
        units.setdefault(cards[encoder][1] or f"only {encoder}", []).append(values[encoder])
    return [sum(part) / len(part) for part in units.values()]


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_scipy(seed: int) -> None:
    values, cards = random_panel(seed)
    for (quantity, unit), row in analyse(values, cards).items():
        of_quantity = {encoder: pair[quantity == "relative_gap"] for encoder, pair in values.items()}
        medical = plain_units(of_quantity, cards, {"broad_medical", "specialty"}, unit)
        generalist = plain_units(of_quantity, cards, {"generalist"}, unit)
        assert (row["n_medical"], row["n_generalist"]) == (len(medical), len(generalist))
        if min(len(medical), len(generalist)) < 2:
            assert row["reason"] in ("empty_group", "too_few_units")
            continue
        right = stats.ttest_ind(medical, generalist, equal_var=False)
        assert (row["welch_t"], row["p_welch"]) == pytest.approx((right.statistic, right.pvalue), abs=1e-12)
        assert row["welch_df"] == pytest.approx(right.df, abs=1e-12)
        assert (row["sd_medical"], row["sd_generalist"]) == pytest.approx(
            (statistics.stdev(medical), statistics.stdev(generalist)), abs=1e-12
        )
        exact = stats.permutation_test(
            (medical, generalist),
            lambda x, y, axis: abs(np.mean(x, axis=axis) - np.mean(y, axis=axis)),
            n_resamples=np.inf,
            alternative="greater",
            vectorized=True,
        )
        assert row["p_permutation"] == pytest.approx(exact.pvalue, abs=1e-12)


def test_order_and_names_of_encoders_move_nothing() -> None:
    values, cards = random_panel(5)
    rows = analyse(values, cards)
    assert analyse(dict(reversed(values.items())), dict(reversed(cards.items()))) == rows
    names = {encoder: f"x{len(cards) - i:02}" for i, encoder in enumerate(cards)}
    renamed = analyse({names[e]: pair for e, pair in values.items()}, {names[e]: card for e, card in cards.items()})
    for key, row in renamed.items():
        for name, value in row.items():
            if name != "panel_id":
                right = rows[key][name]
                assert value == (pytest.approx(right, abs=1e-12) if isinstance(right, float) else right)


def test_who_is_no_member_moves_nothing() -> None:
    panel = panel_of({encoder: ["cxr", "derm"] for encoder in VALUES})
    late = {**VALUES, "late": (0.99, -0.5), "untrained": (0.5, 0.0)}
    cards = CARDS | {"late": ("specialty", "red"), "untrained": (None, None)}
    assert analyse(late, cards, panel) == analyse(VALUES, CARDS, panel)


def test_what_is_undefined() -> None:
    rows = analyse({**VALUES, "skin": (None, None)})
    for row in rows.values():
        assert (row["mean_medical"], row["p_welch"], row["p_permutation"], row["reason"]) == (
            None,
            None,
            None,
            "incomplete",
        )
    assert rows["relative_gap", "encoder"]["n_medical"] == 3
    missing = analyse(
        {name: pair for name, pair in VALUES.items() if name != "skin"},
        panel=panel_of({name: ["cxr", "derm"] for name in VALUES}),
    )
    assert {row["reason"] for row in missing.values()} == {"incomplete"}
    # a member that is in neither group is not needed
    assert analyse({**VALUES, "odd": (None, None)})["relative_gap", "encoder"]["reason"] is None


def test_a_member_without_a_card_could_be_of_either_group() -> None:
    rows = analyse(VALUES, {name: card for name, card in CARDS.items() if name != "skin"})
    assert {(row["reason"], row["p_welch"], row["mean_generalist"]) for row in rows.values()} == {
        ("incomplete", None, None)
    }


def test_small_and_equal_groups() -> None:
    flat = analyse(VALUES)["relative_gap", "encoder"]  # the medical agree, the generalists do not
    assert flat["reason"] is None
    assert flat["sd_medical"] == 0
    pair = {name: VALUES[name] for name in ("chest", "plain")}
    row = analyse(pair)["shift_macro_auroc", "encoder"]
    assert row["difference"] == pytest.approx(0.4)
    assert (row["sd_medical"], row["welch_t"], row["hedges_g"], row["reason"]) == (None, None, None, "too_few_units")
    assert row["p_permutation"] == 1.0
    medical = {name: VALUES[name] for name in ("broad", "skin", "chest")}
    row = analyse(medical)["shift_macro_auroc", "encoder"]
    assert (row["n_generalist"], row["mean_generalist"], row["difference"], row["reason"]) == (
        0,
        None,
        None,
        "empty_group",
    )
    assert row["mean_medical"] == pytest.approx(23 / 30)
    equal = analyse(dict.fromkeys(CARDS, (0.7, 0.1)))["shift_macro_auroc", "encoder"]
    assert (equal["difference"], equal["welch_t"], equal["hedges_g"]) == (0.0, None, None)
    assert (equal["p_permutation"], equal["reason"]) == (1.0, "no_spread")


def test_no_shift_target_gives_no_rows() -> None:
    empty = TABLES["institutional_shift"].empty()
    encoders = pl.DataFrame({"encoder_id": ["a"], "category": ["generalist"], "family": ["red"]})
    assert institutional_shift_test(empty, encoders, panel_of({"a": ["derm"]})).is_empty()
