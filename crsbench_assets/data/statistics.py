"""How many images, groups and positives stand in each split, and whether they are as many as the card expects.

What lives here: the rows of ``dataset_statistics``, and the sentences about counts that a card states otherwise. What
stays out: the draw of the splits (``splits``), reading labels (``sources``).
Source: protocol page, sections 1, 2 and 4; the counts are those of the owners' releases, in the cards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from crsbench_assets.config.cards import PRIMARY, DatasetCard
from crsbench_assets.data.cohort import Cohort
from crsbench_assets.data.labels import UNCERTAIN

NO_LABELS = "no_labels"

SHIFT_SPLIT = "test"
"""All images of a shift target are test images: nothing is ever trained on them."""


def dataset_statistics(
    images: pl.DataFrame,
    splits: pl.DataFrame,
    classes: Sequence[str],
    seeds: Sequence[int],
    constant: Mapping[str, str],
    cohorts: Mapping[str, Cohort],
) -> pl.DataFrame:
    """Return one row per source, seed, split and class.

    Args:
        images: rows of table ``images``.
        splits: rows (image_id, seed, split) of the primary source.
        classes: names of the classes, in the order of ``images.labels``.
        seeds: seeds of the protocol; a shift target counts once per seed, as the test split does.
        constant: what is the same in every row of the dataset, such as the hash of its test set.
        cohorts: as read, by source id: their labels as stated, which the label policy has replaced in ``images``.

    Returns:
        Columns of the table. ``prevalence`` is null, with a reason, where no label is known; ``n_pictures`` counts
        duplicates once.
    """
    primary = images.filter(pl.col("source_id") == PRIMARY).join(splits, on="image_id", how="inner")
    shift = images.filter(pl.col("source_id") != PRIMARY).with_columns(split=pl.lit(SHIFT_SPLIT))
    shift = shift.join(pl.DataFrame({"seed": list(seeds)}, schema={"seed": pl.Int64}), how="cross")
    columns = ["source_id", "seed", "split", "image_id", "group_index", "duplicate_index", "labels"]
    rows = pl.concat([primary.select(columns), shift.select(columns)])
    rows = rows.join(_stated(cohorts, len(classes)), on=["source_id", "image_id"], how="left", maintain_order="left")
    per_class = [
        rows.group_by("source_id", "seed", "split").agg(
            class_name=pl.lit(name),
            n_images=pl.len(),
            n_pictures=pl.col("duplicate_index").drop_nulls().n_unique() + pl.col("duplicate_index").null_count(),
            n_groups=pl.col("group_index").n_unique(),
            n_positive=(pl.col("labels").list.get(i) == 1).sum(),
            n_unknown=pl.col("labels").list.get(i).is_null().sum(),
            prevalence=pl.col("labels").list.get(i).mean(),
            n_uncertain=(pl.col("stated").arr.get(i) == UNCERTAIN).sum(),
            n_blank=pl.col("stated").arr.get(i).is_nan().sum(),
        )
        for i, name in enumerate(classes)
    ]
    reason = pl.when(pl.col("prevalence").is_null()).then(pl.lit(NO_LABELS))
    values = {name: pl.lit(value) for name, value in constant.items()}
    return pl.concat(per_class).with_columns(reason=reason, **values)


def _stated(cohorts: Mapping[str, Cohort], n_classes: int) -> pl.DataFrame:
    """Return the stated labels of all images whose source can leave one open."""
    frames = [
        pl.DataFrame({"source_id": [source_id] * len(cohort.image_ids), "image_id": cohort.image_ids}).with_columns(
            stated=pl.Series(cohort.stated, dtype=pl.Array(pl.Float64, n_classes))
        )
        for source_id, cohort in cohorts.items()
        if cohort.stated is not None
    ]
    names = pl.DataFrame(schema={"source_id": pl.String, "image_id": pl.String})
    empty = names.with_columns(stated=pl.lit(None, dtype=pl.Array(pl.Float64, n_classes)))
    return pl.concat([empty, *frames])


def unexpected_counts(card: DatasetCard, images: pl.DataFrame, quarantine: pl.DataFrame) -> list[str]:
    """Return one sentence per count in which a dataset's own images differ from its card; none where all agree.

    The images of the quarantine count as there, but table ``quarantine`` holds no labels: where some were left out, a
    class may lack as many images, and each sentence says how many were.

    Args:
        card: the dataset; a card without expected counts expects nothing.
        images: rows of table ``images``, of all sources.
        quarantine: rows of table ``quarantine``, of all sources.
    """
    own = images.filter(pl.col("source_id") == PRIMARY)
    n_left_out = quarantine.filter(pl.col("source_id") == PRIMARY).height
    also = f", and {n_left_out:,} were left out" if n_left_out else ""
    sentences = []
    n_found = own.height + n_left_out
    if card.expected_n_images not in (None, n_found):
        sentences.append(f"{n_found:,} images found, {card.expected_n_images:,} expected by the card")
    for name, n_expected in (card.expected_n_positive or {}).items():
        n_positive = int((own.get_column("labels").list.get(card.classes.index(name)) == 1).sum())
        if not n_positive <= n_expected <= n_positive + n_left_out:
            sentences.append(f"{name}: {n_positive:,} images found, {n_expected:,} expected by the card{also}")
    return sentences
