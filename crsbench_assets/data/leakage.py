"""What lies on both sides of a split: groups, equal pixels, near-duplicates.

What lives here: the list of whatever straddles train, validation and test; the check of a dataset's splits
blocks on it. Groups hold duplicates by construction; pixels and pictures are looked at by themselves all the
same, so that a fault in the joining of groups cannot hide a leak.
What stays out: the draw that keeps groups together (``data.splits``) and the making of groups out of
patients, lesions and duplicates (``data.integrity``).
Source: protocol page, section 2: groups never straddle train, validation, test.
"""

from __future__ import annotations

import polars as pl

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.data.splits import SPLITS

SHARED = {"group": "group_index", "pixels": "pixel_sha256", "picture": "duplicate_index"}
"""What two sides may share, and the column of ``images`` that says so."""

VIOLATION_SCHEMA = {
    "seed": pl.Int64,
    "shares": pl.String,
    "group_index": pl.Int64,
    "split_a": pl.String,
    "split_b": pl.String,
    "image_id_a": pl.String,
    "image_id_b": pl.String,
}


def leakage_violations(frame: pl.DataFrame, images: pl.DataFrame) -> pl.DataFrame:
    """Return what two splits of one seed share: groups, images with equal pixels, pictures.

    The two images named are the first by id on either side: enough to find the rest. An image that stands in
    two splits of one seed is such a pair with itself. The same group in different splits of different seeds
    is no leak: seeds are never mixed in one fit.

    Args:
        frame: splits with columns ``image_id``, ``seed``, ``split`` in {train, validation, test}.
        images: ``image_id`` (unique), ``group_index``, ``pixel_sha256`` and ``duplicate_index`` of at least the images
            of ``frame``; the last two are null where there are no image files.

    Returns:
        Columns seed, shares (``group``, ``pixels`` or ``picture``), group_index (of image_id_a), split_a, split_b,
        image_id_a, image_id_b, sorted by all of them; split_a precedes split_b in the order train, validation, test.
        Empty where the splits are clean, or without images.

    Raises:
        ConfigError: an image of ``frame`` has no group, a group is null, or an image has several groups.

    Example:
        >>> frame = pl.DataFrame({"image_id": ["a", "b"], "seed": [0, 0], "split": ["train", "test"]})
        >>> columns = {"group_index": [7, 8], "pixel_sha256": ["x", "y"], "duplicate_index": [3, 3]}
        >>> leakage_violations(frame, pl.DataFrame({"image_id": ["a", "b"], **columns})).rows()
        [(0, 'picture', 7, 'train', 'test', 'a', 'b')]
    """
    if images.get_column("image_id").is_duplicated().any():
        raise ConfigError(
            "An image has several groups; expected one row per image. Merge the groups that the image joins."
        )
    known = frame.join(images.select("image_id", *SHARED.values()), on="image_id", how="left")
    ungrouped = known.filter(pl.col("group_index").is_null()).get_column("image_id")
    if len(ungrouped):
        raise ConfigError(
            f"{ungrouped.n_unique()} images of the splits have no group, such as {ungrouped.min()!r}; "
            "expected one each, else leakage cannot be seen. Index the dataset again."
        )
    known = known.with_columns(pl.col("split").cast(pl.Enum(SPLITS)))
    groups = images.select(image_id_a="image_id", group_index="group_index")
    found = []
    for kind, column in SHARED.items():
        # a null joins nobody
        sides = known.drop_nulls(column).group_by("seed", column, "split").agg(pl.col("image_id").min())
        pairs = sides.join(sides, on=["seed", column], suffix="_b").filter(pl.col("split") < pl.col("split_b"))
        pairs = pairs.rename({"split": "split_a", "image_id": "image_id_a"}).with_columns(shares=pl.lit(kind))
        found.append(pairs.drop(column).join(groups, on="image_id_a", how="left"))
    return (
        pl.concat(found, how="diagonal")
        .sort("seed", "shares", "group_index", "split_a", "split_b", "image_id_a", "image_id_b")
        .select(pl.col(name).cast(dtype) for name, dtype in VIOLATION_SCHEMA.items())
    )
