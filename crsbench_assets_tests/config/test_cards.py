"""What a card may say, and what somebody reads who wrote something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from crsbench_assets.config.cards import DatasetCard, EncoderCard, Preprocessing
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.registry import read_card
from crsbench_assets.config.yaml_files import parse_model, read_yaml
from crsbench_assets_tests.fixtures import dataset_card, encoder_card, write_card

CELL = {"signal": 1.0, "n_nuisance": 0, "norm_spread": 0.0, "fragility": 0.0}


def encoder_fault(**changes: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        parse_model(EncoderCard, encoder_card("alpha", **changes), "alpha.yaml")
    return str(raised.value)


def dataset_fault(**changes: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        parse_model(DatasetCard, dataset_card(**changes), "tiny.yaml")
    return str(raised.value)


def test_an_unknown_field_is_named_with_the_known_ones() -> None:
    sentence = encoder_fault(vektors={})
    assert sentence.startswith("alpha.yaml: unknown field 'vektors' (known fields: id, name, kind, role, ")
    assert "vectors" in sentence


def test_an_unknown_field_inside_another_is_named_by_its_path() -> None:
    source = {"layout": "manifest", "manifest": "x.csv", "colums": {}}
    assert "unknown field 'source.colums'" in dataset_fault(source=source)


def test_every_fault_is_told_at_once() -> None:
    sentence = encoder_fault(category="best", licens="MIT", role="boss")
    assert "category" in sentence and "licens" in sentence and "role" in sentence
    assert "\n" not in sentence


def test_a_missing_field_is_named() -> None:
    card = encoder_card("alpha")
    del card["name"]
    with pytest.raises(ConfigError, match="field 'name' is missing"):
        parse_model(EncoderCard, card, "alpha.yaml")


@pytest.mark.parametrize("identifier", ["", "Alpha", "1st", "a b", "a|b", "a...b", "ä", "a" * 49, "a\n"])
def test_bad_ids_are_refused_with_the_rule(identifier: str) -> None:
    assert "an id starts with a lower-case letter and has up to 48" in encoder_fault(id=identifier)
    assert "an id starts with a lower-case letter and has up to 48" in dataset_fault(id=identifier)
    shift = {"id": identifier, "name": "Elsewhere", "source": dataset_card()["source"]}
    assert "an id starts with a lower-case letter and has up to 48" in dataset_fault(shift=shift)


@pytest.mark.parametrize("identifier", ["a", "a" * 48, "a-1_b"])
def test_good_ids(identifier: str) -> None:
    assert parse_model(EncoderCard, encoder_card("alpha", id=identifier), "x").id == identifier


def test_a_shift_target_cannot_be_named_as_the_images_of_the_dataset_itself() -> None:
    # both are source ids of one table: one would silently replace the other
    shift = {"id": "primary", "name": "Elsewhere", "source": dataset_card()["source"]}
    assert "'primary' names the dataset's own images" in dataset_fault(shift=shift)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"vectors": {}}, "kind precomputed needs `vectors`"),
        ({"kind": "synthetic", "vectors": {}}, "kind synthetic needs `cells`"),
        ({"kind": "timm"}, "`vectors` belongs to kind precomputed, not to timm"),
        ({"kind": "timm", "vectors": {}, "cells": {"tiny": CELL}}, "`cells` belongs to kind synthetic, not to timm"),
        ({"kind": "timm", "vectors": {}, "category": None}, "a candidate needs a `category`"),
        ({"kind": "telepathy"}, "kind: Input should be"),
    ],
)
def test_each_kind_of_encoder_has_its_fields(changes: dict[str, Any], expected: str) -> None:
    assert expected in encoder_fault(**changes)


def test_a_control_needs_no_category() -> None:
    card = encoder_card("alpha", kind="baseline", vectors={}, role="control", category=None)
    assert parse_model(EncoderCard, card, "x").role == "control"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"source": {"layout": "manifest"}}, "layout manifest needs `manifest`"),
        ({"source": {"layout": "synthetic"}}, "`synthetic` settings and layout synthetic belong together"),
        (
            {"source": {"layout": "isic2019", "synthetic": {"n_images": 9, "prevalence": [0.5, 0.5]}}},
            "`synthetic` settings and layout synthetic belong together",
        ),
        (
            {"source": {"layout": "synthetic", "synthetic": {"n_images": 9, "prevalence": [0.5]}}},
            "synthetic.prevalence needs one number per class",
        ),
        (
            {"source": {"layout": "manifest", "manifest": "x.csv", "sites": ["A"]}},
            "`sites` and `columns.site` belong together",
        ),
        (
            {"source": {"layout": "manifest", "manifest": "x.csv", "columns": {"site": "hospital"}}},
            "`sites` and `columns.site` belong together",
        ),
        (
            {"source": {"layout": "aptos2019", "columns": {"group": "patient"}}},
            "`manifest`, `columns` and `sites` belong to layout manifest, not to aptos2019",
        ),
        (
            {"source": {"layout": "chexpert", "manifest": "x.csv"}},
            "`manifest`, `columns` and `sites` belong to layout manifest, not to chexpert",
        ),
        ({"classes": ["one", "one"]}, "classes must be distinct"),
        ({"classes": []}, "classes must be distinct and at least one"),
        ({"classes": ["one"]}, "task single_label needs at least two classes"),
        ({"source": {"layout": "synthetic", "synthetic": {"n_images": 0, "prevalence": [0.5, 0.5]}}}, "n_images"),
    ],
)
def test_each_dataset_has_its_fields(changes: dict[str, Any], expected: str) -> None:
    assert expected in dataset_fault(**changes)


def sites_source(*sites: str, manifest: str = "labels.csv") -> dict[str, Any]:
    columns = {"class_column": "label", "site": "hospital"}
    return {"layout": "manifest", "manifest": manifest, "columns": columns, "sites": list(sites)}


def test_a_site_is_read_by_the_dataset_or_by_its_shift_target() -> None:
    shift = {"id": "other", "name": "Other", "source": sites_source("B", "C")}
    assert "sites 'B' are read by the dataset and by its shift target" in dataset_fault(
        source=sites_source("A", "B"), shift=shift
    )
    for source in (sites_source("A"), sites_source("B", manifest="other.csv")):
        assert parse_model(DatasetCard, dataset_card(source=source, shift=shift), "x").shift


def test_sites_are_kept_with_a_card_and_their_absence_says_nothing() -> None:
    card = parse_model(DatasetCard, dataset_card(source=sites_source("A")), "x")
    dumped = card.model_dump(mode="json")
    assert dumped["source"]["sites"] == ["A"] and dumped["source"]["columns"]["site"] == "hospital"
    assert DatasetCard.model_validate(dumped) == card
    without = parse_model(DatasetCard, dataset_card(), "x").model_dump(mode="json")["source"]
    assert "sites" not in without and "site" not in without["columns"]


def labels_source(**columns: Any) -> dict[str, Any]:
    return {"layout": "manifest", "manifest": "labels.csv", "columns": columns}


def test_one_label_is_enough_for_a_multi_label_dataset() -> None:
    card = dataset_card(task="multi_label", classes=["one"], source=labels_source())
    assert parse_model(DatasetCard, card, "x").classes == ("one",)


@pytest.mark.parametrize("place", ["source", "shift"])
@pytest.mark.parametrize(
    ("task", "columns", "expected"),
    [
        # without the card's refusal the column `edema` was read, and `edema_reader` was not
        (
            "multi_label",
            {"label_columns": {"Edema": "edema_reader"}},
            "columns.label_columns names 'Edema', no class of the card; expected any of 'edema', 'fracture'",
        ),
        (
            "multi_label",
            {"label_columns": {"edema": "both", "fracture": "both"}},
            "columns.label_columns reads the classes 'edema', 'fracture' from the one column 'both'",
        ),
        (
            "multi_label",
            {"label_columns": {"edema": "fracture"}},
            "columns.label_columns reads the classes 'edema', 'fracture' from the one column 'fracture'",
        ),
        ("multi_label", {"class_column": "label"}, "columns.class_column belongs to one class per image, not to task"),
        ("single_label", {"label_columns": {"edema": "e"}}, "belongs to task multi_label, not to single_label"),
        ("ordinal", {"class_column": "c", "label_columns": {}}, "belongs to task multi_label, not to ordinal"),
    ],
)
def test_label_columns_name_each_class_once(place: str, task: str, columns: dict[str, Any], expected: str) -> None:
    own = {} if task == "multi_label" else {"class_column": "c"}
    card: dict[str, Any] = {"task": task, "classes": ["edema", "fracture"], "source": labels_source(**own)}
    bad = labels_source(**columns)
    card |= {"source": bad} if place == "source" else {"shift": {"id": "other", "name": "Other", "source": bad}}
    sentence = dataset_fault(**card)
    assert expected in sentence and "\n" not in sentence


def test_two_classes_may_swap_their_columns() -> None:
    swapped = labels_source(label_columns={"a": "b", "b": "a"})
    assert parse_model(DatasetCard, dataset_card(task="multi_label", classes=["a", "b"], source=swapped), "x")


def test_positives_are_expected_of_classes_alone() -> None:
    assert (
        "expected_n_positive names 'zzz', no class of the card; expected any of 'negative', 'positive'"
        in dataset_fault(expected_n_positive={"zzz": 3, "positive": 1})
    )


@pytest.mark.parametrize("number", [".nan", ".inf", "-1.0"])
def test_a_setting_that_is_no_number_is_refused(tmp_path: Path, number: str) -> None:
    path = tmp_path / "alpha.yaml"
    path.write_text(
        "id: alpha\nname: A\nkind: synthetic\n"
        f"cells: {{tiny: {{signal: {number}, n_nuisance: 0, norm_spread: 0, fragility: 0}}}}\n",
        encoding="utf-8",
    )
    with pytest.raises(ConfigError, match=r"cells\.tiny\.signal"):
        read_card(EncoderCard, path)


def test_a_file_is_named_after_its_id(tmp_path: Path) -> None:
    (tmp_path / "encoders").mkdir()
    path = write_card(tmp_path, "encoders", encoder_card("alpha"))
    other = path.rename(path.with_name("beta.yaml"))
    with pytest.raises(ConfigError, match=r"beta\.yaml holds the id 'alpha': a card's file is named after its id\."):
        read_card(EncoderCard, other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id: a\nname: b\nid: c\n", "the key 'id' is written twice"),
        ("vectors: {tiny: [x], tiny: [y]}\n", "the key 'tiny' is written twice"),
        ("id: [\n", "is not valid YAML"),
        ("? [a, b]\n: c\n", "is not valid YAML"),
        ("id: !!python/object/apply:os.getcwd []\n", "is not valid YAML"),
        ("- id\n", "must hold a mapping of fields to values, found list"),
        ("", "must hold a mapping of fields to values, found NoneType"),
    ],
)
def test_bad_yaml_is_one_sentence(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        read_yaml(path)
    assert expected in str(raised.value) and str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    with pytest.raises(ConfigError, match=r"card\.yaml does not exist"):
        read_yaml(path)
    path.write_bytes(b"id: \xff\xfe")
    with pytest.raises(ConfigError, match=r"card\.yaml cannot be read"):
        read_yaml(path)


def test_a_description_is_no_part_of_the_identity() -> None:
    first = parse_model(EncoderCard, encoder_card("alpha"), "x")
    described = parse_model(EncoderCard, encoder_card("alpha", description="better", licence="MIT"), "x")
    control = parse_model(EncoderCard, encoder_card("alpha", role="control"), "x")
    assert first.identity == described.identity != control.identity
    cohort = parse_model(DatasetCard, dataset_card(), "x")
    assert cohort.identity == parse_model(DatasetCard, dataset_card(description="better"), "x").identity
    assert cohort.identity != parse_model(DatasetCard, dataset_card(classes=["positive", "negative"]), "x").identity


@pytest.mark.parametrize(("written", "expected"), [("0_255", "0_255"), ("0_1", "0_1"), ("'0_255'", "0_255")])
def test_a_range_needs_no_quotes(written: str, expected: str) -> None:
    """YAML 1.1 reads 0_255 as the octal number 173."""
    card: dict[str, Any] = {"input_px": 8, "resize_px": 8, "resize_mode": "squash", "crop": "none", "antialias": True}
    card |= {"interpolation": "bicubic", "mean": (0, 0, 0), "std": (1, 1, 1), "value_range": yaml.safe_load(written)}
    assert Preprocessing.model_validate(card).value_range == expected
