from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crsbench_assets.aggregates.axes import cell_axes, common_macros, relative_drop, retention, robustness
from crsbench_assets.config.protocol import Protocol
from crsbench_assets.tables.results import RESULT_TABLES

SPECS = {spec.name: spec for spec in RESULT_TABLES}
Aurocs = dict[tuple[int, float, str], dict[str, float | None]]

# Classes a and b; macro AUROC is their mean. Seeds 0 and 1 differ on the clean images at all labels only.
#
#   seed  fraction  condition   a     b     macro     ratio to clean, f = 1      drop from it
#   0     1.0       clean       .75   .85   .80
#   0     0.1       clean       .50   .70   .60       .60/.80 = .7500
#   0     0.5       clean       .60   .80   .70       .70/.80 = .8750
#   0     1.0       blur-s1     .70   .74   .72                                  .08/.80 = .10
#   0     1.0       blur-s3     .60   .68   .64                                  .16/.80 = .20
#   0     1.0       shift_far   .50   .70   .60                                  .20/.80 = .25
#   1     1.0       clean       .85   .95   .90
#   1     0.1       clean       (as seed 0)  .60      .60/.90 = .6667
#   1     0.5       clean                    .70      .70/.90 = .7778
#   1     1.0       blur-s1                  .72                                 .18/.90 = .20
#   1     1.0       blur-s3                  .64                                 .26/.90 = .288889
#   1     1.0       shift_far                .60                                 .30/.90 = .333333
TERMS: dict[tuple[float, str], dict[str, float | None]] = {
    (0.1, "clean"): {"a": 0.50, "b": 0.70},
    (0.5, "clean"): {"a": 0.60, "b": 0.80},
    (1.0, "blur-s1"): {"a": 0.70, "b": 0.74},
    (1.0, "blur-s3"): {"a": 0.60, "b": 0.68},
    (1.0, "shift_far"): {"a": 0.50, "b": 0.70},
}
CLEAN: dict[int, dict[str, float | None]] = {0: {"a": 0.75, "b": 0.85}, 1: {"a": 0.85, "b": 0.95}}
ERRORS = {"ece": 0.125, "adaptive_ece": 0.25, "brier": 0.5, "ece_debiased": 0.0625}


def table() -> Aurocs:
    return {
        (s, f, c): dict(of_classes)
        for s in (0, 1)
        for (f, c), of_classes in {(1.0, "clean"): CLEAN[s], **TERMS}.items()
    }


def axes(
    protocol: Protocol,
    aurocs: Aurocs,
    *,
    reasons: dict[tuple[int, float, str], str] | None = None,
    shift_id: str | None = "far",
    ci_low: float | None = 0.7,
) -> dict[tuple[str, str], dict[str, Any]]:
    reasons = reasons or {}
    label_rows, record_rows = [], []
    for (seed, fraction, condition), of_classes in aurocs.items():
        key = {"seed": seed, "label_fraction": fraction, "condition_id": condition}
        label_rows += [key | {"class_name": name, "auroc": value} for name, value in of_classes.items()]
        defined = [value for value in of_classes.values() if value is not None]
        reason = reasons.get((seed, fraction, condition))
        record = key | {"n": 10, "reason": reason, "macro_auroc_ci_low": ci_low}
        if reason is None and defined:
            record |= {"macro_auroc": sum(defined) / len(defined), **ERRORS}
        record_rows.append(record)
    labels = pl.DataFrame(label_rows, schema=SPECS["label_metrics"].polars_schema())
    records = pl.DataFrame(record_rows, schema=SPECS["run_records"].polars_schema())
    frame = cell_axes(labels, records, protocol=protocol, shift_id=shift_id)
    expected = SPECS["cell_axes"].computed_schema()
    assert frame.schema == expected
    assert frame.height == 11
    return {(row["axis"], row["variant"]): row for row in frame.to_dicts()}


def test_every_axis_by_hand(protocol: Protocol) -> None:
    rows = axes(protocol, table())
    right = {
        ("discrimination", "primary"): [0.8, 0.9],
        ("calibration", "primary"): [0.875, 0.875],
        ("calibration", "adaptive_ece"): [0.75, 0.75],
        ("calibration", "brier"): [0.5, 0.5],
        ("calibration", "ece_debiased"): [0.9375, 0.9375],
        ("label_efficiency", "primary"): [0.8125, 0.722222],
        # (.1/.3 + .2/.3) / 2 and (.1/.4 + .2/.4) / 2
        ("label_efficiency", "chance_corrected"): [0.5, 0.375],
        # (.6 + .7 + .8) / 3 and (.6 + .7 + .9) / 3
        ("label_efficiency", "aulc"): [0.7, 0.733333],
        # 1 - (.5 * .15 + .5 * .25) and 1 - (.5 * .244444 + .5 * .333333)
        ("robustness", "primary"): [0.8, 0.711111],
        ("robustness", "corruption_only"): [0.85, 0.755556],
        # drops over A - .5: (.08 + .16)/.3/2 = .4 and .2/.3; (.18 + .26)/.4/2 = .55 and .3/.4 = .75
        ("robustness", "chance_corrected"): [1 - (0.4 + 2 / 3) / 2, 1 - (0.55 + 0.75) / 2],
    }
    assert rows.keys() == right.keys()
    for key, (first, second) in right.items():
        row = rows[key]
        assert row["seed_values"] == pytest.approx([first, second], abs=1e-6), key
        assert row["value"] == pytest.approx((first + second) / 2, abs=1e-6), key
        assert row["sd"] == pytest.approx(abs(first - second) / math.sqrt(2), abs=1e-6), key
        assert (row["n_seeds"], row["reason"], row["is_near_chance"]) == (2, None, False), key
    assert {variant: rows["label_efficiency", variant]["n_fractions"] for variant in ("primary", "aulc")} == {
        "primary": 2,
        "aulc": 3,
    }
    assert rows["robustness", "primary"]["n_fractions"] is None


def test_without_a_shift_target_both_robustness_variants_agree(protocol: Protocol) -> None:
    rows = axes(protocol, {k: v for k, v in table().items() if k[2] != "shift_far"}, shift_id=None)
    assert rows["robustness", "primary"]["value"] == rows["robustness", "corruption_only"]["value"]
    assert rows["robustness", "primary"]["value"] == pytest.approx((0.85 + 0.755556) / 2, abs=1e-6)


def test_label_missing_in_the_target(protocol: Protocol) -> None:
    # Class a is undefined in the target: the drop is taken over b alone, .85 to .70 and .95 to .70.
    aurocs = table()
    for seed in (0, 1):
        aurocs[seed, 1.0, "shift_far"]["a"] = None
    rows = axes(protocol, aurocs)
    drops = [(0.15 + 0.15 / 0.85) / 2, (0.244444 + 0.25 / 0.95) / 2]
    assert rows["robustness", "primary"]["seed_values"] == pytest.approx([1 - drop for drop in drops], abs=1e-6)
    assert rows["robustness", "corruption_only"]["seed_values"] == pytest.approx([0.85, 0.755556], abs=1e-6)


def test_common_macros_of_14_source_and_13_target_labels() -> None:
    source: dict[str, float | None] = {f"label_{i}": i / 16 for i in range(14)}
    target: dict[str, float | None] = {f"label_{i}": 0.5 for i in range(14)} | {"label_13": None}
    pair = common_macros(source, target)
    assert pair is not None
    assert (pair.reference, pair.other, pair.n_defined) == (6 / 16, 0.5, 13)
    assert common_macros(source, {}) is None
    assert common_macros({}, target) is None
    assert common_macros({"a": None}, {"a": 0.5}) is None
    assert common_macros({"a": 0.5}, {"b": 0.5}) is None


def test_terms_without_a_common_class_are_undefined(protocol: Protocol) -> None:
    aurocs = table()
    for seed in (0, 1):
        aurocs[seed, 1.0, "blur-s1"] = {"a": None, "b": 0.7}
        aurocs[seed, 1.0, "clean"]["b"] = None
    rows = axes(protocol, aurocs)
    row = rows["robustness", "corruption_only"]
    assert (row["value"], row["reason"], row["seed_values"]) == (None, "undefined_term", [None, None])
    assert rows["discrimination", "primary"]["value"] == pytest.approx(0.8)


def test_infeasible_fraction_is_skipped(protocol: Protocol) -> None:
    reasons = {(seed, 0.1, "clean"): "infeasible_fraction" for seed in (0, 1)}
    rows = axes(protocol, table(), reasons=reasons)
    assert rows["label_efficiency", "primary"]["seed_values"] == pytest.approx([0.875, 0.777778], abs=1e-6)
    assert rows["label_efficiency", "primary"]["n_fractions"] == 1
    assert rows["label_efficiency", "aulc"]["seed_values"] == pytest.approx([0.75, 0.8])
    assert rows["label_efficiency", "aulc"]["n_fractions"] == 2


def test_no_feasible_fraction_below_all_labels(protocol: Protocol) -> None:
    reasons = {(seed, f, "clean"): "infeasible_fraction" for seed in (0, 1) for f in (0.1, 0.5)}
    rows = axes(protocol, table(), reasons=reasons)
    row = rows["label_efficiency", "primary"]
    assert (row["value"], row["reason"], row["n_fractions"]) == (None, "infeasible_fraction", 0)
    assert rows["label_efficiency", "aulc"]["seed_values"] == pytest.approx([0.8, 0.9])


def test_shift_without_access_leaves_corruption_only(protocol: Protocol) -> None:
    reasons = {(seed, 1.0, "shift_far"): "no_access" for seed in (0, 1)}
    rows = axes(protocol, table(), reasons=reasons)
    assert (rows["robustness", "primary"]["value"], rows["robustness", "primary"]["reason"]) == (None, "no_access")
    assert rows["robustness", "corruption_only"]["value"] == pytest.approx((0.85 + 0.755556) / 2, abs=1e-6)


def test_robustness_needs_every_corruption(protocol: Protocol) -> None:
    reasons = {(seed, 1.0, "blur-s3"): "no_vectors" for seed in (0, 1)}
    rows = axes(protocol, table(), reasons=reasons)
    assert {rows["robustness", v]["reason"] for v in ("primary", "corruption_only")} == {"no_vectors"}
    absent = {key: value for key, value in table().items() if key[2] != "blur-s3"}
    assert axes(protocol, absent)["robustness", "corruption_only"]["reason"] == "undefined_term"


def test_one_null_seed(protocol: Protocol) -> None:
    rows = axes(protocol, table(), reasons={(1, 0.5, "clean"): "one_class_train"})
    row = rows["label_efficiency", "primary"]
    assert (row["value"], row["sd"], row["reason"], row["n_seeds"]) == (None, None, "missing_seed", 1)
    assert row["seed_values"][0] == pytest.approx(0.8125)
    assert row["seed_values"][1] is None
    assert rows["robustness", "primary"]["reason"] is None


@pytest.mark.parametrize(("ci_low", "flag"), [(0.55, True), (0.5500001, False), (None, None)])
def test_near_chance_flag(protocol: Protocol, ci_low: float | None, flag: bool | None) -> None:
    rows = axes(protocol, table(), ci_low=ci_low)
    assert {row["is_near_chance"] for row in rows.values()} == {flag}
    for axis in ("label_efficiency", "robustness"):
        row = rows[axis, "chance_corrected"]
        assert (row["value"] is None) == (flag is True)
        assert row["reason"] == ("near_chance" if flag else None)
        assert rows[axis, "primary"]["value"] is not None


def test_denominator_at_chance_is_undefined(protocol: Protocol) -> None:
    aurocs = table()
    aurocs[0, 1.0, "clean"] = aurocs[1, 1.0, "clean"] = {"a": 0.25, "b": 0.75}
    rules = protocol.metrics.model_copy(update={"near_chance_auroc": 0.4})
    rows = axes(protocol.model_copy(update={"metrics": rules}), aurocs, ci_low=None)
    assert rows["label_efficiency", "chance_corrected"]["reason"] == "undefined_term"
    assert rows["label_efficiency", "primary"]["seed_values"] == pytest.approx([1.3, 1.3])


def test_order_of_rows_and_names_of_classes_move_no_bit(protocol: Protocol) -> None:
    rows = axes(protocol, table())
    assert axes(protocol, dict(reversed(table().items()))) == rows
    renamed: Aurocs = {
        key: {{"a": "z", "b": "c"}[name]: value for name, value in of_classes.items()}
        for key, of_classes in table().items()
    }
    assert axes(protocol, renamed) == rows


def test_no_rows_at_all(protocol: Protocol) -> None:
    rows = axes(protocol, {})
    assert {(row["value"], row["reason"], row["n_seeds"]) for row in rows.values()} == {(None, "undefined_term", 0)}


def test_single_seed_has_no_sd(protocol: Protocol) -> None:
    single = protocol.model_copy(update={"seeds": (0,)})
    row = axes(single, {k: v for k, v in table().items() if k[0] == 0})["robustness", "primary"]
    assert (row["sd"], row["reason"], row["n_seeds"]) == (None, None, 1)


def test_refuses_nan_and_repeats(protocol: Protocol) -> None:
    aurocs = table()
    aurocs[0, 0.1, "clean"]["a"] = math.nan
    with pytest.raises(ValueError, match="NaN in"):
        axes(protocol, aurocs)
    empty = SPECS["run_records"].empty()
    label = {"seed": 0, "label_fraction": 1.0, "condition_id": "clean", "class_name": "a"}
    labels = pl.DataFrame([label, label], schema=SPECS["label_metrics"].polars_schema())
    with pytest.raises(ValueError, match="repeat a key"):
        cell_axes(labels, empty, protocol=protocol, shift_id=None)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 1), st.floats(0, 1), st.floats(0, 1))
def test_ratios(clean: float, other: float, weight: float) -> None:
    assert retention(other, clean) == pytest.approx(1 - relative_drop(clean, other))
    assert retention(clean, clean) == 1.0
    assert relative_drop(clean, clean) == 0.0
    assert robustness([0.0, 0.0], 0.0, weight) == 1.0
    drop = relative_drop(clean, other)
    assert robustness([drop], drop, weight) == pytest.approx(1 - drop)
    assert robustness([drop], None, weight) == robustness([drop], 0.0, 0.0)


def test_an_auroc_at_chance_is_near_chance_without_an_interval(protocol: Protocol) -> None:
    aurocs = table()
    aurocs[0, 1.0, "clean"] = aurocs[1, 1.0, "clean"] = {"a": 0.5, "b": 0.5}
    rows = axes(protocol, aurocs, ci_low=None)
    assert rows["discrimination", "primary"]["is_near_chance"] is True
    assert rows["robustness", "chance_corrected"]["reason"] == "near_chance"
