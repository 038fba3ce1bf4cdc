"""MIMIC-CXR-JPG: chest radiographs of another hospital with the labels of CheXpert.

What lives here: the official file and column names, and which images are the shift target. What stays out: the files'
presence and the sentence of faults (``tables``), what an uncertain label becomes (``data.labels``).
Source: Johnson et al. 2019 (arXiv 1901.07042), version 2.0 and 2.1, whose tables keep "2.0.0" in their names; protocol
page, section 1: official test split, AP or PA, with a label row; section 2: groups are patients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crsbench_assets.config.cards import DatasetCard, Source
from crsbench_assets.config.layouts import MIMIC_CXR_LABELLERS, mimic_cxr_table
from crsbench_assets.config.settings import LabelPolicy
from crsbench_assets.data.cohort import Cohort
from crsbench_assets.data.labels import apply_policy
from crsbench_assets.data.sources.tables import (
    cohort_of,
    id_faults,
    is_folder_there,
    official_root,
    official_table,
    uncertain_labels,
    value_faults,
)

if TYPE_CHECKING:
    import polars as pl

FILES = "files"
VIEWS = ("AP", "PA")
"""Frontal views; what only a description calls frontal is not guessed at."""

_SPLITS = ("train", "validate", "test")


def read_mimic_cxr(card: DatasetCard, source: Source, source_id: str, policy: LabelPolicy) -> Cohort:
    """Return the frontal images of the official test split whose study has a label row, grouped by subject.

    The root holds ``files`` and the tables ``metadata``, ``split`` and ``chexpert``, gzipped or plain; without
    ``chexpert`` the labels of ``negbio`` are read. Notes say so, and count the images of the test split that are left
    out for their view or for want of a label row. Labels are found by the names of the card's
    classes: their columns are in alphabetical order here, in CheXpert's they are not.

    Raises:
        ConfigError: every fault in one sentence: an absent file, folder or column, an id that stands twice, an image
            without a row in the split table, a split that is none of the three, a label that is not 1, 0, -1 or blank,
            no image that qualifies.
    """
    import polars as pl

    root, faults = official_root(card, source, source_id)
    has_images = is_folder_there(root, FILES, faults)
    ids = ["dicom_id", "subject_id", "study_id", "ViewPosition"]
    metadata = official_table(root, mimic_cxr_table("metadata"), ids, faults)
    split = official_table(root, mimic_cxr_table("split"), ["dicom_id", "split"], faults)
    preferred = MIMIC_CXR_LABELLERS[0]
    there = (name for name in MIMIC_CXR_LABELLERS if any((root / file).is_file() for file in mimic_cxr_table(name)))
    labeller = next(there, preferred)
    labelled = official_table(root, mimic_cxr_table(labeller), ["study_id", *card.classes], faults)
    for kind, frame, column in (
        ("metadata", metadata, "dicom_id"),
        ("split", split, "dicom_id"),
        (labeller, labelled, "study_id"),
    ):
        faults.add(*(f"{kind}: {fault}" for fault in id_faults(frame.get_column(column), column)))
    for column in ("subject_id", "study_id"):
        if n_blank := metadata.get_column(column).null_count():
            faults.add(f"metadata: {n_blank} row(s) have a blank {column}")
    if metadata.height and split.height:
        absent = metadata.join(split, on="dicom_id", how="anti").get_column("dicom_id").drop_nulls()
        if absent.len():
            faults.add(f"{absent.len()} image(s) of metadata have no row in split, such as {absent[0]!r}")
    faults.add(*(f"split: {fault}" for fault in value_faults(split, "split", _SPLITS, "dicom_id")))
    # one row per id, or ids that stand twice, which are refused below, would multiply in the joins
    test = split.filter(pl.col("split").str.to_lowercase() == "test").unique("dicom_id", keep="any")
    of_test = metadata.with_columns(pl.col("ViewPosition").str.to_uppercase()).join(test, on="dicom_id", how="semi")
    of_view = of_test.filter(pl.col("ViewPosition").is_in(VIEWS))
    frontal = of_view.join(labelled.unique("study_id", keep="any"), on="study_id", how="inner").sort("dicom_id")
    if metadata.height and split.height and labelled.height and not frontal.height:
        faults.add(f"no image is of the split test, has a view {' or '.join(VIEWS)} and a label row")
    raw = uncertain_labels(frontal, card.classes, "dicom_id", faults)
    places = frontal.select(
        pl.format(
            "{}/p{}/p{}/s{}/{}.jpg",
            pl.lit(FILES),
            pl.col("subject_id").str.slice(0, 2),
            "subject_id",
            "study_id",
            "dicom_id",
        )
    ).to_series()
    rows = Cohort(
        image_ids=frontal.get_column("dicom_id").to_list(),
        groups=frontal.get_column("subject_id").to_list(),
        declared_split=[None] * frontal.height,
        labels=apply_policy(raw, policy),
        stated=raw,
        paths=places.fill_null("").to_list(),
        root=str(root) if has_images else None,
        notes=[
            *([] if labeller == preferred else [f"its labels are those of {labeller}: there is no table {preferred}"]),
            *_left_out_in_words(of_test, of_view, labelled),
        ],
    )
    return cohort_of(card, source_id, faults, rows)


def _left_out_in_words(of_test: pl.DataFrame, of_view: pl.DataFrame, labelled: pl.DataFrame) -> list[str]:
    """Return how many images of the test split are no part of the cohort, with every view that has some."""
    notes = []
    other_views = of_test.get_column("ViewPosition").fill_null("blank").value_counts(sort=True)
    counts = [f"{n:,} {view}" for view, n in other_views.sort("ViewPosition").rows() if view not in VIEWS]
    if counts:
        n_other = of_test.height - of_view.height
        notes.append(f"{n_other:,} image(s) of the test split have no view {' or '.join(VIEWS)}: {', '.join(counts)}")
    unlabelled = of_view.join(labelled, on="study_id", how="anti").get_column("dicom_id").sort()
    if unlabelled.len() and labelled.height:
        notes.append(
            f"{unlabelled.len():,} image(s) of the test split have a study without a label row, such as "
            f"{unlabelled[0]!r}"
        )
    return notes
