"""The user's own cohort: a card and a manifest, no code.

What lives here: reading a CSV or Parquet manifest of image ids, labels, groups, splits and paths of images. What stays
out: pixels (``data.integrity``); a manifest may also describe a cohort whose images are elsewhere and only vectors are
here.
Source: protocol page, section 2: a declared test split is kept, and groups never straddle splits.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from crsbench_assets.config.cards import DatasetCard, ManifestColumns, Source
from crsbench_assets.config.errors import ConfigError, reason_of
from crsbench_assets.config.layouts import image_root
from crsbench_assets.config.settings import LabelPolicy
from crsbench_assets.data.cohort import Cohort
from crsbench_assets.data.labels import apply_policy
from crsbench_assets.data.sources.tables import (
    BLANK_CLASS,
    Faults,
    class_labels,
    cohort_of,
    column_faults,
    id_faults,
    place_of,
    table_as_text,
    uncertain_labels,
)

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

_SITES_SHOWN = 5
"""Institutions of a manifest that a fault names."""

_SPLITS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


def read_manifest(card: DatasetCard, source: Source, source_id: str, policy: LabelPolicy) -> Cohort:
    """Return the cohort that a manifest lists.

    One row per image. ``columns`` of the card say which column is what. Every cell of a CSV file is text as it is
    written there, without spaces around it: ids and groups keep their leading zeros, and a space makes no second
    patient. Single-label and ordinal cohorts have one class column
    with names of ``classes``, or with their 0-based positions where none of it is a name; multi-label cohorts one
    column per class with 1, 0, -1 (uncertain) or blank. Without a group column every image is its own group; without a
    split column the protocol draws the test split. A path column names image files below the card's root, else below
    the folder of the manifest; without it the cohort has no images. A site column says of which institution a row is:
    only rows of the source's ``sites`` are read, and a note counts the others.

    Raises:
        ConfigError: every fault of the file in one sentence.
    """
    path = Path(str(source.manifest))
    columns = source.columns
    frame = _read_table(path)
    faults = Faults(place_of(path, card, source_id))
    faults.add(*_missing_columns(card, columns, frame))
    faults.refuse()  # without its columns nothing else can be said of the file
    if frame.height == 0:
        faults.add("it has no rows")
    frame, notes = _of_sites(frame, source, faults)
    faults.add(*id_faults(_text(frame, columns.image_id), "image id"), *_bad_splits(frame, columns))
    frame = frame.with_columns(_text(frame, columns.image_id).alias(columns.image_id)).sort(columns.image_id)
    left_out: list[tuple[str, str, str]] = []
    stated: NDArray[np.float64] | None = None
    if card.task == "multi_label":
        names = list(_label_columns(card, columns).values())
        stated = uncertain_labels(frame, names, columns.image_id, faults)
        labels = apply_policy(stated, policy)
    else:
        class_column = str(columns.class_column)
        blank = _text(frame, class_column).is_null()
        left_out = [
            (image_id, BLANK_CLASS, f"column {class_column} is empty")
            for image_id in frame.filter(blank).get_column(columns.image_id)
        ]
        frame = frame.filter(~blank)
        labels = class_labels(_text(frame, class_column).to_list(), card.classes, class_column, faults)
    root = _image_root(source, faults) if columns.path else None
    ids = frame.get_column(columns.image_id).to_list()
    groups = _text(frame, columns.group).to_list() if columns.group else ids
    splits = _text(frame, columns.split).str.to_lowercase().to_list() if columns.split else [None] * len(ids)
    rows = Cohort(
        image_ids=ids,
        # an image without a group is a group of its own; the prefix keeps it apart from a group of that name
        groups=[group if group is not None else f"image:{ids[i]}" for i, group in enumerate(groups)],
        declared_split=[_SPLITS.get(split) if split is not None else None for split in splits],
        labels=labels,
        stated=stated,
        left_out=left_out,
        paths=_text(frame, columns.path).fill_null("").to_list() if columns.path else None,
        root=root,
        notes=notes,
    )
    return cohort_of(card, source_id, faults, rows)


def _read_table(path: Path) -> pl.DataFrame:
    import polars as pl

    try:
        return table_as_text(path)
    except FileNotFoundError:
        raise ConfigError(f"The manifest {path} does not exist: put it there or correct the card.") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ConfigError(f"The manifest {path} cannot be read as CSV or Parquet ({reason_of(error)}).") from None


def _of_sites(frame: pl.DataFrame, source: Source, faults: Faults) -> tuple[pl.DataFrame, list[str]]:
    """Return the rows of the sites that are read, and a note that counts the others; all rows without sites."""
    if source.columns.site is None:
        return frame, []
    site = _text(frame, source.columns.site)
    there = site.drop_nulls().unique().sort()
    absent = [name for name in source.sites if name not in there]
    if absent:
        faults.add(
            f"no row is of the site {', '.join(map(repr, absent))}; column {source.columns.site} holds "
            f"{', '.join(map(repr, there[:_SITES_SHOWN])) or 'blanks alone'}"
        )
    is_read = site.is_in(source.sites).fill_null(False)
    n_blank = site.null_count()
    n_other = frame.height - int(is_read.sum()) - n_blank
    notes = [f"{n_other:,} row(s) of other sites than {', '.join(source.sites)} are not read"] if n_other else []
    if n_blank:
        notes.append(f"{n_blank:,} row(s) without a site are not read")
    return frame.filter(is_read), notes


def _text(frame: pl.DataFrame, column: str) -> pl.Series:
    import polars as pl

    text = frame.get_column(column).cast(pl.String)
    return text.str.strip_chars().replace("", None)  # "" in quotes is as blank as nothing


def _missing_columns(card: DatasetCard, columns: ManifestColumns, frame: pl.DataFrame) -> list[str]:
    needed = {columns.image_id}
    needed |= {name for name in (columns.group, columns.split, columns.path, columns.site) if name}
    if card.task == "multi_label":
        needed |= set(_label_columns(card, columns).values())
    elif columns.class_column is None:
        return [f"task {card.task} needs `columns.class_column` in the card"]
    else:
        needed.add(columns.class_column)
    return [f"it {clause}" for clause in column_faults(frame, needed)]


def _label_columns(card: DatasetCard, columns: ManifestColumns) -> dict[str, str]:
    given = columns.label_columns or {}
    return {name: given.get(name, name) for name in card.classes}


def _bad_splits(frame: pl.DataFrame, columns: ManifestColumns) -> list[str]:
    if columns.split is None:
        return []
    values = _text(frame, columns.split).str.to_lowercase().unique().drop_nulls().sort().to_list()
    unknown = [value for value in values if value not in _SPLITS]
    return [f"unknown split(s) {', '.join(unknown)}: expected train, validation or test"] if unknown else []


def _image_root(source: Source, faults: Faults) -> str | None:
    root = Path(str(image_root(source)))
    if not root.is_dir():
        remedy = f": unpack {root.name} and let the root name the folder" if root.is_file() else ""
        faults.add(f"the root {root} of its images is no folder{remedy}")
        return None
    return str(root)
