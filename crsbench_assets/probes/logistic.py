"""The logistic probe: its objective, its certificate, and the solvers behind one interface.

What lives here: :class:`Design`, the features that many probes share, and :func:`fit_logistic`, which returns weights
together with a certified bound of how far they are from the optimum. What stays out: the batched solver (``solver``),
scikit-learn's (``reference``), which rows a probe sees (``fit``) and its metrics (``metrics``).

The objective of a problem is ``1/2 ||W||^2 + C sum_i loss_i`` with a free intercept. It is 1-strongly convex in W, so
with the intercept solved ``f - f* <= 1/2 ||grad f||^2`` (Nesterov 2004, Introductory Lectures on Convex Optimization,
theorem 2.1.10): the gradient certifies the fit, whichever solver made it. Source: protocol page, section 4.

The unit of reproduction is a design with its labels: on one CPU they give the same bits, whatever was fitted before. A
label fitted alone takes another path through rounding than in company, and ends within the certified gap.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from crsbench_assets.config.cards import Task
    from crsbench_assets.probes.solver import Loss, Space

Solver = Literal["batched", "sklearn"]
Precision = Literal["float32", "float64"]

ONE_CLASS_TRAIN = "one_class_train"


@dataclass(frozen=True)
class Certificate:
    """How far one separately solved problem is from its optimum; all None but the reason where nothing was fitted.

    Args:
        objective: value f of the objective, > 0.
        grad_norm: Euclidean norm of its gradient by weights and intercepts, summed in float64, >= 0.
        relative_gap: ``1/2 grad_norm^2 / max(1, f)``, >= 0; small is good. With the intercept solved it is at least
            ``(f - f*) / max(1, f)``; the intercept is solved to the same gradient, so the bound holds where its own
            curvature ``C sum p (1 - p)`` is at least 1, and is short by that factor where it is less.
        n_iter: iterations of the solver.
        solver: which one, for example ``batched:lbfgs-float32``, ``sklearn:newton-cholesky``.
        reason: None, or ``one_class_train``: the training labels of the problem have one value.
    """

    objective: float | None
    grad_norm: float | None
    relative_gap: float | None
    n_iter: int | None
    solver: str | None
    reason: str | None


@dataclass(frozen=True)
class LogisticFit:
    """Fitted probes with their certificates.

    Args:
        weights: float64 (k, d), NaN rows where not fitted.
        intercept: float64 (k,), NaN where not fitted.
        problems: one certificate (softmax), or k in the order of the columns (multi-label).
    """

    weights: NDArray[np.float64]
    intercept: NDArray[np.float64]
    problems: tuple[Certificate, ...]


class Design:
    """Standardised features of one seed's train split, and what the fits on them share.

    Args:
        features: (n, d), finite. They are used where they lie if they have the precision and are contiguous, so they
            must not change afterwards; else a copy is made. The problem that is solved and certified is the one with
            the features in that precision.
        device: a torch device.
        precision: of the stored features and the passes over them; sums that decide are float64 in both. float32
            reaches relative gaps of 1e-8, float64 of 1e-12.
        like: a design of the same width whose rows are distributed as these are, such as a sample of the pool that
            several seeds draw from: what is known of it preconditions the fits, which end within the same gap.

    Raises:
        ValueError: a feature is not finite, a programming error: such vectors are refused where they are made.
    """

    def __init__(
        self,
        features: NDArray[np.float32 | np.float64],
        device: str = "cpu",
        precision: Precision = "float32",
        like: Design | None = None,
    ) -> None:
        import torch

        with warnings.catch_warnings():
            # torch warns of arrays that cannot be written; nothing here writes to them
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
            with np.errstate(over="ignore"):  # what is too large for the precision becomes infinite and is refused
                stored = np.ascontiguousarray(features, dtype=precision)
            self.features: torch.Tensor = torch.from_numpy(stored).to(device)
        if self.features.numel() and not torch.stack(torch.aminmax(self.features)).isfinite().all():
            raise ValueError(f"features must be finite numbers of {precision}")
        self._like = like

    def prefix(self, n: int) -> Design:
        """Return the design of the first ``n`` rows, in the same memory and preconditioned by what is known of all."""
        return self if n >= len(self.features) else self._of(self.features[:n], self._like or self)

    def rows(self, indices: NDArray[np.int64]) -> Design:
        """Return the design of any rows, copied."""
        import torch

        if self.features.device.type == "cpu":
            # numpy's large arrays lie in huge pages, which makes the passes over them up to three times as fast
            return self._of(torch.from_numpy(self.features.numpy()[np.asarray(indices)]))
        return self._of(self.features[torch.as_tensor(indices, device=self.features.device)])

    @cached_property
    def space(self) -> Space:
        """The features as the batched solver sees them, with their eigenbasis; made once for all fits."""
        from crsbench_assets.probes.solver import Space

        n, d = self.features.shape
        is_like = self._like is not None and n >= d and len(self._like.features) >= d
        return Space(self.features, self._like.space if is_like and self._like else None)

    @staticmethod
    def _of(features: torch.Tensor, like: Design | None = None) -> Design:
        design = Design.__new__(Design)
        design.features, design._like = features, like
        return design


def fit_logistic(
    design: Design, labels: NDArray[np.int8], task: Task, c: float, *, gap: float = 1e-8, solver: Solver = "batched"
) -> LogisticFit:
    """Return the probes that minimise the objective, each with its certificate.

    Multi-label: one independent logistic unit per column, on the images whose label is known; all columns share each
    pass over the features. Else one softmax over the classes present, with one weight vector per class (also for two
    classes) and intercepts whose sum is 0. What has one value or class only is not fitted: NaN and ``one_class_train``.
    A problem that misses the gap is solved again by scikit-learn, and the better fit is returned; where that misses it
    too, the certificate says so and nothing is raised.

    Args:
        design: features (n, d).
        labels: int8 (n, k): 1, 0, and -1 unknown (multi-label only); else one-hot.
        task: decides between units and softmax.
        c: weight of the loss, > 0.
        gap: relative gap to reach.
        solver: ``sklearn`` fits every problem by the reference.

    Returns:
        Weights, intercepts and certificates.

    Raises:
        ValueError: labels of another shape or with other values, a programming error.

    Example:
        >>> import numpy as np
        >>> features = np.array([[-1.0], [1.0], [-2.0], [2.0]])
        >>> labels = np.array([[0, 0], [1, 0], [0, 0], [1, 0]], np.int8)
        >>> fit = fit_logistic(Design(features), labels, "multi_label", 1.0)
        >>> fit.weights.round(2).tolist(), [p.reason for p in fit.problems]
        ([[1.01], [nan]], [None, 'one_class_train'])
    """
    import torch

    _check(design, labels, task)
    is_multi_label = task == "multi_label"
    n_positive, n_negative = (labels == 1).sum(axis=0), (labels == 0).sum(axis=0)
    present = np.flatnonzero((n_positive > 0) & (n_negative > 0) if is_multi_label else n_positive > 0)
    k, d = labels.shape[1], design.features.shape[1]
    weights, intercept = np.full((k, d), np.nan), np.full(k, np.nan)
    unfitted = Certificate(None, None, None, None, None, ONE_CLASS_TRAIN)
    if present.size < (1 if is_multi_label else 2):
        return LogisticFit(weights, intercept, (unfitted,) * (k if is_multi_label else 1))
    problems = [[column] for column in present.tolist()] if is_multi_label else [present.tolist()]
    with _exact_products():
        found = [unfitted] * len(problems)
        if solver == "batched":
            # overflow, which only features far from standardised reach
            with suppress(torch.linalg.LinAlgError):  # type: ignore[attr-defined]
                solved = _batched(design, labels[:, present], is_multi_label, c, gap)
                weights[present], intercept[present], found = solved
        for number, columns in enumerate(problems):
            if _is_met(found[number], gap):
                continue
            w, b, certificate = _reference(design, labels[:, columns], is_multi_label, c, gap)
            if not _is_met(found[number], np.inf) or _is_met(certificate, found[number].relative_gap):
                weights[columns], intercept[columns], found[number] = w, b, certificate
    if not is_multi_label:
        return LogisticFit(weights, intercept, tuple(found))
    by_column = dict(zip(present.tolist(), found, strict=True))
    return LogisticFit(weights, intercept, tuple(by_column.get(column, unfitted) for column in range(k)))


def _check(design: Design, labels: NDArray[np.int8], task: Task) -> None:
    if labels.ndim != 2 or labels.shape[0] != design.features.shape[0]:
        raise ValueError(f"labels of shape {labels.shape} for features of shape {tuple(design.features.shape)}")
    if labels.size and not (labels.min() >= -1 and labels.max() <= 1):
        raise ValueError("labels are 1, 0 or -1")
    if task != "multi_label" and not ((labels >= 0).all() and (labels.sum(axis=1) == 1).all()):
        raise ValueError(f"labels of a {task} task are one-hot")


def _is_met(certificate: Certificate, gap: float | None) -> bool:
    return certificate.relative_gap is not None and gap is not None and certificate.relative_gap <= gap


def _batched(
    design: Design, labels: NDArray[np.int8], is_multi_label: bool, c: float, gap: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[Certificate]]:
    """Return weights, intercepts and certificates of columns that can all be fitted."""
    import torch

    from crsbench_assets.probes.solver import exact_gradient, solve

    loss = _loss(design, labels, is_multi_label=is_multi_label)
    if is_multi_label or labels.shape[1] > 2:
        found = solve(design.space, loss, c, gap)
        weights, intercept, exact = found.weights, found.intercept, found.exact
    else:
        # two softmax vectors of which one is minus the other pay half the penalty of one vector of twice their length
        found = solve(design.space, _loss(design, labels[:, 1:], is_multi_label=True), 2.0 * c, gap)
        weights, intercept = (torch.cat([-part, part], dim=1) / 2.0 for part in (found.weights, found.intercept))
        exact = exact_gradient(design.features, loss, weights, intercept, c)
    numbers = (exact.objective, exact.grad_norm, exact.relative_gap, found.n_iter)
    certificates = [
        Certificate(objective, norm, relative_gap, n_iter, f"batched:{how}", None)
        for objective, norm, relative_gap, n_iter, how in zip(*(v.tolist() for v in numbers), found.how, strict=True)
    ]
    return weights.flatten(0, 1).cpu().numpy(), intercept.flatten().cpu().numpy(), certificates


def _reference(
    design: Design, labels: NDArray[np.int8], is_multi_label: bool, c: float, gap: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], Certificate]:
    """Return the best fit of one problem by scikit-learn, with the same certificate."""
    import torch

    from crsbench_assets.probes.reference import reference_fits
    from crsbench_assets.probes.solver import exact_gradient

    known = np.flatnonzero((labels >= 0).all(axis=1))
    design, labels = design.rows(known), labels[known]
    loss, features = _loss(design, labels, is_multi_label=is_multi_label), design.features.double()
    target = labels[:, 0].astype(np.int64) if is_multi_label else labels.argmax(axis=1)
    best: tuple[NDArray[np.float64], NDArray[np.float64], Certificate] | None = None
    for weights, intercept, n_iter, name in reference_fits(features.cpu().numpy(), target, labels.shape[1], c):
        w, b = (torch.from_numpy(part).to(features.device)[None] for part in (weights, intercept))
        exact = exact_gradient(features, loss, w, b, c)
        row = [float(values.item()) for values in (exact.objective, exact.grad_norm, exact.relative_gap)]
        certificate = Certificate(row[0], row[1], row[2], n_iter, f"sklearn:{name}", None)
        if best is None or not _is_met(best[2], np.inf) or _is_met(certificate, best[2].relative_gap):
            best = weights, intercept, certificate
        if _is_met(certificate, gap):
            break
    assert best is not None
    return best


def _loss(design: Design, labels: NDArray[np.int8], *, is_multi_label: bool) -> Loss:
    import torch

    from crsbench_assets.probes.solver import Softmax, Units

    features = design.features
    by_row = torch.from_numpy(np.ascontiguousarray(labels.T)).to(features.device)
    if is_multi_label:
        return Units(torch.where(by_row < 0, 0, 2 * by_row - 1).to(features.dtype))
    return Softmax(by_row.to(features.dtype))


@contextmanager
def _exact_products() -> Iterator[None]:
    """Keep products of float32 in float32: TF32 and bfloat16 would leave three digits of the gradient."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
