"""A small grey picture of an image, and a hash of it that survives re-encoding and resizing.

What lives here: the thumbnail that two images are compared on, and its perceptual hash. What stays out: who is compared
with whom, and what follows from it (``data.duplicates``).
Source: Zauner 2010, "Implementation and benchmarking of perceptual image hash functions", as the library imagehash 4.3
has it (``imagehash.phash``: the 8 x 8 lowest frequencies of a 32 x 32 image); a test asks the library for the same
bits. It hashes one image per call, which takes a third of the time that a small file takes to decode; here many are
hashed at once. Protocol page, section 2.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct

THUMBNAIL_PX = 32
"""Side of the thumbnail; the aspect ratio is not kept."""

HASH_SIDE = 8
"""Low frequencies along each side; their product is the number of bits."""

_BLOCK = 256
"""Thumbnails that are transformed at once: 2 MB, whatever their number."""


def thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an image as 32 x 32 grey pixels, each the mean of what it covers.

    Args:
        pixels: uint8 (h, w) grey or (h, w, 3) RGB; grey is ITU-R 601 luma.
    """
    cv2.setNumThreads(1)  # workers and threads are the caller's; more here would only spin
    grey = pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(grey, (THUMBNAIL_PX, THUMBNAIL_PX), interpolation=cv2.INTER_AREA)
    return np.asarray(small, dtype=np.uint8)


def perceptual_hashes(thumbnails: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the 64-bit perceptual hash of each thumbnail.

    A bit is 1 where a coefficient of the discrete cosine transform lies above the median of the 64 lowest. The first
    bit, of the constant part, is the most significant.

    Args:
        thumbnails: uint8 (n, 32, 32); n may be 0.

    Returns:
        uint64 (n,).

    Example:
        >>> ramp = np.tile(np.arange(32, dtype=np.uint8), (1, 32, 1))
        >>> bool(perceptual_hashes(ramp)[0] == perceptual_hashes(ramp + 20)[0])
        True
    """
    bits = np.zeros((len(thumbnails), HASH_SIDE**2), dtype=np.bool_)
    for start in range(0, len(thumbnails), _BLOCK):
        block = thumbnails[start : start + _BLOCK].astype(np.float64)
        low = dct(dct(block, axis=1), axis=2)[:, :HASH_SIDE, :HASH_SIDE].reshape(len(block), -1)
        bits[start : start + _BLOCK] = low > np.median(low, axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(">u8")[:, 0].astype(np.uint64)
