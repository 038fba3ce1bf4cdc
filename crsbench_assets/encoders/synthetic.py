"""Synthetic encoders: vectors whose reliability is planted.

What lives here: the generator. What stays out: which settings plant which axis values (the cards say it; they were
measured by ``benchmarks/plant_synthetic.py``).

An image with labels y has the vector ``r * [s * m(y) + e, v]``, rotated. ``m(y)`` places the classes apart by
``signal``; ``e`` is unit noise; ``v`` are nuisance dimensions, which cost labels; the norm ``r`` is
``exp(+-norm_spread)`` with equal chances and says nothing about the class, so a linear probe is too sure of long
vectors and too unsure of short ones, which spoils calibration; ``s`` is 1 on clean images and smaller the more
``fragility`` and severity take away.

Noise and norm are shared by all encoders for the most part: they see the same image, and what is hard for one is hard
for the others. Differences between encoders are therefore known better than the values themselves, as in a real
benchmark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from crsbench_assets.config.cards import DatasetCard, EncoderCard
from crsbench_assets.config.ids import CLEAN
from crsbench_assets.config.randomness import keyed_generator

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from crsbench_assets.encoders.source import Progress

SHARED_NOISE = 0.95
"""Share of the variance of every draw that all encoders of a dataset have in common."""

STRONGEST_SEVERITY = 5
KIND_WEIGHT = {"gaussian_noise": 1.0, "blur": 0.8, "brightness": 0.4, "contrast": 0.5, "jpeg": 0.6}
"""How much of ``fragility`` each corruption takes at the strongest severity."""

SHIFT_WEIGHT = 0.8
"""How much of ``fragility`` a shift target takes."""


class SyntheticVectors:
    """Vectors of one synthetic encoder on one dataset; each depends on its names and settings alone."""

    nan_reason = "not_finite"

    def __init__(self, encoder: EncoderCard, dataset: DatasetCard) -> None:
        self._encoder_id, self._dataset = encoder.id, dataset
        self._settings = encoder.cells[dataset.id]
        self._drawn: dict[str, NDArray[np.float64]] = {}

    def vectors(self, condition_id: str, image_ids: Sequence[str], labels: NDArray[np.int8]) -> NDArray[np.float32]:
        """See :class:`crsbench_assets.encoders.source.VectorSource`; ``labels`` plant the signal."""
        import numpy as np

        k = len(self._dataset.classes)
        width = k + self._settings.n_nuisance
        # every condition of an image starts from the same noise, so it is drawn once
        for image_id in image_ids:
            if image_id not in self._drawn:
                self._drawn[image_id] = self._draw(image_id, width)
        drawn = np.array([self._drawn[image_id] for image_id in image_ids]).reshape(-1, 1 + width)
        noise = drawn[:, 1:].copy()
        kept, extra = self._corruption(condition_id)
        if extra > 0:
            for i, image_id in enumerate(image_ids):
                # the corrupted image is one and the same for all encoders
                added = keyed_generator("synthetic_noise", self._dataset.id, image_id, condition_id)
                noise[i, :k] += extra * added.standard_normal(k)
        noise[:, :k] += kept * self._settings.signal * self._placement(labels)
        norm = np.exp(self._settings.norm_spread * np.sign(drawn[:, :1]))
        vectors: NDArray[np.float32] = ((norm * noise) @ self._rotation(width)).astype(np.float32)
        return vectors

    def wrong_width(self, condition_id: str) -> Collection[str]:
        """Return no id: all vectors are drawn with one width."""
        return ()

    def begin(self, wanted: Mapping[str, pl.DataFrame], known: Collection[str], progress: Progress) -> None:
        """Do nothing: a vector is drawn when it is asked for, so none is left unused."""

    def unchanged(self, condition_id: str) -> Collection[str]:
        """Return no id: there are no pixels."""
        return ()

    def _draw(self, image_id: str, width: int) -> NDArray[np.float64]:
        """Return what is random about an image, (1 + width,): the sign of its log norm, then noise."""
        # a stream is read from its start, so narrow and wide encoders share what both have
        shared = keyed_generator("synthetic_image", self._dataset.id, image_id).standard_normal(1 + width)
        own_key = ("synthetic_vector", self._encoder_id, self._dataset.id, image_id)
        own = keyed_generator(*own_key).standard_normal(1 + width)
        drawn: NDArray[np.float64] = SHARED_NOISE**0.5 * shared + (1.0 - SHARED_NOISE) ** 0.5 * own
        return drawn

    def _corruption(self, condition_id: str) -> tuple[float, float]:
        """Return (share of the signal kept, standard deviation of the noise added) under a condition."""
        fragility = self._settings.fragility
        if condition_id == CLEAN:
            return 1.0, 0.0
        if condition_id.startswith("shift_"):
            return 1.0 - SHIFT_WEIGHT * fragility, 0.0
        kind, _, severity = condition_id.rpartition("-s")
        lost = fragility * KIND_WEIGHT[kind] * int(severity) / STRONGEST_SEVERITY
        return (1.0, 2.0 * lost) if kind == "gaussian_noise" else (1.0 - lost, 0.0)

    def _placement(self, labels: NDArray[np.int8]) -> NDArray[np.float64]:
        """Return the place of every image in units of ``signal``, (n, k)."""
        import numpy as np

        positive: NDArray[np.float64] = (labels == 1).astype(np.float64)
        if self._dataset.task == "multi_label":
            return positive - 0.5
        if self._dataset.task == "ordinal":
            grades = np.arange(labels.shape[1])
            positive = np.exp(-np.abs(grades[:, None] - grades))[labels.argmax(axis=1)]  # neighbours lie close
        centred: NDArray[np.float64] = positive - positive.mean(axis=1, keepdims=True)
        return centred

    def _rotation(self, width: int) -> NDArray[np.float64]:
        import numpy as np

        generator = keyed_generator("synthetic_rotation", self._encoder_id, self._dataset.id)
        orthogonal: NDArray[np.float64] = np.linalg.qr(generator.standard_normal((width, width))).Q
        return orthogonal
