from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crsbench_assets.images.canonical import CANONICAL_PX, canonical
from crsbench_assets_tests.images.pictures import picture


def test_the_size_of_the_protocol() -> None:
    assert CANONICAL_PX == 448


@pytest.mark.parametrize("shape", [(448, 448), (448, 900), (32, 32), (50, 300), (1, 1)])
def test_nothing_is_enlarged(shape: tuple[int, int]) -> None:
    for n_channels in (1, 3):
        pixels = picture(*shape, n_channels)
        assert canonical(pixels) is pixels


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((600, 450), (597, 448)),  # 600 x 448 / 450 = 597.3
        ((450, 600), (448, 597)),
        ((1024, 1024), (448, 448)),
        ((896, 897), (448, 448)),  # 448.5, to even
        ((896, 899), (448, 450)),  # 449.5, to even
    ],
)
def test_sizes(shape: tuple[int, int], expected: tuple[int, int]) -> None:
    assert canonical(picture(*shape)).shape == (*expected, 3)
    assert canonical(picture(*shape, 1)).shape == expected


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 200), st.integers(1, 40))
def test_shape_and_idempotence(height: int, width: int, px: int) -> None:
    once = canonical(picture(height, width, 1), px)
    short, long = sorted((height, width))
    expected = (short, long) if short <= px else (px, round(Fraction(long * px, short)))
    assert tuple(sorted(once.shape)) == expected
    assert (once.shape[0] <= once.shape[1]) == (height <= width) or once.shape[0] == once.shape[1]
    assert canonical(once, px) is once


def test_the_resize_is_antialiased() -> None:
    # Stripes of one pixel: without antialiasing every second pixel would be picked, all black or all white.
    stripes = np.tile(np.array([0, 255], np.uint8), (900, 450))
    inner = canonical(stripes, 450)[:, 5:-5].astype(int)
    assert np.abs(inner - 127.5).max() <= 1.5


def test_turning_the_image_turns_the_result() -> None:
    # within one grey level: Pillow rounds to 8 bits between its passes along the two sides
    pixels = picture(120, 90)
    turned = canonical(pixels.transpose(1, 0, 2), 40).astype(int)
    assert np.abs(turned - canonical(pixels, 40).transpose(1, 0, 2)).max() <= 1


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((0, 5), np.uint8), np.zeros((5, 5), np.float32), np.zeros((5, 5, 4), np.uint8), np.zeros(5, np.uint8)],
)
def test_what_is_no_image_is_refused(pixels: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected uint8 of shape"):
        canonical(pixels)


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="px is 0"):
        canonical(picture(20, 20), 0)
