"""Images and files that the tests of this folder share."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crsbench_assets.config.randomness import keyed_generator


def picture(height: int, width: int, n_channels: int = 3) -> NDArray[np.uint8]:
    """Smooth shapes with some grain, mid-grey on average, so that no corruption saturates."""
    generator = keyed_generator("test picture", height, width, n_channels)
    coarse = Image.fromarray(generator.integers(40, 216, (7, 7, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64)
    grainy = np.clip(np.rint(smooth + generator.normal(0.0, 6.0, smooth.shape)), 0, 255).astype(np.uint8)
    return grainy if n_channels == 3 else np.ascontiguousarray(grainy[..., 0])


def file_of(image: Image.Image | NDArray[Any], kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()
