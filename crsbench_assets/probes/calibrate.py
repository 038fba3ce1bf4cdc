"""Post-hoc calibration of a probe: fitted on validation images, accepted only where it can be shown to help.

What lives here: the problems that a task falls into, the rule that accepts a fit, and the calibrated logits. What
stays out: the maps and how they are fitted (``calibrators``), the metrics of calibrated logits (``metrics``), and
which images are validation images (``data.splits``).
Source: Guo et al. (2017), ICML, arXiv 1706.04599; Kull et al. (2019), NeurIPS, arXiv 1910.12656; protocol page,
section 8 (``calibration_repair``).

A fit's own likelihood never falls below that of the identity, so it can refuse nothing. Accepted is a fit

- of which no parameter lies at a bound: there the likelihood still rises, and the bound, not the data, decides. A
  parameter whose standard error is wider than its box counts as lying there: the likelihood is flat as far as the
  bound, as on separated images, where it rises for ever but by less than a float can hold;
- whose loss on images that were held out is below that of the identity by more than one standard error, over
  five-fold cross-validation within the validation images. This is the one-standard-error rule (Breiman, Friedman,
  Olshen and Stone 1984, Classification and Regression Trees, section 3.4.3; Hastie, Tibshirani and Friedman 2009, The
  Elements of Statistical Learning, section 7.10) for paired differences, the identity being the simplest model.
  The error is that of a mean over groups. On calibrated logits "below" alone accepts a one-parameter map in about
  P(chi2_1 > 2) = 16 % of draws; below by one standard error it is 0.6 % for large n, a few per cent for small.
  Among k labels each has its own chance of an accident, so the one-sided level of one standard error (16 %) is
  divided by k (Bonferroni; Dunn 1961, doi:10.1080/01621459.1961.10482090): 2.3 standard errors for 14 labels.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit

from crsbench_assets.metrics.calibration import fitted_columns
from crsbench_assets.probes.calibrators.affine import AffineMethod, AffineProblem, Family, affine_family, log_softmax
from crsbench_assets.probes.calibrators.isotonic import Steps, fit_steps
from crsbench_assets.probes.calibrators.newton import standard_errors
from crsbench_assets.probes.estimators.folds import fold_numbers

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task

Method = Literal["temperature", "vector", "isotonic", "dirichlet"]
METHODS: tuple[Method, ...] = get_args(Method)

Refusal = Literal["one_class_train", "few_validation_images", "at_bound", "one_class_validation", "no_gain"]
"""Why the identity stands."""

BOUND_TOLERANCE = 1e-6


@dataclass(frozen=True)
class AffineMap:
    """A fitted member of a family that is affine in the logits or their logarithmic probabilities."""

    family: Family
    values: NDArray[np.float64]

    def apply(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return calibrated logits (n, K), or margins (n, 1)."""
        return self.family.apply(self.values, logits)


@dataclass(frozen=True)
class Repair:
    """The repair of one problem: of the softmax over some columns, or of one label.

    Attributes:
        columns: columns of the logits that it reads and writes.
        map: the accepted map, None where the identity stands.
        reason: why it stands, None where the map was accepted.
    """

    columns: tuple[int, ...]
    map: AffineMap | Steps | None
    reason: Refusal | None

    @property
    def parameters(self) -> NDArray[np.float64] | None:
        """Parameters of the accepted map, None where the identity stands and for isotonic steps.

        Temperature: T. Vector: scales, then offsets. Dirichlet: weights and offset of every class, row by row. Two
        classes: see ``calibrators.affine``.
        """
        if not isinstance(self.map, AffineMap):
            return None
        return 1.0 / self.map.values if self.map.family.method == "temperature" else self.map.values

    def apply(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the calibrated logits (n, c) of the problem's c columns."""
        if self.map is None:
            return logits
        if len(self.columns) != 2:
            return self.map.apply(logits)
        margin = self.map.apply(logits[:, 1:] - logits[:, :1])
        return np.hstack([-margin, margin]) / 2


@dataclass(frozen=True)
class Calibrator:
    """A post-hoc calibration of k logits: one repair per softmax, or per label of a multi-label task."""

    method: Method
    repairs: tuple[Repair, ...]

    @property
    def n_accepted(self) -> int:
        """Problems whose repair was accepted."""
        return sum(repair.reason is None for repair in self.repairs)

    @property
    def is_accepted(self) -> bool:
        """Whether any repair was accepted; else :meth:`apply` is the identity."""
        return self.n_accepted > 0

    @property
    def reason(self) -> Refusal | None:
        """Why the identity stands, by most problems (ties: the first of them); None where a repair was accepted."""
        if self.is_accepted:
            return None
        return Counter(repair.reason for repair in self.repairs).most_common(1)[0][0]

    @property
    def parameters(self) -> tuple[NDArray[np.float64] | None, ...]:
        """See :attr:`Repair.parameters`, problem by problem."""
        return tuple(repair.parameters for repair in self.repairs)

    @property
    def temperature(self) -> float | None:
        """T where one temperature serves all logits, 1 where it was refused; None for other methods and per label."""
        if self.method != "temperature" or len(self.repairs) != 1:
            return None
        fitted = self.repairs[0].parameters
        return 1.0 if fitted is None else float(fitted[0])

    def apply(self, logits: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return calibrated logits.

        Temperature and vector scaling leave the order of two-class logits and of every label's, hence the AUROC, as it
        was. A softmax is determined up to a constant per image: calibrated two-class logits sum to 0, isotonic ones
        are log probabilities.

        Args:
            logits: (n, k), with NaN in whole columns as in those that the calibrator was fitted to.

        Returns:
            float64 (n, k); NaN stays NaN. Where the identity stands, the same numbers.

        Raises:
            ValueError: ``logits`` are infinite or partly NaN.
        """
        calibrated = np.array(logits, dtype=np.float64)
        fitted = fitted_columns(calibrated)
        for repair in self.repairs:
            columns = list(repair.columns)
            if len(calibrated) and repair.map is not None and fitted[columns].all():
                calibrated[:, columns] = repair.apply(calibrated[:, columns])
        return calibrated


def fit_calibrator(
    method: Method,
    logits: NDArray[np.floating],
    labels: NDArray[np.int8],
    task: Task,
    *,
    key: tuple[object, ...],
    groups: NDArray[np.integer] | None = None,
) -> Calibrator:
    """Return the calibration of a probe, fitted on validation images.

    Labels of a multi-label task are problems of their own, fitted and accepted alone. Two fitted columns of a softmax
    are one problem of their difference. Refused, in this order: fewer than two fitted columns (``one_class_train``);
    no image (``few_validation_images``); an optimum at a bound (``at_bound``), which for every method but temperature a
    class without an image means; too few groups for two folds (``few_validation_images``); images of one class
    (``one_class_validation``); no gain (``no_gain``).

    Args:
        method: temperature, vector (per label: Platt), isotonic or dirichlet (per label: beta).
        logits: (n, k) of validation images; a column of NaN was not fitted and stays out.
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown (left out). An image of a softmax whose class was not
            fitted is left out.
        task: "single_label", "ordinal" or "multi_label".
        key: names that the folds are keyed by, such as dataset and seed.
        groups: (n,) patient, lesion or other group of every image, kept whole by the folds; None: every image is one.

    Returns:
        The calibrator; the same for any order of the images with their groups.

    Raises:
        ValueError: shapes disagree, or logits are infinite or partly NaN.

    Example:
        >>> logits = np.linspace(-8.0, 8.0, 400)[:, None]
        >>> labels = (np.arange(400) % 4 < 1 + 2 * (np.arange(400) >= 200)).astype(np.int8)[:, None]
        >>> fit_calibrator("temperature", logits, labels, "multi_label", key=("doc",)).is_accepted
        True
    """
    if logits.ndim != 2 or logits.shape != labels.shape or (groups is not None and groups.shape != logits.shape[:1]):
        shapes = f"logits {logits.shape}, labels {labels.shape}, groups {None if groups is None else groups.shape}"
        raise ValueError(f"found {shapes}; expected (n, k), (n, k), (n,).")
    exact = np.asarray(logits, dtype=np.float64)
    fitted = fitted_columns(exact)
    of_image = np.arange(len(exact)) if groups is None else np.asarray(groups, dtype=np.int64)
    repairs = []
    if task == "multi_label":
        for column in range(exact.shape[1]):
            known = labels[:, column] >= 0
            truth = labels[known, column].astype(np.intp)
            problem = _Problem(exact[known, column, None], truth, 2, of_image[known], key, exact.shape[1])
            repairs.append(_repair((column,), problem if fitted[column] else None, method))
    else:
        columns = np.flatnonzero(fitted)
        known = (labels[:, columns] == 1).any(axis=1)
        of_columns = exact[np.ix_(known, columns)]
        inputs = of_columns[:, 1:] - of_columns[:, :1] if columns.size == 2 else of_columns
        truth = labels[np.ix_(known, columns)].argmax(axis=1) if columns.size else np.zeros(0, dtype=np.intp)
        problem = _Problem(inputs, truth, columns.size, of_image[known], key, 1)
        repairs.append(_repair(tuple(columns.tolist()), problem if columns.size >= 2 else None, method))
    return Calibrator(method, tuple(repairs))


@dataclass(frozen=True)
class _Problem:
    """Images of one problem: logits (n, K) or margins (n, 1), classes (n,) of K, groups (n,).

    ``key``: of the folds. ``n_problems``: problems that are decided beside each other, this one among them.
    """

    logits: NDArray[np.float64]
    truth: NDArray[np.intp]
    n_classes: int
    groups: NDArray[np.int64]
    key: tuple[object, ...]
    n_problems: int

    def folds(self) -> NDArray[np.int64] | None:
        one_hot = np.eye(self.n_classes, dtype=np.int8)[self.truth]
        return fold_numbers(one_hot, self.groups, "single_label", ("calibration", *self.key))

    def losses(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the loss (n,) of every image under other logits, in nats."""
        if self.n_classes == 2:
            logits = np.hstack([np.zeros_like(logits), logits])
        return -log_softmax(logits, axis=1)[np.arange(self.truth.size), self.truth]


def _repair(columns: tuple[int, ...], problem: _Problem | None, method: Method) -> Repair:
    if problem is None:
        return Repair(columns, None, "one_class_train")
    if problem.truth.size == 0:
        return Repair(columns, None, "few_validation_images")
    n_present = np.unique(problem.truth).size
    if method != "temperature" and n_present < problem.n_classes:
        return Repair(columns, None, "at_bound")
    fitted = _fit_steps(problem) if method == "isotonic" else _fit_affine(problem, method)
    if isinstance(fitted, str):
        return Repair(columns, None, fitted)
    return Repair(columns, fitted, None)


def _fit_affine(problem: _Problem, method: AffineMethod) -> AffineMap | Refusal:
    family = affine_family(method, problem.n_classes)
    affine = AffineProblem(family, problem.logits, problem.truth)
    folds = problem.folds()
    penalties = np.array(family.penalties)
    best = 0
    held_out: NDArray[np.float64] | None = None
    if folds is not None:
        held_out = _held_out_losses(affine, folds, penalties)
        best = int(held_out.mean(axis=1).argmin())
    everyone = np.ones((1, problem.truth.size), dtype=np.bool_)
    found = affine.fit(everyone, penalties[best : best + 1])
    values = found.parameters[0]
    is_at_bound = (values <= family.low + BOUND_TOLERANCE) | (values >= family.high - BOUND_TOLERANCE)
    is_flat = standard_errors(found.hessian[0], problem.truth.size) > family.high - family.low
    if not found.is_solved[0] or (is_at_bound | is_flat).any():
        return "at_bound"
    refusal = _refusal(problem, None if held_out is None else held_out[best])
    return AffineMap(family, values) if refusal is None else refusal


def _held_out_losses(
    affine: AffineProblem, folds: NDArray[np.int64], penalties: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the loss of every image under the fit that did not see its fold, for every penalty: (penalties, n)."""
    n_folds = int(folds.max()) + 1
    is_seen = folds != np.arange(n_folds)[:, None]
    fits = affine.fit(np.tile(is_seen, (penalties.size, 1)), np.repeat(penalties, n_folds))
    losses = affine.losses(fits.parameters).reshape(penalties.size, n_folds, folds.size)
    return losses[:, folds, np.arange(folds.size)]


def _fit_steps(problem: _Problem) -> Steps | Refusal:
    steps = fit_steps(problem.logits, problem.truth)
    if steps.is_at_bound:
        return "at_bound"
    folds = problem.folds()
    if folds is None:
        return "few_validation_images"
    held_out = np.empty(problem.truth.size)
    for fold in range(int(folds.max()) + 1):
        is_out = folds == fold
        part = fit_steps(problem.logits[~is_out], problem.truth[~is_out])
        held_out[is_out] = problem.losses(part.apply(problem.logits))[is_out]
    refusal = _refusal(problem, held_out)
    return steps if refusal is None else refusal


def _refusal(problem: _Problem, held_out: NDArray[np.float64] | None) -> Refusal | None:
    """Return why an inner optimum is refused, given the loss (n,) of every image while it was held out."""
    if np.unique(problem.truth).size == 1:
        return "one_class_validation"
    if held_out is None:
        return "few_validation_images"
    mean, error = grouped_mean(held_out - problem.losses(problem.logits), problem.groups)
    needed = needed_errors(problem.n_problems, np.unique(problem.groups).size)
    return None if mean + needed * error < 0.0 else "no_gain"


def needed_errors(n_problems: int, n_groups: int) -> float:
    """Return the standard errors by which a loss has to fall; with many groups 1 for one problem, 2.28 for 14.

    The quantile at 1 - Phi(-1) / n_problems of t with n_groups - 1 degrees of freedom, because few groups estimate
    the error badly. One group has no error that could be estimated: infinite.

    Example:
        >>> [round(needed_errors(n, g), 2) for n, g in ((1, 10_000), (14, 10_000), (1, 3))]
        [1.0, 2.28, 1.32]
    """
    return np.inf if n_groups < 2 else -float(stdtrit(n_groups - 1, ndtr(-1.0) / n_problems))


def grouped_mean(values: NDArray[np.float64], groups: NDArray[np.int64]) -> tuple[float, float]:
    """Return the mean over images and its standard error over groups, which are drawn whole.

    The error is that of a ratio of two sums over g groups (Cochran 1977, Sampling Techniques, section 6.3):
    sqrt(g / (g - 1) sum_j (sum of (value - mean) in group j)^2) / n.

    Args:
        values: (n,), n >= 1.
        groups: (n,), the group of every image.

    Returns:
        Mean and error; the error of a single group is infinite.

    Example:
        >>> mean, error = grouped_mean(np.array([1.0, 2.0, 3.0]), np.arange(3))
        >>> (mean, round(error, 12)) == (2.0, round(3 ** -0.5, 12))
        True
    """
    mean = float(values.mean())
    _, of_image = np.unique(groups, return_inverse=True)
    residuals = np.bincount(of_image, values - mean)
    if residuals.size < 2:
        return mean, float("inf")
    squared = float((residuals**2).sum()) * residuals.size / (residuals.size - 1)
    return mean, squared**0.5 / values.size
