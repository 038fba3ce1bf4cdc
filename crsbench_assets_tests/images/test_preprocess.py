from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import timm.data
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from crsbench_assets.config.cards import Preprocessing
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.images.preprocess import prepare
from crsbench_assets_tests.images.pictures import picture

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHAPES = [(33, 47), (448, 597), (50, 300), (97, 61), (20, 31)]
MODES = {name: InterpolationMode(name) for name in ("bilinear", "bicubic", "lanczos")}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def spec(**fields: Any) -> Preprocessing:
    defaults = {
        "input_px": 96, "resize_px": 107, "resize_mode": "shortest_side", "crop": "center",
        "interpolation": "bicubic", "antialias": True, "mean": MEAN, "std": STD,
    }  # fmt: skip
    return Preprocessing.model_validate(defaults | fields)


def plain(**fields: Any) -> Preprocessing:
    """A spec without normalisation, on 0 to 255: what comes out are grey levels."""
    return spec(value_range="0_255", mean=(0, 0, 0), std=(1, 1, 1), **fields)


def rgb(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels).convert("RGB")


def by_torchvision(image: Image.Image, resize: v2.Transform, crop_px: int) -> np.ndarray:
    steps = [resize, v2.CenterCrop(crop_px), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    return np.asarray(v2.Compose([*steps, v2.Normalize(MEAN, STD)])(image))


@pytest.mark.parametrize("n_channels", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("input_px", "resize_px"), [(97, 97), (96, 256), (224, 248)])
def test_shortest_side_is_torchvision_and_timm(
    shape: tuple[int, int], n_channels: int, input_px: int, resize_px: int
) -> None:
    pixels = picture(*shape, n_channels)
    for name, mode in MODES.items():
        found = prepare(pixels, spec(input_px=input_px, resize_px=resize_px, interpolation=name))
        assert (found.dtype, found.shape) == (np.float32, (3, input_px, input_px)) and found.flags.c_contiguous
        expected = by_torchvision(rgb(pixels), v2.Resize(resize_px, mode, antialias=True), input_px)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        transform = timm.data.create_transform(
            (3, input_px, input_px), is_training=False, interpolation=name, mean=MEAN, std=STD,
            crop_pct=input_px / (resize_px + 0.5),  # timm rounds input_px / crop_pct down
        )  # fmt: skip
        np.testing.assert_allclose(found, np.asarray(transform(rgb(pixels))), atol=1e-6)


@pytest.mark.parametrize("n_channels", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_squash_is_torchvision_and_timm(shape: tuple[int, int], n_channels: int) -> None:
    pixels = picture(*shape, n_channels)
    for name, mode in MODES.items():
        found = prepare(pixels, spec(resize_px=96, resize_mode="squash", crop="none", interpolation=name))
        expected = by_torchvision(rgb(pixels), v2.Resize((96, 96), mode, antialias=True), 96)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        transform = timm.data.create_transform(
            (3, 96, 96), is_training=False, interpolation=name, mean=MEAN, std=STD, crop_pct=1.0, crop_mode="squash"
        )
        np.testing.assert_allclose(found, np.asarray(transform(rgb(pixels))), atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_pad_square_is_a_resize_pasted_on_black(shape: tuple[int, int]) -> None:
    pixels = picture(*shape)
    height, width = shape
    px = 96
    size = (px * width // max(shape), px * height // max(shape))
    black = Image.new("RGB", (px, px))
    black.paste(rgb(pixels).resize(size, Image.Resampling.LANCZOS), ((px - size[0]) // 2, (px - size[1]) // 2))
    expected = (np.asarray(black, np.float32).transpose(2, 0, 1) / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(
        STD, (3, 1, 1)
    )
    found = prepare(pixels, spec(resize_px=px, resize_mode="pad_square", crop="none", interpolation="lanczos"))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("n_channels", [1, 3])
@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", SHAPES)
def test_without_antialiasing_it_is_torch(shape: tuple[int, int], name: str, n_channels: int) -> None:
    pixels = picture(*shape, n_channels)
    tensor = torch.from_numpy(np.array(rgb(pixels), np.float32).transpose(2, 0, 1).copy()) / 255
    for fields, size in [
        ({"resize_mode": "squash", "crop": "none", "resize_px": 96}, [96, 96]),
        ({"resize_px": 107}, [107]),
    ]:
        resize = v2.Resize(size, MODES[name], antialias=False)
        expected = v2.Compose([resize, v2.CenterCrop(96), v2.Normalize(MEAN, STD)])(tensor)
        found = prepare(pixels, spec(antialias=False, interpolation=name, **fields))
        np.testing.assert_allclose(found, np.asarray(expected), atol=3e-6)  # values reach 2.6, sums are of 255 or of 1


def test_antialiasing_makes_a_difference() -> None:
    stripes = np.tile(np.array([0, 255], np.uint8), (192, 96))
    fields = {"resize_px": 64, "input_px": 64, "interpolation": "bilinear"}
    smooth = prepare(stripes, plain(antialias=True, **fields))[0, :, 4:-4]
    rough = prepare(stripes, plain(antialias=False, **fields))[0, :, 4:-4]
    assert smooth.std() < rough.std() / 2


def test_channels() -> None:
    # luma of (200, 100, 50) is 124.2
    colour, grey = np.full((20, 20, 3), (200, 100, 50), np.uint8), np.full((20, 20), 124, np.uint8)
    fields = {"input_px": 20, "resize_px": 20}
    assert prepare(colour, plain(**fields))[:, 0, 0].tolist() == [200, 100, 50]
    assert prepare(grey, plain(**fields))[:, 0, 0].tolist() == [124, 124, 124]
    for pixels in (colour, grey):
        found = prepare(pixels, plain(channels="gray_to_rgb", **fields))
        assert found[:, 0, 0].tolist() == [124, 124, 124]


def test_luma_comes_before_the_resize() -> None:
    pixels = picture(150, 130)
    luma = np.asarray(Image.fromarray(pixels).convert("L"))
    np.testing.assert_array_equal(prepare(pixels, spec(channels="gray_to_rgb")), prepare(luma, spec()))


def test_values_by_hand() -> None:
    # 255 on 0 to 1: (1 - .5) / .25 = 2; on 0 to 255: (255 - 101) / 77 = 2; 0: -2 and -101 / 77
    white, black = np.full((20, 20), 255, np.uint8), np.zeros((20, 20), np.uint8)
    fields = {"input_px": 20, "resize_px": 20}
    unit = spec(mean=(0.5,) * 3, std=(0.25,) * 3, **fields)
    assert np.unique(prepare(white, unit)).tolist() == [2.0]
    assert np.unique(prepare(black, unit)).tolist() == [-2.0]
    levels = spec(value_range="0_255", mean=(101,) * 3, std=(77,) * 3, **fields)
    assert np.unique(prepare(white, levels)).tolist() == [2.0]
    assert np.unique(prepare(black, levels)).tolist() == [np.float32(-101) / np.float32(77)]


def test_each_channel_has_its_own_mean_and_deviation() -> None:
    found = prepare(np.zeros((20, 20), np.uint8), spec())[:, 0, 0]
    np.testing.assert_allclose(found, -np.array(MEAN) / np.array(STD), rtol=1e-6)


def test_a_crop_larger_than_the_image_pads_with_black() -> None:
    # 3 rows in a frame of 6: one above, two below
    found = prepare(np.full((3, 3), 9, np.uint8), plain(input_px=6, resize_px=3))[0]
    assert found[:, 2].tolist() == [0, 9, 9, 9, 0, 0]
    assert found[2].tolist() == [0, 9, 9, 9, 0, 0]


def test_offsets_of_the_crop_are_rounded_to_even() -> None:
    columns = np.tile(np.arange(7, dtype=np.uint8), (7, 1))  # (7 - 4) / 2 = 1.5, to 2; (7 - 2) / 2 = 2.5, to 2
    assert prepare(columns, plain(input_px=4, resize_px=7))[0, 0].tolist() == [2, 3, 4, 5]
    assert prepare(columns, plain(input_px=2, resize_px=7))[0, 0].tolist() == [2, 3]


def test_a_sliver_keeps_a_pixel() -> None:
    found = prepare(np.full((1, 500), 90, np.uint8), plain(resize_px=96, resize_mode="pad_square", crop="none"))[0]
    assert np.flatnonzero(found.any(axis=1)).tolist() == [47]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 60), st.integers(1, 60), st.sampled_from([1, 3]), st.integers(1, 40), st.integers(1, 40),
    st.sampled_from(["shortest_side", "squash", "pad_square"]), st.booleans(),
)  # fmt: skip
def test_any_size_gives_the_input_of_the_card(
    height: int, width: int, n_channels: int, resize_px: int, input_px: int, mode: str, antialias: bool
) -> None:
    pixels = picture(height, width, n_channels)
    before = pixels.copy()
    found = prepare(pixels, spec(input_px=input_px, resize_px=resize_px, resize_mode=mode, antialias=antialias))
    assert (found.dtype, found.shape) == (np.float32, (3, input_px, input_px))
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(pixels, before)


@pytest.mark.parametrize(
    "fields",
    [
        {"crop": "none"},
        {"crop": "none", "resize_px": 96},
        {"crop": "none", "resize_mode": "pad_square", "resize_px": 320, "input_px": 224},
        {"antialias": False, "interpolation": "lanczos"},
        {"std": (0.2, 0.0, 0.2)},
    ],
)
def test_a_spec_that_cannot_be_followed_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"preprocessing|interpolation"):
        prepare(picture(30, 40), spec(**fields))


def test_what_is_no_image_is_refused() -> None:
    for pixels in (np.full((20, 20), np.nan), np.zeros((0, 20), np.uint8), np.zeros((20, 20, 4), np.uint8)):
        with pytest.raises(ValueError, match="expected uint8 of shape"):
            prepare(pixels, spec())
