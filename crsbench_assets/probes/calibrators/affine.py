"""Temperature, vector and Dirichlet calibration: softmax of an affine map of the logits.

What lives here: the three families, their bounds and penalties, the one objective that they share with its
derivatives, and its minimum. What stays out: isotonic regression (``isotonic``), the optimiser (``newton``), and
whether a fit is accepted (``probes.calibrate``).
Source: Guo et al. (2017), ICML, arXiv 1706.04599, section 4.2 (temperature and vector scaling); Platt (1999), Advances
in Large Margin Classifiers, 61-74 (its two-class form); Kull et al. (2019), NeurIPS, arXiv 1910.12656, section 3
(Dirichlet calibration with off-diagonal and intercept regularisation, ODIR); Kull, Silva Filho and Flach (2017),
AISTATS, PMLR 54, 623-631 (beta calibration, its two-class form); protocol page, section 8.

Every family is ``softmax(W x + b)`` of features x of the logits, linear in its parameters, hence convex. With three
or more classes:

- temperature: x = z, W = I / T, b = 0;
- vector: x = z, W = diag(a);
- Dirichlet: x = ln q, W and b free, penalised by ``lambda / (K (K - 1)) sum_{i != j} W_ij^2 + lambda / K sum_j b_j^2``.

With two classes (and per label of a multi-label task) only the margin m = z_1 - z_0 counts: m / T, a m + b, and
``alpha ln q_1 - beta ln q_0 + c``. The last is Dirichlet with K = 2: the unpenalised diagonal takes up whatever the
off-diagonal weights would do, so those are 0 at the optimum, and the least b for a given c = b_1 - b_0 is +-c / 2, so
the penalty is ``lambda c^2 / 4``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from crsbench_assets.probes.calibrators.newton import Derivatives, Minimum, bounded_minimum

AffineMethod = Literal["temperature", "vector", "dirichlet"]

MAX_SCALE = 20.0
"""Temperatures lie in [1/20, 20], so do the scales of vector scaling: a negative one would reverse the ranking.
Weights of Dirichlet calibration lie in [-20, 20], which holds I / T for every such temperature."""

MAX_OFFSET = 20.0
"""Offsets lie in [-20, 20] nats: odds of 5e8, more than any validation set tells."""

LEAST_PROBABILITY = 1e-12
"""Probabilities are clipped here before their logarithm."""

PENALTIES = tuple(10.0**e for e in (2.0, 0.5, -1.0, -2.5, -4.0))
"""lambda of Dirichlet calibration, strongest first: 1e-4 to 1e2, evenly on the log scale."""

_PORTION_ENTRIES = 500_000  # entries of one intermediate array: 4 MB, so that it stays in the cache


@dataclass(frozen=True)
class Family:
    """A family of maps with p parameters between K logits and K logits; ``n_classes`` is 2 for a margin.

    Attributes:
        method: its name.
        n_classes: K.
        embedding: (K d, p), takes parameters to the weights (K, d) of the d features, row by row; None where they
            are the weights.
        identity: (p,), parameters of the map that changes nothing.
        low, high: (p,), the box.
        penalty: (p, p), quadratic form Q; the objective has lambda / 2 times it.
        penalties: values of lambda to choose from.
    """

    method: AffineMethod
    n_classes: int
    embedding: NDArray[np.float64] | None
    identity: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    penalty: NDArray[np.float64]
    penalties: tuple[float, ...] = (1.0,)

    def features(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the features (n, d) of logits (n, K), or of margins (n, 1)."""
        ones = np.ones((len(logits), 1))
        if self.method == "temperature":
            return logits
        if self.method == "vector":
            return np.hstack([logits, ones])
        if self.n_classes == 2:
            least = np.log(LEAST_PROBABILITY)
            log_q1, log_q0 = (np.maximum(-np.logaddexp(0.0, sign * logits), least) for sign in (-1.0, 1.0))
            return np.hstack([log_q1, -log_q0, ones])
        return np.hstack([np.maximum(log_softmax(logits.T).T, np.log(LEAST_PROBABILITY)), ones])

    def weights(self, parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weights (..., K, d) of parameters (..., p)."""
        flat = parameters if self.embedding is None else parameters @ self.embedding.T
        return flat.reshape(*parameters.shape[:-1], self.n_classes, -1)

    def apply(self, parameters: NDArray[np.float64], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return calibrated logits (n, K), or margins (n, 1), from parameters (p,)."""
        mapped = self.features(logits) @ self.weights(parameters).T
        return mapped[:, 1:] if self.n_classes == 2 else mapped


def affine_family(method: AffineMethod, n_classes: int) -> Family:
    """Return a family of calibration maps.

    Args:
        method: which.
        n_classes: K; 2 makes the family of margins.
    """
    k = n_classes
    if method == "temperature":
        embedding = np.array([[0.0], [1.0]]) if k == 2 else np.eye(k).reshape(-1, 1)
        low, high = np.array([1 / MAX_SCALE]), np.array([MAX_SCALE])
        return Family(method, k, embedding, np.ones(1), low, high, np.zeros((1, 1)))
    if method == "vector":
        n_scales = 1 if k == 2 else k
        scales, offsets = np.arange(n_scales), np.arange(n_scales, 2 * n_scales)
        identity = np.where(np.arange(2 * n_scales) < n_scales, 1.0, 0.0)
        high = np.where(identity == 1.0, MAX_SCALE, MAX_OFFSET)
        low = np.where(identity == 1.0, 1 / MAX_SCALE, -MAX_OFFSET)
        penalty = np.zeros((2 * n_scales, 2 * n_scales))
        if k == 2:
            embedding = np.vstack([np.zeros((2, 2)), np.eye(2)])
            return Family(method, k, embedding, identity, low, high, penalty)
        cells = np.zeros((k, k + 1, 2 * k))
        cells[scales, scales, scales] = 1.0
        cells[scales, k, offsets] = 1.0
        # Softmax does not see a constant added to all offsets; this fixes their sum at 0 and moves nothing else.
        penalty[k:, k:] = 1.0 / k**2
        return Family(method, k, cells.reshape(-1, 2 * k), identity, low, high, penalty)
    if k == 2:
        embedding = np.vstack([np.zeros((3, 3)), np.eye(3)])
        high = np.array([MAX_SCALE, MAX_SCALE, MAX_OFFSET])
        identity = np.array([1.0, 1.0, 0.0])
        return Family(method, k, embedding, identity, -high, high, np.diag([0.0, 0.0, 0.5]), PENALTIES)
    weights = np.hstack([np.eye(k), np.zeros((k, 1))])
    high = np.hstack([np.full((k, k), MAX_SCALE), np.full((k, 1), MAX_OFFSET)]).ravel()
    odir = np.hstack([(1.0 - np.eye(k)) * 2.0 / (k * (k - 1)), np.full((k, 1), 2.0 / k)])
    return Family(method, k, None, weights.ravel(), -high, high, np.diag(odir.ravel()), PENALTIES)


@dataclass(frozen=True)
class AffineProblem:
    """Images to fit a family to: logits (n, K) or margins (n, 1), and true classes (n,)."""

    family: Family
    logits: NDArray[np.float64]
    truth: NDArray[np.intp]

    @cached_property
    def transposed(self) -> NDArray[np.float64]:
        """Features, (d, n)."""
        return np.ascontiguousarray(self.family.features(self.logits).T)

    def losses(self, parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the loss (b, n) of every image under parameters (b, p), in nats."""
        log_p = log_softmax(self.family.weights(parameters) @ self.transposed, axis=1)
        return -log_p[:, self.truth, np.arange(self.truth.size)]

    def derivatives(
        self, parameters: NDArray[np.float64], image_weights: NDArray[np.float64], penalties: NDArray[np.float64]
    ) -> Derivatives:
        """Return the penalised mean losses of b problems with their derivatives.

        Args:
            parameters: (b, p).
            image_weights: (b, n), each row summing to 1: which images a problem sees.
            penalties: (b,), lambda of each problem.
        """
        family, x = self.family, self.transposed
        b, (d, n), k = len(parameters), x.shape, family.n_classes
        log_p = log_softmax(family.weights(parameters) @ x, axis=1)
        images = np.arange(n)
        value = -(image_weights * log_p[:, self.truth, images]).sum(axis=1)
        p = np.exp(log_p)
        residual = p.copy()
        residual[:, self.truth, images] -= 1.0
        residual *= image_weights[:, None, :]
        gradient = (residual @ x.T).reshape(b, k * d)
        hessian = np.empty((b, k * d, k * d))
        # sum_i w_i (diag(p_i) - p_i p_i^T) (x) x_i x_i^T, in portions so that memory does not grow with b
        portion = max(1, _PORTION_ENTRIES // max(1, k * d * n))
        for first in range(0, b, portion):
            part = slice(first, first + portion)
            spread = (p[part, :, None, :] * x).reshape(-1, k * d, n)
            weighted = spread * image_weights[part, None, :]
            np.matmul(-weighted, spread.transpose(0, 2, 1), out=hessian[part])
            blocks = weighted.reshape(-1, k, d, n) @ x.T
            for c in range(k):
                own = slice(c * d, (c + 1) * d)
                hessian[part, own, own] += blocks[:, c]
        if family.embedding is not None:
            gradient = gradient @ family.embedding
            hessian = family.embedding.T @ hessian @ family.embedding
        pull = penalties[:, None] * (parameters @ family.penalty)
        return Derivatives(
            value + 0.5 * (pull * parameters).sum(axis=1),
            gradient + pull,
            hessian + penalties[:, None, None] * family.penalty,
        )

    def fit(self, is_seen: NDArray[np.bool_], penalties: NDArray[np.float64]) -> Minimum:
        """Return the best parameters of b problems.

        Args:
            is_seen: (b, n), the images of each problem, at least one.
            penalties: (b,), lambda of each problem.
        """
        image_weights = is_seen / is_seen.sum(axis=1, keepdims=True)
        family = self.family

        def objective(parameters: NDArray[np.float64], which: NDArray[np.intp]) -> Derivatives:
            return self.derivatives(parameters, image_weights[which], penalties[which])

        start = np.tile(family.identity, (len(is_seen), 1))
        return bounded_minimum(objective, start, family.low, family.high)


def log_softmax(logits: NDArray[np.float64], axis: int = 0) -> NDArray[np.float64]:
    """Return the logarithm of the softmax of finite logits over ``axis``."""
    shifted = logits - logits.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))
