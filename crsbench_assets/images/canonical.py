"""The canonical image: the one 8-bit image that every encoder shares.

What lives here: its size and the resize that leads to it. What stays out: decoding (``decode``), what is done to it
(``corruptions``), and each encoder's own size (``preprocess``).
Source: protocol page, section 3: corruptions act on one canonical image and clean passes through the same, so that
only the corruption differs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CANONICAL_PX = 448
"""Shortest side of the canonical image of protocol ``crs-1``, in pixels."""


def check_pixels(pixels: NDArray[np.uint8]) -> None:
    """Check that an array is an image of the benchmark.

    Raises:
        ValueError: ``pixels`` is not uint8 of shape (h, w) or (h, w, 3), or has no pixels.
    """
    is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
    if pixels.dtype != np.uint8 or not is_image or not pixels.size:
        raise ValueError(f"expected uint8 of shape (h, w) or (h, w, 3), found {pixels.dtype} of shape {pixels.shape}")


def canonical(pixels: NDArray[np.uint8], px: int = CANONICAL_PX) -> NDArray[np.uint8]:
    """Return the image with its shortest side at most ``px``.

    The shortest side becomes ``px`` and the other one long * px / short, rounded half to even; bicubic, antialiased
    (Pillow's kernel, widened by the reduction, without a prior box reduction). Nothing is enlarged: an image that is
    small enough is returned as it is. So the function is idempotent.

    Args:
        pixels: uint8 array of shape (h, w) or (h, w, 3).
        px: length of the shortest side in pixels, at least 1.

    Returns:
        uint8 array of shape (h', w') or (h', w', 3); ``pixels`` itself where its shortest side is at most ``px``.

    Raises:
        ValueError: ``pixels`` is no image, or ``px`` is below 1.

    Example:
        >>> canonical(np.zeros((600, 451, 3), np.uint8)).shape
        (596, 448, 3)
    """
    check_pixels(pixels)
    if px < 1:
        raise ValueError(f"px is {px}, expected at least 1")
    height, width = pixels.shape[:2]
    short = min(height, width)
    if short <= px:
        return pixels
    size = (round(width * px / short), round(height * px / short))
    return np.array(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))
