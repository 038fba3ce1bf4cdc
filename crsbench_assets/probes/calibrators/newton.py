"""Many small convex problems inside a box, solved together.

What lives here: Newton's method with an active set, and the standard errors of what it found. What stays out: the
objectives (``affine``), and what a parameter at its bound means (``probes.calibrate``).
Source: Nocedal and Wright (2006), Numerical Optimization, chapters 3 (line search) and 16.5 (active sets).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_ITER = 100
DECREASE_TOLERANCE = 1e-12
"""A problem is solved by a step whose first-order decrease is at most this (nats per image)."""

SUFFICIENT_DECREASE = 1e-4
SMALLEST_STEP = 1e-8
AT_BOUND = 1e-9
"""Distance from a bound at which a parameter lies on it."""

FLAT_CURVATURE = 1e-14
"""Curvature below which an objective counts as flat: it keeps linear systems solvable."""


class Derivatives(NamedTuple):
    """Objectives of b problems with p parameters: values (b,), gradients (b, p), Hessians (b, p, p)."""

    value: NDArray[np.float64]
    gradient: NDArray[np.float64]
    hessian: NDArray[np.float64]


class Minimum(NamedTuple):
    """Minimisers (b, p) inside the box, Hessians (b, p, p) there, and whether each was reached (b,)."""

    parameters: NDArray[np.float64]
    hessian: NDArray[np.float64]
    is_solved: NDArray[np.bool_]


Objective = Callable[[NDArray[np.float64], NDArray[np.intp]], Derivatives]
"""Parameters (b', p) and numbers (b',) of the problems that they belong to -> their derivatives."""


def bounded_minimum(
    objective: Objective, start: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> Minimum:
    """Return the minimum of every problem over the box.

    In each iteration a problem goes along its Newton direction, as far as the nearest bound, and halves the step
    where the objective does not fall. A parameter at a bound whose gradient points outwards is held. Deterministic,
    and a problem's result does not depend on its neighbours but for rounding.

    Args:
        objective: convex in the parameters of every problem.
        start: (b, p), inside the box.
        low: (p,), lower bounds.
        high: (p,), upper bounds.

    Returns:
        The minima. ``is_solved`` is False after :data:`MAX_ITER` iterations or where no step decreases the objective.
    """
    parameters = start.astype(np.float64)
    at = Derivatives(*(array.copy() for array in objective(parameters, np.arange(len(start)))))
    is_solved = np.zeros(len(start), dtype=np.bool_)
    scale = np.ones(len(start))
    running = np.arange(len(start))
    for _ in range(MAX_ITER):
        if running.size == 0:
            break
        here = parameters[running]
        direction = _newton_direction(at.gradient[running], at.hessian[running], here, low, high)
        share = np.minimum(1.0, _reach(direction, here, low, high)) * scale[running]
        there = np.clip(here + share[:, None] * direction, low, high)
        slope = np.minimum((at.gradient[running] * (there - here)).sum(axis=1), 0.0)
        trial = objective(there, running)
        old = at.value[running]
        rounding = 1e-15 * (1.0 + np.abs(old))
        is_better = trial.value <= old + SUFFICIENT_DECREASE * slope + rounding
        taken = running[is_better]
        parameters[taken] = there[is_better]
        for stored, new in zip(at, trial, strict=True):
            stored[taken] = new[is_better]
        # A short step has a small slope for being short: only a whole one says that nothing is left to gain.
        is_solved[running] = is_better & (slope >= -DECREASE_TOLERANCE) & (share == 1.0)
        scale[running] = np.where(is_better, 1.0, scale[running] / 2)
        running = running[~is_solved[running] & (scale[running] >= SMALLEST_STEP)]
    return Minimum(parameters, at.hessian, is_solved)


def standard_errors(hessian: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return the asymptotic standard errors (p,) of parameters fitted to n images, from 0 up.

    The square roots of the diagonal of the inverse observed information. Along a flat direction they are large and
    finite (:data:`FLAT_CURVATURE`).

    Args:
        hessian: (p, p), second derivatives of the mean loss per image.
        n: images.
    """
    curvature, directions = np.linalg.eigh(hessian)
    return np.asarray(np.sqrt((directions**2 / (n * np.maximum(curvature, FLAT_CURVATURE))).sum(axis=1)))


def _newton_direction(
    gradient: NDArray[np.float64],
    hessian: NDArray[np.float64],
    parameters: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the direction (b, p) that solves every problem's quadratic model among the parameters that may move."""
    is_low, is_high = parameters <= low + AT_BOUND, parameters >= high - AT_BOUND
    is_held = (is_low & (gradient > 0)) | (is_high & (gradient < 0))
    diagonal = np.arange(gradient.shape[1])
    while True:
        is_free = ~is_held
        reduced = np.where(is_free[:, :, None] & is_free[:, None, :], hessian, 0.0)
        damping = 1e-12 * reduced[:, diagonal, diagonal].max(axis=1, keepdims=True) + FLAT_CURVATURE
        reduced[:, diagonal, diagonal] += np.where(is_held, 1.0, damping)
        step: NDArray[np.float64] = np.linalg.solve(reduced, np.where(is_free, -gradient, 0.0)[:, :, None])[:, :, 0]
        # A parameter may be drawn out of the box by the others, although its own gradient points inwards.
        is_blocked = is_free & ((is_low & (step < 0)) | (is_high & (step > 0)))
        if not is_blocked.any():
            return step
        is_held |= is_blocked


def _reach(
    direction: NDArray[np.float64], parameters: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the multiple (b,) of each direction at which the first parameter meets its bound."""
    room = np.where(direction > 0, high - parameters, parameters - low)
    steps = np.divide(room, np.abs(direction), out=np.full(room.shape, np.inf), where=direction != 0)
    return np.asarray(steps.min(axis=1))
