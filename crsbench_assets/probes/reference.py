"""scikit-learn as the reference solver of one logistic problem.

What lives here: which of its solvers are tried, and how its parametrisation becomes ours. What stays out: the interface
and the certificate (``logistic``), which judges these fits as it judges ours, and the batched solver (``solver``).
Source: Pedregosa et al. (2011), Scikit-learn: Machine Learning in Python, JMLR 12, 2825-2830; protocol page, section 4.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_ITER = 10_000
GRADIENT_TOLERANCE = 1e-12
"""scikit-learn's ``tol`` bounds the mean gradient; this one lets a solver go as far as rounding allows."""
NEWTON_MAX_COEFFICIENTS = 600
"""Up to this many coefficients a Newton step (a dense Hessian) is cheaper than many L-BFGS steps."""


def reference_fits(
    features: NDArray[np.float64], target: NDArray[np.int64], n_outputs: int, c: float
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], int, str]]:
    """Yield fits of one problem by scikit-learn's solvers, the quickest first; the caller stops at a good one.

    Args:
        features: (n, d).
        target: (n,): 0 or 1 for one output; the class 0..k-1 for k outputs, all present.
        n_outputs: 1 for an independent unit, k >= 2 for a softmax with k weight vectors.
        c: weight of the loss.

    Yields:
        Weights (outputs, d), intercepts (outputs,) with sum 0 for a softmax, iterations, and the solver's name.
    """
    import numpy as np
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    n, d = features.shape
    basis, reduced = None, features
    if n < d:
        # the penalty does not see rotations, and weights outside of the row space only cost
        basis, triangle = np.linalg.qr(features.T)
        reduced = np.ascontiguousarray(triangle.T)
    # two softmax vectors of which one is minus the other pay half the penalty of one vector of twice their length
    effective_c = 2.0 * c if n_outputs == 2 else c
    coefficients = reduced.shape[1] * (1 if n_outputs <= 2 else n_outputs)
    quick = coefficients <= NEWTON_MAX_COEFFICIENTS
    for name in ("newton-cholesky", "lbfgs") if quick else ("lbfgs", "newton-cg"):
        model: Any = LogisticRegression(C=effective_c, solver=name, tol=GRADIENT_TOLERANCE, max_iter=MAX_ITER)
        with warnings.catch_warnings():
            # whether it converged is decided by our certificate, not by the solver's own opinion
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", RuntimeWarning)
            model.fit(reduced, target)
        weights, intercept = model.coef_, model.intercept_
        if basis is not None:
            weights = weights @ basis.T
        if n_outputs == 2:
            weights, intercept = np.vstack([-weights, weights]) / 2, np.concatenate([-intercept, intercept]) / 2
        elif n_outputs > 2:
            intercept = intercept - intercept.mean()
        yield weights, intercept, int(np.max(model.n_iter_)), name
