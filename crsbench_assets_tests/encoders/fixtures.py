"""The demo panel's encoder cards, and images for them."""

from __future__ import annotations

from functools import cache

import numpy as np

from crsbench_assets.config.cards import EncoderCard
from crsbench_assets.config.registry import CATALOG
from crsbench_assets.config.yaml_files import read_yaml
from crsbench_assets.encoders.networks import ImageEncoder, load_encoder

CANDIDATES = (
    "efficientnet_lite0",
    "efficientnet_lite0_mid",
    "efficientnet_lite1",
    "efficientnet_lite2",
    "efficientnet_lite2_mid",
)
CONTROLS = ("handcrafted", "random_vit")
ALL = CANDIDATES + CONTROLS


def card(encoder_id: str) -> EncoderCard:
    return EncoderCard.model_validate(read_yaml(CATALOG / "panels" / "demo" / "encoders" / f"{encoder_id}.yaml"))


def changed(encoder_id: str, part: str, **fields: object) -> EncoderCard:
    """Return a card with other fields in one of its parts."""
    original = card(encoder_id)
    return original.model_copy(update={part: getattr(original, part).model_copy(update=fields)})


@cache
def loaded(encoder_id: str) -> ImageEncoder:
    return load_encoder(card(encoder_id))


def noise_images(n: int, px: int = 64) -> np.ndarray:
    return np.random.default_rng(0).random((n, 3, px, px), dtype=np.float32)
