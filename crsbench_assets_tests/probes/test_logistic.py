"""The logistic probe: against scikit-learn, against its own certificate, in hard corners, and to the last bit."""

from __future__ import annotations

import warnings
from dataclasses import astuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.linear_model import LogisticRegression

from crsbench_assets.config.cards import Task
from crsbench_assets.probes import solver as batched
from crsbench_assets.probes.logistic import ONE_CLASS_TRAIN, Design, LogisticFit, fit_logistic

GAP = 1e-8

Problem = tuple[NDArray[np.float64], NDArray[np.int8], str]


def problem(
    seed: int,
    n: int,
    d: int,
    k: int,
    task: str,
    *,
    kind: str = "plain",
    separation: float = 2.0,
    rarity: float = 0.0,
    unknown: float = 0.0,
) -> Problem:
    """Return features with a decaying spectrum, and labels by a linear rule of spread ``separation``."""
    rng = np.random.default_rng(seed)
    features = (rng.normal(size=(n, d)) * np.arange(1, d + 1) ** -0.75) @ np.linalg.qr(rng.normal(size=(d, d)))[0]
    if kind == "collinear":
        features[:, d // 2 :] = features[:, : d - d // 2]
    spread = features.std(axis=0)
    features = (features - features.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0)
    if kind == "constant":
        features[:, ::2] = 0.0
    elif kind == "scaled":
        features = features * 10.0 ** rng.uniform(-2.0, 2.0, d) + rng.uniform(-5.0, 5.0, d)
    rule = (features - features.mean(axis=0)) @ rng.normal(size=(d, k))
    rule = separation * rule / (rule.std(axis=0) + 1e-9)
    if task == "multi_label":
        labels = (rng.random((n, k)) < expit(rule - rarity)).astype(np.int8)
        labels[rng.random((n, k)) < unknown] = -1
    else:
        labels = np.eye(k, dtype=np.int8)[(rule + rng.gumbel(size=(n, k)) - rarity * np.arange(k)).argmax(axis=1)]
    return features, labels, task


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    return problem(
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(2, 60)),
        draw(st.integers(1, 40)),
        draw(st.integers(2, 5)),
        draw(st.sampled_from(["multi_label", "single_label", "ordinal"])),
        kind=draw(st.sampled_from(["plain", "plain", "collinear", "constant", "scaled"])),
        separation=draw(st.sampled_from([0.0, 2.0, 100.0])),
        rarity=draw(st.sampled_from([0.0, 3.0])),
        unknown=draw(st.sampled_from([0.0, 0.3])),
    )


def gaps(fit: LogisticFit) -> list[float]:
    return [p.relative_gap for p in fit.problems if p.relative_gap is not None]


def independent(features: NDArray[np.float64], labels: NDArray[np.int8], task: str, c: float) -> LogisticFit:
    """Return the same fit by scikit-learn at tolerance 1e-12, straight from its documentation."""
    k, d = labels.shape[1], features.shape[1]
    weights, intercept = np.full((k, d), np.nan), np.full(k, np.nan)
    columns = [[j] for j in range(k)] if task == "multi_label" else [np.flatnonzero((labels == 1).any(axis=0))]
    for group in columns:
        known = (labels[:, group] >= 0).all(axis=1)
        target = labels[known][:, group].argmax(axis=1) if task != "multi_label" else labels[known, group[0]]
        if np.unique(target).size < 2:
            continue
        is_pair = len(group) == 2
        model = LogisticRegression(C=2 * c if is_pair else c, solver="newton-cholesky", tol=1e-12, max_iter=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(features[known], target)
        w, b = model.coef_, model.intercept_
        if is_pair:
            w, b = np.vstack([-w, w]) / 2, np.concatenate([-b, b]) / 2
        weights[group], intercept[group] = w, b - (b.mean() if len(group) > 1 else 0.0)
    return LogisticFit(weights, intercept, ())


def probabilities(fit: LogisticFit, features: NDArray[np.float64], task: str) -> NDArray[np.float64]:
    fitted = ~np.isnan(fit.intercept)
    logits = features @ fit.weights[fitted].T + fit.intercept[fitted]
    return expit(logits) if task == "multi_label" else softmax(logits, axis=1)


def objectives(
    fit: LogisticFit, features: NDArray[np.float64], labels: NDArray[np.int8], task: str, c: float
) -> list[float]:
    """Return the objective of every fitted problem, written as the protocol page writes it."""
    fitted = ~np.isnan(fit.intercept)
    logits = features @ fit.weights[fitted].T + fit.intercept[fitted]
    y = labels[:, fitted]
    penalty = 0.5 * (fit.weights[fitted] ** 2).sum(axis=1)
    if task == "multi_label":
        losses = np.where(y < 0, 0.0, -log_expit(np.where(y == 1, logits, -logits))).sum(axis=0)
        return (penalty + c * losses).tolist()
    return [float(penalty.sum() - c * (y * log_softmax(logits, axis=1)).sum())] if fitted.any() else []


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(problems())
def test_random_problems_agree_with_scikit_learn(drawn: Problem) -> None:
    features, labels, task = drawn
    features = features.astype(np.float32).astype(np.float64)
    fit = fit_logistic(Design(features), labels, task, 1.0)
    other = independent(features, labels, task, 1.0)
    assert all(gap <= GAP for gap in gaps(fit)), fit.problems
    assert np.array_equal(np.isnan(fit.weights), np.isnan(other.weights))
    fitted = ~np.isnan(fit.intercept)
    if fitted.any():
        difference = np.linalg.norm(fit.weights[fitted] - other.weights[fitted])
        assert difference <= 1e-3 * max(np.linalg.norm(other.weights[fitted]), 1e-3)
        p, q = probabilities(fit, features, task), probabilities(other, features, task)
        assert np.abs(p - q).max() <= 1e-4
        mine = objectives(fit, features, labels, task, 1.0)
        assert mine == pytest.approx([p.objective for p in fit.problems if p.reason is None], rel=1e-12, abs=1e-12)


HARD = {
    "many labels": {"n": 1500, "d": 450, "k": 6, "task": "multi_label"},
    "unknown labels": {"n": 1200, "d": 450, "k": 5, "task": "multi_label", "unknown": 0.4},
    "rare labels": {"n": 1500, "d": 450, "k": 5, "task": "multi_label", "rarity": 5.0},
    "separable": {"n": 600, "d": 500, "k": 4, "task": "multi_label", "separation": 100.0},
    "fewer images than dimensions": {"n": 450, "d": 700, "k": 4, "task": "multi_label"},
    "softmax": {"n": 1500, "d": 200, "k": 5, "task": "single_label"},
    "softmax, separable": {"n": 700, "d": 200, "k": 4, "task": "single_label", "separation": 100.0},
    "softmax, fewer images": {"n": 250, "d": 600, "k": 4, "task": "ordinal"},
    "softmax, rare classes": {"n": 1500, "d": 200, "k": 5, "task": "single_label", "rarity": 1.5},
    "two classes": {"n": 900, "d": 420, "k": 2, "task": "single_label"},
    "collinear": {"n": 1000, "d": 450, "k": 3, "task": "multi_label", "kind": "collinear"},
    "constant": {"n": 1000, "d": 450, "k": 3, "task": "multi_label", "kind": "constant"},
    "not standardised": {"n": 1000, "d": 450, "k": 3, "task": "multi_label", "kind": "scaled"},
    "softmax, not standardised": {"n": 1000, "d": 200, "k": 4, "task": "single_label", "kind": "scaled"},
}


@pytest.mark.parametrize("name", HARD)
def test_the_gap_is_certified_and_bounds_the_excess(name: str) -> None:
    features, labels, task = problem(7, **HARD[name])
    features = features.astype(np.float32)
    fit = fit_logistic(Design(features), labels, task, 1.0)
    best = fit_logistic(Design(features, precision="float64"), labels, task, 1.0, gap=1e-12)
    assert len(gaps(fit)) == (labels.shape[1] if task == "multi_label" else 1)
    assert max(gaps(fit)) <= GAP
    assert max(gaps(best)) <= 1e-12
    for mine, optimum in zip(fit.problems, best.problems, strict=True):
        assert mine.objective is not None and optimum.objective is not None
        assert mine.relative_gap is not None and optimum.relative_gap is not None
        scale = max(1.0, mine.objective)
        # both objectives carry rounding of about 1e-13
        assert mine.objective - optimum.objective <= (mine.relative_gap + 1e-12) * scale
        assert optimum.objective - mine.objective <= (optimum.relative_gap + 1e-12) * scale
        assert mine.solver is not None and mine.solver.startswith("batched:lbfgs-float32")
        assert mine.n_iter is not None and 1 <= mine.n_iter <= 400
    assert np.abs(probabilities(fit, features, task) - probabilities(best, features, task)).max() <= 1e-4


def test_the_gradient_of_the_certificate_by_finite_differences() -> None:
    features, labels, task = problem(3, 40, 5, 3, "single_label")
    fit = fit_logistic(Design(features, precision="float64"), labels, task, 0.7, gap=1.0)
    w, b = fit.weights + 0.1, fit.intercept + np.array([0.3, -0.1, 0.0])
    exact = batched.exact_gradient(
        torch.from_numpy(features),
        batched.Softmax(torch.from_numpy(labels.T.astype(np.float64))),
        torch.from_numpy(w)[None],
        torch.from_numpy(b)[None],
        0.7,
    )

    def value(shift_w: NDArray[np.float64], shift_b: NDArray[np.float64]) -> float:
        return objectives(LogisticFit(w + shift_w, b + shift_b, ()), features, labels, task, 0.7)[0]

    def slope(shift_w: NDArray[np.float64], shift_b: NDArray[np.float64]) -> float:
        return (value(shift_w, shift_b) - value(-shift_w, -shift_b)) / 2e-5

    by_weights = [[slope(1e-5 * np.outer(i, j), np.zeros(3)) for j in np.eye(5)] for i in np.eye(3)]
    by_intercept = [slope(np.zeros((3, 5)), 1e-5 * i) for i in np.eye(3)]
    assert exact.by_weights[0].numpy() == pytest.approx(np.array(by_weights), rel=1e-6, abs=1e-6)
    assert exact.by_intercept[0].numpy() == pytest.approx(np.array(by_intercept), rel=1e-6, abs=1e-6)
    norm = np.sqrt(np.square(by_weights).sum() + np.square(by_intercept).sum())
    assert exact.grad_norm.item() == pytest.approx(norm, rel=1e-6)
    assert exact.relative_gap.item() == pytest.approx(0.5 * norm**2 / max(1.0, exact.objective.item()), rel=1e-6)


def test_one_positive_among_thirty_thousand() -> None:
    features, _, _ = problem(5, 30_000, 16, 2, "multi_label")
    labels = np.zeros((30_000, 2), dtype=np.int8)
    labels[17, 0], labels[:15_000, 1] = 1, 1
    fit = fit_logistic(Design(features), labels, "multi_label", 1.0)
    assert len(gaps(fit)) == 2 and max(gaps(fit)) <= GAP
    # the free intercept makes the stated frequency the true one
    stated = probabilities(fit, features, "multi_label").mean(axis=0)
    assert stated == pytest.approx([1 / 30_000, 0.5], rel=1e-2)


def test_one_class_training_label() -> None:
    features, labels, task = problem(1, 50, 12, 4, "multi_label", unknown=0.2)
    labels[:, 2] = 0
    labels[:, 3] = -1
    fit = fit_logistic(Design(features), labels, task, 1.0)
    assert [p.reason for p in fit.problems] == [None, None, ONE_CLASS_TRAIN, ONE_CLASS_TRAIN]
    assert np.isnan(fit.weights).all(axis=1).tolist() == np.isnan(fit.intercept).tolist() == [False, False, True, True]
    assert astuple(fit.problems[2]) == (None, None, None, None, None, ONE_CLASS_TRAIN)
    assert max(gaps(fit)) <= GAP


def test_softmax_over_the_classes_present() -> None:
    features, labels, task = problem(2, 60, 8, 3, "single_label")
    wide = np.zeros((60, 5), dtype=np.int8)
    wide[:, [0, 3, 4]] = labels
    narrow_fit, wide_fit = (fit_logistic(Design(features), y, task, 1.0) for y in (labels, wide))
    assert np.array_equal(wide_fit.weights[[0, 3, 4]], narrow_fit.weights)
    assert np.isnan(wide_fit.weights[[1, 2]]).all() and np.isnan(wide_fit.intercept[[1, 2]]).all()
    assert len(wide_fit.problems) == 1
    alone = fit_logistic(Design(features), np.eye(3, dtype=np.int8)[np.zeros(60, dtype=int)], task, 1.0)
    assert [p.reason for p in alone.problems] == [ONE_CLASS_TRAIN] and np.isnan(alone.weights).all()


@pytest.mark.parametrize("task", ["multi_label", "single_label"])
def test_no_image_at_all(task: str) -> None:
    fit = fit_logistic(Design(np.zeros((0, 3))), np.zeros((0, 2), dtype=np.int8), task, 1.0)
    assert {p.reason for p in fit.problems} == {ONE_CLASS_TRAIN} and np.isnan(fit.weights).all()


def test_what_is_no_input_is_refused() -> None:
    features = np.ones((4, 2))
    for bad in (np.nan, np.inf, 1e300):
        broken = features.copy()
        broken[1, 1] = bad
        with pytest.raises(ValueError, match="finite"):
            Design(broken)
    design = Design(features)
    with pytest.raises(ValueError, match="shape"):
        fit_logistic(design, np.zeros((3, 2), dtype=np.int8), "multi_label", 1.0)
    with pytest.raises(ValueError, match="1, 0 or -1"):
        fit_logistic(design, np.full((4, 2), 2, dtype=np.int8), "multi_label", 1.0)
    with pytest.raises(ValueError, match="one-hot"):
        fit_logistic(design, np.zeros((4, 2), dtype=np.int8), "single_label", 1.0)


@pytest.mark.parametrize(
    ("n", "d", "task"), [(80, 20, "multi_label"), (900, 450, "multi_label"), (900, 150, "ordinal")]
)
def test_the_order_of_images_and_labels_does_not_matter(n: int, d: int, task: str) -> None:
    features, labels, _ = problem(11, n, d, 4, task)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(n), rng.permutation(4)
    fit = fit_logistic(Design(features), labels, task, 1.0)
    other = fit_logistic(Design(features[rows]), labels[rows][:, columns], task, 1.0)
    assert np.abs(other.weights - fit.weights[columns]).max() <= 1e-3 * np.abs(fit.weights).max()
    p, q = probabilities(fit, features, task)[:, columns], probabilities(other, features, task)
    assert np.abs(p - q).max() <= 1e-4


@pytest.mark.parametrize(("n", "d"), [(80, 20), (900, 450)])
def test_a_mask_is_the_same_as_dropping_the_rows(n: int, d: int) -> None:
    features, labels, task = problem(13, n, d, 3, "multi_label")
    labels[: n // 3, 1] = -1
    fit = fit_logistic(Design(features), labels, task, 1.0)
    dropped = fit_logistic(Design(features).rows(np.arange(n // 3, n)), labels[n // 3 :, 1:2], task, 1.0)
    mine, other = fit.problems[1], dropped.problems[0]
    assert mine.objective == pytest.approx(other.objective, rel=2e-8)
    assert np.abs(fit.weights[1] - dropped.weights[0]).max() <= 1e-3 * np.abs(fit.weights[1]).max()


def test_the_same_bits_in_any_order_and_alone() -> None:
    features, labels, task = problem(17, 1200, 450, 5, "multi_label", unknown=0.1)
    _, classes, _ = problem(18, 1200, 450, 4, "single_label")
    sizes = (30, 300, 1200)

    def fits(order: tuple[int, ...]) -> dict[int, tuple[LogisticFit, LogisticFit]]:
        design = Design(features)
        return {
            size: (
                fit_logistic(design.prefix(size), labels[:size], task, 1.0),
                fit_logistic(design.prefix(size), classes[:size], "single_label", 1.0),
            )
            for size in order
        }

    together, reverse = fits(sizes), fits(sizes[::-1])
    for size in sizes:
        for a, b, c in zip(together[size], reverse[size], fits((size,))[size], strict=True):
            for other in (b, c):
                assert np.array_equal(a.weights, other.weights, equal_nan=True)
                assert np.array_equal(a.intercept, other.intercept, equal_nan=True)
                assert a.problems == other.problems


@pytest.mark.parametrize("kind", ["single_label", "multi_label"])
@pytest.mark.parametrize("size", [200, 700])
def test_rows_of_the_same_distribution_precondition_and_decide_nothing(size: int, kind: Task) -> None:
    features, labels, task = problem(21, 1200, 450, 4, kind)
    alone = fit_logistic(Design(features[:size]), labels[:size], task, 1.0)
    for like in (features[300:], features[800:900]):  # the second cannot give a basis
        fit = fit_logistic(Design(features[:size], like=Design(like)), labels[:size], task, 1.0)
        for mine, other in zip(fit.problems, alone.problems, strict=True):
            assert mine.relative_gap is not None and mine.relative_gap <= 1e-8
            assert mine.objective == pytest.approx(other.objective, rel=2e-8)


def test_the_place_in_memory_does_not_matter() -> None:
    features, labels, task = problem(19, 700, 450, 3, "multi_label")
    buffer = np.empty(features.size + 16, dtype=np.float32)
    weights = []
    for offset in (0, 1, 4, 7):
        moved = buffer[offset : offset + features.size].reshape(features.shape)
        moved[:] = features
        moved.flags.writeable = False
        weights.append(fit_logistic(Design(moved), labels, task, 1.0).weights)
        moved.flags.writeable = True
    assert all(np.array_equal(weights[0], other) for other in weights[1:])


def test_a_prefix_is_the_first_rows() -> None:
    features, labels, task = problem(23, 300, 40, 3, "multi_label")
    design = Design(features)
    a = fit_logistic(design.prefix(100), labels[:100], task, 1.0)
    b = fit_logistic(design.rows(np.arange(100)), labels[:100], task, 1.0)
    c = fit_logistic(Design(features[:100]), labels[:100], task, 1.0)
    assert np.array_equal(a.weights, b.weights) and np.array_equal(a.weights, c.weights)


@pytest.mark.parametrize(("n", "d"), [(60, 20), (1500, 450)])
def test_a_label_alone_and_in_company(n: int, d: int) -> None:
    features, labels, task = problem(29, n, d, 6, "multi_label")
    design = Design(features)
    company = fit_logistic(design, labels, task, 1.0)
    for j in range(6):
        alone = fit_logistic(design, labels[:, j : j + 1], task, 1.0)
        # by hand, in float64, at the returned weights
        mine, other = (
            objectives(LogisticFit(w, b, ()), features.astype(np.float32), labels[:, j : j + 1], task, 1.0)[0]
            for w, b in ((company.weights[j : j + 1], company.intercept[j : j + 1]), (alone.weights, alone.intercept))
        )
        assert mine == pytest.approx(other, rel=1e-9)
        assert np.abs(company.weights[j] - alone.weights[0]).max() <= 1e-4 * np.abs(alone.weights).max()


@pytest.mark.parametrize("task", ["multi_label", "single_label"])
def test_threads_change_rounding_only(task: str) -> None:
    features, labels, _ = problem(31, 2000, 450, 4, task)
    before = torch.get_num_threads()
    fits = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            fits.append(fit_logistic(Design(features), labels, task, 1.0))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    one, two = fits
    assert max(gaps(one) + gaps(two)) <= GAP
    weights = np.abs(one.weights - two.weights).max()
    stated = np.abs(probabilities(one, features, task) - probabilities(two, features, task)).max()
    print(f"{task}: 1 against 2 threads: weights {weights:.1e}, probabilities {stated:.1e}")
    assert weights <= 1e-3 and stated <= 1e-4


@pytest.mark.parametrize("task", ["multi_label", "single_label"])
@pytest.mark.parametrize("size", [2, 3, 5, 10])
def test_very_few_images(size: int, task: str) -> None:
    features, labels, _ = problem(37, 40, 30, 3, task)
    # the first two images differ in every label
    labels[0], labels[1] = ([1, 0, 1], [0, 1, 0]) if task == "multi_label" else ([1, 0, 0], [0, 1, 0])
    fit = fit_logistic(Design(features).prefix(size), labels[:size], task, 1.0)
    assert gaps(fit) and max(gaps(fit)) <= GAP


def test_scikit_learn_behind_the_same_interface() -> None:
    for task in ("multi_label", "single_label"):
        features, labels, _ = problem(41, 60, 80, 3, task)
        design = Design(features)
        ours, theirs = (fit_logistic(design, labels, task, 0.5, solver=name) for name in ("batched", "sklearn"))
        assert all(p.solver is not None and p.solver.startswith("sklearn:") for p in theirs.problems)
        assert max(gaps(theirs)) <= GAP
        assert [p.objective for p in ours.problems] == pytest.approx([p.objective for p in theirs.problems], rel=1e-8)
        assert np.abs(ours.weights - theirs.weights).max() <= 1e-4


def test_what_the_batched_solver_misses_is_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels, task = problem(43, 120, 6, 2, "multi_label")
    monkeypatch.setattr(batched, "MAX_ITERATIONS", 1)  # one Newton step is not enough
    fit = fit_logistic(Design(features), labels, task, 1.0)
    assert max(gaps(fit)) <= GAP
    assert [p.solver for p in fit.problems] == ["sklearn:newton-cholesky"] * 2


def test_the_matmul_precision_of_the_caller_stays() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        features, labels, task = problem(47, 900, 450, 2, "multi_label")
        assert max(gaps(fit_logistic(Design(features), labels, task, 1.0))) <= GAP
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_overflow_in_the_batched_solver_leaves_the_problem_to_the_reference(monkeypatch):
    def overflow(*_: object) -> None:
        raise torch.linalg.LinAlgError("eigh: not finite")

    features = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    labels = np.eye(3, dtype=np.int8)[np.arange(40) % 3]
    monkeypatch.setattr("crsbench_assets.probes.solver.solve", overflow)
    (certificate,) = fit_logistic(Design(features), labels, "single_label", 1.0).problems
    assert certificate.solver is not None and certificate.solver.startswith("sklearn:")
    assert certificate.relative_gap is not None and certificate.relative_gap <= 1e-8
