from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from crsbench_assets.aggregates.axes import cell_axes
from crsbench_assets.aggregates.replicates import REPLICATED, axis_replicates, replicated_axes
from crsbench_assets.config.cards import Task
from crsbench_assets.config.ids import CLEAN
from crsbench_assets.config.protocol import Protocol
from crsbench_assets.metrics.records import Record, RecordRows, measure_records
from crsbench_assets.metrics.replicates import auroc_replicates, ece_interval, group_weights, percentile_interval
from crsbench_assets.tables.results import RESULT_TABLES

SPECS = {spec.name: spec for spec in RESULT_TABLES}
DATASET = "ward"
SHIFT = "far"
STRENGTHS = {
    (0.1, CLEAN): 1.2,
    (0.5, CLEAN): 1.8,
    (1.0, CLEAN): 2.2,
    (1.0, "blur-s1"): 2.0,
    (1.0, "blur-s3"): 1.5,
    (1.0, "shift_far"): 1.4,
}
"""(fraction, condition) -> distance of positives and negatives in logits."""

Weights = np.ndarray[Any, np.dtype[np.float64]]


def cohort(task: Task, n_groups: int, n_classes: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return labels (n, k) and groups (n,), three images a group, whose labels resemble one another."""
    groups = np.repeat(np.arange(n_groups), 3)
    trait = rng.normal(size=(n_groups, n_classes))[groups] + 0.7 * rng.normal(size=(len(groups), n_classes))
    if task == "multi_label":
        return (trait > 0.6).astype(np.int8), groups
    return np.eye(n_classes, dtype=np.int8)[trait.argmax(axis=1)], groups


def logits_of(labels: Any, groups: Any, strength: float, rng: np.random.Generator) -> Any:
    """Return logits whose errors are shared within a group, rounded so that ties occur."""
    shared = 0.7 * rng.normal(size=(groups.max() + 1, labels.shape[1]))[groups]
    drawn = strength * (labels == 1) + shared + rng.normal(size=labels.shape) - strength / 2
    return np.round(drawn, 1).astype(np.float32)


def make_records(
    protocol: Protocol,
    *,
    task: Task = "multi_label",
    shift: str | None = SHIFT,
    n_groups: int = 40,
    n_classes: int = 3,
    name: int = 0,
) -> list[Record]:
    """Return every record of a cell; ``name`` is the encoder, the cohort does not depend on it."""
    rng = np.random.default_rng(7)
    truth = {"primary": cohort(task, n_groups, n_classes, rng), SHIFT: cohort(task, n_groups - 5, n_classes, rng)}
    rng = np.random.default_rng([name, 11])
    records = []
    for seed in protocol.seeds:
        for (fraction, condition), strength in STRENGTHS.items():
            source = SHIFT if condition == "shift_far" else "primary"
            if fraction not in protocol.label_fractions or (source == SHIFT and shift is None):
                continue
            labels, groups = truth[source]
            logits = logits_of(labels, groups, strength, rng)
            records.append(Record(seed, fraction, condition, logits, labels, groups, source))
    return records


def measured(records: Sequence[Record], protocol: Protocol, task: Task = "multi_label") -> RecordRows:
    k = next(record.labels.shape[1] for record in records if record.labels is not None)
    return measure_records(
        records,
        dataset_id=DATASET,
        task=task,
        classes=[f"class_{c}" for c in range(k)],
        n_bins=protocol.metrics.ece_bins,
        n_replicates=protocol.metrics.test_replicates,
        encoder_id="encoder",
    )


def axes_of(
    records: Sequence[Record], protocol: Protocol, task: Task = "multi_label", shift: str | None = SHIFT
) -> Any:
    rows = measured(records, protocol, task)
    return cell_axes(rows.label_metrics, rows.run_records, protocol=protocol, shift_id=shift)


def seed_values(axes: pl.DataFrame) -> dict[tuple[str, str], list[float | None]]:
    return {(row["axis"], row["variant"]): row["seed_values"] for row in axes.to_dicts()}


def assumed_axes(protocol: Protocol) -> pl.DataFrame:
    """Return axes that say that every value is defined."""
    rows = [
        {"axis": a, "variant": v, "seed_values": [0.5] * len(protocol.seeds), "reason": None} for a, v in REPLICATED
    ]
    return pl.DataFrame(rows, schema_overrides={"reason": pl.String})


def at_equal_weights(records: Sequence[Record], axes: pl.DataFrame, protocol: Protocol, **changes: Any) -> Any:
    arguments = {"task": "multi_label", "shift_id": SHIFT} | changes

    def ones(source: str, n_groups: int) -> Weights:
        return np.ones((1, n_groups))

    return replicated_axes(records, axes, ones, n_replicates=1, protocol=protocol, **arguments)


def replicate(
    records: Sequence[Record], protocol: Protocol, axes: pl.DataFrame | None = None, n: int = 200, **changes: Any
) -> dict[tuple[str, str], Weights]:
    """Return replicates under the weights of the dataset; small caches as the stage's."""
    arguments = {"task": "multi_label", "shift_id": SHIFT} | changes
    axes = axes_of(records, protocol) if axes is None else axes

    def drawn(source: str, n_groups: int) -> Weights:
        return group_weights(f"{DATASET}/{source}", n_groups, n)

    return replicated_axes(records, axes, drawn, n_replicates=n, protocol=protocol, **arguments)


def with_classes(record: Record, **changes: Any) -> Record:
    assert record.logits is not None
    assert record.labels is not None
    logits, labels = record.logits.copy(), record.labels.copy()
    for column, value in changes.get("logits", {}).items():
        logits[:, column] = value
    for column, value in changes.get("labels", {}).items():
        labels[:, column] = value
    return replace(record, logits=logits, labels=labels)


def hard_records(protocol: Protocol) -> list[Record]:
    """Return multi-label records with a class that is absent from the target, one not fitted, and unknown labels."""
    records = []
    for record in make_records(protocol):
        assert record.labels is not None
        labels = record.labels.copy()
        labels[::7, 1] = -1
        record = replace(record, labels=labels)
        if record.source_id == SHIFT:
            record = with_classes(record, labels={2: 0})
        if (record.seed, record.fraction) == (0, 0.1):
            record = with_classes(record, logits={0: np.nan})
        records.append(record)
    return records


@pytest.mark.parametrize("task", ["multi_label", "single_label", "ordinal"])
def test_equal_weights_give_the_axes_of_the_cell(protocol: Protocol, task: Task) -> None:
    if task == "multi_label":
        records, shift = hard_records(protocol), SHIFT
    else:
        records, shift = make_records(protocol, task=task, shift=None), None
        records = [
            Record(r.seed, 0.1, CLEAN, reason="infeasible_fraction") if r.fraction == 0.1 else r for r in records
        ]
    axes = axes_of(records, protocol, task, shift)
    found = at_equal_weights(records, axes, protocol, task=task, shift_id=shift)
    right = seed_values(axes)
    assert tuple(found) == REPLICATED
    for key, values in found.items():
        assert values.shape == (1, len(protocol.seeds))
        np.testing.assert_allclose(values[0], right[key], rtol=0, atol=1e-12, err_msg=str(key))


def test_a_replicate_is_the_axis_of_its_aurocs(protocol: Protocol) -> None:
    # The scalar definitions of cell_axes, fed with the AUROCs of one replicate.
    records = hard_records(protocol)
    axes = axes_of(records, protocol)
    found = replicate(records, protocol, axes, n=25)
    for b in range(25):
        labels, runs = [], []
        for record in records:
            assert record.logits is not None
            assert record.labels is not None
            assert record.groups is not None
            key = {"seed": record.seed, "label_fraction": record.fraction, "condition_id": record.condition}
            weights = group_weights(f"{DATASET}/{record.source_id}", int(record.groups.max()) + 1, 25)[b : b + 1]
            drawn = auroc_replicates(record.logits, record.labels, "multi_label", record.groups, weights)
            aurocs = [None if np.isnan(value) else float(value) for value in drawn.per_label[0]]
            labels += [key | {"class_name": str(c), "auroc": value} for c, value in enumerate(aurocs)]
            runs.append(key | {"macro_auroc": float(drawn.values[0])})
        right = cell_axes(
            pl.DataFrame(labels, schema=SPECS["label_metrics"].polars_schema()),
            pl.DataFrame(runs, schema=SPECS["run_records"].polars_schema()),
            protocol=protocol,
            shift_id=SHIFT,
        )
        for key, values in seed_values(right).items():
            if key in found and key[0] != "calibration":
                np.testing.assert_allclose(found[key][b], values, rtol=0, atol=1e-12, err_msg=str(key))


def test_close_to_the_axes_of_repeated_images(protocol: Protocol) -> None:
    # Every drawn group's images repeated, all metrics and axes computed anew. ECE is exact, the others to first order.
    records = make_records(protocol, n_groups=60)
    axes = axes_of(records, protocol)
    n = 25
    found = replicate(records, protocol, axes, n=n)
    repeated: dict[tuple[str, str], list[Any]] = {key: [] for key in found}
    quick = protocol.model_copy(update={"metrics": protocol.metrics.model_copy(update={"test_replicates": 2})})
    for b in range(n):
        resampled = []
        for record in records:
            assert record.logits is not None
            assert record.labels is not None
            assert record.groups is not None
            weights = group_weights(f"{DATASET}/{record.source_id}", int(record.groups.max()) + 1, n)[b]
            rows = np.repeat(np.arange(len(record.groups)), weights[record.groups].astype(int))
            resampled.append(
                replace(record, logits=record.logits[rows], labels=record.labels[rows], groups=record.groups[rows])
            )
        for key, values in seed_values(axes_of(resampled, quick)).items():
            if key in repeated:
                repeated[key].append(values)
    for key, values in found.items():
        right = np.array(repeated[key], dtype=float)
        if key[0] == "calibration":
            np.testing.assert_allclose(values, right, rtol=0, atol=1e-12)
        else:
            assert np.corrcoef(values.ravel(), right.ravel())[0, 1] > 0.97, key
            assert np.std(values) == pytest.approx(np.std(right), rel=0.15), key


def test_intervals_of_the_records_rest_on_the_same_weights(protocol: Protocol) -> None:
    records = make_records(protocol)
    rows = measured(records, protocol)
    axes = cell_axes(rows.label_metrics, rows.run_records, protocol=protocol, shift_id=SHIFT)
    frame = axis_replicates(
        records, axes, dataset_id=DATASET, task="multi_label", protocol=protocol, shift_id=SHIFT
    ).filter(axis="calibration")
    errors = 1 - np.array(frame.get_column("seed_values").to_list())
    clean = rows.run_records.filter(label_fraction=1.0, condition_id=CLEAN).sort("seed").to_dicts()
    for record, values in zip(clean, errors.T, strict=True):
        interval = ece_interval(values, record["ece"])
        assert interval.low == pytest.approx(record["ece_ci_low"], abs=1e-6)
        assert interval.high == pytest.approx(record["ece_ci_high"], abs=1e-6)


def test_rows_of_the_table(protocol: Protocol) -> None:
    records = make_records(protocol)
    axes = axes_of(records, protocol)
    frame = axis_replicates(records, axes, dataset_id=DATASET, task="multi_label", protocol=protocol, shift_id=SHIFT)
    assert frame.schema == SPECS["axis_replicates"].computed_schema()
    b = protocol.metrics.test_replicates
    assert frame.height == len(REPLICATED) * b
    values = replicate(records, protocol, axes, n=b)
    for (axis, variant), of_axis in frame.group_by("axis", "variant", maintain_order=True):
        assert of_axis.get_column("replicate").to_list() == list(range(b))
        stored = np.array(of_axis.get_column("seed_values").to_list(), dtype=float)
        np.testing.assert_allclose(stored, values[str(axis), str(variant)], rtol=1e-7)
    assert frame.get_column("n_seeds").unique().to_list() == [len(protocol.seeds)]
    assert frame.get_column("reason").null_count() == frame.height


def test_order_of_the_records_and_of_the_images_moves_nothing(protocol: Protocol) -> None:
    records = make_records(protocol)
    axes = axes_of(records, protocol)
    found = replicate(records, protocol, axes)
    for key, values in replicate(records[::-1], protocol, axes).items():
        np.testing.assert_array_equal(values, found[key])
    mirrored = [
        replace(r, logits=r.logits[::-1], labels=r.labels[::-1], groups=r.groups[::-1])
        for r in records
        if r.logits is not None and r.labels is not None and r.groups is not None
    ]
    for key, values in replicate(mirrored, protocol, axes).items():
        np.testing.assert_allclose(values, found[key], rtol=0, atol=1e-12)


def test_corrupted_images_below_all_labels_are_not_used(protocol: Protocol) -> None:
    records = make_records(protocol)
    axes = axes_of(records, protocol)
    unused = [replace(r, fraction=0.5) for r in records if r.condition not in (CLEAN, "shift_far")]
    found = replicate(records, protocol, axes)
    for key, values in replicate([*records, *unused], protocol, axes).items():
        np.testing.assert_array_equal(values, found[key])


def test_a_class_undefined_in_a_replicate(protocol: Protocol) -> None:
    # On the test images, the only positives of class 2 are in group 0: where it is not drawn, no macro is complete.
    records = []
    for record in make_records(protocol):
        assert record.labels is not None
        if record.source_id == "primary":
            labels = record.labels.copy()
            labels[:, 2] = 0
            labels[:3, 2] = 1
            record = replace(record, labels=labels)
        records.append(record)
    axes = axes_of(records, protocol)
    assert axes.get_column("reason").null_count() == axes.height
    frame = axis_replicates(records, axes, dataset_id=DATASET, task="multi_label", protocol=protocol, shift_id=SHIFT)
    b = protocol.metrics.test_replicates
    is_absent = group_weights(f"{DATASET}/primary", 40, b)[:, 0] == 0
    assert 0.2 * b < is_absent.sum() < 0.6 * b
    for (axis, variant), of_axis in frame.group_by("axis", "variant"):
        expected = np.where(is_absent & (axis != "calibration"), 0, len(protocol.seeds))
        assert of_axis.get_column("n_seeds").to_list() == expected.tolist(), (axis, variant)
        reasons = ["undefined_term" if n == 0 else None for n in expected]
        assert of_axis.get_column("reason").to_list() == reasons
        nulls = of_axis.get_column("seed_values").list.eval(pl.element().is_null()).list.sum()
        assert nulls.to_list() == (len(protocol.seeds) - expected).tolist()


def test_what_the_axes_lack_is_null_with_their_reason(protocol: Protocol) -> None:
    records = [
        Record(r.seed, r.fraction, r.condition, reason="no_access") if r.source_id == SHIFT else r
        for r in make_records(protocol)
    ]
    # seed 1 has no fit at one fraction, and the cell is near chance
    records = [
        Record(1, 0.5, CLEAN, reason="one_class_train") if (r.seed, r.fraction) == (1, 0.5) else r for r in records
    ]
    rows = measured(records, protocol)
    runs = rows.run_records.with_columns(macro_auroc_ci_low=0.5)
    axes = cell_axes(rows.label_metrics, runs, protocol=protocol, shift_id=SHIFT)
    frame = axis_replicates(records, axes, dataset_id=DATASET, task="multi_label", protocol=protocol, shift_id=SHIFT)
    found = {
        (row["axis"], row["variant"]): (row["n_seeds"], row["reason"])
        for row in frame.group_by("axis", "variant").agg(pl.col("n_seeds", "reason").unique().first()).to_dicts()
    }
    assert found == {
        ("discrimination", "primary"): (2, None),
        ("calibration", "primary"): (2, None),
        ("label_efficiency", "primary"): (1, "missing_seed"),
        ("label_efficiency", "chance_corrected"): (0, "near_chance"),
        ("robustness", "primary"): (0, "no_access"),
        ("robustness", "corruption_only"): (2, None),
        ("robustness", "chance_corrected"): (0, "near_chance"),
    }
    assert frame.filter(axis="label_efficiency", variant="primary").get_column("seed_values")[0].to_list()[1] is None


def test_a_cell_without_any_record(protocol: Protocol) -> None:
    records = [Record(s, f, c, reason="no_vectors") for s in protocol.seeds for f, c in STRENGTHS]
    runs = [
        {"seed": r.seed, "label_fraction": r.fraction, "condition_id": r.condition, "reason": r.reason} for r in records
    ]
    axes = cell_axes(
        SPECS["label_metrics"].empty(),
        pl.DataFrame(runs, schema=SPECS["run_records"].polars_schema()),
        protocol=protocol,
        shift_id=SHIFT,
    )
    frame = axis_replicates(records, axes, dataset_id=DATASET, task="multi_label", protocol=protocol, shift_id=SHIFT)
    assert frame.height == len(REPLICATED) * protocol.metrics.test_replicates
    assert frame.select("n_seeds", "reason").unique().rows() == [(0, "no_vectors")]


def test_one_group_tells_nothing(protocol: Protocol) -> None:
    records = [replace(r, groups=np.zeros_like(r.groups)) for r in make_records(protocol)]
    for values in replicate(records, protocol, assumed_axes(protocol)).values():
        assert np.isnan(values).all()


def test_a_denominator_at_chance_is_undefined(protocol: Protocol) -> None:
    # Constant scores: the clean AUROC is .5 in every replicate, so nothing can be divided by its distance to chance.
    records = [
        with_classes(r, logits={0: 0, 1: 0, 2: 0}) if r.condition == CLEAN else r for r in make_records(protocol)
    ]
    found = replicate(records, protocol, assumed_axes(protocol))
    assert np.isnan(found["label_efficiency", "chance_corrected"]).all()
    assert np.isnan(found["robustness", "chance_corrected"]).all()
    np.testing.assert_array_equal(found["label_efficiency", "primary"], 1.0)


def test_records_that_are_not_those_of_the_axes_are_refused(protocol: Protocol) -> None:
    records = make_records(protocol)
    axes = axes_of(records, protocol)
    with pytest.raises(ValueError, match=r"robustness \(primary\) of seed 0 has a value, but no record"):
        replicate([r for r in records if r.condition != "blur-s3"], protocol, axes)
    with pytest.raises(ValueError, match=r"label_efficiency \(primary\) of seed 1"):
        replicate([r for r in records if (r.seed, r.fraction) != (1, 0.5)], protocol, axes)
    with pytest.raises(ValueError, match=r"no row for calibration \(primary\)"):
        replicate(records, protocol, axes.filter(pl.col("axis") != "calibration"))


def test_the_partition_of_a_cell_is_small(protocol: Protocol) -> None:
    # Five seeds and 1,000 replicates, written as the lake does.
    content = protocol.model_dump() | {"seeds": (0, 1, 2, 3, 4)}
    content["metrics"] |= {"test_replicates": 1000}
    full = Protocol.model_validate(content)
    records = make_records(full, n_groups=200)
    axes = axes_of(records, full)
    frame = axis_replicates(records, axes, dataset_id=DATASET, task="multi_label", protocol=full, shift_id=SHIFT)
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    assert frame.get_column("reason").null_count() == frame.height
    assert len(buffer.getvalue()) < 200_000


def test_the_paired_difference_of_equal_encoders_covers_zero(protocol: Protocol) -> None:
    # Two encoders of equal strength on the same groups, 300 cohorts: their axes differ by chance alone. They are
    # overconfident, as probes on few images are. Near calibration the absolute gaps of an ECE fold at 0, and its
    # intervals are too wide on small samples: .984 at 60 groups, .962 at 400 (500 cohorts, logits not doubled).
    single = Protocol.model_validate(protocol.model_dump() | {"seeds": (0,)})
    axes = assumed_axes(single)
    n_cohorts, n_groups, b = 300, 60, 200
    n_covered = dict.fromkeys(REPLICATED, 0)
    for i in range(n_cohorts):
        rng = np.random.default_rng([i, 23])
        truth = {source: cohort("multi_label", n_groups, 2, rng) for source in ("primary", SHIFT)}
        weights = {source: group_weights(f"cohort-{i}/{source}", n_groups, b) for source in truth}
        of_encoders = []
        for _ in range(2):
            records = []
            for (fraction, condition), strength in STRENGTHS.items():
                source = SHIFT if condition == "shift_far" else "primary"
                logits = 2 * logits_of(*truth[source], strength, rng)
                records.append(Record(0, fraction, condition, logits, *truth[source], source))
            drawn = replicated_axes(
                records,
                axes,
                lambda source, n_groups, weights=weights: weights[source],
                n_replicates=b,
                task="multi_label",
                protocol=single,
                shift_id=SHIFT,
            )
            of_encoders.append(drawn)
        for key in REPLICATED:
            first, second = (drawn[key][:, 0] for drawn in of_encoders)
            interval = percentile_interval(first - second)
            assert interval.low is not None
            assert interval.high is not None
            n_covered[key] += interval.low <= 0 <= interval.high
    shares = {key: n / n_cohorts for key, n in n_covered.items()}
    assert all(0.90 <= share <= 0.98 for share in shares.values()), shares
