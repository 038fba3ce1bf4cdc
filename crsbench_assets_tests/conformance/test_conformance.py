"""The implementation against ``plain``, on the tiny benchmark and on random panels.

What lives here: both chains from the same logits, number by number; the stored right answers against both; random
axis values with ties, missing cells and controls. What stays out: a whole home (``compare.check_home``, run where a
home is made); checks of single functions, which stand in each package's tests.
Source: protocol page, sections 5 to 7.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from crsbench_assets.aggregates.axes import cell_axes
from crsbench_assets.config.protocol import Protocol
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.config.registry import load_protocol
from crsbench_assets.metrics.compute import record_metrics
from crsbench_assets.metrics.records import Record, RecordRows, measure_records
from crsbench_assets.scores.crs import crs_scores
from crsbench_assets.scores.panel import (
    PanelConditions,
    freeze,
    provisional_panel,
    reference_panels,
)
from crsbench_assets.scores.profile import AXIS_VALUES_SCHEMA, ENCODERS_SCHEMA, RobustnessVariant, axis_values
from crsbench_assets.scores.ranks import ranks
from crsbench_assets_tests.conformance import plain, tiny
from crsbench_assets_tests.conformance.compare import (
    SEED_KEY,
    check_home,
    deviation,
    largest_deviation,
    seed_rows,
    without_seed_values,
)

TOLERANCE = 1e-12
TOLERANCE = 2.0**-24
"""Largest rounding error of a float32 below 2."""
RECORD_KEY = ["encoder_id", "dataset_id", "seed", "label_fraction", "condition_id"]
KEYS = {
    "run_records": RECORD_KEY,
    "label_metrics": [*RECORD_KEY, "class_name"],
    "cell_axes": ["encoder_id", "dataset_id", "axis", "variant"],
    "reference_panels": ["dataset_id", "axis"],
    "cell_scores": ["encoder_id", "dataset_id", "axis"],
    "crs_scores": ["encoder_id"],
}
TEXT = {"reason", "class_name", "condition_id", "encoder_id", "dataset_id", "axis", "variant"}
Tables = dict[str, pl.DataFrame]


@pytest.fixture(scope="module")
def protocol() -> Protocol:
    content = load_protocol("crs-1", Path()).model_dump()
    content |= {"seeds": tiny.GRID.seeds, "label_fractions": tiny.GRID.label_fractions}
    content["corruptions"] = {"kinds": ("blur", "jpeg"), "severities": (1,)}
    return Protocol.model_validate(content)


def _record(stored: tiny.StoredRecord) -> Record:
    if not stored.logits:
        return Record(stored.seed, stored.fraction, stored.condition, reason="infeasible_fraction")
    return Record(
        stored.seed,
        stored.fraction,
        stored.condition,
        logits=np.array(stored.logits, dtype=np.float32),  # None becomes NaN
        labels=np.array([[-1 if y is None else y for y in row] for row in stored.labels], dtype=np.int8),
        groups=np.array(stored.groups),
        source_id=stored.source,
    )


def _measured(encoder: str, dataset_id: str, protocol: Protocol) -> RecordRows:
    dataset = tiny.DATASETS[dataset_id]
    return measure_records(
        [_record(stored) for stored in tiny.records(dataset_id) if stored.encoder == encoder],
        dataset_id=dataset_id,
        task="multi_label" if dataset.is_multi_label else "single_label",
        classes=dataset.classes,
        n_bins=protocol.metrics.ece_bins,
        n_replicates=100,
        encoder_id=encoder,
    )


def _conditions(
    protocol: Protocol, datasets: list[str], robustness_variant: RobustnessVariant = "shift"
) -> PanelConditions:
    return PanelConditions(
        protocol_id=f"{protocol.id}@{protocol.hash[:12]}",
        protocol_hash=protocol.hash,
        arm="main",
        label_policy="u_zeros",
        robustness_variant=robustness_variant,
        canonical_px=448,
        caps={},
        test_set_hash=dict.fromkeys(datasets, "0" * 64),
        feasible_fractions=dict.fromkeys(datasets, (1.0,)),
        code_versions={},
    )


def _encoders() -> pl.DataFrame:
    rows = [
        (
            encoder,
            "candidate" if encoder in tiny.MEMBERS else "control",
            [d for d in tiny.DATASETS if encoder in tiny.DATASETS[d].encoders],
        )
        for encoder in tiny.SIGNALS
    ]
    return pl.DataFrame(rows, schema=ENCODERS_SCHEMA, orient="row")


@pytest.fixture(scope="module")
def pipeline(protocol: Protocol) -> Tables:
    """All tables, by the implementation, from the stored logits."""
    tables: dict[str, list[pl.DataFrame]] = {"run_records": [], "label_metrics": [], "cell_axes": []}
    for dataset_id, dataset in tiny.DATASETS.items():
        for encoder in dataset.encoders:
            rows = _measured(encoder, dataset_id, protocol)
            axes = cell_axes(rows.label_metrics, rows.run_records, protocol=protocol, shift_id=dataset.shift)
            names = {"encoder_id": pl.lit(encoder), "dataset_id": pl.lit(dataset_id)}
            tables["run_records"].append(rows.run_records.with_columns(**names))
            tables["label_metrics"].append(rows.label_metrics.with_columns(**names))
            tables["cell_axes"].append(axes.with_columns(**names))
    found = {table: pl.concat(frames) for table, frames in tables.items()}
    values, encoders = axis_values(found["cell_axes"], "shift"), _encoders()
    panel, incomplete = provisional_panel(values, encoders, _conditions(protocol, list(tiny.DATASETS)))
    assert panel is not None
    assert not incomplete
    found["crs_scores"], found["cell_scores"] = crs_scores(values, encoders, panel, protocol, code_version=1)
    found["reference_panels"] = reference_panels(panel, protocol.scores)
    found["ranks"] = ranks(found["crs_scores"], encoders)
    return found


def _comparable(table: str, tables: Tables) -> list[dict[str, Any]]:
    rows = tables[table].to_dicts()
    if table == "cell_axes":
        return [row for row in rows if row["variant"] in {"primary", "corruption_only"}]
    if table == "crs_scores":
        rank_of = dict(tables["ranks"].select("encoder_id", "rank").iter_rows())
        return [row | {"rank": rank_of[row["encoder_id"]]} for row in rows]
    return rows


def _stored(table: str) -> list[dict[str, Any]]:
    def value(name: str, text: str | None) -> Any:
        if text is None or name in TEXT or name.endswith("_encoder_id"):
            return text
        if name == "seed_values":
            return [None if own == "-" else float(own) for own in text.split()]
        return float(text)

    return [{name: value(name, text) for name, text in row.items()} for row in tiny.read_rows(f"right_{table}")]


@pytest.mark.parametrize("table", KEYS)
def test_the_implementation_gives_the_right_answers(table: str, pipeline: Tables) -> None:
    right = without_seed_values(_stored(table))
    assert largest_deviation(right, _comparable(table, pipeline), KEYS[table]) <= TOLERANCE


def test_the_value_of_every_seed_is_right_to_the_precision_it_is_stored_with(pipeline: Tables) -> None:
    right = seed_rows(_stored("cell_axes"), tiny.GRID)
    found = seed_rows(_comparable("cell_axes", pipeline), tiny.GRID)
    assert largest_deviation(right, found, SEED_KEY) <= TOLERANCE


def test_the_stored_answers_are_those_of_plain_python() -> None:
    answers = tiny.answers()
    assert answers.keys() == KEYS.keys()
    for table, rows in answers.items():
        right = _stored(table)
        assert largest_deviation(without_seed_values(right), rows, KEYS[table]) <= TOLERANCE, table
        if table == "cell_axes":
            right, rows = seed_rows(right, tiny.GRID), seed_rows(rows, tiny.GRID)
            assert largest_deviation(right, rows, SEED_KEY) <= TOLERANCE


def test_the_tiny_benchmark_holds_the_cases_it_is_made_for() -> None:
    labels = {tuple(row[name] for name in KEYS["label_metrics"]): row for row in _stored("label_metrics")}
    assert labels["alpha", "chest", 0.0, 1.0, "shift_ward", "fracture"]["auroc"] is None  # no positive
    assert labels["alpha", "chest", 0.0, 1.0, "shift_ward", "fracture"]["ece"] is not None
    assert labels["alpha", "chest", 0.0, 0.05, "clean", "fracture"]["ece"] is None  # not fitted
    assert labels["alpha", "chest", 1.0, 0.05, "clean", "fracture"]["auroc"] is not None
    assert labels["beta", "skin", 1.0, 1.0, "clean", "melanoma"]["auroc"] is None
    scores = {row["encoder_id"]: row for row in _stored("crs_scores")}
    assert scores["alpha"]["pareto"] > 0.5 > scores["gamma"]["pareto"]  # somebody is dominated
    assert scores["untrained"]["rank"] is None  # a control
    z_raw = [row["z_raw"] for row in _stored("cell_scores")]
    assert min(z_raw) < 0 < 1 < max(z_raw)  # clipping matters
    logits = [value for record in tiny.records("chest") for row in record.logits for value in row if value is not None]
    on_edge = [
        x for x in logits if abs(plain.N_BINS * plain.sigmoid(x) - round(plain.N_BINS * plain.sigmoid(x))) < 1e-6
    ]
    assert len(on_edge) > 100
    assert max(logits) == -min(logits) == 40.0
    rows = [[value for value in row if value is not None] for record in tiny.records("skin") for row in record.logits]
    assert any(row.count(max(row)) > 1 for row in rows)  # argmax ties


def test_the_shared_labels_matter_in_the_tiny_benchmark() -> None:
    """A macro over all labels of each term gives another robustness, so the right answer tests the rule."""
    runs = {tuple(row[name] for name in RECORD_KEY): row["macro_auroc"] for row in _stored("run_records")}
    axes = {tuple(row[name] for name in KEYS["cell_axes"]): row for row in _stored("cell_axes")}
    primary = axes["alpha", "chest", "robustness", "primary"]["seed_values"][0]
    corruption_only = axes["alpha", "chest", "robustness", "corruption_only"]["seed_values"][0]
    clean, shift = (runs["alpha", "chest", 0.0, 1.0, name] for name in ("clean", "shift_ward"))
    naive = 0.5 * corruption_only + 0.5 * shift / clean
    assert abs(primary - naive) > 1e-3


def test_a_panel_without_the_shift_target_agrees(pipeline: Tables, protocol: Protocol) -> None:
    values, encoders = axis_values(pipeline["cell_axes"], "corruption_only"), _encoders()
    conditions = _conditions(protocol, list(tiny.DATASETS), "corruption_only")
    panel, _ = freeze("without-shift", values, encoders, conditions)
    scores, cells = crs_scores(values, encoders, panel, protocol, code_version=1)
    found = {
        "reference_panels": reference_panels(panel, protocol.scores),
        "cell_scores": cells,
        "crs_scores": scores,
    }
    right_cells = plain.complete_cells(_stored("cell_axes"), "corruption_only")
    right = plain.score_tables(right_cells, list(right_cells), tiny.MEMBERS)
    for table, frame in found.items():
        assert largest_deviation(right[table], frame.to_dicts(), KEYS[table]) <= TOLERANCE, table
    home = {**pipeline, **found, "encoders": encoders.with_columns(is_retired=False)}
    assert max(check_home(home, tiny.GRID)[table] for table in found) <= TOLERANCE


@pytest.mark.parametrize("trial", range(5))
def test_two_class_records_agree_where_probabilities_saturate(trial: int) -> None:
    """At logits near 80 the probabilities of all images are 1 in float64; the order of the logits is not lost."""
    generator = keyed_generator("two classes", trial)
    logits = np.round(generator.normal(size=(30, 2)) * 8) + np.array([80.0, 0.0])
    labels = np.eye(2, dtype=np.int8)[generator.integers(0, 2, size=30)]
    right = plain.measured(logits.tolist(), labels.tolist(), is_multi_label=False)
    found = record_metrics(logits, labels, "single_label", groups=np.arange(30), n_bins=plain.N_BINS)
    assert len(set(right["auroc"])) == 1
    assert deviation(right["macro_auroc"], found.macro_auroc) <= TOLERANCE
    assert deviation(right["ece"], found.ece) <= TOLERANCE
    assert {plain.softmax(row)[0] for row in logits.tolist()} == {1.0}
    assert right["macro_auroc"] != 0.5


def _random_cohort(trial: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Draw axis values in sixteenths (many ties), absent cells, controls, and one incomplete candidate in three."""
    generator = keyed_generator("random cohort", trial)
    names = [f"e{i:02}" for i in range(int(generator.integers(3, 12)))]
    encoders: list[tuple[str, str, list[str]]] = []
    values: list[tuple[str, str, str, float | None, str | None]] = []
    for i, encoder in enumerate(names):
        own = [d for d in ("d1", "d2", "d3") if generator.random() < 0.8] or ["d1"]
        encoders.append((encoder, "control" if i and generator.random() < 0.2 else "candidate", own))
        lacks = generator.random() < 0.1 and i > 0
        for dataset in own:
            for axis in plain.AXES:
                value = float(generator.integers(0, 17)) / 16
                values.append((encoder, dataset, axis, value, None))
        if lacks:
            values[-1] = (*values[-1][:3], None, "missing_seed")
        if i and generator.random() < 0.2:  # the same cells as the first encoder: a tie of everything
            first = [row for row in values if row[0] == names[0]]
            values = [row for row in values if row[0] != encoder] + [(encoder, *row[1:]) for row in first]
            encoders[-1] = (*encoders[-1][:2], encoders[0][2])
    return (
        pl.DataFrame(values, schema=AXIS_VALUES_SCHEMA, orient="row"),
        pl.DataFrame(encoders, schema=ENCODERS_SCHEMA, orient="row"),
    )


@pytest.mark.parametrize("trial", range(40))
def test_scores_agree_on_random_cohorts(trial: int, protocol: Protocol) -> None:
    values, encoders = _random_cohort(trial)
    cells = plain.complete_cells([row | {"variant": "primary"} for row in values.to_dicts()], "primary")
    applicable = {(row["encoder_id"], d) for row in encoders.to_dicts() for d in row["dataset_ids"]}
    missing = {encoder for encoder, dataset in applicable if (encoder, dataset) not in cells}
    candidates = set(encoders.filter(pl.col("role") == "candidate").get_column("encoder_id"))

    panel, incomplete = provisional_panel(values, encoders, _conditions(protocol, ["d1", "d2", "d3"]))
    assert panel is not None
    assert set(panel.members) == candidates - missing
    assert set(incomplete) == candidates & missing
    found_scores, found_cells = crs_scores(values, encoders, panel, protocol, code_version=1)
    right = plain.score_tables(cells, applicable, panel.members)

    found = {
        "reference_panels": reference_panels(panel, protocol.scores),
        "cell_scores": found_cells.filter(pl.col("status") == "ok"),
        "crs_scores": found_scores.filter(pl.col("status") == "ok"),
    }
    for table, frame in found.items():
        assert largest_deviation(right[table], frame.to_dicts(), KEYS[table]) <= TOLERANCE, table
    crs = {row["encoder_id"]: row["crs"] for row in found["crs_scores"].to_dicts() if row["encoder_id"] in candidates}
    rank_of = dict(ranks(found_scores, encoders).select("encoder_id", "rank").iter_rows())
    assert {encoder: rank for encoder, rank in rank_of.items() if rank is not None} == plain.competition_ranks(crs)


def test_scores_agree_for_encoders_outside_a_frozen_panel(protocol: Protocol) -> None:
    """A panel of half the candidates: the others lie beyond the anchors and move nobody."""
    values, encoders = _random_cohort(3)
    names = sorted(set(encoders.get_column("encoder_id")))
    inside = encoders.filter(pl.col("encoder_id").is_in(names[: len(names) // 2]))
    panel, _ = freeze("half", values, inside, _conditions(protocol, ["d1", "d2", "d3"]))
    found_scores, _ = crs_scores(values, encoders, panel, protocol, code_version=1)
    cells = plain.complete_cells([row | {"variant": "primary"} for row in values.to_dicts()], "primary")
    applicable = {(row["encoder_id"], d) for row in encoders.to_dicts() for d in row["dataset_ids"]}
    right = plain.score_tables(cells, applicable, panel.members)["crs_scores"]
    found = found_scores.filter(pl.col("status") == "ok")
    assert set(found.get_column("encoder_id")) - set(panel.members)
    assert largest_deviation(right, found.to_dicts(), ["encoder_id"]) <= TOLERANCE


@pytest.fixture
def home(pipeline: Tables) -> Tables:
    """The tiny benchmark's tables, as those of a home."""
    encoders = _encoders().select("encoder_id", "role", pl.lit(False).alias("is_retired"))
    return {**pipeline, "encoders": encoders}


def test_a_home_that_agrees_has_no_deviation(home: Tables) -> None:
    found = check_home(home, tiny.GRID)
    assert found.pop("cell_axes.seed_values") <= TOLERANCE
    assert found.keys() == {"run_records", "cell_axes", "reference_panels", "cell_scores", "crs_scores"}
    assert max(found.values()) <= TOLERANCE


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("run_records", "macro_auroc"),
        ("cell_axes", "value"),
        ("reference_panels", "anchor_low"),
        ("cell_scores", "z_raw"),
        ("crs_scores", "balance"),
    ],
)
def test_a_changed_number_is_found_in_its_table(home: Tables, table: str, column: str) -> None:
    changed = pl.when(pl.int_range(pl.len()) == 0).then(pl.col(column) + 1e-6).otherwise(pl.col(column))
    found = check_home({**home, table: home[table].with_columns(changed.alias(column))}, tiny.GRID)
    assert found[table] == pytest.approx(1e-6, rel=1e-3)


def test_a_missing_row_or_a_control_as_member_is_an_infinite_deviation(home: Tables) -> None:
    without_last = {**home, "cell_axes": home["cell_axes"].filter(pl.col("encoder_id") != "gamma")}
    assert check_home(without_last, tiny.GRID)["cell_axes"] == math.inf
    all_controls = home["encoders"].with_columns(role=pl.lit("control"))
    assert check_home({**home, "encoders": all_controls}, tiny.GRID)["crs_scores"] == math.inf


def test_nothing_to_compare_is_refused(home: Tables) -> None:
    with pytest.raises(ValueError, match="no panel"):
        check_home({**home, "crs_scores": home["crs_scores"].clear()}, tiny.GRID)
    with pytest.raises(ValueError, match="at least one"):
        largest_deviation([], [], ["encoder_id"])


def test_undefined_on_one_side_alone_is_an_infinite_deviation() -> None:
    assert deviation(None, None) == 0.0
    assert deviation(None, 0.5) == deviation(0.5, None) == deviation(0.5, math.nan) == math.inf
    assert deviation(0.5, 0.25) == 0.25
