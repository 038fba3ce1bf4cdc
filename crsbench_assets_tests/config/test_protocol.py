"""The protocol's hash moves with what decides a number, and with nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.config.registry import CATALOG, load_protocol
from crsbench_assets.config.yaml_files import parse_model
from crsbench_assets_tests.fixtures import PROTOCOL

CRS_1 = "cbb18d996c79"
"""First digits of the hash of crs-1, which stand in every row it produced. A change of it is another protocol."""


def written(tmp_path: Path, text: str) -> Protocol:
    (tmp_path / "p.yaml").write_text(text, encoding="utf-8")
    return load_protocol("p.yaml", tmp_path)


def fault(**changes: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        parse_model(Protocol, PROTOCOL | changes, "tiny.yaml")
    return str(raised.value)


def test_crs_1_is_what_it_was() -> None:
    protocol = load_protocol("crs-1", Path())
    assert protocol.hash[:12] == CRS_1, "crs-1 changed: numbers of two protocols are never mixed, so give it a new id"
    assert len(protocol.hash) == 32
    assert protocol.label == f"crs-1@{CRS_1}"


def test_comments_order_description_and_notes_change_nothing(tmp_path: Path) -> None:
    text = (CATALOG / "protocols" / "crs-1.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    assert written(tmp_path, f"# a comment\n{text}").hash[:12] == CRS_1
    assert written(tmp_path, yaml.safe_dump(dict(reversed(content.items())), sort_keys=False)).hash[:12] == CRS_1
    assert written(tmp_path, yaml.safe_dump(content | {"description": "other", "ours": []})).hash[:12] == CRS_1


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("probe", "c", 1.0000001),
        ("splits", "test_fraction", 0.21),
        ("metrics", "ece_bins", 10),
        ("axes", "shift_weight", 0.4),
        ("scores", "degenerate_range", 1e-9),
        ("corruptions", "severities", [1, 3, 4]),
    ],
)
def test_a_number_changes_the_hash(section: str, field: str, value: Any) -> None:
    content = yaml.safe_load((CATALOG / "protocols" / "crs-1.yaml").read_text(encoding="utf-8"))
    content[section][field] = value
    assert parse_model(Protocol, content, "x").hash[:12] != CRS_1


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("worst_weight", 0.1, "component weights must be at least 0 and sum to 1, found 0.9"),
        ("axis_weights", {"discrimination": 1.0}, "axis_weights needs exactly the axes discrimination, calibration"),
        ("axis_weights", dict.fromkeys(AXES, 0.3), "axis_weights must be at least 0 and sum to 1, found 1.2"),
    ],
)
def test_weights_of_the_score_are_shares(field: str, value: Any, sentence: str) -> None:
    content = yaml.safe_load((CATALOG / "protocols" / "crs-1.yaml").read_text(encoding="utf-8"))
    content["scores"][field] = value
    with pytest.raises(ConfigError, match=sentence):
        parse_model(Protocol, content, "x")


def test_the_order_of_seeds_is_content() -> None:
    assert parse_model(Protocol, PROTOCOL | {"seeds": [1, 0]}, "x").hash != parse_model(Protocol, PROTOCOL, "x").hash


@pytest.mark.parametrize("fractions", [[], [0.5], [1.0, 0.5], [0.5, 0.5, 1.0], [0.0, 1.0], [0.5, 1.5]])
def test_label_fractions_ascend_to_one(fractions: list[float]) -> None:
    assert "label_fractions" in fault(label_fractions=fractions)


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": []},
        {"seeds": [0, 0]},
        {"corruptions": {"kinds": ["blur", "blur"], "severities": [1]}},
        {"corruptions": {"kinds": ["blur"], "severities": [1, 1]}},
        {"id": "Tiny 1"},
    ],
)
def test_keys_of_records_are_distinct_and_named(changes: dict[str, Any]) -> None:
    (field,) = changes
    assert field in fault(**changes)


def test_an_unknown_protocol_is_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"protocol 'crs-2' is neither in the catalogue \(crs-1\) nor a YAML file"):
        load_protocol("crs-2", tmp_path)


def test_conditions_of_crs_1() -> None:
    protocol = load_protocol("crs-1", Path())
    assert len(protocol.corruption_conditions) == 15
    assert protocol.conditions(None)[:2] == ("clean", "gaussian_noise-s1")
    assert protocol.conditions("mimic_cxr")[-2:] == ("jpeg-s5", "shift_mimic_cxr")


def test_a_dotted_field() -> None:
    protocol = load_protocol("crs-1", Path())
    assert protocol.field("probe.c") == 1.0
    assert protocol.field("seeds") == [0, 1, 2, 3, 4]


def test_the_notes_name_fields_that_exist() -> None:
    protocol = load_protocol("crs-1", Path())
    assert all(protocol.field(name) is not None for name in protocol.ours)
