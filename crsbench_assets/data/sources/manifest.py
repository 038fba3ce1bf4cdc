"""The user's own cohort: a card and a manifest, no code.

What lives here: reading a CSV or Parquet manifest of image ids, labels, groups and splits. What stays out: pixels;
a manifest may describe a cohort whose images are elsewhere and only vectors are here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from crsbench_assets.config.cards import DatasetCard, ManifestColumns, Source
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.settings import LabelPolicy
from crsbench_assets.data.cohort import Cohort
from crsbench_assets.data.labels import apply_policy

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

_SPLITS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


def read_manifest(card: DatasetCard, source: Source, policy: LabelPolicy) -> Cohort:
    """Return the cohort that a manifest lists.

    One row per image. ``columns`` of the card say which column is what. Every cell of a CSV file is text as it is
    written there, so ids and groups keep their leading zeros. Single-label and ordinal cohorts have one class column
    with names of ``classes``, or with their 0-based positions where not all of it are names; multi-label cohorts one
    column per class with 1, 0, -1 (uncertain) or blank. Without a group column every image is its own group; without a
    split column the protocol draws the test split.

    Raises:
        ConfigError: every fault of the file in one sentence.
    """
    path = Path(str(source.manifest))
    frame = _read_table(path)
    columns = source.columns
    faults = _missing_columns(card, columns, frame)
    if not faults:
        faults = _bad_ids(frame, columns) + _bad_splits(frame, columns)
    if faults:
        raise ConfigError(f"{path} (dataset {card.id!r}): {'; '.join(faults)}.")
    frame = frame.with_columns(_text(frame, columns.image_id).alias(columns.image_id)).sort(columns.image_id)
    left_out: list[tuple[str, str, str]] = []
    if card.task == "multi_label":
        labels = _label_matrix(card, columns, frame, policy, path)
    else:
        frame, labels, left_out = _one_hot(card, columns, frame, path)
    ids = frame.get_column(columns.image_id).to_list()
    groups = _text(frame, columns.group).to_list() if columns.group else ids
    splits = _text(frame, columns.split).str.to_lowercase().to_list() if columns.split else [None] * len(ids)
    return Cohort(
        image_ids=ids,
        # an image without a group is a group of its own; the prefix keeps it apart from a group of that name
        groups=[group if group is not None else f"image:{ids[i]}" for i, group in enumerate(groups)],
        declared_split=[_SPLITS[split] if split is not None else None for split in splits],
        labels=labels,
        left_out=left_out,
    )


def _read_table(path: Path) -> pl.DataFrame:
    import polars as pl

    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path)
        return pl.read_csv(path, infer_schema=False)  # a guessed type would make 7 of the group 007
    except FileNotFoundError:
        raise ConfigError(f"The manifest {path} does not exist: put it there or correct the card.") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ConfigError(f"The manifest {path} cannot be read as CSV or Parquet: {error}.") from None


def _text(frame: pl.DataFrame, column: str) -> pl.Series:
    import polars as pl

    return frame.get_column(column).cast(pl.String).replace("", None)  # "" in quotes is as blank as nothing


def _missing_columns(card: DatasetCard, columns: ManifestColumns, frame: pl.DataFrame) -> list[str]:
    needed = {columns.image_id}
    needed |= {name for name in (columns.group, columns.split) if name}
    if card.task == "multi_label":
        needed |= set(_label_columns(card, columns).values())
    elif columns.class_column is None:
        return [f"task {card.task} needs `columns.class_column` in the card"]
    else:
        needed.add(columns.class_column)
    missing = sorted(needed - set(frame.columns))
    return [f"missing column(s) {', '.join(missing)}; it has {', '.join(frame.columns)}"] if missing else []


def _label_columns(card: DatasetCard, columns: ManifestColumns) -> dict[str, str]:
    given = columns.label_columns or {}
    return {name: given.get(name, name) for name in card.classes}


def _bad_ids(frame: pl.DataFrame, columns: ManifestColumns) -> list[str]:
    ids = _text(frame, columns.image_id)
    faults = []
    if ids.len() == 0:
        faults.append("it has no rows")
    if n_null := ids.null_count():
        faults.append(f"{n_null} row(s) without an image id")
    repeated = ids.filter(ids.is_duplicated()).drop_nulls().unique().sort()
    if repeated.len():
        faults.append(f"{repeated.len()} image id(s) stand more than once, such as {repeated[0]!r}")
    return faults


def _bad_splits(frame: pl.DataFrame, columns: ManifestColumns) -> list[str]:
    if columns.split is None:
        return []
    values = _text(frame, columns.split).str.to_lowercase().unique().drop_nulls().sort().to_list()
    unknown = [value for value in values if value not in _SPLITS]
    return [f"unknown split(s) {', '.join(unknown)}: expected train, validation or test"] if unknown else []


def _one_hot(
    card: DatasetCard, columns: ManifestColumns, frame: pl.DataFrame, path: Path
) -> tuple[pl.DataFrame, NDArray[np.int8], list[tuple[str, str, str]]]:
    import numpy as np

    column = str(columns.class_column)
    blank = _text(frame, column).is_null()
    left_out = [
        (image_id, "blank_class", f"column {column} is empty")
        for image_id in frame.filter(blank).get_column(columns.image_id)
    ]
    frame = frame.filter(~blank)
    values = _text(frame, column).to_list()
    positions = {name: i for i, name in enumerate(card.classes)}
    by_number = {str(i): i for i in range(len(card.classes))}
    if not set(values) <= positions.keys() and set(values) <= by_number.keys():
        positions = by_number
    unknown = sorted(set(values) - positions.keys())
    if unknown:
        raise ConfigError(
            f"{path} (dataset {card.id!r}): column {column} holds {', '.join(map(repr, unknown[:5]))}; expected the "
            f"classes {', '.join(card.classes)} or their 0-based positions."
        )
    labels = np.zeros((len(values), len(card.classes)), dtype=np.int8)
    labels[np.arange(len(values)), [positions[value] for value in values]] = 1
    return frame, labels, left_out


def _label_matrix(
    card: DatasetCard, columns: ManifestColumns, frame: pl.DataFrame, policy: LabelPolicy, path: Path
) -> NDArray[np.int8]:
    import numpy as np
    import polars as pl

    raw = np.full((frame.height, len(card.classes)), np.nan)
    for i, column in enumerate(_label_columns(card, columns).values()):
        text = _text(frame, column).str.strip_chars()
        values = text.replace("", None).cast(pl.Float64, strict=False)
        bad = frame.filter(
            (text.is_not_null() & (text != "") & values.is_null()) | ~values.is_in([1.0, 0.0, -1.0]).fill_null(True)
        )
        if bad.height:
            raise ConfigError(
                f"{path} (dataset {card.id!r}): column {column} holds {bad.get_column(column)[0]!r} for image "
                f"{bad.get_column(columns.image_id)[0]!r} ({bad.height} such row(s)); expected 1, 0, -1 or blank."
            )
        raw[:, i] = values.fill_null(float("nan")).to_numpy()
    return apply_policy(raw, policy)
