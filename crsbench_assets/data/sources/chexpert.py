"""CheXpert: chest radiographs with fourteen labels read from the reports.

What lives here: the official file and column names, both prefixes of its paths, and which rows are the cohort. What
stays out: the files' presence and the sentence of faults (``tables``), what an uncertain label becomes
(``data.labels``).
Source: Irvin et al. 2019 (arXiv 1901.07031), version 1.0 and its small copy; protocol page, sections 1, 2 and 4:
groups are patients. ``valid.csv`` alone has labels without a positive, so both files are one cohort.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from crsbench_assets.config.cards import DatasetCard, Source
from crsbench_assets.config.layouts import CHEXPERT_BATCHES, CHEXPERT_FOLDERS, CHEXPERT_TABLES, image_root
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

_PREFIX = r"^CheXpert-v1\.0(?:-small)?/"
_PATH = r"^(?:train|valid)/(patient\d+)/study\d+/[^/]+\.jpg$"
_VIEW = "Frontal/Lateral"
_FRONTAL = "Frontal"
_VIEWS = (_FRONTAL, "Lateral")
_ID_BYTES = 10
"""Bytes of an image id: that two of 191,229 are equal has a probability of 2e-14."""


def read_chexpert(card: DatasetCard, source: Source, source_id: str, policy: LabelPolicy) -> Cohort:
    """Return the frontal images of ``train.csv`` and ``valid.csv`` together, grouped by patient.

    The root is the official folder, the folder that holds it, or the one that holds the four batches of the download;
    the prefix of the paths in the tables says nothing about where the images lie. An image id is :func:`image_id` of
    its path, which would name the patient. Views are those that the table declares: the few mislabelled ones stay, as
    in the official count.

    Raises:
        ConfigError: every fault in one sentence: an absent file, folder or column, a path of another form or that
            stands twice, a view that is neither Frontal nor Lateral, a label that is not 1, 0, -1 or blank, no frontal
            image.
    """
    import polars as pl

    parent, faults = official_root(card, source, source_id)
    root = Path(str(image_root(source)))
    if root == parent and len([name for name in CHEXPERT_FOLDERS if (parent / name).is_dir()]) > 1:
        both = " and ".join(CHEXPERT_FOLDERS)
        faults.add(f"it holds {both}, which are two cohorts; expected one: let the root name it")
    first, *others = CHEXPERT_BATCHES
    is_in_batches = (root / first).is_dir()
    folders = [f"{first}/valid", *others] if is_in_batches else ["train", "valid"]
    missing = [name for name in folders if not is_folder_there(root, name, faults)]
    columns = ["Path", _VIEW, *card.classes]
    of_tables = root / first if is_in_batches else root
    table = pl.concat([official_table(of_tables, [name], columns, faults) for name in CHEXPERT_TABLES])
    table = table.with_columns(pl.col("Path").str.replace(_PREFIX, ""))
    table = table.with_columns(patient=pl.col("Path").str.extract(_PATH))
    strange = table.filter(pl.col("patient").is_null())
    if strange.height:
        faults.add(
            f"{strange.height} row(s) have a Path such as {strange.get_column('Path')[0]!r}; expected "
            "train/patientNNNNN/studyN/NAME.jpg, after CheXpert-v1.0/ or CheXpert-v1.0-small/"
        )
    faults.add(*value_faults(table, _VIEW, _VIEWS, "Path"))
    is_frontal = pl.col(_VIEW).str.to_lowercase() == _FRONTAL.lower()
    frontal = table.filter(is_frontal & pl.col("patient").is_not_null())
    if table.height and not frontal.height and not strange.height:
        faults.add(f"no row is a frontal image: the column {_VIEW} never holds Frontal")
    faults.add(*id_faults(frontal.get_column("Path"), "Path"))
    ids = pl.Series("image_id", [image_id(path) for path in frontal.get_column("Path")], dtype=pl.String)
    frontal = frontal.with_columns(ids).sort("image_id")
    raw = uncertain_labels(frontal, card.classes, "Path", faults)
    paths = frontal.get_column("Path").to_list()
    rows = Cohort(
        image_ids=frontal.get_column("image_id").to_list(),
        groups=frontal.get_column("patient").to_list(),
        declared_split=[None] * frontal.height,
        labels=apply_policy(raw, policy),
        stated=raw,
        paths=_in_batches(root, paths) if is_in_batches and not missing else paths,
        root=None if missing else str(root),
    )
    return cohort_of(card, source_id, faults, rows)


def image_id(path: str) -> str:
    """Return the id of an image: 20 hex digits that tell neither its patient nor its study.

    It is the same in every home, because draws are keyed by it. Who has the tables of CheXpert can compute it too: it
    keeps numbers of patients out of tables and logs, and is no secret from those who may read them.

    Args:
        path: as in the tables, without the prefix: ``train/patientNNNNN/studyN/viewN_frontal.jpg``.

    Example:
        >>> image_id("train/patient00001/study1/view1_frontal.jpg")
        'd3c92117194f572b9ce3'
    """
    return hashlib.blake2b(path.encode(), digest_size=_ID_BYTES).hexdigest()


def _in_batches(root: Path, paths: list[str]) -> list[str]:
    """Return where the files of a release in batches lie: a patient of ``train`` in the batch that has its folder."""
    first, *others = CHEXPERT_BATCHES
    batch_of = {entry.name: name for name in others for entry in (root / name).iterdir()}
    places = []
    for path in paths:
        split, patient, rest = path.split("/", 2)
        folder = f"{first}/valid" if split == "valid" else batch_of.get(patient, others[0])
        places.append(f"{folder}/{patient}/{rest}")
    return places
