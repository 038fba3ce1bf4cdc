"""``ridge``: least squares on the labels, its penalty and its probabilities from held-out scores in closed form.

What lives here: the penalised fit in the principal axes of the subset, exact leave-one-group-out scores for a whole
grid of penalties, and their calibration. What stays out: the folds of the estimators without a closed form
(``folds``).

Targets are 0 and 1, the intercept is free. With H = 1/n + Z D Z' the hat matrix and G the rows of a group, what the
fit without the group would say of it is y_G - (I - H_GG)^-1 (y - Hy)_G; for groups of one image this is the PRESS
residual e / (1 - h): Allen 1974, The Relationship between Variable Selection and Data Augmentation and a Method for
Prediction, doi:10.1080/00401706.1974.10489157; Golub, Heath and Wahba 1979, Generalized Cross-Validation as a Method
for Choosing a Good Ridge Parameter, doi:10.1080/00401706.1979.10489751. Ridge states no probabilities. A softmax of
slope times score plus offsets is fitted to the held-out scores, with targets smoothed as in Platt 1999, Probabilistic
Outputs for Support Vector Machines, so that separable scores keep finite logits; for two outcomes it is his method.
Source: protocol page, section 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from crsbench_assets.probes.estimators.interface import CHUNK_ROWS, LinearModel, Selection, trainable_columns

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task

GRID = tuple(10.0 ** (i / 2) for i in range(14, -7, -1))
"""Penalties from 1e7 to 1e-3 in half decades, the most regularised first."""

NOISE = 1e-9
"""Root mean square of held-out scores, on the scale of labels of 0 and 1, up to which they are rounding."""
SLOPES = (1e-3, 1e3)
"""Bounds of the slope of a score scaled to a root mean square of 1. Where held-out scores say nothing, or the reverse
of the labels, as in ten images they may, the lower one keeps the order that the scores have."""


@dataclass(frozen=True)
class Ridge:
    """Ridge regression; the penalty has the smallest leave-one-group-out squared error, mean over classes or labels."""

    name: str = "ridge"

    def fit(
        self,
        features: NDArray[np.float32],
        labels: NDArray[np.int8],
        task: Task,
        *,
        groups: NDArray[np.int64],
        names: tuple[object, ...],
    ) -> LinearModel:
        """See :class:`~crsbench_assets.probes.estimators.interface.Estimator`; nothing is drawn.

        One penalty serves all classes or labels. Labels with the same known images share one decomposition. Where all
        known images of a label are one group, they are held out one by one.
        """
        del names
        fitted = np.flatnonzero(trainable_columns(labels, task))
        weights, intercept = np.full((labels.shape[1], features.shape[1]), np.nan), np.full(labels.shape[1], np.nan)
        if fitted.size == 0:
            return LinearModel(weights, intercept, Selection(None))
        known, of_label = np.unique(labels[:, fitted] >= 0, axis=1, return_inverse=True)
        parts = []
        for j in range(known.shape[1]):
            rows, columns = np.flatnonzero(known[:, j]), fitted[of_label == j]
            targets = labels[np.ix_(rows, columns)].astype(np.float64)
            parts.append((columns, targets, RidgePath(features[rows], targets, groups[rows])))
        errors = np.concatenate([((t - path.held_out) ** 2).mean(axis=1) for _, t, path in parts], axis=1)
        best = int(errors.mean(axis=1).argmin())
        selection = Selection(GRID[best], min(path.n_groups for _, _, path in parts), float(errors[best].mean()))
        for columns, targets, path in parts:
            slopes, offsets = _calibration(path.deviations(best), targets, task)
            raw = path.weights(best)
            weights[columns] = slopes[:, None] * raw
            # the score is the deviation from the subset's mean, at the subset's mean features
            intercept[columns] = offsets - weights[columns] @ path.mean
        return LinearModel(weights, intercept, selection)


class RidgePath:
    """Ridge fits of several targets on the same images, for the whole grid of penalties.

    Args:
        features: float32 (n, d), n >= 2.
        targets: float64 (n, t).
        groups: (n,) what is held out together; where there is one group, every image is its own.

    Attributes:
        mean: float64 (d,), mean of the features.
        n_groups: parts held out in turn.
        held_out: float64 (penalties, n, t): what the fit without an image's group says of it.
    """

    def __init__(self, features: NDArray[np.float32], targets: NDArray[np.float64], groups: NDArray[np.int64]) -> None:
        self._targets, self._target_mean = targets, targets.mean(axis=0)
        self.mean = features.mean(axis=0, dtype=np.float64)
        self._axes, self._spread = _principal_axes(features, self.mean)
        self._projected = np.zeros((self._axes.shape[1], targets.shape[1]))
        for rows in _chunks(len(features)):
            self._projected += self._scores(features[rows]).T @ (targets[rows] - self._target_mean)
        sizes = np.unique(groups, return_counts=True)[1]
        self._group_of = np.arange(len(groups)) if sizes.size < 2 else np.unique(groups, return_inverse=True)[1]
        self.n_groups = int(self._group_of.max()) + 1
        self.held_out = self._held_out(features)

    def weights(self, penalty: int) -> NDArray[np.float64]:
        """Return the weights (t, d) under the penalty of this place in the grid."""
        return np.asarray((self._axes @ (self._projected * self._shrinkage(penalty)[:, None])).T)

    def deviations(self, penalty: int) -> NDArray[np.float64]:
        """Return the held-out scores less the mean target of the images that they were fitted on, (n, t).

        Without an image the mean of the others moves away from its target, so the held-out scores of a fit that has
        learned nothing would rank all images the wrong way round.
        """
        n = len(self._targets)
        sums = np.zeros((self.n_groups, self._targets.shape[1]))
        np.add.at(sums, self._group_of, self._targets)
        sizes = np.bincount(self._group_of)[:, None]
        mean_of_others = (self._target_mean * n - sums) / (n - sizes)
        return np.asarray(self.held_out[penalty] - mean_of_others[self._group_of])

    def _scores(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray((features.astype(np.float64) - self.mean) @ self._axes)

    def _shrinkage(self, penalty: int) -> NDArray[np.float64]:
        return np.asarray(1.0 / (self._spread + GRID[penalty]))

    def _held_out(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        n = len(features)
        held_out = np.empty((len(GRID), n, self._targets.shape[1]))
        for block in _blocks(self._group_of):
            m, size = block.shape
            scores = self._scores(features[block.ravel()]).reshape(m, size, -1)
            deviation = self._targets[block] - self._target_mean
            for i in range(len(GRID)):
                shrunk = scores * self._shrinkage(i)
                residual = deviation - shrunk @ self._projected
                left = np.eye(size) - 1.0 / n - shrunk @ scores.transpose(0, 2, 1)
                held_out[i, block] = self._targets[block] - np.linalg.solve(left, residual)
        return held_out


def _principal_axes(
    features: NDArray[np.float32], mean: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return orthonormal axes (d, r) and the sums of squares along them (r,), float64.

    With fewer images than dimensions they come from the products of images: what lies outside of their span has
    weight 0 under any penalty.
    """
    n, d = features.shape
    if n < d:
        centred = features - mean
        spread, basis = np.linalg.eigh(centred @ centred.T)
        alive = spread > spread[-1] * n * np.finfo(np.float64).eps
        spread, basis = spread[alive], basis[:, alive]
        return centred.T @ (basis / np.sqrt(spread)), spread
    gram = np.zeros((d, d))
    for rows in _chunks(n):
        centred = features[rows] - mean
        gram += centred.T @ centred
    spread, axes = np.linalg.eigh(gram)
    return axes, np.maximum(spread, 0.0)


def _blocks(group_of: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield row numbers (m, size) of groups of equal size, at most :data:`CHUNK_ROWS` rows of several groups."""
    by_group = np.argsort(group_of, kind="stable")
    sizes = np.bincount(group_of)
    first = np.cumsum(sizes) - sizes
    for size in np.unique(sizes):
        starts = first[sizes == size]
        n_groups = max(1, CHUNK_ROWS // int(size))
        for start in range(0, len(starts), n_groups):
            yield by_group[starts[start : start + n_groups, None] + np.arange(size)]


def _chunks(n: int) -> Iterator[slice]:
    for start in range(0, n, CHUNK_ROWS):
        yield slice(start, start + CHUNK_ROWS)


def _calibration(
    scores: NDArray[np.float64], targets: NDArray[np.float64], task: Task
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return slopes and offsets (t,) of the logits; single-label classes share one slope."""
    if task != "multi_label":
        slope, offsets = softmax_calibration(scores, targets)
        return np.full(len(offsets), slope), offsets
    pairs = [
        softmax_calibration(np.stack([-s, s], axis=1) / 2, np.stack([1 - t, t], axis=1))
        for s, t in zip(scores.T, targets.T, strict=True)
    ]
    return np.array([slope for slope, _ in pairs]), np.array([offsets[1] - offsets[0] for _, offsets in pairs])


def softmax_calibration(scores: NDArray[np.float64], targets: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return slope and offsets (k,) for which softmax(slope * scores + offsets) fits the targets best.

    The targets are smoothed to (n_c + 1) / (n_c + k) for the true class c of n_c images and 1 / (n_c + k) for the
    others, Platt's rule for two classes; the offsets sum to 0. The slope lies within :data:`SLOPES` over the scores'
    root mean square. Convex, solved by L-BFGS-B. Scores that are 0 but for rounding state nothing: the offsets
    are the smoothed frequencies, and the least slope keeps the order.

    Args:
        scores: float64 (n, k), n >= 1.
        targets: one-hot float64 (n, k).
    """
    from scipy.optimize import minimize

    n, k = scores.shape
    counts = targets.sum(axis=0)
    smoothed = _smoothed(targets)
    prior = np.log(counts + 1.0)
    scale = float(np.sqrt((scores**2).mean()))
    if scale <= NOISE:
        return SLOPES[0], prior - prior.mean()
    unit = scores / scale

    def objective(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        log_p = log_softmax(parameters[0] * unit + parameters[1:], axis=1)
        residual = (np.exp(log_p) - smoothed) / n
        gradient = np.concatenate([[np.sum(residual * unit)], residual.sum(axis=0)])
        return -float(np.sum(smoothed * log_p)) / n, gradient

    found = minimize(
        objective,
        np.concatenate([[1.0], prior - prior.mean()]),
        jac=True,
        method="L-BFGS-B",
        bounds=[SLOPES, *[(None, None)] * k],
        options={"ftol": 1e-14, "gtol": 1e-9, "maxiter": 1000},
    )
    return float(found.x[0]) / scale, np.asarray(found.x[1:] - found.x[1:].mean())


def _smoothed(targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Platt's targets: each row of class c is (one-hot n_c + 1) / (n_c + k)."""
    n_true = (targets @ targets.sum(axis=0))[:, None]
    return np.asarray((targets * n_true + 1.0) / (n_true + targets.shape[1]))
