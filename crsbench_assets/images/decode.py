"""From the bytes of an image file to 8-bit pixels, by one stated rule per kind of file.

What lives here: the full decode, the conversions to grey or RGB, and the faults of one file. What stays out: DICOM
(``dicom``), what becomes of a file with a fault (``data.integrity``), and the resize that follows (``canonical``).
Source: protocol page, sections 2 (full decode, size) and 3 (8-bit L or RGB by stated conversions).
"""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from crsbench_assets.images.dicom import dicom_pixels, dicom_size, is_dicom

MIN_SIDE_PX = 16
"""Shortest side that is accepted; a smaller image holds no texture that a corruption could act on."""

MAX_PIXELS = 250_000_000
"""Largest number of pixels that is decoded: five times the largest radiographs, and 750 MB as RGB."""

FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "GIF", "WEBP", "PPM", "JPEG2000")
"""Formats that are tried; the others of Pillow run foreign programs (EPS) or hold no photograph."""

FaultReason = Literal["unreadable", "too_small"]

# Pillow's own limit (89 million) would refuse large radiographs, and warns on the screen of what ours refuses: ours is
# asked as soon as the header is read.
Image.MAX_IMAGE_PIXELS = None

_EXIF_KEYS = frozenset({"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"})
"""Where Pillow keeps what may hold an orientation; a TIFF has it among its tags."""

_SIXTEEN_BIT_FORMATS = ("PNG", "PPM", "JPEG2000")  # where mode I holds 0 to 65,535, whatever the image's own range
_TIFF_BITS_PER_SAMPLE, _TIFF_PHOTOMETRIC, _TIFF_WHITE_IS_ZERO = 258, 262, 0


class ImageFault(Exception):  # noqa: N818  (the file's fault, not the program's)
    """One file that cannot become an image of the benchmark.

    Attributes:
        reason: ``unreadable`` (no bytes, no image, cut short, or a kind of pixel without a stated conversion) or
            ``too_small`` (shortest side below :data:`MIN_SIDE_PX`).
        detail: what was found, and what was expected.
    """

    def __init__(self, reason: FaultReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def decode(data: bytes) -> NDArray[np.uint8]:
    """Return the pixels of an image file, in 8 bits, grey or RGB.

    Every row is decoded, so a file that was cut short is refused and not padded. What the bytes hold decides alone:

    - The EXIF orientation is applied. ICC profiles and gamma values are not.
    - Grey stays grey; one bit per pixel becomes 0 or 255.
    - RGB stays RGB. Of 16 bits per channel Pillow keeps the high byte.
    - A palette becomes RGB, or grey where each of its colours is grey.
    - Alpha, in whatever mode, is composited on black: round(value * alpha / 255) half to even. Grey with alpha stays
      grey; a palette with transparency becomes RGB. A 16-bit grey's transparent value becomes black.
    - CMYK and YCCK (JPEGs of Adobe are inverted, which Pillow undoes), YCbCr and LAB become RGB.
    - 16-bit grey becomes round(255 v / (2^bits - 1)) half to even, with the bits of the *file* (12 for a 12-bit TIFF).
      An image is never stretched to its own range, which would undo a change of brightness or contrast.
    - An animation, or a file of several pages, gives its first image.
    - DICOM is shown through its own window (:func:`crsbench_assets.images.dicom.dicom_pixels`).

    Refused as ``unreadable``: floating-point and 32-bit or signed grey, whose range no file states; 16-bit TIFFs whose
    zero is white, which Pillow would return inverted; more than :data:`MAX_PIXELS` pixels; formats other than DICOM and
    :data:`FORMATS`. Not seen: damage inside a JPEG's stream that its decoder repairs silently.

    Args:
        data: the whole file.

    Returns:
        uint8 array of shape (h, w) for grey or (h, w, 3) for RGB, C-contiguous.

    Raises:
        ImageFault: with its reason and detail.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("CMYK", (20, 30)).save(file, "JPEG")
        >>> decode(file.getvalue()).shape
        (30, 20, 3)
    """
    if not data:
        raise ImageFault("unreadable", "the file has no bytes")
    try:
        pixels = _decoded(data)
    except (ImageFault, MemoryError):
        raise
    except UnidentifiedImageError as error:  # its own words name an address in memory
        raise ImageFault("unreadable", f"it is no image of the formats {', '.join(FORMATS)}, DICOM") from error
    except Exception as error:  # decoders meet damaged bytes with any of a dozen exceptions
        raise ImageFault("unreadable", " ".join(str(error).split()) or type(error).__name__) from error
    height, width = pixels.shape[:2]
    if min(height, width) < MIN_SIDE_PX:
        raise ImageFault("too_small", f"{width} x {height} pixels, each side needs at least {MIN_SIDE_PX}")
    return pixels


def is_constant(pixels: NDArray[np.uint8]) -> bool:
    """Return whether all pixels of an image have one value (one colour); an image without pixels is constant.

    Args:
        pixels: uint8 array of shape (h, w) or (h, w, 3).
    """
    first = pixels[:1, :1]
    # nearly every image differs in its first rows, so those are asked first
    return bool((pixels[:8] == first).all() and (pixels == first).all())


def _decoded(data: bytes) -> NDArray[np.uint8]:
    if is_dicom(data):
        _require_decodable(*dicom_size(data))
        return np.ascontiguousarray(dicom_pixels(data))
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        _require_decodable(image.width, image.height)
        image.load()
        return np.ascontiguousarray(_eight_bit(image))


def _require_decodable(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise ImageFault("unreadable", f"{width} x {height} pixels, at most {MAX_PIXELS:,} are decoded")


def _eight_bit(image: Image.Image) -> NDArray[np.uint8]:
    mode = image.mode
    if mode.startswith("I"):
        full_scale = _full_scale(image)
        levels: NDArray[np.uint8] = np.rint(np.arange(full_scale + 1) * (255.0 / full_scale)).astype(np.uint8)
        transparent = image.info.get("transparency")
        if isinstance(transparent, int):
            levels[transparent] = 0
        return np.take(levels, np.asarray(ImageOps.exif_transpose(image)))
    if mode not in ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"):
        raise ImageFault("unreadable", f"pixels of mode {mode} in a {image.format} file have no stated 8-bit range")
    if image.format == "TIFF" or not _EXIF_KEYS.isdisjoint(image.info):  # to look for none costs a tenth of a decode
        ImageOps.exif_transpose(image, in_place=True)
    if image.has_transparency_data:
        return _on_black(image.convert("LA" if mode in ("1", "L", "LA", "La") else "RGBA"))
    wanted = "L" if mode in ("1", "L") or _has_grey_palette(image) else "RGB"
    return np.asarray(image if mode == wanted else image.convert(wanted))


def _full_scale(image: Image.Image) -> int:
    """The largest value that the file's bit depth can hold."""
    if image.format == "TIFF" and image.mode.startswith("I;16"):
        tags: dict[int, object] = dict(getattr(image, "tag_v2", {}))
        bits = tags.get(_TIFF_BITS_PER_SAMPLE)
        if tags.get(_TIFF_PHOTOMETRIC) == _TIFF_WHITE_IS_ZERO or not (isinstance(bits, tuple) and bits):
            raise ImageFault("unreadable", "a 16-bit TIFF whose zero is not black")
        return (1 << int(bits[0])) - 1
    if image.mode.startswith("I;16") or image.format in _SIXTEEN_BIT_FORMATS:
        return 2**16 - 1
    raise ImageFault("unreadable", f"32-bit or signed grey in a {image.format} file has no stated range")


def _has_grey_palette(image: Image.Image) -> bool:
    if image.mode != "P":
        return False
    colours = np.asarray(image.getpalette("RGB"), dtype=np.uint8).reshape(-1, 3)
    return bool((colours == colours[:, :1]).all())


def _on_black(image: Image.Image) -> NDArray[np.uint8]:
    values = np.asarray(image).astype(np.float64)
    composited = np.rint(values[..., :-1] * values[..., -1:] / 255.0).astype(np.uint8)
    return composited[..., 0] if image.mode == "LA" else composited
