from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.scores.crs import crs_scores, unscored
from crsbench_assets.scores.panel import Panel, provisional_panel
from crsbench_assets.tables.scores import SCORE_TABLES
from crsbench_assets_tests.scores.conftest import (
    DELTA,
    MEMBERS,
    Cohort,
    conditions_of,
    encoders_frame,
    freeze_cohort,
    values_frame,
)

SCHEMAS = {spec.name: spec.computed_schema() for spec in SCORE_TABLES}
PROFILE = [f"x_{axis}" for axis in AXES]


def score(
    cohort: Cohort, panel: Panel, protocol: Protocol, controls: tuple[str, ...] = ()
) -> tuple[dict[str, dict[str, Any]], pl.DataFrame]:
    """Return rows of crs_scores by encoder, and cell_scores."""
    scores, cells = crs_scores(values_frame(cohort), encoders_frame(cohort, controls), panel, protocol, code_version=1)
    assert scores.schema == SCHEMAS["crs_scores"]
    assert cells.schema == SCHEMAS["cell_scores"]
    return {row["encoder_id"]: row for row in scores.to_dicts()}, cells


def cell(cells: pl.DataFrame, encoder: str, dataset: str) -> list[dict[str, Any]]:
    return cells.filter((pl.col("encoder_id") == encoder) & (pl.col("dataset_id") == dataset)).to_dicts()


def test_every_part_by_hand(panel: Panel, protocol: Protocol) -> None:
    rows, _ = score(MEMBERS | DELTA, panel, protocol)
    right = {
        "alpha": ([1, 0.75, 1, 0.5], 2 / 3, 1 - math.sqrt(0.078125), 0.5, 0.649481, 1, 2),
        "beta": ([0.25, 0.5, 0.25, 0.75], 2 / 3, 1 - math.sqrt(0.359375), 0.25, 0.503489, 2, 2),
        "gamma": ([0, 0, 0, 0], 1 / 6, 0.0, 0.0, 0.083333, 3, 1),
        "delta": ([1, 0.75, 0.25, 0.75], 5 / 6, 1 - math.sqrt(0.171875), 0.25, 0.642293, 2, 2),
    }
    for encoder, (profile, pareto, balance, worst, crs, rank, n_datasets) in right.items():
        row = rows[encoder]
        assert [row[name] for name in PROFILE] == profile
        assert row["pareto"] == pytest.approx(pareto)
        assert row["balance"] == pytest.approx(balance)
        assert row["worst"] == worst
        assert row["crs"] == pytest.approx(crs, abs=1e-6)
        assert (row["rank_panel"], row["n_datasets"]) == (rank, n_datasets)
        assert (row["status"], row["reason"], row["is_member"]) == ("ok", None, encoder != "delta")
        assert row["panel_id"] == panel.panel_id


def test_cells_by_hand(panel: Panel, protocol: Protocol) -> None:
    # delta on far: z_raw (1, 1, 0, .5) against alpha (1, 1, 1, .5), which dominates it, and beta (0, 0, 0, .5),
    # which it dominates: P = .5. B = 1 - sqrt(.25 (1 + .25)) = .440983, W = 0, CRS = .382295.
    _, cells = score(MEMBERS | DELTA, panel, protocol)
    rows = cell(cells, "delta", "far")
    assert [row["axis"] for row in rows] == list(AXES)
    assert [row["z_raw"] for row in rows] == [1, 1, 0, 0.5]
    assert [row["reason"] for row in rows] == [None, None, None, "degenerate_axis"]
    for row in rows:
        assert (row["pareto"], row["worst"], row["status"]) == (0.5, 0.0, "ok")
        assert row["balance"] == pytest.approx(1 - math.sqrt(0.3125))
        assert row["crs"] == pytest.approx(0.382295, abs=1e-6)
    above = cell(cells, "delta", "near")[0]
    assert (above["z_raw"], above["z"]) == (1.5, 1.0)
    assert cell(cells, "gamma", "far") == []


def test_incomplete_encoder_keeps_its_row(panel: Panel, protocol: Protocol) -> None:
    cohort: Cohort = MEMBERS | {"half": {"near": (1.0, None, 1.0, 1.0), "far": (0.75, 0.5, 0.75, 0.625)}}
    rows, cells = score(cohort, panel, protocol)
    row = rows["half"]
    assert (row["status"], row["reason"], row["n_datasets"]) == ("incomplete", "incomplete", 2)
    assert {row[name] for name in ("crs", "pareto", "balance", "worst", "rank_panel", *PROFILE)} == {None}
    near = cell(cells, "half", "near")
    assert [r["z"] for r in near] == [1.0, None, 1.0, 1.0]
    assert [r["reason"] for r in near] == ["incomplete", "undefined_term", "incomplete", "incomplete"]
    assert {(r["status"], r["crs"]) for r in near} == {("incomplete", None)}
    assert {r["status"] for r in cell(cells, "half", "far")} == {"ok"}


def test_applicable_cell_without_any_row_is_incomplete(panel: Panel, protocol: Protocol) -> None:
    cohort: Cohort = {"late": {"near": MEMBERS["alpha"]["near"], "far": (None,) * 4}}
    values = values_frame(cohort).filter(pl.col("dataset_id") == "near")
    scores, cells = crs_scores(values, encoders_frame(cohort), panel, protocol, code_version=1)
    assert scores["status"].to_list() == ["incomplete"]
    assert {row["reason"] for row in cell(cells, "late", "far")} == {"incomplete"}


def test_dataset_without_anchors(panel: Panel, protocol: Protocol) -> None:
    elsewhere: Cohort = {
        "new": {"new": (1.0, 1.0, 1.0, 1.0)},
        "both": MEMBERS["alpha"] | {"new": (1.0, None, 0.0, 0.0)},
    }
    rows, cells = score(MEMBERS | elsewhere, panel, protocol)
    assert (rows["new"]["crs"], rows["new"]["status"], rows["new"]["reason"]) == (None, "no_anchor", "no_anchor")
    assert rows["new"]["n_datasets"] == 0
    # It neither counts in the means nor makes the encoder incomplete.
    assert rows["both"]["crs"] == rows["alpha"]["crs"]
    assert {(row["z"], row["reason"]) for row in cell(cells, "both", "new")} == {(None, "no_anchor")}


def test_identical_member_and_candidate(panel: Panel, protocol: Protocol) -> None:
    rows, _ = score(MEMBERS | {f"copy_{name}": cells for name, cells in MEMBERS.items()}, panel, protocol)
    for name in MEMBERS:
        copy = rows[f"copy_{name}"]
        assert copy["crs"] == rows[name]["crs"]
        assert [copy[column] for column in PROFILE] == [rows[name][column] for column in PROFILE]
        assert copy["rank_panel"] == rows[name]["rank_panel"]


def test_null_encoder_never_anchors(panel: Panel, protocol: Protocol) -> None:
    null: Cohort = {"a-null": {"near": (-0.5, 0.4, 0.985, 0.999), "far": (0.5, 0.4, 0.985, 0.999)}}
    with_null = freeze_cohort(MEMBERS | null, protocol, controls=("a-null",))
    assert with_null == panel
    rows, _ = score(MEMBERS | null, with_null, protocol, controls=("a-null",))
    alone, _ = score(MEMBERS, panel, protocol)
    assert {name: rows[name] for name in MEMBERS} == alone
    assert (rows["a-null"]["status"], rows["a-null"]["is_member"]) == ("ok", False)


def test_recomputed_member_is_scored_as_it_is_now(panel: Panel, protocol: Protocol) -> None:
    frozen, _ = score(MEMBERS, panel, protocol)
    better = MEMBERS | {"beta": {"near": (1.0, 1.0, 1.0, 1.0), "far": (0.75, 0.5, 0.75, 0.625)}}
    rows, _ = score(better, panel, protocol)
    assert rows["beta"]["crs"] > frozen["beta"]["crs"]
    assert rows["beta"]["rank_panel"] == 1
    assert rows["alpha"] == frozen["alpha"]
    # Worse than it was frozen with, it does not rank behind its own former self: gamma .083 stays behind it.
    worse, _ = score({"alpha": {"near": (0.5, 0.5, 0.5, 0.5), "far": (0.5, 0.25, 0.25, 0.625)}}, panel, protocol)
    assert frozen["gamma"]["crs"] < worse["alpha"]["crs"] < frozen["beta"]["crs"]
    assert worse["alpha"]["rank_panel"] == 2


def test_inputs_hash_names_what_the_score_depends_on(panel: Panel, protocol: Protocol) -> None:
    first, _ = score(MEMBERS | DELTA, panel, protocol)
    moved, _ = score(MEMBERS | DELTA | {"beta": MEMBERS["alpha"]}, panel, protocol)
    assert first["delta"] == moved["delta"]
    assert first["beta"]["inputs_hash"] != moved["beta"]["inputs_hash"]
    elsewhere, _ = score({"delta": DELTA["delta"] | {"new": (1.0, 1.0, 1.0, 1.0)}}, panel, protocol)
    assert elsewhere["delta"] == first["delta"]
    newer, _ = crs_scores(values_frame(DELTA), encoders_frame(DELTA), panel, protocol, code_version=2)
    assert newer["inputs_hash"][0] != first["delta"]["inputs_hash"]
    smaller, _ = score(DELTA, freeze_cohort({"alpha": MEMBERS["alpha"]}, protocol), protocol)
    assert smaller["delta"]["inputs_hash"] != first["delta"]["inputs_hash"]


def test_inputs_hash_tells_provisional_cohorts_apart(protocol: Protocol) -> None:
    hashes = set()
    for cohort in (MEMBERS, {"alpha": MEMBERS["alpha"]}):
        panel, _ = provisional_panel(values_frame(cohort), encoders_frame(cohort), conditions_of(protocol))
        assert panel is not None
        rows, _ = score(DELTA, panel, protocol)
        assert rows["delta"]["panel_id"] == "provisional"
        hashes.add(rows["delta"]["inputs_hash"])
    assert len(hashes) == 2


def test_panel_of_one_member_is_degenerate_and_neutral(protocol: Protocol) -> None:
    panel = freeze_cohort({"alpha": MEMBERS["alpha"]}, protocol)
    rows, _ = score(MEMBERS, panel, protocol)
    # All axes at .5: P = .5, B = 1 - .5, W = .5, whatever the encoder.
    assert {row["crs"] for row in rows.values()} == {0.5}


def test_another_protocol_is_refused(panel: Panel, protocol: Protocol) -> None:
    other = protocol.model_copy(update={"id": "crs-2"})
    other.__dict__.pop("hash", None)
    with pytest.raises(ConfigError, match="never mixed"):
        crs_scores(values_frame(MEMBERS), encoders_frame(MEMBERS), panel, other, code_version=1)


def test_no_panel_gives_rows_all_the_same() -> None:
    frame = unscored(encoders_frame(MEMBERS), "provisional", "no_panel")
    assert frame.schema == SCHEMAS["crs_scores"]
    assert frame["encoder_id"].to_list() == ["alpha", "beta", "gamma"]
    assert set(frame["status"]) == set(frame["reason"]) == {"no_panel"}
    assert frame["crs"].null_count() == 3


def test_no_encoder(panel: Panel, protocol: Protocol) -> None:
    rows, cells = score({}, panel, protocol)
    assert (rows, cells.height) == ({}, 0)


# Properties on random cohorts: sixteenths, so that ties happen; members have "near", some of them "far" too.

sixteenths = st.integers(0, 16).map(lambda n: n / 16)
beyond = st.integers(-16, 32).map(lambda n: n / 16)


def cohorts(values: st.SearchStrategy[float], prefix: str, least: int, most: int) -> st.SearchStrategy[Cohort]:
    of_cell = st.tuples(values, values, values, values)
    cells = st.fixed_dictionaries({"near": of_cell}, optional={"far": of_cell})
    drawn = st.lists(cells, min_size=least, max_size=most)
    return drawn.map(lambda items: {f"{prefix}{i}": dict(item) for i, item in enumerate(items)})


members = cohorts(sixteenths, "m", 2, 5)
others = cohorts(beyond, "o", 1, 4)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(members, others)
def test_scores_lie_in_the_unit_interval(protocol: Protocol, base: Cohort, more: Cohort) -> None:
    rows, _ = score(base | more, freeze_cohort(base, protocol), protocol)
    for row in rows.values():
        assert all(0 <= row[name] <= 1 for name in ("crs", "pareto", "balance", "worst", *PROFILE))


@quick
@given(members, others, st.sampled_from(["a", "zz"]))
def test_insertion_moves_no_bit(protocol: Protocol, base: Cohort, more: Cohort, prefix: str) -> None:
    panel = freeze_cohort(base, protocol)
    best: Cohort = {f"{prefix}-best": {"near": (9.0, 9.0, 9.0, 9.0), "far": (9.0, 9.0, 9.0, 9.0)}}
    before, cells_before = score(base, panel, protocol)
    after, cells_after = score(base | best | more, panel, protocol)
    assert {name: after[name] for name in base} == before
    assert cells_after.filter(pl.col("encoder_id").is_in(list(base))).equals(cells_before)
    # Where the members differ on every axis, it is above all anchors: the insertion really was an extreme one.
    if all(anchor.high > anchor.low for of_axes in panel.anchors.values() for anchor in of_axes.values()):
        assert after[f"{prefix}-best"]["crs"] == 1.0


@quick
@given(members, st.randoms(use_true_random=False))
def test_order_and_names_of_encoders_are_immaterial(protocol: Protocol, base: Cohort, random: Any) -> None:
    new_names = [f"r{i}" for i in range(len(base))]
    random.shuffle(new_names)
    name_of = dict(zip(base, new_names, strict=True))
    rows, _ = score(base, freeze_cohort(base, protocol), protocol)
    renamed: Cohort = {name_of[name]: cells for name, cells in reversed(base.items())}
    again, _ = score(renamed, freeze_cohort(renamed, protocol), protocol)
    for name, row in rows.items():
        columns = ("crs", "pareto", "balance", "worst", "rank_panel", *PROFILE)
        assert [again[name_of[name]][c] for c in columns] == [row[c] for c in columns]


@quick
@given(members, others, st.sampled_from(AXES), st.floats(0, 2))
def test_raising_one_axis_never_lowers_the_score(
    protocol: Protocol, base: Cohort, more: Cohort, axis: str, gain: float
) -> None:
    panel = freeze_cohort(base, protocol)
    k = AXES.index(axis)
    raised: Cohort = {}
    for name, cells in (base | more).items():
        near = tuple(value + gain if i == k and value is not None else value for i, value in enumerate(cells["near"]))
        raised[name] = cells | {"near": near}
    before, _ = score(base | more, panel, protocol)
    after, _ = score(raised, panel, protocol)
    assert all(after[name]["crs"] >= before[name]["crs"] for name in before)


def raw_profile(panel: Panel, cells: dict[str, tuple[float | None, ...]]) -> list[float]:
    """Return x_raw in plain Python, so that the property does not lean on the code that it tests."""
    rows = []
    for dataset in sorted(set(cells) & set(panel.datasets)):
        anchors = [panel.anchors[dataset][axis] for axis in AXES]
        rows.append(
            [
                0.5 if a.high - a.low <= 1e-12 else ((value or 0.0) - a.low) / (a.high - a.low)
                for a, value in zip(anchors, cells[dataset], strict=True)
            ]
        )
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


def dominated_pairs(panel: Panel, cohort: Cohort) -> list[tuple[str, str]]:
    raw = {name: raw_profile(panel, cells) for name, cells in cohort.items()}
    return [
        (i, j)
        for i in cohort
        for j in cohort
        if all(a >= b for a, b in zip(raw[i], raw[j], strict=True)) and raw[i] != raw[j]
    ]


@quick
@given(members)
def test_dominance_among_members_is_strict(protocol: Protocol, base: Cohort) -> None:
    panel = freeze_cohort(base, protocol)
    rows, _ = score(base, panel, protocol)
    assert all(rows[i]["crs"] > rows[j]["crs"] for i, j in dominated_pairs(panel, base))


@quick
@given(members, others)
def test_dominance_on_one_dataset(protocol: Protocol, base: Cohort, more: Cohort) -> None:
    cohort: Cohort = {name: {"near": cells["near"]} for name, cells in (base | more).items()}
    panel = freeze_cohort({name: cohort[name] for name in base}, protocol)
    rows, _ = score(cohort, panel, protocol)
    for i, j in dominated_pairs(panel, cohort):
        if i in base or j in base:
            assert rows[i]["crs"] > rows[j]["crs"]
        else:
            assert rows[i]["crs"] >= rows[j]["crs"]


@quick
@given(members, others)
def test_dominance_over_datasets_where_the_clipped_profile_agrees(
    protocol: Protocol, base: Cohort, more: Cohort
) -> None:
    panel = freeze_cohort(base, protocol)
    rows, _ = score(base | more, panel, protocol)
    for i, j in dominated_pairs(panel, base | more):
        if all(rows[i][name] >= rows[j][name] for name in PROFILE):
            assert rows[i]["crs"] >= rows[j]["crs"]
            assert rows[i]["crs"] > rows[j]["crs"] or not {i, j} & base.keys()


def test_dominance_far_beyond_the_anchors_can_lose(protocol: Protocol) -> None:
    # Where datasets disagree beyond the anchors, means of clipped positions need not follow means of raw ones, so
    # dominance on x_raw alone promises nothing. Anchors are 0 and 1 on both datasets; all axes equal but one of odd:
    #           near         far     x_raw        x      P              B      W      CRS
    #   mid     .75          .75     .75          .75    1/2            .75    .75    .625
    #   odd     3 (3.25)     -1.5    .75 (.875)   .5     (1 + 1/3) / 2  .5     .5     .583333
    def everywhere(value: float) -> dict[str, tuple[float | None, ...]]:
        return dict.fromkeys(("near", "far"), (value,) * 4)

    base: Cohort = {"low": everywhere(0.0), "high": everywhere(1.0), "mid": everywhere(0.75)}
    odd: Cohort = {"odd": {"near": (3.25, 3.0, 3.0, 3.0), "far": (-1.5,) * 4}}
    panel = freeze_cohort(base, protocol)
    rows, _ = score(base | odd, panel, protocol)
    assert ("odd", "mid") in dominated_pairs(panel, base | odd)
    assert (rows["odd"]["crs"], rows["mid"]["crs"]) == (pytest.approx(0.583333, abs=1e-6), pytest.approx(0.625))
