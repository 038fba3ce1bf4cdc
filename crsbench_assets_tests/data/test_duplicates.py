"""Near-duplicates: every pair of near hashes is found, strangers are told apart on pixels, components hold the rest."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.data.cohort import Cohort, images_frame
from crsbench_assets.data.demo.write import cohort_files
from crsbench_assets.data.duplicates import (
    MAX_GREY_DIFFERENCE,
    near_pairs,
    oversized_components,
    pictures,
    same_pictures,
    shared_pictures,
)
from crsbench_assets.data.integrity import ImageCheck, check_images
from crsbench_assets.images.decode import decode

Pixels = NDArray[np.uint8]


def near_by_search(hashes: list[int]) -> list[list[int]]:
    """An independent implementation: all with all."""
    n = len(hashes)
    return [[i, j] for i in range(n) for j in range(i + 1, n) if (hashes[i] ^ hashes[j]).bit_count() <= 2]


@given(
    centres=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4, unique=True),
    flips=st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 63), max_size=4)), max_size=12),
)
@settings(deadline=None)
def test_near_pairs_agree_with_a_comparison_of_all_with_all(
    centres: list[int], flips: list[tuple[int, set[int]]]
) -> None:
    found = {centres[i % len(centres)] ^ sum(1 << bit for bit in bits) for i, bits in flips}
    hashes = sorted(found | set(centres))
    assert near_pairs(np.array(hashes, dtype=np.uint64)).tolist() == near_by_search(hashes)


def test_near_pairs_at_the_edges() -> None:
    assert near_pairs(np.zeros(0, dtype=np.uint64)).shape == (0, 2)
    assert near_pairs(np.array([5], dtype=np.uint64)).shape == (0, 2)
    top = 1 << 63
    assert near_pairs(np.array([0, top, top | 1, 7], dtype=np.uint64)).tolist() == [[0, 1], [0, 2], [1, 2]]


def test_all_neighbours_of_one_hash_are_pairs_of_each_other() -> None:
    # 65 hashes within one bit of 0: any two of them differ in at most two
    ball = np.array([0, *(1 << bit for bit in range(64))], dtype=np.uint64)
    assert len(near_pairs(ball)) == 65 * 64 // 2


# image   hash   mean grey   is a candidate with       and confirmed, since it differs by
# 0       0      100         1, 2, 3 (3 bits to 4)
# 1       0      101         0, 2, 3                   1.0 from 0, 1.0 from 2
# 2       3      102         0, 1, 3                   2.0 from 0: no
# 3       1      150         all but 4                 nobody
# 4       7..    100         2, 3 (7^3, 7^1)           2.0 from 2: no
def test_candidates_are_confirmed_on_pixels() -> None:
    hashes = np.array([0, 0, 3, 1, 7], dtype=np.uint64)
    greys = np.array([100, 101, 102, 150, 100], dtype=np.uint8)
    thumbnails = np.broadcast_to(greys[:, None, None], (5, 4, 4))
    assert sorted(same_pictures(hashes, thumbnails).tolist()) == [[0, 1], [1, 2]]
    with pytest.raises(ValueError, match="5 hashes and 4 thumbnails"):
        same_pictures(hashes, thumbnails[:4])
    assert same_pictures(hashes[:0], thumbnails[:0]).shape == (0, 2)


def test_equal_brightness_is_no_confirmation() -> None:
    stripes = np.tile(np.array([0, 200], dtype=np.uint8), (4, 2))
    thumbnails = np.stack([stripes, 200 - stripes])
    assert same_pictures(np.zeros(2, dtype=np.uint64), thumbnails).shape == (0, 2)


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 3, 7, 15, 1 << 40]), st.sampled_from([10, 11, 12, 90])), max_size=14),
    st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_pairs_agree_with_a_plain_search_in_any_order(images: list[tuple[int, int]], random: Any) -> None:
    def found(of: list[tuple[int, int]]) -> list[list[int]]:
        thumbnails = np.array([[[grey] * 2] * 2 for _, grey in of], dtype=np.uint8).reshape(-1, 2, 2)
        pairs = same_pictures(np.array([value for value, _ in of], dtype=np.uint64), thumbnails)
        return sorted(pairs.tolist())

    def is_same(one: tuple[int, int], other: tuple[int, int]) -> bool:
        return (one[0] ^ other[0]).bit_count() <= 2 and abs(one[1] - other[1]) <= MAX_GREY_DIFFERENCE

    n = len(images)
    expected = [[i, j] for i in range(n) for j in range(i + 1, n) if is_same(images[i], images[j])]
    assert found(images) == expected
    order = list(range(n))
    random.shuffle(order)
    moved = [sorted((order[i], order[j])) for i, j in found([images[i] for i in order])]
    assert sorted(moved) == expected


def saved_again(pixels: Pixels, quality: int, scale: float) -> bytes:
    image = Image.fromarray(pixels)
    size = (round(image.width * scale), round(image.height * scale))
    buffer = io.BytesIO()
    image.resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def looked_at(root: Path, names: list[str]) -> list[ImageCheck]:
    ids = [Path(name).stem for name in names]
    cohort = Cohort(ids, ids, [None] * len(ids), np.ones((len(ids), 1), dtype=np.int8), paths=names, root=str(root))
    found = {check.image_id: check for check in check_images(cohort, n_threads=1, progress=lambda n_done, n: None)}
    return [found[image_id] for image_id in ids]


@pytest.mark.parametrize("cohort", ["demo-isic", "demo-aptos", "demo-cxr"])
def test_copies_of_demo_images_are_found_and_strangers_are_not(tmp_path: Path, cohort: str) -> None:
    files = cohort_files(cohort, n_images=96)
    paths = [path for path in files.images if path.endswith((".jpg", ".png"))][:40]
    for i, path in enumerate(paths):
        (tmp_path / f"{i:02d}a.jpg").write_bytes(files.images[path]())
    originals = [f"{i:02d}a.jpg" for i in range(len(paths))]
    alone = pictures(looked_at(tmp_path, originals))
    # what the drawn cohort repeats on purpose has equal pixels; nothing else is one picture
    pixels = [check.pixel_hash for check in looked_at(tmp_path, originals)]
    assert len(set(alone.index)) == len(set(pixels))
    for i, name in enumerate(originals):
        data = saved_again(decode((tmp_path / name).read_bytes()), quality=90, scale=(0.75, 1.0, 1.5)[i % 3])
        (tmp_path / f"{i:02d}b.jpg").write_bytes(data)
    both = pictures(looked_at(tmp_path, [*originals, *(f"{i:02d}b.jpg" for i in range(len(paths)))]))
    n = len(paths)
    found = sum(one == other for one, other in zip(both.index[:n], both.index[n:], strict=True))
    assert found >= 0.95 * n, "two bits are little where a median is crossed"
    assert both.index[:n] == alone.index, "copies join no strangers"


def flat(value: int, image_id: str) -> ImageCheck:
    return ImageCheck(image_id, pixel_hash=f"p{value}", thumbnail=bytes([value] * 1024))


def test_chains_and_equal_pixels_are_one_picture() -> None:
    # flat thumbnails have one hash; 100 ~ 101 ~ 102 is a chain, 200 stands alone, black.png cannot be used
    checks = [flat(100, "a"), flat(102, "b"), ImageCheck("black", reason="constant"), flat(200, "c"), flat(101, "d")]
    checks += [replace(checks[0], image_id="twin")]
    found = pictures(checks)
    assert found.index == [0, 0, None, 1, 0, 0]
    assert found.phash[2] is None and found.phash[0] == found.phash[5]
    assert pictures([]).index == [] and pictures([ImageCheck("x")]).index == [None]


# the dataset: a = 100, b = 200, c cannot be used. The target: t = 101 is a, u = 102 is t and not a, v has the pixels
# of b under another id, w = 150 is nobody
def test_pictures_that_two_sources_share_are_those_of_the_other_directly() -> None:
    own = [flat(100, "a"), flat(200, "b"), ImageCheck("c", reason="constant")]
    target = [flat(101, "t"), flat(102, "u"), flat(200, "v"), flat(150, "w"), ImageCheck("x", reason="unreadable")]
    assert shared_pictures(target, own) == {"t": "a", "v": "b"}
    assert shared_pictures(target, [flat(100, "z"), *own]) == {"t": "a", "v": "b"}, "the first id of several"
    assert shared_pictures([], own) == shared_pictures(target, []) == {}


def test_images_say_their_picture_and_how_many_groups_it_joined() -> None:
    ids, groups = ["a", "b", "c", "d"], ["p1", "p2", "p3", "p3"]
    cohort = Cohort(ids, groups, [None] * 4, np.ones((4, 1), dtype=np.int8), paths=ids, root="/nowhere")
    checks = [flat(100, "a"), flat(101, "b"), flat(200, "c"), ImageCheck("d", reason="unreadable", detail="cut")]
    frame = images_frame("tiny", "primary", cohort, checks, "salt")
    columns = ("image_id", "group_index", "n_groups_joined", "duplicate_index")
    assert frame.select(columns).rows() == [("a", 0, 2, 0), ("b", 0, 2, 0), ("c", 1, 1, 1)]
    assert frame.get_column("phash").str.len_chars().to_list() == [16, 16, 16]
    without = images_frame("tiny", "primary", replace(cohort, paths=None, root=None), [], "salt")
    assert without.select(columns).rows() == [
        ("a", 0, 1, None),
        ("b", 1, 1, None),
        ("c", 2, 1, None),
        ("d", 2, 1, None),
    ]


def rows_of(sizes: list[tuple[str, int, int]]) -> pl.DataFrame:
    """Return images of (source, groups joined, images) per group."""
    rows = [
        (source, f"{source}{group:03d}-{i:03d}", group, joined)
        for group, (source, joined, n) in enumerate(sizes)
        for i in range(n)
    ]
    return pl.DataFrame(rows, schema=["source_id", "image_id", "group_index", "n_groups_joined"], orient="row")


def test_a_component_above_half_a_percent_that_joined_many_groups_is_too_large() -> None:
    # 4,000 images: the limit is 20. Group 0 is a large patient, 1 holds 20 images, 2 joined ten groups only.
    sizes = [("primary", 1, 100), ("primary", 20, 20), ("primary", 10, 40), ("primary", 11, 21), ("primary", 30, 30)]
    images = rows_of([*sizes, ("primary", 1, 4000 - 211)])
    found = oversized_components(images)
    assert found.select("group_index", "n_groups_joined", "n_images").rows() == [(4, 30, 30), (3, 11, 21)]
    assert found.get_column("image_ids")[1].to_list() == [f"primary003-{i:03d}" for i in range(21)]
    assert oversized_components(images.clear()).is_empty()
    # the share is one of the own source: the same groups of another one are above the half percent of 50 images
    few = oversized_components(pl.concat([images, rows_of([("b", 11, 11), ("b", 1, 39)])]))
    assert few.select("source_id", "n_images").rows() == [("primary", 30), ("primary", 21), ("b", 11)]


def test_a_cohort_as_large_as_chexpert_is_searched_in_seconds() -> None:
    n, n_planted = 191_229, 1_000
    hashes = keyed_generator("hashes").integers(0, 2**64, n, dtype=np.uint64)
    for i in range(n_planted):
        hashes[n - 1 - i] = hashes[i] ^ np.uint64(1 << (i % 64)) ^ np.uint64(1 << ((i * 7 + 1) % 64))
    begun = time.process_time()
    found = near_pairs(hashes)
    seconds = time.process_time() - begun
    assert len(found) == n_planted
    assert seconds < 15, "1.5 s on an idle core; all with all would be 18 billion comparisons"
