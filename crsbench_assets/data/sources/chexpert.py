"""CheXpert: chest radiographs with fourteen labels read from the reports.

What lives here: the official file and column names, both prefixes of its paths, and which rows are the cohort. What
stays out: the files' presence and the sentence of faults (``tables``), what an uncertain label becomes
(``data.labels``).
Source: Irvin et al. 2019 (arXiv 1901.07031), version 1.0 and its small copy; protocol page, sections 1, 2 and 4:
groups are patients. ``valid.csv`` alone has labels without a positive, so both files are one cohort.
"""

from __future__ import annotations

from pathlib import Path

from crsbench_assets.config.cards import DatasetCard, Source
from crsbench_assets.config.layouts import CHEXPERT_FOLDERS, CHEXPERT_TABLES, image_root
from crsbench_assets.config.settings import LabelPolicy
from crsbench_assets.data.cohort import Cohort
from crsbench_assets.data.labels import apply_policy
from crsbench_assets.data.sources.tables import (
    cohort_of,
    id_faults,
    official_root,
    official_table,
    uncertain_labels,
)

_PREFIX = r"^CheXpert-v1\.0(?:-small)?/"
_PATH = r"^(?:train|valid)/(patient\d+)/study\d+/[^/]+\.jpg$"
_VIEW = "Frontal/Lateral"


def read_chexpert(card: DatasetCard, source: Source, source_id: str, policy: LabelPolicy) -> Cohort:
    """Return the frontal images of ``train.csv`` and ``valid.csv`` together, grouped by patient.

    The root is the official folder or the folder that holds it; the prefix of the paths in the tables says nothing
    about where the images lie. An image id is its path without prefix and extension. Views are those that the table
    declares: the few mislabelled ones stay, as in the official count.

    Raises:
        ConfigError: every fault in one sentence: an absent file, folder or column, a path of another form or that
            stands twice, a label that is not 1, 0, -1 or blank, no frontal image.
    """
    import polars as pl

    parent, faults = official_root(card, source, source_id)
    root = Path(str(image_root(source)))
    if root == parent and len([name for name in CHEXPERT_FOLDERS if (parent / name).is_dir()]) > 1:
        both = " and ".join(CHEXPERT_FOLDERS)
        faults.add(f"it holds {both}, which are two cohorts; expected one: let the root name it")
    missing = [name for name in ("train", "valid") if not (root / name).is_dir()]
    faults.add(*(f"the folder {name} is missing" for name in missing))
    columns = ["Path", _VIEW, *card.classes]
    table = pl.concat([official_table(root, [name], columns, faults) for name in CHEXPERT_TABLES])
    table = table.with_columns(pl.col("Path").str.replace(_PREFIX, "")).with_columns(
        patient=pl.col("Path").str.extract(_PATH), image_id=pl.col("Path").str.replace(r"\.jpg$", "")
    )
    strange = table.filter(pl.col("patient").is_null())
    if strange.height:
        faults.add(
            f"{strange.height} row(s) have a Path such as {strange.get_column('Path')[0]!r}; expected "
            "train/patientNNNNN/studyN/NAME.jpg, after CheXpert-v1.0/ or CheXpert-v1.0-small/"
        )
    frontal = table.filter((pl.col(_VIEW) == "Frontal") & pl.col("patient").is_not_null()).sort("image_id")
    if table.height and not frontal.height and not strange.height:
        faults.add(f"no row is a frontal image: the column {_VIEW} never holds Frontal")
    faults.add(*id_faults(frontal.get_column("image_id"), "Path"))
    raw = uncertain_labels(frontal, card.classes, "image_id", faults)
    rows = Cohort(
        image_ids=frontal.get_column("image_id").to_list(),
        groups=frontal.get_column("patient").to_list(),
        declared_split=[None] * frontal.height,
        labels=apply_policy(raw, policy),
        stated=raw,
        paths=frontal.get_column("Path").to_list(),
        root=None if missing else str(root),
    )
    return cohort_of(card, faults, rows)
