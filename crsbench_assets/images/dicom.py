"""From a DICOM file to 8-bit pixels, as a viewer shows it first.

What lives here: rescaling, window, inversion and colour of the first frame. What stays out: every other format, and
the faults that all have in common (``decode``). Decoding of compressed transfer syntaxes is pydicom's, with the
plug-ins that the project installs (JPEG, JPEG-LS, JPEG 2000, RLE).
Source: DICOM PS3.3, C.7.6.3 (photometric interpretation), C.11.1 (modality LUT), C.11.2 (window and VOI LUT).
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC, _PREAMBLE = b"DICM", 128


def is_dicom(data: bytes) -> bool:
    """Return whether bytes are those of a DICOM file (part 10: a preamble of 128 bytes, then ``DICM``)."""
    return data[_PREAMBLE : _PREAMBLE + len(_MAGIC)] == _MAGIC


def dicom_size(data: bytes) -> tuple[int, int]:
    """Return width and height in pixels, without decoding any.

    Raises:
        ValueError: the file holds no image.
    """
    dataset = _read(data, with_pixels=False)
    width, height = dataset.get("Columns"), dataset.get("Rows")
    if not width or not height:
        raise ValueError("a DICOM file without an image")
    return int(width), int(height)


def dicom_pixels(data: bytes) -> NDArray[np.uint8]:
    """Return the first frame of a DICOM file in 8 bits, grey or RGB.

    - Stored values pass the modality LUT, or slope and intercept.
    - Then the first window of the file (``LINEAR`` or ``LINEAR_EXACT``), or its first VOI LUT, maps them on 0 to 255;
      without either the range that the bits stored can hold does. An image is never stretched to its own range, which
      would undo a change of brightness or contrast. Values are rounded half to even.
    - MONOCHROME1, whose lowest value is white, is inverted.
    - Colour of 8 bits, YBR and palettes included, becomes RGB.

    Args:
        data: the whole file.

    Raises:
        ValueError: a sigmoid window, colour of more than 8 bits, or another photometric interpretation.
        Exception: whatever pydicom raises at damaged bytes.
    """
    from pydicom.pixels.processing import apply_color_lut
    from pydicom.pixels.utils import pixel_array

    dataset = _read(data, with_pixels=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is wrong with the pixels themselves is an error
        stored = pixel_array(dataset, index=0)
        kind = str(dataset.PhotometricInterpretation)
        if kind in ("MONOCHROME1", "MONOCHROME2"):
            grey = _windowed(stored, dataset)
            return 255 - grey if kind == "MONOCHROME1" else grey
        if kind == "PALETTE COLOR":
            stored = apply_color_lut(stored, dataset)[..., :3]
            if stored.dtype == np.uint16:  # entries of 16 bits use all of them
                stored = (stored >> 8).astype(np.uint8)
    if stored.ndim != 3 or stored.dtype != np.uint8:
        raise ValueError(f"{kind} of {dataset.BitsStored} bits in a DICOM file; expected grey, or colour of 8 bits")
    return np.asarray(stored, dtype=np.uint8)


def _read(data: bytes, *, with_pixels: bool) -> Any:
    from pydicom import dcmread

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dcmread(io.BytesIO(data), stop_before_pixels=not with_pixels)


def _windowed(stored: NDArray[Any], dataset: Any) -> NDArray[np.uint8]:
    from pydicom.pixels.processing import apply_modality_lut, apply_voi

    values = apply_modality_lut(stored, dataset)
    if dataset.get("VOILUTSequence"):
        bits = int(dataset.VOILUTSequence[0].LUTDescriptor[2])
        return _scaled(apply_voi(values, dataset), 0.0, 2.0**bits - 1.0)
    centre, width = _first(dataset.get("WindowCenter")), _first(dataset.get("WindowWidth"))
    if centre is not None and width is not None:
        shape = str(dataset.get("VOILUTFunction") or "LINEAR")
        if shape == "LINEAR" and width > 1.0:
            return _scaled(values, centre - 0.5 - (width - 1.0) / 2.0, centre - 0.5 + (width - 1.0) / 2.0)
        if shape == "LINEAR_EXACT" and width > 0.0:
            return _scaled(values, centre - width / 2.0, centre + width / 2.0)
        raise ValueError(f"a window of the shape {shape} and width {width:g} in a DICOM file; expected a linear one")
    lowest, highest = _range(dataset)
    return _scaled(values, lowest, highest)


def _range(dataset: Any) -> tuple[float, float]:
    """Return the least and the largest value that the bits stored can hold, after rescaling."""
    bits = int(dataset.BitsStored)
    if dataset.get("ModalityLUTSequence"):
        return 0.0, 2.0 ** int(dataset.ModalityLUTSequence[0].LUTDescriptor[2]) - 1.0
    lowest, highest = (
        (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1.0) if dataset.PixelRepresentation else (0.0, 2.0**bits - 1.0)
    )
    slope, intercept = float(dataset.get("RescaleSlope", 1.0)), float(dataset.get("RescaleIntercept", 0.0))
    ends = sorted((lowest * slope + intercept, highest * slope + intercept))
    return ends[0], ends[1]


def _scaled(values: NDArray[Any], lowest: float, highest: float) -> NDArray[np.uint8]:
    if not lowest < highest:
        raise ValueError("a DICOM file whose range of values is empty")
    share = (np.asarray(values, dtype=np.float64) - lowest) / (highest - lowest)
    scaled: NDArray[np.uint8] = np.rint(np.clip(share, 0.0, 1.0) * 255.0).astype(np.uint8)
    return scaled


def _first(value: Any) -> float | None:
    """Return the first of several values, or the only one."""
    if value is None or value == "":
        return None
    return float(value if isinstance(value, (int, float, str)) else value[0])
