"""Counts of a dataset: per split by hand, and against what a card expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from crsbench_assets.config.cards import DatasetCard
from crsbench_assets.config.registry import CATALOG, read_card
from crsbench_assets.config.settings import LabelPolicy
from crsbench_assets.data.cohort import Cohort, images_frame
from crsbench_assets.data.integrity import ImageCheck
from crsbench_assets.data.labels import apply_policy
from crsbench_assets.data.statistics import dataset_statistics, unexpected_counts
from crsbench_assets_tests.data.layouts import card_of

CLASSES = ("edema", "fracture")

# image  group  pixels  split  edema      fracture
# a      p1     x       train  1          blank
# b      p1     x       train  uncertain  0
# c      p2     y       train  blank      blank
# d      p3     z       test   0          uncertain
# q, in the shift target:      1          1
STATED = np.array([[1, np.nan], [-1, 0], [np.nan, np.nan], [0, -1]])


def tables(policy: LabelPolicy) -> tuple[pl.DataFrame, dict[str, Cohort]]:
    ids = ["a", "b", "c", "d"]
    own = Cohort(ids, ["p1", "p1", "p2", "p3"], [None] * 4, apply_policy(STATED, policy), stated=STATED)
    shift = Cohort(["a"], ["p1"], [None], np.ones((1, 2), dtype=np.int8), stated=np.ones((1, 2)))
    own_checks = [ImageCheck(i, pixel_hash=h, thumbnail=h.encode() * 1024) for i, h in zip(ids, "xxyz", strict=True)]
    own_checks[2:] = [
        ImageCheck("c", pixel_hash="y", thumbnail=bytes(range(256)) * 4),
        ImageCheck("d", pixel_hash="z", thumbnail=bytes(range(255, -1, -1)) * 4),
    ]
    frames = [
        images_frame("tiny", "primary", own, own_checks, "salt"),
        images_frame("tiny", "elsewhere", shift, [], "salt"),
    ]
    return pl.concat(frames), {"primary": own, "elsewhere": shift}


@pytest.mark.parametrize(
    ("policy", "edema_train", "fracture_test"),
    # n_positive, n_unknown, prevalence
    [
        ("u_zeros", (1, 0, 1 / 3), (0, 0, 0.0)),
        ("u_ones", (2, 0, 2 / 3), (1, 0, 1.0)),
        ("u_ignore", (1, 1, 0.5), (0, 1, None)),
    ],
)
def test_counts_per_split_by_hand(
    policy: LabelPolicy, edema_train: tuple[Any, ...], fracture_test: tuple[Any, ...]
) -> None:
    images, cohorts = tables(policy)
    splits = pl.DataFrame({"image_id": list("abcd"), "seed": [0] * 4, "split": ["train"] * 3 + ["test"]})
    found = dataset_statistics(images, splits, CLASSES, [0], {"test_set_hash": "h"}, cohorts)
    rows = {(r["source_id"], r["split"], r["class_name"]): r for r in found.to_dicts()}
    assert set(rows) == {
        (source, split, name)
        for source, split in (("primary", "train"), ("primary", "test"), ("elsewhere", "test"))
        for name in CLASSES
    }
    train, test = rows["primary", "train", "edema"], rows["primary", "test", "fracture"]
    of_labels = ("n_positive", "n_unknown", "prevalence")
    assert tuple(train[name] for name in of_labels) == pytest.approx(edema_train)
    assert tuple(test[name] for name in of_labels) == fracture_test
    # what the source states does not depend on the policy; a and b are one picture of one patient
    counts = ("n_images", "n_pictures", "n_groups", "n_uncertain", "n_blank")
    assert tuple(train[name] for name in counts) == (3, 2, 2, 1, 1)
    assert tuple(rows["primary", "train", "fracture"][name] for name in counts) == (3, 2, 2, 0, 2)
    assert tuple(test[name] for name in counts) == (1, 1, 1, 1, 0)
    # the shift target has an image of the same id, with labels of its own, and no file
    assert tuple(rows["elsewhere", "test", "edema"][name] for name in counts) == (1, 1, 1, 0, 0)


def test_a_class_column_leaves_nothing_open() -> None:
    cohort = Cohort(["a", "b"], ["a", "b"], [None] * 2, np.eye(2, dtype=np.int8))
    images = images_frame("tiny", "primary", cohort, [], "salt")
    splits = pl.DataFrame({"image_id": ["a", "b"], "seed": [0, 0], "split": ["test", "test"]})
    found = dataset_statistics(images, splits, CLASSES, [0], {}, {"primary": cohort})
    assert found.select("n_pictures", "prevalence", "n_uncertain", "n_blank").rows() == [(2, 0.5, 0, 0)] * 2


def counted(card: DatasetCard, n_positive: dict[str, int]) -> pl.DataFrame:
    rows = [[int(name == c) for c in card.classes] for name, n in n_positive.items() for _ in range(n)]
    frame = pl.DataFrame({"labels": pl.Series(rows, dtype=pl.List(pl.Int8))})
    return frame.with_columns(source_id=pl.lit("primary"))


def quarantined(n: int) -> pl.DataFrame:
    return pl.DataFrame({"source_id": ["primary"] * n + ["elsewhere"] * 3})


def test_counts_of_the_official_cards_are_those_of_the_releases() -> None:
    isic, aptos, chexpert = (
        read_card(DatasetCard, CATALOG / "datasets" / f"{name}.yaml") for name in ("isic2019", "aptos2019", "chexpert")
    )
    for card, n in ((isic, 25_331), (aptos, 3_662)):
        assert card.expected_n_positive is not None
        assert sum(card.expected_n_positive.values()) == card.expected_n_images == n
        assert set(card.expected_n_positive) == set(card.classes)
        assert unexpected_counts(card, counted(card, card.expected_n_positive), quarantined(0)) == []
    assert chexpert.expected_n_images == 191_027 + 202


def test_a_count_that_differs_is_said_with_what_was_left_out() -> None:
    changes = {"expected_n_images": 10, "expected_n_positive": {"a": 6, "b": 4}}
    card = card_of("aptos2019", Path("x"), ["a", "b"], "single_label", **changes)
    assert unexpected_counts(card, counted(card, {"a": 6, "b": 4}), quarantined(0)) == []
    # one image was left out, and a class lacks one: that is all of it
    assert unexpected_counts(card, counted(card, {"a": 5, "b": 4}), quarantined(1)) == []
    assert unexpected_counts(card, counted(card, {"a": 3, "b": 5}), quarantined(2)) == [
        "a: 3 images found, 6 expected by the card, and 2 were left out",
        "b: 5 images found, 4 expected by the card, and 2 were left out",
    ]
    assert unexpected_counts(card, counted(card, {"a": 6, "b": 3}), quarantined(0)) == [
        "9 images found, 10 expected by the card",
        "b: 3 images found, 4 expected by the card",
    ]
    silent = card_of("aptos2019", Path("x"), ["a", "b"], "single_label")
    assert unexpected_counts(silent, counted(card, {"a": 1}), quarantined(0)) == []
