"""The vectors of a cell: all images clean, the test images under every corruption, the shift target as it is.

What lives here: which vectors are needed, and the rule that a cell without all of them fails as a whole.
What stays out: how a vector is made (``encoders``). Source: protocol page, sections 1 to 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crsbench_assets.config.ids import CLEAN, shift_condition
from crsbench_assets.encoders.source import Progress, VectorSource

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

INCOMPLETE_SUPPORT = "incomplete_support"


@dataclass(frozen=True)
class Extraction:
    """Rows of ``embeddings``, ``shift_embeddings`` and ``embedding_failures``; failures leave no vector at all."""

    embeddings: pl.DataFrame
    shift_embeddings: pl.DataFrame
    failures: pl.DataFrame

    @property
    def reason(self) -> str | None:
        """Code of the failure, or None."""
        return INCOMPLETE_SUPPORT if self.failures.height else None

    @property
    def detail(self) -> str | None:
        """The failure in words, with the first image."""
        if not self.failures.height:
            return None
        first = self.failures.row(0, named=True)
        return (
            f"{self.failures.height} vector(s) of the support are missing, not finite or of another width than most, "
            f"the first of image "
            f"{first['image_id']!r} under {first['condition_id']!r} ({first['reason']})"
        )


def extract(
    source: VectorSource,
    images: pl.DataFrame,
    test_ids: Sequence[str],
    corruptions: Sequence[str],
    shift_id: str | None,
    progress: Progress = lambda line: None,
) -> Extraction:
    """Return the vectors of a cell.

    A condition that the encoder has no vector for at all gives no rows and no failure: its records become NULL with
    reason ``no_vectors``. A condition that it has in part, or ``clean`` not at all, fails the cell, for otherwise
    its numbers would rest on other images than those of every other encoder.

    Args:
        source: the encoder on this dataset.
        images: rows of table ``images`` that are in the support.
        test_ids: ids of the test images.
        corruptions: ids of the corrupted conditions.
        shift_id: id of the shift target, or None.
        progress: called with one line now and then.

    Raises:
        ConfigError: the encoder names a condition that is none of these, or cannot be loaded.
        StorageError: an image changed since it was indexed.
    """
    import polars as pl

    shifted_condition = shift_condition(shift_id) if shift_id else None
    primary = images.filter(pl.col("source_id") == "primary")
    test = primary.filter(pl.col("image_id").is_in(list(test_ids)))
    wanted: dict[str, pl.DataFrame] = {CLEAN: primary, **dict.fromkeys(corruptions, test)}
    known = [*wanted]
    if shifted_condition is not None:
        known.append(shifted_condition)
        shifted = images.filter(pl.col("source_id") == shift_id)
        if shifted.height:  # a target that may not be read has no image
            wanted[shifted_condition] = shifted
    source.begin(wanted, known, progress)
    own: list[pl.DataFrame] = []
    shift: list[pl.DataFrame] = []
    failures: list[pl.DataFrame] = []
    for condition, rows in wanted.items():
        ids = rows.get_column("image_id").to_list()
        matrix = source.vectors(condition, ids, _labels(rows))
        if matrix is None:
            if condition == CLEAN:
                failures.append(_failures(condition, ids, ["missing"] * len(ids)))
            continue
        failures.append(_unusable(source, condition, ids, matrix))
        found = _rows(condition, ids, matrix)
        if condition == shifted_condition:
            shift.append(found)
        else:
            same = list(source.unchanged(condition))
            own.append(found.with_columns(is_unchanged=pl.col("image_id").is_in(same)))
    empty, failed = _rows(CLEAN, [], None), pl.concat([_failures(CLEAN, [], []), *failures])
    if failed.height:
        own, shift = [], []  # a part of the support must not look like a result
    return Extraction(
        embeddings=pl.concat([empty.with_columns(is_unchanged=pl.lit(False)), *own]),
        shift_embeddings=pl.concat([empty, *shift]),
        failures=failed,
    )


def _labels(rows: pl.DataFrame) -> NDArray[np.int8]:
    import numpy as np

    labels = rows.get_column("labels").to_list()
    return np.asarray([[-1 if v is None else v for v in row] for row in labels], dtype=np.int8)


def _rows(condition: str, ids: list[str], matrix: NDArray[np.float32] | None) -> pl.DataFrame:
    import polars as pl

    vector = (
        pl.Series("vector", [] if matrix is None else matrix, dtype=pl.List(pl.Float32))
        if matrix is None
        else (pl.Series("vector", matrix).cast(pl.List(pl.Float32)))
    )
    return pl.DataFrame(
        {
            "condition_id": pl.Series([condition] * len(ids), dtype=pl.String),
            "image_id": pl.Series(ids, dtype=pl.String),
            "vector": vector,
        }
    )


def _unusable(source: VectorSource, condition: str, ids: list[str], matrix: NDArray[np.float32]) -> pl.DataFrame:
    import numpy as np

    wrong_width = set(source.wrong_width(condition))
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    reasons = [
        "wrong_width" if ids[i] in wrong_width else source.nan_reason if np.isnan(matrix[i]).all() else "not_finite"
        for i in bad
    ]
    return _failures(condition, [ids[i] for i in bad], reasons)


def _failures(condition: str, ids: list[str], reasons: list[str]) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame(
        {"condition_id": [condition] * len(ids), "image_id": ids, "reason": reasons},
        schema={"condition_id": pl.String, "image_id": pl.String, "reason": pl.String},
    )
