"""Networks: what turns prepared images into vectors, and how a card becomes one.

What lives here: the interface of an image encoder and the choice of its implementation. What stays out: how images
are read and prepared (``images``), the stream of batches (``encoders.images``), and the implementations: one module
for each library (``timm_models``, ``open_clip_models``, ``transformer_models``), ``baselines`` for controls.
Source: protocol page, section 2 (an encoder's vector of an image depends on that image alone).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crsbench_assets.config.cards import IMAGE_KINDS, EncoderCard
from crsbench_assets.config.errors import ConfigError, CrsbenchError, reason_of
from crsbench_assets.encoders.pooling import PoolingError
from crsbench_assets.encoders.weights import remember_weights


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
        card: of a kind that reads images. ``weights.loader`` chooses the implementation; ``module:Class`` names one of
            an installed package, which is called with card and device.
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
    if card.kind not in IMAGE_KINDS or (card.weights is not None and not card.weights.is_loadable):
        loader = f" by loader {card.weights.loader!r}" if card.weights else ""
        raise ConfigError(f"encoder {card.id!r}: this version cannot load encoders of kind {card.kind}{loader}.")
    absent = [name for name in ("weights", "preprocessing", "embedding") if getattr(card, name) is None]
    if card.weights is None or card.preprocessing is None or card.embedding is None:
        raise ConfigError(
            f"encoder {card.id!r} is of kind {card.kind}, and its card has no {' and no '.join(absent)}: add what "
            "is missing."
        )
    loader = card.weights.loader
    try:
        encoder = _loader(loader)(card, device)
        vectors = _of_black_image(encoder, card.preprocessing.input_px)
    except CrsbenchError:
        raise
    except PoolingError as error:
        raise ConfigError(f"encoder {card.id!r}: {error}; correct embedding.pooling in its card.") from None
    except ModuleNotFoundError as missing:
        remedy = "install it, or correct weights.loader" if ":" in loader else "pip install 'crsbench[encoders]'"
        raise ConfigError(
            f"encoder {card.id!r} needs the package {missing.name}, which is not installed: {remedy}."
        ) from None
    except (Exception, SystemExit) as error:  # code of other people: a library's, or the class that the card names
        remedy = "the code that weights.loader names" if ":" in loader else "embedding and preprocessing in its card"
        raise ConfigError(
            f"encoder {card.id!r}: loader {loader!r} failed ({type(error).__name__}: {reason_of(error)}): correct "
            f"{remedy}."
        ) from error
    if vectors.shape[1] != card.embedding.dim:
        raise ConfigError(
            f"encoder {card.id!r}: its vectors are {vectors.shape[1]} wide, and its card says embedding.dim "
            f"{card.embedding.dim}: correct the card, or name the weights that it means."
        )
    if card.weights.has_files:
        remember_weights(card)
    return encoder


def _of_black_image(encoder: ImageEncoder, px: int) -> NDArray[np.float32]:
    """Return the vector of a black image, once it is certain that there is an encoder and that it gives vectors.

    Raises:
        TypeError: what was found instead.
    """
    lacking = [name for name in ("dim", "is_on_processor", "encode") if not hasattr(encoder, name)]
    if lacking:
        raise TypeError(f"a {type(encoder).__name__} without {', '.join(lacking)} is no image encoder")
    vectors = encoder.encode(np.zeros((1, 3, px, px), dtype=np.float32))
    found = f"{vectors.dtype} {vectors.shape}" if isinstance(vectors, np.ndarray) else type(vectors).__name__
    is_row = isinstance(vectors, np.ndarray) and vectors.ndim == 2 and len(vectors) == 1
    if not is_row or vectors.dtype != np.float32:
        raise TypeError(f"encode of one image gives {found}, expected NumPy's float32 (1, d)")
    return vectors


def _loader(name: str) -> Callable[[EncoderCard, str], ImageEncoder]:
    """Return what builds the encoder of a card with this loader; its library is imported here."""
    if ":" in name:
        return _installed(name)
    if name.startswith("baselines."):
        from crsbench_assets.encoders.baselines import baseline

        return baseline
    if name == "open_clip":
        from crsbench_assets.encoders.open_clip_models import open_clip_encoder

        return open_clip_encoder
    if name in ("transformers", "checkpoints.llava_med"):
        from crsbench_assets.encoders.transformer_models import transformers_encoder

        return transformers_encoder
    from crsbench_assets.encoders.timm_models import timm_encoder

    return timm_encoder


def _installed(name: str) -> Callable[[EncoderCard, str], ImageEncoder]:
    """Return the class or function of an installed package that a card names as ``module:Class``."""
    module, _, attribute = name.partition(":")
    found: Callable[[EncoderCard, str], ImageEncoder] | None = getattr(import_module(module), attribute, None)
    if found is None:
        raise ConfigError(f"loader {name!r}: the module {module} has no {attribute}: correct weights.loader.")
    return found
