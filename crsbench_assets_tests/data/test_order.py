"""Order says nothing: whatever the order of rows and of columns in a cohort's tables, the same cohort is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crsbench_assets.config.cards import DatasetCard
from crsbench_assets.config.layouts import ISIC2019_METADATA, ISIC2019_TRUTH
from crsbench_assets.data.cohort import read_cohorts
from crsbench_assets.data.sources.isic2019 import IMAGES
from crsbench_assets_tests.data import test_aptos2019 as aptos2019
from crsbench_assets_tests.data import test_chexpert as chexpert
from crsbench_assets_tests.data import test_isic2019 as isic2019
from crsbench_assets_tests.data import test_mimic_cxr as mimic_cxr
from crsbench_assets_tests.data.layouts import CXR_LABELS, content, rewrite_table, write_image, write_table
from crsbench_assets_tests.fixtures import dataset_card

Written = tuple[DatasetCard, list[Path]]
"""A card, and the tables of its cohorts."""


def isic(folder: Path) -> Written:
    rows = [isic2019.one_hot(name, label) for name, label, _ in isic2019.ROWS]
    write_table(folder / ISIC2019_TRUTH, isic2019.TRUTH_HEADER, rows)
    metadata = [[name, "55", "anterior torso", lesion, "female"] for name, _, lesion in isic2019.ROWS]
    write_table(folder / ISIC2019_METADATA, isic2019.METADATA_HEADER, metadata)
    for name, _, _ in isic2019.ROWS:
        write_image(folder / IMAGES / f"{name}.jpg")
    (folder / IMAGES / "ISIC_0000003.jpg").unlink()  # what is left out has no order either
    return isic2019.card(folder), [folder / ISIC2019_TRUTH, folder / ISIC2019_METADATA]


def aptos(folder: Path) -> Written:
    write_table(folder / "train.csv", ["id_code", "diagnosis"], [*aptos2019.ROWS, ("blank", "")])
    for name, _ in aptos2019.ROWS:
        write_image(folder / "train_images" / f"{name}.png")
    return aptos2019.card(folder), [folder / "train.csv"]


def chest(folder: Path) -> Written:
    root = chexpert.write_official(folder, "CheXpert-v1.0-small")
    mimic_cxr.write_official(folder / "mimic")
    tables = [mimic_cxr.table(folder / "mimic", kind) for kind in mimic_cxr.TABLES]
    return mimic_cxr.card(root, folder / "mimic"), [root / "train.csv", root / "valid.csv", *tables]


def manifest(folder: Path) -> Written:
    rows = [
        [f"i{i}", f"i{i}.png", f"p{i // 2}", split, *labels]
        for i, (split, labels) in enumerate(
            [("test", "1-"), ("train", "01"), ("", "11"), ("valid", "00"), ("train", "1-")]
        )
    ]
    rows = [["-1" if cell == "-" else cell for cell in row] for row in rows]
    write_table(folder / "labels.csv", ["image_id", "file", "patient", "split", "edema", "fracture"], rows)
    for row in rows[:4]:
        write_image(folder / row[1])
    columns = {"group": "patient", "split": "split", "path": "file"}
    source = {"layout": "manifest", "manifest": str(folder / "labels.csv"), "columns": columns}
    card = dataset_card(task="multi_label", classes=["edema", "fracture"], source=source)
    return DatasetCard.model_validate(card), [folder / "labels.csv"]


@pytest.mark.parametrize("write", [isic, aptos, chest, manifest])
def test_order_of_rows_and_columns_changes_nothing(write: Callable[[Path], Written], tmp_path: Path) -> None:
    card, tables = write(tmp_path)
    before = {source_id: content(cohort) for source_id, cohort in read_cohorts(card, "u_ignore").items()}
    sizes = [pl.read_csv(table, infer_schema=False).shape for table in tables]

    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.tuples(*(st.tuples(st.permutations(range(n)), st.permutations(range(k))) for n, k in sizes)))
    def check(orders: tuple[tuple[list[int], list[int]], ...]) -> None:
        for table, (rows, columns) in zip(tables, orders, strict=True):
            rewrite_table(table, rows=rows, columns=columns)
        assert {source_id: content(cohort) for source_id, cohort in read_cohorts(card, "u_ignore").items()} == before

    check()


# Case "mimic-columns-by-name": CheXpert's labels stand in its order, MIMIC's in alphabetical order, then both in
# another one; three images of each have the same three rows of labels, so the two matrices are one
@pytest.mark.parametrize("step", [1, 5])
def test_both_hospitals_have_one_aligned_label_matrix(tmp_path: Path, step: int) -> None:
    rows = [{"Edema": "1.0", "Pneumonia": "-1.0"}, {"No Finding": "1.0"}, {"Atelectasis": "1.0", "Fracture": "0.0"}]
    views = [f"train/patient{i:05d}/study1/view1_frontal.jpg" for i in range(3)]
    own = [CXR_LABELS[i * step % 14] for i in range(14)]
    other = [sorted(CXR_LABELS)[i * step % 14] for i in range(14)]
    root, mimic = tmp_path / "CheXpert-v1.0", tmp_path / "mimic"
    header = ["Path", "Frontal/Lateral", *own]
    write_table(
        root / "train.csv",
        header,
        [[v, "Frontal", *map(r.get, own, [""] * 14)] for v, r in zip(views, rows, strict=True)],
    )
    write_table(root / "valid.csv", header, [["valid/patient9/study1/view1_frontal.jpg", "Lateral", *[""] * 14]])
    metadata = [[f"d{i}", "10000032", f"5000000{i}", "PA"] for i in range(3)]
    write_table(mimic_cxr.table(mimic, "metadata"), ["dicom_id", "subject_id", "study_id", "ViewPosition"], metadata)
    write_table(mimic_cxr.table(mimic, "split"), ["dicom_id", "split"], [[f"d{i}", "test"] for i in range(3)])
    labels = [[f"5000000{i}", *map(r.get, other, [""] * 14)] for i, r in enumerate(rows)]
    write_table(mimic_cxr.table(mimic, "chexpert"), ["study_id", *other], labels)
    for view in views:
        write_image(root / view, mode="L")
    (root / "valid").mkdir()
    for i in range(3):
        write_image(mimic / f"files/p10/p10000032/s5000000{i}/d{i}.jpg", mode="L")
    found = read_cohorts(mimic_cxr.card(root, mimic), "u_ignore")
    expected = [[{"1.0": 1, "-1.0": -1}.get(row.get(label, ""), 0) for label in CXR_LABELS] for row in rows]
    own_labels = dict(zip(found["primary"].paths or [], found["primary"].labels.tolist(), strict=True))
    assert [own_labels[view] for view in views] == found["elsewhere"].labels.tolist() == expected
