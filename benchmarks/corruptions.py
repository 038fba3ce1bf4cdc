"""Fifteen corrupted variants of one image, against the obvious tools.

What lives here: the measurement behind ``crsbench bench corruptions``. What stays out: the corruptions themselves
(``crsbench_assets.images.corruptions``).

Ours decodes one JPEG once and makes all variants of the protocol. The plain peer is a loader that knows one condition
at a time: each variant after its own decode, with NumPy's float normals and Pillow's filters and enhancers. The second
peer is Albumentations, from the decoded image, where it is installed. One thread on each side, alternating in one run,
medians of CPU time.

Run from a clone: ``crsbench bench corruptions``, or ``python -m benchmarks.corruptions``.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter
from rich.console import Console

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.images.canonical import canonical
from crsbench_assets.images.corruptions import (
    BRIGHTNESS_FACTOR,
    CONTRAST_FACTOR,
    GAUSSIAN_KERNEL_PX,
    JPEG_QUALITY,
    KINDS,
    NOISE_SIGMA,
    REFERENCE_PX,
    corrupt,
)
from crsbench_assets.images.decode import decode

IMAGE_PX = 512
REPEATS = 15
SEVERITIES = (1, 3, 5)
BAR = 2.0
"""Least ratio of the plain peer's CPU time to ours."""
ALBUMENTATIONS_BAR = 1.0

Pixels = NDArray[np.uint8]

console = Console(highlight=False, soft_wrap=True)


def run() -> int:
    """Print both figures, the ratio and its bar; return 1 where a bar is missed, else 0."""
    cv2.setNumThreads(1)
    data = photograph()
    sides: dict[str, Callable[[], object]] = {"ours": lambda: ours(data), "plain": lambda: plain(data)}
    if importlib.util.find_spec("albumentations") is None:
        console.print("albumentations: not compared, it is not installed (`pip install albumentations`)")
    else:
        pixels = canonical(decode(data), IMAGE_PX)
        sides["ours, decoded"] = lambda: variants(pixels)
        sides["albumentations, decoded"] = albumentations_side(pixels)
    milliseconds = medians(sides)
    for name, figure in milliseconds.items():
        console.print(f"{name}: {figure:.1f} ms of CPU for {len(KINDS) * len(SEVERITIES)} variants of {IMAGE_PX} px")
    is_met = True
    if "albumentations, decoded" in milliseconds:
        ratio = milliseconds["albumentations, decoded"] / milliseconds["ours, decoded"]
        is_met = ratio >= ALBUMENTATIONS_BAR
        verdict = "met" if is_met else "MISSED"
        console.print(f"corruptions: albumentations takes {ratio:.2f} x, bar {ALBUMENTATIONS_BAR:g} x: {verdict}")
    ratio = milliseconds["plain"] / milliseconds["ours"]
    console.print(
        f"corruptions: a decode and plain tools for each variant take {ratio:.2f} x ours, bar {BAR:g} x: "
        f"{'met' if ratio >= BAR else 'MISSED'}"
    )
    return 0 if is_met and ratio >= BAR else 1


def photograph() -> bytes:
    """Return a colour JPEG with the smooth shapes and fine grain of a photograph, about as large in bytes."""
    generator = keyed_generator("bench corruptions photograph")
    coarse = Image.fromarray(generator.integers(0, 256, (12, 12, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((IMAGE_PX, IMAGE_PX), Image.Resampling.BICUBIC), dtype=np.float64)
    grainy = np.clip(smooth + generator.normal(0.0, 6.0, smooth.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(grainy).save(file, "JPEG", quality=90)
    return file.getvalue()


def ours(data: bytes) -> list[Pixels]:
    """Return every variant after one decode."""
    return variants(canonical(decode(data), IMAGE_PX))


def variants(pixels: Pixels) -> list[Pixels]:
    """Return every variant of one decoded image, by this project."""
    names = ("bench", "photograph")
    return [corrupt(pixels, kind, severity, modality="xray", names=names) for kind in KINDS for severity in SEVERITIES]


def plain(data: bytes) -> list[Pixels]:
    """Return every variant, each after its own decode, by the obvious tools."""
    return [plain_variant(data, kind, severity - 1) for kind in KINDS for severity in SEVERITIES]


def plain_variant(data: bytes, kind: str, index: int) -> Pixels:
    """Return one variant: Pillow's decode, then NumPy or Pillow."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    if kind == "gaussian_noise":
        generator = np.random.default_rng(index)
        values = np.asarray(image) / 255.0
        noisy = values + generator.normal(0.0, NOISE_SIGMA["xray"][index], values.shape)
        return np.rint(np.clip(noisy, 0.0, 1.0) * 255.0).astype(np.uint8)
    if kind == "blur":
        return np.asarray(image.filter(ImageFilter.GaussianBlur(blur_sigma(index))))
    if kind == "brightness":
        return np.asarray(ImageEnhance.Brightness(image).enhance(BRIGHTNESS_FACTOR[index]))
    if kind == "contrast":
        return np.asarray(ImageEnhance.Contrast(image).enhance(CONTRAST_FACTOR["xray"][index]))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG_QUALITY["xray"][index], subsampling=2)
    return np.asarray(Image.open(file))


def blur_sigma(index: int) -> float:
    """Return the Gaussian's sigma in pixels at :data:`IMAGE_PX`."""
    return (0.3 * ((GAUSSIAN_KERNEL_PX[index] - 1) / 2 - 1) + 0.8) * IMAGE_PX / REFERENCE_PX


def albumentations_side(pixels: Pixels) -> Callable[[], object]:
    """Return a function that makes every variant of one decoded image by Albumentations."""
    albumentations: Any = importlib.import_module("albumentations")  # untyped, and not of the project's environment
    transforms: list[Any] = []
    for index in (severity - 1 for severity in SEVERITIES):
        sigma, blur = NOISE_SIGMA["xray"][index], blur_sigma(index)
        brightness, contrast = BRIGHTNESS_FACTOR[index] - 1.0, CONTRAST_FACTOR["xray"][index] - 1.0
        quality = JPEG_QUALITY["xray"][index]
        transforms += [
            albumentations.GaussNoise(std_range=(sigma, sigma), p=1.0),
            albumentations.GaussianBlur(blur_limit=0, sigma_limit=(blur, blur), p=1.0),
            albumentations.RandomBrightnessContrast((brightness, brightness), (0.0, 0.0), p=1.0),
            albumentations.RandomBrightnessContrast((0.0, 0.0), (contrast, contrast), p=1.0),
            albumentations.ImageCompression(quality_range=(quality, quality), p=1.0),
        ]
    return lambda: [transform(image=pixels)["image"] for transform in transforms]


def medians(sides: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median CPU time of each side in milliseconds; the sides alternate, after one unmeasured turn."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(REPEATS + 1):
        for name, side in sides.items():
            started = time.process_time()
            side()
            if repeat:
                times[name].append((time.process_time() - started) * 1000.0)
    return {name: statistics.median(values) for name, values in times.items()}


if __name__ == "__main__":
    sys.exit(run())
