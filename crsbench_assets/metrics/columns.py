"""Columns of scores, each sorted once.

What lives here: the sort of a column with its labels, on which AUROC, placement values, the bins of the calibration
errors and the exact bootstrap all rest.
What stays out: those quantities (``ranking``, ``calibration``, ``replicates``).
Source: that the bits of a float are in the order of an integer of the same width once the magnitude bits of negative
numbers are inverted: IEEE 754-2019, section 5.10 (total order); protocol page, section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Scalar = TypeVar("_Scalar", bound=np.generic)

_BLOCK_ROWS = 512

_MAGNITUDE = np.int32(0x7FFFFFFF)

_KEY = np.dtype([("low", "<i4"), ("high", "<i4")])
"""A sort key in two halves, read as one little-endian 64-bit integer; the low half is compared without its sign."""


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

    Value, label and place of an entry are packed into one 64-bit integer, and integers are sorted: several times as
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
    for first in range(0, len(matrix), _BLOCK_ROWS):
        columns[:, first : first + _BLOCK_ROWS] = matrix[first : first + _BLOCK_ROWS].T
    return columns


def _ranked(
    scores: NDArray[np.floating], labels: NDArray[np.int8], places: NDArray[np.int32], keys: NDArray[np.void]
) -> RankedColumn:
    """Return a column of which every entry counts; writes over ``scores`` and ``keys``; ``places`` are 0 to m - 1."""
    is_packed = scores.dtype == np.float32
    if is_packed:
        scores += np.float32(0.0)  # makes -0.0 equal to 0.0
        _reflect(scores.view(np.int32))
        keys["high"] = scores.view(np.int32)
    else:  # 64 bits leave no room for label and place: dense ranks stand for the values
        keys["high"] = np.unique(scores, return_inverse=True)[1]
    low = labels.astype(np.int32)
    low <<= 31
    low |= places
    keys["low"] = low
    keys.view("<i8").sort()
    low[:] = keys["low"]
    is_positive = low < 0
    low &= _MAGNITUDE
    if is_packed:
        scores.view(np.int32)[:] = keys["high"]
        _reflect(scores.view(np.int32))
    else:
        scores = scores.take(low)
    return RankedColumn(scores, is_positive, is_positive.nonzero()[0], low)


def _reflect(bits: NDArray[np.int32]) -> None:
    """Invert, in place, the magnitude bits of negative numbers: bits of floats become ordered integers, and back."""
    signs = bits >> 31
    signs &= _MAGNITUDE
    bits ^= signs
