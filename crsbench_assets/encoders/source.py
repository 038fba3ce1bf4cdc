"""What every kind of encoder offers to the extraction.

What lives here: the interface, and the choice of its implementation. What stays out: the kinds themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from crsbench_assets.config.cards import IMAGE_KINDS, DatasetCard, EncoderCard
from crsbench_assets.config.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Machine:
    """How vectors are computed on this machine; none of it changes them beyond rounding.

    Args:
        device: ``auto``, or a device of torch.
        batch_size: images of a forward pass.
        n_threads: threads that decode, corrupt and resize.
        scratch: folder for finished parts of a long extraction, so that what was cut off goes on; None keeps none.
    """

    device: str = "auto"
    batch_size: int = 32
    n_threads: int = 1
    scratch: Path | None = None


class VectorSource(Protocol):
    """Vectors of the images of one dataset by one encoder."""

    nan_reason: str
    """Reason code of a vector that is NaN throughout: ``missing`` where there is none, ``not_finite`` where it was
    computed."""

    def begin(self, wanted: Mapping[str, pl.DataFrame], known: Collection[str], progress: Progress) -> None:
        """Look at everything that will be asked for.

        Args:
            wanted: condition id -> rows of table ``images``, sorted by image id.
            known: ids of all conditions that somebody may have vectors for.
            progress: called with one line now and then.

        Raises:
            ConfigError: the encoder names a condition that is not among ``known``, or its weights cannot be loaded.
            StorageError: an image changed since it was indexed.
        """
        ...

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

    def unchanged(self, condition_id: str) -> Collection[str]:
        """Return the ids of the images that a corruption left as they were, pixel by pixel."""
        ...

    def wrong_width(self, condition_id: str) -> Collection[str]:
        """Return the ids of the images whose vector is not as wide as most vectors of the encoder."""
        ...


def vector_source(encoder: EncoderCard, dataset: DatasetCard, machine: Machine) -> VectorSource:
    """Return the vectors of an encoder on a dataset.

    Raises:
        ConfigError: the kind is not available in this version.
    """
    from crsbench_assets.encoders.images import ImageVectors
    from crsbench_assets.encoders.precomputed import PrecomputedVectors
    from crsbench_assets.encoders.synthetic import SyntheticVectors

    if encoder.kind == "precomputed":
        return PrecomputedVectors(encoder, dataset)
    if encoder.kind == "synthetic":
        return SyntheticVectors(encoder, dataset)
    if encoder.kind in IMAGE_KINDS:
        return ImageVectors(encoder, dataset, machine)
    raise ConfigError(f"encoder {encoder.id!r}: this version cannot load encoders of kind {encoder.kind} yet.")
