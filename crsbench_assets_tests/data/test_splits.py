"""Tests of the split draw, the train order and the label fractions.

What lives here: hand-counted draws, an independent greedy order in exact fractions, and properties of every
draw.
What stays out: straddling groups as a stored table (``test_leakage``).
Source: protocol page, section 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.randomness import keyed_ranks
from crsbench_assets.data import splits
from crsbench_assets.data.splits import (
    EXCLUDED,
    GROUP_IN_DECLARED_TEST,
    SplitResult,
    draw_splits,
    fraction_size,
    is_feasible,
    stratified_order,
)

SEEDS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Cohort:
    """The inputs of one draw."""

    ids: list[str]
    groups: list[str]
    labels: NDArray[np.int8]
    declared: Sequence[str | None]

    def draw(self, seeds: tuple[int, ...] = SEEDS, excluded: tuple[str, ...] = ()) -> SplitResult:
        return draw_splits(
            self.ids,
            self.groups,
            self.labels,
            self.declared,
            dataset_id="cohort",
            seeds=seeds,
            test_fraction=0.2,
            validation_fraction=0.125,
            excluded=excluded,
        )

    def reordered(self, order: list[int]) -> Cohort:
        return Cohort(
            [self.ids[i] for i in order],
            [self.groups[i] for i in order],
            self.labels[order],
            [self.declared[i] for i in order],
        )


def single_label(classes: list[int], groups: list[str] | None = None, k: int | None = None) -> Cohort:
    ids = [f"i{j:04d}" for j in range(len(classes))]
    labels = np.eye(k or max(classes) + 1, dtype=np.int8)[classes]
    return Cohort(ids, groups or ids, labels, [None] * len(ids))


@st.composite
def cohorts(draw: st.DrawFn, declares_test: bool | None = None) -> Cohort:
    n = draw(st.integers(0, 40))
    k = draw(st.integers(0, 4))
    groups = draw(st.lists(st.sampled_from([f"p{g}" for g in range(15)]), min_size=n, max_size=n))
    cells = draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=n * k, max_size=n * k))
    labels = np.array(cells, dtype=np.int8).reshape(n, k)
    names = [None, "train", "validation"] if declares_test is False else [None, "train", "validation", "test"]
    declared = draw(st.lists(st.sampled_from(names), min_size=n, max_size=n))
    return Cohort([f"i{j:02d}" for j in range(n)], groups, labels, declared)


def side(frame: pl.DataFrame, split: str, seed: int = 0) -> list[str]:
    rows = frame.filter((pl.col("seed") == seed) & (pl.col("split") == split))
    return rows.sort("position", "image_id")["image_id"].to_list()


# Single-image groups, classes A, A, ... (10 images) and B (5 images); test 1/5, validation 1/8 of the pool:
#
#   stratum  images  test >= 1/5   pool   1/8 of pool   validation, nearest   train
#   A        10      2              8     1             1                     7
#   B         5      1              4     .5            0 (tie: train)        4
def test_counts_of_every_side_by_hand() -> None:
    cohort = single_label([0] * 10 + [1] * 5)
    frame = cohort.draw().frame
    class_of = {image_id: int(row.argmax()) for image_id, row in zip(cohort.ids, cohort.labels, strict=True)}
    for seed in SEEDS:
        counts = {name: Counter(class_of[i] for i in side(frame, name, seed)) for name in splits.SPLITS}
        assert counts == {"test": {0: 2, 1: 1}, "validation": {0: 1}, "train": {0: 7, 1: 4}}


# Groups of 3 images, one stratum of 30 images: the mark of test is 6, so two groups, exactly; of the
# pool's 24 images 1/8 is 3.
def test_whole_groups_reach_the_mark_exactly() -> None:
    frame = single_label([0] * 30, [f"p{j // 3}" for j in range(30)]).draw().frame
    assert [len(side(frame, name)) for name in ("test", "validation", "train")] == [6, 3, 21]


# 35 images: 1/5 is 7, while 0.2 * 35 is 7.000000000000001 in binary and would take an eighth image.
def test_mark_is_read_as_a_decimal() -> None:
    assert len(side(single_label([0] * 35).draw().frame, "test")) == 7


# Positives: label 0 three, label 1 one. The group g holds both, so it belongs to the stratum of label 1,
# alone there, and a stratum of one group is test. Of label 0's stratum (c, d) one image reaches 20 %.
def test_stratum_of_a_group_is_its_rarest_label() -> None:
    labels = np.array([[1, 0], [0, 1], [1, 0], [1, -1]], dtype=np.int8)
    frame = Cohort(["a", "b", "c", "d"], ["g", "g", "c", "d"], labels, [None] * 4).draw().frame
    test = side(frame, "test")
    assert {"a", "b"} <= set(test)
    assert len(test) == 3


def test_seeds_share_test_and_differ_in_train_and_validation() -> None:
    frame = single_label([j % 3 for j in range(200)]).draw().frame
    assert len({tuple(side(frame, "test", seed)) for seed in SEEDS}) == 1
    assert len({tuple(side(frame, "validation", seed)) for seed in SEEDS}) == len(SEEDS)
    assert len({frozenset(side(frame, "train", seed)) for seed in SEEDS}) == len(SEEDS)


def test_seeds_order_the_train_images_they_share_differently() -> None:
    frame = single_label([0] * 100).draw(seeds=(0, 1)).frame
    trains = [side(frame, "train", seed) for seed in (0, 1)]
    shared = set(trains[0]) & set(trains[1])
    assert [i for i in trains[0] if i in shared] != [i for i in trains[1] if i in shared]


# Rarities 20 < 30 < 50 follow the classes, whatever their columns are.
def test_order_of_classes_is_irrelevant() -> None:
    cohort = single_label([0] * 50 + [1] * 30 + [2] * 20)
    relabelled = Cohort(cohort.ids, cohort.groups, cohort.labels[:, [2, 0, 1]], cohort.declared)
    assert relabelled.draw().frame.equals(cohort.draw().frame)


def test_another_dataset_draws_another_test_split() -> None:
    cohort = single_label([0] * 100)
    draws = [
        draw_splits(
            cohort.ids,
            cohort.groups,
            cohort.labels,
            cohort.declared,
            dataset_id=dataset_id,
            seeds=(0,),
            test_fraction=0.2,
            validation_fraction=0.125,
        )
        for dataset_id in ("first", "second")
    ]
    assert side(draws[0].frame, "test") != side(draws[1].frame, "test")


# a, b share the group p; a is declared test, so b leaves the pool; c (declared train) and d are the pool.
def test_declared_test_is_kept_and_its_groups_leave_the_pool() -> None:
    labels = np.ones((4, 1), dtype=np.int8)
    cohort = Cohort(["a", "b", "c", "d"], ["p", "p", "q", "r"], labels, ["test", "train", "train", None])
    result = cohort.draw(seeds=(0,))
    assert side(result.frame, "test") == ["a"]
    assert sorted(side(result.frame, "train")) == ["c", "d"]
    assert result.left_out.rows() == [("b", GROUP_IN_DECLARED_TEST)]
    without = cohort.draw(seeds=(0,), excluded=("a",))
    assert side(without.frame, "test") == []
    assert without.left_out.rows() == [("a", EXCLUDED), ("b", GROUP_IN_DECLARED_TEST)]


def test_declared_validation_alone_still_draws_test() -> None:
    cohort = single_label([0] * 10)
    declared = Cohort(cohort.ids, cohort.groups, cohort.labels, ["validation"] * 5 + ["train"] * 5)
    assert declared.draw().frame.equals(cohort.draw().frame)


def test_no_images_give_empty_frames() -> None:
    result = Cohort([], [], np.zeros((0, 3), dtype=np.int8), []).draw()
    assert result.frame.is_empty()
    assert dict(result.frame.schema) == splits.FRAME_SCHEMA
    assert dict(result.left_out.schema) == splits.LEFT_OUT_SCHEMA


@given(cohorts(), st.data())
@settings(deadline=None)
def test_every_image_is_on_one_side_or_left_out(cohort: Cohort, data: st.DataObject) -> None:
    excluded = tuple(data.draw(st.lists(st.sampled_from(cohort.ids), unique=True))) if cohort.ids else ()
    result = cohort.draw(excluded=excluded)
    left_out = dict(result.left_out.iter_rows())
    assert {i for i, reason in left_out.items() if reason == EXCLUDED} == set(excluded)
    for seed in SEEDS:
        placed = result.frame.filter(pl.col("seed") == seed)["image_id"].to_list()
        assert placed == sorted(set(cohort.ids) - set(left_out))
        train = result.frame.filter((pl.col("seed") == seed) & (pl.col("split") == "train"))
        assert sorted(train["position"]) == list(range(train.height))
    assert result.frame.filter(pl.col("split") != "train")["position"].null_count() == (
        result.frame.filter(pl.col("split") != "train").height
    )


@given(cohorts())
@settings(deadline=None)
def test_no_group_straddles(cohort: Cohort) -> None:
    group_of = dict(zip(cohort.ids, cohort.groups, strict=True))
    sides: dict[tuple[int, str], set[str]] = {}
    for image_id, seed, split, _ in cohort.draw().frame.iter_rows():
        sides.setdefault((seed, group_of[image_id]), set()).add(split)
    assert all(len(names) == 1 for names in sides.values())


@given(cohorts(declares_test=False))
@settings(deadline=None)
def test_every_stratum_reaches_the_test_mark_by_its_last_group(cohort: Cohort) -> None:
    test = set(side(cohort.draw(seeds=(0,)).frame, "test"))
    counts = (cohort.labels == 1).sum(axis=0).tolist()
    members: dict[str, list[int]] = {}
    for row, group in enumerate(cohort.groups):
        members.setdefault(group, []).append(row)
    strata: dict[tuple[int, int] | None, list[str]] = {}
    for group, rows in members.items():
        held = (cohort.labels[rows] == 1).any(axis=0)
        rarest = min(((counts[label], label) for label in np.flatnonzero(held).tolist()), default=None)
        strata.setdefault(rarest, []).append(group)
    for groups in strata.values():
        drawn = [group for group in groups if cohort.ids[members[group][0]] in test]
        n_images = sum(len(members[group]) for group in groups)
        n_test = sum(len(members[group]) for group in drawn)
        ranks = dict(zip(drawn, keyed_ranks(drawn, "test", "cohort"), strict=True))
        last = max(drawn, key=ranks.__getitem__)
        assert 5 * n_test >= n_images
        assert 5 * (n_test - len(members[last])) < n_images


@given(cohorts(), st.data())
@settings(deadline=None)
def test_excluding_images_moves_no_other(cohort: Cohort, data: st.DataObject) -> None:
    excluded = tuple(data.draw(st.lists(st.sampled_from(cohort.ids), unique=True))) if cohort.ids else ()
    columns = ["image_id", "seed", "split"]
    before = cohort.draw().frame.filter(~pl.col("image_id").is_in(excluded)).select(columns)
    assert cohort.draw(excluded=excluded).frame.select(columns).equals(before)


@given(cohorts(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_order_of_rows_is_irrelevant(cohort: Cohort, random: Random) -> None:
    order = list(range(len(cohort.ids)))
    random.shuffle(order)
    shuffled, result = cohort.reordered(order).draw(), cohort.draw()
    assert shuffled.frame.equals(result.frame)
    assert shuffled.left_out.equals(result.left_out)


@given(cohorts(), st.sampled_from(SEEDS))
@settings(deadline=None)
def test_each_seed_can_be_drawn_alone(cohort: Cohort, seed: int) -> None:
    alone = cohort.draw(seeds=(seed,)).frame
    assert alone.equals(cohort.draw().frame.filter(pl.col("seed") == seed))


@given(cohorts(), st.floats(0.01, 1.0), st.floats(0.01, 1.0))
@settings(deadline=None)
def test_fractions_are_nested_of_exact_size_and_hold_every_label_of_train(
    cohort: Cohort, one: float, other: float
) -> None:
    frame = cohort.draw().frame
    row_of = {image_id: row for row, image_id in enumerate(cohort.ids)}
    small, large = sorted((one, other))
    for seed in SEEDS:
        train = frame.filter((pl.col("seed") == seed) & (pl.col("split") == "train"))
        sizes = [fraction_size(train.height, fraction) for fraction in (small, large)]
        subsets = [set(train.filter(pl.col("position") < size)["image_id"]) for size in sizes]
        assert [len(subset) for subset in subsets] == sizes
        assert subsets[0] <= subsets[1]
        if is_feasible(frame, cohort.ids, cohort.labels, small, is_multi_label=True):
            rows = [row_of[image_id] for image_id in train["image_id"]]
            drawn = [row_of[image_id] for image_id in subsets[0]]
            held, present = ((cohort.labels[r] == 1).any(axis=0) for r in (drawn, rows))
            assert held.tolist() == present.tolist()


# 10 images, classes A 6, B 3, C 1; after the opening C, B, A the deficits times 10 before each pick are
#
#   t    C    B    A    pick          t    C    B    A    pick
#   4   -6    2   14    A             8   -2    4    8    A
#   5   -5    5   10    A             9   -1    7    4    B
#   6   -4    8    6    B            10    0    0   10    A
#   7   -3    1   12    A
def test_train_order_by_hand() -> None:
    classes = np.array([0] * 6 + [1] * 3 + [2])
    order = stratified_order(np.eye(3, dtype=bool)[classes], np.arange(10, dtype=np.uint64))
    assert "".join("ABC"[c] for c in classes[order]) == "CBAAABAABA"
    assert order.tolist() == [9, 6, 0, 1, 2, 7, 3, 4, 8, 5]  # within a class in keyed order


def greedy_order(positive: NDArray[np.bool_], ranks: NDArray[np.uint64]) -> list[int]:
    """The page's rule word for word, in exact fractions, one image and one stratum at a time."""
    n, k = positive.shape
    by_rarity = sorted(range(k), key=lambda label: (int(positive[:, label].sum()), label))
    strata = [next((s for s, label in enumerate(by_rarity) if row[label]), k) for row in positive]
    left = sorted(range(n), key=lambda image: (int(ranks[image]), image))
    order: list[int] = []
    for label in by_rarity:
        if positive[:, label].any() and not any(positive[image, label] for image in order):
            order.append(next(image for image in left if positive[image, label]))
            left.remove(order[-1])
    while left:
        deficits = {
            s: Fraction((len(order) + 1) * strata.count(s), n) - sum(strata[image] == s for image in order)
            for s in sorted({strata[image] for image in left})
        }
        chosen = max(deficits, key=lambda s: (deficits[s], -s))
        order.append(next(image for image in left if strata[image] == chosen))
        left.remove(order[-1])
    return order


@given(st.integers(0, 25), st.integers(0, 5), st.data())
@settings(deadline=None)
def test_train_order_equals_the_greedy_rule(n: int, k: int, data: st.DataObject) -> None:
    bits = data.draw(st.lists(st.booleans(), min_size=n * k, max_size=n * k))
    ranks = np.array(data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), dtype=np.uint64)
    positive = np.array(bits, dtype=bool).reshape(n, k)
    assert stratified_order(positive, ranks).tolist() == greedy_order(positive, ranks)


# Case "rare-class-subset": 100 images of 95/4/1 at 50 %. The opening gives one of each; shares of 50 are
# 47.5, 2 and .5, and the one image of the rarest class is taken, so 47 + 2 + 1.
def test_rare_classes_are_in_the_half() -> None:
    classes = np.array([0] * 95 + [1] * 4 + [2])
    ranks = keyed_ranks([str(j) for j in range(100)], "demo")
    half = classes[stratified_order(np.eye(3, dtype=bool)[classes], ranks)][: fraction_size(100, 0.5)]
    assert np.bincount(half).tolist() == [47, 2, 1]


# Case "rare-class-subset": .5 % of 800 are 4 images for 8 classes; 1 % are 8.
def test_fewer_images_than_classes_is_infeasible() -> None:
    ids = [f"i{j}" for j in range(800)]
    labels = np.eye(8, dtype=np.int8)[np.arange(800) % 8]
    frame = pl.DataFrame({"image_id": ids, "seed": 0, "split": "train"})
    assert fraction_size(800, 0.005) == 4
    assert [is_feasible(frame, ids, labels, f, is_multi_label=False) for f in (0.005, 0.01, 1.0)] == [
        False,
        True,
        True,
    ]


# Case "rare-class-subset": 15 images, each the only one with its combination of 4 labels. Four images hold
# all labels; three are refused, although an opening of images with several labels may be shorter.
def test_multi_label_rows_without_repeats() -> None:
    positive = ((np.arange(1, 16)[:, None] >> np.arange(4)) & 1).astype(bool)
    ids = [f"i{j}" for j in range(15)]
    order = stratified_order(positive, keyed_ranks(ids, "demo"))
    assert sorted(order) == list(range(15))
    assert positive[order[:4]].any(axis=0).all()
    frame = pl.DataFrame({"image_id": ids, "seed": 0, "split": "train"})
    labels = positive.astype(np.int8)
    assert is_feasible(frame, ids, labels, 4 / 15, is_multi_label=True)
    assert not is_feasible(frame, ids, labels, 3 / 15, is_multi_label=True)


# Case "rare-class-subset": one group of 100 of 200 images, 20 others declared test. Validation would be
# 22.5 of the 180 pool images: the group is passed over, stays in train whole, and fractions of train still
# count images.
def test_group_of_half_of_all_rows() -> None:
    cohort = single_label([0] * 200, ["half"] * 100 + [f"p{j}" for j in range(100)])
    half = set(cohort.ids[:100])
    declared = [None] * 180 + ["test"] * 20
    frame = Cohort(cohort.ids, cohort.groups, cohort.labels, declared).draw().frame
    for seed in SEEDS:
        train = side(frame, "train", seed)
        assert half <= set(train)
        assert len(train) == 158  # 22.5 is as near to 22 as to 23; a tie stays in train
        tenth = set(train[: fraction_size(158, 0.1)])
        assert len(tenth) == 16
        assert 0 < len(tenth & half) < 16


# Undeclared, the same group goes to one side whole, for every seed.
def test_group_of_half_of_all_rows_stays_whole() -> None:
    cohort = single_label([0] * 200, ["half"] * 100 + [f"p{j}" for j in range(100)])
    frame = cohort.draw().frame.filter(pl.col("image_id").is_in(cohort.ids[:100]))
    assert frame.group_by("seed").agg(pl.col("split").n_unique())["split"].to_list() == [1] * len(SEEDS)


# Case "budget-includes-tuning-rows": 1,000 train and 300 validation rows; 1 % are 10 rows, none of
# validation.
def test_budget_counts_train_rows_alone() -> None:
    ids = [f"i{j:04d}" for j in range(1310)]
    result = draw_splits(
        ids,
        ids,
        np.eye(2, dtype=np.int8)[np.arange(1310) % 2],
        ["test"] * 10 + [None] * 1300,
        dataset_id="cohort",
        seeds=(0,),
        test_fraction=0.2,
        validation_fraction=300 / 1300,
    )
    train, validation = side(result.frame, "train"), side(result.frame, "validation")
    assert (len(train), len(validation)) == (1000, 300)
    budget = result.frame.filter(pl.col("position") < fraction_size(len(train), 0.01))
    assert budget.height == 10
    assert budget["split"].unique().to_list() == ["train"]


# Seed 1 has 2 train images with positives of 2 labels, seed 0 has 4 with 2: half is 2 images for seed 0, 1
# for 1.
def test_one_seed_makes_a_fraction_infeasible() -> None:
    ids = ["a", "b", "c", "d"]
    labels = np.array([[1, 0, 0], [0, 1, 0], [0, -1, 0], [1, 0, -1]], dtype=np.int8)
    rows = [(i, 0, "train") for i in ids]
    rows += [("a", 1, "train"), ("b", 1, "train"), ("c", 1, "validation"), ("d", 1, "test")]
    frame = pl.DataFrame(rows, schema=["image_id", "seed", "split"], orient="row")
    assert is_feasible(frame.filter(pl.col("seed") == 0), ids, labels, 0.5, is_multi_label=True)
    assert not is_feasible(frame, ids, labels, 0.5, is_multi_label=True)
    assert is_feasible(frame, ids, labels, 1.0, is_multi_label=True)
    assert not is_feasible(frame, ids, labels, 1.0, is_multi_label=False)  # three classes, two images


def test_no_train_image_is_infeasible() -> None:
    frame = pl.DataFrame({"image_id": ["a"], "seed": [0], "split": ["test"]})
    labels = np.zeros((1, 0), dtype=np.int8)
    assert not is_feasible(frame, ["a"], labels, 1.0, is_multi_label=True)
    assert not is_feasible(frame.clear(), ["a"], labels, 1.0, is_multi_label=True)


@pytest.mark.parametrize(
    ("n_train", "fraction", "size"),
    [
        (1000, 0.01, 10),
        (15, 0.1, 2),  # 1.5 rounds up
        (25, 0.1, 3),  # 2.5 rounds up, not to even
        (50, 0.29, 15),  # 14.5; in binary 0.29 * 50 is 14.499999999999998
        (49, 0.01, 0),
        (50, 0.01, 1),
        (0, 1.0, 0),
        (153252, 1.0, 153252),
    ],
)
def test_fraction_size_by_hand(n_train: int, fraction: float, size: int) -> None:
    assert fraction_size(n_train, fraction) == size


@given(st.integers(0, 10**6), st.integers(1, 100))
def test_fraction_size_rounds_half_up(n_train: int, percent: int) -> None:
    assert fraction_size(n_train, percent / 100) == (2 * percent * n_train + 100) // 200


@pytest.mark.parametrize(("n_train", "fraction"), [(-1, 0.5), (10, 0.0), (10, 1.01), (10, float("nan"))])
def test_fraction_size_refuses_what_is_no_share(n_train: int, fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction in"):
        fraction_size(n_train, fraction)


def test_test_set_hash_names_a_set() -> None:
    name = splits.test_set_hash(["b", "a"])
    assert name == splits.test_set_hash(["a", "b", "a"])
    assert name != splits.test_set_hash(["a", "c"])
    assert name != splits.test_set_hash(["ab"])


def test_input_that_a_user_can_mend_is_named() -> None:
    labels = np.ones((2, 1), dtype=np.int8)
    with pytest.raises(ConfigError, match="'a' occurs more than once"):
        Cohort(["a", "a"], ["p", "q"], labels, [None, None]).draw()
    with pytest.raises(ConfigError, match="'valid' is not known"):
        Cohort(["a", "b"], ["p", "q"], labels, [None, "valid"]).draw()


def test_input_that_cannot_be_is_refused() -> None:
    labels = np.ones((2, 1), dtype=np.int8)
    cohort = Cohort(["a", "b"], ["p", "q"], labels, [None, None])
    with pytest.raises(ValueError, match="need 2 groups"):
        Cohort(["a", "b"], ["p"], labels, [None, None]).draw()
    with pytest.raises(ValueError, match="labels must be"):
        Cohort(["a", "b"], ["p", "q"], np.array([[1.0], [np.nan]]), [None, None]).draw()
    with pytest.raises(ValueError, match="distinct"):
        cohort.draw(seeds=(0, 0))
    with pytest.raises(ValueError, match="not indexed"):
        cohort.draw(excluded=("z",))
    with pytest.raises(ValueError, match="share of images"):
        draw_splits(
            cohort.ids,
            cohort.groups,
            labels,
            cohort.declared,
            dataset_id="cohort",
            seeds=(0,),
            test_fraction=1.5,
            validation_fraction=0.1,
        )
    with pytest.raises(ValueError, match="3 ranks for 2 images"):
        stratified_order(labels == 1, np.arange(3, dtype=np.uint64))
