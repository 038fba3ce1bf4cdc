"""What a manifest says: text stays text, positions are told by content, agreements come first, paths stay inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from crsbench_assets.config.cards import PRIMARY, DatasetCard
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.data.cohort import Cohort, closed_in_words, read_cohorts
from crsbench_assets_tests.data.layouts import refusal, write_image
from crsbench_assets_tests.fixtures import dataset_card

HEADER = "image_id,label,pair,side\n"


def card(manifest: Path, **changes: Any) -> DatasetCard:
    columns = {"class_column": "label", "group": "pair", "split": "side"}
    source = {"layout": "manifest", "manifest": str(manifest), "columns": columns}
    return DatasetCard.model_validate(dataset_card(**{"source": source} | changes))


def cohort(folder: Path, rows: str, **changes: Any) -> Cohort:
    manifest = folder / "labels.csv"
    manifest.write_text(HEADER + rows, encoding="utf-8")
    return read_cohorts(card(manifest, **changes), "u_zeros")[PRIMARY]


def test_csv_ids_and_groups_keep_their_leading_zeros(tmp_path: Path) -> None:
    found = cohort(tmp_path, "0001,negative,007,\n0002,positive,7,\n0003,positive,07.0,\n")
    assert found.image_ids == ["0001", "0002", "0003"]
    assert found.groups == ["007", "7", "07.0"]
    assert found.labels.tolist() == [[1, 0], [0, 1], [0, 1]]


def test_ids_that_differ_in_zeros_only_are_two_images(tmp_path: Path) -> None:
    assert cohort(tmp_path, "1,negative,a,train\n01,positive,b,test\n").image_ids == ["01", "1"]


def test_parquet_ids_are_what_the_file_holds(tmp_path: Path) -> None:
    manifest = tmp_path / "labels.parquet"
    rows = {"image_id": [11, 2], "label": [0, 1], "pair": ["007", "7"], "side": [None, None]}
    pl.DataFrame(rows, schema_overrides={"side": pl.String}).write_parquet(manifest)
    found = read_cohorts(card(manifest), "u_zeros")[PRIMARY]
    assert (found.image_ids, found.groups) == (["11", "2"], ["007", "7"])
    assert found.labels.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("classes", [["negative", "positive"], ["0", "1"]])
def test_a_class_column_of_integers_holds_positions(tmp_path: Path, classes: list[str]) -> None:
    found = cohort(tmp_path, "a,0,g,\nb,1,g,\nc,1,h,\n", classes=classes)
    assert found.labels.tolist() == [[1, 0], [0, 1], [0, 1]]


def test_classes_named_by_numbers_with_leading_zeros_are_names(tmp_path: Path) -> None:
    found = cohort(tmp_path, "a,01,g,\nb,00,h,\n", classes=["01", "00"])
    assert found.labels.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("value", ["2", "-1", "0.0", "other", "00"])
def test_what_is_neither_class_nor_position_is_named(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=f"holds '{value}'; expected the classes negative, positive or their 0-based"):
        cohort(tmp_path, f"a,negative,g,\nb,{value},h,\n")


def test_names_and_positions_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds '1'"):
        cohort(tmp_path, "a,negative,g,\nb,1,h,\n")


@pytest.mark.parametrize("unknown", ["0", "7"])
def test_one_bad_cell_makes_no_positions_of_classes_that_are_numbers(tmp_path: Path, unknown: str) -> None:
    # with 0 as a position, the image b of grade 1 would be one of grade 2
    rows = f"a,{unknown},g,\nb,1,h,\nc,2,i,\nd,3,j,\n"
    with pytest.raises(ConfigError, match=f"holds '{unknown}'; expected the classes 1, 2, 3, 4 or their 0-based"):
        cohort(tmp_path, rows, task="ordinal", classes=["1", "2", "3", "4"])


def test_blank_cells_stay_blank_with_and_without_quotes(tmp_path: Path) -> None:
    found = cohort(tmp_path, 'a,negative,,\nb,positive,"",""\nc,,g,test\nd,"",g,test\n')
    assert found.image_ids == ["a", "b"]
    assert found.groups == ["image:a", "image:b"]
    assert found.declared_split == [None, None]
    assert [row[:2] for row in found.left_out] == [("c", "blank_class"), ("d", "blank_class")]


def multi_label(manifest: Path, **changes: Any) -> DatasetCard:
    source = {"layout": "manifest", "manifest": str(manifest)}
    changes = {"task": "multi_label", "classes": ["edema", "fracture"], "source": source} | changes
    return DatasetCard.model_validate(dataset_card(**changes))


@pytest.mark.parametrize("suffix", ["parquet", "pq", "PARQUET"])
def test_parquet_as_pandas_writes_it(tmp_path: Path, suffix: str) -> None:
    """Labels are true and false, or floats with NaN where a number is missing."""
    manifest = tmp_path / f"labels.{suffix}"
    rows = {"image_id": ["a", "b", "c"], "edema": [True, False, None], "fracture": [float("nan"), 1.0, -1.0]}
    pl.DataFrame(rows).write_parquet(manifest)
    found = read_cohorts(multi_label(manifest), "u_ignore")[PRIMARY]
    assert found.stated is not None
    assert found.stated.astype(str).tolist() == [["1.0", "nan"], ["0.0", "1.0"], ["nan", "-1.0"]]


def test_nan_of_a_parquet_file_is_a_blank_group_and_a_blank_class(tmp_path: Path) -> None:
    manifest = tmp_path / "labels.parquet"
    nan = float("nan")
    rows = {"image_id": ["a", "b", "c", "d"], "label": ["negative", "positive", "positive", None]}
    pl.DataFrame(rows | {"pair": [nan, nan, 7.0, 7.0], "side": [nan] * 4}).write_parquet(manifest)
    found = read_cohorts(card(manifest), "u_zeros")[PRIMARY]
    assert found.groups == ["image:a", "image:b", "7.0"], "two patients without a number are not one patient"
    assert found.declared_split == [None] * 3
    assert [row[:2] for row in found.left_out] == [("d", "blank_class")]


def test_a_manifest_that_is_a_folder_or_no_table_is_told_in_one_sentence(tmp_path: Path) -> None:
    assert f"{tmp_path} cannot be read as CSV or Parquet (it is a folder: name the file" in refusal(card(tmp_path))
    manifest = tmp_path / "labels.csv"
    rows = "".join(f"{i},negative,patient{i},\n" for i in range(20_000))
    manifest.write_text(f'{HEADER}a,negative,"x"y,\n{rows}', encoding="utf-8")
    said = refusal(card(manifest))
    assert "cannot be read as CSV or Parquet (" in said
    assert len(said) < 600 and "patient19999" not in said, "a library quotes the whole file"
    (tmp_path / "labels.parquet").write_bytes(b"no table")
    assert "labels.parquet cannot be read as CSV or Parquet (" in refusal(card(tmp_path / "labels.parquet"))


@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_quote_that_is_not_closed_swallows_no_rows_silently(tmp_path: Path, column: int) -> None:
    rows = [[f"{i:05d}", "negative" if i % 2 else "positive", f"patient{i}", ""] for i in range(5_000)]
    rows[10][column] = f'"{rows[10][column]}'
    rows[4_000][3] = '"'  # closes it: 3,990 rows would be one cell
    manifest = tmp_path / "labels.csv"
    manifest.write_text(HEADER + "".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
    said = refusal(card(manifest))
    assert f"has a line break within a cell of the column(s) {['image_id', 'label', 'pair'][column]}" in said
    assert len(said) < 600


def test_a_multi_label_cohort_without_any_positive_is_refused_but_a_shift_target_is_not(tmp_path: Path) -> None:
    own, other = tmp_path / "own.csv", tmp_path / "other.csv"
    own.write_text("image_id,edema,fracture\n1,0,\n2,-1,0\n", encoding="utf-8")
    assert "no image is positive for any of edema, fracture; expected at least one positive label" in refusal(
        multi_label(own)
    )
    assert read_cohorts(multi_label(own), "u_ones")[PRIMARY].labels.sum() == 1
    other.write_text("image_id,edema,fracture\n1,1,0\n", encoding="utf-8")
    shift = {"id": "elsewhere", "name": "Elsewhere", "source": {"layout": "manifest", "manifest": str(own)}}
    assert list(read_cohorts(multi_label(other, shift=shift), "u_zeros")) == [PRIMARY, "elsewhere"]


def test_a_shift_target_needs_no_image_of_every_class(tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("image_id,label\nx,positive\n", encoding="utf-8")
    source = {"layout": "manifest", "manifest": str(other), "columns": {"class_column": "label"}}
    shift = {"id": "elsewhere", "name": "Elsewhere", "source": source}
    manifest = tmp_path / "labels.csv"
    manifest.write_text(HEADER + "a,negative,g,\nb,positive,h,\n", encoding="utf-8")
    assert read_cohorts(card(manifest, shift=shift), "u_zeros")["elsewhere"].labels.tolist() == [[0, 1]]
    manifest.write_text(HEADER + "a,negative,g,\n", encoding="utf-8")
    assert "no image of class positive" in refusal(card(manifest, shift=shift))


TWO_HOSPITALS = """image_id,label,pair,hospital
1,negative,p1,North
2,positive,p2,North
3,positive,p2, North
4,negative,p1,South
2,positive,p3,South
6,other,p4,East
7,negative,p5,
"""


def of_sites(manifest: Path, *sites: str) -> dict[str, Any]:
    columns = {"class_column": "label", "group": "pair", "site": "hospital"}
    return {"layout": "manifest", "manifest": str(manifest), "columns": columns, "sites": list(sites)}


def two_hospitals(folder: Path, own: list[str], other: list[str]) -> DatasetCard:
    manifest = folder / "labels.csv"
    manifest.write_text(TWO_HOSPITALS, encoding="utf-8")
    shift = {"id": "elsewhere", "name": "Elsewhere", "source": of_sites(manifest, *other)}
    return DatasetCard.model_validate(dataset_card(source=of_sites(manifest, *own), shift=shift))


def test_one_manifest_holds_a_dataset_and_its_shift_target(tmp_path: Path) -> None:
    found = read_cohorts(two_hospitals(tmp_path, ["North"], ["South"]), "u_zeros")
    # ids are unique within a source, and the unknown class of East is in neither
    assert found[PRIMARY].image_ids == ["1", "2", "3"]
    assert found["elsewhere"].image_ids == ["2", "4"]
    assert found[PRIMARY].groups == ["p1", "p2", "p2"]
    without = "1 row(s) without a site are not read"
    assert found[PRIMARY].notes == ["3 row(s) of other sites than North are not read", without]
    assert found["elsewhere"].notes == ["4 row(s) of other sites than South are not read", without]


def test_a_site_that_no_row_has_is_refused(tmp_path: Path) -> None:
    said = refusal(two_hospitals(tmp_path, ["North", "north"], ["South"]))
    assert "no row is of the site 'north'; column hospital holds 'East', 'North', 'South'" in said
    (tmp_path / "blank.csv").write_text("image_id,label,pair,hospital\n1,negative,p,\n", encoding="utf-8")
    own = DatasetCard.model_validate(dataset_card(source=of_sites(tmp_path / "blank.csv", "North")))
    assert "no row is of the site 'North'; column hospital holds blanks alone" in refusal(own)


def test_a_missing_site_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("image_id,label,pair\n1,negative,p\n", encoding="utf-8")
    own = DatasetCard.model_validate(dataset_card(source=of_sites(tmp_path / "labels.csv", "North")))
    assert "it lacks the column(s) hospital; it has image_id, label, pair" in refusal(own)


def test_multi_label_columns_are_numbers(tmp_path: Path) -> None:
    manifest = tmp_path / "labels.csv"
    manifest.write_text("image_id,edema,fracture\n001,1,0\n002,-1.0,\n003,0, 1\n", encoding="utf-8")
    source = {"layout": "manifest", "manifest": str(manifest)}
    multi = DatasetCard.model_validate(dataset_card(task="multi_label", classes=["edema", "fracture"], source=source))
    found = read_cohorts(multi, "u_ignore")[PRIMARY]
    assert found.image_ids == ["001", "002", "003"]
    assert found.labels.tolist() == [[1, 0], [-1, 0], [0, 1]]


def test_nothing_is_read_before_its_agreement_is_recorded(tmp_path: Path) -> None:
    source = {"layout": "manifest", "manifest": "absent.csv", "columns": {"class_column": "label"}}
    shift = {"id": "elsewhere", "name": "Elsewhere", "source": source, "agreement": "their-terms"}
    closed = card(tmp_path / "absent.csv", agreement="our-terms", shift=shift)
    with pytest.raises(ConfigError, match="records the agreement our-terms: accept it with its owner") as raised:
        read_cohorts(closed, "u_zeros")
    assert "`agreements: {our-terms: {accepted_by: NAME, accepted_on: DATE}}`" in str(raised.value)
    with pytest.raises(ConfigError, match="does not exist"):  # it was looked for: the agreement is there
        read_cohorts(closed, "u_zeros", {"our-terms": "recorded"})


def test_a_shift_target_whose_agreement_is_not_recorded_is_left_closed(tmp_path: Path) -> None:
    manifest = tmp_path / "labels.csv"
    manifest.write_text("image_id,label,pair,side\na,negative,1,\nb,positive,2,\n", encoding="utf-8")
    source = {"layout": "manifest", "manifest": str(tmp_path / "absent.csv"), "columns": {"class_column": "label"}}
    shift = {"id": "elsewhere", "name": "Elsewhere", "source": source, "agreement": "their-terms"}
    closed = card(manifest, shift=shift)
    assert list(read_cohorts(closed, "u_zeros")) == [PRIMARY], "its manifest, which does not exist, was not looked for"
    with pytest.raises(ConfigError, match="does not exist"):
        read_cohorts(closed, "u_zeros", ["their-terms"])
    assert closed_in_words(closed, "elsewhere").startswith("may be read once crsbench.yaml records the agreement their")


PATH_HEADER = "image_id,label,file\n"


def card_with_paths(manifest: Path, **source: Any) -> DatasetCard:
    columns = {"class_column": "label", "path": "file"}
    return DatasetCard.model_validate(
        dataset_card(source={"layout": "manifest", "manifest": str(manifest), "columns": columns} | source)
    )


def write_manifest(folder: Path, rows: str) -> Path:
    manifest = folder / "labels.csv"
    manifest.write_text(PATH_HEADER + rows, encoding="utf-8")
    return manifest


def test_paths_start_at_the_root_else_at_the_folder_of_the_manifest(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "elsewhere"):
        write_image(folder / "inner" / "one.png")
        write_image(folder / "two.png")
    manifest = write_manifest(tmp_path, "b,positive,two.png\na,negative,inner/one.png\n")
    beside = read_cohorts(card_with_paths(manifest), "u_zeros")[PRIMARY]
    assert (beside.paths, beside.root, beside.left_out) == (["inner/one.png", "two.png"], str(tmp_path), [])
    assert beside.files() == {"a": tmp_path / "inner" / "one.png", "b": tmp_path / "two.png"}
    other = str(tmp_path / "elsewhere")
    assert read_cohorts(card_with_paths(manifest, root=other), "u_zeros")[PRIMARY].root == other


def test_without_a_path_column_there_are_no_files(tmp_path: Path) -> None:
    found = cohort(tmp_path, "a,negative,g,\nb,positive,h,\n")
    assert (found.paths, found.root, found.files()) == (None, None, {})
    assert not card(tmp_path / "labels.csv").source.has_images


def test_what_leaves_the_root_and_what_is_absent_is_listed_in_one_run(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("one", "two"):
        write_image(root / f"{name}.png")
    write_image(tmp_path / "outside.png")
    (root / "link.png").symlink_to(tmp_path / "outside.png")
    rows = [
        "a,negative,one.png",
        "b,positive,two.png",
        "c,positive,../outside.png",
        f"d,positive,{tmp_path / 'outside.png'}",
        "e,positive,link.png",
        "f,positive,absent.png",
        "g,positive,",
        "h,,one.png",
    ]
    found = read_cohorts(card_with_paths(write_manifest(root, "\n".join(rows))), "u_zeros")[PRIMARY]
    assert {image_id: reason for image_id, reason, _ in found.left_out} == {
        "c": "outside_root",
        "d": "outside_root",
        "e": "outside_root",
        "f": "missing_file",
        "g": "missing_file",
        "h": "blank_class",
    }
    assert found.image_ids == list("abcdefg")  # they take part in the draw of the splits, but are never opened
    assert sorted(found.files()) == ["a", "b"]


def test_every_fault_of_a_manifest_stands_in_one_sentence(tmp_path: Path) -> None:
    rows = "a,other,one.png\na,negative,one.png\n,negative,one.png\n"
    said = refusal(card_with_paths(write_manifest(tmp_path, rows), root=str(tmp_path / "absent")))
    for clause in (
        "1 row(s) have a blank image id",
        "1 image id(s) stand more than once, such as 'a'",
        "column label holds 'other'; expected the classes negative, positive",
        f"the root {tmp_path / 'absent'} of its images is no folder",
        "no image of class positive; expected at least one of every class of the card",
    ):
        assert clause in said


def test_a_manifest_without_rows_and_one_without_any_file_are_refused(tmp_path: Path) -> None:
    assert "it has no rows" in refusal(card_with_paths(write_manifest(tmp_path, "")))
    manifest = write_manifest(tmp_path, "a,negative,one.png\nb,positive,two.png\n")
    said = refusal(card_with_paths(manifest))
    assert "none of the 2 image files can be used, such as that of 'a' (missing_file: one.png: there is no such" in said


def test_a_missing_path_column_is_named(tmp_path: Path) -> None:
    manifest = tmp_path / "labels.csv"
    manifest.write_text("image_id,label\na,negative\n", encoding="utf-8")
    assert "it lacks the column(s) file; it has image_id, label" in refusal(card_with_paths(manifest))


def test_every_bad_label_column_is_named(tmp_path: Path) -> None:
    manifest = tmp_path / "labels.csv"
    manifest.write_text("image_id,edema,fracture\n001,2,0\n002,1,no\n", encoding="utf-8")
    source = {"layout": "manifest", "manifest": str(manifest)}
    said = refusal(
        DatasetCard.model_validate(dataset_card(task="multi_label", classes=["edema", "fracture"], source=source))
    )
    assert "column edema holds '2' for image '001' (1 such row(s)); expected 1, 0, -1 or blank" in said
    assert "column fracture holds 'no' for image '002'" in said
