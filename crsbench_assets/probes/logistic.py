"""The logistic probe: its objective, its certificate, and the solver behind one interface.

What lives here: :func:`fit_logistic`, which returns weights together with a certified bound of how far they are from
the optimum. What stays out: which rows a probe sees (``fit``) and its metrics (``metrics``).

The objective is ``1/2 ||W||^2 + C sum_i loss_i`` with a free intercept. It is 1-strongly convex in W, so with the
intercept solved ``f - f* <= 1/2 ||grad f||^2`` (Nesterov 2004, theorem 2.1.10): the gradient certifies the fit,
whichever solver made it. The solver is scikit-learn's; the certificate is ours and in float64.
Source: protocol page, section 4.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_ITER = 10_000
GRADIENT_TOLERANCE = 1e-8
"""scikit-learn's ``tol`` bounds the mean gradient; this one leaves a gap far below the protocol's 1e-8."""

NEWTON_MAX_COEFFICIENTS = 600
"""Up to this many coefficients a Newton step (a dense Hessian) is cheaper than many L-BFGS steps."""


@dataclass(frozen=True)
class LogisticFit:
    """A fitted probe with its certificate.

    Args:
        weights: float64 (k, d); one row for each output.
        intercept: float64 (k,).
        objective: value of the objective.
        grad_norm: Euclidean norm of its gradient, intercepts included.
        relative_gap: ``1/2 grad_norm^2 / max(1, objective)``.
        n_iter: iterations of the solver.
        solver: which one.
    """

    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    objective: float
    grad_norm: float
    relative_gap: float
    n_iter: int
    solver: str


@dataclass(frozen=True)
class Design:
    """Standardised features, float64 (n, d), and what several labels fitted on them share."""

    features: NDArray[np.float64]

    @cached_property
    def row_space(self) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """See :func:`row_space`."""
        return row_space(self.features)


def fit_logistic(
    design: Design | NDArray[np.float64], target: NDArray[np.int64], n_outputs: int, c: float
) -> LogisticFit:
    """Return the probe that minimises the objective.

    Args:
        design: float64 (n, d), standardised; as a :class:`Design` where several fits share them.
        target: int (n,): for one output 0 or 1, both present; for k outputs the class 0..k-1, all present.
        n_outputs: 1 for an independent logistic unit, k >= 2 for softmax with k weight vectors whose intercepts
            sum to 0.
        c: weight of the loss.

    Raises:
        ValueError: an output has no image, a programming error: such outputs are not fitted at all.
    """
    import numpy as np

    design = design if isinstance(design, Design) else Design(design)
    features = design.features
    present = np.unique(target)
    if present.size != max(2, n_outputs):
        raise ValueError(f"{n_outputs} output(s) but {present.size} value(s) of the target")
    # two softmax vectors of which one is minus the other pay half the penalty of one vector of twice their length
    effective_c = 2.0 * c if n_outputs == 2 else c
    reduced, basis = design.row_space
    coefficients = reduced.shape[1] * (1 if n_outputs <= 2 else n_outputs)
    solvers = ("newton-cholesky", "lbfgs") if coefficients <= NEWTON_MAX_COEFFICIENTS else ("lbfgs", "newton-cg")
    best: LogisticFit | None = None
    for solver in solvers:
        model = _solve(reduced, target, effective_c, solver)
        weights, intercept = model.coef_, model.intercept_
        if basis is not None:
            weights = weights @ basis.T
        if n_outputs == 2:
            weights, intercept = np.vstack([-weights, weights]) / 2, np.concatenate([-intercept, intercept]) / 2
        elif n_outputs > 2:
            intercept = intercept - intercept.mean()
        fit = _certified(features, target, weights, intercept, c, int(np.max(model.n_iter_)), solver)
        if best is None or fit.relative_gap < best.relative_gap:
            best = fit
        if best.relative_gap <= 1e-10:
            break
    assert best is not None
    return best


def row_space(features: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Return features in an orthonormal basis of their row space where that is smaller, and the basis (d, n).

    The penalty does not see rotations and pays for every weight outside of the row space without gain, so with fewer
    images than dimensions the optimum is found among n coefficients per output instead of d, exactly.

    Args:
        features: float64 (n, d).

    Returns:
        (n, min(n, d)) and the basis, or the features themselves and None where n >= d.
    """
    import numpy as np

    n, d = features.shape
    if n >= d:
        return features, None
    basis, triangle = np.linalg.qr(features.T)
    return np.ascontiguousarray(triangle.T), basis


def _solve(features: NDArray[np.float64], target: NDArray[np.int64], c: float, solver: str) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=c, solver=solver, tol=GRADIENT_TOLERANCE, max_iter=MAX_ITER)
    with warnings.catch_warnings():
        # whether it converged is decided by our certificate, not by the solver's own opinion
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(features, target)


def _certified(
    features: NDArray[np.float64],
    target: NDArray[np.int64],
    weights: NDArray[np.float64],
    intercept: NDArray[np.float64],
    c: float,
    n_iter: int,
    solver: str,
) -> LogisticFit:
    import numpy as np

    objective, residual = objective_and_residual(features, target, weights, intercept, c)
    gradient = weights + c * residual.T @ features
    grad_norm = float(np.sqrt(np.sum(gradient**2) + np.sum((c * residual.sum(axis=0)) ** 2)))
    gap = 0.5 * grad_norm**2 / max(1.0, objective)
    return LogisticFit(weights, intercept, objective, grad_norm, gap, n_iter, f"sklearn:{solver}")


def objective_and_residual(
    features: NDArray[np.float64],
    target: NDArray[np.int64],
    weights: NDArray[np.float64],
    intercept: NDArray[np.float64],
    c: float,
) -> tuple[float, NDArray[np.float64]]:
    """Return the objective and the derivative of the loss by the logits, (n, outputs).

    One output means an independent logistic unit, several a softmax.
    """
    import numpy as np
    from scipy.special import expit, log_expit, log_softmax

    logits = features @ weights.T + intercept
    if weights.shape[0] == 1:
        y = target[:, None].astype(np.float64)
        loss = -(y * log_expit(logits) + (1 - y) * log_expit(-logits)).sum()
        residual = expit(logits) - y
    else:
        log_p = log_softmax(logits, axis=1)
        rows = np.arange(target.size)
        loss = -log_p[rows, target].sum()
        residual = np.exp(log_p)
        residual[rows, target] -= 1.0
    return float(0.5 * np.sum(weights**2) + c * loss), residual
