from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from crsbench_assets.analyses.specialization import specialization
from crsbench_assets.config.protocol import AXES
from crsbench_assets.config.registry import load_protocol
from crsbench_assets.scores.panel import Panel
from crsbench_assets_tests.scores.conftest import Cohort, freeze_cohort
from crsbench_assets_tests.tables.rows import written

PROTOCOL = load_protocol("crs-1", Path())
MODALITY = {"near": "dermoscopy", "far": "fundus", "new": "xray"}
Card = tuple[str | None, str | None, Sequence[str]]
Key = tuple[str, str, str, str, str]

# Discrimination, and its position between the anchors (0 and 1 on near, .5 and .9 on far); the other axes are .5 for
# all. skin is made for dermoscopy, wide for both, parent and plain for nothing; in-domain cells are marked.
#
#            category        family  near       far        z near   z far
#   skin     specialty       red     1    *     .5         1   *    0
#   eye      specialty       -       -          .7   *     -        .5  *
#   wide     broad_medical   red     .75  *     .9   *     .75 *    1   *
#   parent   generalist      red     .25        .6         .25      .25
#   plain    generalist      blue    0          .8         0        .75
CARDS: dict[str, Card] = {
    "skin": ("specialty", "red", ["dermoscopy"]),
    "eye": ("specialty", None, ["fundus"]),
    "wide": ("broad_medical", "red", ["dermoscopy", "fundus"]),
    "parent": ("generalist", "red", []),
    "plain": ("generalist", "blue", []),
}


def flat(value: float) -> tuple[float, ...]:
    return (value, 0.5, 0.5, 0.5)


COHORT: Cohort = {
    "skin": {"near": flat(1.0), "far": flat(0.5)},
    "eye": {"far": flat(0.7)},
    "wide": {"near": flat(0.75), "far": flat(0.9)},
    "parent": {"near": flat(0.25), "far": flat(0.6)},
    "plain": {"near": flat(0.0), "far": flat(0.8)},
}


def analyse(
    cohort: Cohort = COHORT, cards: Mapping[str, Card] = CARDS, panel: Panel | None = None
) -> dict[Key, dict[str, Any]]:
    encoders = pl.DataFrame(
        [(encoder, category, family, json.dumps(domains)) for encoder, (category, family, domains) in cards.items()],
        schema=dict.fromkeys(("encoder_id", "category", "family", "domains"), pl.String()),
        orient="row",
    )
    datasets = pl.DataFrame({"dataset_id": list(MODALITY), "modality": list(MODALITY.values())})
    found = specialization(panel or freeze_cohort(cohort, PROTOCOL), encoders, datasets, PROTOCOL.scores)
    written(found, "specialization")
    names = ("reference", "category", "encoder_id", "parent_encoder_id", "axis")
    return {tuple(row[name] for name in names): row for row in found.to_dicts()}


def test_every_number_by_hand() -> None:
    rows = analyse()
    right = {
        # skin on near 1 and eye on far .5, against skin on far 0
        ("out_of_domain", "specialty", "", ""): (2, 1, 0.75, 0.0, None),
        ("out_of_domain", "broad_medical", "", ""): (2, 0, 0.875, None, "empty_group"),
        ("out_of_domain", "generalist", "", ""): (0, 4, None, 0.3125, "empty_group"),
        ("generalist_parent", "specialty", "skin", "parent"): (1, 1, 1.0, 0.25, None),
        ("generalist_parent", "broad_medical", "wide", "parent"): (2, 2, 0.875, 0.25, None),
        ("generalist_parent", "specialty", "eye", ""): (1, 0, 0.5, None, "no_parent"),
    }
    assert len(rows) == 4 * len(right)
    for key, (n_in, n_reference, inside, reference, reason) in right.items():
        row = rows[(*key, "discrimination")]
        assert (row["n_in_domain"], row["n_reference"], row["reason"]) == (n_in, n_reference, reason), key
        assert row["mean_in_domain"] == pytest.approx(inside, abs=1e-12)
        assert row["mean_reference"] == pytest.approx(reference, abs=1e-12)
        difference = None if inside is None or reference is None else pytest.approx(inside - reference, abs=1e-12)
        assert row["difference"] == difference


def test_an_axis_on_which_all_agree_says_so() -> None:
    row = analyse()["generalist_parent", "specialty", "skin", "parent", "calibration"]
    assert (row["mean_in_domain"], row["difference"], row["reason"]) == (0.5, 0.0, "degenerate_axis")
    equal: Cohort = {encoder: dict.fromkeys(cells, (0.5, 0.6, 0.7, 0.8)) for encoder, cells in COHORT.items()}
    reasons = {row["reason"] for row in analyse(equal).values() if row["difference"] is not None}
    assert reasons == {"degenerate_axis"}


def random_cohort(seed: int) -> tuple[Cohort, dict[str, Card]]:
    draw = random.Random(seed)
    cohort: Cohort = {}
    cards: dict[str, Card] = {}
    for e in range(draw.randint(5, 12)):
        own = [d for d in MODALITY if draw.random() < 0.8] or ["near"]
        cohort[f"e{e}"] = {dataset: tuple(draw.random() for _ in AXES) for dataset in own}
        category = draw.choice(["generalist", "broad_medical", "specialty", None])
        domains = [] if category == "generalist" else [m for m in MODALITY.values() if draw.random() < 0.5]
        cards[f"e{e}"] = (category, draw.choice(["red", "blue", None]), domains)
    return cohort, cards


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_plain_python(seed: int) -> None:
    cohort, cards = random_cohort(seed)
    z: dict[tuple[str, str, int], float] = {}
    for dataset in MODALITY:
        for k in range(4):
            column = {e: own[dataset][k] or 0.0 for e, own in cohort.items() if dataset in own}
            for e, value in column.items():
                low, high = min(column.values()), max(column.values())
                z[e, dataset, k] = (value - low) / (high - low) if high > low else 0.5

    def is_inside(encoder: str, dataset: str) -> bool:
        return MODALITY[dataset] in cards[encoder][2]

    rows = analyse(cohort, cards)
    expected_keys = set()
    for category in ("generalist", "broad_medical", "specialty"):
        cells = [(e, d) for e, own in cohort.items() for d in own if cards[e][0] == category]
        for k, axis in enumerate(AXES):
            key = ("out_of_domain", category, "", "", axis)
            expected_keys.add(key)
            inside = [z[e, d, k] for e, d in cells if is_inside(e, d)]
            outside = [z[e, d, k] for e, d in cells if not is_inside(e, d)]
            assert_row(rows[key], inside, outside)
    for e, (category, family, _) in cards.items():
        if category not in ("broad_medical", "specialty"):
            continue
        parents = [p for p in cards if cards[p][0] == "generalist" and family and cards[p][1] == family]
        for parent in parents or [""]:
            own = [d for d in cohort[e] if is_inside(e, d) and (not parent or d in cohort[parent])]
            for k, axis in enumerate(AXES):
                key = ("generalist_parent", category, e, parent, axis)
                expected_keys.add(key)
                assert_row(rows[key], [z[e, d, k] for d in own], [z[parent, d, k] for d in own if parent])
    assert rows.keys() == expected_keys


def assert_row(row: dict[str, Any], inside: list[float], outside: list[float]) -> None:
    assert (row["n_in_domain"], row["n_reference"]) == (len(inside), len(outside))
    if inside and outside:
        right = sum(inside) / len(inside) - sum(outside) / len(outside)
        assert row["difference"] == pytest.approx(right, abs=1e-12)
    else:
        assert row["difference"] is None
        assert row["reason"] in ("empty_group", "no_parent")


def test_order_and_names_of_encoders_move_nothing() -> None:
    cohort, cards = random_cohort(7)
    rows = analyse(cohort, cards)
    assert analyse(dict(reversed(cohort.items())), dict(reversed(cards.items()))) == rows
    names = {e: f"x{20 - i:02}" for i, e in enumerate(cohort)} | {"": ""}
    renamed = analyse({names[e]: own for e, own in cohort.items()}, {names[e]: card for e, card in cards.items()})
    assert len(renamed) == len(rows)
    for (reference, category, e, parent, axis), row in rows.items():
        other = renamed[reference, category, names[e], names[parent], axis]
        for name in ("mean_in_domain", "mean_reference", "difference"):
            assert other[name] == (None if row[name] is None else pytest.approx(row[name], abs=1e-12))


def test_who_is_no_member_moves_nothing() -> None:
    panel = freeze_cohort(COHORT, PROTOCOL)
    late: dict[str, Card] = {"late": ("specialty", "red", ["xray"]), "second": ("generalist", "red", [])}
    assert analyse(COHORT, CARDS | late, panel) == analyse(COHORT, CARDS, panel)


def test_every_generalist_of_a_family_is_a_reference() -> None:
    cards = CARDS | {"plain": ("generalist", "red", [])}
    rows = analyse(COHORT, cards)
    differences = [
        rows["generalist_parent", "specialty", "skin", parent, "discrimination"]["difference"]
        for parent in ("parent", "plain")
    ]
    assert differences == pytest.approx([0.75, 1.0])


def test_a_parent_without_the_dataset_is_no_reference() -> None:
    cohort: Cohort = {**COHORT, "parent": {"far": flat(0.6)}}
    row = analyse(cohort)["generalist_parent", "specialty", "skin", "parent", "discrimination"]
    assert (row["n_in_domain"], row["n_reference"], row["difference"], row["reason"]) == (0, 0, None, "empty_group")


def test_a_member_without_a_card_could_be_of_any_category() -> None:
    rows = analyse(cards={name: card for name, card in CARDS.items() if name != "eye"})
    assert {(key[0], key[2], row["reason"]) for key, row in rows.items()} == {("out_of_domain", "", "incomplete")}
    assert len(rows) == 3 * 4 and all(row["mean_in_domain"] is None for row in rows.values())
