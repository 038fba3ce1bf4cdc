"""Train, validation and test of a dataset, and the order in which labels of train are revealed.

What lives here: the draw of sides by group, the stratified order of train whose prefixes are the label
fractions, the sizes and the feasibility of those fractions, and the hash that names a test set.
What stays out: how groups arise and which images are quarantined (``data.integrity``), what a label is
(``data.labels``), whether a stored split is clean (``data.leakage``).
Source: protocol page, section 2. On ties, margins and the rounding of validation the page is silent; each
choice is stated where it is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.hashes import content_hash
from crsbench_assets.config.randomness import keyed_ranks

TRAIN = "train"
VALIDATION = "validation"
TEST = "test"
SPLITS = (TRAIN, VALIDATION, TEST)

EXCLUDED = "excluded"
"""Reason of an image that the caller excluded: quarantined, or outside a cap."""

GROUP_IN_DECLARED_TEST = "group_in_declared_test"
"""Reason of a pool image whose group also holds images of the declared test split."""

FRAME_SCHEMA = {"image_id": pl.String, "seed": pl.Int64, "split": pl.String, "position": pl.Int64}
LEFT_OUT_SCHEMA = {"image_id": pl.String, "reason": pl.String}


@dataclass(frozen=True)
class SplitResult:
    """The splits of one dataset.

    Attributes:
        frame: one row per (image_id, seed), sorted by seed, then image_id; ``split`` is train, validation or
            test; ``position`` is the 0-based place in the train order, null outside train. Test rows repeat
            for every seed with equal content.
        left_out: one row per image that is in no split, sorted by image_id, with its ``reason``
            (``excluded`` where both hold).
    """

    frame: pl.DataFrame
    left_out: pl.DataFrame


def draw_splits(
    ids: Sequence[str],
    groups: Sequence[str],
    labels: NDArray[np.int8],
    declared: Sequence[str | None],
    *,
    dataset_id: str,
    seeds: Sequence[int],
    test_fraction: float,
    validation_fraction: float,
    excluded: Collection[str] = (),
) -> SplitResult:
    """Return train, validation and test for every seed (protocol page, section 2).

    Stratum of a group: the rarest label that any of its images holds, rarest by the count of positive images
    in the dataset, ties to the lower label index; groups without a positive form a stratum of their own.

    Test: in every stratum, groups in keyed order until the stratum's test images are at least
    ``test_fraction`` of the stratum's images. The draw stops with the group that reaches the mark, so it
    overshoots by less than one group, and a stratum of one group is test. The seed plays no part. Where any
    image is declared ``test``, the declared test split is kept instead, everything else is the pool, and pool
    images that share a group with it are left out (``group_in_declared_test``). Declared train and validation
    are the pool.

    Validation, per seed: in every stratum of the pool, groups in keyed order, each taken where that brings
    the stratum closer to ``validation_fraction`` of its pool images, and passed over where it does not (a tie
    leaves the group in train). Rounding to the nearest, where test rounds up, keeps the few images of a rare
    label in train: up to a share of 1/2, a stratum of one pool group is never spent on validation.

    Sides are decided on all indexed images; ``excluded`` images take part in that decision and are dropped
    afterwards. Quarantining an image or setting a cap thus never moves another image to a different split. A
    mark such as "at least 20 %" holds for the images as indexed.

    Args:
        ids: n unique image ids. Their order does not matter.
        groups: n raw group ids (patient, lesion, duplicate component).
        labels: int8 (n, k): 1 positive, 0 negative, -1 unknown; single-label data one-hot. An unknown is not
            a positive; a row without a positive belongs to the stratum of its own; k may be 0.
        declared: n declared splits: ``train``, ``validation``, ``test`` or None.
        dataset_id: key of every draw.
        seeds: s distinct seeds; each can be drawn alone with the same result.
        test_fraction: share of images in [0, 1], read as the decimal it prints as.
        validation_fraction: share of the pool in [0, 1], read likewise.
        excluded: ids of indexed images to be left out of the splits and of the counts of the train order.

    Returns:
        The splits. No images give empty frames; a split without images has no rows.

    Raises:
        ConfigError: an image id occurs twice, or a declared split has another name.
        ValueError: lengths or shape disagree, a label is not in {-1, 0, 1} (NaN included), a seed occurs
            twice, a share is outside [0, 1], or ``excluded`` names an image that is not indexed.

    Example:
        >>> ids = [f"i{j:02d}" for j in range(40)]
        >>> labels = np.ones((40, 1), dtype=np.int8)
        >>> result = draw_splits(ids, ids, labels, [None] * 40, dataset_id="demo", seeds=(0,),
        ...                      test_fraction=0.2, validation_fraction=0.125)
        >>> {split: result.frame.filter(pl.col("split") == split).height for split in SPLITS}
        {'train': 28, 'validation': 4, 'test': 8}
    """
    _check_input(ids, groups, labels, declared, seeds, excluded)
    by_id = sorted(range(len(ids)), key=ids.__getitem__)
    names = np.array([ids[i] for i in by_id], dtype=object)
    positive = labels[by_id] == 1
    group_names = sorted(set(groups))
    group_code = {group: code for code, group in enumerate(group_names)}
    group_of = np.array([group_code[groups[i]] for i in by_id], dtype=np.int64)
    declared_test = np.array([declared[i] == TEST for i in by_id], dtype=bool)
    excluded_ids = set(excluded)
    is_excluded = np.array([image_id in excluded_ids for image_id in names], dtype=bool)

    held = np.zeros((len(group_names), labels.shape[1]), dtype=bool)
    for label in range(labels.shape[1]):
        held[group_of[positive[:, label]], label] = True
    stratum_of_group = _rarest_held(held, positive.sum(axis=0))

    def draw(of_images: NDArray[np.bool_], share: float, *key: object, reach: bool) -> NDArray[np.bool_]:
        sizes = np.bincount(group_of[of_images], minlength=len(group_names))
        order = np.argsort(keyed_ranks(group_names, *key), kind="stable")
        return _drawn_groups(order, stratum_of_group, sizes, share, reach=reach)[group_of] & of_images

    if declared_test.any():
        is_test = declared_test
        is_straddling = np.isin(group_of, group_of[declared_test]) & ~declared_test
    else:
        is_test = draw(np.ones(len(ids), dtype=bool), test_fraction, TEST, dataset_id, reach=True)
        is_straddling = np.zeros(len(ids), dtype=bool)
    is_pool = ~is_test & ~is_straddling
    is_kept = ~is_straddling & ~is_excluded

    frames = []
    for seed in seeds:
        is_validation = draw(is_pool, validation_fraction, VALIDATION, dataset_id, seed, reach=False)
        train = np.flatnonzero(is_pool & ~is_validation & is_kept)
        ranks = keyed_ranks(names[train], TRAIN, dataset_id, seed)
        position = np.full(len(ids), -1, dtype=np.int64)
        position[train[stratified_order(positive[train], ranks)]] = np.arange(len(train))
        split = np.where(is_test, TEST, np.where(is_validation, VALIDATION, TRAIN))
        frames.append(_seed_frame(names[is_kept], seed, split[is_kept], position[is_kept]))

    is_left_out = ~is_kept
    reasons = np.where(is_excluded, EXCLUDED, GROUP_IN_DECLARED_TEST)[is_left_out]
    return SplitResult(
        frame=pl.concat([pl.DataFrame(schema=FRAME_SCHEMA), *frames]),
        left_out=pl.DataFrame(
            {"image_id": names[is_left_out].tolist(), "reason": reasons.tolist()}, schema=LEFT_OUT_SCHEMA
        ),
    )


def stratified_order(positive: NDArray[np.bool_], ranks: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return an order of images of which every prefix is stratified.

    It opens with one positive per label that has any, rarest label first (ties to the lower index), each the
    first in keyed order among the label's positives; a label that an earlier pick already holds needs no
    further one. Then always the next image from the stratum with the largest deficit: with share p_h = n_h /
    n, the deficit of stratum h at the t-th image is t p_h minus the images taken from h. The stratum of an
    image is its rarest label; images without a positive form the last stratum. Ties go to the lowest stratum,
    the rarest first; inside a stratum the keyed order decides.

    Deficits are kept as integers, n times their value, hence exact: each step adds n_h to all and takes n
    from the stratum drawn. An exhausted stratum has a deficit of at most 0 while the sum is positive, so it
    is never drawn. Sorting by (j + 1/2) / p_h would be a closed form of another order (Sainte-Lague's): with
    strata of 1, 1 and 3 images, and no opening, the two differ at the third image.

    Args:
        positive: bool (n, k), True where the image holds the label; single-label data one-hot.
        ranks: uint64 (n,), the keyed order; equal ranks keep the order of the rows.

    Returns:
        int64 (n,): row indices, first image first. No images give an empty array; with one class, or none at
        all, the order is the keyed order.

    Raises:
        ValueError: the lengths disagree.

    Example:
        >>> ranks = np.arange(5, dtype=np.uint64)
        >>> stratified_order(np.array([[1], [0], [0], [0], [1]], dtype=bool), ranks).tolist()
        [0, 1, 2, 4, 3]
    """
    n = len(positive)
    if len(ranks) != n:
        raise ValueError(f"{len(ranks)} ranks for {n} images")
    counts = positive.sum(axis=0)
    keyed = np.argsort(ranks, kind="stable")

    opening: list[int] = []
    is_covered = np.zeros(positive.shape[1], dtype=bool)
    for label in np.argsort(counts, kind="stable"):
        if counts[label] and not is_covered[label]:
            image = int(keyed[np.argmax(positive[keyed, label])])
            opening.append(image)
            is_covered |= positive[image]

    stratum = _rarest_held(positive, counts)
    n_strata = positive.shape[1] + 1
    size = np.bincount(stratum, minlength=n_strata).astype(np.int64)
    taken = np.bincount(stratum[opening], minlength=n_strata)
    deficit = len(opening) * size - n * taken
    drawn = np.empty(n - len(opening), dtype=np.int64)
    for step in range(len(drawn)):
        deficit += size
        largest = deficit.argmax()
        deficit[largest] -= n
        drawn[step] = largest

    # The j-th draw of a stratum is its j-th image in keyed order: both sides sorted by stratum line up.
    is_open = np.ones(n, dtype=bool)
    is_open[opening] = False
    queue = keyed[is_open[keyed]]
    order = np.empty(n, dtype=np.int64)
    order[: len(opening)] = opening
    order[len(opening) + np.argsort(drawn, kind="stable")] = queue[np.argsort(stratum[queue], kind="stable")]
    return order


def fraction_size(n_train: int, fraction: float) -> int:
    """Return the number of images of a label fraction, floor(f n + 1/2), in [0, n_train].

    The fraction is read as the decimal it prints as: .29 of 50 is 14.5 and gives 15, though 0.29 * 50 is
    14.499999999999998 in binary.

    Args:
        n_train: images of train, at least 0.
        fraction: label fraction in (0, 1].

    Raises:
        ValueError: an argument is outside its range, NaN included.

    Example:
        >>> fraction_size(1000, 0.01), fraction_size(15, 0.1), fraction_size(0, 0.5)
        (10, 2, 0)
    """
    if n_train < 0 or not 0.0 < fraction <= 1.0:
        raise ValueError(f"n_train must be at least 0 and fraction in (0, 1], got {n_train} and {fraction}")
    return int(_decimal(fraction) * n_train + Fraction(1, 2))


def is_feasible(
    frame: pl.DataFrame,
    ids: Sequence[str],
    labels: NDArray[np.int8],
    fraction: float,
    *,
    is_multi_label: bool,
) -> bool:
    """Return whether a label fraction of a dataset can be drawn for every seed (protocol page, section 2).

    A seed needs as many images as there are classes (multi-label: as labels that its train has positives
    for), and at least one. One seed that falls short makes the fraction infeasible for the dataset, hence for
    all encoders.

    Args:
        frame: splits as :func:`draw_splits` returns them, all seeds. A seed without train images is
            infeasible, and so is an empty frame.
        ids: n image ids, at least those of train.
        labels: int8 (n, k) in the order of ``ids``: 1 positive, 0 negative, -1 unknown.
        fraction: label fraction in (0, 1].
        is_multi_label: whether an image can hold several labels.

    Raises:
        ValueError: ``fraction`` is outside (0, 1].

    Example:
        >>> frame = pl.DataFrame({"image_id": ["a", "b"], "seed": [0, 0], "split": ["train", "train"]})
        >>> labels = np.eye(2, dtype=np.int8)
        >>> [is_feasible(frame, ["a", "b"], labels, f, is_multi_label=False) for f in (0.5, 1.0)]
        [False, True]
    """
    row_of = pl.DataFrame({"image_id": list(ids)}, schema={"image_id": pl.String}).with_row_index("row")
    known = frame.join(row_of, on="image_id", how="left")
    for _, of_seed in known.group_by("seed"):
        train = of_seed.filter(pl.col("split") == TRAIN)
        n_needed = labels.shape[1]
        if is_multi_label:
            n_needed = int((labels[train.get_column("row").to_numpy()] == 1).any(axis=0).sum())
        if fraction_size(train.height, fraction) < max(n_needed, 1):
            return False
    return not frame.is_empty()


def test_set_hash(ids: Iterable[str]) -> str:
    """Return the hash that names a test set: equal for equal sets of ids, whatever their order or repeats.

    Example:
        >>> test_set_hash(["b", "a", "b"]) == test_set_hash(["a", "b"])
        True
    """
    return content_hash(sorted(set(ids)))


def _check_input(
    ids: Sequence[str],
    groups: Sequence[str],
    labels: NDArray[np.int8],
    declared: Sequence[str | None],
    seeds: Sequence[int],
    excluded: Collection[str],
) -> None:
    n = len(ids)
    if not len(groups) == len(declared) == n or labels.ndim != 2 or len(labels) != n:
        raise ValueError(
            f"{n} ids need {n} groups, {n} declared splits and labels of shape ({n}, k), "
            f"got {len(groups)}, {len(declared)} and {labels.shape}"
        )
    if not np.isin(labels, (-1, 0, 1)).all():
        raise ValueError("labels must be 1, 0 or -1 (unknown)")
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds must be distinct, got {list(seeds)}")
    known = set(ids)
    if len(known) != n:
        repeated = Counter(ids).most_common(1)[0][0]
        raise ConfigError(
            f"Image id {repeated!r} occurs more than once; every image of a dataset needs an id of its own. "
            "Rename or remove the repeated rows."
        )
    foreign = sorted({split for split in declared if split is not None} - set(SPLITS))
    if foreign:
        raise ConfigError(
            f"Declared split {foreign[0]!r} is not known; expected train, validation, test or none. "
            "Correct the dataset's split column."
        )
    unknown = set(excluded) - known
    if unknown:
        raise ValueError(f"excluded names {len(unknown)} images that are not indexed, as {min(unknown)!r}")


def _decimal(fraction: float) -> Fraction:
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"a share of images must lie in [0, 1], got {fraction}")
    return Fraction(str(fraction))


def _rarest_held(held: NDArray[np.bool_], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each row's stratum: 0 for the rarest label, k for a row that holds none."""
    by_rarity = held[:, np.argsort(counts, kind="stable")]
    holds_or_last = np.concatenate([by_rarity, np.ones((len(held), 1), dtype=bool)], axis=1)
    stratum: NDArray[np.int64] = holds_or_last.argmax(axis=1)
    return stratum


def _drawn_groups(
    order: NDArray[np.int64],
    strata: NDArray[np.int64],
    sizes: NDArray[np.int64],
    share: float,
    *,
    reach: bool,
) -> NDArray[np.bool_]:
    """Return which groups are drawn: until the share is reached, or as near to it as whole groups allow."""
    target = _decimal(share)
    n_images = np.zeros(strata.max(initial=0) + 1, dtype=np.int64)
    np.add.at(n_images, strata, sizes)
    # In units of 1 / (2 x denominator) images every comparison is one of integers.
    mark = [2 * target.numerator * int(n) for n in n_images]
    taken = [0] * len(mark)
    is_drawn = np.zeros(len(order), dtype=bool)
    for group in order.tolist():
        stratum, size = strata[group], int(sizes[group])
        margin = 0 if reach else size
        if size and target.denominator * (2 * taken[stratum] + margin) < mark[stratum]:
            is_drawn[group] = True
            taken[stratum] += size
    return is_drawn


def _seed_frame(
    names: NDArray[np.object_], seed: int, split: NDArray[np.str_], position: NDArray[np.int64]
) -> pl.DataFrame:
    columns = {"image_id": names.tolist(), "split": split.tolist(), "position": position}
    return pl.DataFrame(columns, schema_overrides={"image_id": pl.String}).select(
        "image_id",
        pl.lit(seed, dtype=pl.Int64).alias("seed"),
        pl.col("split").cast(pl.String),
        pl.when(pl.col("position") >= 0).then(pl.col("position")).alias("position"),
    )
