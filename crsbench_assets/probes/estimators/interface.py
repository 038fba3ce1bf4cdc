"""What every estimator promises, and the forms that fitted ones share.

What lives here: the protocol :class:`Estimator`, what a fitted one says of itself (:class:`Selection`), the linear
form, and which columns can be fitted at all. What stays out: the estimators (one module each), the folds by which
they choose (``folds``), and the protocol's own probe (``probes.fit``).

The rules hold for all of them: features are z-scored as the probe's; a label with one value in the subset, a class
without an image in it, and everything where one class is left are not fitted and have NaN logits; an unknown label
(-1) enters nothing; what is chosen is chosen inside the label budget. Source: protocol page, sections 4 and 8,
``estimator_dependence``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task

CHUNK_ROWS = 8192
"""Rows that are widened to float64 at once."""


@dataclass(frozen=True)
class Selection:
    """How the setting of a fitted estimator was chosen.

    Attributes:
        setting: C of ``tuned_c``, the penalty of ``ridge``, neighbours of ``knn``, steps of ``mlp``; None where
            nothing was fitted.
        n_folds: parts of the subset that were held out in turn; 0 where a fixed rule chose, because the estimator
            has one or the subset is too small for two folds.
        loss: mean held-out loss under the setting, None without folds. Nats for ``tuned_c`` and ``mlp``, squared
            error for ``ridge``; smaller is better.
    """

    setting: float | None
    n_folds: int = 0
    loss: float | None = None


class FittedEstimator(Protocol):
    """A fitted estimator."""

    @property
    def selection(self) -> Selection:
        """How its setting was chosen."""

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return float64 logits (n, k) of z-scored features (n, d), NaN in columns that were not fitted.

        Their softmax over the fitted columns, for multi-label their logistic function, is the probability.
        """


class Estimator(Protocol):
    """One way to turn a label subset into a model."""

    @property
    def name(self) -> str:
        """As it stands in ``estimator_records.estimator``."""

    def fit(
        self,
        features: NDArray[np.float32],
        labels: NDArray[np.int8],
        task: Task,
        *,
        groups: NDArray[np.int64],
        names: tuple[object, ...],
    ) -> FittedEstimator:
        """Fit a label subset.

        Args:
            features: float32 (n, d), z-scored, n >= 1.
            labels: int8 (n, k): 1, 0, -1 unknown; one-hot unless multi-label.
            task: "single_label", "ordinal" or "multi_label".
            groups: (n,) group of every image; what is held out together. Equal numbers are one group.
            names: key of every draw, such as (dataset, seed).
        """


@dataclass(frozen=True)
class LinearModel:
    """A linear model: ``weights`` float64 (k, d) and ``intercept`` float64 (k,), NaN rows where not fitted.

    ``relative_gap``: largest certified gap of its problems (``probes.logistic``), None for a closed form.
    """

    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    selection: Selection
    relative_gap: float | None = None

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return ``features @ weights.T + intercept``, float64 (n, k)."""
        z = np.empty((len(features), len(self.weights)))
        for start in range(0, len(features), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            z[rows] = features[rows].astype(np.float64) @ self.weights.T + self.intercept
        return z


def trainable_columns(labels: NDArray[np.int8], task: Task) -> NDArray[np.bool_]:
    """Return which classes or labels a subset can teach, bool (k,).

    Single-label: the classes with an image, if there are at least two; multi-label: the labels with both values.
    Without images none.

    Example:
        >>> trainable_columns(np.array([[1, 0, 0], [0, 1, 0]], dtype=np.int8), "single_label")
        array([ True,  True, False])
    """
    has_positive = (labels == 1).any(axis=0)
    if task == "multi_label":
        return np.asarray(has_positive & (labels == 0).any(axis=0))
    return np.asarray(has_positive & (np.count_nonzero(has_positive) >= 2))
