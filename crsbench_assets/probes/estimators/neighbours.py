"""``knn``: weighted nearest neighbours by cosine.

What lives here: the vote of the neighbours and its smoothing. What stays out: the z-scores that it starts from
(``probes.fit``).

Similarity is the cosine of z-scored features; the k = 20 nearest images vote with weight exp(cosine / 0.07): Wu et
al. 2018, Unsupervised Feature Learning via Non-Parametric Instance Discrimination, arXiv:1805.01978, section 3.4; k =
20 from Caron et al. 2021, Emerging Properties in Self-Supervised Vision Transformers, arXiv:2104.14294, section 4.1.
k is a fixed rule, so no label is spent on a choice. A vote can be unanimous, and its likelihood then zero; one more
neighbour as near as the nearest votes with the frequencies of the subset (the m-estimate with m = 1: Cestnik 1990,
Estimating Probabilities: A Crucial Task in Machine Learning), so that every loss is finite. This smoothing is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crsbench_assets.probes.estimators.interface import Selection, trainable_columns

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task

N_NEIGHBOURS = 20
TEMPERATURE = 0.07

CHUNK_BYTES = 32 * 2**20
"""Size of the block of similarities that is held at once; sorting it takes four times as much."""


@dataclass(frozen=True)
class NeighbourModel:
    """The subset itself: unit vectors float32 (n, d) and labels int8 (n, k)."""

    directions: NDArray[np.float32]
    labels: NDArray[np.int8]
    task: Task
    selection: Selection

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return log p (n, k), for multi-label log p - log(1 - p), NaN in columns that were not fitted."""
        fitted = trainable_columns(self.labels, self.task)
        z = np.full((len(features), len(fitted)), np.nan)
        if not fitted.any():
            return z
        positives, known = self.labels[:, fitted] == 1, self.labels[:, fitted] >= 0
        prior = positives.sum(axis=0) / known.sum(axis=0)
        n_rows = max(1, CHUNK_BYTES // (4 * len(self.directions)))
        for start in range(0, len(features), n_rows):
            rows = slice(start, start + n_rows)
            nearest, weights = self._neighbours(features[rows])
            votes = np.einsum("qn,qnk->qk", weights, positives[nearest]) + prior
            if self.task == "multi_label":
                against = np.einsum("qn,qnk->qk", weights, (known & ~positives)[nearest]) + (1 - prior)
                z[rows, fitted] = np.log(votes) - np.log(against)
            else:
                z[rows, fitted] = np.log(votes / votes.sum(axis=1, keepdims=True))
        return z

    def _neighbours(self, features: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return row numbers and weights (q, k) of the nearest images; the nearest weighs 1."""
        similarity = unit_rows(features) @ self.directions.T
        k = min(N_NEIGHBOURS, similarity.shape[1])
        nearest = np.argpartition(similarity, similarity.shape[1] - k, axis=1)[:, -k:]
        cosine = np.take_along_axis(similarity, nearest, axis=1).astype(np.float64)
        return nearest, np.exp((cosine - cosine.max(axis=1, keepdims=True)) / TEMPERATURE)


@dataclass(frozen=True)
class NearestNeighbours:
    """Weighted k nearest neighbours, k = min(20, n)."""

    name: str = "knn"

    def fit(
        self,
        features: NDArray[np.float32],
        labels: NDArray[np.int8],
        task: Task,
        *,
        groups: NDArray[np.int64],
        names: tuple[object, ...],
    ) -> NeighbourModel:
        """See :class:`~crsbench_assets.probes.estimators.interface.Estimator`; groups and names play no part.

        Among equally near images at the border of the k the choice is NumPy's, the same for the same rows. A
        neighbour with an unknown label does not vote on that label.
        """
        del groups, names
        is_fitted = bool(trainable_columns(labels, task).any())
        selection = Selection(float(min(N_NEIGHBOURS, len(features))) if is_fitted else None)
        return NeighbourModel(unit_rows(features), labels, task, selection)


def unit_rows(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rows scaled to length 1, float32 (n, d); a row of zeros stays, and is equally near to all.

    Example:
        >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32)).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    return np.asarray(features / np.where(norm > 0, norm, 1.0), dtype=np.float32)
