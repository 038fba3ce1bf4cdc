"""Tests of the list of straddling groups.

What lives here: hand-made leaks, a second implementation in plain Python, and the clean draw.
What stays out: the draw itself (``test_splits``).
Source: protocol page, section 2.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.data.leakage import VIOLATION_SCHEMA, leakage_violations
from crsbench_assets.data.splits import SPLITS, draw_splits

Row = tuple[str, int, str]


def frame_of(rows: list[Row]) -> pl.DataFrame:
    schema = {"image_id": pl.String, "seed": pl.Int64, "split": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def groups_of(group_of: dict[str, int | None]) -> pl.DataFrame:
    """Return images without files."""
    columns = {"image_id": list(group_of), "group_index": list(group_of.values())}
    frame = pl.DataFrame(columns, schema={"image_id": pl.String, "group_index": pl.Int64})
    nothing = {"pixel_sha256": pl.String, "duplicate_index": pl.Int64}
    return frame.with_columns(pl.lit(None, dtype=dtype).alias(name) for name, dtype in nothing.items())


# Groups: 1 = {a, b, c, d}, 2 = {e, f}.
#
#   seed  a      b      c           d     e      f           straddles
#   0     train  train  validation  test  train  train       group 1 in all three pairs
#   1     test   test   test        test  train  validation  group 2 once
def test_straddling_groups_by_hand() -> None:
    first = ["train", "train", "validation", "test", "train", "train"]
    second = ["test", "test", "test", "test", "train", "validation"]
    rows = [(i, 0, s) for i, s in zip("abcdef", first, strict=True)]
    rows += [(i, 1, s) for i, s in zip("abcdef", second, strict=True)]
    groups = groups_of({"a": 1, "b": 1, "c": 1, "d": 1, "e": 2, "f": 2})
    violations = leakage_violations(frame_of(rows), groups)
    assert violations.rows() == [
        (0, "group", 1, "train", "validation", "a", "c"),
        (0, "group", 1, "train", "test", "a", "d"),
        (0, "group", 1, "validation", "test", "c", "d"),
        (1, "group", 2, "train", "validation", "e", "f"),
    ]
    assert dict(violations.schema) == VIOLATION_SCHEMA


def test_an_image_on_two_sides_leaks_with_itself() -> None:
    violations = leakage_violations(frame_of([("a", 0, "train"), ("a", 0, "test")]), groups_of({"a": 1}))
    assert violations.rows() == [(0, "group", 1, "train", "test", "a", "a")]


# image  group  pixels  picture  split       shares
# a      1      x       0        train       pixels and picture with b, picture with c
# b      2      x       0        test
# c      3      y       0        validation
# d      4      z       1        test        nothing, and e neither: without a file nothing is equal
# e      5                       train
def test_equal_pixels_and_pictures_leak_even_where_groups_do_not() -> None:
    images = pl.DataFrame(
        {
            "image_id": list("abcde"),
            "group_index": [1, 2, 3, 4, 5],
            "pixel_sha256": ["x", "x", "y", "z", None],
            "duplicate_index": [0, 0, 0, 1, None],
        }
    )
    sides = ["train", "test", "validation", "test", "train"]
    violations = leakage_violations(frame_of([(i, 0, s) for i, s in zip("abcde", sides, strict=True)]), images)
    assert violations.rows() == [
        (0, "picture", 1, "train", "validation", "a", "c"),
        (0, "picture", 1, "train", "test", "a", "b"),
        (0, "picture", 3, "validation", "test", "c", "b"),
        (0, "pixels", 1, "train", "test", "a", "b"),
    ]


def test_seeds_are_not_compared_with_each_other() -> None:
    rows = [("a", 0, "train"), ("a", 1, "validation")]
    assert leakage_violations(frame_of(rows), groups_of({"a": 1})).is_empty()


def test_no_images_give_an_empty_table() -> None:
    violations = leakage_violations(frame_of([]), groups_of({}))
    assert violations.is_empty()
    assert dict(violations.schema) == VIOLATION_SCHEMA


def test_images_without_one_group_are_refused() -> None:
    frame = frame_of([("a", 0, "train"), ("b", 0, "test")])
    with pytest.raises(ConfigError, match="such as 'b'"):
        leakage_violations(frame, groups_of({"a": 1}))
    with pytest.raises(ConfigError, match="such as 'b'"):
        leakage_violations(frame, groups_of({"a": 1, "b": None}))
    twice = pl.concat([groups_of({"a": 1, "b": 2}), groups_of({"a": 3})])
    with pytest.raises(ConfigError, match="several groups"):
        leakage_violations(frame, twice)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.sampled_from(SPLITS)), max_size=15))
@settings(deadline=None)
def test_equals_plain_python(drawn: list[tuple[int, int, str]]) -> None:
    rows = [(f"i{j:02d}", seed, split) for j, (_, seed, split) in enumerate(drawn)]
    group_of = {f"i{j:02d}": group for j, (group, _, _) in enumerate(drawn)}
    expected = []
    for seed in (0, 1):
        for group in range(6):
            members = [(i, split) for i, s, split in rows if s == seed and group_of[i] == group]
            for a, b in combinations(SPLITS, 2):
                sides = [[i for i, split in members if split == name] for name in (a, b)]
                if all(sides):
                    expected.append((seed, "group", group, a, b, min(sides[0]), min(sides[1])))
    assert leakage_violations(frame_of(rows), groups_of(dict(group_of))).rows() == expected
    reordered = leakage_violations(frame_of(rows[::-1]), groups_of(dict(reversed(group_of.items()))))
    assert reordered.rows() == expected


def test_drawn_splits_are_clean_and_a_moved_image_is_found() -> None:
    ids = [f"i{j:03d}" for j in range(300)]
    codes = [j // 3 for j in range(300)]
    frame = draw_splits(
        ids,
        [f"p{code}" for code in codes],
        np.eye(3, dtype=np.int8)[np.arange(300) % 3],
        [None] * 300,
        dataset_id="cohort",
        seeds=(0, 1),
        test_fraction=0.2,
        validation_fraction=0.125,
    ).frame
    groups = groups_of(dict(zip(ids, codes, strict=True)))
    assert leakage_violations(frame, groups).is_empty()
    moved = frame.filter((pl.col("seed") == 1) & (pl.col("split") == "train"))["image_id"][0]
    is_moved = (pl.col("seed") == 1) & (pl.col("image_id") == moved)
    leaking = frame.with_columns(split=pl.when(is_moved).then(pl.lit("test")).otherwise("split"))
    violations = leakage_violations(leaking, groups)
    sides = violations.select("seed", "split_a", "split_b", "image_id_b")
    assert sides.rows() == [(1, "train", "test", moved)]
