from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.ids import ID_PATTERN
from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.scores.panel import (
    Anchor,
    Panel,
    PanelConditions,
    diff,
    freeze,
    mismatches,
    provisional_panel,
    reference_panels,
)
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


def test_members_and_anchors_by_hand(panel: Panel) -> None:
    assert (panel.members, panel.datasets) == (("alpha", "beta", "gamma"), ("far", "near"))
    assert panel.anchors["far"]["label_efficiency"] == Anchor(
        low=0.25, high=0.75, low_encoder_id="beta", high_encoder_id="alpha"
    )
    assert panel.anchors["near"]["robustness"] == Anchor(
        low=0.0, high=1.0, low_encoder_id="gamma", high_encoder_id="beta"
    )
    # Equal values: the first by id holds both anchors.
    assert panel.anchors["far"]["robustness"].high_encoder_id == "alpha"
    assert panel.values["far"].keys() == {"alpha", "beta"}
    assert panel.conditions.test_set_hash.keys() == {"near", "far"}


def test_id_is_an_id_and_follows_the_content(panel: Panel, protocol: Protocol) -> None:
    name, digits = panel.panel_id.rsplit("-", 1)
    assert (name, len(digits)) == ("demo", 12)
    assert panel.hash.startswith(digits)
    reordered = dict(reversed(MEMBERS.items()))
    assert freeze_cohort(reordered, protocol).panel_id == panel.panel_id
    changed = MEMBERS | {"gamma": {"near": (0.0, 0.0, 0.0, math.nextafter(0, 1))}}
    assert freeze_cohort(changed, protocol).panel_id != panel.panel_id


def test_controls_and_incomplete_candidates_are_no_members(panel: Panel, conditions: PanelConditions) -> None:
    cohort: Cohort = MEMBERS | {
        "null": {"near": (9.0, 9.0, 0.985, 0.999)},
        "half": {"near": (9.0, 9.0, 9.0, 9.0), "far": (9.0, None, 9.0, 9.0)},
        "homeless": {},
    }
    frozen, incomplete = freeze("demo", values_frame(cohort), encoders_frame(cohort, ("null",)), conditions)
    assert incomplete == ("half", "homeless")
    assert frozen == panel


def test_provisional_cohort(conditions: PanelConditions) -> None:
    cohort, _ = provisional_panel(values_frame(MEMBERS), encoders_frame(MEMBERS), conditions)
    assert cohort is not None
    assert (cohort.panel_id, cohort.members) == ("provisional", ("alpha", "beta", "gamma"))
    nobody = provisional_panel(values_frame({}), encoders_frame(MEMBERS), conditions)
    assert nobody == (None, ("alpha", "beta", "gamma"))


@pytest.mark.parametrize("name", ["", "Upper", "provisional", "a" * 36])
def test_freeze_refuses_names(name: str, conditions: PanelConditions) -> None:
    with pytest.raises(ConfigError, match="Choose another"):
        freeze(name, values_frame(MEMBERS), encoders_frame(MEMBERS), conditions)


def test_longest_name_gives_an_id(conditions: PanelConditions) -> None:
    longest, _ = freeze("a" * 35, values_frame(MEMBERS), encoders_frame(MEMBERS), conditions)
    assert ID_PATTERN.fullmatch(longest.panel_id)


def test_freeze_refuses_no_member_and_unknown_test_sets(conditions: PanelConditions) -> None:
    with pytest.raises(ConfigError, match=r"No candidate is complete.*delta"):
        freeze("demo", values_frame(MEMBERS), encoders_frame(DELTA), conditions)
    unknown = conditions.model_copy(update={"test_set_hash": {"near": "x"}})
    with pytest.raises(ConfigError, match=r"far.*test_set_hash"):
        freeze("demo", values_frame(MEMBERS), encoders_frame(MEMBERS), unknown)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=4, max_size=4))
def test_every_float_survives_the_file(protocol: Protocol, values: list[float]) -> None:
    panel = freeze_cohort({"alpha": {"near": tuple(values)}, "beta": MEMBERS["beta"]}, protocol)
    again = Panel.from_json(panel.to_json())
    assert again == panel
    assert [again.values["near"]["alpha"][axis].hex() for axis in AXES] == [float(v).hex() for v in values]
    assert again.to_json() == panel.to_json()


def test_a_changed_file_is_refused(panel: Panel) -> None:
    content = json.loads(panel.to_json())
    content["anchors"]["near"]["robustness"]["high"] = 0.5
    with pytest.raises(ConfigError, match="changed after it was frozen"):
        Panel.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"panel_id": "demo-0"}', "3"])
def test_other_text_is_no_panel(text: str) -> None:
    with pytest.raises(ConfigError, match="no reference panel"):
        Panel.from_json(text)


@pytest.mark.parametrize(
    ("update", "names"),
    [
        ({}, []),
        ({"canonical_px": 224}, ["canonical_px"]),
        ({"arm": "lora", "label_policy": "u_ones"}, ["arm", "label_policy"]),
        ({"robustness_variant": "corruption_only"}, ["robustness_variant"]),
        ({"protocol_hash": "0"}, ["protocol_hash"]),
        ({"caps": {}}, ["caps.near"]),
        ({"caps": {"near": 100, "far": 5}}, ["caps.far"]),
        ({"caps": {"near": 100, "new": 5}}, []),  # the panel has no such dataset
        ({"test_set_hash": {"near": "hash-of-near"}}, ["test_set_hash.far"]),
        ({"feasible_fractions": {"near": (1.0,), "far": (0.1, 1.0)}}, ["feasible_fractions.near"]),
        ({"code_versions": {"run_records": 1, "cell_axes": 3}}, ["code_versions.cell_axes"]),
    ],
)
def test_mismatches(panel: Panel, protocol: Protocol, update: dict[str, object], names: list[str]) -> None:
    assert mismatches(panel, conditions_of(protocol).model_copy(update=update)) == names


def test_diff(panel: Panel, protocol: Protocol) -> None:
    assert diff(panel, panel).is_empty()
    smaller = freeze_cohort({k: v for k, v in MEMBERS.items() if k != "gamma"}, protocol)
    rows = {field: (first, second) for field, first, second in diff(panel, smaller).rows()}
    assert rows["members.gamma"] == ("true", None)
    assert rows["values.near.gamma.calibration"] == ("0.0", None)
    assert rows["anchors.near.calibration.low"] == ("0.0", "0.5")
    assert not any(field.startswith("anchors.far") for field in rows)


def test_rows_of_reference_panels(panel: Panel, protocol: Protocol) -> None:
    frame = reference_panels(panel, protocol.scores)
    (spec,) = (spec for spec in SCORE_TABLES if spec.name == "reference_panels")
    assert frame.schema == spec.polars_schema()
    assert frame.select("dataset_id", "axis").rows() == [(d, axis) for d in ("far", "near") for axis in AXES]
    assert frame["n_members"].to_list() == [2] * 4 + [3] * 4
    assert frame["is_degenerate"].to_list() == [False] * 3 + [True] + [False] * 4
    assert set(frame["panel_id"]) == {panel.panel_id}
    assert frame["protocol_id"][0] == f"crs-1@{protocol.hash[:12]}"
    assert frame.select("anchor_low", "anchor_high").row(1) == (0.25, 0.5)
