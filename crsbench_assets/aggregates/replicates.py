"""The axes of a cell under resampled test groups, seed by seed: what ranks, dominance and tie groups need jointly.

What lives here: the axes of every seed under b group weights, and their rows. What stays out: the axes' definitions
(``aggregates.axes``, used here on arrays), AUROC and ECE under group weights (``metrics.replicates``), and the redraw
of the seeds, which whoever reads these rows does: the mean over seeds, drawn or all, is taken of ``seed_values``.
Source: Field and Welsh (2007), doi:10.1111/j.1467-9868.2007.00593.x (resampling whole clusters); Davison and Hinkley
(1997), Bootstrap Methods and their Application, section 2.7 (influence functions); protocol page, sections 5, 6 and 8
(``seed_test``).

AUROC replicates are first-order expansions around equal weights (``metrics.replicates.auroc_replicates``); an axis is
the axis of these replicates, so at equal weights it is exactly the axis of ``cell_axes``. Replicate b means the same
draw of a dataset's test groups for every encoder, seed, fraction and condition, hence differences between encoders are
paired. The shift target has groups of its own, drawn independently; replicate b holds one draw of each.

An ECE is biased upward, and its replicates once more, so those of calibration lie below the axis. Much of it cancels in
the difference of two encoders; whoever sets them against a fixed value takes it off, as ``metrics.replicates`` does in
the interval of an ECE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench_assets.aggregates.axes import (
    CHANCE_AUROC,
    CHANCE_CORRECTED,
    CORRUPTION_ONLY,
    PRIMARY,
    CommonMacros,
    common_macros,
    feasible_fractions,
    mean_retention,
    relative_drop,
    robustness,
)
from crsbench_assets.config.ids import CLEAN, shift_condition
from crsbench_assets.config.protocol import Protocol
from crsbench_assets.metrics.records import Record
from crsbench_assets.metrics.replicates import auroc_replicates, ece_replicates, group_weights, weights_key
from crsbench_assets.tables.registry import TABLES

if TYPE_CHECKING:
    from crsbench_assets.config.cards import Task

REPLICATED = (
    ("discrimination", PRIMARY),
    ("calibration", PRIMARY),
    ("label_efficiency", PRIMARY),
    ("label_efficiency", CHANCE_CORRECTED),
    ("robustness", PRIMARY),
    ("robustness", CORRUPTION_ONLY),
    ("robustness", CHANCE_CORRECTED),
)
"""Axis and variant that have replicates: the two that a panel scores by (primary, and robustness without the shift
term), and the chance-corrected ones, because retention and robustness of a weak encoder are read beside them. The
other variants are compared as rankings without intervals (``metric_sensitivity``)."""

GroupWeights = Callable[[str, int], NDArray[np.float64]]
"""(source id, number of its test groups g) -> weights (b, g), the same array whenever asked."""

_Term = tuple[int, float, str]
"""Seed, label fraction, condition."""


def axis_replicates(
    records: Iterable[Record],
    axes: pl.DataFrame,
    *,
    dataset_id: str,
    task: Task,
    protocol: Protocol,
    shift_id: str | None,
) -> pl.DataFrame:
    """Return the rows of ``axis_replicates`` of one cell under the group weights that its dataset's records share.

    Args:
        records: as :func:`replicated_axes`.
        axes: as :func:`replicated_axes`.
        dataset_id: with the source, key of the group weights: those of the intervals in ``run_records``.
        task: kind of the labels.
        protocol: as :func:`replicated_axes`, and the number of replicates b.
        shift_id: the dataset's shift target, None where it has none.

    Returns:
        One row per axis and variant of :data:`REPLICATED` and replicate, always 7 b, with the columns of the table
        but the caller's. ``seed_values`` is in the order of the protocol's seeds, rounded to float32, and NULL where
        undefined, with the reason of ``cell_axes``, or ``undefined_term`` where only this replicate lacks it.

    Raises:
        ValueError: as :func:`replicated_axes`.
    """
    b = protocol.metrics.test_replicates
    drawn: dict[tuple[str, int], NDArray[np.float64]] = {}

    def weights(source_id: str, n_groups: int) -> NDArray[np.float64]:
        key = source_id, n_groups
        if key not in drawn:
            drawn[key] = group_weights(weights_key(dataset_id, source_id), n_groups, b)
        return drawn[key]

    values = replicated_axes(records, axes, weights, n_replicates=b, task=task, protocol=protocol, shift_id=shift_id)
    reasons = {(axis, variant): reason for axis, variant, reason in axes.select("axis", "variant", "reason").rows()}
    # Rounding to float32 moves a value by at most 6e-8, and halves the partition.
    stacked = np.stack(list(values.values())).astype(np.float32).astype(np.float64)
    v, _, s = stacked.shape
    n_seeds = np.count_nonzero(~np.isnan(stacked), axis=2).ravel()
    frame = pl.DataFrame(
        {
            "axis": np.repeat([axis for axis, _ in values], b),
            "variant": np.repeat([variant for _, variant in values], b),
            "replicate": np.tile(np.arange(b), v),
            "n_seeds": n_seeds,
            "seed_values": pl.Series(stacked.ravel()).fill_nan(None).reshape((-1, s)),
            "reason": [reasons[key] or "undefined_term" for key in values for _ in range(b)],
        }
    ).with_columns(reason=pl.when(pl.col("n_seeds") < s).then(pl.col("reason")))
    return frame.cast(TABLES["axis_replicates"].computed_schema())  # type: ignore[arg-type]  # polars types keys invariantly


def replicated_axes(
    records: Iterable[Record],
    axes: pl.DataFrame,
    weights: GroupWeights,
    *,
    n_replicates: int,
    task: Task,
    protocol: Protocol,
    shift_id: str | None,
) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Return the axes of one cell of every seed under b group weights; larger is better.

    What is defined, and whether the cell is near chance, is decided at equal weights and taken from ``axes``: a
    replicate has the classes, fractions and conditions of the value that it is a replicate of. A macro whose term is
    undefined in a replicate for one of its classes is undefined there, as is a ratio over 0.

    Args:
        records: every record of the cell, in any order, read once; those of corrupted images below all labels are
            not used.
        axes: the cell's rows of ``cell_axes`` (axis, variant, seed_values) from these records.
        weights: the weights of a source's groups; all 1 gives ``seed_values`` back, but for rounding.
        n_replicates: b.
        task: kind of the labels.
        protocol: seeds, fractions, corruption conditions, bins and shift weight.
        shift_id: the dataset's shift target, None where it has none.

    Returns:
        Axis and variant, in the order of :data:`REPLICATED` -> float64 (b, s), NaN where undefined. With one test
        group all values are NaN.

    Raises:
        ValueError: ``axes`` lacks a row, or has a value that these records cannot give.
    """
    seed_values = {(row[0], row[1]): row[2] for row in axes.select("axis", "variant", "seed_values").rows()}
    absent = [f"{axis} ({variant})" for axis, variant in REPLICATED if (axis, variant) not in seed_values]
    if absent:
        raise ValueError(f"no row for {', '.join(absent)}; expected every axis and variant of `cell_axes`.")
    cell = _ReplicatedCell(protocol, shift_condition(shift_id) if shift_id else None)
    for record in records:
        cell.add(record, task, weights)
    undefined = np.full(n_replicates, np.nan)
    replicated = {}
    for axis, variant in REPLICATED:
        columns = []
        for seed, value in zip(protocol.seeds, seed_values[axis, variant], strict=True):
            try:
                columns.append(undefined if value is None else cell.axis(axis, variant, seed))
            except KeyError as error:
                raise ValueError(
                    f"{axis} ({variant}) of seed {seed} has a value, but no record gives its term {error.args[0]}; "
                    "expected the records that the axes come from. Compute the axes of this cell again."
                ) from error
        replicated[axis, variant] = np.stack(columns, axis=1)
    return replicated


class _ReplicatedCell:
    """AUROC and ECE of the records that axes are made of, under all weights, and the axes of a seed from them."""

    def __init__(self, protocol: Protocol, shift: str | None) -> None:
        self._protocol = protocol
        self._shift = shift
        self._reasons: dict[tuple[int, float], str | None] = {}
        self._macros: dict[_Term, NDArray[np.float64]] = {}
        self._eces: dict[_Term, NDArray[np.float64]] = {}
        self._aurocs: dict[_Term, dict[int, NDArray[np.float64] | None]] = {}
        self._pairs: dict[_Term, CommonMacros[NDArray[np.float64]]] = {}

    def add(self, record: Record, task: Task, weights: GroupWeights) -> None:
        """Take in a record; one without logits, or that no axis uses, is passed over."""
        if record.condition == CLEAN:
            self._reasons[record.seed, record.fraction] = record.reason
        elif record.fraction < 1.0:
            return
        if record.logits is None or record.labels is None or record.groups is None:
            return
        of_groups = weights(record.source_id, int(record.groups.max()) + 1)
        term = record.seed, record.fraction, record.condition
        auroc = auroc_replicates(record.logits, record.labels, task, record.groups, of_groups)
        self._macros[term] = auroc.values
        # A class undefined at equal weights is so in every replicate. With one group all are: they stay, as NaN.
        is_defined = ~np.isnan(auroc.per_label).all(axis=0)
        classes = np.flatnonzero(is_defined if is_defined.any() else ~is_defined).tolist()
        self._aurocs[term] = {c: np.ascontiguousarray(auroc.per_label[:, c]) for c in classes}
        if record.condition == CLEAN and record.fraction == 1.0:
            n_bins = self._protocol.metrics.ece_bins
            ece = ece_replicates(record.logits, record.labels, task, record.groups, of_groups, n_bins=n_bins)
            self._eces[term] = ece.values

    def axis(self, axis: str, variant: str, seed: int) -> NDArray[np.float64]:
        """Return the axis (b,) of one seed; a KeyError names a term that no record gave."""
        chance = CHANCE_AUROC if variant == CHANCE_CORRECTED else 0.0
        if axis == "discrimination":
            return self._macros[seed, 1.0, CLEAN]
        if axis == "calibration":
            return 1 - self._eces[seed, 1.0, CLEAN]
        if axis == "label_efficiency":
            fractions = [f for f in feasible_fractions(self._reasons, self._protocol) if f < 1.0]
            return mean_retention([self._pair((seed, f, CLEAN), chance) for f in fractions], chance)
        shift = None if variant == CORRUPTION_ONLY else self._shift
        drops = [self._drop((seed, 1.0, condition), chance) for condition in self._protocol.corruption_conditions]
        shift_drop = self._drop((seed, 1.0, shift), chance) if shift else None
        return robustness(drops, shift_drop, self._protocol.axes.shift_weight)

    def _drop(self, term: _Term, chance: float) -> NDArray[np.float64]:
        pair = self._pair(term, chance)
        return relative_drop(pair.reference, pair.other, chance)

    def _pair(self, term: _Term, chance: float) -> CommonMacros[NDArray[np.float64]]:
        """Return the clean full-label record and another one over their common classes; no denominator is 0."""
        if term not in self._pairs:
            pair = common_macros(self._aurocs[term[0], 1.0, CLEAN], self._aurocs[term])
            if pair is None:
                raise KeyError(term)
            self._pairs[term] = pair
        pair = self._pairs[term]
        return CommonMacros(np.where(pair.reference == chance, np.nan, pair.reference), pair.other, pair.n_defined)
