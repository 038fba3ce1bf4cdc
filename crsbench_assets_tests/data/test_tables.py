"""Tables and folders as people have them: what is plain is read, and what is not is told with its remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from crsbench_assets.config.cards import PRIMARY, DatasetCard
from crsbench_assets.data.cohort import Cohort, read_cohorts
from crsbench_assets_tests.data import test_aptos2019 as aptos2019
from crsbench_assets_tests.data.layouts import content, refusal, write_image, write_table
from crsbench_assets_tests.fixtures import dataset_card

TABLE = "id_code,diagnosis\n" + "".join(f"{name},{grade}\n" for name, grade in aptos2019.ROWS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "aptos"
    write_table(folder / "train.csv", ["id_code", "diagnosis"], aptos2019.ROWS)
    for name, _ in aptos2019.ROWS:
        write_image(folder / "train_images" / f"{name}.png")
    return folder


def read(root: Path) -> Cohort:
    return read_cohorts(aptos2019.card(root), "u_zeros")[PRIMARY]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + TABLE,
        TABLE.replace("\n", "\r\n"),
        TABLE.replace(",", ";"),
        TABLE.replace(",", "\t"),
        # 61,5 years: the decimal commas of a table with semicolons
        TABLE.replace(",", ";").replace("\n", ";61,5\n").replace(";61,5", ";age", 1),
        TABLE.replace(",", "\t").replace("\n", "\t61,5\n").replace("\t61,5", "\tage", 1),
        TABLE.replace("\n", ",1;2;3\n").replace(",1;2;3", ",remark", 1),
        TABLE.replace(",", " , ").replace("\n", " \n"),
        TABLE + "\n,\n\n",
        TABLE.replace("id_code,diagnosis", '"id_code","diagnosis"'),
        "number," + TABLE.replace("\n", "\n7,").removesuffix("7,"),
    ],
    ids=[
        "mark",
        "windows",
        "semicolons",
        "tabs",
        "decimal commas",
        "tabs and commas",
        "remarks",
        "spaces",
        "blank rows",
        "quotes",
        "numbered rows",
    ],
)
def test_what_programs_make_of_a_table_says_the_same(root: Path, text: str) -> None:
    before = content(read(root))
    (root / "train.csv").write_bytes(text.encode())
    assert content(read(root)) == before


@pytest.mark.parametrize(
    ("data", "clause"),
    [
        (b"", "train.csv cannot be read as CSV (empty CSV)"),
        (TABLE.replace("a1,3", "a\xe9,3").encode("latin-1"), "train.csv cannot be read as CSV (invalid utf-8"),
        (TABLE.replace("a1,3", "a1,3,4").encode(), "train.csv cannot be read as CSV ("),
        (TABLE.encode("utf-16"), "train.csv cannot be read as CSV (it is no text in UTF-8"),
        (TABLE.replace("a1,3", "a1,nan").encode(), "column diagnosis holds 'nan'; expected the classes 0, 1, 2, 3, 4"),
        (TABLE.replace("a1,3", "a1,3\na1,3").encode(), "train.csv: 1 id_code(s) stand more than once, such as 'a1'"),
        (
            b"id_code,diagnosis,diagnosis\na1,1,2\n",
            "train.csv has the column(s) diagnosis twice; expected one each",
        ),
        (
            TABLE.replace("\n", "\r").encode(),
            "train.csv cannot be read as CSV (its lines end in carriage returns alone",
        ),
        (
            TABLE.replace("a1,3", 'a1,"3').encode() + b'b1,4"\n',
            "train.csv has a line break within a cell of the column(s) diagnosis; expected one row per line",
        ),
        (b"image,diagnosis\na1,1\n", "train.csv lacks the column(s) id_code; it has image, diagnosis"),
    ],
)
def test_what_is_not_plain_is_told(root: Path, data: bytes, clause: str) -> None:
    (root / "train.csv").write_bytes(data)
    assert clause in refusal(aptos2019.card(root))


def test_a_packed_root_is_to_be_unpacked(root: Path) -> None:
    (root / "train_images").rename(root.parent / "kept")
    (root / "train.csv").unlink()
    for name in ("train.csv.zip", "train_images.zip"):
        (root / name).touch()
    said = refusal(aptos2019.card(root))
    assert "the folder train_images is missing (unpack train.csv.zip and train_images.zip there)" in said
    assert "the file train.csv is missing (unpack train.csv.zip and train_images.zip there)" in said
    packed = root.parent / "packed.zip"
    packed.touch()
    assert "it is a file; expected the folder" in refusal(aptos2019.card(packed))
    beside = refusal(aptos2019.card(packed.with_suffix("")))
    assert "there is no such folder" in beside and "unpack packed.zip, which lies beside it" in beside


def test_a_root_one_level_too_high_is_told(root: Path) -> None:
    said = refusal(aptos2019.card(root.parent))
    (root.parent / "other" / "train_images").mkdir(parents=True)
    assert "the file train.csv is missing (it lies in aptos: let the root name that folder)" in said
    assert "the folder train_images is missing (it lies in aptos: let the root name that folder)" in said
    assert "(it lies in aptos and in other: let the root name that folder)" in refusal(aptos2019.card(root.parent))


def test_a_file_of_another_case_is_told(root: Path) -> None:
    (root / "train_images" / "ffe2.png").rename(root / "train_images" / "ffe2.PNG")
    write_table(root / "train.csv", ["id_code", "diagnosis"], [*aptos2019.ROWS, ("b1", "4")])
    write_image(root / "train_images" / "b1.png")
    assert read(root).left_out == [
        ("ffe2", "missing_file", "train_images/ffe2.png: there is no such file, but ffe2.PNG: rename it")
    ]


def test_a_space_in_a_manifest_makes_no_second_patient(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("image_id,label,pair\na,negative,7\nb ,positive, 7\n", encoding="utf-8")
    columns = {"class_column": "label", "group": "pair"}
    source = {"layout": "manifest", "manifest": str(tmp_path / "labels.csv"), "columns": columns}
    found = read_cohorts(DatasetCard.model_validate(dataset_card(source=source)), "u_zeros")[PRIMARY]
    assert (found.image_ids, found.groups) == (["a", "b"], ["7", "7"])


@pytest.mark.parametrize("labels", [[["u"], ["v"]], [b"u", b"v"]])
def test_a_column_of_lists_or_bytes_is_told(tmp_path: Path, labels: list[Any]) -> None:
    pl.DataFrame({"image_id": ["a", "b"], "label": labels}).write_parquet(tmp_path / "labels.parquet")
    source = {"layout": "manifest", "manifest": str(tmp_path / "labels.parquet"), "columns": {"class_column": "label"}}
    said = refusal(DatasetCard.model_validate(dataset_card(source=source)))
    assert "in the column(s) label; expected text or numbers" in said


def test_a_zip_in_place_of_the_images_of_a_manifest_is_told(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("image_id,label,file\na,negative,a.png\nb,positive,b.png\n", encoding="utf-8")
    (tmp_path / "images.zip").touch()
    columns = {"class_column": "label", "path": "file"}
    source = {"layout": "manifest", "manifest": str(tmp_path / "labels.csv"), "columns": columns}
    source["root"] = str(tmp_path / "images.zip")
    said = refusal(DatasetCard.model_validate(dataset_card(source=source)))
    assert "is no folder: unpack images.zip and let the root name the folder" in said
