"""APTOS 2019: fundus photographs with a grade of diabetic retinopathy.

What lives here: the official file and column names. What stays out: the files' presence and the sentence of faults
(``tables``), and the exact duplicates of this cohort, which join groups on pixels (``data.integrity``).
Source: Kaggle competition aptos2019-blindness-detection, ``train.csv``; protocol page, section 2: groups are duplicate
components.
"""

from __future__ import annotations

from crsbench_assets.config.cards import DatasetCard, Source
from crsbench_assets.config.layouts import APTOS2019_LABELS
from crsbench_assets.data.cohort import Cohort
from crsbench_assets.data.sources.tables import (
    BLANK_CLASS,
    class_labels,
    cohort_of,
    id_faults,
    is_folder_there,
    official_root,
    official_table,
)

IMAGES = "train_images"


def read_aptos2019(card: DatasetCard, source: Source, source_id: str) -> Cohort:
    """Return the labelled cohort of a folder with ``train.csv`` and ``train_images``; the competition's test is unused.

    Patients are not named and the eyes of one cannot be linked, so every image is its own group until duplicates
    join. A row without a grade is left out.

    Raises:
        ConfigError: every fault in one sentence: an absent file, folder or column, an id that stands twice, an unknown
            grade, a grade without images.
    """
    root, faults = official_root(card, source, source_id)
    has_images = is_folder_there(root, IMAGES, faults)
    table = official_table(root, [APTOS2019_LABELS], ["id_code", "diagnosis"], faults).sort("id_code")
    faults.add(*(f"{APTOS2019_LABELS}: {fault}" for fault in id_faults(table.get_column("id_code"), "id_code")))
    is_blank = table.get_column("diagnosis").is_null()
    graded = table.filter(~is_blank)
    names = graded.get_column("id_code").fill_null("").to_list()
    rows = Cohort(
        image_ids=names,
        groups=names,
        declared_split=[None] * len(names),
        labels=class_labels(graded.get_column("diagnosis").to_list(), card.classes, "diagnosis", faults),
        left_out=[
            (name, BLANK_CLASS, "column diagnosis is empty") for name in table.filter(is_blank).get_column("id_code")
        ],
        paths=[f"{IMAGES}/{name}.png" for name in names],
        root=str(root) if has_images else None,
    )
    return cohort_of(card, source_id, faults, rows)
