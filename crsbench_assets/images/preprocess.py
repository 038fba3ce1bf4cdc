"""From the canonical image to the input of one encoder, as its card says.

What lives here: channels, resize, crop and normalisation. What stays out: the cards (``config.cards``), batches and
the networks (``embeddings``, ``encoders``).
Source: protocol page, section 3 (all encoders start from one canonical image); each step does what torchvision's
transforms on Pillow images do, which is what the encoders were published with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crsbench_assets.config.cards import Preprocessing
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.images.canonical import check_pixels

_RESAMPLING = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def prepare(pixels: NDArray[np.uint8], spec: Preprocessing) -> NDArray[np.float32]:
    """Return the tensor that an encoder reads: channels, resize, crop, value range, normalisation, in this order.

    - Channels: ``rgb`` repeats grey three times; ``gray_to_rgb`` reduces RGB to luma (Pillow's L) first.
    - Resize: ``shortest_side`` to ``resize_px``, the other side floor(resize_px * long / short) as torchvision does;
      ``squash`` to a square of ``resize_px``; ``pad_square`` so that the longest side is ``resize_px`` (the other one
      rounded down, at least 1), centred on black. With ``antialias`` by Pillow on 8 bits; without by
      ``torch.nn.functional.interpolate`` (``align_corners=False``) on floats, whose bicubic overshoot is kept.
    - ``then_interpolation``: the square of ``resize_px`` is resized once more, to ``input_px``, in the second way.
    - Crop: ``center`` cuts ``input_px`` from the middle, offsets (side - input_px) / 2 rounded half to even; a side
      that is shorter is padded with black, the odd pixel at its end.
    - Values: divided by 255 for ``0_1``, as they are for ``0_255``; then (x - mean) / std per channel, in float32.

    Args:
        pixels: canonical image, clean or corrupted, uint8 of shape (h, w) or (h, w, 3).
        spec: the card's ``preprocessing``.

    Returns:
        float32 array of shape (3, input_px, input_px), C-contiguous, finite.

    Raises:
        ValueError: ``pixels`` is no image.
        ConfigError: the spec cannot lead to a square of ``input_px``, has no interpolation of that name without
            antialiasing, or divides by zero.

    Example:
        >>> spec = Preprocessing(
        ...     input_px=4, resize_px=4, resize_mode="squash", crop="none", interpolation="bilinear", antialias=True,
        ...     mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5),
        ... )
        >>> prepare(np.full((20, 30), 255, np.uint8), spec)[0, 0].tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    check_pixels(pixels)
    _check(spec)
    if spec.channels == "gray_to_rgb" and pixels.ndim == 3:
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))
    resized = _resized(pixels, _resized_shape(pixels.shape[0], pixels.shape[1], spec), spec)
    square = _centred(resized, spec.resize_px) if spec.resize_mode == "pad_square" else resized
    if spec.then_interpolation is not None:
        square = _interpolated(square, (spec.input_px, spec.input_px), spec.then_interpolation)
    framed = _centred(square, spec.input_px) if spec.crop == "center" else square
    values = np.empty((3, spec.input_px, spec.input_px), dtype=np.float32)
    values[:] = framed.transpose(2, 0, 1) if framed.ndim == 3 else framed
    if spec.value_range == "0_1":
        values /= np.float32(255.0)
    values -= np.asarray(spec.mean, dtype=np.float32)[:, None, None]
    values /= np.asarray(spec.std, dtype=np.float32)[:, None, None]
    return values


def _check(spec: Preprocessing) -> None:
    is_square = spec.resize_mode != "shortest_side"
    if spec.crop == "none" and not (is_square and (spec.then_interpolation or spec.resize_px == spec.input_px)):
        raise ConfigError(
            f"preprocessing without a crop resizes to {spec.resize_px} ({spec.resize_mode}), which is no square of "
            f"{spec.input_px} pixels. Set `crop: center`, or a square resize to `input_px`."
        )
    if not spec.antialias and spec.interpolation == "lanczos":
        raise ConfigError("interpolation lanczos exists with antialiasing only. Set `antialias: true`.")
    if min(spec.std) <= 0.0:
        raise ConfigError(f"preprocessing.std is {spec.std}, expected three numbers above 0.")


def _resized_shape(height: int, width: int, spec: Preprocessing) -> tuple[int, int]:
    px, short, long = spec.resize_px, min(height, width), max(height, width)
    if spec.resize_mode == "squash":
        return px, px
    ours, other = (px, px * long // short) if spec.resize_mode == "shortest_side" else (max(1, px * short // long), px)
    return (ours, other) if height <= width else (other, ours)


def _resized(pixels: NDArray[np.uint8], shape: tuple[int, int], spec: Preprocessing) -> NDArray[Any]:
    if pixels.shape[:2] == shape:
        return pixels
    if spec.antialias:
        return np.asarray(Image.fromarray(pixels).resize(shape[::-1], _RESAMPLING[spec.interpolation]))
    return _interpolated(pixels, shape, spec.interpolation)


def _interpolated(pixels: NDArray[Any], shape: tuple[int, int], interpolation: str) -> NDArray[Any]:
    """Return pixels as floats, resized without antialiasing."""
    import torch  # takes seconds, and few cards need it here

    channels = pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)
    tensor = torch.from_numpy(np.ascontiguousarray(channels, dtype=np.float32))[None]
    resized = torch.nn.functional.interpolate(
        tensor, size=shape, mode=interpolation, align_corners=False, antialias=False
    )[0].numpy()
    return np.asarray(resized.transpose(1, 2, 0) if pixels.ndim == 3 else resized[0])


def _centred(image: NDArray[Any], px: int) -> NDArray[Any]:
    """The middle ``px`` x ``px`` of an image, on black where it is smaller (torchvision's ``center_crop``)."""
    height, width = image.shape[:2]
    missing = max(0, px - height), max(0, px - width)
    if any(missing):
        margins = [(m // 2, m - m // 2) for m in missing] + [(0, 0)] * (image.ndim - 2)
        image = np.pad(image, margins)
    top, left = (round((side - px) / 2.0) for side in image.shape[:2])
    return image[top : top + px, left : left + px]
