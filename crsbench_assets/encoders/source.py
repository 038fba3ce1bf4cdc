"""What every kind of encoder offers to the extraction.

What lives here: the interface, and the choice of its implementation. What stays out: the kinds themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from crsbench_assets.config.cards import DatasetCard, EncoderCard
from crsbench_assets.config.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class VectorSource(Protocol):
    """Vectors of the images of one dataset by one encoder."""

    def vectors(
        self, condition_id: str, image_ids: Sequence[str], labels: NDArray[np.int8]
    ) -> NDArray[np.float32] | None:
        """Return the vectors under a condition.

        Args:
            condition_id: ``clean``, a corruption, or a shift target.
            image_ids: n ids, in the order wanted.
            labels: int8 (n, k); synthetic encoders plant their signal by them, others do not look.

        Returns:
            float32 (n, d), a row of NaN where the encoder has no vector of width d for the image; None where it has
            none for the whole condition.
        """
        ...

    def wrong_width(self, condition_id: str) -> Collection[str]:
        """Return the ids of the images whose vector is not as wide as most vectors of the encoder."""
        ...

    def require_known(self, conditions: Collection[str]) -> None:
        """Refuse vectors that nobody would look at.

        Raises:
            ConfigError: the encoder names a condition that is not among ``conditions``.
        """
        ...


def vector_source(encoder: EncoderCard, dataset: DatasetCard) -> VectorSource:
    """Return the vectors of an encoder on a dataset.

    Raises:
        ConfigError: the kind is not available in this version.
    """
    from crsbench_assets.encoders.precomputed import PrecomputedVectors
    from crsbench_assets.encoders.synthetic import SyntheticVectors

    if encoder.kind == "precomputed":
        return PrecomputedVectors(encoder, dataset)
    if encoder.kind == "synthetic":
        return SyntheticVectors(encoder, dataset)
    raise ConfigError(f"encoder {encoder.id!r}: this version cannot load encoders of kind {encoder.kind} yet.")
