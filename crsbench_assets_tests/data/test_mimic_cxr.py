"""MIMIC-CXR-JPG as published: three tables, the official test split, labels in alphabetical columns."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from crsbench_assets.config.cards import DatasetCard
from crsbench_assets.config.layouts import label_files
from crsbench_assets.config.settings import LabelPolicy
from crsbench_assets.data.cohort import Cohort, read_cohorts, readable_cohorts
from crsbench_assets_tests.data import test_chexpert as chexpert
from crsbench_assets_tests.data.layouts import (
    CXR_LABELS,
    card_of,
    content,
    refusal,
    rewrite_table,
    write_image,
    write_table,
)

METADATA_HEADER = [
    "dicom_id",
    "subject_id",
    "study_id",
    "PerformedProcedureStepDescription",
    "ViewPosition",
    "Rows",
    "Columns",
    "StudyDate",
    "StudyTime",
    "ProcedureCodeSequence_CodeMeaning",
    "ViewCodeSequence_CodeMeaning",
    "PatientOrientationCodeSequence_CodeMeaning",
]
TABLES = ("metadata", "split", "chexpert")

# dicom, subject, study, view, split: of the seven images the first three are the cohort
IMAGES = (
    ("cc-3", "10000032", "50414267", "PA", "test"),
    ("aa-1", "10000032", "50414267", "AP", "test"),
    ("bb-2", "11000011", "51000001", "AP", "test"),
    ("dd-4", "10000032", "50414267", "LATERAL", "test"),
    ("ee-5", "10000032", "50414267", "", "test"),
    ("ff-6", "12000012", "52000002", "AP", "train"),
    ("gg-7", "13000013", "53000003", "PA", "test"),  # its study has no label row
)
STUDIES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("10000032", "50414267", {"Edema": "1.0", "Pneumonia": "-1.0", "Atelectasis": "0.0"}),
    ("11000011", "51000001", {"No Finding": "1.0"}),
    ("12000012", "52000002", {}),
)
LEFT_OUT = [
    "2 image(s) of the test split have no view AP or PA: 1 LATERAL, 1 blank",
    "1 image(s) of the test split have a study without a label row, such as 'gg-7'",
]
PATHS = [
    "files/p10/p10000032/s50414267/aa-1.jpg",
    "files/p11/p11000011/s51000001/bb-2.jpg",
    "files/p10/p10000032/s50414267/cc-3.jpg",
]


def table(root: Path, kind: str, suffix: str = ".csv.gz") -> Path:
    return root / f"mimic-cxr-2.0.0-{kind}{suffix}"


def write_labels(root: Path, order: list[str]) -> None:
    rows = [[subject, study, *(labels.get(name, "") for name in order)] for subject, study, labels in STUDIES]
    write_table(table(root, "chexpert"), ["subject_id", "study_id", *order], rows)


def write_official(root: Path) -> None:
    metadata = [
        [dicom, subject, study, "CHEST (PA AND LAT)", view, "3056", "2544", "21800506", "213014.531", "", "", ""]
        for dicom, subject, study, view, _ in IMAGES
    ]
    write_table(table(root, "metadata"), METADATA_HEADER, metadata)
    split = [[dicom, study, subject, name] for dicom, subject, study, _, name in IMAGES]
    write_table(table(root, "split"), ["dicom_id", "study_id", "subject_id", "split"], split)
    write_labels(root, sorted(CXR_LABELS))
    for path in PATHS:
        write_image(root / path, mode="L")


def card(chexpert_root: Path, root: Path | None) -> DatasetCard:
    source = {"layout": "mimic_cxr", "root": None if root is None else str(root)}
    shift = {"id": "elsewhere", "name": "Elsewhere", "source": source}
    return card_of("chexpert", chexpert_root, CXR_LABELS, "multi_label", shift=shift)


@pytest.fixture
def primary(tmp_path: Path) -> Path:
    return chexpert.write_official(tmp_path, "CheXpert-v1.0-small")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "mimic"
    write_official(folder)
    return folder


def read(primary: Path, root: Path, policy: LabelPolicy = "u_zeros") -> Cohort:
    return read_cohorts(card(primary, root), policy)["elsewhere"]


def test_the_cohort_is_the_labelled_frontal_images_of_the_test_split(primary: Path, root: Path) -> None:
    found = read(primary, root)
    assert found.image_ids == ["aa-1", "bb-2", "cc-3"]
    assert found.groups == ["10000032", "11000011", "10000032"]
    assert found.paths == PATHS
    positive = [[CXR_LABELS[i] for i in np.flatnonzero(row == 1)] for row in found.labels]
    assert positive == [["Edema"], ["No Finding"], ["Edema"]]
    assert (found.root, found.left_out, found.declared_split) == (str(root), [], [None] * 3)


@pytest.mark.parametrize(("policy", "pneumonia"), [("u_zeros", 0), ("u_ignore", -1), ("u_ones", 1)])
def test_uncertain_labels_follow_the_policy(primary: Path, root: Path, policy: LabelPolicy, pneumonia: int) -> None:
    labels = read(primary, root, policy).labels
    assert labels[:, CXR_LABELS.index("Pneumonia")].tolist() == [pneumonia, 0, pneumonia]


@pytest.mark.parametrize("order", [list(CXR_LABELS), sorted(CXR_LABELS, reverse=True)])
def test_labels_are_found_by_name(primary: Path, root: Path, order: list[str]) -> None:
    before = content(read(primary, root))  # alphabetical, as published
    write_labels(root, order)
    assert content(read(primary, root)) == before


def test_order_of_rows_and_columns_and_more_columns_change_nothing(primary: Path, root: Path) -> None:
    before = content(read(primary, root))
    rewrite_table(table(root, "metadata"), rows=[6, 5, 4, 3, 2, 1, 0], columns=[4, 2, 1, 0])
    rewrite_table(table(root, "split"), rows=[2, 6, 0, 3, 1, 5, 4], columns=[3, 2, 1, 0])
    rewrite_table(table(root, "chexpert"), rows=[2, 0, 1], columns=[*range(15, -1, -1)])
    assert content(read(primary, root)) == before


def test_tables_may_be_unpacked(primary: Path, root: Path) -> None:
    before = content(read(primary, root))
    for kind in TABLES:
        packed = table(root, kind)
        table(root, kind, ".csv").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    assert content(read(primary, root)) == before


@pytest.mark.parametrize("suffix", [".csv.gz", ".csv"])
def test_tables_may_be_renamed_after_their_release(primary: Path, root: Path, suffix: str) -> None:
    before = content(read(primary, root))
    for kind in TABLES:
        data = gzip.decompress(table(root, kind).read_bytes())
        table(root, kind).unlink()
        renamed = root / f"mimic-cxr-2.1.0-{kind}{suffix}"
        renamed.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    assert content(read(primary, root)) == before
    assert {path.name for path in label_files(card(primary, root).sources["elsewhere"])} == {
        f"mimic-cxr-2.1.0-{kind}{suffix}" for kind in TABLES
    }, "what the planner compares"


@pytest.mark.parametrize("suffix", [".csv.gz", ".csv"])
def test_negbio_is_read_where_there_is_no_chexpert_table_and_a_note_says_so(
    primary: Path, root: Path, suffix: str
) -> None:
    before = read(primary, root)
    rows = [
        [subject, study, *["1.0" if name == "Fracture" else "" for name in sorted(CXR_LABELS)]]
        for subject, study, _ in STUDIES
    ]
    write_table(table(root, "negbio", suffix), ["subject_id", "study_id", *sorted(CXR_LABELS)], rows)
    assert content(read(primary, root)) == content(before), "the labels of CheXpert's own labeller come first"
    assert before.notes == LEFT_OUT
    table(root, "chexpert").unlink()
    found = read(primary, root)
    assert [[CXR_LABELS[i] for i in np.flatnonzero(row == 1)] for row in found.labels] == [["Fracture"]] * 3
    assert found.notes == ["its labels are those of negbio: there is no table chexpert", *LEFT_OUT]


def test_every_fault_stands_in_one_sentence(primary: Path, root: Path) -> None:
    rewrite_table(table(root, "metadata"), rows=[0, 1, 2, 2, 3, 4, 5, 6])
    rewrite_table(table(root, "split"), rows=[0, 1, 2, 3, 4, 6])
    rows = [["10000032", "50414267", "yes"], ["10000032", "50414267", ""]]
    others = [name for name in CXR_LABELS if name != "Edema"]
    write_table(
        table(root, "chexpert"), ["subject_id", "study_id", "Edema", *others], [[*row, *[""] * 13] for row in rows]
    )
    (root / "files").rename(root / "images")
    said = refusal(card(primary, root))
    for clause in (
        f"{root} (dataset 'tiny', shift target 'elsewhere'): ",
        "the folder files is missing",
        "metadata: 1 dicom_id(s) stand more than once, such as 'bb-2'",
        "chexpert: 1 study_id(s) stand more than once, such as '50414267'",
        "1 image(s) of metadata have no row in split, such as 'ff-6'",
    ):
        assert clause in said


def write_split(root: Path, changes: dict[str, str]) -> None:
    rows = [[dicom, study, subject, changes.get(dicom, name)] for dicom, subject, study, _, name in IMAGES]
    write_table(table(root, "split"), ["dicom_id", "study_id", "subject_id", "split"], rows)


def test_case_of_splits_and_views_says_nothing(primary: Path, root: Path) -> None:
    before = content(read(primary, root))
    write_split(root, {"aa-1": "Test", "bb-2": " TEST ", "ff-6": "Validate"})
    metadata = [[dicom, subject, study, "", view.lower(), *[""] * 7] for dicom, subject, study, view, _ in IMAGES]
    write_table(table(root, "metadata"), METADATA_HEADER, metadata)
    found = read(primary, root)
    assert (content(found), found.notes) == (before, LEFT_OUT)


@pytest.mark.parametrize(("name", "told"), [("", "blank"), ("tset", "'tset'")])
def test_an_unknown_split_drops_no_image_silently(primary: Path, root: Path, name: str, told: str) -> None:
    write_split(root, {"bb-2": name})
    assert f"split: column split is {told} for 'bb-2' (1 row(s) hold no known value); expected train" in refusal(
        card(primary, root)
    )


def test_a_refused_cohort_has_its_notes_too(primary: Path, root: Path) -> None:
    write_split(root, {"bb-2": "tset"})
    cohorts, faults = readable_cohorts(card(primary, root), "u_zeros")
    assert len(faults) == 1
    assert cohorts["elsewhere"].notes == LEFT_OUT


def test_views_that_are_not_read_are_counted(primary: Path, root: Path) -> None:
    views = ["AP", "LL", "Swimmers", "LL", "", "LL", "PA"]  # the sixth is of the split train
    metadata = [[row[0], row[1], row[2], "", view, *[""] * 7] for row, view in zip(IMAGES, views, strict=True)]
    write_table(table(root, "metadata"), METADATA_HEADER, metadata)
    assert read(primary, root).notes == [
        "4 image(s) of the test split have no view AP or PA: 2 LL, 1 SWIMMERS, 1 blank",
        LEFT_OUT[1],
    ]


def test_a_value_that_is_no_label_is_named(primary: Path, root: Path) -> None:
    rows = [[subject, study, *["nan" if study == "51000001" else ""] * 14] for subject, study, _ in STUDIES]
    write_table(table(root, "chexpert"), ["subject_id", "study_id", *CXR_LABELS], rows)
    assert "column No Finding holds 'nan' for image 'bb-2' (1 such row(s)); expected 1, 0, -1" in refusal(
        card(primary, root)
    )


def test_a_blank_subject_is_a_fault(primary: Path, root: Path) -> None:
    rows = [[dicom, "", study, "", view, *[""] * 7] for dicom, _, study, view, _ in IMAGES]
    write_table(table(root, "metadata"), METADATA_HEADER, rows)
    assert "metadata: 7 row(s) have a blank subject_id" in refusal(card(primary, root))


def test_a_root_that_is_half_there_names_what_is_missing(primary: Path, root: Path) -> None:
    table(root, "split").unlink()
    rewrite_table(table(root, "metadata"), columns=[0, 1, 2])
    said = refusal(card(primary, root))
    assert "the file mimic-cxr-2.0.0-split.csv.gz or mimic-cxr-2.0.0-split.csv or mimic-cxr-2.1.0-split.csv.gz" in said
    assert "mimic-cxr-2.0.0-metadata.csv.gz lacks the column(s) ViewPosition" in said


def test_a_truncated_table_is_named(primary: Path, root: Path) -> None:
    packed = table(root, "split")
    packed.write_bytes(packed.read_bytes()[:-20])
    assert "mimic-cxr-2.0.0-split.csv.gz cannot be read as CSV (" in refusal(card(primary, root))


def test_no_image_that_qualifies_is_a_fault(primary: Path, root: Path) -> None:
    rewrite_table(table(root, "split"), rows=[5])
    rewrite_table(table(root, "metadata"), rows=[5])
    assert "no image is of the split test, has a view AP or PA and a label row" in refusal(card(primary, root))


def test_faults_of_a_dataset_and_of_its_shift_target_are_told_together(tmp_path: Path) -> None:
    said = refusal(card(tmp_path / "absent", None))
    assert f"{tmp_path / 'absent'} (dataset 'tiny'): there is no such folder" in said
    assert "dataset 'tiny' has no folder for the layout mimic_cxr: add `roots: {elsewhere: FOLDER}`" in said


def test_an_absent_file_is_left_out(primary: Path, root: Path) -> None:
    (root / PATHS[1]).unlink()
    assert [row[:2] for row in read(primary, root).left_out] == [("bb-2", "missing_file")]
