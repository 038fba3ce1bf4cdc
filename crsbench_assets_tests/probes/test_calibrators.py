"""The maps of post-hoc calibration: derivatives, bounds, what contains what, and the optimiser under them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.probes.calibrators.affine import (
    PENALTIES,
    AffineMethod,
    AffineProblem,
    Family,
    affine_family,
    log_softmax,
)
from crsbench_assets.probes.calibrators.isotonic import fit_steps
from crsbench_assets.probes.calibrators.newton import Derivatives, bounded_minimum, standard_errors

each_family = pytest.mark.parametrize(
    ("method", "k"), [(m, k) for m in ("temperature", "vector", "dirichlet") for k in (2, 3, 5)]
)


def problem(method: AffineMethod, k: int, n: int = 200, scale: float = 2.0) -> AffineProblem:
    rng = keyed_generator("calibrators", k, n)
    logits = rng.standard_normal((n, 1 if k == 2 else k))
    log_p = log_softmax(np.hstack([np.zeros((n, 1)), logits]) if k == 2 else logits, axis=1)
    truth = (np.exp(log_p).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return AffineProblem(affine_family(method, k), scale * logits, truth)


def near(family: Family, size: float = 0.1) -> NDArray[np.float64]:
    return family.identity + size * keyed_generator("near").standard_normal(family.identity.size)


@each_family
def test_derivatives_are_those_of_finite_differences(method: AffineMethod, k: int) -> None:
    affine = problem(method, k, n=40)
    at, step = near(affine.family), 1e-5
    weights, penalties = np.full((1, 40), 1 / 40), np.array([0.7])

    def derivatives(parameters: NDArray[np.float64]) -> Derivatives:
        return affine.derivatives(parameters[None], weights, penalties)

    found = derivatives(at)
    for j, unit in enumerate(np.eye(at.size)):
        above, below = derivatives(at + step * unit), derivatives(at - step * unit)
        assert found.gradient[0, j] == pytest.approx((above.value[0] - below.value[0]) / (2 * step), abs=1e-8)
        np.testing.assert_allclose(found.hessian[0, j], (above.gradient[0] - below.gradient[0]) / (2 * step), atol=1e-8)


@each_family
def test_identity_changes_nothing(method: AffineMethod, k: int) -> None:
    affine = problem(method, k)
    mapped = affine.family.apply(affine.family.identity, affine.logits)
    if k == 2:
        np.testing.assert_allclose(mapped, affine.logits, atol=1e-12)
    else:
        np.testing.assert_allclose(log_softmax(mapped, axis=1), log_softmax(affine.logits, axis=1), atol=1e-12)


@each_family
def test_the_minimum_agrees_with_another_optimiser(method: AffineMethod, k: int) -> None:
    affine = problem(method, k)
    family, n = affine.family, affine.truth.size
    penalties = np.array([0.1])
    found = affine.fit(np.ones((1, n), dtype=np.bool_), penalties)
    assert found.is_solved.all()

    def objective(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        at = affine.derivatives(parameters[None], np.full((1, n), 1 / n), penalties)
        return float(at.value[0]), at.gradient[0]

    bounds = list(zip(family.low, family.high, strict=True))
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5_000, "maxfun": 20_000}
    other = minimize(objective, family.identity, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    value, gradient = objective(found.parameters[0])
    assert value <= other.fun + 1e-12
    is_inside = (found.parameters[0] > family.low) & (found.parameters[0] < family.high)
    assert np.abs(gradient[is_inside]).max() < 1e-7
    np.testing.assert_allclose(found.parameters[0], other.x, atol=1e-3)


@pytest.mark.parametrize("k", [2, 4])
def test_dirichlet_contains_temperature(k: int) -> None:
    everyone = np.ones((1, 200), dtype=np.bool_)
    cooled = problem("temperature", k)
    best = cooled.losses(cooled.fit(everyone, np.ones(1)).parameters).mean()
    mixed = problem("dirichlet", k)
    for penalty in PENALTIES:
        weight = np.array([penalty])
        parameters = mixed.fit(everyone, weight).parameters
        penalised = mixed.derivatives(parameters, everyone / 200, weight).value[0]
        assert mixed.losses(parameters).mean() <= penalised <= best + 1e-12


def test_dirichlet_penalises_what_the_paper_says() -> None:
    # K = 3, W = [[1, .5, 0], [0, 1, 0], [0, -1, 1]], b = (0, 2, 0), lambda = 6:
    # 6 / (3 * 2) * (.25 + 1) + 6 / 3 * 4 = 9.25
    family = affine_family("dirichlet", 3)
    parameters = np.array([[1, 0.5, 0, 0], [0, 1, 0, 2], [0, -1, 1, 0]], dtype=float).ravel()
    affine = AffineProblem(family, np.zeros((1, 3)), np.array([0]))
    value = affine.derivatives(parameters[None], np.ones((1, 1)), np.array([6.0])).value[0]
    assert value - affine.losses(parameters[None])[0, 0] == pytest.approx(9.25, abs=1e-12)


def test_two_class_dirichlet_is_the_general_one() -> None:
    # with K = 2 the off-diagonal weights and half of the offsets are superfluous, and the penalty is lambda c^2 / 4
    affine = problem("dirichlet", 2)
    q1 = expit(affine.logits[:, 0])
    log_q = np.log(np.column_stack([1 - q1, q1]))
    one_hot = np.eye(2)[affine.truth]
    penalty = 0.3

    def general(flat: NDArray[np.float64]) -> float:
        w, b = flat[:4].reshape(2, 2), flat[4:]
        loss = -(one_hot * log_softmax(log_q @ w.T + b, axis=1)).sum(axis=1).mean()
        return float(loss + penalty / 2 * (w[0, 1] ** 2 + w[1, 0] ** 2) + penalty / 2 * (b**2).sum())

    other = minimize(general, np.array([1.0, 0, 0, 1, 0, 0]), method="BFGS", options={"gtol": 1e-9})
    found = affine.fit(np.ones((1, 200), dtype=np.bool_), np.array([penalty]))
    value = affine.derivatives(found.parameters, np.full((1, 200), 1 / 200), np.array([penalty])).value[0]
    assert value == pytest.approx(other.fun, abs=1e-9)
    alpha, beta, c = found.parameters[0]
    w, b = other.x[:4].reshape(2, 2), other.x[4:]
    assert [alpha, beta, c] == pytest.approx([w[1, 1] - w[0, 1], w[0, 0] - w[1, 0], b[1] - b[0]], abs=1e-4)


def test_clipping_keeps_extreme_logits_finite() -> None:
    logits = np.array([[-1e4], [0.0], [1e4]])
    family = affine_family("dirichlet", 2)
    assert family.apply(family.identity, logits)[:, 0] == pytest.approx([np.log(1e-12), 0.0, -np.log(1e-12)])
    three = np.array([[0.0, -1e4, 3.0]])
    wide = affine_family("dirichlet", 3)
    assert np.isfinite(wide.apply(wide.identity, three)).all()


def test_a_problem_does_not_depend_on_its_neighbours() -> None:
    affine = problem("dirichlet", 3)
    seen = keyed_generator("seen").random((4, 200)) < 0.8
    penalties = np.array([0.1, 1e-4, 10.0, 1.0])
    together = affine.fit(seen, penalties)
    for j in range(4):
        alone = affine.fit(seen[j : j + 1], penalties[j : j + 1])
        np.testing.assert_allclose(together.parameters[j], alone.parameters[0], atol=1e-9)


def quadratic(curvature: NDArray[np.float64], centre: NDArray[np.float64], at: NDArray[np.float64]) -> Derivatives:
    away = at - centre
    value = 0.5 * np.einsum("bi,ij,bj->b", away, curvature, away)
    return Derivatives(value, away @ curvature, np.tile(curvature, (len(at), 1, 1)))


def test_bounds_hold_and_the_minimum_lies_on_them() -> None:
    # Minimise (x - y)^2 + (y - 3)^2 / 10 on [-1, 1]^2: free optimum (3, 3), in the box (1, 1). And with the optimum of
    # the second problem inside, both are found at once.
    curvature = np.array([[2.0, -2.0], [-2.0, 2.2]])
    centres = np.array([[3.0, 3.0], [0.5, 0.25]])
    found = bounded_minimum(
        lambda at, which: quadratic(curvature, centres[which], at), np.zeros((2, 2)), -np.ones(2), np.ones(2)
    )
    assert found.is_solved.all()
    np.testing.assert_allclose(found.parameters, [[1.0, 1.0], [0.5, 0.25]], atol=1e-9)


def test_a_parameter_leaves_a_bound_that_it_only_touches() -> None:
    # Strong coupling draws y to its bound first, although the optimum (-0.5, 0.9) lies inside.
    curvature = np.array([[1.0, -0.99], [-0.99, 1.0]])
    start, centre = np.array([[0.9, -1.0]]), np.array([[-0.5, 0.9]])
    found = bounded_minimum(lambda at, _: quadratic(curvature, centre, at), start, -np.ones(2), np.ones(2))
    assert found.is_solved.all()
    np.testing.assert_allclose(found.parameters, centre, atol=1e-9)


def test_standard_errors_of_independent_parameters() -> None:
    assert standard_errors(np.diag([4.0, 0.25]), 100) == pytest.approx([0.05, 0.2])
    assert standard_errors(np.diag([4.0, 0.0]), 100)[1] == pytest.approx(1e6)


def test_steps_of_a_softmax_without_support_are_uniform() -> None:
    # every class is 0 below its first positive; an image in the middle of all three has no support at all
    logits = 5.0 * np.eye(3)[np.arange(30) % 3]
    steps = fit_steps(np.vstack([logits, np.zeros((3, 3))]), np.append(np.arange(30) % 3, [0, 1, 2]))
    assert not steps.is_at_bound
    separated = fit_steps(logits, np.arange(30) % 3)
    assert separated.is_at_bound
    np.testing.assert_allclose(np.exp(separated.apply(np.array([[0.0, 0.0, -9.0]])))[0].sum(), 1.0, atol=1e-5)
    q_low = np.array([[-40.0, -40.0, 0.0]])
    np.testing.assert_allclose(np.exp(separated.apply(q_low))[0], [1e-6, 1e-6, 1 - 1e-6], atol=1e-9)
