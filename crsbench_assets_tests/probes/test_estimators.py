"""Estimators beside the probe: what they choose inside a label budget, and what they must never read."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, log_softmax
from sklearn.calibration import _sigmoid_calibration
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import LeaveOneGroupOut, PredefinedSplit, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

from crsbench_assets.config.cards import Task
from crsbench_assets.probes.estimators import neighbours, perceptron, ridge, tuned_logistic
from crsbench_assets.probes.estimators.folds import PATIENCE, chosen_setting, fold_numbers, held_out_loss
from crsbench_assets.probes.estimators.interface import Estimator, LinearModel, trainable_columns
from crsbench_assets.probes.estimators.neighbours import NearestNeighbours, unit_rows
from crsbench_assets.probes.estimators.perceptron import Perceptron, PerceptronHead
from crsbench_assets.probes.estimators.ridge import Ridge, RidgePath, softmax_calibration
from crsbench_assets.probes.estimators.tuned_logistic import TunedLogistic
from crsbench_assets.probes.logistic import Design, fit_logistic

NAMES = ("cohort", 0)

ESTIMATORS: tuple[Estimator, ...] = (TunedLogistic(), NearestNeighbours(), PerceptronHead(), Ridge())

every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=[e.name for e in ESTIMATORS])

Cohort = tuple[NDArray[np.float32], NDArray[np.int8]]


@pytest.fixture(autouse=True)
def one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def one_hot(classes, k: int) -> NDArray[np.int8]:
    return np.eye(k, dtype=np.int8)[np.asarray(classes)]


def blobs(n: int, d: int, k: int, distance: float, seed: int = 0) -> Cohort:
    """n images of k classes around centres of the given length, z-scored as a train split is."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(k, d))
    centres *= distance / np.linalg.norm(centres, axis=1, keepdims=True)
    classes = rng.permutation(np.arange(n) % k)
    features = centres[classes] + rng.normal(size=(n, d))
    return ((features - features.mean(0)) / features.std(0)).astype(np.float32), one_hot(classes, k)


def fitted(estimator: Estimator, cohort: Cohort, task: Task = "single_label", groups=None):
    features, labels = cohort
    groups = np.arange(len(features)) if groups is None else groups
    return estimator.fit(features, labels, task, groups=groups, names=NAMES)


def near_duplicates(n_groups: int, size: int, d: int) -> tuple[Cohort, NDArray[np.int64]]:
    """Groups of near-duplicates whose labels are coins: nothing can be learned but the groups themselves."""
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(n_groups), size)
    features = rng.normal(size=(n_groups, d))[groups] + 0.05 * rng.normal(size=(n_groups * size, d))
    coins = rng.permutation(np.arange(n_groups) % 2)[groups]
    return (features.astype(np.float32), one_hot(coins, 2)), groups


class TestFolds:
    @given(
        groups=st.lists(st.integers(0, 12), min_size=1, max_size=60),
        seed=st.integers(0, 10**6),
        task=st.sampled_from(["single_label", "multi_label"]),
    )
    @settings(max_examples=150, deadline=None)
    def test_a_group_is_in_one_fold_and_the_order_of_rows_plays_no_part(self, groups, seed, task):
        rng = np.random.default_rng(seed)
        group_of = np.asarray(groups)
        if task == "multi_label":
            labels = rng.integers(-1, 2, size=(len(groups), 3)).astype(np.int8)
        else:
            labels = one_hot(rng.integers(0, 3, size=len(groups)), 3)
        folds = fold_numbers(labels, group_of, task, NAMES)
        order = rng.permutation(len(groups))
        again = fold_numbers(labels[order], group_of[order], task, NAMES)
        if folds is None:
            assert again is None
            return
        assert again is not None and (again == folds[order]).all()
        of_group = {(g, f) for g, f in zip(group_of.tolist(), folds.tolist(), strict=True)}
        assert len(of_group) == len(set(groups))
        n_groups_of_fold = np.bincount([f for _, f in of_group])
        assert 2 <= len(n_groups_of_fold) <= 5
        assert np.ptp(n_groups_of_fold) <= 1

    def test_classes_are_spread_evenly(self):
        labels = one_hot([0] * 50 + [1] * 23 + [2] * 7, 3)
        folds = fold_numbers(labels, np.arange(80), "single_label", NAMES)
        counts = np.array([[np.sum(labels[folds == f, c]) for c in range(3)] for f in range(5)])
        assert np.ptp(counts, axis=0).max() <= 1

    @pytest.mark.parametrize(
        ("classes", "groups", "n_folds"),
        [
            # images of each class, and whose patients          folds
            ([0, 1, 2, 3], [0, 1, 2, 3], None),  # one image per class: nothing to hold out
            ([0, 0, 0, 0, 1], [0, 1, 2, 3, 4], None),  # the second class is one image
            ([0, 0, 0, 1, 1], [0, 1, 2, 3, 4], 2),
            ([0] * 9 + [1] * 4, [*range(13)], 4),
            ([0] * 9 + [1] * 8, [*range(17)], 5),
            ([0] * 9 + [1] * 8, [*range(9), *[9] * 8], None),  # eight images of the second class, one patient
        ],
    )
    def test_small_subsets_have_fewer_folds(self, classes, groups, n_folds):
        folds = fold_numbers(one_hot(classes, max(classes) + 1), np.asarray(groups), "single_label", NAMES)
        assert n_folds is None if folds is None else int(folds.max()) + 1 == n_folds

    def test_multi_label_folds_follow_the_best_balanced_label(self):
        # label 0 is positive in 1 of 12 images, label 1 in 3, label 2 in all: 3 folds
        labels = np.zeros((12, 3), dtype=np.int8)
        labels[0, 0] = labels[1:4, 1] = labels[:, 2] = 1
        folds = fold_numbers(labels, np.arange(12), "multi_label", NAMES)
        assert int(folds.max()) + 1 == 3
        assert sorted(folds[1:4].tolist()) == [0, 1, 2]

    def test_another_seed_deals_otherwise(self):
        labels = one_hot(np.arange(40) % 2, 2)
        first, second = (fold_numbers(labels, np.arange(40), "single_label", ("cohort", s)) for s in (0, 1))
        assert (first != second).any()


class TestHeldOutLoss:
    def test_agrees_with_scikit_learn(self):
        rng = np.random.default_rng(0)
        logits, truth = rng.normal(size=(50, 4)), np.arange(50) % 4
        p = np.exp(log_softmax(logits, axis=1))
        assert held_out_loss(logits, one_hot(truth, 4), "single_label") == pytest.approx(log_loss(truth, p), abs=1e-12)
        labels = rng.integers(-1, 2, size=(50, 4)).astype(np.int8)
        by_label = [log_loss(labels[labels[:, j] >= 0, j], expit(logits[labels[:, j] >= 0, j])) for j in range(4)]
        assert held_out_loss(logits, labels, "multi_label") == pytest.approx(np.mean(by_label), abs=1e-12)

    def test_what_was_not_fitted_is_left_out(self):
        # the second image's class was not fitted where it was held out; the first one's loss is log(1 + e^-1)
        logits = np.array([[1.0, 0.0, np.nan], [0.0, 0.0, np.nan]])
        labels = one_hot([0, 2], 3)
        assert held_out_loss(logits, labels, "single_label") == pytest.approx(np.log1p(np.exp(-1)))
        # label 0: log 2 and log 2; label 1: nothing; label 2: not fitted
        labels = np.array([[1, -1, 1], [0, -1, 0]], dtype=np.int8)
        logits = np.array([[0.0, 3.0, np.nan], [0.0, 3.0, np.nan]])
        assert held_out_loss(logits, labels, "multi_label") == pytest.approx(np.log(2))

    def test_nothing_left_is_infinite(self):
        for task in ("single_label", "multi_label"):
            assert held_out_loss(np.full((2, 2), np.nan), one_hot([0, 1], 2), task) == np.inf


def test_the_scan_takes_the_first_of_equals_and_ends_early():
    losses = {1.0: 3.0, 2.0: 1.0, 3.0: 2.0, 4.0: 1.0, 5.0: 1.0, 6.0: 0.0}
    asked = []

    def loss_of(setting):
        asked.append(setting)
        return losses[setting]

    assert chosen_setting(losses, loss_of) == (2.0, 1.0)
    assert asked == [1.0, 2.0, 3.0, 4.0]
    assert len(asked) == 2 + PATIENCE


class TestAll:
    @every_estimator
    def test_bits_do_not_depend_on_what_was_drawn_or_fitted_before(self, estimator):
        cohort = blobs(90, 12, 3, 2.0)
        first = fitted(estimator, cohort)
        torch.manual_seed(7)
        np.random.seed(7)
        fitted(estimator, blobs(40, 12, 2, 1.0))
        second = fitted(estimator, cohort)
        assert first.selection == second.selection
        assert (first.logits(cohort[0]) == second.logits(cohort[0])).all()

    @every_estimator
    def test_learns_what_is_there(self, estimator):
        train, test = blobs(200, 20, 3, 3.0), blobs(300, 20, 3, 3.0, seed=1)
        model = fitted(estimator, train)
        log_p = log_softmax(model.logits(test[0]), axis=1)
        truth = test[1].argmax(axis=1)
        assert (log_p.argmax(axis=1) == truth).mean() > 0.85
        assert -log_p[np.arange(300), truth].mean() < 0.5  # log 3 is 1.1

    @every_estimator
    def test_an_absent_class_is_not_fitted(self, estimator):
        features, labels = blobs(60, 8, 3, 2.0)
        z = fitted(estimator, (features, np.insert(labels, 1, 0, axis=1))).logits(features)
        assert np.isnan(z[:, 1]).all() and np.isfinite(z[:, [0, 2, 3]]).all()
        only = fitted(estimator, (features, one_hot([1] * 60, 3)))
        assert np.isnan(only.logits(features)).all()
        assert only.selection.setting is None and only.selection.n_folds == 0

    @every_estimator
    def test_a_label_with_one_value_is_not_fitted_and_the_others_are(self, estimator):
        features, labels = blobs(60, 8, 3, 2.0)
        constant = np.column_stack([labels, np.zeros(60), np.ones(60), np.full(60, -1)]).astype(np.int8)
        constant[:5, 5] = 0
        z = fitted(estimator, (features, constant), "multi_label").logits(features)
        assert np.isfinite(z[:, :3]).all() and np.isnan(z[:, 3:]).all()
        assert roc_auc_score(labels[:, 0], z[:, 0]) > 0.8

    @pytest.mark.parametrize("k", [2, 5])
    @every_estimator
    def test_one_image_per_class_is_enough(self, estimator, k):
        features, labels = blobs(k, 30, k, 3.0)
        model = fitted(estimator, (features, labels))
        z = model.logits(features)
        assert np.isfinite(z).all() and (z.argmax(axis=1) == labels.argmax(axis=1)).all()
        if estimator.name != "ridge":  # which holds every image out in closed form
            assert model.selection.n_folds == 0 and model.selection.loss is None

    @every_estimator
    def test_features_without_spread_state_the_frequencies(self, estimator):
        labels = one_hot([0] * 30 + [1] * 10, 2)
        z = fitted(estimator, (np.zeros((40, 5), dtype=np.float32), labels)).logits(np.zeros((3, 5), dtype=np.float32))
        assert np.isfinite(z).all()
        if estimator.name != "knn":  # all images are equally near: which 20 vote is arbitrary
            assert np.exp(log_softmax(z, axis=1))[:, 0] == pytest.approx(np.full(3, 0.75), abs=0.02)

    @pytest.mark.parametrize("n", [2, 20, 97, 120, 1001])
    def test_ridge_reads_nothing_into_rounding(self, n):
        # held-out scores of constant features are 0 but for rounding, which no slope may blow up
        labels = one_hot([int(i % 5 < 2) if n > 2 else i for i in range(n)], 2)
        z = fitted(Ridge(), (np.zeros((n, 5), dtype=np.float32), labels)).logits(np.zeros((1, 5), dtype=np.float32))
        assert np.exp(log_softmax(z, axis=1))[0] == pytest.approx((labels.sum(axis=0) + 1) / (n + 2), abs=1e-6)

    @pytest.mark.parametrize("estimator", [e for e in ESTIMATORS if e.name != "knn"], ids=lambda e: e.name)
    def test_images_with_unknown_labels_enter_nothing(self, estimator):
        # a nearest neighbour may be an image without a label, which then does not vote; the others never look at it
        features, labels = blobs(120, 10, 2, 1.5)
        labels = labels[:, :1].copy()
        labels[::4] = -1
        poisoned = features.copy()
        poisoned[::4] = 5.0
        z, of_poisoned = (fitted(estimator, (x, labels), "multi_label").logits(features) for x in (features, poisoned))
        assert of_poisoned == pytest.approx(z, abs=2e-3)

    @pytest.mark.parametrize("estimator", [e for e in ESTIMATORS if e.name != "knn"], ids=lambda e: e.name)
    def test_near_duplicates_do_not_vouch_for_each_other(self, estimator):
        cohort, groups = near_duplicates(60, 5, 40)
        grouped, ungrouped = fitted(estimator, cohort, groups=groups), fitted(estimator, cohort)
        nothing_learned = 0.25 if estimator.name == "ridge" else np.log(2)
        assert grouped.selection.loss > 0.9 * nothing_learned
        assert ungrouped.selection.loss < 0.6 * nothing_learned

    @pytest.mark.parametrize("estimator", [e for e in ESTIMATORS if e.name != "mlp"], ids=lambda e: e.name)
    def test_the_order_of_the_images_plays_no_part(self, estimator):
        # the batches of the network are drawn by place, so its weights depend on the order of the subset
        features, labels = blobs(100, 15, 3, 2.0)
        groups = np.arange(100) // 2
        order = np.random.default_rng(0).permutation(100)
        z = fitted(estimator, (features, labels), groups=groups).logits(features)
        again = fitted(estimator, (features[order], labels[order]), groups=groups[order]).logits(features)
        assert again == pytest.approx(z, abs=1e-3)

    @every_estimator
    def test_images_are_judged_one_by_one(self, estimator):
        cohort = blobs(80, 10, 3, 2.0)
        model = fitted(estimator, cohort)
        assert model.logits(cohort[0][5:9]) == pytest.approx(model.logits(cohort[0])[5:9], abs=1e-5)
        assert model.logits(cohort[0][:0]).shape == (0, 3)


class TestTunedLogistic:
    def test_tuning_matters_where_dimensions_are_many(self):
        # 150 images, 300 dimensions, weak classes: C = 1 separates the noise
        train, test = blobs(150, 300, 2, 1.5), blobs(2000, 300, 2, 1.5, seed=1)
        truth = test[1][:, 1]
        tuned = fitted(TunedLogistic(), train)
        fixed = fit_logistic(Design(train[0]), train[1], "single_label", 1.0)
        z = tuned.logits(test[0])
        z_fixed = LinearModel(fixed.weights, fixed.intercept, tuned.selection).logits(test[0])
        losses = [log_loss(truth, np.exp(log_softmax(each, axis=1))) for each in (z, z_fixed)]
        aurocs = [roc_auc_score(truth, each[:, 1] - each[:, 0]) for each in (z, z_fixed)]
        assert tuned.selection.setting < 0.05 and tuned.selection.n_folds == 5
        assert losses[0] < losses[1] - 0.2
        assert aurocs[0] > aurocs[1] + 0.01

    def test_large_c_is_chosen_where_it_is_right(self):
        rng = np.random.default_rng(1)
        features = rng.normal(size=(3000, 3)).astype(np.float32)
        labels = (rng.random(3000) < expit(features @ [4.0, -3.0, 2.0]))[:, None].astype(np.int8)
        assert fitted(TunedLogistic(), (features, labels), "multi_label").selection.setting >= 0.3

    def test_agrees_with_scikit_learn(self):
        features, labels = blobs(200, 40, 2, 1.5)
        target = labels[:, :1]
        folds = fold_numbers(target, np.arange(200), "multi_label", NAMES)
        model = fitted(TunedLogistic(), (features, target), "multi_label")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # announcements of future defaults
            peer = LogisticRegressionCV(
                Cs=list(tuned_logistic.GRID),
                cv=PredefinedSplit(folds),
                scoring="neg_log_loss",
                tol=1e-8,
                max_iter=5000,
                use_legacy_attributes=False,
            ).fit(features.astype(np.float64), target[:, 0])
        assert model.selection.setting == pytest.approx(peer.C_)
        assert model.weights == pytest.approx(peer.coef_, abs=1e-3)
        assert model.intercept == pytest.approx(peer.intercept_, abs=1e-3)

    def test_the_final_fit_is_the_probe_at_the_chosen_c(self):
        features, labels = blobs(120, 30, 3, 2.0)
        model = fitted(TunedLogistic(), (features, labels))
        probe = fit_logistic(Design(features), labels, "single_label", model.selection.setting)
        assert (model.weights == probe.weights).all() and (model.intercept == probe.intercept).all()
        assert model.relative_gap == probe.problems[0].relative_gap
        assert model.relative_gap <= 1e-8

    def test_the_default_where_there_are_no_folds(self):
        features, labels = blobs(3, 20, 3, 2.0)
        model = fitted(TunedLogistic(default_c=0.5), (features, labels))
        probe = fit_logistic(Design(features), labels, "single_label", 0.5)
        assert model.selection.setting == 0.5 and (model.weights == probe.weights).all()


class TestNearestNeighbours:
    def test_by_hand(self):
        # query (1, 0); cosines 1, 0 and -1 weigh 1, e^(-1/T) and e^(-2/T); the subset's frequencies vote as one
        features = np.array([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]], dtype=np.float32)
        model = fitted(NearestNeighbours(), (features, one_hot([0, 1, 1], 2)))
        second, third = np.exp(-1 / neighbours.TEMPERATURE), np.exp(-2 / neighbours.TEMPERATURE)
        votes = np.array([1 + 1 / 3, second + third + 2 / 3])
        z = model.logits(np.array([[5.0, 0.0]], dtype=np.float32))
        assert z[0] == pytest.approx(np.log(votes / votes.sum()))

    @pytest.mark.parametrize("n", [12, 300])
    def test_agrees_with_scikit_learn(self, n):
        (features, labels), (queries, _) = blobs(n, 10, 3, 2.0), blobs(50, 10, 3, 2.0, seed=1)
        k = min(20, n)

        def weights(distance):
            return np.exp((distance.min(axis=1, keepdims=True) - distance) / neighbours.TEMPERATURE)

        peer = KNeighborsClassifier(k, weights=weights, algorithm="brute", metric="cosine")
        of_peer = peer.fit(features.astype(np.float64), labels.argmax(axis=1)).predict_proba(queries.astype(np.float64))
        total = weights(peer.kneighbors(queries.astype(np.float64))[0]).sum(axis=1, keepdims=True)
        expected = (of_peer * total + labels.mean(axis=0)) / (total + 1)
        model = fitted(NearestNeighbours(), (features, labels))
        assert np.exp(model.logits(queries)) == pytest.approx(expected, abs=1e-5)
        by_label = fitted(NearestNeighbours(), (features, labels), "multi_label")
        assert expit(by_label.logits(queries)) == pytest.approx(expected, abs=1e-5)

    def test_a_neighbour_without_a_label_does_not_vote(self):
        features = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], dtype=np.float32)
        labels = np.array([[-1], [1], [0]], dtype=np.int8)
        z = fitted(NearestNeighbours(), (features, labels), "multi_label").logits(features[:1])
        cosine = np.array([1 / np.sqrt(1.01), 0.0])
        votes = np.exp((cosine - 1) / neighbours.TEMPERATURE) + 0.5
        assert z[0, 0] == pytest.approx(np.log(votes[0] / votes[1]), abs=1e-5)

    def test_a_unanimous_vote_has_a_finite_loss(self):
        features, labels = blobs(200, 5, 2, 50.0)
        p = np.exp(fitted(NearestNeighbours(), (features, labels)).logits(features))
        assert 0.9 < p.max() < 1.0 and p.min() > 0.0

    def test_blocks_change_nothing_and_bound_the_memory(self, monkeypatch):
        cohort = blobs(20_000, 8, 2, 1.0)
        model = fitted(NearestNeighbours(), cohort)
        queries = blobs(3000, 8, 2, 1.0, seed=1)[0]
        tracemalloc.start()
        z = model.logits(queries)
        assert tracemalloc.get_traced_memory()[1] < 200e6
        tracemalloc.stop()
        monkeypatch.setattr(neighbours, "CHUNK_BYTES", 4 * 20_000 * 700)
        assert model.logits(queries) == pytest.approx(z, abs=1e-4)

    def test_rows_of_zeros_stay(self):
        assert unit_rows(np.zeros((2, 3), dtype=np.float32)).tolist() == [[0.0] * 3] * 2


class TestRidge:
    @pytest.mark.parametrize("d", [10, 100], ids=["n > d", "n < d"])
    def test_agrees_with_scikit_learn_on_leave_one_out(self, d):
        features, labels = blobs(60, d, 3, 2.0)
        targets = labels.astype(np.float64)
        path = RidgePath(features, targets, np.arange(60))
        peer = RidgeCV(alphas=ridge.GRID, store_cv_results=True).fit(features.astype(np.float64), targets)
        errors = ((path.held_out - targets) ** 2).transpose(1, 2, 0)
        assert errors == pytest.approx(peer.cv_results_, abs=1e-9)
        model = fitted(Ridge(), (features, labels))
        assert model.selection.setting == peer.alpha_
        assert model.selection.loss == pytest.approx(-peer.best_score_, abs=1e-9)
        # the logits are one slope times the deviations from the mean score, plus offsets
        slope = model.weights[0] @ peer.coef_[0] / (peer.coef_[0] @ peer.coef_[0])
        assert slope > 0 and model.weights == pytest.approx(slope * peer.coef_, abs=1e-7 * slope)

    @pytest.mark.parametrize("d", [6, 80], ids=["n > d", "n < d"])
    def test_agrees_with_refits_that_leave_a_group_out(self, d):
        rng = np.random.default_rng(2)
        features, targets = rng.normal(size=(50, d)).astype(np.float32), rng.normal(size=(50, 2))
        groups = np.concatenate([np.repeat(np.arange(5), 4), np.arange(5, 25), np.repeat([25], 10)])
        groups = groups[rng.permutation(50)]
        path = RidgePath(features, targets, groups)
        assert path.n_groups == 26
        for i in (0, 5, len(ridge.GRID) - 1):
            peer = cross_val_predict(
                SklearnRidge(ridge.GRID[i]), features.astype(np.float64), targets, groups=groups, cv=LeaveOneGroupOut()
            )
            assert path.held_out[i] == pytest.approx(peer, abs=1e-6)
            mean_of_others = np.stack([targets[groups != g].mean(axis=0) for g in groups])
            assert path.deviations(i) == pytest.approx(peer - mean_of_others, abs=1e-6)

    def test_unknown_labels_are_as_if_the_images_were_not_there(self):
        features, labels = blobs(120, 20, 3, 2.0)
        labels = labels.copy()
        labels[:30, 0] = -1
        model = fitted(Ridge(), (features, labels[:, :1]), "multi_label", np.arange(120) // 2)
        dropped = fitted(Ridge(), (features[30:], labels[30:, :1]), "multi_label", np.arange(30, 120) // 2)
        assert model.selection == dropped.selection
        assert model.weights == pytest.approx(dropped.weights) and model.intercept == pytest.approx(dropped.intercept)

    def test_calibration_of_two_outcomes_is_platts(self):
        rng = np.random.default_rng(4)
        truth = (rng.random(300) < 0.3).astype(np.int8)
        scores = 0.4 * truth + rng.normal(size=300)
        slope, offsets = softmax_calibration(np.stack([-scores, scores], axis=1) / 2, one_hot(truth, 2).astype(float))
        a, b = _sigmoid_calibration(scores, truth)
        assert (slope, offsets[1] - offsets[0]) == pytest.approx((-a, -b), abs=1e-4)

    def test_calibration_recovers_a_planted_softmax(self):
        rng = np.random.default_rng(5)
        scores = rng.normal(size=(20_000, 3))
        classes = (2.5 * scores + [0.5, 0.0, -0.5] + rng.gumbel(size=scores.shape)).argmax(axis=1)
        slope, offsets = softmax_calibration(scores, one_hot(classes, 3).astype(float))
        assert slope == pytest.approx(2.5, abs=0.1)
        assert offsets == pytest.approx([0.5, 0.0, -0.5], abs=0.05)

    def test_scores_that_say_the_reverse_keep_their_order(self):
        scores = np.linspace(-1, 1, 20)
        targets = one_hot((scores < 0).astype(int), 2).astype(float)
        slope, _ = softmax_calibration(np.stack([-scores, scores], axis=1) / 2, targets)
        assert slope > 0

    def test_a_probability_is_what_it_says(self):
        # 400 images, 200 dimensions: raw scores are far from probabilities
        train, test = blobs(400, 200, 2, 2.0), blobs(4000, 200, 2, 2.0, seed=1)
        p = np.exp(log_softmax(fitted(Ridge(), train).logits(test[0]), axis=1))[:, 1]
        low, high = p < np.quantile(p, 0.2), p > np.quantile(p, 0.8)
        for part in (low, high):
            assert test[1][part, 1].mean() == pytest.approx(p[part].mean(), abs=0.06)

    def test_one_group_is_held_out_image_by_image(self):
        features, labels = blobs(30, 5, 2, 2.0)
        model = fitted(Ridge(), (features, labels), groups=np.zeros(30, dtype=np.int64))
        assert model.selection == fitted(Ridge(), (features, labels)).selection
        assert model.selection.n_folds == 30


class TestPerceptron:
    def test_sees_what_no_line_divides(self):
        rng = np.random.default_rng(6)
        features = rng.normal(size=(1200, 4)).astype(np.float32)
        cohort = features, one_hot((features[:, 0] * features[:, 1] > 0).astype(int), 2)
        part = cohort[0][:800], cohort[1][:800]
        truth = cohort[1][800:, 1]
        z, of_line = (fitted(e, part).logits(features[800:]) for e in (PerceptronHead(), Ridge()))
        assert roc_auc_score(truth, z[:, 1] - z[:, 0]) > 0.85
        assert roc_auc_score(truth, of_line[:, 1] - of_line[:, 0]) < 0.65

    @pytest.mark.parametrize("task", ["single_label", "multi_label"])
    def test_the_gradient_agrees_with_automatic_differentiation(self, task):
        features, labels = blobs(40, 6, 3, 2.0)
        labels = labels.copy()
        if task == "multi_label":
            labels[::5, 1] = -1
        network = Perceptron(torch.from_numpy(features), labels, np.arange(40), task, NAMES)
        network.train(5)
        values = [part.clone().requires_grad_() for part in network._views(network._parameters)]
        z = (torch.from_numpy(features) @ values[0] + values[1]).relu() @ values[2] + values[3]
        target = torch.from_numpy(labels.astype(np.float32))
        if task == "multi_label":
            terms = torch.nn.functional.binary_cross_entropy_with_logits(z, target.clamp(min=0), reduction="none")
            loss = (terms * (target >= 0)).sum() / 40
        else:
            loss = torch.nn.functional.cross_entropy(z, target)
        loss.backward()
        gradient = network._views(network._gradient(np.arange(40)))
        assert max(part.abs().max() for part in gradient) > 0.01
        for ours, theirs in zip(gradient, values, strict=True):
            assert ours.numpy() == pytest.approx(theirs.grad.numpy(), abs=1e-6)

    def test_steps_agree_with_torchs_optimiser(self, monkeypatch):
        features, labels = blobs(40, 6, 3, 2.0)
        network = Perceptron(torch.from_numpy(features), labels, np.arange(40), "single_label", NAMES)
        value = network._parameters.clone().requires_grad_()
        gradients = torch.from_numpy(np.random.default_rng(8).normal(size=(10, len(value))).astype(np.float32))
        monkeypatch.setattr(network, "_gradient", lambda places: gradients[network.n_steps - 1])
        network.train(10)
        peer = torch.optim.AdamW([value], lr=perceptron.LEARNING_RATE, weight_decay=perceptron.WEIGHT_DECAY)
        for gradient in gradients:
            value.grad = gradient
            peer.step()
        assert network._parameters.numpy() == pytest.approx(value.detach().numpy(), abs=1e-6)

    def test_a_fold_reads_no_label_that_it_holds_out(self):
        features, labels = blobs(60, 6, 2, 2.0)
        kept = np.arange(0, 60, 2)
        poisoned = labels.copy()
        poisoned[1::2] = 99
        found = []
        for each in (labels, poisoned):
            network = Perceptron(torch.from_numpy(features), each, kept, "single_label", NAMES)
            network.train(20)
            found.append(network.logits(features))
        assert (found[0] == found[1]).all()

    def test_every_image_is_seen_once_before_any_is_seen_twice(self):
        features, labels = blobs(600, 3, 2, 2.0)
        network = Perceptron(torch.from_numpy(features), labels, np.arange(600), "single_label", NAMES)
        seen = np.concatenate([network._batch() for _ in range(2)])
        assert len(seen) == 512 and len(set(seen.tolist())) == 512
        seen = np.concatenate([seen, *[network._batch() for _ in range(73)]])  # 32 passes
        assert np.ptp(np.bincount(seen)) == 0

    def test_coins_stop_it_early(self):
        rng = np.random.default_rng(7)
        features, labels = rng.normal(size=(300, 50)).astype(np.float32), one_hot(rng.integers(0, 2, 300), 2)
        assert fitted(PerceptronHead(), (features, labels)).selection.setting <= 20


def test_what_a_subset_can_teach():
    assert trainable_columns(one_hot([0, 0], 3), "single_label").tolist() == [False] * 3
    assert trainable_columns(one_hot([0, 2], 3), "ordinal").tolist() == [True, False, True]
    labels = np.array([[1, 1, 0, -1], [0, 1, 0, 1], [-1, -1, 0, -1]], dtype=np.int8)
    assert trainable_columns(labels, "multi_label").tolist() == [True, False, False, False]
    assert trainable_columns(labels[:0], "multi_label").tolist() == [False] * 4
