"""How many images, groups and positives stand in each split.

What lives here: the rows of ``dataset_statistics``. What stays out: the draw of the splits (``splits``).
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

SHIFT_SPLIT = "test"
"""All images of a shift target are test images: nothing is ever trained on them."""


def dataset_statistics(
    images: pl.DataFrame, splits: pl.DataFrame, classes: Sequence[str], seeds: Sequence[int], constant: dict[str, str]
) -> pl.DataFrame:
    """Return one row per source, seed, split and class.

    Args:
        images: rows of table ``images``.
        splits: rows (image_id, seed, split) of the primary source.
        classes: names of the classes, in the order of ``images.labels``.
        seeds: seeds of the protocol; a shift target counts once per seed, as the test split does.
        constant: what is the same in every row of the dataset, such as the hash of its test set.
    """
    primary = images.filter(pl.col("source_id") == "primary").join(splits, on="image_id", how="inner")
    shift = images.filter(pl.col("source_id") != "primary").with_columns(split=pl.lit(SHIFT_SPLIT))
    shift = shift.join(pl.DataFrame({"seed": list(seeds)}, schema={"seed": pl.Int64}), how="cross")
    columns = ["source_id", "seed", "split", "group_index", "labels"]
    rows = pl.concat([primary.select(columns), shift.select(columns)])
    per_class = [
        rows.group_by("source_id", "seed", "split").agg(
            class_name=pl.lit(name),
            n_images=pl.len(),
            n_groups=pl.col("group_index").n_unique(),
            n_positive=(pl.col("labels").list.get(i) == 1).sum(),
            n_unknown=pl.col("labels").list.get(i).is_null().sum(),
        )
        for i, name in enumerate(classes)
    ]
    return pl.concat(per_class).with_columns(**{name: pl.lit(value) for name, value in constant.items()})
