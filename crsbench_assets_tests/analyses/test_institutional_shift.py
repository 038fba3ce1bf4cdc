from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest

from crsbench_assets.analyses.institutional_shift import institutional_shift
from crsbench_assets_tests.tables.rows import written

SEEDS = (0, 1)
Aurocs = Mapping[tuple[str, int, str], Mapping[str, float | None]]
"""(encoder, seed, condition) -> label -> AUROC on the dataset cxr; an empty mapping is a record without any."""

# AUROC per label; fracture is not defined at home, edema not abroad: the macro is over effusion and nodule.
#
#                  home: effusion nodule edema fracture    abroad: effusion nodule edema fracture     home  abroad  gap
#   alpha seed 0         .9       .7     .2    -                   .7       .5     -     .9           .8    .6      1/4
#         seed 1         .8       .4     .2    -                   .7       .5     -     .9           .6    .6      0
#   beta  seed 0         .5       .5     .2    -                   .6       .6     -     .9           .5    .6     -1/5
#         seed 1         .5       .5     .2    -                   .6       .6     -     .9           .5    .6     -1/5
BY_HAND: Aurocs = {
    ("alpha", 0, "clean"): {"effusion": 0.9, "nodule": 0.7, "edema": 0.2, "fracture": None},
    ("alpha", 1, "clean"): {"effusion": 0.8, "nodule": 0.4, "edema": 0.2, "fracture": None},
    ("beta", 0, "clean"): {"effusion": 0.5, "nodule": 0.5, "edema": 0.2, "fracture": None},
    ("beta", 1, "clean"): {"effusion": 0.5, "nodule": 0.5, "edema": 0.2, "fracture": None},
    **{
        (encoder, seed, "shift_abroad"): {"effusion": a, "nodule": b, "edema": None, "fracture": 0.9}
        for encoder, a, b in (("alpha", 0.7, 0.5), ("beta", 0.6, 0.6))
        for seed in SEEDS
    },
}


def frames(
    aurocs: Aurocs, reasons: Mapping[tuple[str, int, str], str] | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return label metrics and run records, with rows that must not be read beside those that must."""
    labels, records = [], []
    for (encoder, seed, condition), of_labels in aurocs.items():
        known = [value for value in of_labels.values() if value is not None]
        macro = sum(known) / len(known) if known else None
        reason = (reasons or {}).get((encoder, seed, condition))
        for fraction, name, shift in ((1.0, condition, 0.0), (0.1, condition, 0.1), (1.0, "blur-s1", 0.1)):
            records.append((encoder, "cxr", seed, fraction, name, macro, reason))
            labels += [
                (encoder, "cxr", seed, fraction, name, label, None if value is None else value * (1 - shift))
                for label, value in of_labels.items()
            ]
    types = (pl.String, pl.String, pl.Int64, pl.Float64, pl.String)
    key = dict(zip(("encoder_id", "dataset_id", "seed", "label_fraction", "condition_id"), types, strict=True))
    return (
        pl.DataFrame(labels, schema={**key, "class_name": pl.String, "auroc": pl.Float64}, orient="row"),
        pl.DataFrame(records, schema={**key, "macro_auroc": pl.Float64, "reason": pl.String}, orient="row"),
    )


def analyse(
    aurocs: Aurocs,
    *,
    reasons: Mapping[tuple[str, int, str], str] | None = None,
    encoders: Sequence[str] = ("alpha", "beta"),
    shift_id: str | None = "abroad",
    seeds: Sequence[int] = SEEDS,
) -> dict[str, dict[str, Any]]:
    labels, records = frames(aurocs, reasons)
    exposures = {"alpha": '{"abroad": "seen", "cxr": "not_seen"}', "beta": "{}"}
    cards = pl.DataFrame(
        {
            "encoder_id": list(encoders),
            "category": ["specialty" if encoder == "alpha" else None for encoder in encoders],
            "exposure": [exposures.get(encoder, '{"abroad": "not_seen"}') for encoder in encoders],
        },
        schema_overrides={"category": pl.String},
    )
    datasets = pl.DataFrame({"dataset_id": ["cxr", "derm"], "shift_id": [shift_id, None]}, schema=dict.fromkeys(
        ("dataset_id", "shift_id"), pl.String()))  # fmt: skip
    scored = pl.DataFrame(
        [(encoder, "candidate", ["cxr", "derm"]) for encoder in encoders],
        schema={"encoder_id": pl.String, "role": pl.String, "dataset_ids": pl.List(pl.String)},
        orient="row",
    )
    found = institutional_shift(labels, records, cards, datasets, scored, seeds)
    written(found, "institutional_shift")
    assert found.get_column("encoder_id").to_list() == (sorted(encoders) if shift_id else [])
    return {row["encoder_id"]: row for row in found.to_dicts()}


def test_every_number_by_hand() -> None:
    rows = analyse(BY_HAND)
    for encoder, source, shift, gap in (("alpha", 0.7, 0.6, 0.125), ("beta", 0.5, 0.6, -0.2)):
        row = rows[encoder]
        numbers = [row[name] for name in ("source_macro_auroc", "shift_macro_auroc", "relative_gap")]
        assert numbers == pytest.approx([source, shift, gap], abs=1e-12)
        assert (row["dataset_id"], row["shift_id"], row["reason"]) == ("cxr", "abroad", None)
        assert (row["n_seeds"], row["n_defined_auroc"]) == (2, 2)
    assert (rows["alpha"]["category"], rows["alpha"]["shift_exposure"]) == ("specialty", "seen")
    assert (rows["beta"]["category"], rows["beta"]["shift_exposure"]) == (None, "unknown")


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_plain_python(seed: int) -> None:
    draw = random.Random(seed)
    aurocs = {
        (f"e{e}", s, condition): {f"l{k}": None if draw.random() < 0.2 else draw.random() for k in range(8)}
        for e in range(4)
        for s in SEEDS
        for condition in ("clean", "shift_abroad")
    }
    for encoder, row in analyse(aurocs, encoders=[f"e{e}" for e in range(4)]).items():
        homes, abroads, gaps, counts = [], [], [], []
        for s in SEEDS:
            home, abroad = (aurocs[encoder, s, condition] for condition in ("clean", "shift_abroad"))
            shared = [name for name in home if home[name] is not None and abroad[name] is not None]
            counts.append(len(shared))
            homes.append(sum(home[name] or 0 for name in shared) / len(shared))
            abroads.append(sum(abroad[name] or 0 for name in shared) / len(shared))
            gaps.append((homes[-1] - abroads[-1]) / homes[-1])
        right = [sum(values) / 2 for values in (homes, abroads, gaps)]
        numbers = [row[name] for name in ("source_macro_auroc", "shift_macro_auroc", "relative_gap")]
        assert numbers == pytest.approx(right, abs=1e-12)
        assert row["n_defined_auroc"] == min(counts)


def test_order_and_other_encoders_move_nothing() -> None:
    rows = analyse(BY_HAND)
    assert analyse(dict(reversed(BY_HAND.items())), encoders=("beta", "alpha")) == rows
    late: Aurocs = {("late", s, c): {"effusion": 0.9} for s in SEEDS for c in ("clean", "shift_abroad")}
    more = analyse({**BY_HAND, **late}, encoders=("alpha", "beta", "late"))
    assert {name: more[name] for name in rows} == rows


def reason_of(aurocs: Aurocs, reasons: Mapping[tuple[str, int, str], str] | None = None) -> str:
    row = analyse(aurocs, reasons=reasons)["alpha"]
    assert (row["source_macro_auroc"], row["shift_macro_auroc"], row["relative_gap"]) == (None, None, None)
    return f"{row['reason']} {row['n_seeds']} {row['n_defined_auroc']}"


def test_what_is_undefined() -> None:
    nothing = {("alpha", seed, "shift_abroad"): {} for seed in SEEDS}
    no_access = dict.fromkeys(nothing, "no_access")
    assert reason_of({**BY_HAND, **nothing}, no_access) == "no_access 0 0"
    one: Aurocs = {**BY_HAND, ("alpha", 1, "shift_abroad"): {}}
    assert reason_of(one, no_access) == "missing_seed 1 2"
    without = {key: value for key, value in BY_HAND.items() if key[0] != "alpha"}
    assert reason_of(without) == "incomplete 0 0"
    disjoint: Aurocs = {**BY_HAND, **{("alpha", s, "shift_abroad"): {"fracture": 0.9} for s in SEEDS}}
    assert reason_of(disjoint) == "undefined_term 0 0"
    wrong: Aurocs = {**BY_HAND, **{("alpha", s, "clean"): {"effusion": 0.0} for s in SEEDS}}
    assert reason_of(wrong) == "undefined_term 0 0"


def test_no_shift_target_gives_no_rows() -> None:
    assert analyse(BY_HAND, shift_id=None) == {}
