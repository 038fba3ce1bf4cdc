"""The contract of an image encoder: what must hold before a number of it means anything.

What lives here: the checks, on drawn images, and the golden vector by which a later installation is recognised. What
stays out: loading (``networks``, which refuses weights that do not fit) and whether a cohort's images have vectors
(``embeddings.extract``).
Source: protocol page, section 2 (the vector of an image depends on that image alone). The golden vector guards against
what no hash of weights sees: another version of a library, another kernel, another resize.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from crsbench_assets.config.cards import EncoderCard
from crsbench_assets.config.errors import reason_of
from crsbench_assets.config.hashes import content_hash
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.encoders.networks import ImageEncoder, load_encoder
from crsbench_assets.encoders.weights import known_revision
from crsbench_assets.images.preprocess import prepare
from crsbench_assets.storage.files import read_json, replace_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

N_IMAGES = 9
"""Images drawn: more than one slice of a processor's pass."""

SIDE_PX = 448
"""Shortest side of the canonical image."""

MAX_DIFFERENCE = 1e-4
"""Largest difference between two ways to batch an image, relative to the largest number of a vector."""

MIN_COSINE_SHORT = 0.999
"""Least cosine of vectors in bfloat16 or float16 with those in float32 for the shorter type to be usable."""

MIN_COSINE_GOLDEN = 0.9999
"""Least cosine with the vector recorded when the weights were first loaded."""

Verdict = Literal["ok", "failed", "not checked"]


@dataclass(frozen=True)
class Check:
    """One line of the contract."""

    name: str
    verdict: Verdict
    found: str


def contract(card: EncoderCard, device: str = "cpu") -> list[Check]:
    """Return the checks of an encoder, in order; all are made, also after one failed.

    The golden vector is recorded in the home's cache by the first contract that holds, and compared from then on.

    Args:
        card: of a kind that reads images.
        device: see :func:`crsbench_assets.config.machine.torch_device`.

    Raises:
        ConfigError: the encoder cannot be loaded.
    """
    encoder = load_encoder(card, device)
    assert card.preprocessing is not None  # load_encoder looked
    spec = card.preprocessing
    images = np.stack([prepare(pixels, spec) for pixels in _pictures(N_IMAGES)])
    vectors = encoder.encode(images)
    checks = [
        *_shape_and_range(encoder, vectors),
        *_independence(encoder, images, vectors),
        *_difference(vectors),
        *_short_types(encoder, images[:2], vectors[:2]),
        *_stock(card),
        *_pinned(card),
    ]
    has_failed = any(check.verdict == "failed" for check in checks)
    return [*checks, _golden(card, vectors[0], may_record=not has_failed)]


def cosine_similarity(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Return the cosine of the angle between two vectors, in [-1, 1].

    Args:
        a: (d,), not all zero.
        b: (d,), not all zero.

    Returns:
        NaN where a vector is zero or holds NaN.

    Example:
        >>> cosine_similarity(np.float32([1, 0]), np.float32([2, 0]))
        1.0
    """
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def _pictures(n: int) -> Iterator[NDArray[np.uint8]]:
    """Yield drawn images: patches of colour at two scales under noise, so that no two are alike anywhere."""
    for i in range(n):
        generator = keyed_generator("contract_image", str(i))
        coarse = np.kron(generator.random((7, 7, 3)), np.ones((64, 64, 1)))
        fine = np.kron(generator.random((56, 56, 3)), np.ones((8, 8, 1)))
        yield (255.0 * (0.7 * coarse + 0.3 * fine)).astype(np.uint8)


def _line(name: str, holds: bool, found: str) -> Check:
    return Check(name, "ok" if holds else "failed", found)


def _shape_and_range(encoder: ImageEncoder, vectors: NDArray[np.float32]) -> Iterator[Check]:
    is_shape = vectors.shape == (N_IMAGES, encoder.dim) and vectors.dtype == np.float32
    yield _line("shape", is_shape, f"{vectors.dtype} {vectors.shape}, expected float32 {(N_IMAGES, encoder.dim)}")
    n_bad = int((~np.isfinite(vectors)).sum())
    yield _line("finite", n_bad == 0, f"{n_bad} of {vectors.size} numbers are NaN or infinite")


def _independence(encoder: ImageEncoder, images: NDArray[np.float32], vectors: NDArray[np.float32]) -> Iterator[Check]:
    again = encoder.encode(images)
    n_other = int((again != vectors).sum())
    yield _line("deterministic", n_other == 0, f"{n_other} numbers differ between two passes of one batch")
    size = float(np.abs(vectors).max()) or 1.0
    alone = np.concatenate([encoder.encode(images[i : i + 1]) for i in range(2)])
    apart = float(np.abs(alone - vectors[:2]).max()) / size
    yield _line("batch size", apart <= MAX_DIFFERENCE, f"alone and in a batch: relative difference {apart:.1e}")
    reversed_order = encoder.encode(images[::-1])[::-1]
    moved = float(np.abs(reversed_order - vectors).max()) / size
    yield _line("neighbours", moved <= MAX_DIFFERENCE, f"among other neighbours: relative difference {moved:.1e}")


def _difference(vectors: NDArray[np.float32]) -> Iterator[Check]:
    size = float(np.abs(vectors).max()) or 1.0
    closest = min(float(np.abs(vectors[i] - vectors[j]).max()) / size for i in range(len(vectors)) for j in range(i))
    found = f"the two closest of {len(vectors)} images: relative difference {closest:.1e}"
    yield _line("different images", closest > MAX_DIFFERENCE, found)


def _short_types(encoder: ImageEncoder, images: NDArray[np.float32], vectors: NDArray[np.float32]) -> Iterator[Check]:
    """A shorter type that is too coarse is refused, which is no fault of the encoder: results are in float32."""
    encode_as: Callable[..., NDArray[np.float32]] | None = getattr(encoder, "encode_as", None)
    if encode_as is None:
        yield Check("shorter types", "not checked", "this encoder has none")
        return
    import torch

    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        try:
            short = encode_as(images, dtype)
        except RuntimeError as error:
            yield Check(name, "not checked", f"the device has none ({reason_of(error)})")
            continue
        least = min(cosine_similarity(a, b) for a, b in zip(short, vectors, strict=True))  # NaN is refused as well
        use = "usable" if least >= MIN_COSINE_SHORT else "refused: float32 only"
        yield Check(name, "ok", f"{use}; cosine with float32 {least:.5f}, {MIN_COSINE_SHORT} needed")


def _stock(card: EncoderCard) -> Iterator[Check]:
    """Loading refuses a tower that equals the stock network's; here is said whether there was one to compare with."""
    assert card.weights is not None
    if card.weights.differs_from is None:
        return
    from crsbench_assets.encoders.transformer_models import stock_files

    if stock_files(card) is None:
        where = f"{card.place.folder}_stock" if card.place is not None else "the hub's cache"
        found = f"{card.weights.differs_from} is not here to compare with: put its files into {where}"
        yield Check("differs from stock", "not checked", found)
    else:
        yield Check("differs from stock", "ok", f"not equal to {card.weights.differs_from}")


def _pinned(card: EncoderCard) -> Iterator[Check]:
    """Say what ties the weights down: the card, or the record of the first load in this home."""
    assert card.weights is not None
    if not card.weights.has_files or card.weights.package is not None:
        return
    revision = known_revision(card)
    if card.weights.revision is not None or card.weights.sha256 is not None:
        yield Check("pinned weights", "ok", "by the card's revision or sha256")
    elif card.place is None:
        yield Check("pinned weights", "not checked", "the card pins none, and outside of a home nothing is recorded")
    else:
        said = f"; write `revision: {revision}` into the card for others" if revision else ""
        yield Check("pinned weights", "ok", f"as first loaded in this home; other files are refused{said}")


def _golden(card: EncoderCard, vector: NDArray[np.float32], *, may_record: bool) -> Check:
    if card.place is None:
        return Check("golden vector", "not checked", "controls and cards outside of a home have no place for one")
    path = Path(card.place.cache) / "golden.json"
    identity = content_hash(card.identity)
    known = read_json(path)
    if isinstance(known, dict) and known.get("identity") == identity:
        cosine = cosine_similarity(vector, np.array(known["vector"], dtype=np.float32))
        found = f"cosine with the recorded vector {cosine:.6f}, {MIN_COSINE_GOLDEN} needed ({path})"
        return _line("golden vector", cosine >= MIN_COSINE_GOLDEN, found)
    if not may_record:
        return Check("golden vector", "not checked", "none is recorded while another check fails")
    replace_json(path, {"identity": identity, "vector": [float(value) for value in vector]})
    return Check("golden vector", "ok", f"recorded in {path}")
