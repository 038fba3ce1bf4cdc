"""``tuned_c``: the protocol's probe with C chosen inside the label subset.

What lives here: the grid of C and its choice by cross-validation. What stays out: the objective and its solver
(``probes.logistic``) and the folds (``folds``).

Fixed C is a prior on the weights that n images of width d meet with a strength that depends on both, so the order of
encoders of different width depends on it. One C serves all classes and labels of a subset, as the protocol's C does.
Source: protocol page, section 4; the grid is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crsbench_assets.probes.estimators.folds import chosen_setting, fold_numbers, held_out_loss
from crsbench_assets.probes.estimators.interface import LinearModel, Selection, trainable_columns
from crsbench_assets.probes.logistic import Design, LogisticFit, fit_logistic

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task

GRID = tuple(10.0 ** (i / 2) for i in range(-10, 3))
"""C from 1e-5 to 10 in half decades, the most regularised first."""

FOLD_GAP = 1e-4
"""Relative gap of the fits that only rank the grid: three digits of a loss whose sampling error is in the second."""


@dataclass(frozen=True)
class TunedLogistic:
    """Logistic probe whose C has the smallest cross-validated loss; ``default_c`` where two folds are too many.

    Args:
        default_c, gap: of the protocol; ``gap`` holds for the final fit.
        device: device of torch.
    """

    default_c: float = 1.0
    gap: float = 1e-8
    device: str = "cpu"
    name: str = "tuned_c"

    def fit(
        self,
        features: NDArray[np.float32],
        labels: NDArray[np.int8],
        task: Task,
        *,
        groups: NDArray[np.int64],
        names: tuple[object, ...],
    ) -> LinearModel:
        """See :class:`~crsbench_assets.probes.estimators.interface.Estimator`; the weights stand in the result."""
        design = Design(features, self.device)
        selection = Selection(None)
        if trainable_columns(labels, task).any():
            chosen = _cross_validated(design, features, labels, task, fold_numbers(labels, groups, task, names))
            selection = chosen or Selection(self.default_c)
        c = self.default_c if selection.setting is None else selection.setting
        return _model(fit_logistic(design, labels, task, c, gap=self.gap), selection)


def _cross_validated(
    design: Design,
    features: NDArray[np.float32],
    labels: NDArray[np.int8],
    task: Task,
    folds: NDArray[np.int64] | None,
) -> Selection | None:
    """Return C by the held-out loss, or None where there are no folds or nothing to judge by.

    The training parts of all folds are held at once, four times the features, because each keeps what its fits share.
    """
    if folds is None:
        return None
    held_out = [np.flatnonzero(folds == fold) for fold in range(int(folds.max()) + 1)]
    kept = [np.flatnonzero(folds != fold) for fold in range(len(held_out))]
    designs = [design.rows(rows) for rows in kept]

    def loss_of(c: float) -> float:
        logits = np.empty(labels.shape)
        for rows, part, part_rows in zip(held_out, designs, kept, strict=True):
            fit = fit_logistic(part, labels[part_rows], task, c, gap=_fold_gap(c, len(part_rows)))
            logits[rows] = _model(fit, Selection(c)).logits(features[rows])
        return held_out_loss(logits, labels, task)

    c, loss = chosen_setting(GRID, loss_of)
    return Selection(c, len(held_out), loss) if np.isfinite(loss) else None


def _fold_gap(c: float, n: int) -> float:
    """Return the gap of a fold's fit, in units of the objective.

    The certificate is relative to max(1, objective), and the objective at the start is about C n: below 1 the same
    gap would accept weights of zero.
    """
    return max(1e-8, FOLD_GAP * min(1.0, c * n))


def _model(fit: LogisticFit, selection: Selection) -> LinearModel:
    gaps = [problem.relative_gap for problem in fit.problems if problem.relative_gap is not None]
    return LinearModel(fit.weights, fit.intercept, selection, max(gaps, default=None))
