"""ISIC 2019 as published: names of columns decide, lesions group, every fault is told in one run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from crsbench_assets.config.cards import PRIMARY, DatasetCard
from crsbench_assets.config.layouts import ISIC2019_METADATA as METADATA
from crsbench_assets.config.layouts import ISIC2019_TRUTH as TRUTH
from crsbench_assets.data.cohort import Cohort, read_cohorts
from crsbench_assets.data.sources.isic2019 import IMAGES
from crsbench_assets_tests.data.layouts import card_of, content, refusal, rewrite_table, write_image, write_table

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
TRUTH_HEADER = ["image", *CLASSES, "UNK"]
METADATA_HEADER = ["image", "age_approx", "anatom_site_general", "lesion_id", "sex"]

# image, class, lesion
ROWS = (
    ("ISIC_0000010", "SCC", "HAM_0000001"),
    ("ISIC_0000001_downsampled", "MEL", ""),
    ("ISIC_0000002", "NV", "BCN_0001079"),
    ("ISIC_0000003", "NV", "BCN_0001079"),
    ("ISIC_0000004", "BCC", "ISIC_0000001_downsampled"),  # a lesion named as an image is another group
    ("ISIC_0000005", "AK", "MSK4_0000002"),
    ("ISIC_0000006", "BKL", ""),
    ("ISIC_0000007", "DF", "HAM_0000003"),
    ("ISIC_0000008", "VASC", "HAM_0000004"),
)


def one_hot(name: str, *classes: str, one: str = "1.0", zero: str = "0.0") -> list[str]:
    return [name, *(one if column in classes else zero for column in TRUTH_HEADER[1:])]


def card(root: Path | None) -> DatasetCard:
    return card_of("isic2019", root, CLASSES, "single_label")


def read(root: Path) -> Cohort:
    return read_cohorts(card(root), "u_zeros")[PRIMARY]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_table(tmp_path / TRUTH, TRUTH_HEADER, [one_hot(name, label) for name, label, _ in ROWS])
    rows = [[name, "55", "anterior torso", lesion, "female"] for name, _, lesion in ROWS]
    write_table(tmp_path / METADATA, METADATA_HEADER, rows)
    for name, _, _ in ROWS:
        write_image(tmp_path / IMAGES / f"{name}.jpg")
    return tmp_path


def test_the_cohort_is_what_the_tables_say(root: Path) -> None:
    found = read(root)
    assert found.image_ids == sorted(name for name, _, _ in ROWS)
    assert dict(zip(found.image_ids, found.groups, strict=True)) == {
        "ISIC_0000001_downsampled": "image:ISIC_0000001_downsampled",
        "ISIC_0000002": "lesion:BCN_0001079",
        "ISIC_0000003": "lesion:BCN_0001079",
        "ISIC_0000004": "lesion:ISIC_0000001_downsampled",
        "ISIC_0000005": "lesion:MSK4_0000002",
        "ISIC_0000006": "image:ISIC_0000006",
        "ISIC_0000007": "lesion:HAM_0000003",
        "ISIC_0000008": "lesion:HAM_0000004",
        "ISIC_0000010": "lesion:HAM_0000001",
    }
    # ids ascend: MEL, NV, NV, BCC, AK, BKL, DF, VASC, SCC
    assert [row.index(1) for row in found.labels.tolist()] == [0, 1, 1, 2, 3, 4, 5, 6, 7]
    assert found.labels.sum(axis=1).tolist() == [1] * 9
    assert found.paths is not None
    assert found.paths[0] == "ISIC_2019_Training_Input/ISIC_0000001_downsampled.jpg"
    assert (found.root, found.left_out, found.declared_split) == (str(root), [], [None] * 9)
    assert all(path.is_file() for path in found.files().values())
    assert list(found.files()) == found.image_ids


def test_order_of_rows_and_columns_and_more_columns_change_nothing(root: Path) -> None:
    before = content(read(root))
    rewrite_table(root / TRUTH, rows=[8, 0, 4, 1, 7, 2, 3, 6, 5], columns=[3, 9, 0, 5, 1, 2, 8, 7, 6, 4])
    rows = [["malignant", lesion, "male", name, "1", "nevus"] for name, _, lesion in reversed(ROWS)]
    write_table(root / METADATA, ["benign_malignant", "lesion_id", "sex", "image", "target", "diagnosis"], rows)
    assert content(read(root)) == before


def test_ones_may_be_written_as_integers(root: Path) -> None:
    before = content(read(root))
    write_table(root / TRUTH, TRUTH_HEADER, [one_hot(name, label, one="1", zero=" 0") for name, label, _ in ROWS])
    assert content(read(root)) == before


def test_every_fault_stands_in_one_sentence(root: Path) -> None:
    rows = [one_hot(name, label) for name, label, _ in ROWS if label != "DF"]
    strange = ["ISIC_0000093", "yes", *["0.0"] * 8]
    rows += [one_hot("ISIC_0000091", "UNK"), one_hot("ISIC_0000092", "MEL", "NV"), strange, rows[0]]
    write_table(root / TRUTH, TRUTH_HEADER, rows)
    shutil.rmtree(root / IMAGES)
    said = refusal(card(root))
    for clause in (
        f"the folder {IMAGES} is missing",
        f"{TRUTH}: 1 image name(s) stand more than once, such as 'ISIC_0000010'",
        f"{TRUTH}: 1 row(s) have no class of the card (MEL, NV, BCC, AK, BKL, DF, VASC, SCC), as those of UNK would: "
        "the first is 'ISIC_0000091'",
        f"{TRUTH}: 1 row(s) have several classes: the first is 'ISIC_0000092'",
        f"{TRUTH}: 1 row(s) hold another value than 0 or 1: the first is 'ISIC_0000093'",
        f"3 image(s) of {TRUTH} have no row in {METADATA}, such as 'ISIC_0000091'",
        "no image of class DF; expected at least one of every class of the card",
    ):
        assert clause in said
    assert said.startswith(f"{root} (dataset 'tiny'): ")
    assert "\n" not in said


def test_missing_columns_of_both_tables_are_named_together(root: Path) -> None:
    rewrite_table(root / TRUTH, columns=[0, 1, 2, 3, 4, 5, 7, 9])
    rewrite_table(root / METADATA, columns=[0, 1, 2, 4])
    said = refusal(card(root))
    assert f"{TRUTH} lacks the column(s) DF, SCC; it has image, MEL, NV, BCC, AK, BKL, VASC, UNK" in said
    assert f"{METADATA} lacks the column(s) lesion_id" in said


def test_a_root_that_is_half_there_names_what_is_missing(tmp_path: Path) -> None:
    said = refusal(card(tmp_path))
    for name in (f"the folder {IMAGES} is missing", f"the file {TRUTH} is missing", f"the file {METADATA} is missing"):
        assert name in said
    assert "no image of class" not in said  # nothing is known of classes


def test_a_root_that_is_absent_or_not_named_says_what_to_do(tmp_path: Path) -> None:
    assert "there is no such folder" in refusal(card(tmp_path / "absent"))
    assert "add `roots: {tiny: FOLDER}` to crsbench.yaml" in refusal(card(None))


def test_a_zipped_root_is_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "ISIC_2019.zip").write_bytes(b"PK")
    assert refusal(card(tmp_path / "ISIC_2019.zip")).endswith("unpack ISIC_2019.zip and let the root name the folder.")


def test_an_absent_file_is_left_out_and_moves_nobody(root: Path) -> None:
    before = read(root)
    (root / IMAGES / "ISIC_0000003.jpg").unlink()
    found = read(root)
    detail = f"{IMAGES}/ISIC_0000003.jpg: there is no such file"
    assert found.left_out == [("ISIC_0000003", "missing_file", detail)]
    assert content(found) == content(before) | {"left_out": found.left_out}
    assert set(before.files()) - set(found.files()) == {"ISIC_0000003"}


def test_the_only_image_of_a_class_is_no_class_when_its_file_is_absent(root: Path) -> None:
    (root / IMAGES / "ISIC_0000007.jpg").unlink()
    assert "no image of class DF;" in refusal(card(root))


def test_a_cohort_without_a_single_file_is_refused(root: Path) -> None:
    for path in (root / IMAGES).iterdir():
        path.rename(path.with_suffix(".png"))
    said = refusal(card(root))
    assert "none of the 9 image files can be used, such as that of 'ISIC_0000001_downsampled' (missing_file: " in said
    assert "no image of class" not in said


def test_a_name_cannot_lead_out_of_the_root(root: Path) -> None:
    name = "../../ISIC_0000099"
    write_image(root / IMAGES / "inside.jpg")
    rows = [one_hot(image, label) for image, label, _ in ROWS] + [one_hot(name, "NV")]
    write_table(root / TRUTH, TRUTH_HEADER, rows)
    lesions = [[image, "", "", lesion, ""] for image, _, lesion in ROWS] + [[name, "", "", "", ""]]
    write_table(root / METADATA, METADATA_HEADER, lesions)
    found = read(root)
    assert [row[:2] for row in found.left_out] == [(name, "outside_root")]
    assert name not in found.files()


def test_a_damaged_table_is_named(root: Path) -> None:
    (root / TRUTH).write_bytes(b"")
    (root / METADATA).write_bytes(b"image,lesion_id\n\xe9,x\n")
    said = refusal(card(root))
    assert f"{TRUTH} cannot be read as CSV (" in said
    assert f"{METADATA} cannot be read as CSV (" in said
