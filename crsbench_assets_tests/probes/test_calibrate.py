"""Post-hoc calibration: what is recovered, what is refused and why, and that nothing depends on order or company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, logit, softmax
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.metrics.compute import record_metrics
from crsbench_assets.probes.calibrate import METHODS, Calibrator, Method, fit_calibrator, grouped_mean, needed_errors
from crsbench_assets.tables.reasons import REASONS

Logits = NDArray[np.float64]
Labels = NDArray[np.int8]

KEY = ("cohort", 0)

each_method = pytest.mark.parametrize("method", METHODS)


def planted(task: str, n: int, k: int, draw: int = 0, scale: float = 1.0) -> tuple[Logits, Labels]:
    """Return logits that are ``scale`` times those that the labels were drawn from."""
    rng = keyed_generator("planted", task, n, k, draw)
    truth = 2.0 * rng.standard_normal((n, k)) - np.linspace(0.0, 2.0, k)
    if task == "multi_label":
        labels = (rng.random((n, k)) < expit(truth)).astype(np.int8)
    else:
        drawn = (softmax(truth, axis=1).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
        labels = np.eye(k, dtype=np.int8)[drawn]
    return scale * truth, labels


def fit(method: Method, logits: NDArray[Any], labels: NDArray[Any], task: Any, **options: Any) -> Calibrator:
    return fit_calibrator(method, logits, labels, task, key=KEY, **options)


def mean_loss(logits: Logits, labels: Labels) -> float:
    return -float(log_softmax(logits, axis=1)[labels == 1].mean())


@pytest.mark.parametrize(("task", "k"), [("single_label", 2), ("single_label", 5), ("multi_label", 1)])
def test_temperature_is_recovered_and_accepted(task: str, k: int) -> None:
    calibrator = fit("temperature", *planted(task, 5_000, k, scale=2.0), task)
    assert calibrator.is_accepted and calibrator.reason is None
    temperature = 1.0 if calibrator.temperature is None else calibrator.temperature
    assert temperature == pytest.approx(2.0, abs=0.1)
    logits, _ = planted(task, 50, k, draw=1)
    found, expected = calibrator.apply(logits), logits / temperature
    if task == "single_label":
        found, expected = softmax(found, axis=1), softmax(expected, axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_every_label_has_its_own_temperature() -> None:
    logits, labels = planted("multi_label", 5_000, 3)
    scaled = logits * [0.5, 1.0, 2.0]
    calibrator = fit("temperature", scaled, labels, "multi_label")
    assert [repair.reason for repair in calibrator.repairs] == [None, "no_gain", None]
    assert (calibrator.is_accepted, calibrator.n_accepted, calibrator.temperature) == (True, 2, None)
    first, second, third = calibrator.parameters
    assert second is None and first is not None and third is not None
    assert (first[0], third[0]) == (pytest.approx(0.5, abs=0.05), pytest.approx(2.0, abs=0.15))
    assert (calibrator.apply(scaled)[:, 1] == scaled[:, 1]).all()


@each_method
@pytest.mark.parametrize(("task", "k", "n"), [("single_label", 4, 100), ("multi_label", 2, 60)])
def test_calibrated_logits_are_left_alone(method: Method, task: str, k: int, n: int) -> None:
    refused = [not fit(method, *planted(task, n, k, draw), task).is_accepted for draw in range(100)]
    assert sum(refused) >= 80


@pytest.mark.parametrize("method", ["temperature", "vector"])
def test_five_thousand_calibrated_logits_have_no_gain(method: Method) -> None:
    """Case ``temperature-on-separated-logits``, third input."""
    logits, labels = planted("single_label", 5_000, 2)
    calibrator = fit(method, logits, labels, "single_label")
    assert (calibrator.is_accepted, calibrator.reason) == (False, "no_gain")
    assert (calibrator.apply(logits) == logits).all()


@each_method
@pytest.mark.parametrize("margin", [1e-2, 0.3, 3.0, 50.0, 500.0])
@pytest.mark.parametrize("task", ["single_label", "multi_label"])
def test_separated_logits_end_at_a_bound(method: Method, margin: float, task: str) -> None:
    """Case ``temperature-on-separated-logits``, first input: elsewhere T runs off to 1e6."""
    size = margin * (1.0 + np.arange(25) / 25)
    z = np.concatenate([-size, size])
    truth = (z > 0).astype(np.int64)
    labels = np.eye(2, dtype=np.int8)[truth] if task == "single_label" else truth[:, None].astype(np.int8)
    logits = np.column_stack([-z, z]) / 2 if task == "single_label" else z[:, None]
    calibrator = fit(method, logits, labels, task)
    assert (calibrator.is_accepted, calibrator.reason) == (False, "at_bound")
    assert calibrator.temperature == (1.0 if method == "temperature" else None)
    assert (calibrator.apply(logits) == logits).all()


@each_method
def test_separated_classes_of_a_softmax_end_at_a_bound(method: Method) -> None:
    truth = np.arange(60) % 3
    logits = 4.0 * np.eye(3)[truth] + keyed_generator("noise").random((60, 3))
    assert fit(method, logits, np.eye(3, dtype=np.int8)[truth], "single_label").reason == "at_bound"


@each_method
@pytest.mark.parametrize("value", [0, 1])
def test_one_class_among_the_validation_images_is_refused(method: Method, value: int) -> None:
    """Case ``temperature-on-separated-logits``, second input."""
    logits, _ = planted("single_label", 200, 2)
    labels = np.eye(2, dtype=np.int8)[np.full(200, value)]
    one_label = np.full((200, 1), value, dtype=np.int8)
    for calibrator in (
        fit(method, logits, labels, "single_label"),
        fit(method, logits[:, :1], one_label, "multi_label"),
    ):
        assert not calibrator.is_accepted
        assert calibrator.reason == "at_bound" or (method, calibrator.reason) == ("temperature", "one_class_validation")


def test_one_class_that_a_temperature_would_help_is_refused() -> None:
    # all labels 0: 90 logits at -1 ask for a small T, 10 at +1 forbid T = 1/20, so that the optimum is inside
    logits = np.where(np.arange(100) < 90, -1.0, 1.0)[:, None]
    calibrator = fit("temperature", logits, np.zeros((100, 1), dtype=np.int8), "multi_label")
    assert calibrator.reason == "one_class_validation"


@pytest.mark.parametrize("method", ["vector", "isotonic", "dirichlet"])
def test_a_class_without_validation_image_ends_at_a_bound_and_temperature_does_without(method: Method) -> None:
    logits, labels = planted("single_label", 400, 4, scale=3.0)
    labels[labels[:, 3] == 1] = np.eye(4, dtype=np.int8)[0]
    assert fit(method, logits, labels, "single_label").reason == "at_bound"
    assert fit("temperature", logits, labels, "single_label").is_accepted


@each_method
@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize(("task", "k"), [("single_label", 2), ("ordinal", 4), ("multi_label", 3)])
def test_few_images_are_refused(method: Method, n: int, task: str, k: int) -> None:
    for draw in range(3):
        logits, labels = planted("multi_label" if task == "multi_label" else "single_label", n, k, draw)
        calibrator = fit(method, logits, labels, task)
        assert not calibrator.is_accepted
        assert calibrator.reason in {"few_validation_images", "at_bound", "one_class_validation", "no_gain"}
        if n == 0:
            assert calibrator.reason == "few_validation_images"
        assert (calibrator.apply(logits) == logits).all()


def test_every_reason_is_explained() -> None:
    assert {"no_gain", "at_bound", "one_class_validation", "few_validation_images", "one_class_train"} <= REASONS.keys()


@given(
    st.integers(0, 10_000),
    st.sampled_from(METHODS),
    st.sampled_from(["single_label", "multi_label"]),
    st.integers(0, 40),
    st.integers(2, 4),
    st.floats(0.01, 1_000),
)
@settings(max_examples=40, deadline=None)
def test_whatever_comes_is_finite_or_refused(
    draw: int, method: Method, task: str, n: int, k: int, scale: float
) -> None:
    logits, labels = planted(task, n, k, draw, scale)
    calibrator = fit(method, logits, labels, task)
    assert np.isfinite(calibrator.apply(logits)).all()
    assert (calibrator.reason is None) == calibrator.is_accepted
    for parameters in calibrator.parameters:
        if parameters is not None and method == "temperature":
            assert 1 / 20 < parameters[0] < 20


@pytest.mark.parametrize(("task", "k"), [("single_label", 2), ("multi_label", 4)])
@pytest.mark.parametrize("method", ["temperature", "vector"])
def test_two_class_and_label_auroc_do_not_move(method: Method, task: Any, k: int) -> None:
    logits, labels = planted(task, 2_000, k, scale=2.0)
    stored = logits.astype(np.float32)
    calibrator = fit(method, stored, labels, task)
    assert calibrator.is_accepted
    groups = np.arange(2_000)
    before, after = (
        record_metrics(z, labels, task, groups=groups, n_bins=15) for z in (stored, calibrator.apply(stored))
    )
    for old, new in zip(before.labels, after.labels, strict=True):
        assert old.auroc is not None and new.auroc == pytest.approx(old.auroc, abs=1e-12)
        scores = stored[:, old.index] if task == "multi_label" else stored[:, old.index] - stored[:, 1 - old.index]
        assert new.auroc == pytest.approx(roc_auc_score(labels[:, old.index], scores), abs=1e-9)
    assert after.ece is not None and before.ece is not None and after.ece < before.ece / 2


@pytest.mark.parametrize(("task", "k"), [("single_label", 2), ("single_label", 4), ("multi_label", 1)])
def test_temperature_agrees_with_brute_force(task: str, k: int) -> None:
    logits, labels = planted(task, 500, k, scale=3.0)
    pairs = logits if task == "single_label" else np.hstack([np.zeros((500, 1)), logits])
    one_hot = labels if task == "single_label" else np.hstack([1 - labels, labels])
    found = minimize_scalar(
        lambda t: mean_loss(pairs / t, one_hot), bounds=(1 / 20, 20), method="bounded", options={"xatol": 1e-10}
    )
    assert fit("temperature", logits, labels, task).parameters[0] == pytest.approx(found.x, abs=1e-6)


def test_platt_agrees_with_scikit_learn() -> None:
    logits, labels = planted("multi_label", 800, 1, scale=2.0)
    shifted = logits + 1.0
    model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1_000).fit(shifted, labels[:, 0])
    (parameters,) = fit("vector", shifted, labels, "multi_label").parameters
    assert parameters == pytest.approx([model.coef_[0, 0], model.intercept_[0]], abs=1e-5)


def test_two_class_dirichlet_agrees_with_scikit_learn_where_its_penalty_is_nothing() -> None:
    logits, labels = planted("multi_label", 4_000, 1, scale=2.0)
    (parameters,) = fit("dirichlet", logits, labels, "multi_label").parameters
    log_q1, log_q0 = -np.logaddexp(0, -logits), -np.logaddexp(0, logits)
    model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1_000)
    model.fit(np.hstack([log_q1, -log_q0]), labels[:, 0])
    # the offset is near 0, where the penalty is flat: it moves the optimum by much less than its standard error
    assert parameters == pytest.approx([*model.coef_[0], model.intercept_[0]], abs=0.02)


def test_isotonic_agrees_with_scikit_learn() -> None:
    logits, labels = planted("multi_label", 1_000, 1, scale=3.0)
    tied = logits.round(1)
    calibrator = fit("isotonic", tied, labels, "multi_label")
    assert calibrator.is_accepted and calibrator.parameters == (None,)
    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(expit(tied[:, 0]), labels[:, 0])
    new = np.linspace(-20, 20, 999)
    expected = np.clip(model.predict(expit(new)), 1e-6, 1 - 1e-6)
    np.testing.assert_allclose(calibrator.apply(new[:, None])[:, 0], logit(expected), atol=1e-9)


def test_isotonic_softmax_is_one_against_the_rest_normalised() -> None:
    logits, labels = planted("single_label", 1_000, 3, scale=3.0)
    calibrator = fit("isotonic", logits, labels, "single_label")
    assert calibrator.is_accepted
    q = softmax(logits, axis=1)
    raw = np.column_stack([IsotonicRegression().fit(q[:, c], labels[:, c]).predict(q[:, c]) for c in range(3)])
    expected = np.clip(raw / raw.sum(axis=1, keepdims=True), 1e-6, 1 - 1e-6)
    np.testing.assert_allclose(np.exp(calibrator.apply(logits)), expected, atol=1e-9)


@each_method
@pytest.mark.parametrize(("task", "k"), [("single_label", 4), ("multi_label", 3)])
def test_the_order_of_images_is_nothing(method: Method, task: str, k: int) -> None:
    logits, labels = planted(task, 300, k, scale=2.0)
    groups = np.arange(300) // 2
    order = keyed_generator("order").permutation(300)
    one = fit(method, logits, labels, task, groups=groups)
    other = fit(method, logits[order], labels[order], task, groups=groups[order])
    assert [r.reason for r in one.repairs] == [r.reason for r in other.repairs]
    np.testing.assert_allclose(one.apply(logits), other.apply(logits), atol=1e-7)


@each_method
def test_classes_may_be_named_in_any_order(method: Method) -> None:
    logits, labels = planted("single_label", 2_000, 4, scale=3.0)
    order = np.array([2, 0, 3, 1])
    one, other = fit(method, logits, labels, "single_label"), fit(method, logits[:, order], labels[:, order], "ordinal")
    assert one.is_accepted and other.is_accepted
    np.testing.assert_allclose(
        softmax(one.apply(logits)[:, order], axis=1), softmax(other.apply(logits[:, order]), axis=1), atol=1e-6
    )


@each_method
def test_a_label_does_not_depend_on_its_company(method: Method) -> None:
    logits, labels = planted("multi_label", 1_000, 3, scale=3.0)
    others, other_labels = planted("multi_label", 1_000, 3, draw=1)
    mixed = np.column_stack([logits[:, :1], others[:, 1:]]), np.column_stack([labels[:, :1], other_labels[:, 1:]])
    one, other = fit(method, logits, labels, "multi_label"), fit(method, *mixed, "multi_label")
    assert one.repairs[0].reason == other.repairs[0].reason is None
    assert (one.apply(logits)[:, 0] == other.apply(mixed[0])[:, 0]).all()


@each_method
@pytest.mark.parametrize(("task", "k"), [("single_label", 3), ("multi_label", 2)])
def test_columns_that_were_not_fitted_stay_out(method: Method, task: str, k: int) -> None:
    logits, labels = planted(task, 1_000, k, scale=3.0)
    wide = np.insert(logits, 1, np.nan, axis=1)
    wide_labels = np.insert(labels, 1, 0, axis=1)
    if task == "single_label":
        # images of the class that was not fitted say nothing about the others
        wide = np.vstack([wide, wide[:50]])
        wide_labels = np.vstack([wide_labels, np.tile(np.eye(k + 1, dtype=np.int8)[1], (50, 1))])
    narrow, calibrator = fit(method, logits, labels, task), fit(method, wide, wide_labels, task)
    found = calibrator.apply(wide)
    assert np.isnan(found[:, 1]).all()
    if task == "single_label":
        assert calibrator.is_accepted
        np.testing.assert_allclose(np.delete(found[:1_000], 1, axis=1), narrow.apply(logits), atol=1e-9)
    else:
        assert calibrator.repairs[1].reason == "one_class_train"
        for repair, alone in zip(calibrator.repairs[::2], narrow.repairs, strict=True):
            if repair.reason is None and alone.reason is None:
                np.testing.assert_allclose(repair.apply(logits[:, :1]), alone.apply(logits[:, :1]), atol=1e-9)


def test_two_fitted_columns_of_three_are_two_classes() -> None:
    logits, labels = planted("single_label", 1_000, 2, scale=2.0)
    wide = np.insert(logits, 2, np.nan, axis=1)
    calibrator = fit("temperature", wide, np.insert(labels, 2, 0, axis=1), "single_label")
    assert calibrator.temperature == fit("temperature", logits, labels, "single_label").temperature
    nothing = fit("temperature", np.full((9, 3), np.nan), np.eye(3, dtype=np.int8)[np.arange(9) % 3], "single_label")
    assert nothing.reason == "one_class_train"
    assert np.isnan(nothing.apply(np.full((2, 3), np.nan))).all()


@each_method
def test_unknown_labels_are_left_out(method: Method) -> None:
    logits, labels = planted("multi_label", 600, 2, scale=2.0)
    groups = np.arange(600)
    masked = labels.copy()
    masked[400:, 0] = -1
    one = fit(method, logits, masked, "multi_label", groups=groups)
    known = np.column_stack([logits[:400, 0], logits[:400, 1]]), labels[:400]
    other = fit(method, *known, "multi_label", groups=groups[:400])
    assert one.repairs[0].reason == other.repairs[0].reason
    assert (one.apply(logits)[:, 0] == other.apply(logits)[:, 0]).all()
    all_unknown = fit(method, logits, np.full((600, 2), -1, dtype=np.int8), "multi_label")
    assert all_unknown.reason == "few_validation_images"


def test_near_duplicates_of_one_group_are_no_evidence() -> None:
    # 20 calibrated patients, each copied 40 times: every accident is confirmed by its copies in the other folds
    accepted_by_image, accepted_by_group = 0, 0
    for draw in range(20):
        logits, labels = (np.repeat(a, 40, axis=0) for a in planted("multi_label", 20, 1, draw))
        patients = np.arange(800) // 40
        accepted_by_image += fit("temperature", logits, labels, "multi_label").is_accepted
        grouped = fit("temperature", logits, labels, "multi_label", groups=patients)
        alone = fit("temperature", logits[::40], labels[::40], "multi_label")
        assert grouped.reason == alone.reason
        accepted_by_group += grouped.is_accepted
    assert accepted_by_image >= 10 and accepted_by_group <= 4


def test_the_error_of_a_mean_over_groups() -> None:
    # | group | values | sum of residuals (mean 3) |
    # |   7   | 1 3    | -2                        |   error = sqrt(2 / 1 * (4 + 4)) / 4 = 1
    # |   9   | 3 5    |  2                        |
    assert grouped_mean(np.array([1.0, 3.0, 3.0, 5.0]), np.array([7, 9, 7, 9])[[0, 2, 1, 3]]) == (3.0, 1.0)
    values = keyed_generator("values").standard_normal(50)
    mean, error = grouped_mean(values, np.arange(50))
    assert [mean, error] == pytest.approx([values.mean(), values.std(ddof=1) / 50**0.5])
    assert grouped_mean(values, np.zeros(50, dtype=np.int64))[1] == np.inf


def test_the_level_is_shared_among_labels() -> None:
    assert needed_errors(1, 10**7) == pytest.approx(1.0, abs=1e-6)
    assert [round(needed_errors(k, 10**7), 3) for k in (2, 14)] == [1.41, 2.279]
    # t with 1 and 4 degrees of freedom at the level of one standard error
    assert [round(needed_errors(1, g), 3) for g in (1, 2, 5)] == [np.inf, 1.837, 1.142]


def test_wrong_shapes_and_damaged_logits_are_refused() -> None:
    logits, labels = planted("single_label", 10, 3)
    with pytest.raises(ValueError, match=r"found logits \(10, 3\), labels \(9, 3\)"):
        fit("temperature", logits, labels[:9], "single_label")
    with pytest.raises(ValueError, match=r"groups \(9,\)"):
        fit("temperature", logits, labels, "single_label", groups=np.arange(9))
    logits[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinite or partly NaN"):
        fit("temperature", logits, labels, "single_label")
