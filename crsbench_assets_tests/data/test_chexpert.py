"""CheXpert as published: both prefixes, frontal views of both tables, labels by name, three policies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crsbench_assets.config.cards import PRIMARY, DatasetCard
from crsbench_assets.config.layouts import CHEXPERT_BATCHES, label_files
from crsbench_assets.config.settings import LabelPolicy
from crsbench_assets.data.cohort import Cohort, read_cohorts
from crsbench_assets.data.sources.chexpert import image_id
from crsbench_assets_tests.data.layouts import (
    CXR_LABELS,
    card_of,
    content,
    refusal,
    rewrite_table,
    write_image,
    write_table,
)

Row = tuple[str, str, str, dict[str, str]]
HEADER = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *CXR_LABELS]

# path, view, AP/PA, labels that are not blank; patient00001 has two studies and stands in both tables
TRAIN: tuple[Row, ...] = (
    ("train/patient00002/study1/view1_frontal.jpg", "Frontal", "PA", {}),
    ("train/patient00001/study1/view1_frontal.jpg", "Frontal", "AP", {"No Finding": "1.0"}),
    ("train/patient00001/study1/view2_lateral.jpg", "Lateral", "", {"No Finding": "1.0"}),
    ("train/patient00001/study2/view1_frontal.jpg", "Frontal", "LL", {"Edema": "1.0", "Pneumonia": "-1.0"}),
)
VALID: tuple[Row, ...] = (
    ("valid/patient00001/study3/view1_frontal.jpg", "Frontal", "AP", {"Edema": "0.0", "Fracture": "1.0"}),
)
# in the order of their ids
IDS = {
    "0d116341eacf061e5b0b": "train/patient00002/study1/view1_frontal.jpg",
    "0d3cc335a9f1f99ea1f2": "train/patient00001/study2/view1_frontal.jpg",
    "d3c92117194f572b9ce3": "train/patient00001/study1/view1_frontal.jpg",
    "f8185c7707b50cf9037b": "valid/patient00001/study3/view1_frontal.jpg",
}


def write_tables(folder: Path, prefix: str, train: tuple[Row, ...] = TRAIN) -> None:
    for name, rows in (("train", train), ("valid", VALID)):
        lines = [
            [prefix + path, "Female", "68", view, position, *(labels.get(label, "") for label in CXR_LABELS)]
            for path, view, position, labels in rows
        ]
        write_table(folder / f"{name}.csv", HEADER, lines)


def write_official(parent: Path, version: str) -> Path:
    folder = parent / version
    write_tables(folder, f"{version}/")
    for path, _, _, _ in (*TRAIN, *VALID):
        write_image(folder / path, mode="L")
    return folder


def card(root: Path) -> DatasetCard:
    return card_of("chexpert", root, CXR_LABELS, "multi_label")


def read(root: Path, policy: LabelPolicy = "u_zeros") -> Cohort:
    return read_cohorts(card(root), policy)[PRIMARY]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_official(tmp_path, "CheXpert-v1.0-small")


# Case "whole-row-patient-pick": patient00001 has study 1 {No Finding 1} and study 2 {Edema 1, Pneumonia -1}
def test_the_cohort_is_the_frontal_images_of_both_tables(folder: Path) -> None:
    found = read(folder)
    assert found.image_ids == list(IDS)
    assert found.groups == ["patient00002", "patient00001", "patient00001", "patient00001"]
    positive = [[CXR_LABELS[i] for i in np.flatnonzero(row == 1)] for row in found.labels]
    # every image keeps the labels of its own study, whatever the patient's first study says
    assert positive == [[], ["Edema"], ["No Finding"], ["Fracture"]]
    assert found.paths == list(IDS.values())
    assert (found.root, found.left_out, found.declared_split) == (str(folder), [], [None] * 4)
    assert len(found.files()) == 4


@pytest.mark.parametrize(("policy", "pneumonia"), [("u_zeros", 0), ("u_ignore", -1), ("u_ones", 1)])
def test_an_uncertain_label_becomes_what_the_policy_says_and_a_blank_one_0(
    folder: Path, policy: LabelPolicy, pneumonia: int
) -> None:
    labels = read(folder, policy).labels
    assert labels[1, CXR_LABELS.index("Pneumonia")] == pneumonia
    assert labels[0].tolist() == [0] * 14  # all blank
    assert (labels == -1).sum() == (policy == "u_ignore")


@pytest.mark.parametrize("version", ["CheXpert-v1.0", "CheXpert-v1.0-small"])
def test_root_is_the_official_folder_or_the_one_that_holds_it(tmp_path: Path, version: str) -> None:
    folder = write_official(tmp_path, version)
    inner, outer = read(folder), read(tmp_path)
    assert outer.files() == inner.files()
    assert (outer.root, outer.paths) == (str(folder), inner.paths), "a root named anew makes nothing stale"
    assert (outer.image_ids, outer.groups) == (list(IDS), inner.groups)


@pytest.mark.parametrize("prefix", ["CheXpert-v1.0/", ""])
def test_the_prefix_of_a_path_says_nothing_about_the_folder(folder: Path, prefix: str) -> None:
    before = content(read(folder))
    write_tables(folder, prefix)
    assert content(read(folder)) == before


def test_both_versions_in_one_root_are_two_cohorts(tmp_path: Path, folder: Path) -> None:
    write_official(tmp_path, "CheXpert-v1.0")
    assert "it holds CheXpert-v1.0 and CheXpert-v1.0-small, which are two cohorts" in refusal(card(tmp_path))


def test_order_of_rows_and_columns_changes_nothing(folder: Path) -> None:
    before = content(read(folder))
    rewrite_table(folder / "train.csv", rows=[3, 1, 0, 2], columns=[*range(18, -1, -1)])
    rewrite_table(folder / "valid.csv", columns=[*range(5, 19), 3, 0])
    assert content(read(folder)) == before


def test_every_fault_stands_in_one_sentence(folder: Path) -> None:
    strange: Row = ("train/patient3/view1_frontal.jpg", "Frontal", "AP", {})
    twice = (TRAIN[0][0], "Frontal", "AP", {"Edema": "2.0"})
    write_tables(folder, "CheXpert-v1.0-small/", (*TRAIN, strange, twice))
    for name in ("study1", "study2", "study3"):
        for path in folder.glob(f"*/*/{name}/*.jpg"):
            path.unlink()
    said = refusal(card(folder))
    for clause in (
        "1 row(s) have a Path such as 'train/patient3/view1_frontal.jpg'; expected train/patientNNNNN/studyN/NAME.jpg",
        "1 Path(s) stand more than once, such as 'train/patient00002/study1/view1_frontal.jpg'",
        "column Edema holds '2.0' for image 'train/patient00002/study1/view1_frontal.jpg' (1 such row(s)); expected 1, "
        "0, -1 or blank",
        "none of the 5 image files can be used",
    ):
        assert clause in said


@pytest.mark.parametrize(("view", "told"), [("", "blank"), ("Frontl", "'Frontl'")])
def test_an_unknown_view_drops_no_row_silently(folder: Path, view: str, told: str) -> None:
    path = TRAIN[0][0]
    write_tables(folder, "CheXpert-v1.0-small/", ((path, view, "PA", {}), *TRAIN[1:]))
    assert (
        f"column Frontal/Lateral is {told} for '{path}' (1 row(s) hold no known value); expected Frontal, Lateral"
        in refusal(card(folder))
    )


def test_views_are_read_in_any_case(folder: Path) -> None:
    before = content(read(folder))
    write_tables(folder, "CheXpert-v1.0-small/", tuple((p, view.upper(), ap, labels) for p, view, ap, labels in TRAIN))
    assert content(read(folder)) == before


def test_a_path_cannot_leave_the_root(folder: Path) -> None:
    away: Row = ("train/patient00003/study1/../../../x.jpg", "Frontal", "AP", {})
    write_tables(folder, "CheXpert-v1.0-small/", (*TRAIN, away))
    assert "1 row(s) have a Path such as 'train/patient00003/study1/../../../x.jpg'" in refusal(card(folder))


def test_a_root_that_is_half_there_names_what_is_missing(folder: Path) -> None:
    (folder / "valid.csv").unlink()
    (folder / "valid").rename(folder / "elsewhere")
    rewrite_table(folder / "train.csv", columns=[*range(5), *range(6, 19)])
    said = refusal(card(folder))
    for clause in (
        "the folder valid is missing",
        "the file valid.csv is missing",
        "train.csv lacks the column(s) No Finding;",
    ):
        assert clause in said


def test_a_table_of_lateral_images_is_no_cohort(folder: Path) -> None:
    (folder / "valid.csv").write_text(",".join(HEADER) + "\n", encoding="utf-8")
    rewrite_table(folder / "train.csv", rows=[2])
    said = refusal(card(folder))
    assert "no row is a frontal image" in said
    assert "valid.csv has no rows" in said


def test_a_label_without_a_positive_is_no_fault(folder: Path) -> None:
    assert read(folder).labels[:, CXR_LABELS.index("Pleural Other")].sum() == 0


def test_an_absent_file_is_left_out(folder: Path) -> None:
    (folder / VALID[0][0]).unlink()
    found = read(folder)
    assert [row[:2] for row in found.left_out] == [("f8185c7707b50cf9037b", "missing_file")]
    assert found.image_ids == list(IDS)


def test_an_image_id_names_no_patient(folder: Path) -> None:
    found = read(folder)
    assert not any("patient" in name or "/" in name for name in found.image_ids)
    assert found.image_ids == [image_id(path) for path in found.paths or []]


def test_the_batches_of_the_download_are_one_cohort(tmp_path: Path, folder: Path) -> None:
    before = read(folder)
    first, second, third, fourth = (tmp_path / "download" / name for name in CHEXPERT_BATCHES)
    for batch in (second, third, fourth):
        batch.mkdir(parents=True)
    (folder / "train" / "patient00001").rename(second / "patient00001")
    (folder / "train" / "patient00002").rename(fourth / "patient00002")
    (folder / "train").rmdir()
    folder.rename(first)
    found = read(tmp_path / "download")
    assert (found.image_ids, found.groups, found.left_out) == (before.image_ids, before.groups, [])
    assert np.array_equal(found.labels, before.labels)
    assert found.paths is not None and found.paths[0] == f"{fourth.name}/patient00002/study1/view1_frontal.jpg"
    assert found.paths[-1] == f"{first.name}/valid/patient00001/study3/view1_frontal.jpg"
    source = card(tmp_path / "download").source
    assert {path.name for path in label_files(source)} == {"train.csv", "valid.csv"}, "what the planner compares"

    (second / "patient00001" / "study1" / "view1_frontal.jpg").unlink()
    (fourth / "patient00002").rename(tmp_path / "lost")
    assert {row[1] for row in read(tmp_path / "download").left_out} == {"missing_file"}
    third.rmdir()
    assert f"the folder {third.name} is missing" in refusal(card(tmp_path / "download"))
