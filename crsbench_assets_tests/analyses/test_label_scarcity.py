from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest
from scipy import stats

from crsbench_assets.analyses.label_scarcity import label_scarcity
from crsbench_assets.scores.panel import Panel
from crsbench_assets_tests.analyses.conftest import panel_of
from crsbench_assets_tests.tables.rows import written

FRACTIONS = (0.01, 0.1, 1.0)
Curves = Mapping[tuple[str, str], Sequence[float | None]]
"""(encoder, dataset) -> macro AUROC at the three fractions."""

# Macro AUROC at 1 %, 10 % and all labels, and the change from all labels to 1 %.
#
#   encoder  category        near: .01   .1    1      change     far: .01   .1    1
#   gen1     generalist            .60   .70   .80    -.20            .5    .6    .7
#   gen2     generalist            .50   .70   .80    -.30            .5    .6    .7
#   med1     broad_medical         .80   .85   .90    -.10            .6    .7    .9
#   med2     broad_medical         .70   .80   .90    -.20            .6    .7    .9
#   skin     specialty             .75   .80   .85    -.10            -
#
#   near, 1 %      means               difference   at all labels   interaction
#   broad_medical  .75 - .55           .20          .90 - .80       .10
#   specialty      .75 - .55           .20          .85 - .80       .15
#   medical        .75 - .55           .20          .88333 - .80    .116667
CATEGORIES = {
    "gen1": "generalist",
    "gen2": "generalist",
    "med1": "broad_medical",
    "med2": "broad_medical",
    "skin": "specialty",
}
CURVES: Curves = {
    ("gen1", "near"): (0.60, 0.70, 0.80),
    ("gen2", "near"): (0.50, 0.70, 0.80),
    ("med1", "near"): (0.80, 0.85, 0.90),
    ("med2", "near"): (0.70, 0.80, 0.90),
    ("skin", "near"): (0.75, 0.80, 0.85),
    ("gen1", "far"): (0.5, 0.6, 0.7),
    ("gen2", "far"): (0.5, 0.6, 0.7),
    ("med1", "far"): (0.6, 0.7, 0.9),
    ("med2", "far"): (0.6, 0.7, 0.9),
}


def aggregates_frame(curves: Curves) -> pl.DataFrame:
    rows = [
        (encoder, dataset, fraction, condition, value if condition == "clean" else 0.01)
        for (encoder, dataset), curve in curves.items()
        for fraction, value in zip(FRACTIONS, curve, strict=True)
        for condition in ("clean", "blur-s1")
    ]
    names = ("encoder_id", "dataset_id", "label_fraction", "condition_id", "macro_auroc_mean")
    types = (pl.String, pl.String, pl.Float64, pl.String, pl.Float64)
    return pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")


def panel_from(curves: Curves, infeasible: Mapping[str, Sequence[float]] | None = None) -> Panel:
    datasets: dict[str, list[str]] = {}
    for encoder, dataset in curves:
        datasets.setdefault(encoder, []).append(dataset)
    return panel_of(datasets, infeasible=infeasible)


def analyse(
    curves: Curves, categories: Mapping[str, str | None] = CATEGORIES, panel: Panel | None = None
) -> dict[tuple[str, str, float], dict[str, Any]]:
    encoders = pl.DataFrame(
        list(categories.items()), schema={"encoder_id": pl.String, "category": pl.String}, orient="row"
    )
    panel = panel or panel_from(curves)
    found = label_scarcity(aggregates_frame(curves), encoders, panel, FRACTIONS)
    written(found, "label_scarcity")
    assert found.height == (len(panel.datasets) + 1) * 3 * len(FRACTIONS)
    return {(row["dataset_id"], row["category"], row["label_fraction"]): row for row in found.to_dicts()}


def test_every_number_by_hand() -> None:
    rows = analyse(CURVES)
    right = {
        ("near", "broad_medical", 0.01): (2, 0.75, 0.55, 0.20, 0.10),
        ("near", "broad_medical", 0.1): (2, 0.825, 0.70, 0.125, 0.025),
        ("near", "broad_medical", 1.0): (2, 0.90, 0.80, 0.10, 0.0),
        ("near", "specialty", 0.01): (1, 0.75, 0.55, 0.20, 0.15),
        ("near", "medical", 0.01): (3, 0.75, 0.55, 0.20, 7 / 60),
        ("near", "medical", 1.0): (3, 2.65 / 3, 0.80, 0.25 / 3, 0.0),
        ("far", "medical", 0.01): (2, 0.6, 0.5, 0.1, -0.1),
        # skin has no cell on far, so what all have is near alone
        ("", "medical", 0.01): (3, 0.75, 0.55, 0.20, 7 / 60),
    }
    for key, (n_medical, mean_medical, mean_generalist, difference, interaction) in right.items():
        row = rows[key]
        assert (row["n_medical"], row["n_generalist"]) == (n_medical, 2), key
        numbers = [row[name] for name in ("mean_medical", "mean_generalist", "difference", "interaction")]
        assert numbers == pytest.approx([mean_medical, mean_generalist, difference, interaction], abs=1e-12), key
    # changes -.1, -.2 against -.2, -.3: error sqrt(.0025 + .0025), 2 degrees of freedom, t = 4.302653
    row = rows["near", "broad_medical", 0.01]
    half = 4.302652730 * 0.005**0.5
    assert (row["interaction_ci_low"], row["interaction_ci_high"]) == pytest.approx((0.1 - half, 0.1 + half), abs=1e-9)
    assert row["reason"] is None


def test_where_the_interval_is_undefined() -> None:
    rows = analyse(CURVES)
    alone = rows["near", "specialty", 0.01]
    assert (alone["interaction_ci_low"], alone["interaction_ci_high"], alone["reason"]) == (None, None, "too_few_units")
    equal = rows["far", "broad_medical", 0.01]  # everybody of a group changes alike
    assert (equal["interaction_ci_low"], equal["reason"]) == (None, "no_spread")
    for category in ("broad_medical", "specialty", "medical"):
        full = rows["near", category, 1.0]
        bounds = (full["interaction"], full["interaction_ci_low"], full["interaction_ci_high"], full["reason"])
        assert bounds == (0.0, 0.0, 0.0, None)


def test_a_wide_interval_ends_where_the_interaction_does() -> None:
    curves: Curves = {
        ("gen1", "near"): (0.0, 0.5, 1.0),
        ("gen2", "near"): (1.0, 0.5, 0.0),
        ("med1", "near"): (0.0, 0.5, 1.0),
        ("med2", "near"): (1.0, 0.5, 0.0),
    }
    row = analyse(curves)["near", "medical", 0.01]
    assert (row["interaction"], row["interaction_ci_low"], row["interaction_ci_high"]) == (0.0, -2.0, 2.0)


def random_curves(seed: int) -> tuple[dict[tuple[str, str], tuple[float, ...]], dict[str, str | None]]:
    draw = random.Random(seed)
    names = ["generalist", "broad_medical", "specialty", None]
    categories = {f"e{i:02}": draw.choices(names, [4, 3, 3, 1])[0] for i in range(draw.randint(4, 15))}
    curves = {}
    for encoder in categories:
        for dataset in ("near", *[d for d in ("far", "mid") if draw.random() < 0.9]):
            curves[encoder, dataset] = tuple(draw.uniform(0.4, 1.0) for _ in FRACTIONS)
    return curves, categories


def test_agrees_with_plain_python() -> None:
    assert sum(n_intervals_that_agree(seed) for seed in range(20)) > 300


def n_intervals_that_agree(seed: int) -> int:
    """Compare every row of a random panel, and return how many had an interval."""
    curves, categories = random_curves(seed)
    encoders = sorted(categories)
    datasets = sorted({dataset for _, dataset in curves})
    common = [d for d in datasets if all((e, d) in curves for e in encoders)]
    n_intervals = 0
    for (dataset, category, fraction), row in analyse(curves, categories).items():
        used = [dataset] if dataset else common
        i = FRACTIONS.index(fraction)

        def values(wanted: list[str], i: int, used: list[str] = used) -> list[float]:
            own = [e for e in encoders if categories[e] in wanted and all((e, d) in curves for d in used)]
            return [sum(curves[e, d][i] for d in used) / len(used) for e in own]

        medical = ["broad_medical", "specialty"] if category == "medical" else [category]
        here, others = values(medical, i), values(["generalist"], i)
        assert (row["n_medical"], row["n_generalist"]) == (len(here), len(others))
        if here:
            assert row["mean_medical"] == pytest.approx(sum(here) / len(here), abs=1e-12)
        if others:
            assert row["mean_generalist"] == pytest.approx(sum(others) / len(others), abs=1e-12)
        if not (here and others):
            assert (row["difference"], row["interaction"], row["reason"]) == (None, None, "empty_group")
            continue
        difference = sum(here) / len(here) - sum(others) / len(others)
        assert row["difference"] == pytest.approx(difference, abs=1e-12)
        changes = [
            [a - b for a, b in zip(values(group, i), values(group, 2), strict=True)]
            for group in (medical, ["generalist"])
        ]
        interaction = sum(changes[0]) / len(changes[0]) - sum(changes[1]) / len(changes[1])
        assert row["interaction"] == pytest.approx(interaction, abs=1e-12)
        if min(map(len, changes)) > 1 and fraction < 1:
            right = stats.ttest_ind(*changes, equal_var=False).confidence_interval(0.95)
            assert row["interaction_ci_low"] == pytest.approx(max(right.low, -2), abs=1e-12)
            assert row["interaction_ci_high"] == pytest.approx(min(right.high, 2), abs=1e-12)
            n_intervals += 1
    return n_intervals


def test_order_and_names_of_encoders_move_nothing() -> None:
    curves, categories = random_curves(1)
    rows = analyse(curves, categories)
    assert analyse(dict(reversed(curves.items())), categories) == rows
    names = {encoder: f"x{len(categories) - i:02}" for i, encoder in enumerate(categories)}
    renamed = {(names[e], d): curve for (e, d), curve in curves.items()}
    for key, row in analyse(renamed, {names[e]: c for e, c in categories.items()}).items():
        for name, value in row.items():
            if isinstance(value, float):
                assert value == pytest.approx(rows[key][name], abs=1e-12)
            elif name != "panel_id":
                assert value == rows[key][name]


def test_who_is_no_member_moves_nothing() -> None:
    others: Curves = {("late", "near"): (0.9, 0.9, 0.9), ("untrained", "far"): (0.5, 0.5, 0.5)}
    categories = CATEGORIES | {"late": "specialty", "untrained": "generalist"}
    assert analyse({**CURVES, **others}, categories, panel_from(CURVES)) == analyse(CURVES)


def test_equal_encoders_have_no_lead() -> None:
    curves: Curves = {(encoder, "near"): (0.6, 0.7, 0.8) for encoder in CATEGORIES}
    for row in analyse(curves).values():
        assert (row["difference"], row["interaction"]) == (0.0, 0.0)
        assert row["reason"] in {"no_spread", "too_few_units", None}


def test_a_category_without_encoders() -> None:
    without = {encoder: name for encoder, name in CATEGORIES.items() if name != "specialty"}
    curves = {key: curve for key, curve in CURVES.items() if key[0] in without}
    row = analyse(curves, without)["near", "specialty", 0.01]
    assert (row["n_medical"], row["mean_medical"], row["difference"], row["reason"]) == (0, None, None, "empty_group")
    assert row["mean_generalist"] == pytest.approx(0.55)
    uncategorised = dict.fromkeys(CATEGORIES)
    row = analyse(CURVES, uncategorised)["near", "medical", 0.01]
    assert (row["n_medical"], row["n_generalist"], row["mean_generalist"]) == (0, 0, None)


def test_infeasible_fraction() -> None:
    panel = panel_from(CURVES, infeasible={"near": [0.01]})
    lacking = {key: (None, *curve[1:]) if key[1] == "near" else curve for key, curve in CURVES.items()}
    rows = analyse(lacking, panel=panel)
    for dataset in ("near", ""):
        row = rows[dataset, "medical", 0.01]
        assert (row["mean_medical"], row["difference"], row["reason"]) == (None, None, "infeasible_fraction")
        assert row["n_medical"] == 3
        assert rows[dataset, "medical", 0.1]["reason"] is None
    assert rows["far", "medical", 0.01]["difference"] == pytest.approx(0.1)


def test_a_missing_value_is_nobodys_lead() -> None:
    lacking: Curves = {**CURVES, ("med2", "near"): (0.7, 0.8, None)}
    rows = analyse(lacking)
    assert rows["near", "medical", 1.0]["reason"] == "incomplete"
    row = rows["near", "specialty", 0.01]  # at 1 % all is there, at all labels it is not
    assert row["difference"] == pytest.approx(0.2)
    assert (row["interaction"], row["interaction_ci_low"], row["reason"]) == (None, None, "incomplete")
    assert (rows["far", "medical", 1.0]["interaction"], rows["far", "medical", 1.0]["reason"]) == (0.0, None)


def test_no_dataset_that_all_have() -> None:
    curves: Curves = {("gen1", "near"): (0.6, 0.7, 0.8), ("med1", "far"): (0.6, 0.7, 0.8)}
    rows = analyse(curves)
    row = rows["", "medical", 0.01]
    assert (row["n_medical"], row["mean_medical"], row["reason"]) == (1, None, "no_common_dataset")
    assert rows["near", "medical", 0.01]["reason"] == "empty_group"
