"""Groups that lie on both sides of a split.

What lives here: the list of groups that straddle train, validation and test; the check of a dataset's splits
blocks on it.
What stays out: the draw that keeps groups together (``data.splits``) and the making of groups out of
patients, lesions and duplicates (``data.integrity``).
Source: protocol page, section 2: groups never straddle train, validation, test.
"""

from __future__ import annotations

import polars as pl

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.data.splits import SPLITS

VIOLATION_SCHEMA = {
    "seed": pl.Int64,
    "group_index": pl.Int64,
    "split_a": pl.String,
    "split_b": pl.String,
    "image_id_a": pl.String,
    "image_id_b": pl.String,
}


def leakage_violations(frame: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Return one row per (seed, group, pair of splits) in which the group has images on both sides.

    The two images named are the first by id on either side: enough to find the group. An image that stands in
    two splits of one seed is such a pair with itself. The same group in different splits of different seeds
    is no leak: seeds are never mixed in one fit.

    Args:
        frame: splits with columns ``image_id``, ``seed``, ``split`` in {train, validation, test}.
        groups: ``image_id`` (unique) and ``group_index`` of at least the images of ``frame``.

    Returns:
        Columns seed, group_index, split_a, split_b, image_id_a, image_id_b, sorted by the first four; split_a
        precedes split_b in the order train, validation, test. Empty where the splits are clean, or without
        images.

    Raises:
        ConfigError: an image of ``frame`` has no group, a group is null, or an image has several groups.

    Example:
        >>> frame = pl.DataFrame({"image_id": ["a", "b"], "seed": [0, 0], "split": ["train", "test"]})
        >>> groups = pl.DataFrame({"image_id": ["a", "b"], "group_index": [7, 7]})
        >>> leakage_violations(frame, groups).rows()
        [(0, 7, 'train', 'test', 'a', 'b')]
    """
    if groups.get_column("image_id").is_duplicated().any():
        raise ConfigError(
            "An image has several groups; expected one row per image. Merge the groups that the image joins."
        )
    grouped = frame.join(groups.select("image_id", "group_index"), on="image_id", how="left")
    ungrouped = grouped.filter(pl.col("group_index").is_null()).get_column("image_id")
    if len(ungrouped):
        raise ConfigError(
            f"{ungrouped.n_unique()} images of the splits have no group, such as {ungrouped.min()!r}; "
            "expected one each, else leakage cannot be seen. Index the dataset again."
        )
    sides = grouped.group_by("seed", "group_index", "split").agg(pl.col("image_id").min())
    sides = sides.with_columns(pl.col("split").cast(pl.Enum(SPLITS)))
    pairs = sides.join(sides, on=["seed", "group_index"], suffix="_b")
    return (
        pairs.filter(pl.col("split") < pl.col("split_b"))
        .sort("seed", "group_index", "split", "split_b")
        .rename({"split": "split_a", "image_id": "image_id_a"})
        .select(pl.col(name).cast(dtype) for name, dtype in VIOLATION_SCHEMA.items())
    )
