"""What the report says of exposure, terms and dependence, beside the numbers that they touch."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from crsbench_assets.config.cards import EncoderCard
from crsbench_assets.config.registry import CATALOG, catalog_ids
from crsbench_assets.config.yaml_files import read_yaml
from crsbench_assets.report.decision import findings
from crsbench_assets.report.frames import read_frames
from crsbench_assets.report.marks import Marks
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets_tests.report.conftest import MARKUP
from crsbench_assets_tests.report.pages import Element


def of(element: Element) -> list[str]:
    return [mark.text for mark in element.having("mark")]


def board(page: Element) -> dict[str, list[str]]:
    section = page.one("section", id="leaderboard")
    return {row.attributes["data-encoder"]: of(row) for row in section.all("tr") if "data-encoder" in row.attributes}


def lines(page: Element, key: str) -> list[tuple[list[str], list[str]]]:
    """Return the marks and the cells' texts of every row of a section."""
    return [
        (of(row), [cell.text for cell in row.all("td")]) for row in page.one("section", id=key).one("tbody").all("tr")
    ]


def test_the_leaderboard_says_what_each_encoder_saw_and_its_terms(page: Element) -> None:
    assert board(page) == {
        "alpha": ["saw ward", "exposure to skin unknown", "non-commercial", "same encoder as Beta"],
        "beta": ["saw chest", "gated", f"same encoder as {MARKUP}"],  # what is no dataset here is left out
        "broken": ["exposure unknown"],  # its card is silent
        "floor": [],
    }
    (note,) = (caption for caption in page.one("section", id="leaderboard").having("caption") if of(caption))
    assert {"saw", "exposure unknown", "same encoder as", "non-commercial", "gated"} == set(of(note))
    assert "No number is corrected for any of them" in note.text


def test_rows_of_the_shift_target_are_marked(page: Element) -> None:
    rows = lines(page, "institutional_shift")
    for name, expected in ((MARKUP, ["saw ward"]), ("Beta", ["saw chest"]), ("Floor", [])):
        assert [marked for marked, cells in rows if cells[0].startswith(name)] == [expected]


@pytest.mark.parametrize("key", ["choice", "label_curves", "corruption_curves", "corruption_miscalibration"])
def test_rows_of_a_dataset_are_marked_for_those_who_saw_it(page: Element, key: str) -> None:
    for marked, cells in lines(page, key):
        is_seen = "chest" in cells and any(cell.startswith("Beta") for cell in cells)
        assert marked == (["saw chest"] if is_seen else []), cells
    assert any(marked for marked, _ in lines(page, key))


def test_a_condition_and_an_axis_decide_whether_the_shift_target_counts(page: Element) -> None:
    repair = [(marked, cells) for marked, cells in lines(page, "calibration_repair") if MARKUP in " ".join(cells)]
    assert {(cells[1], *marked) for marked, cells in repair if cells[0] == "chest"} == {
        ("clean",),
        ("shift_ward", "saw ward"),
    }
    profiles = [(marked, cells) for marked, cells in lines(page, "profiles") if cells[0].startswith(MARKUP)]
    assert {cells[2] for marked, cells in profiles if marked} == {"robustness"}
    assert {cells[1] for marked, cells in profiles if marked} == {"chest"}


def test_reliability_diagrams_and_labels_are_marked(page: Element) -> None:
    section = page.one("section", id="reliability-chest")
    panels = {figure.attributes["data-encoder"]: figure for figure in section.all("figure")}
    blocks = {
        (encoder_id, block.attributes["data-condition"]): of(block)
        for encoder_id, panel in panels.items()
        for block in panel.all("div")
        if "data-condition" in block.attributes
    }
    assert blocks["alpha", "clean"] == [] and blocks["alpha", "shift_ward"] == ["saw ward"]
    assert blocks["beta", "clean"] == blocks["beta", "shift_ward"] == ["saw chest"]
    bodies = {body.attributes["data-encoder"]: of(body) for body in section.all("tbody")}
    assert bodies == {"alpha": [], "beta": ["saw chest"], "floor": []}


def test_what_follows_names_who_saw_what_and_who_is_not_independent(reported_home: HomeLayout) -> None:
    said = {finding.question: finding.sentences for finding in findings(read_frames(reported_home))}
    assert said["Who saw the images in pretraining?"] == (
        "chest was seen by Beta.",
        f"ward was seen by {MARKUP}.",
        f"Unknown for one dataset or more: {MARKUP}, Broken.",
    )
    assert said["Who is not independent?"] == (
        f"{MARKUP}, Beta share an encoder: they are not independent, and their results are one piece of evidence.",
        f"{MARKUP}, Beta are of one family (vit), so not independent.",
    )


def test_a_home_where_nothing_is_known_says_so(reported_home: HomeLayout) -> None:
    frames = read_frames(reported_home)
    quiet = frames.encoders.filter(pl.col("encoder_id") == "floor")
    marks = Marks(quiet, frames.datasets)
    assert (marks.exposed, marks.same_encoder, marks.families, marks.of_unknown) == ({}, [], {}, [])
    assert marks.of_encoder("nobody") == marks.of_row("nobody", {"dataset_id": "chest"}) == ()


def catalogue() -> Marks:
    """Return the marks of a home with the whole catalogue."""
    cards = [
        EncoderCard.model_validate(read_yaml(CATALOG / "encoders" / f"{name}.yaml")) for name in catalog_ids("encoders")
    ]
    rows: list[dict[str, Any]] = [
        {
            "encoder_id": card.id,
            "name": card.name,
            "role": card.role,
            "family": card.family,
            "is_synthetic": False,
            "is_gated": card.weights is not None and card.weights.gated,
            "is_non_commercial": card.non_commercial,
            "exposure": json.dumps(card.exposure),
            "same_encoder_as": json.dumps(card.same_encoder_as),
        }
        for card in cards
    ]
    datasets = {"dataset_id": ["aptos2019", "chexpert", "isic2019"], "shift_id": [None, "mimic_cxr", None]}
    return Marks(pl.DataFrame(rows), pl.DataFrame(datasets))


def test_the_papers_panel() -> None:
    marks = catalogue()
    assert marks.exposed == {
        "chexpert": ["rad_dino"],
        "mimic_cxr": ["biovil", "chexzero", "medgemma", "medsiglip", "rad_dino"],
    }
    assert marks.same_encoder == [["medgemma", "medsiglip"]]
    terms = {name: set(marks.of_encoder(name)) & {"gated", "non-commercial"} for name in catalog_ids("encoders")}
    assert {name for name, found in terms.items() if "gated" in found} == {"medgemma", "medsiglip", "retfound"}
    assert {name for name, found in terms.items() if "non-commercial" in found} == {
        "llava_med", "mae_vit_l16", "panderm", "retfound",
    }  # fmt: skip
    assert marks.of_encoder("medsiglip") == (
        "saw mimic_cxr",
        "exposure to aptos2019, chexpert, isic2019 unknown",
        "gated",
        "same encoder as MedGemma 4B (image tower)",
    )
    assert marks.of_encoder("resnet50") == ()
    assert marks.of_encoder("clip_vit_l14") == ("exposure unknown",)


def test_every_licence_that_says_non_commercial_is_flagged() -> None:
    for name in catalog_ids("encoders"):
        card = EncoderCard.model_validate(read_yaml(CATALOG / "encoders" / f"{name}.yaml"))
        assert card.licence
        words = card.licence.lower().replace(",", " ").replace("-", " ").split()
        assert card.non_commercial == ("nc" in words or "commercial" in words), name
