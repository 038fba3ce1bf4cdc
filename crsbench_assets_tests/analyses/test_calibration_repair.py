from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

from crsbench_assets.analyses.calibration_repair import PRIMARY_CELLS, calibration_repair
from crsbench_assets.config import registry
from crsbench_assets.tables.registry import TABLES
from crsbench_assets_tests.tables.rows import written

KEY = {"encoder_id": pl.String(), "dataset_id": pl.String(), "seed": pl.Int64(), "condition_id": pl.String()}
Number = float | None


class Seed(NamedTuple):
    """One seed: the record before, the record after, and whether the repair was accepted."""

    ece_before: Number
    auroc_before: Number
    ece: Number
    auroc: Number
    floor: Number = 0.02
    refusal: str | None = None
    reason: str | None = None


# ECE and AUROC before and after.
#
#             before       after
#   seed 0    .2   .80     .05  .81     accepted
#   seed 1    .1   .70     .05  .70     accepted
#   seed 2    .3   .90     .3   .90     refused, no gain
#   seed 3    .2   .80     .2   .80     refused, at a bound
#   mean      .2           .15  +.0025
SEEDS = (
    Seed(0.2, 0.80, 0.05, 0.81, 0.01),
    Seed(0.1, 0.70, 0.05, 0.70, 0.02),
    Seed(0.3, 0.90, 0.3, 0.90, 0.03, "no_gain"),
    Seed(0.2, 0.80, 0.2, 0.80, 0.04, "at_bound"),
)
Unit = tuple[str, str, str, str]
"""Encoder, dataset, method, condition."""
UNIT: Unit = ("alpha", "near", "vector", "clean")


def analyse(units: Mapping[Unit, Sequence[Seed]], *, keep_before: bool = True) -> dict[Unit, dict[str, Any]]:
    after = [
        (e, d, i, condition, method, s.ece, s.auroc, s.floor, s.refusal is None, s.refusal, s.reason)
        for (e, d, method, condition), seeds in units.items()
        for i, s in enumerate(seeds)
    ]
    before = {
        (e, d, i, condition, fraction, s.ece_before if fraction == 1 else 0.9, s.auroc_before, s.reason)
        for (e, d, _, condition), seeds in units.items()
        for i, s in enumerate(seeds)
        for fraction in (0.1, 1.0)
        if keep_before
    }
    calibrated = pl.DataFrame(
        after,
        schema={
            **KEY,
            "method": pl.String(),
            **dict.fromkeys(("ece", "macro_auroc", "ece_floor_p95"), pl.Float64()),
            "is_accepted": pl.Boolean(),
            **dict.fromkeys(("refusal_reason", "reason"), pl.String()),
        },
        orient="row",
    )
    schema = {**KEY, **dict.fromkeys(("label_fraction", "ece", "macro_auroc"), pl.Float64()), "reason": pl.String()}
    records = pl.DataFrame(sorted(before, key=str), schema=schema, orient="row")
    found = calibration_repair(calibrated, records)
    written(found, "calibration_repair")
    names = ("encoder_id", "dataset_id", "method", "condition_id")
    return {tuple(row[name] for name in names): row for row in found.to_dicts()}


def test_every_number_by_hand() -> None:
    row = analyse({UNIT: SEEDS})[UNIT]
    numbers = {
        "ece_before": 0.2,
        "ece_after": 0.15,
        "relative_reduction": 0.25,
        "ece_floor_p95": 0.025,
        "delta_auroc": 0.0025,
    }
    assert {name: row[name] for name in numbers} == pytest.approx(numbers, abs=1e-12)
    counts = [row[name] for name in ("n_seeds", "n_seeds_accepted", "n_seeds_no_gain", "n_seeds_at_bound")]
    assert counts == [4, 2, 1, 1]
    assert (row["is_primary"], row["reason"]) == (False, None)


def test_the_papers_examples() -> None:
    for before, after, reduction in ((0.150, 0.034, 0.77), (0.121, 0.028, 0.77)):
        row = analyse({UNIT: [Seed(before, 0.9, after, 0.901)]})[UNIT]
        assert round(row["relative_reduction"], 2) == reduction


def test_agrees_with_plain_python_and_harm_is_negative() -> None:
    draw = random.Random(0)
    units = {
        (e, d, method, condition): [Seed(*(draw.random() for _ in range(5))) for _ in range(5)]
        for e in ("alpha", "beta")
        for d in ("near", "far")
        for method, condition in (("temperature", "clean"), ("isotonic", "shift_abroad"))
    }
    rows = analyse(units)
    assert list(rows) == sorted(units)
    assert min(row["relative_reduction"] for row in rows.values()) < 0
    for unit, seeds in units.items():
        before = sum(s.ece_before or 0 for s in seeds) / 5
        after = sum(s.ece or 0 for s in seeds) / 5
        gain = sum((s.auroc or 0) - (s.auroc_before or 0) for s in seeds) / 5
        row = rows[unit]
        assert (row["ece_before"], row["ece_after"]) == pytest.approx((before, after), abs=1e-12)
        assert row["relative_reduction"] == pytest.approx((before - after) / before, abs=1e-12)
        assert row["delta_auroc"] == pytest.approx(gain, abs=1e-12)
        assert row["ece_floor_p95"] == pytest.approx(sum(s.floor or 0 for s in seeds) / 5, abs=1e-12)
    assert analyse({unit: seeds[::-1] for unit, seeds in reversed(units.items())}) == rows


def test_the_primary_six_are_cards_of_the_catalogue() -> None:
    assert len(PRIMARY_CELLS) == 6
    catalogue = Path(registry.__file__).parent / "catalog"
    for encoder, dataset in PRIMARY_CELLS:
        assert (catalogue / "encoders" / f"{encoder}.yaml").exists()
        assert (catalogue / "datasets" / f"{dataset}.yaml").exists()
        unit = (encoder, dataset, "vector", "clean")
        assert analyse({unit: SEEDS})[unit]["is_primary"]
    twin = ("rad_dino", "chexpert", "vector", "clean")  # of DINOv2's family, and not one of the six
    assert not analyse({twin: SEEDS})[twin]["is_primary"]


def numbers_and_reason(seeds: Sequence[Seed], *, keep_before: bool = True) -> tuple[list[bool], int, str | None]:
    row = analyse({UNIT: seeds}, keep_before=keep_before)[UNIT]
    names = ("ece_before", "ece_after", "relative_reduction", "ece_floor_p95", "delta_auroc")
    return [row[name] is not None for name in names], row["n_seeds"], row["reason"]


def test_what_is_undefined() -> None:
    nothing = Seed(None, None, None, None, None, None, "no_vectors")
    assert numbers_and_reason([nothing] * 3) == ([False] * 5, 0, "no_vectors")
    assert numbers_and_reason([*SEEDS, nothing]) == ([False] * 5, 4, "missing_seed")
    assert numbers_and_reason(SEEDS, keep_before=False) == ([False, True, False, True, False], 0, "incomplete")
    one_class = Seed(0.2, None, 0.1, None, 0.02, None, "no_positive")
    assert numbers_and_reason([one_class] * 2) == ([True, True, True, True, False], 2, "no_positive")
    perfect = Seed(0.0, 0.9, 0.1, 0.9)
    assert numbers_and_reason([perfect]) == ([True, True, False, True, True], 1, "undefined_term")
    assert calibration_repair(TABLES["calibrated_records"].empty(), TABLES["run_records"].empty()).is_empty()
