"""The pencils of the demo cohorts: masks, textures, strokes, and the bytes of a file.

What lives here: what more than one modality draws with, how a class difference shrinks with difficulty, and the form
in which a drawn cohort is handed over. What stays out: what a lesion, an eye or a chest looks like (``lesions``,
``fundus``, ``chest``) and when anything is written to disk (``write``).
Source: ours, the paper has no drawn images. Every draw comes from a generator keyed by names (protocol page,
section 2), so a file's bytes depend on its own id alone.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from crsbench_assets.config.randomness import keyed_ranks

Plane = NDArray[np.floating[Any]]
"""(height, width) or (height, width, 3), values in [0, 1] where it is an image or a mask."""

MIN_PER_CLASS = 12
"""Images that every class or label has at least."""

_JPEG_QUALITY = 90
_SUBPIXEL_BITS = 4


@dataclass(frozen=True)
class CohortFiles:
    """The files of a cohort.

    Args:
        tables: relative path -> bytes of a label table.
        images: relative path -> call that draws the image and returns the bytes of its file. The calls are
            independent of each other and can be pickled.
    """

    tables: Mapping[str, bytes]
    images: Mapping[str, Callable[[], bytes]]


@lru_cache(maxsize=8)
def coordinates(width: int, height: int) -> tuple[Plane, Plane]:
    """Return x and y of every pixel centre, shape (height, width); y runs from -1 (top) to 1, x in the same unit."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    half = height / 2
    planes = (x - (width - 1) / 2) / half, (y - (height - 1) / 2) / half
    for plane in planes:
        plane.flags.writeable = False  # shared by all callers
    return planes


def smooth_noise(generator: np.random.Generator, width: int, height: int, cell: float) -> Plane:
    """Return a random texture of mean 0 and standard deviation 1 whose blobs are about ``cell`` pixels wide."""
    coarse = generator.standard_normal((max(3, round(height / cell) + 2), max(3, round(width / cell) + 2)))
    plane = np.asarray(cv2.resize(coarse.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC))
    return np.asarray((plane - plane.mean()) / (plane.std() + 1e-6), dtype=np.float32)


def inside(distance: Plane, softness: float) -> Plane:
    """Return a mask: 1 where ``distance`` is below 0, 0 above, with a smooth edge of width ``softness``."""
    step = np.clip(0.5 - distance / max(softness, 1e-3), 0.0, 1.0)
    return np.asarray(step * step * (3.0 - 2.0 * step), dtype=np.float32)


def blob(x: Plane, y: Plane, centre: tuple[float, float], radius: float) -> Plane:
    """Return a Gaussian spot of height 1; ``radius`` is its standard deviation."""
    squared = (x - centre[0]) ** 2 + (y - centre[1]) ** 2
    return np.asarray(np.exp(-squared / (2.0 * radius * radius)), dtype=np.float32)


def scattered(generator: np.random.Generator, n_points: int, reach: float) -> Plane:
    """Return points spread evenly over a disc of radius ``reach`` around the origin, shape (n_points, 2)."""
    angle, length = generator.uniform(0.0, 2 * np.pi, n_points), reach * np.sqrt(generator.random(n_points))
    return np.stack([length * np.cos(angle), length * np.sin(angle)], axis=1)


def spots(x: Plane, y: Plane, centres: Plane, radii: Plane, softness: float) -> Plane:
    """Return a mask of round spots; ``softness`` is the width of an edge as a share of its spot's radius.

    Args:
        x: first coordinate of every pixel.
        y: second coordinate of every pixel.
        centres: (p, 2); no spot gives an empty mask.
        radii: (p,), above 0.
        softness: of the edge, above 0.
    """
    nearest = np.full(x.shape, np.inf, dtype=np.float32)
    for (centre_x, centre_y), radius in zip(centres.tolist(), radii.tolist(), strict=True):
        squared = (x - centre_x) ** 2
        squared += (y - centre_y) ** 2
        squared *= 1.0 / (radius * radius)
        np.minimum(nearest, squared, out=nearest)
    return inside(np.sqrt(nearest) - 1.0, softness)


def grain(generator: np.random.Generator, shape: tuple[int, ...], deviation: float) -> Plane:
    """Return independent noise of every pixel."""
    return np.asarray(generator.standard_normal(shape, dtype=np.float32) * np.float32(deviation))


def strokes(width: int, height: int, lines: Iterable[Plane], thickness: int = 1, *, filled: bool = False) -> Plane:
    """Return a mask of antialiased lines, or of closed shapes if ``filled``; each (p, 2) points in coordinates()."""
    mask = np.zeros((height, width), dtype=np.uint8)
    scale = height / 2 * 2**_SUBPIXEL_BITS
    offset = np.array([(width - 1) / 2, (height - 1) / 2]) * 2**_SUBPIXEL_BITS
    for line in lines:
        points = np.round(np.asarray(line) * scale + offset).astype(np.int32).reshape(-1, 1, 2)
        if filled:
            cv2.fillPoly(mask, [points], (255,), cv2.LINE_AA, _SUBPIXEL_BITS)
        else:
            cv2.polylines(mask, [points], False, (255,), thickness, cv2.LINE_AA, _SUBPIXEL_BITS)
    return np.asarray(mask / np.float32(255.0), dtype=np.float32)


def wandering_line(
    generator: np.random.Generator, start: tuple[float, float], angle: float, length: float, bend: float
) -> NDArray[np.float64]:
    """Return twelve points of a curve that starts towards ``angle`` (radians) and turns at random, shape (12, 2)."""
    n_points = 12
    angles = angle + np.cumsum(generator.normal(0.0, bend, n_points - 1))
    steps = np.stack([np.cos(angles), np.sin(angles)], axis=1) * length / (n_points - 1)
    return np.vstack([np.asarray(start), np.asarray(start) + np.cumsum(steps, axis=0)])


def paint(image: Plane, mask: Plane, colour: Sequence[float] | Plane, opacity: float = 1.0) -> Plane:
    """Return ``image`` (height, width, 3) with ``colour`` laid over it where ``mask`` is 1."""
    share = np.asarray(mask * opacity, dtype=np.float32)[..., None]
    painted = np.asarray(colour, dtype=np.float32) - image
    painted *= share
    painted += image
    return np.asarray(painted, dtype=np.float32)


def eight_bit(image: Plane) -> NDArray[np.uint8]:
    """Return an image in [0, 1] as 8-bit values; what lies outside is clipped."""
    return np.asarray(np.rint(np.clip(image, 0.0, 1.0) * 255.0), dtype=np.uint8)


def jpeg_bytes(image: Plane) -> bytes:
    """Return a grey or RGB image in [0, 1] as the bytes of a JPEG file."""
    return _encoded(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])


def png_bytes(image: Plane) -> bytes:
    """Return a grey or RGB image in [0, 1] as the bytes of a PNG file."""
    return _encoded(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 6])


def _encoded(suffix: str, image: Plane, options: list[int]) -> bytes:
    pixels = eight_bit(image)
    if pixels.ndim == 3:
        pixels = pixels[..., ::-1]  # OpenCV stores blue first
    return bytes(cv2.imencode(suffix, np.ascontiguousarray(pixels), options)[1])


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """Return a CSV file with Unix line ends."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def class_counts(n_images: int, shares: Sequence[float]) -> list[int]:
    """Return how many of ``n_images`` each class gets: MIN_PER_CLASS, and the rest by ``shares`` of sum 1.

    Example:
        >>> class_counts(40, [0.75, 0.25])
        [24, 16]
    """
    rest = n_images - MIN_PER_CLASS * len(shares)
    exact = [rest * share for share in shares]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda index: (counts[index] - exact[index], index))
    for index in by_remainder[: rest - sum(counts)]:
        counts[index] += 1
    return [MIN_PER_CLASS + count for count in counts]


def keyed_order(ids: Sequence[str], *names: object) -> list[str]:
    """Return ``ids`` shuffled by :func:`keyed_ranks`."""
    ranks = keyed_ranks(ids, *names)
    return [ids[index] for index in np.argsort(ranks, kind="stable")]
