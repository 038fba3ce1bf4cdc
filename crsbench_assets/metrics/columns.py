"""Columns of scores, each sorted once.

What lives here: the sort of a column with its labels, on which AUROC, placement values, the bins of the calibration
errors and the exact bootstrap all rest.
What stays out: those quantities (``ranking``, ``calibration``, ``replicates``).
Source: that floats, NaN left out, are in the order of their bits read as sign and magnitude: IEEE 754-2019, section
5.10 (total order); protocol page, section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Scalar = TypeVar("_Scalar", bound=np.generic)

_BLOCK_BYTES = 2048
"""Of a column that is copied at a time; the rows of the block then lie in the nearest cache."""

_MAGNITUDE = np.int32(0x7FFFFFFF)

_KEY = np.dtype([("low", "<i4"), ("high", "<i4")])
"""A sort key in two halves, read as one little-endian double. Both it and the float32 of its high half are ordered as
sign and magnitude; only the high halves of NaN would make it NaN."""


@dataclass(frozen=True, slots=True)
class RankedColumn:
    """The m entries of a column that count, by ascending score; among equal scores the negatives come first.

    ``scores``: (m,), without NaN. ``is_positive``: (m,). ``positives``: (n_positive,) ascending places of the
    positives. ``images``: (m,) rows of the matrix they come from, ascending among entries of equal score and label. So
    only ``images`` depends on the order of the images, and sums along the others have the same bits for every order.
    """

    scores: NDArray[np.floating]
    is_positive: NDArray[np.bool_]
    positives: NDArray[np.int64]
    images: NDArray[np.int32]

    @property
    def n_positive(self) -> int:
        """Entries that are positive."""
        return len(self.positives)

    @property
    def n_negative(self) -> int:
        """Entries that are negative."""
        return len(self.scores) - len(self.positives)

    def rescored(self, scores: NDArray[np.float64]) -> RankedColumn:
        """Return the column with other scores (m,) in the same order: an increasing function of its own."""
        return RankedColumn(scores, self.is_positive, self.positives, self.images)


def rank_columns(scores: NDArray[np.floating], labels: NDArray[np.int8]) -> Iterator[RankedColumn]:
    """Yield the columns of a score matrix, sorted.

    Value, label and place of an entry are packed into the bits of one double, and doubles are sorted: several times as
    fast as an argsort and the gathers that follow one, and ties fall in a defined order. One column is sorted at a
    time, so that it stays in the processor's cache while it is used.

    Args:
        scores: (n, k), n < 2^31; NaN is left out. float32 is fastest.
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown (left out).

    Yields:
        k columns; empty ones where nothing counts.

    Example:
        >>> (column,) = rank_columns(np.array([[0.5], [0.5], [0.1]]), np.array([[1], [0], [-1]], dtype=np.int8))
        >>> column.scores.tolist(), column.is_positive.tolist(), column.images.tolist()
        ([0.5, 0.5], [False, True], [1, 0])
    """
    places = np.arange(len(scores), dtype=np.int32)
    keys = np.empty(len(scores), dtype=_KEY)
    is_complete = labels.min(initial=0) >= 0 and not np.isnan(scores.min(initial=0))
    for column, of_column in zip(_by_column(scores), _by_column(labels), strict=True):
        if is_complete:
            yield _ranked(column, of_column, places, keys)
        else:
            images = places[(of_column >= 0) & ~np.isnan(column)]
            m = len(images)
            ranked = _ranked(column[images], of_column[images], places[:m], keys[:m])
            yield replace(ranked, images=images[ranked.images])


def _by_column(matrix: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Return the transpose as rows, copied by blocks that fit the nearest cache."""
    columns = np.empty(matrix.shape[::-1], dtype=matrix.dtype)
    n_rows = _BLOCK_BYTES // matrix.itemsize
    for first in range(0, len(matrix), n_rows):
        columns[:, first : first + n_rows] = matrix[first : first + n_rows].T
    return columns


def _ranked(
    scores: NDArray[np.floating], labels: NDArray[np.int8], places: NDArray[np.int32], keys: NDArray[np.void]
) -> RankedColumn:
    """Return a column of which every entry counts; writes over ``scores`` and ``keys``; ``places`` are 0 to m - 1."""
    is_packed = scores.dtype == np.float32
    if is_packed:
        scores += np.float32(0.0)  # makes -0.0 equal to 0.0
        high = scores.view(np.int32)
    else:  # 64 bits leave no room for label and place: dense ranks stand for the values
        high = np.unique(scores, return_inverse=True)[1].astype(np.int32)
    low = labels.astype(np.int32)
    low <<= 31
    low |= places
    low ^= high >> 31  # of two negative doubles the one with the larger bits is the smaller
    keys["high"], keys["low"] = high, low
    keys.view("<f8").sort()
    high[:] = keys["high"]
    np.bitwise_xor(keys["low"], high >> 31, out=low)
    is_positive = low < 0
    low &= _MAGNITUDE
    return RankedColumn(scores if is_packed else scores.take(low), is_positive, is_positive.nonzero()[0], low)
