"""Baselines: the two controls that a pretrained encoder must beat.

What lives here: handcrafted colour and texture features, and the weights of a randomly initialised vision
transformer. What stays out: how a network is run (``timm_models``) and that controls are reference lines and never
members of a panel (``scores``).
Source: protocol page, section 7, controls; each group of features names its own paper.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import ndtri

from crsbench_assets.config.cards import EncoderCard
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.randomness import keyed_generator

if TYPE_CHECKING:
    import torch

    from crsbench_assets.encoders.networks import ImageEncoder

MIN_PX = 16
"""Smallest side that all features are defined for with a few pixels in every cell."""

LUMA = np.array([0.299, 0.587, 0.114])
"""Grey of RGB, ITU-R BT.601."""

N_COLOUR_BINS = 8
LBP_RADII = (1, 2)
N_ORIENTATIONS = 8
N_CELLS = 3
N_GREY_LEVELS = 8
COOCCURRENCE_PX = (1, 3)
N_BANDS = 8

N_HANDCRAFTED = (
    3 * 3
    + 3 * N_COLOUR_BINS
    + N_COLOUR_BINS
    + 4
    + 10 * len(LBP_RADII)
    + N_CELLS**2 * N_ORIENTATIONS
    + 5 * len(COOCCURRENCE_PX)
    + N_BANDS
)
"""Width of the handcrafted vector: 155."""

INITIAL_SD = 0.02
"""Standard deviation of the random network's weights."""


def baseline(card: EncoderCard, device: str) -> ImageEncoder:
    """Return the encoder of a card of kind ``baseline``.

    Args:
        card: with ``weights``, ``preprocessing`` and ``embedding``.
        device: where the random network runs; handcrafted features do not look.

    Raises:
        ConfigError: no such baseline, or a card that does not fit it.
    """
    assert card.weights is not None  # load_encoder looked
    if card.weights.loader == "baselines.handcrafted":
        return _handcrafted(card)
    if card.weights.loader == "baselines.random_vit":
        return _random_vit(card, device)
    raise ConfigError(
        f"encoder {card.id!r}: there is no baseline {card.weights.loader!r}: weights.loader is one of "
        "baselines.handcrafted and baselines.random_vit."
    )


class HandcraftedFeatures:
    """Colour and texture statistics of each image by itself; see :func:`handcrafted_features`."""

    dim = N_HANDCRAFTED
    is_on_processor = True

    def encode(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """See :class:`crsbench_assets.encoders.networks.ImageEncoder`; the batch changes not one bit."""
        vectors = np.empty((len(batch), self.dim), dtype=np.float32)
        for row, image in zip(vectors, batch, strict=True):
            row[:] = handcrafted_features(image)
        return vectors


def handcrafted_features(image: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return colour and texture statistics of one image.

    In this order:

    - 9 colour moments: mean, standard deviation and cube root of the third moment of R, G, B (Stricker and Orengo
      1995, "Similarity of color images", doi:10.1117/12.205308);
    - 24 shares of pixels in 8 equal bins of R, G, B (Swain and Ballard 1991, "Color indexing",
      doi:10.1007/BF00130487);
    - 8 sums of saturation in equal bins of hue, and mean and standard deviation of saturation and of value, in the
      hexcone model (Smith 1978, "Color gamut transform pairs", doi:10.1145/965139.807361);
    - 20 shares of rotation-invariant uniform local binary patterns at 1 and 2 pixels
      (:func:`local_binary_pattern_shares`);
    - 72 oriented gradients: 8 unsigned orientations weighted by gradient magnitude in 3 x 3 cells, divided by their
      Euclidean norm (Dalal and Triggs 2005, doi:10.1109/CVPR.2005.177);
    - 10 grey-level co-occurrence statistics of 8 grey levels at 1 and 3 pixels (:func:`cooccurrence_statistics`);
    - 8 spectral energies: log10 of the mean power in rings of equal width up to half a cycle per pixel, the corners
      in the outermost (Field 1987, doi:10.1364/JOSAA.4.002379).

    Args:
        image: (3, h, w), RGB in [0, 1], at least 16 x 16; values outside are clipped (resampling overshoots).

    Returns:
        float64 (155,); all NaN where a pixel is not finite. A constant image has finite features.
    """
    if not np.isfinite(image).all():
        return np.full(N_HANDCRAFTED, np.nan)
    rgb = np.clip(image.astype(np.float64), 0.0, 1.0)
    # Written out: a matrix product may round differently for another memory layout.
    grey = LUMA[0] * rgb[0] + LUMA[1] * rgb[1] + LUMA[2] * rgb[2]
    return np.concatenate(
        [
            _colour_moments(rgb),
            _colour_shares(rgb),
            _hue_saturation_value(rgb),
            *(local_binary_pattern_shares(grey, radius) for radius in LBP_RADII),
            _oriented_gradients(grey),
            *(cooccurrence_statistics(grey_level_cooccurrence(_levels(grey), px)) for px in COOCCURRENCE_PX),
            _spectral_energies(grey),
        ]
    )


def local_binary_pattern_shares(grey: NDArray[np.float64], radius: int) -> NDArray[np.float64]:
    """Return the shares of rotation-invariant uniform local binary patterns.

    A pixel's pattern says which of its 8 neighbours are at least as bright. A pattern with at most two changes along
    the ring is uniform and falls in the bin of its number of ones, 0 to 8; all others share the last bin (LBP riu2 of
    Ojala, Pietikainen and Maenpaa 2002, equation 9, doi:10.1109/TPAMI.2002.1017623). The neighbours are those at
    chessboard distance ``radius`` along rows, columns and diagonals, so none is interpolated.

    Args:
        grey: (h, w).
        radius: distance of the neighbours in pixels; pixels closer to the border have no pattern.

    Returns:
        float64 (10,), sums to 1. A constant image has share 1 in bin 8.
    """
    h, w = grey.shape
    centre = grey[radius : h - radius, radius : w - radius]
    code = np.zeros(centre.shape, dtype=np.uint8)
    ring = [(-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1)]
    for bit, (down, right) in enumerate(ring):
        top, left = radius * (1 + down), radius * (1 + right)
        neighbour = grey[top : top + centre.shape[0], left : left + centre.shape[1]]
        code |= (neighbour >= centre).astype(np.uint8) << np.uint8(bit)
    return np.bincount(_uniform_pattern_bins()[code.ravel()], minlength=10) / code.size


def grey_level_cooccurrence(
    levels: NDArray[np.intp], distance: int, n_levels: int = N_GREY_LEVELS
) -> NDArray[np.float64]:
    """Return how often two grey levels lie ``distance`` pixels apart.

    Counted along rows, columns and both diagonals, in both directions, all in one matrix (Haralick, Shanmugam and
    Dinstein 1973, section "Gray-tone spatial-dependence matrices", doi:10.1109/TSMC.1973.4309314; there the four
    directions have a matrix each).

    Args:
        levels: integers (h, w) in [0, n_levels); both sides longer than ``distance``.
        distance: pixels, at least 1; along a diagonal both steps.
        n_levels: number of grey levels.

    Returns:
        float64 (n_levels, n_levels) counts, symmetric.

    Example:
        >>> grey_level_cooccurrence(np.array([[0, 1], [0, 1]]), 1, 2).tolist()
        [[2.0, 4.0], [4.0, 2.0]]
    """
    d = distance
    pairs = [
        (levels[:, :-d], levels[:, d:]),
        (levels[:-d], levels[d:]),
        (levels[:-d, :-d], levels[d:, d:]),
        (levels[:-d, d:], levels[d:, :-d]),
    ]
    counts = np.zeros(n_levels**2)
    for one, other in pairs:
        counts += np.bincount((one * n_levels + other).ravel(), minlength=n_levels**2)
    matrix = counts.reshape(n_levels, n_levels)
    return matrix + matrix.T


def cooccurrence_statistics(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return angular second moment, contrast, correlation, inverse difference moment and entropy.

    Haralick et al. (1973), appendix I, statistics 1, 2, 3, 5 and 9, natural logarithm.

    Args:
        counts: (k, k), symmetric, not all zero.

    Returns:
        float64 (5,): in (0, 1], [0, (k - 1)^2], [-1, 1], (0, 1] and [0, 2 log k]. The correlation of an image of one
        level is 0/0 and set to 1, as if every pixel told its neighbour's level.
    """
    p = counts / counts.sum()
    i, j = np.indices(p.shape)
    mean = (i * p).sum()
    variance = ((i - mean) ** 2 * p).sum()
    covariance = ((i - mean) * (j - mean) * p).sum()
    occurring = p[p > 0]
    return np.array(
        [
            (p**2).sum(),
            ((i - j) ** 2 * p).sum(),
            covariance / variance if variance > 0 else 1.0,
            (p / (1 + (i - j) ** 2)).sum(),
            -(occurring * np.log(occurring)).sum(),
        ]
    )


def _handcrafted(card: EncoderCard) -> HandcraftedFeatures:
    spec = card.preprocessing
    assert spec is not None  # load_encoder looked
    if spec.value_range != "0_1" or any(spec.mean) or set(spec.std) != {1.0}:
        raise ConfigError(
            f"encoder {card.id!r}: handcrafted features read colours in [0, 1], and the card's preprocessing has "
            f"value_range {spec.value_range}, mean {list(spec.mean)}, std {list(spec.std)}: set them to 0_1, 0 and 1."
        )
    if spec.input_px < MIN_PX:
        raise ConfigError(
            f"encoder {card.id!r}: preprocessing.input_px is {spec.input_px}, and handcrafted features need at least "
            f"{MIN_PX}: enlarge it."
        )
    return HandcraftedFeatures()


def _random_vit(card: EncoderCard, device: str) -> ImageEncoder:
    from crsbench_assets.config.machine import torch_device
    from crsbench_assets.encoders.timm_models import network_encoder, untrained_network

    assert card.weights is not None  # load_encoder looked
    assert card.preprocessing is not None
    name = card.weights.hub_id
    if name is None or not name.startswith("vit_"):
        raise ConfigError(
            f"encoder {card.id!r}: weights.hub_id is {name!r}, and baselines.random_vit needs timm's name of a vision "
            "transformer, such as vit_tiny_patch16_224."
        )
    network = untrained_network(name, img_size=card.preprocessing.input_px)
    return network_encoder(card, network, random_weights(network.state_dict()), torch_device(device))


def random_weights(like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return random weights of the shapes of a vision transformer's.

    As timm initialises it: normal with standard deviation 0.02 (timm cuts at +-2, which is 100 standard deviations),
    biases 0, norms the identity. Unlike there, patch projection and class token have this distribution too. Every
    tensor is drawn by its name from the uniform stream, so neither torch's generator, nor the order of the tensors,
    nor NumPy's way to normal numbers matters.

    Args:
        like: name -> tensor, of which the shapes are read.

    Returns:
        float32 tensors under the same names.
    """
    import torch

    weights = {}
    for name, tensor in like.items():
        shape = tuple(tensor.shape)
        if name.endswith(".bias"):
            values = np.zeros(shape)
        elif len(shape) == 1:
            values = np.ones(shape)
        else:
            values = INITIAL_SD * ndtri(keyed_generator("random_vit", name).random(shape))
        weights[name] = torch.from_numpy(values.astype(np.float32))
    return weights


def _colour_moments(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    means = rgb.mean(axis=(1, 2))
    centred = rgb - means[:, None, None]
    squared = centred * centred
    third = np.cbrt((squared * centred).mean(axis=(1, 2)))
    return np.concatenate([means, np.sqrt(squared.mean(axis=(1, 2))), third])


def _colour_shares(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    bins = np.minimum((rgb * N_COLOUR_BINS).astype(np.intp), N_COLOUR_BINS - 1).reshape(3, -1)
    bins += N_COLOUR_BINS * np.arange(3)[:, None]
    return np.bincount(bins.ravel(), minlength=3 * N_COLOUR_BINS) / bins.shape[1]


def _hue_saturation_value(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    red, green, blue = rgb.reshape(3, -1)
    value = np.maximum(np.maximum(red, green), blue)
    chroma = value - np.minimum(np.minimum(red, green), blue)
    saturation = np.divide(chroma, value, out=np.zeros_like(value), where=value > 0)
    safe = np.where(chroma > 0, chroma, 1.0)
    sixths = np.select(
        [value == red, value == green],
        [((green - blue) / safe) % 6.0, (blue - red) / safe + 2.0],
        (red - green) / safe + 4.0,
    )
    bins = (sixths * (N_COLOUR_BINS / 6.0)).astype(np.intp) % N_COLOUR_BINS
    # A grey pixel has no hue; its saturation of 0 keeps it out of the sums.
    hues = np.bincount(bins, weights=saturation, minlength=N_COLOUR_BINS) / len(value)
    return np.concatenate([hues, [saturation.mean(), saturation.std(), value.mean(), value.std()]])


def _oriented_gradients(grey: NDArray[np.float64]) -> NDArray[np.float64]:
    down, right = np.gradient(grey)
    # Bins are centred on the axes, so that the sign of a rounding error does not choose the bin of an upright edge.
    orientation = np.rint(np.arctan2(down, right) * (N_ORIENTATIONS / np.pi)).astype(np.intp) % N_ORIENTATIONS
    place = _cells(*grey.shape) * N_ORIENTATIONS + orientation
    n_bins = N_CELLS**2 * N_ORIENTATIONS
    sums = np.bincount(place.ravel(), weights=np.hypot(down, right).ravel(), minlength=n_bins) / grey.size
    shares: NDArray[np.float64] = sums / np.sqrt((sums**2).sum() + 1e-8)  # a constant image has no gradient
    return shares


def _levels(grey: NDArray[np.float64]) -> NDArray[np.intp]:
    return np.minimum((grey * N_GREY_LEVELS).astype(np.intp), N_GREY_LEVELS - 1)


def _spectral_energies(grey: NDArray[np.float64]) -> NDArray[np.float64]:
    power = np.abs(fft.fft2(grey - grey.mean())) ** 2 / grey.size**2
    bands, sizes = _bands(*grey.shape)
    mean_power = np.bincount(bands.ravel(), weights=power.ravel(), minlength=N_BANDS) / sizes
    energies: NDArray[np.float64] = np.log10(mean_power + 1e-10)  # the step of 8-bit pixels is above this
    return energies


@lru_cache(maxsize=1)
def _uniform_pattern_bins() -> NDArray[np.intp]:
    """Return the bin of each of the 256 patterns."""
    bits = (np.arange(256)[:, None] >> np.arange(8)) & 1
    n_changes = (bits != np.roll(bits, 1, axis=1)).sum(axis=1)
    return np.where(n_changes <= 2, bits.sum(axis=1), 9)


@lru_cache(maxsize=8)
def _cells(h: int, w: int) -> NDArray[np.intp]:
    """Return the number of the cell that each pixel lies in."""
    rows, columns = np.arange(h) * N_CELLS // h, np.arange(w) * N_CELLS // w
    return rows[:, None] * N_CELLS + columns


@lru_cache(maxsize=8)
def _bands(h: int, w: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the ring of each frequency, and the number of frequencies per ring."""
    frequency = np.hypot(fft.fftfreq(h)[:, None], fft.fftfreq(w))
    bands = np.minimum((frequency * 2 * N_BANDS).astype(np.intp), N_BANDS - 1)
    return bands, np.bincount(bands.ravel(), minlength=N_BANDS)
