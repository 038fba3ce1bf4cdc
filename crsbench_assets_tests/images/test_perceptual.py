"""The perceptual hash: the same bits as the library whose name it has, and the same picture after what changes none."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.data.demo.write import DEMO_COHORTS, cohort_files
from crsbench_assets.images.decode import decode
from crsbench_assets.images.perceptual import THUMBNAIL_PX, perceptual_hashes, thumbnail

Pixels = NDArray[np.uint8]


def noise(*shape: int) -> Pixels:
    return keyed_generator("perceptual", *shape).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(scope="module")
def thumbnails() -> Pixels:
    """Thumbnails of demo images, of noise, and of two flat halves, where many coefficients tie with the median."""
    drawn = [
        thumbnail(decode(draw()))
        for cohort in DEMO_COHORTS[:3]
        for path, draw in list(cohort_files(cohort, n_images=96).images.items())[:40]
        if path.endswith((".jpg", ".png"))
    ]
    halves = np.zeros((1, THUMBNAIL_PX, THUMBNAIL_PX), dtype=np.uint8)
    halves[:, :, THUMBNAIL_PX // 2 :] = 255
    return np.concatenate([np.stack(drawn), noise(300, THUMBNAIL_PX, THUMBNAIL_PX), halves])


def test_the_bits_are_those_of_imagehash(thumbnails: Pixels) -> None:
    imagehash = pytest.importorskip("imagehash")
    assert len(thumbnails) > 400, "more than one block"
    theirs = [str(imagehash.phash(Image.fromarray(one))) for one in thumbnails]
    assert [f"{value:016x}" for value in perceptual_hashes(thumbnails).tolist()] == theirs


def test_each_image_is_hashed_by_itself(thumbnails: Pixels) -> None:
    together = perceptual_hashes(thumbnails)
    alone = np.concatenate([perceptual_hashes(one[None]) for one in thumbnails])
    assert np.array_equal(together, alone)
    assert np.array_equal(perceptual_hashes(thumbnails[::-1]), together[::-1])
    assert perceptual_hashes(thumbnails[:0]).shape == (0,)


def test_a_thumbnail_is_the_mean_of_what_each_pixel_covers() -> None:
    # 64 x 96 pixels: each of the 32 x 32 covers 2 x 3 equal ones
    small = noise(32, 32)
    assert np.array_equal(thumbnail(np.kron(small, np.ones((2, 3), dtype=np.uint8))), small)
    assert np.array_equal(thumbnail(np.repeat(small[:, :, None], 3, axis=2)), small), "grey in three channels"


def test_colours_become_their_luma() -> None:
    red = np.zeros((40, 40, 3), dtype=np.uint8)
    red[:, :, 0] = 255
    assert set(thumbnail(red).ravel().tolist()) == {round(0.299 * 255)}


@pytest.mark.parametrize("size", [(16, 16), (28, 28), (31, 400), (3000, 2000)])
def test_every_size_has_a_thumbnail(size: tuple[int, int]) -> None:
    assert thumbnail(noise(*size)).shape == (THUMBNAIL_PX, THUMBNAIL_PX)
