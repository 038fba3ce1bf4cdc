"""The four axes of a cell: discrimination, calibration, label efficiency and robustness.

What lives here: the definition of each axis and its variants, per seed and then over the seeds, and the macro over
the classes that two terms share. What stays out: the metrics they are made of (``metrics``), the axes under resampled
test groups (``aggregates.replicates``, which uses the definitions below), and anchors, which compare encoders
(``scores``).
Source: protocol page, sections 5 and 6. Retention and the relative drop follow the paper; the chance-corrected
forms, the treatment of undefined terms and the near-chance flag are ours, the paper is silent.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench_assets.aggregates.seeds import check_records, seed_spread
from crsbench_assets.config.ids import CLEAN, shift_condition
from crsbench_assets.config.protocol import Protocol
from crsbench_assets.tables.registry import TABLES

PRIMARY = "primary"
CORRUPTION_ONLY = "corruption_only"
CHANCE_CORRECTED = "chance_corrected"
AULC = "aulc"

CHANCE_AUROC = 0.5
"""AUROC of scores that know nothing of the label."""

CALIBRATION_VARIANTS = {
    PRIMARY: "ece",
    "adaptive_ece": "adaptive_ece",
    "brier": "brier",
    "ece_debiased": "ece_debiased",
}
"""Variant of the calibration axis -> the error that it is one minus of."""

Outcome = float | str
"""Value of one seed, or the reason code why it has none."""

Class = TypeVar("Class")

Value = TypeVar("Value", float, NDArray[np.float64])
"""A quantity at equal weights, or its replicates (b,) under b group weights, NaN where undefined."""


@dataclass(frozen=True)
class CommonMacros(Generic[Value]):
    """Macro AUROC of two records over the classes defined in both.

    Attributes:
        reference: macro of the term that stands in the denominator, in [0, 1].
        other: macro of the other term, in [0, 1].
        n_defined: classes or labels that both are taken over, >= 1.
    """

    reference: Value
    other: Value
    n_defined: int


def common_macros(
    reference: Mapping[Class, Value | None], other: Mapping[Class, Value | None]
) -> CommonMacros[Value] | None:
    """Return both macros over the classes or labels defined in both terms (protocol page, section 5).

    A label that the shift target lacks would otherwise turn a difference of label sets into a drop.

    Args:
        reference: class -> AUROC in [0, 1], or (b,) of them; None where undefined at equal weights. A replicate
            that is NaN for one of the classes makes the macro NaN.
        other: the same of the other record; its classes may differ.

    Returns:
        None where no class is defined in both, as for an empty term.

    Example:
        >>> common_macros({"edema": 0.75, "fracture": 0.5}, {"edema": 0.5, "fracture": None})
        CommonMacros(reference=0.75, other=0.5, n_defined=1)
    """
    pairs = [
        (value, counterpart)
        for name, value in reference.items()
        if value is not None and (counterpart := other.get(name)) is not None
    ]
    if not pairs:
        return None
    first, second = zip(*pairs, strict=True)
    return CommonMacros(_mean(first), _mean(second), len(pairs))


def retention(part: Value, full: Value, chance: float = 0.0) -> Value:
    """Return the share of the full-label AUROC kept with part of the labels; larger is better, 1 keeps all.

    (A(f) - chance) / (A(1) - chance), protocol page, section 6; above 1 where fewer labels rank better.

    Args:
        part: AUROC at the fraction, in [0, 1], or (b,) of them.
        full: AUROC at all labels, likewise.
        chance: 0 for the axis, :data:`CHANCE_AUROC` for its chance-corrected variant.

    Raises:
        ZeroDivisionError: ``full`` equals ``chance``; an array must not hold such an entry.
    """
    return (part - chance) / (full - chance)


def relative_drop(clean: Value, other: Value, chance: float = 0.0) -> Value:
    """Return the share of the clean AUROC lost under another condition; smaller is better, negative is a gain.

    (A_clean - A_c) / (A_clean - chance), protocol page, section 6; signed, never clipped.

    Args:
        clean: AUROC on clean images, in [0, 1], or (b,) of them.
        other: AUROC under the condition, likewise.
        chance: 0 for the axis, :data:`CHANCE_AUROC` for its chance-corrected variant.

    Raises:
        ZeroDivisionError: ``clean`` equals ``chance``; an array must not hold such an entry.
    """
    return (clean - other) / (clean - chance)


def mean_retention(parts: Sequence[CommonMacros[Value]], chance: float = 0.0) -> Value:
    """Return the mean retention over label fractions below 1; larger is better, 1 keeps all.

    Args:
        parts: for each feasible fraction, at least one: all labels as reference, the fraction as the other term.
        chance: as :func:`retention`.

    Raises:
        statistics.StatisticsError: no fraction.
        ZeroDivisionError: as :func:`retention`.

    Example:
        >>> mean_retention([CommonMacros(0.5, 0.25, 1), CommonMacros(0.5, 0.375, 1)])
        0.625
    """
    return _mean([retention(pair.other, pair.reference, chance) for pair in parts])


def robustness(corruption_drops: Sequence[Value], shift_drop: Value | None, shift_weight: float) -> Value:
    """Return one minus the weighted mean relative drop; larger is better, 1 loses nothing.

    1 - [(1 - w) mean_c drop_c + w drop_shift]; without a shift term 1 - mean_c drop_c (protocol page, section 6).

    Args:
        corruption_drops: relative drop of each corruption condition, at least one, or (b,) each; weights are equal.
        shift_drop: relative drop on the shift target, None for a dataset or variant without it.
        shift_weight: w, in [0, 1].

    Raises:
        statistics.StatisticsError: no corruption drop.

    Example:
        >>> robustness([0.25, 0.0], shift_drop=0.25, shift_weight=0.5)
        0.8125
    """
    drop = _mean(corruption_drops)
    if shift_drop is not None:
        drop = (1 - shift_weight) * drop + shift_weight * shift_drop
    return 1 - drop


def feasible_fractions(reasons: Mapping[tuple[int, float], str | None], protocol: Protocol) -> list[float]:
    """Return the label fractions, ascending, that an axis uses.

    A fraction is infeasible where every seed's clean record says ``infeasible_fraction``.

    Args:
        reasons: (seed, fraction) -> reason of the clean record; None, or absent, where it has none.
        protocol: seeds and fractions.
    """
    return [
        fraction
        for fraction in protocol.label_fractions
        if any(reasons.get((seed, fraction)) != "infeasible_fraction" for seed in protocol.seeds)
    ]


def cell_axes(labels: pl.DataFrame, records: pl.DataFrame, *, protocol: Protocol, shift_id: str | None) -> pl.DataFrame:
    """Return the axes of one cell, computed per seed and averaged over the seeds; larger is better.

    ==================  =======================================================================================
    discrimination      ``primary``: macro AUROC, clean, all labels; in [0, 1]
    calibration         ``primary``: 1 - ECE, clean, all labels; in [0, 1]. ``adaptive_ece`` and ``ece_debiased``
                        in [0, 1]; ``brier``: 1 - Brier, in [-1, 1] for single-label, [0, 1] for multi-label
    label_efficiency    ``primary``: mean retention over feasible fractions below 1; ``chance_corrected``;
                        ``aulc``: mean over all feasible fractions of the macro AUROC, in [0, 1]
    robustness          ``primary``: with the shift term where the dataset has a shift target;
                        ``corruption_only``; ``chance_corrected``: as primary
    ==================  =======================================================================================

    Infeasible fractions (:func:`feasible_fractions`) are skipped. A term of a ratio without a common class, or over a
    denominator of 0, is ``undefined_term``, as is one that no record mentions. ``value`` is NULL unless every seed has
    one: with the reason all seeds share, else ``missing_seed``. ``near_chance`` (the mean over seeds of the lower test
    bound of the clean AUROC at all labels is at most the protocol's limit) makes the chance-corrected variants NULL;
    without intervals the flag is NULL and they stand.

    Args:
        labels: label metrics of the cell: seed, label_fraction, condition_id, class_name, auroc.
        records: run records of the cell.
        protocol: seeds, fractions, corruption conditions, shift weight and near-chance limit.
        shift_id: the dataset's shift target, None where it has none.

    Returns:
        Eleven rows, in the order above, with the columns of the table ``cell_axes`` but the caller's. ``seed_values``
        is in the order of the protocol's seeds; ``value`` and ``sd`` come from the same values in float64. Empty
        frames give eleven rows of ``undefined_term``.

    Raises:
        ValueError: a NaN, a repeated row, or a seed that the protocol does not have.
    """
    key = ("seed", "label_fraction", "condition_id")
    check_records(records, key, protocol.seeds)
    check_records(labels, (*key, "class_name"), protocol.seeds)
    return _Cell(labels, records, protocol, shift_id).frame()


class _Cell:
    """Lookups into the rows of one cell, and the axes built from them."""

    def __init__(self, labels: pl.DataFrame, records: pl.DataFrame, protocol: Protocol, shift_id: str | None) -> None:
        self._protocol = protocol
        self._shift = shift_condition(shift_id) if shift_id else None
        self._records: dict[tuple[int, float, str], dict[str, Any]] = {
            (row["seed"], row["label_fraction"], row["condition_id"]): row for row in records.iter_rows(named=True)
        }
        self._aurocs: dict[tuple[int, float, str], dict[str, float | None]] = {}
        columns = ("seed", "label_fraction", "condition_id", "class_name", "auroc")
        for seed, fraction, condition, name, auroc in labels.select(columns).iter_rows():
            self._aurocs.setdefault((seed, fraction, condition), {})[name] = auroc
        reasons = {(seed, f): row["reason"] for (seed, f, name), row in self._records.items() if name == CLEAN}
        self._fractions = feasible_fractions(reasons, protocol)
        self._is_near_chance = self._near_chance()

    def frame(self) -> pl.DataFrame:
        full = {metric: self._metric(metric, 1.0) for metric in ("macro_auroc", *CALIBRATION_VARIANTS.values())}
        parts = [fraction for fraction in self._fractions if fraction < 1.0]
        rows = [self._row("discrimination", PRIMARY, full["macro_auroc"])]
        rows += [
            self._row("calibration", variant, [error if isinstance(error, str) else 1 - error for error in full[name]])
            for variant, name in CALIBRATION_VARIANTS.items()
        ]
        rows += [
            self._row("label_efficiency", PRIMARY, self._retentions(parts, 0.0), len(parts)),
            self._row("label_efficiency", CHANCE_CORRECTED, self._retentions(parts, CHANCE_AUROC), len(parts)),
            self._row("label_efficiency", AULC, self._learning_curve(), len(self._fractions)),
            self._row("robustness", PRIMARY, self._robustness(self._shift, 0.0)),
            self._row("robustness", CORRUPTION_ONLY, self._robustness(None, 0.0)),
            self._row("robustness", CHANCE_CORRECTED, self._robustness(self._shift, CHANCE_AUROC)),
        ]
        return TABLES["cell_axes"].computed(rows)

    def _near_chance(self) -> bool | None:
        points = [self._record(seed, 1.0, CLEAN).get("macro_auroc") for seed in self._protocol.seeds]
        known = [point for point in points if point is not None]
        if len(known) == len(points) and statistics.fmean(known) <= self._protocol.metrics.near_chance_auroc:
            return True  # no lower bound lies above its point, so none need be known
        bounds = [self._record(seed, 1.0, CLEAN).get("macro_auroc_ci_low") for seed in self._protocol.seeds]
        defined = [bound for bound in bounds if bound is not None]
        if len(defined) < len(bounds):
            return None
        return statistics.fmean(defined) <= self._protocol.metrics.near_chance_auroc

    def _record(self, seed: int, fraction: float, condition: str) -> dict[str, Any]:
        return self._records.get((seed, fraction, condition), {})

    def _value(self, name: str, seed: int, fraction: float, condition: str) -> Outcome:
        record = self._record(seed, fraction, condition)
        value = record.get(name)
        return (record.get("reason") or "undefined_term") if value is None else float(value)

    def _metric(self, name: str, fraction: float) -> list[Outcome]:
        return [self._value(name, seed, fraction, CLEAN) for seed in self._protocol.seeds]

    def _pair(self, seed: int, fraction: float, condition: str, chance: float) -> CommonMacros[float] | str:
        """Return the clean full-label record and another one over their common classes, or why that is undefined."""
        for term in ((1.0, CLEAN), (fraction, condition)):
            macro = self._value("macro_auroc", seed, *term)
            if isinstance(macro, str):
                return macro
        reference = self._aurocs.get((seed, 1.0, CLEAN), {})
        pair = common_macros(reference, self._aurocs.get((seed, fraction, condition), {}))
        return "undefined_term" if pair is None or pair.reference == chance else pair

    def _retentions(self, fractions: Sequence[float], chance: float) -> list[Outcome]:
        def of_seed(seed: int) -> Outcome:
            parts = []
            for fraction in fractions:
                pair = self._pair(seed, fraction, CLEAN, chance)
                if isinstance(pair, str):
                    return pair
                parts.append(pair)
            return mean_retention(parts, chance)

        if not fractions:
            has_parts = len(self._protocol.label_fractions) > 1
            return ["infeasible_fraction" if has_parts else "undefined_term"] * len(self._protocol.seeds)
        return self._of_seeds(of_seed, chance)

    def _learning_curve(self) -> list[Outcome]:
        curves = zip(*(self._metric("macro_auroc", fraction) for fraction in self._fractions), strict=True)
        outcomes: list[Outcome] = []
        for curve in curves:
            reasons = [point for point in curve if isinstance(point, str)]
            outcomes.append(reasons[0] if reasons else statistics.fmean(p for p in curve if not isinstance(p, str)))
        return outcomes or ["infeasible_fraction"] * len(self._protocol.seeds)

    def _robustness(self, shift: str | None, chance: float) -> list[Outcome]:
        def of_seed(seed: int) -> Outcome:
            drops = []
            for condition in (*self._protocol.corruption_conditions, *((shift,) if shift else ())):
                pair = self._pair(seed, 1.0, condition, chance)
                if isinstance(pair, str):
                    return pair
                drops.append(relative_drop(pair.reference, pair.other, chance))
            shift_drop = drops.pop() if shift else None
            return robustness(drops, shift_drop, self._protocol.axes.shift_weight) if drops else "undefined_term"

        return self._of_seeds(of_seed, chance)

    def _of_seeds(self, of_seed: Callable[[int], Outcome], chance: float) -> list[Outcome]:
        if chance and self._is_near_chance:
            return ["near_chance"] * len(self._protocol.seeds)
        return [of_seed(seed) for seed in self._protocol.seeds]

    def _row(
        self, axis: str, variant: str, outcomes: Sequence[Outcome], n_fractions: int | None = None
    ) -> dict[str, Any]:
        defined = [outcome for outcome in outcomes if not isinstance(outcome, str)]
        reasons = {outcome for outcome in outcomes if isinstance(outcome, str)}
        spread = None if reasons else seed_spread(defined)
        reason = None
        if reasons:
            reason = reasons.pop() if len(reasons) == 1 and not defined else "missing_seed"
        return {
            "axis": axis,
            "variant": variant,
            "value": spread.mean if spread else None,
            "sd": spread.sd if spread else None,
            "n_seeds": len(defined),
            "n_fractions": n_fractions,
            "is_near_chance": self._is_near_chance,
            "seed_values": [None if isinstance(outcome, str) else outcome for outcome in outcomes],
            "reason": reason,
        }


@overload
def _mean(terms: Sequence[float]) -> float: ...


@overload
def _mean(terms: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]: ...


def _mean(terms: Sequence[Any]) -> Any:
    """Return the mean of numbers, rounded once, or of arrays, replicate by replicate; NaN stays NaN."""
    if any(isinstance(term, np.ndarray) for term in terms):
        return np.mean(terms, axis=0)
    return statistics.fmean(terms)
