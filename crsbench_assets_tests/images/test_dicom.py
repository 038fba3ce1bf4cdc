"""DICOM files written here: window, rescaling, inversion, colour, compression, and what is refused."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crsbench_assets.images.decode import ImageFault, decode

pydicom = pytest.importorskip("pydicom")

# the first row of a 16 x 16 image holds 0, 1000, 2000 and 4095; the rest is 0
VALUES = (0, 1000, 2000, 4095)


def stored(*values: int, dtype: str = "uint16") -> NDArray[Any]:
    pixels = np.zeros((16, 16), dtype=dtype)
    pixels[0, : len(values)] = values
    return pixels


def dicom(pixels: NDArray[Any], *, compressed: Any = None, **fields: Any) -> bytes:
    """Return a DICOM file of one frame; 12 bits are stored where 16 are allocated."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = SecondaryCaptureImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = generate_uid()
    dataset.Rows, dataset.Columns = pixels.shape[:2]
    dataset.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    dataset.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
    if pixels.ndim == 3:
        dataset.PlanarConfiguration = 0
    dataset.BitsAllocated = 8 * pixels.itemsize
    dataset.BitsStored = 12 if pixels.itemsize == 2 else 8
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    dataset.PixelData = pixels.tobytes()
    for name, value in fields.items():
        setattr(dataset, name, value)
    if compressed is not None:
        dataset.compress(compressed, generate_instance_uid=False)
    file = io.BytesIO()
    dataset.save_as(file, enforce_file_format=True)
    return file.getvalue()


def first_row(data: bytes) -> list[int]:
    pixels = decode(data)
    assert pixels.shape == (16, 16) and pixels.dtype == np.uint8
    return pixels[0, :4].tolist()


def test_without_a_window_the_bits_stored_say_the_range() -> None:
    # round(255 v / 4095), half to even
    assert first_row(dicom(stored(*VALUES))) == [0, 62, 125, 255]


def test_low_zero_is_white_where_the_file_says_so() -> None:
    assert first_row(dicom(stored(*VALUES), PhotometricInterpretation="MONOCHROME1")) == [255, 193, 130, 0]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        # LINEAR, centre 1500 and width 1001: 999.5 is 0 and 1999.5 is 255
        ({"WindowCenter": 1500, "WindowWidth": 1001}, [0, 0, 255, 255]),
        ({"WindowCenter": 1000.5, "WindowWidth": 2001}, [0, 128, 255, 255]),
        ({"WindowCenter": 1000, "WindowWidth": 2000, "VOILUTFunction": "LINEAR_EXACT"}, [0, 128, 255, 255]),
        # the first of several windows
        ({"WindowCenter": [1000.5, 40], "WindowWidth": [2001, 80]}, [0, 128, 255, 255]),
        # a window acts on rescaled values: 2 v - 1000
        (
            {"WindowCenter": 1000.5, "WindowWidth": 2001, "RescaleSlope": 2, "RescaleIntercept": -1000},
            [0, 128, 255, 255],
        ),
        # without a window the rescaled range is that of the bits
        ({"RescaleSlope": 2, "RescaleIntercept": -1000}, [0, 62, 125, 255]),
    ],
)
def test_rescaling_and_window(window: dict[str, Any], expected: list[int]) -> None:
    assert first_row(dicom(stored(*VALUES), **window)) == expected


def test_signed_values_keep_their_zero_in_the_middle() -> None:
    assert first_row(dicom(stored(-2048, 0, 2047, dtype="int16")))[:3] == [0, 128, 255]


def test_an_image_is_not_stretched_to_its_own_range() -> None:
    assert decode(dicom(stored(0, 100, 200))).max() == 12


def test_colour_is_rgb() -> None:
    pixels = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    assert np.array_equal(decode(dicom(pixels)), pixels)


def test_a_palette_becomes_its_colours() -> None:
    pixels = np.zeros((16, 16), dtype=np.uint8)
    pixels[0, 1] = 1
    table = {"Red": [0, 65280], "Green": [256, 0], "Blue": [65535, 512]}
    fields: dict[str, Any] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for name, entries in table.items():
        fields[f"{name}PaletteColorLookupTableDescriptor"] = [2, 0, 16]
        fields[f"{name}PaletteColorLookupTableData"] = np.array(entries, dtype="<u2").tobytes()
    assert decode(dicom(pixels, **fields))[0, :3].tolist() == [[0, 1, 255], [255, 0, 2], [0, 1, 255]]


def test_the_first_frame_of_several() -> None:
    frames = np.stack([stored(*VALUES), stored(4095, 4095)])
    data = dicom(frames[0], NumberOfFrames=2, PixelData=frames.tobytes())
    assert first_row(data) == [0, 62, 125, 255]


@pytest.mark.parametrize("name", ["RLELossless", "JPEGLSLossless", "JPEG2000Lossless"])
def test_lossless_compression_changes_nothing(name: str) -> None:
    import pydicom.uid

    pixels = np.zeros((64, 64), dtype=np.uint16)
    pixels[0, :4] = VALUES
    data = dicom(pixels, compressed=getattr(pydicom.uid, name))
    assert np.array_equal(decode(data), decode(dicom(pixels)))


def test_what_cannot_be_read_is_a_fault_with_its_words() -> None:
    whole = dicom(stored(*VALUES))
    for data, words in (
        (whole[:-200], "bytes"),
        (whole[:200], "DICOM file without an image"),
        (dicom(stored(*VALUES), WindowCenter=1, WindowWidth=9, VOILUTFunction="SIGMOID"), "SIGMOID"),
        (dicom(stored(*VALUES), PhotometricInterpretation="HSV"), "HSV of 12 bits"),
        (dicom(stored(*VALUES), Rows=60_000, Columns=60_000), "at most 250,000,000 are decoded"),
    ):
        with pytest.raises(ImageFault, match=words) as caught:
            decode(data)
        assert caught.value.reason == "unreadable"
    with pytest.raises(ImageFault, match="too_small"):
        decode(dicom(np.zeros((8, 40), dtype=np.uint16)))
