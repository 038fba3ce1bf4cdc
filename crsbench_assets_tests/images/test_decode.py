from __future__ import annotations

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile

from crsbench_assets.images import decode as decode_module
from crsbench_assets.images.decode import MIN_SIDE_PX, ImageFault, decode, is_constant
from crsbench_assets_tests.images.pictures import file_of, picture

GREY, COLOUR = picture(32, 40, 1), picture(32, 40)


def reason_of(data: bytes) -> str:
    with pytest.raises(ImageFault) as caught:
        decode(data)
    assert caught.value.detail
    return caught.value.reason


def solid(mode: str, colour: int | tuple[int, ...]) -> Image.Image:
    return Image.new(mode, (20, 20), colour)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "PPM"])
def test_grey_and_rgb_are_kept(kind: str) -> None:
    for pixels in (GREY, COLOUR):
        found = decode(file_of(pixels, kind))
        assert found.dtype == np.uint8 and found.flags.c_contiguous
        np.testing.assert_array_equal(found, pixels)


def test_jpeg_is_what_pillow_decodes() -> None:
    data = file_of(COLOUR, "JPEG")
    np.testing.assert_array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data))))


def test_one_bit_is_black_or_white() -> None:
    bits = GREY > 128
    np.testing.assert_array_equal(decode(file_of(Image.fromarray(bits))), bits * np.uint8(255))


def test_sixteen_bit_grey_is_mapped_by_its_depth() -> None:
    # v        0   128   129   257  32767  65535
    # v / 257  0  .498  .502     1  127.498  255
    values = np.tile(np.array([0, 128, 129, 257, 32767, 65535], np.uint16), (16, 4))
    expected = np.tile(np.array([0, 0, 1, 1, 127, 255], np.uint8), (16, 4))
    for kind in ("PNG", "TIFF", "PPM"):
        np.testing.assert_array_equal(decode(file_of(values, kind)), expected, err_msg=kind)


def test_sixteen_bit_grey_is_not_stretched_to_its_own_range() -> None:
    dark = np.tile(np.arange(0, 2570, 257, dtype=np.uint16), (16, 2))
    assert decode(file_of(dark)).max() == 9


def test_twelve_bit_tiff_is_mapped_by_its_depth() -> None:
    # Two 12-bit values in three bytes: FFF 000 -> FF F0 00, in a row of 16 pixels: 255, 0, 255, 0, ...
    full = np.tile(np.array([0, 65535], np.uint16), (16, 8))
    plain = bytearray(file_of(full, "TIFF"))
    image = Image.open(io.BytesIO(bytes(plain)))
    offset = image.tag_v2[273][0]  # type: ignore[attr-defined]
    bits_entry = plain.index((258).to_bytes(2, "little") + (3).to_bytes(2, "little"))
    plain[bits_entry + 8 : bits_entry + 10] = (12).to_bytes(2, "little")
    packed = bytes([0xFF, 0xF0, 0x00] * 8) * 16
    plain[offset : offset + len(packed)] = packed
    np.testing.assert_array_equal(decode(bytes(plain)), np.tile(np.array([255, 0], np.uint8), (16, 8)))


def test_sixteen_bit_rgb_keeps_the_high_byte() -> None:
    np.testing.assert_array_equal(decode(_png_of_16_bit_rgb(0x1280, 0x34FF, 0xFF00)), _colour(0x12, 0x34, 0xFF))


def test_the_transparent_value_of_sixteen_bit_grey_is_black() -> None:
    values = np.tile(np.array([5140, 2570], np.uint16), (16, 8))
    assert decode(file_of(values, transparency=5140))[0, :2].tolist() == [0, 10]


def test_alpha_is_composited_on_black() -> None:
    # 200 x 128 / 255 = 100.4; grey with alpha stays grey
    palette = solid("LA", (5, 128))
    palette.putpalette([200] * 768)
    assert palette.mode == "PA"
    for image, n_axes in [(solid("RGBA", (200, 200, 200, 128)), 3), (solid("LA", (200, 128)), 2), (palette, 3)]:
        found = decode(file_of(image, "TIFF"))
        assert found.ndim == n_axes
        assert np.unique(found).tolist() == [100], image.mode


def test_colour_without_alpha_is_untouched_by_compositing() -> None:
    opaque = np.dstack([COLOUR, np.full(COLOUR.shape[:2], 255, np.uint8)])
    np.testing.assert_array_equal(decode(file_of(opaque)), COLOUR)
    hidden = np.dstack([COLOUR, np.zeros(COLOUR.shape[:2], np.uint8)])
    assert not decode(file_of(hidden)).any()


def test_transparent_colours_are_black() -> None:
    assert decode(file_of(solid("L", 70), transparency=70)).tolist() == np.zeros((20, 20)).tolist()
    assert not decode(file_of(solid("RGB", (1, 2, 3)), transparency=(1, 2, 3))).any()
    assert (decode(file_of(solid("RGB", (1, 2, 3)), transparency=(9, 9, 9))) == (1, 2, 3)).all()


def test_a_palette_becomes_its_colours() -> None:
    image = Image.fromarray(COLOUR).quantize(16)
    np.testing.assert_array_equal(decode(file_of(image)), np.asarray(image.convert("RGB")))
    clear = decode(file_of(image, transparency=0))
    is_clear = np.asarray(image) == 0
    assert is_clear.any() and not clear[is_clear].any()
    np.testing.assert_array_equal(clear[~is_clear], np.asarray(image.convert("RGB"))[~is_clear])


def test_a_grey_palette_becomes_grey() -> None:
    image = Image.fromarray(GREY // 16, mode="P")
    image.putpalette([level for i in range(16) for level in [17 * i] * 3])
    np.testing.assert_array_equal(decode(file_of(image)), GREY // 16 * 17)


def test_cmyk_becomes_rgb() -> None:
    # no ink is white, black ink is black, cyan ink takes the red away; in a JPEG of Adobe all of it is inverted
    for ink, colour in [((0, 0, 0, 0), (255,) * 3), ((0, 0, 0, 255), (0,) * 3), ((255, 0, 0, 0), (0, 255, 255))]:
        for kind in ("JPEG", "TIFF"):
            found = decode(file_of(solid("CMYK", ink), kind))
            assert np.abs(found.astype(int) - colour).max() <= 3, (ink, kind)


@pytest.mark.parametrize("mode", ["YCbCr", "LAB"])
def test_other_colour_spaces_become_rgb(mode: str) -> None:
    grey = (128, 128, 128) if mode == "YCbCr" else (137, 128, 128)  # L* 53.6 is the middle of sRGB
    found = decode(file_of(solid(mode, grey), "TIFF"))
    assert found.shape == (20, 20, 3) and np.abs(found.astype(int) - 128).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    turned = {  # what a viewer shows for the stored pixels
        1: COLOUR, 2: COLOUR[:, ::-1], 3: COLOUR[::-1, ::-1], 4: COLOUR[::-1], 5: COLOUR.transpose(1, 0, 2),
        6: np.rot90(COLOUR, -1), 7: COLOUR[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(COLOUR),
    }  # fmt: skip
    np.testing.assert_array_equal(decode(file_of(COLOUR, "PNG", exif=exif)), turned[orientation])


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {}), ("TIFF", {}), ("WEBP", {"lossless": True})])
def test_every_format_that_can_state_an_orientation_is_turned(kind: str, options: dict[str, bool]) -> None:
    exif = Image.Exif()
    exif[274] = 6
    straight, turned = (decode(file_of(COLOUR, kind, **options, **more)) for more in ({}, {"exif": exif}))
    np.testing.assert_array_equal(turned, np.rot90(straight, -1))


def test_the_first_image_of_an_animation() -> None:
    frames = [solid("L", level) for level in (10, 200)]
    for kind in ("GIF", "PNG", "TIFF"):
        found = decode(file_of(frames[0], kind, save_all=True, append_images=frames[1:]))
        assert np.unique(found).tolist() == [10], kind


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "GIF", "WEBP", "BMP", "PPM", "JPEG2000"])
def test_a_file_cut_short_is_unreadable(kind: str) -> None:
    data = file_of(picture(64, 64), kind)
    assert reason_of(data[: len(data) * 6 // 10]) == "unreadable"
    assert reason_of(data[:20]) == "unreadable"


def test_nothing_turned_truncation_off() -> None:
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.parametrize("data", [b"", b"\x00", b"no image", b"\x89PNG\r\n\x1a\n" + bytes(100)])
def test_bytes_that_are_no_image_are_unreadable(data: bytes) -> None:
    assert reason_of(data) == "unreadable"


def test_pixels_without_a_stated_range_are_refused() -> None:
    assert reason_of(file_of(np.ones((20, 20), np.float32), "TIFF")) == "unreadable"
    assert reason_of(file_of(np.ones((20, 20), np.int32), "TIFF")) == "unreadable"
    inverted = file_of(np.ones((20, 20), np.uint16), "TIFF", tiffinfo={262: 0})
    assert Image.open(io.BytesIO(inverted)).tag_v2[262] == 0  # type: ignore[attr-defined]
    assert reason_of(inverted) == "unreadable"


def test_formats_that_run_programs_are_refused() -> None:
    assert reason_of(file_of(COLOUR, "EPS")) == "unreadable"


def test_the_smallest_image() -> None:
    for height, width in [(1, 1), (MIN_SIDE_PX - 1, 500), (500, MIN_SIDE_PX - 1)]:
        assert reason_of(file_of(picture(height, width))) == "too_small"
    assert decode(file_of(picture(MIN_SIDE_PX, MIN_SIDE_PX))).shape == (MIN_SIDE_PX, MIN_SIDE_PX, 3)


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_module, "MAX_PIXELS", 32 * 40 - 1)
    assert reason_of(file_of(GREY)) == "unreadable"
    monkeypatch.setattr(decode_module, "MAX_PIXELS", 32 * 40)
    np.testing.assert_array_equal(decode(file_of(GREY)), GREY)


def test_a_header_that_claims_too_much_is_refused_without_a_warning() -> None:
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    chunk = struct.pack(">I", len(header)) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reason_of(b"\x89PNG\r\n\x1a\n" + chunk) == "unreadable"
    assert Image.MAX_IMAGE_PIXELS is None  # large radiographs are for ours to judge


def test_is_constant() -> None:
    assert is_constant(np.full((20, 30), 7, np.uint8))
    assert is_constant(np.full((20, 30, 3), (1, 2, 3), np.uint8))
    assert is_constant(np.zeros((0, 5), np.uint8))
    for index in [(0, 0), (19, 29)]:
        pixels = np.zeros((20, 30), np.uint8)
        pixels[index] = 1
        assert not is_constant(pixels)


def _colour(*values: int) -> np.ndarray:
    return np.tile(np.array(values, np.uint8), (16, 16, 1))


def _png_of_16_bit_rgb(*values: int) -> bytes:
    """A PNG that Pillow cannot write: 16 x 16 pixels of one colour, 16 bits per channel."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    row = b"\x00" + struct.pack(">3H", *values) * 16
    header = struct.pack(">2I5B", 16, 16, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * 16)) + chunk(b"IEND", b"")
