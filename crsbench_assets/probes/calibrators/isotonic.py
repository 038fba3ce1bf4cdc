"""Isotonic calibration: a rising step function per class, one against the rest.

What lives here: the fit of the steps and their application. What stays out: the families that are affine in the
logits (``affine``), and whether a fit is accepted (``probes.calibrate``).
Source: Zadrozny and Elkan (2002), KDD, 694-699, doi:10.1145/775047.775151 (isotonic regression of one class against
the rest, normalised); protocol page, section 8. The regression is SciPy's (pool adjacent violators); between the
images that were fitted the curve is linear, beyond them constant, as in scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.special import expit, logit

from crsbench_assets.probes.calibrators.affine import log_softmax

CLIP = 1e-6
"""Calibrated probabilities lie in [CLIP, 1 - CLIP]."""


@dataclass(frozen=True)
class Curve:
    """A rising curve: ``heights`` in [0, 1] at the distinct probabilities ``knots``, ascending."""

    knots: NDArray[np.float64]
    heights: NDArray[np.float64]


@dataclass(frozen=True)
class Steps:
    """Fitted curves of K classes, or of the second class alone where the input is a margin."""

    curves: tuple[Curve, ...]

    @property
    def is_at_bound(self) -> bool:
        """Whether a column has no step strictly between 0 and 1: its class is separated, or absent."""
        heights = [curve.heights for curve in self.curves]
        return any(bool(((y <= CLIP) | (y >= 1.0 - CLIP)).all()) for y in heights)

    def apply(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return calibrated logits (n, K), or margins (n, 1), of the same input as was fitted.

        Probabilities are normalised over the classes (a row of zeros becomes uniform), then clipped at :data:`CLIP`;
        the logits are their logarithms, so that the softmax of them is the probabilities.
        """
        q = _probabilities(logits)
        raw = np.column_stack([np.interp(q[:, c], f.knots, f.heights) for c, f in enumerate(self.curves)])
        if len(self.curves) == 1:
            return np.asarray(logit(np.clip(raw, CLIP, 1.0 - CLIP)))
        total = raw.sum(axis=1, keepdims=True)
        uniform = np.full(raw.shape, 1.0 / raw.shape[1])
        normalised = np.divide(raw, total, out=uniform, where=total > 0)
        return np.asarray(np.log(np.clip(normalised, CLIP, 1.0 - CLIP)))


def fit_steps(logits: NDArray[np.float64], truth: NDArray[np.intp]) -> Steps:
    """Return the isotonic fit of every column.

    Args:
        logits: (n, K) with K >= 3, or margins (n, 1); n >= 1.
        truth: (n,), class 0..K-1, or 0 or 1.
    """
    q = _probabilities(logits)
    classes = range(1, 2) if q.shape[1] == 1 else range(q.shape[1])
    return Steps(tuple(_curve(q[:, column], truth == c) for column, c in enumerate(classes)))


def _curve(q: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> Curve:
    knots, of_image, n = np.unique(q, return_inverse=True, return_counts=True)
    frequency = np.bincount(of_image, is_positive) / n
    return Curve(knots, np.asarray(isotonic_regression(frequency, weights=n).x))


def _probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(expit(logits) if logits.shape[1] == 1 else np.exp(log_softmax(logits, axis=1)))
