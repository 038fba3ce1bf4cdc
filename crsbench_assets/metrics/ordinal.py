"""Agreement of predicted and true grades.

What lives here: quadratic weighted kappa and the mean absolute error of ordered classes.
What stays out: how a grade is predicted (the argmax, ``compute``).
Source: Cohen (1968), Psychological Bulletin 70, 213-220, doi:10.1037/h0026256; protocol page, section 5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def quadratic_weighted_kappa(truth: NDArray[np.intp], predicted: NDArray[np.intp], n_classes: int) -> float | None:
    """Return Cohen's kappa with quadratic weights, in [-1, 1]; larger is better, 0 is chance agreement.

    kappa = 1 - sum_ij w_ij O_ij / sum_ij w_ij E_ij with w_ij = (i - j)^2, O the confusion counts and E those
    expected from the margins (Cohen 1968). The usual factor 1 / (k - 1)^2 cancels.

    Args:
        truth: (n,) true grades, 0 to k - 1.
        predicted: (n,) predicted grades, 0 to k - 1.
        n_classes: k.

    Returns:
        The kappa, or None where no disagreement is possible by the margins: no images, or truth and
        prediction are one and the same constant grade.

    Example:
        >>> quadratic_weighted_kappa(np.array([0, 1, 2]), np.array([0, 1, 2]), 3)
        1.0
    """
    observed = np.bincount(truth * n_classes + predicted, minlength=n_classes**2).reshape(n_classes, n_classes)
    grades = np.arange(n_classes)
    weights = (grades[:, None] - grades[None, :]) ** 2
    expected = np.outer(observed.sum(axis=1), observed.sum(axis=0))
    chance = int((weights * expected).sum())
    if chance == 0:
        return None
    return 1.0 - float(len(truth) * (weights * observed).sum()) / chance


def ordinal_mean_absolute_error(truth: NDArray[np.intp], predicted: NDArray[np.intp]) -> float | None:
    """Return the mean absolute difference of grades, in [0, k - 1] grades; smaller is better.

    Args:
        truth: (n,) true grades.
        predicted: (n,) predicted grades.

    Returns:
        The error, or None without images.

    Example:
        >>> ordinal_mean_absolute_error(np.array([0, 1, 4]), np.array([0, 3, 3]))
        1.0
    """
    if len(truth) == 0:
        return None
    return float(np.abs(truth - predicted).mean())
