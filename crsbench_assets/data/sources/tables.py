"""What the readers share: tables as text, faults in one sentence, labels by name, files below a root.

What lives here: reading CSV (gzipped or plain) and Parquet without guessing types, the collection of everything that
is wrong with one source, label columns as matrices, and the last step from columns to a cohort. What stays out: the
names of the official files and columns (one module per layout) and label policies (``data.labels``).
Source: protocol page, sections 1 and 2; Irvin et al. 2019 (arXiv 1901.07031) for labels 1, 0, -1 and blank.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from crsbench_assets.config.cards import PRIMARY, DatasetCard, Source
from crsbench_assets.config.errors import ConfigError, reason_of
from crsbench_assets.data.cohort import Cohort, CohortError
from crsbench_assets.data.integrity import file_faults

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

BLANK_CLASS = "blank_class"

_SHOWN = 3
"""Folders that a fault names."""

_SEPARATORS = (",", ";", "\t")
_PARQUET_SUFFIXES = (".parquet", ".pq")
_COLUMNS_SHOWN = 40
"""Columns that a fault lists: more than any official table has."""
_SECOND = "_duplicated_0"
"""What Polars adds to the second column of one name."""


@dataclass
class Faults:
    """What is wrong with one source, gathered while reading on and told in one sentence.

    Attributes:
        place: the file or folder and its dataset, the subject of the sentence.
        found: what was found and what was expected, one clause each.
    """

    place: str
    found: list[str] = field(default_factory=list)

    def add(self, *clauses: str) -> None:
        """Keep clauses for the sentence."""
        self.found += clauses

    def refuse(self, readable: Cohort | None = None) -> None:
        """Raise the sentence where anything was found.

        Args:
            readable: what was read in spite of the faults.

        Raises:
            CohortError: with every clause.
        """
        if self.found:
            raise CohortError(f"{self.place}: {'; '.join(self.found)}.", readable)


def place_of(where: Path, card: DatasetCard, source_id: str) -> str:
    """Return the words that name a source: its file or folder, its dataset, its shift target."""
    shift = "" if source_id == PRIMARY else f", shift target {source_id!r}"
    return f"{where} (dataset {card.id!r}{shift})"


def official_root(card: DatasetCard, source: Source, source_id: str) -> tuple[Path, Faults]:
    """Return the folder of an official layout, and the sentence to gather its faults in.

    Raises:
        ConfigError: no folder is named, or there is none; nothing further can be said then.
    """
    if source.root is None:
        key = card.id if source_id == PRIMARY else source_id
        raise ConfigError(
            f"dataset {card.id!r} has no folder for the layout {source.layout}: add `roots: {{{key}: FOLDER}}` to "
            "crsbench.yaml."
        )
    root = Path(source.root)
    if root.is_file():
        raise ConfigError(
            f"{place_of(root, card, source_id)}: it is a file; expected the folder that holds the official files of "
            f"{source.layout}: unpack {root.name} and let the root name the folder."
        )
    if not root.is_dir():
        beside = [path.name for path in _archives(root.parent) if path.name.startswith(f"{root.name}.")]
        remedy = f"unpack {beside[0]}, which lies beside it" if beside else "correct the root"
        raise ConfigError(
            f"{place_of(root, card, source_id)}: there is no such folder; expected the one that holds the official "
            f"files of {source.layout}: {remedy}."
        )
    return root, Faults(place_of(root, card, source_id))


def is_folder_there(root: Path, name: str, faults: Faults) -> bool:
    """Return whether a folder of an official layout is there; a fault says where else it may be.

    Args:
        root: the folder of the official files.
        name: the name of the folder.
        faults: where the absence is told.
    """
    is_there = (root / name).is_dir()
    if not is_there:
        faults.add(f"the folder {name} is missing{_elsewhere(root, [name])}")
    return is_there


def _elsewhere(root: Path, names: Sequence[str]) -> str:
    """Return the words about an absent file or folder that lies packed in the root, or one folder below it."""
    packed = [path.name for path in _archives(root)]
    if packed:
        return f" (unpack {' and '.join(packed)} there)"
    below = sorted(folder.name for folder in root.iterdir() if any((folder / name).exists() for name in names))
    return f" (it lies in {' and in '.join(below[:_SHOWN])}: let the root name that folder)" if below else ""


def _archives(folder: Path) -> list[Path]:
    """Return the archives that lie in a folder; a gzipped table is none."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz")))


def table_as_text(path: Path) -> pl.DataFrame:
    """Return a table of CSV (gzipped or plain, UTF-8) or Parquet; cells of a CSV are text as they stand there.

    A CSV may be separated by commas, or by semicolons or tabs throughout, as spreadsheets of some countries write it:
    its header decides, by which of them it falls into most columns, because cells may hold decimal commas. Spaces
    around a name of a column are none of it, and a row without any cell is no row. NaN in a Parquet file is a blank:
    pandas writes missing numbers so.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be read.
        PolarsError: it is no table.
    """
    import polars as pl

    if path.is_dir():
        raise IsADirectoryError(f"it is a folder: name the file in {path.name}")
    if not path.is_file():
        raise FileNotFoundError(path)
    if path.suffix.lower() in _PARQUET_SUFFIXES:
        return pl.read_parquet(path).with_columns(pl.selectors.float().fill_nan(None))
    # the first of equals: a header without any of them is one column, whatever its cells hold
    separator = max(_SEPARATORS, key=lambda mark: pl.read_csv(path, infer_schema=False, separator=mark, n_rows=0).width)
    frame = pl.read_csv(path, infer_schema=False, separator=separator)  # a guessed type would make 7 of the group 007
    if any("\0" in name for name in frame.columns):
        raise pl.exceptions.ComputeError("it is no text in UTF-8: save it as CSV in UTF-8")
    if any("\r" in name for name in frame.columns):
        raise pl.exceptions.ComputeError("its lines end in carriage returns alone: save it as CSV with other line ends")
    frame = frame.rename({name: name.strip() for name in frame.columns})
    return frame.filter(~pl.all_horizontal(pl.all().is_null()))


def column_faults(frame: pl.DataFrame, columns: Collection[str]) -> list[str]:
    """Return the faults of the columns that are needed: one is missing, stands twice, holds lists or broken lines.

    A line break within a cell is a quote that was opened and never closed: all rows up to the next quote are one cell
    then, and would be missing without a word.

    Args:
        frame: the table as :func:`table_as_text` reads it.
        columns: the names of the columns that are needed.
    """
    import polars as pl

    missing = sorted(set(columns) - set(frame.columns))
    there = ", ".join(frame.columns[:_COLUMNS_SHOWN]) + (", ..." if frame.width > _COLUMNS_SHOWN else "")
    faults = [f"lacks the column(s) {', '.join(missing)}; it has {there}"] if missing else []
    repeated = sorted(name for name in set(columns) if f"{name}{_SECOND}" in frame.columns)
    if repeated:
        faults.append(f"has the column(s) {', '.join(repeated)} twice; expected one each")
    kinds = {name: kind for name, kind in frame.schema.items() if name in columns}
    nested = sorted(name for name, kind in kinds.items() if kind.is_nested() or kind == pl.Binary)
    if nested:
        faults.append(f"holds {kinds[nested[0]]} in the column(s) {', '.join(nested)}; expected text or numbers")
    texts = [name for name in dict.fromkeys(columns) if kinds.get(name) == pl.String]
    broken = [name for name in texts if frame.get_column(name).str.strip_chars().str.contains(r"[\r\n]").any()]
    if broken:
        faults.append(
            f"has a line break within a cell of the column(s) {', '.join(broken)}; expected one row per line: look for "
            "a quote that is opened and not closed"
        )
    return faults


def official_table(root: Path, names: Sequence[str], columns: Collection[str], faults: Faults) -> pl.DataFrame:
    """Return columns of an official table as stripped text, blank as null.

    Columns are found by name; others are ignored. What is wrong is added to ``faults``, and the table is empty then,
    so that the reader goes on to find what else is wrong.

    Args:
        root: the folder of the official files.
        names: the names that the file may have, such as gzipped and plain; the first that is there is read.
        columns: the names of the columns that are needed.
        faults: where faults are gathered.
    """
    import polars as pl

    empty = pl.DataFrame(schema=dict.fromkeys(columns, pl.String))
    path = next((root / name for name in names if (root / name).is_file()), None)
    if path is None:
        faults.add(f"the file {' or '.join(names)} is missing{_elsewhere(root, names)}")
        return empty
    try:
        frame = table_as_text(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        faults.add(f"{path.name} cannot be read as CSV ({reason_of(error)})")
        return empty
    if wrong := column_faults(frame, columns):
        faults.add(*(f"{path.name} {clause}" for clause in wrong))
        return empty
    if frame.height == 0:
        faults.add(f"{path.name} has no rows")
    return frame.select(pl.col(name).str.strip_chars().replace("", None) for name in dict.fromkeys(columns))


def id_faults(ids: pl.Series, what: str) -> list[str]:
    """Return the faults of a column that should hold one id per row.

    Args:
        ids: n ids as text, null where blank.
        what: the words for one id, such as ``image id``.
    """
    faults = []
    if n_null := ids.null_count():
        faults.append(f"{n_null} row(s) have a blank {what}")
    repeated = ids.filter(ids.is_duplicated()).drop_nulls().unique().sort()
    if repeated.len():
        faults.append(f"{repeated.len()} {what}(s) stand more than once, such as {repeated[0]!r}")
    return faults


def value_faults(frame: pl.DataFrame, column: str, known: Sequence[str], id_column: str) -> list[str]:
    """Return the fault of a column that decides which rows are read: a blank or unknown value would drop one silently.

    Args:
        frame: a table of text, n rows, null where blank.
        column: the column that decides.
        known: the values that it may hold, in any case.
        id_column: the column that names a row.
    """
    import polars as pl

    lower = [name.lower() for name in known]
    bad = frame.filter(~pl.col(column).str.to_lowercase().is_in(lower).fill_null(False))
    if not bad.height:
        return []
    value = bad.get_column(column)[0]
    return [
        f"column {column} is {'blank' if value is None else repr(value)} for {bad.get_column(id_column)[0]!r} "
        f"({bad.height} row(s) hold no known value); expected {', '.join(known)}"
    ]


def uncertain_labels(
    frame: pl.DataFrame, columns: Sequence[str], id_column: str, faults: Faults
) -> NDArray[np.float64]:
    """Return the label columns of a multi-label table as they stand there.

    Args:
        frame: a table of text, n rows.
        columns: k names of label columns, in the order of the card's classes.
        id_column: the column that names an image in a fault.
        faults: where other values than 1, 0, -1 and blank are told.

    Returns:
        float64 (n, k): 1 positive, 0 negative, -1 uncertain, NaN blank (and where the value is a fault); true and
        false of a Parquet file are 1 and 0.
    """
    import numpy as np
    import polars as pl

    raw = np.full((frame.height, len(columns)), np.nan)
    for i, column in enumerate(columns):
        cells = frame.get_column(column)
        if cells.dtype == pl.Boolean:
            cells = cells.cast(pl.Int8)
        text = cells.cast(pl.String).str.strip_chars().replace("", None)
        values = text.cast(pl.Float64, strict=False)
        is_label = values.is_in([1.0, 0.0, -1.0]).fill_null(False)
        bad = frame.filter(text.is_not_null() & ~is_label)
        if bad.height:
            faults.add(
                f"column {column} holds {bad.get_column(column)[0]!r} for image {bad.get_column(id_column)[0]!r} "
                f"({bad.height} such row(s)); expected 1, 0, -1 or blank"
            )
        raw[:, i] = values.set(~is_label, None).fill_null(float("nan")).to_numpy()
    return raw


def class_labels(values: Sequence[str], classes: Sequence[str], column: str, faults: Faults) -> NDArray[np.int8]:
    """Return a column of classes as one-hot rows.

    Values are names of classes, or their 0-based positions where no value is a name: classes that are numbers
    themselves are never taken for positions because of one bad cell.

    Args:
        values: n names or positions.
        classes: k names of classes.
        column: the words for the column in a fault.
        faults: where unknown classes are told; their rows are all 0.

    Returns:
        int8 (n, k), one 1 per row.
    """
    import numpy as np

    positions = {name: i for i, name in enumerate(classes)}
    by_number = {str(i): i for i in range(len(classes))}
    if set(values).isdisjoint(positions) and set(values) <= by_number.keys():
        positions = by_number
    unknown = sorted(set(values) - positions.keys())
    if unknown:
        faults.add(
            f"column {column} holds {', '.join(map(repr, unknown[:5]))}; expected the classes {', '.join(classes)} or "
            "their 0-based positions alone"
        )
    labels = np.zeros((len(values), len(classes)), dtype=np.int8)
    for i, value in enumerate(values):
        if value in positions:
            labels[i, positions[value]] = 1
    return labels


def cohort_of(card: DatasetCard, source_id: str, faults: Faults, rows: Cohort) -> Cohort:
    """Return a cohort whose absent files are left out, or refuse it with every fault.

    An image whose file is absent or outside the root stays among the images, so that it takes part in the draw of the
    splits and moves nobody; ``left_out`` says that it is never opened.

    Args:
        card: the dataset.
        source_id: ``primary`` or its shift target. The dataset itself needs an image of every class of a single-label
            or ordinal task, and one positive of a multi-label task, because it is trained on; a target does not.
        faults: what was found so far.
        rows: what the tables say. With paths and without a root (its image folder is a fault already) no file is
            looked for.

    Raises:
        CohortError: every fault: those given, no file at all, classes without an image, no positive at all.
    """
    import dataclasses

    import numpy as np

    is_usable = np.ones(len(rows.image_ids), dtype=bool)
    lost: list[tuple[str, str, str]] = []
    if rows.paths is not None and rows.root is not None:
        found = file_faults(Path(rows.root), rows.paths)
        lost = [(image_id, *fault) for image_id, fault in zip(rows.image_ids, found, strict=True) if fault]
        is_usable = np.asarray([fault is None for fault in found], dtype=bool)
    if lost and not is_usable.any():
        image_id, reason, detail = lost[0]
        faults.add(
            f"none of the {len(lost)} image files can be used, such as that of {image_id!r} ({reason}: {detail}); "
            f"expected them below {rows.root}"
        )
        is_usable[:] = True  # all are lost alike: which class is empty is still worth saying
    if source_id == PRIMARY and is_usable.any():
        n_positive = (rows.labels[is_usable] == 1).sum(axis=0)
        empty = [name for name, n in zip(card.classes, n_positive.tolist(), strict=True) if n == 0]
        if card.task != "multi_label" and empty:
            faults.add(f"no image of class {', '.join(empty)}; expected at least one of every class of the card")
        if card.task == "multi_label" and len(empty) == len(card.classes):
            faults.add(
                f"no image is positive for any of {', '.join(card.classes)}; expected at least one positive label"
            )
    cohort = dataclasses.replace(rows, left_out=[*rows.left_out, *lost])
    if faults.found:
        faults.refuse(_with_distinct_ids(cohort))
    return cohort


def _with_distinct_ids(cohort: Cohort) -> Cohort:
    """Return the rows of a refused cohort that have an id, and of several with one id the first."""
    first: dict[str | None, int] = {}
    for i, image_id in enumerate(cohort.image_ids):
        first.setdefault(image_id or None, i)
    rows = [i for image_id, i in first.items() if image_id is not None]
    return Cohort(
        image_ids=[cohort.image_ids[i] for i in rows],
        groups=[cohort.groups[i] for i in rows],
        declared_split=[cohort.declared_split[i] for i in rows],
        labels=cohort.labels[rows],
        left_out=[row for row in cohort.left_out if row[0]],
        paths=None if cohort.paths is None else [cohort.paths[i] for i in rows],
        root=cohort.root,
        stated=None if cohort.stated is None else cohort.stated[rows],
        notes=cohort.notes,
    )
