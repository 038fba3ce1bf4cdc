"""Which images are the same picture: equal pixels, and near-duplicates that were confirmed on pixels.

What lives here: the search for perceptual hashes that differ in at most two bits, the confirmation of what it finds,
and the components that both kinds of duplicates form. What stays out: the hash itself (``images.perceptual``) and the
groups that the components join (``data.integrity``).
Source: protocol page, section 2: exact duplicates and confirmed near-duplicates (named pHash, distance <= 2, confirmed
on pixels) join groups; a component above 0.5 % of the images fails a check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl

    from crsbench_assets.data.integrity import ImageCheck

MAX_DISTANCE = 2
"""Bits in which the hashes of two candidates may differ (protocol page, section 2)."""

MAX_GREY_DIFFERENCE = 1.25
"""Largest mean absolute difference of two thumbnails of one picture, in grey levels of 255.

Measured on 400 images of each demo cohort: an image that was saved again as JPEG of quality 95 to 50, enlarged by 2 or
reduced to a half lies at most 1.14 from itself. Of 520 pairs of different pictures whose hashes differ in at most two
bits, the demo cohorts and 5,030 real radiographs of PneumoniaMNIST together, the nearest lie 1.51 apart and nine tenths
more than 6. Chest radiographs are alike enough to share hashes, so the hash alone would join strangers."""

MAX_COMPONENT_SHARE = 0.005
"""Share of a source's images above which a joined group fails its check (protocol page, section 2)."""

FEW_GROUPS = 10
"""Groups that duplicates may always join: in a cohort of 240 images two copies are more than 0.5 % of it already."""

_N_BITS = 64
_BLOCK = 1 << 14
"""Pairs that are confirmed at once: 16 MB of thumbnails on each side."""


def near_pairs(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return all pairs of distinct hashes that differ in one or two bits.

    Two hashes differ in at most two bits if and only if some value lies within one bit of both. So each hash is listed
    under itself and its 64 neighbours, and who stands under one value is a pair: no pair is missed, none is listed in
    vain, and nothing compares all with all.

    Args:
        hashes: uint64 (n,), distinct; n may be 0.

    Returns:
        int64 (p, 2): positions, the smaller first, sorted.

    Example:
        >>> near_pairs(np.array([0, 7, 3, 1 << 60], dtype=np.uint64)).tolist()
        [[0, 2], [0, 3], [1, 2]]
    """
    n = len(hashes)
    flips = np.concatenate([np.zeros(1, dtype=np.uint64), np.uint64(1) << np.arange(_N_BITS, dtype=np.uint64)])
    values = (hashes[:, None] ^ flips[None, :]).reshape(-1)
    ordered = np.sort(values)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(repeated):
        return np.zeros((0, 2), dtype=np.int64)
    # few values are repeated, so only those are sorted with their owners
    place = np.minimum(np.searchsorted(repeated, values), len(repeated) - 1)
    shared = np.flatnonzero(repeated[place] == values)
    order = shared[np.argsort(values[shared])]
    values, owner = values[order], order // len(flips)
    found = []
    start = np.arange(len(values) - 1)
    for step in range(1, len(flips)):  # at most 65 hashes lie within one bit of one value
        start = start[start + step < len(values)]
        start = start[values[start] == values[start + step]]
        if not len(start):
            break
        one, other = owner[start], owner[start + step]
        found.append(np.minimum(one, other) * n + np.maximum(one, other))
    return np.stack(np.divmod(np.unique(np.concatenate(found)), n), axis=1)


def same_pictures(hashes: NDArray[np.uint64], thumbnails: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return all pairs of images whose hashes differ in at most two bits and whose thumbnails confirm it.

    Args:
        hashes: uint64 (n,) perceptual hashes; n may be 0.
        thumbnails: uint8 (n, h, w) of the same images.

    Returns:
        int64 (p, 2): positions of the images, the smaller first; unsorted.

    Raises:
        ValueError: the lengths differ.
    """
    if len(hashes) != len(thumbnails):
        raise ValueError(f"{len(hashes)} hashes and {len(thumbnails)} thumbnails; expected one each per image")
    if not len(hashes):
        return np.zeros((0, 2), dtype=np.int64)
    flat = thumbnails.reshape(len(thumbnails), -1)
    brightness = flat.sum(axis=1, dtype=np.int64)
    confirmed = [np.zeros((0, 2), dtype=np.int64)]
    for block in _candidates(hashes):
        # totals lie no further apart than the pixels do, so most strangers go without a look at their pixels
        is_near = np.abs(brightness[block[:, 0]] - brightness[block[:, 1]]) <= MAX_GREY_DIFFERENCE * flat.shape[1]
        pairs = block[is_near]
        one, other = flat[pairs[:, 0]], flat[pairs[:, 1]]
        total = (np.maximum(one, other) - np.minimum(one, other)).sum(axis=1, dtype=np.int64)
        confirmed.append(pairs[total <= MAX_GREY_DIFFERENCE * flat.shape[1]])
    return np.concatenate(confirmed)


def _candidates(hashes: NDArray[np.uint64]) -> Iterator[NDArray[np.int64]]:
    """Yield the pairs of images with hashes at distance <= 2, in blocks, each pair once."""
    distinct, bucket = np.unique(hashes, return_inverse=True)
    members = np.argsort(bucket, kind="stable")
    size = np.bincount(bucket, minlength=len(distinct))
    first = np.cumsum(size) - size
    near = near_pairs(distinct)
    own = np.flatnonzero(size > 1)
    left, right = np.concatenate([near[:, 0], own]), np.concatenate([near[:, 1], own])
    # a row is one image of the left bucket, to be compared with all images of the right one
    row_image = np.repeat(first[left], size[left]) + _within(size[left])
    row_right = np.repeat(right, size[left])
    row_size = size[row_right]
    ends = np.cumsum(row_size)
    start = 0
    while start < len(row_image):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + _BLOCK, side="right")))
        sizes = row_size[start:stop]
        one = members[np.repeat(row_image[start:stop], sizes)]
        other = members[np.repeat(first[row_right[start:stop]], sizes) + _within(sizes)]
        pairs = np.stack([np.minimum(one, other), np.maximum(one, other)], axis=1)
        # inside one bucket each pair comes from both sides, and each image meets itself
        yield pairs[(bucket[one] != bucket[other]) | (one < other)]
        start = stop


def _within(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0 .. size - 1 for each size, one after the other."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


@dataclass(frozen=True)
class Pictures:
    """Which of n files show the same picture.

    Attributes:
        phash: n times 16 hex digits of the perceptual hash; None where a file is no usable image.
        index: n numbers, pictures numbered by first appearance; None likewise. Images share one where they have equal
            pixels or are confirmed near-duplicates, directly or through others. A copy that was turned, mirrored or
            cropped is none.
    """

    phash: list[str | None]
    index: list[int | None]


def pictures(checks: Sequence[ImageCheck]) -> Pictures:
    """Return which images are the same picture.

    Args:
        checks: what was found of n files; none give empty lists.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    from crsbench_assets.images.perceptual import THUMBNAIL_PX, perceptual_hashes

    number: dict[str, int] = {}
    shown: list[bytes] = []  # one thumbnail of every set of equal pixels
    for check in checks:
        if check.pixel_hash is not None and number.setdefault(check.pixel_hash, len(shown)) == len(shown):
            shown.append(check.thumbnail)
    if not shown:
        return Pictures([None] * len(checks), [None] * len(checks))
    thumbnails = np.frombuffer(b"".join(shown), dtype=np.uint8).reshape(-1, THUMBNAIL_PX, THUMBNAIL_PX)
    hashes = perceptual_hashes(thumbnails)
    links = same_pictures(hashes, thumbnails)
    graph = coo_array((np.ones(len(links), dtype=np.int8), (links[:, 0], links[:, 1])), shape=(len(shown), len(shown)))
    component = connected_components(graph, directed=False)[1].tolist()
    in_order: dict[int, int] = {}
    index = [in_order.setdefault(c, len(in_order)) for c in component]
    text = [f"{value:016x}" for value in hashes.tolist()]
    places = [None if check.pixel_hash is None else number[check.pixel_hash] for check in checks]
    return Pictures(
        phash=[None if place is None else text[place] for place in places],
        index=[None if place is None else index[place] for place in places],
    )


def shared_pictures(checks: Sequence[ImageCheck], others: Sequence[ImageCheck]) -> dict[str, str]:
    """Return which images of one source are also images of another: equal pixels, or confirmed near-duplicates.

    Args:
        checks: what was found of the files of the one source; none give none.
        others: what was found of those of the other.

    Returns:
        Image id of ``checks`` -> the first id, in the order of ids, among the images of ``others`` that it equals; of
        those only that are one picture with it directly, not through a third.
    """
    from crsbench_assets.images.perceptual import THUMBNAIL_PX, perceptual_hashes

    own, foreign = ([check for check in side if check.pixel_hash is not None] for side in (checks, others))
    if not own or not foreign:
        return {}
    both = [*own, *foreign]
    thumbnails = np.frombuffer(b"".join(check.thumbnail for check in both), dtype=np.uint8)
    thumbnails = thumbnails.reshape(-1, THUMBNAIL_PX, THUMBNAIL_PX)
    pairs = same_pictures(perceptual_hashes(thumbnails), thumbnails)
    crossing = pairs[(pairs[:, 0] < len(own)) & (pairs[:, 1] >= len(own))]
    found: dict[str, list[str]] = {}
    for one, other in crossing.tolist():
        found.setdefault(both[one].image_id, []).append(both[other].image_id)
    return {image_id: min(ids) for image_id, ids in sorted(found.items())}


def oversized_components(images: pl.DataFrame) -> pl.DataFrame:
    """Return the groups that duplicates made too large, with their images.

    A group is too large where duplicates joined more than :data:`FEW_GROUPS` raw groups and it holds more than
    :data:`MAX_COMPONENT_SHARE` of its source's images. A large patient is none: nothing was joined.

    Args:
        images: rows of table ``images``; none give none.

    Returns:
        One row per group, the largest first: source_id, group_index, n_groups_joined, n_images, image_ids (sorted).
    """
    import polars as pl

    limit = MAX_COMPONENT_SHARE * pl.len().over("source_id")
    return (
        images.with_columns(limit=limit)
        .group_by("source_id", "group_index")
        .agg(
            pl.col("n_groups_joined", "limit").first(),
            n_images=pl.len(),
            image_ids=pl.col("image_id").sort(),
        )
        .filter((pl.col("n_images") > pl.col("limit")) & (pl.col("n_groups_joined") > FEW_GROUPS))
        .drop("limit")
        .sort("n_images", "source_id", "group_index", descending=[True, False, False])
    )


def components_in_words(found: pl.DataFrame) -> list[str]:
    """Return one sentence per row of :func:`oversized_components`, with the ids of all images."""
    return [
        f"{row['source_id']}: duplicates joined {row['n_groups_joined']} groups into one of {row['n_images']} images, "
        f"above {MAX_COMPONENT_SHARE:.1%} of all: {', '.join(row['image_ids'])}"
        for row in found.iter_rows(named=True)
    ]
