"""APTOS 2019 as published: ids and grades are text, every image is its own group until duplicates join."""

from __future__ import annotations

from pathlib import Path

import pytest

from crsbench_assets.config.cards import PRIMARY, DatasetCard
from crsbench_assets.data.cohort import Cohort, read_cohorts
from crsbench_assets_tests.data.layouts import card_of, content, refusal, rewrite_table, write_image, write_table

GRADES = ("0", "1", "2", "3", "4")
# an id of digits alone keeps its zeros
ROWS = (("00cb6555d108", "1"), ("000000000042", "0"), ("000c1434d8d7", "2"), ("ffe2", "4"), ("a1", "3"), ("a2", "0"))


def card(root: Path, classes: tuple[str, ...] = GRADES) -> DatasetCard:
    return card_of("aptos2019", root, classes, "ordinal")


def read(root: Path) -> Cohort:
    return read_cohorts(card(root), "u_zeros")[PRIMARY]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_table(tmp_path / "train.csv", ["id_code", "diagnosis"], ROWS)
    for name, _ in ROWS:
        write_image(tmp_path / "train_images" / f"{name}.png")
    write_table(tmp_path / "test.csv", ["id_code"], [["0005cfc8afb6"]])
    return tmp_path


def test_the_cohort_is_what_the_table_says(root: Path) -> None:
    found = read(root)
    assert found.image_ids == ["000000000042", "000c1434d8d7", "00cb6555d108", "a1", "a2", "ffe2"]
    assert found.groups == found.image_ids
    assert [row.index(1) for row in found.labels.tolist()] == [0, 2, 1, 3, 0, 4]
    assert found.paths == [f"train_images/{name}.png" for name in found.image_ids]
    assert (found.left_out, len(found.files())) == ([], 6)


def test_order_of_rows_and_columns_changes_nothing(root: Path) -> None:
    before = content(read(root))
    rewrite_table(root / "train.csv", rows=[5, 3, 1, 0, 4, 2], columns=[1, 0])
    assert content(read(root)) == before


def test_a_row_without_a_grade_and_one_without_a_file_are_left_out(root: Path) -> None:
    write_table(root / "train.csv", ["id_code", "diagnosis"], [*ROWS, ("b1", ""), ("b2", "2")])
    write_image(root / "train_images" / "b1.png")
    found = read(root)
    assert [row[:2] for row in found.left_out] == [("b1", "blank_class"), ("b2", "missing_file")]
    assert "b1" not in found.image_ids
    assert "b2" in found.image_ids


def test_every_fault_stands_in_one_sentence(root: Path) -> None:
    rows = [row for row in ROWS if row[1] != "3"]
    write_table(root / "train.csv", ["id_code", "diagnosis"], [*rows, ("c1", "5"), ("a2", "0"), ("", "1")])
    said = refusal(card(root))
    for clause in (
        "train.csv: 1 row(s) have a blank id_code",
        "1 id_code(s) stand more than once, such as 'a2'",
        "column diagnosis holds '5'; expected the classes 0, 1, 2, 3, 4 or their 0-based positions",
        "no image of class 3",
    ):
        assert clause in said


def test_a_root_that_is_half_there_names_what_is_missing(tmp_path: Path) -> None:
    said = refusal(card(tmp_path))
    assert "the folder train_images is missing" in said
    assert "the file train.csv is missing" in said


def test_a_table_without_rows_is_refused(root: Path) -> None:
    write_table(root / "train.csv", ["id_code", "diagnosis"], [])
    assert "train.csv has no rows" in refusal(card(root))


def test_classes_may_have_names_while_the_table_holds_positions(root: Path) -> None:
    named = card(root, ("none", "mild", "moderate", "severe", "proliferative"))
    found = read_cohorts(named, "u_zeros")[PRIMARY]
    assert found.labels.tolist() == read(root).labels.tolist()
