"""ISIC 2019, training set: dermoscopic images with one of eight diagnoses.

What lives here: the official file and column names. What stays out: the files' presence and the sentence of faults
(``tables``), pixels (``data.integrity``).
Source: ISIC 2019 challenge, training ground truth and metadata (Tschandl et al. 2018, arXiv 1803.10417; Codella et
al. 2017, arXiv 1710.05006; Combalia et al. 2019, arXiv 1908.02288); protocol page, section 2: groups are lesions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crsbench_assets.config.cards import DatasetCard, Source
from crsbench_assets.config.layouts import ISIC2019_METADATA, ISIC2019_TRUTH
from crsbench_assets.data.cohort import Cohort
from crsbench_assets.data.sources.tables import (
    Faults,
    cohort_of,
    id_faults,
    is_folder_there,
    official_root,
    official_table,
)

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

IMAGES = "ISIC_2019_Training_Input"

OTHER = "UNK"
"""Ninth column of the official ground truth: none of the eight. It is 0 in every row of the training set."""


def read_isic2019(card: DatasetCard, source: Source, source_id: str) -> Cohort:
    """Return the cohort of a folder with the two official CSV files and ``ISIC_2019_Training_Input``.

    An image belongs to its lesion; without a lesion id it is a group of its own. Prefixes keep the two apart.

    Raises:
        ConfigError: every fault in one sentence: an absent file, folder or column, an id that stands twice, a row
            without exactly one class of the card, an image without metadata, a class without images.
    """
    import polars as pl

    root, faults = official_root(card, source, source_id)
    has_images = is_folder_there(root, IMAGES, faults)
    truth = official_table(root, [ISIC2019_TRUTH], ["image", *card.classes], faults).sort("image")
    metadata = official_table(root, [ISIC2019_METADATA], ["image", "lesion_id"], faults)
    for name, frame in ((ISIC2019_TRUTH, truth), (ISIC2019_METADATA, metadata)):
        faults.add(*(f"{name}: {fault}" for fault in id_faults(frame.get_column("image"), "image name")))
    labels = _one_hot_rows(truth, card.classes, faults)
    if truth.height and metadata.height:
        absent = truth.join(metadata, on="image", how="anti").get_column("image").drop_nulls()
        if absent.len():
            faults.add(
                f"{absent.len()} image(s) of {ISIC2019_TRUTH} have no row in {ISIC2019_METADATA}, such as {absent[0]!r}"
            )
    grouped = truth.select("image").join(
        metadata.unique("image", keep="any"), on="image", how="left", maintain_order="left"
    )
    names = grouped.get_column("image").fill_null("").to_list()
    groups = grouped.select(
        pl.when(pl.col("lesion_id").is_null())
        .then(pl.format("image:{}", "image"))
        .otherwise(pl.format("lesion:{}", "lesion_id"))
    ).to_series()
    rows = Cohort(
        image_ids=names,
        groups=groups.to_list(),
        declared_split=[None] * len(names),
        labels=labels,
        paths=[f"{IMAGES}/{name}.jpg" for name in names],
        root=str(root) if has_images else None,
    )
    return cohort_of(card, source_id, faults, rows)


def _one_hot_rows(truth: pl.DataFrame, classes: tuple[str, ...], faults: Faults) -> NDArray[np.int8]:
    """Return int8 (n, k); a row that has not exactly one 1, and 0 elsewhere, is a fault."""
    import numpy as np
    import polars as pl

    values = truth.select("image", *(pl.col(name).cast(pl.Float64, strict=False) for name in classes))
    n_ones = pl.sum_horizontal(pl.col(name) == 1.0 for name in classes)
    are_bits = pl.all_horizontal(pl.col(name).is_in([0.0, 1.0]).fill_null(False) for name in classes)
    for is_wrong, words in (
        (~are_bits, "hold another value than 0 or 1"),
        (are_bits & (n_ones > 1), "have several classes"),
        (are_bits & (n_ones == 0), f"have no class of the card ({', '.join(classes)}), as those of {OTHER} would"),
    ):
        wrong = values.filter(is_wrong).get_column("image")
        if wrong.len():
            faults.add(f"{ISIC2019_TRUTH}: {wrong.len()} row(s) {words}: the first is {wrong[0]!r}")
    labels: NDArray[np.int8] = (values.drop("image").to_numpy() == 1.0).astype(np.int8)
    return labels
