"""Networks: what turns prepared images into vectors, and how a card becomes one.

What lives here: the interface of an image encoder and the choice of its implementation. What stays out: how images
are read and prepared (``images``), the stream of batches (``encoders.images``), and the implementations:
``timm_models`` for networks, ``baselines`` for controls.
Source: protocol page, section 2 (an encoder's vector of an image depends on that image alone).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crsbench_assets.config.cards import EncoderCard
from crsbench_assets.config.errors import ConfigError


class ImageEncoder(Protocol):
    """A frozen encoder of images."""

    dim: int
    """Width d of a vector."""

    is_on_processor: bool
    """Whether passes run on the processor's cores, one each, so that several at once are faster."""

    def encode(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the vectors of a batch.

        The vector of an image is the same in every batch, up to the rounding of a matrix product whose shape follows
        the batch; two calls on one batch give the same bits. An image that holds NaN has a vector that holds NaN.

        Args:
            batch: float32 (n, 3, h, w), images as the card's preprocessing makes them; n may be 0.

        Returns:
            float32 (n, d).
        """
        ...


def load_encoder(card: EncoderCard, device: str = "cpu") -> ImageEncoder:
    """Return the encoder that a card describes, ready to encode.

    Random generators of torch, NumPy and Python are left as they were.

    Args:
        card: kind ``timm`` or ``baseline``.
        device: ``auto`` (cuda, else mps, else cpu), or a device of torch; handcrafted features stay on the processor.

    Raises:
        ConfigError: the kind or loader is not available in this version, a package or file is missing, the weights
            are not those of the card, the device is not there, or the vectors are not pooled as or as wide as the card
            says.

    Example:
        >>> from crsbench_assets.config.cards import EncoderCard
        >>> black = {"input_px": 96, "resize_px": 96, "resize_mode": "squash", "crop": "none", "antialias": True,
        ...          "interpolation": "bilinear", "mean": (0, 0, 0), "std": (1, 1, 1)}
        >>> card = EncoderCard.model_validate({
        ...     "id": "handcrafted", "name": "Handcrafted", "kind": "baseline", "role": "control",
        ...     "weights": {"loader": "baselines.handcrafted"}, "preprocessing": black,
        ...     "embedding": {"pooling": "gap", "dim": 155, "n_blocks": 1}})
        >>> load_encoder(card).encode(np.zeros((2, 3, 96, 96), np.float32)).shape
        (2, 155)
    """
    if card.kind not in ("timm", "baseline"):
        raise ConfigError(f"encoder {card.id!r}: this version cannot load encoders of kind {card.kind} yet.")
    absent = [name for name in ("weights", "preprocessing", "embedding") if getattr(card, name) is None]
    if card.preprocessing is None or card.embedding is None or absent:
        raise ConfigError(
            f"encoder {card.id!r} is of kind {card.kind}, and its card has no {' and no '.join(absent)}: add what "
            "is missing."
        )
    try:
        encoder = _timm_encoder(card, device) if card.kind == "timm" else _baseline(card, device)
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"encoder {card.id!r} needs the package {missing.name}, which is not installed: "
            "pip install 'crsbench[encoders]'."
        ) from None
    px = card.preprocessing.input_px
    try:
        width = encoder.encode(np.zeros((1, 3, px, px), dtype=np.float32)).shape[1]
    except ValueError as error:
        raise ConfigError(f"encoder {card.id!r}: {error}; correct embedding.pooling in its card.") from None
    if width != card.embedding.dim:
        raise ConfigError(
            f"encoder {card.id!r}: its vectors are {width} wide, and its card says embedding.dim {card.embedding.dim}: "
            "correct the card, or name the weights that it means."
        )
    return encoder


def _timm_encoder(card: EncoderCard, device: str) -> ImageEncoder:
    from crsbench_assets.encoders.timm_models import timm_encoder

    return timm_encoder(card, device)


def _baseline(card: EncoderCard, device: str) -> ImageEncoder:
    from crsbench_assets.encoders.baselines import baseline

    return baseline(card, device)
