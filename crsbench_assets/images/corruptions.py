"""The five corruptions of the protocol, on the canonical image.

What lives here: five kinds at five severities with parameters per modality, keyed by names. What stays out: which
kinds and severities a protocol asks for (``config.protocol``), and the share of images that a condition leaves
unchanged (``embeddings``).
Source: protocol page, section 3. Parameters: MedMNIST-C (Di Salvo et al., 2024, arXiv:2406.17536), for images of 224
pixels; the defocus disk: Hendrycks & Dietterich, 2019, ICLR. Where neither says how a step is carried out, the choice
is ours and stands in :func:`corrupt`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.special import ndtri

from crsbench_assets.config.ids import CLEAN, corruption_condition
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.images.canonical import check_pixels

Modality = Literal["dermoscopy", "fundus", "xray", "other"]
Pixels = NDArray[np.uint8]

KINDS = ("gaussian_noise", "blur", "brightness", "contrast", "jpeg")
SEVERITIES = (1, 2, 3, 4, 5)

REFERENCE_PX = 224
"""Shortest side for which the parameters were stated; lengths grow with the image's shortest side over this."""

NOISE_SIGMA: dict[Modality, tuple[float, ...]] = {
    "dermoscopy": (0.04, 0.08, 0.12, 0.18, 0.26),
    "fundus": (0.04, 0.08, 0.12, 0.16, 0.20),
    "xray": (0.04, 0.08, 0.12, 0.18, 0.26),
}
"""Standard deviation on [0, 1]."""

GAUSSIAN_KERNEL_PX = (3, 5, 7, 9, 11)
"""Width of the kernel that stands for the sigma of the Gaussian blur."""

DEFOCUS_PX = ((4.0, 0.1), (5.0, 0.2), (6.0, 0.3), (7.0, 0.4), (8.0, 0.5))
"""Radius of the disk and sigma of its smoothing."""

BRIGHTNESS_FACTOR = (0.9, 0.8, 0.7, 0.6, 0.5)

CONTRAST_FACTOR: dict[Modality, tuple[float, ...]] = {
    "dermoscopy": (0.8, 0.7, 0.6, 0.5, 0.4),
    "fundus": (0.9, 0.8, 0.7, 0.6, 0.4),
    "xray": (0.9, 0.8, 0.7, 0.6, 0.4),
}

JPEG_QUALITY: dict[Modality, tuple[int, ...]] = {
    "dermoscopy": (30, 20, 15, 10, 7),
    "fundus": (30, 25, 20, 10, 5),
    "xray": (50, 30, 15, 10, 7),
}

_CONDITIONS = {
    corruption_condition(kind, severity): (kind, severity) for kind in KINDS for severity in (0, *SEVERITIES)
}
_BORDER = cv2.BORDER_REFLECT  # (d c b a | a b c d | d c b a), which scipy calls reflect
_LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, as Pillow reduces RGB to L
_TABLE_SIZE = 2**16
_SUBSAMPLES = 32


def corrupt(pixels: Pixels, kind: str, severity: int, *, modality: Modality, names: tuple[str, ...]) -> Pixels:
    """Return one image under one corruption.

    scale = shortest side / 224. ``other`` takes the parameters of ``xray``, none of which rests on colour.

    - ``gaussian_noise``: x + 255 sigma z with z standard normal, independent for each pixel and channel, clipped, then
      rounded half to even. z is the 16-bit number of the keyed generator's raw stream, put through a table of the
      65,536 quantiles (i + 1/2) / 65,536 of the normal: that stream is fixed for ever, NumPy's normals are not (NEP
      19). Against an exact normal its standard deviation is smaller by 1e-5 and it ends at 4.32 sigma.
    - ``blur`` for X-ray and other: Gaussian, sigma = (0.3 ((k - 1) / 2 - 1) + 0.8) scale for the kernel widths k = 3,
      5, 7, 9, 11, cut at 3 sigma; in the 8-bit fixed point of OpenCV, within 2 grey levels of the exact convolution.
    - ``blur`` for dermoscopy and fundus: defocus, a disk whose radius and smoothing sigma grow with scale. A radius is
      no whole number, so a pixel's weight is the share of its area inside the disk (32 x 32 subsamples), where the
      source takes pixels as in or out. Below half a pixel the kernel is one pixel and the image stays as it is.
    - ``brightness``: x times .9, .8, .7, .6, .5, rounded half to even.
    - ``contrast``: g + f (x - g) with g the unrounded mean of the luma over the image, one for all channels; rounded
      half to even.
    - ``jpeg``: encoded by Pillow at a quality, chroma 4:2:0, and decoded. The bytes depend on the codec's version.

    Both blurs reflect the image at its border with the outermost pixel repeated (scipy's ``reflect``). A constant
    image stays as it is under ``blur`` and ``contrast``, a black one also under ``brightness``.

    Args:
        pixels: canonical image, uint8 of shape (h, w) or (h, w, 3).
        kind: one of :data:`KINDS`.
        severity: 0 to 5; 0 is the identity.
        modality: of the dataset; chooses the parameters.
        names: what the noise is keyed by beside kind and severity: the source's id and the image's id.

    Returns:
        uint8 array of the same shape; ``pixels`` itself at severity 0.

    Raises:
        ValueError: ``pixels`` is no image, or kind or severity is unknown.

    Example:
        >>> image = np.full((32, 32), 200, np.uint8)
        >>> int(corrupt(image, "brightness", 5, modality="xray", names=("demo", "image-1"))[0, 0])
        100
    """
    check_pixels(pixels)
    if kind not in KINDS or severity not in (0, *SEVERITIES):
        raise ValueError(f"no corruption {kind!r} of severity {severity}: kinds are {', '.join(KINDS)}, severities 0-5")
    if severity == 0:
        return pixels
    parameters: Modality = "xray" if modality == "other" else modality
    return _CORRUPTIONS[kind](np.ascontiguousarray(pixels), severity - 1, parameters, (*names, kind, severity))


def corrupt_condition(pixels: Pixels, condition_id: str, *, modality: Modality, names: tuple[str, ...]) -> Pixels:
    """Return one image under a condition: ``clean`` (the identity) or ``<kind>-s<severity>``.

    Args:
        pixels: canonical image, uint8 of shape (h, w) or (h, w, 3).
        condition_id: as :func:`crsbench_assets.config.ids.corruption_condition` writes it.
        modality: of the dataset.
        names: the source's id and the image's id.

    Returns:
        uint8 array of the same shape; ``pixels`` itself where the condition is the identity.

    Raises:
        ValueError: the condition is neither; a shift is another source's clean images, not a change of these.

    Example:
        >>> image = np.full((32, 32), 200, np.uint8)
        >>> corrupt_condition(image, "clean", modality="xray", names=("demo", "image-1")) is image
        True
    """
    if condition_id == CLEAN:
        check_pixels(pixels)
        return pixels
    if condition_id not in _CONDITIONS:
        raise ValueError(f"{condition_id!r} is no condition of one image: expected {CLEAN!r} or <kind>-s<severity>")
    kind, severity = _CONDITIONS[condition_id]
    return corrupt(pixels, kind, severity, modality=modality, names=names)


@lru_cache(maxsize=len(SEVERITIES) * len(NOISE_SIGMA))
def noise_table(sigma: float) -> NDArray[np.int16]:
    """Return 65,536 equally likely values of the noise in grey levels: rounded quantiles of a normal.

    Grey levels are whole numbers, so rounding the noise first and clipping the sum afterwards gives the same as
    clipping and then rounding; no quantile of the parameters in use lies at a half, where the two could differ.

    Args:
        sigma: standard deviation on [0, 1], above 0.

    Returns:
        int16 array of shape (65,536,), ascending and symmetric, read-only.
    """
    quantiles = ndtri((np.arange(_TABLE_SIZE) + 0.5) / _TABLE_SIZE)
    table: NDArray[np.int16] = np.rint(255.0 * sigma * quantiles).astype(np.int16)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=64)
def disk_kernel(radius_px: float, smoothing_px: float) -> NDArray[np.float32]:
    """Return the point spread of a defocused lens: a disk, smoothed at its edge, weights summing to 1.

    Args:
        radius_px: radius of the disk in pixels, above 0.
        smoothing_px: standard deviation of the smoothing in pixels, at least 0.

    Returns:
        float32 array of shape (2 r + 1, 2 r + 1), symmetric, read-only; of shape (1, 1) where the disk and its
        smoothing lie within one pixel.

    Example:
        >>> disk_kernel(0.5, 0.0).shape
        (1, 1)
    """
    reach = max(0, math.ceil(radius_px + 3.0 * smoothing_px - 0.5))  # pixel j covers (j - 1/2, j + 1/2)
    centres = (np.arange((2 * reach + 1) * _SUBSAMPLES) + 0.5) / _SUBSAMPLES - (reach + 0.5)
    is_inside = centres**2 + centres[:, None] ** 2 <= radius_px**2
    area = is_inside.reshape(2 * reach + 1, _SUBSAMPLES, 2 * reach + 1, _SUBSAMPLES).sum(axis=(1, 3)).astype(np.float64)
    smooth = gaussian_filter(area, smoothing_px, mode="constant")
    kernel: NDArray[np.float32] = (smooth / smooth.sum()).astype(np.float32)
    kernel.flags.writeable = False
    return kernel


def _gaussian_noise(pixels: Pixels, index: int, modality: Modality, names: tuple[object, ...]) -> Pixels:
    generator = keyed_generator("corruption", *names)
    raw = generator.bit_generator.random_raw(-(-pixels.size // 4))
    numbers = raw.astype("<u8", copy=False).view("<u2")[: pixels.size]
    noise = np.take(noise_table(NOISE_SIGMA[modality][index]), numbers).reshape(pixels.shape)
    return _pixels(cv2.add(pixels, noise, dtype=cv2.CV_8U))


def _blur(pixels: Pixels, index: int, modality: Modality, names: tuple[object, ...]) -> Pixels:
    scale = min(pixels.shape[:2]) / REFERENCE_PX
    cv2.setNumThreads(1)  # workers and threads are the caller's; more here would only spin
    if modality == "xray":
        sigma = (0.3 * ((GAUSSIAN_KERNEL_PX[index] - 1) / 2 - 1) + 0.8) * scale
        width = 2 * math.ceil(3.0 * sigma) + 1
        return _pixels(cv2.GaussianBlur(pixels, (width, width), sigma, borderType=_BORDER))
    radius, smoothing = DEFOCUS_PX[index]
    return _pixels(cv2.filter2D(pixels, -1, disk_kernel(radius * scale, smoothing * scale), borderType=_BORDER))


def _brightness(pixels: Pixels, index: int, modality: Modality, names: tuple[object, ...]) -> Pixels:
    return _mapped(pixels, np.arange(256) * BRIGHTNESS_FACTOR[index])


def _contrast(pixels: Pixels, index: int, modality: Modality, names: tuple[object, ...]) -> Pixels:
    factor = CONTRAST_FACTOR[modality][index]
    means = np.array(cv2.mean(pixels)[:3])
    grey = float(means @ _LUMA) if pixels.ndim == 3 else float(means[0])
    return _mapped(pixels, grey + factor * (np.arange(256) - grey))


def _jpeg(pixels: Pixels, index: int, modality: Modality, names: tuple[object, ...]) -> Pixels:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=JPEG_QUALITY[modality][index], subsampling=2)
    with Image.open(file) as image:
        return np.array(image)


def _mapped(pixels: Pixels, levels: NDArray[np.floating]) -> Pixels:
    """The image with grey level i replaced by ``levels[i]``, rounded half to even."""
    return _pixels(cv2.LUT(pixels, np.clip(np.rint(levels), 0, 255).astype(np.uint8)))


def _pixels(image: object) -> Pixels:
    return np.asarray(image, dtype=np.uint8)


_CORRUPTIONS: dict[str, Callable[[Pixels, int, Modality, tuple[object, ...]], Pixels]] = {
    "gaussian_noise": _gaussian_noise,
    "blur": _blur,
    "brightness": _brightness,
    "contrast": _contrast,
    "jpeg": _jpeg,
}
