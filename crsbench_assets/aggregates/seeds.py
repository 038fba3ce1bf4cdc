"""Mean and spread of the run records over the seeds.

What lives here: the seed aggregates of one cell, the numbers of one spread, and the checks that both aggregates
make of their input frames. What stays out: the metrics themselves (``metrics``), the axes (``aggregates.axes``), the
uncertainty over test images, whose bounds are only averaged here.
Source: protocol page, section 5; interval of Student (1908), "The probable error of a mean", Biometrika 6(1).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import polars.selectors as cs
from scipy.special import stdtrit

from crsbench_assets.tables.registry import TABLES

_CONFIDENCE = 0.95
_TEST_BOUNDS = ("macro_auroc_ci_low", "macro_auroc_ci_high", "ece_ci_low", "ece_ci_high")


@dataclass(frozen=True)
class SeedSpread:
    """Mean and spread of one quantity over s seeds; sd and bounds are None for a single seed.

    Attributes:
        mean: arithmetic mean.
        sd: standard deviation with s - 1 in the denominator.
        ci_low: lower 95 % bound of the mean by Student's t; may leave the range of the quantity.
        ci_high: upper bound.
    """

    mean: float
    sd: float | None
    ci_low: float | None
    ci_high: float | None


def seed_spread(values: Sequence[float]) -> SeedSpread:
    """Return mean, standard deviation and 95 % t interval over seeds.

    Sums are exact rationals, rounded once: the order of the seeds moves no bit, and equal values have sd 0.

    Args:
        values: s finite values, one per seed, s >= 1.

    Raises:
        ValueError: no value, or one that is NaN or infinite.

    Example:
        >>> seed_spread([0.5, 1.0]).mean
        0.75
    """
    if not values or not all(math.isfinite(value) for value in values):
        raise ValueError(f"a spread needs finite values of at least one seed, found {list(values)}")
    mean = statistics.mean(values)
    if len(values) == 1:
        return SeedSpread(mean, None, None, None)
    sd = statistics.stdev(values)
    half = float(stdtrit(len(values) - 1, (1 + _CONFIDENCE) / 2)) * sd / math.sqrt(len(values))
    return SeedSpread(mean, sd, mean - half, mean + half)


def seed_aggregates(records: pl.DataFrame, seeds: Sequence[int]) -> pl.DataFrame:
    """Return the seed aggregates of one cell (protocol page, section 5).

    A metric is aggregated only where every seed has it; else all its columns are NULL. ``reason`` is the seeds'
    reason where all of them give the same one, and ``missing_seed`` where some metric is defined for a part of the
    seeds only, or macro AUROC for none and the reasons differ. A metric that no seed has (kappa of an unordered
    dataset) is NULL without a reason of its own, as in the records.

    Args:
        records: run records of one cell, unique by seed, label fraction and condition. An empty frame gives an empty
            frame; a (fraction, condition) that no record mentions gives no row.
        seeds: the protocol's seeds.

    Returns:
        One row per (label_fraction, condition_id), sorted, with the computed columns of ``seed_aggregates``. Bounds
        over test groups are means over the seeds of the records' bounds.

    Raises:
        ValueError: a NaN, a repeated record, a seed outside ``seeds``, or records of one condition that differ in
            their number of test images.
    """
    check_records(records, ("seed", "label_fraction", "condition_id"), seeds)
    schema = TABLES["seed_aggregates"].computed_schema()
    metrics = [name.removesuffix("_mean") for name in schema if name.endswith("_mean")]
    groups: dict[tuple[float, str], dict[int, dict[str, Any]]] = {}
    for record in records.iter_rows(named=True):
        groups.setdefault((record["label_fraction"], record["condition_id"]), {})[record["seed"]] = record
    rows = []
    for (fraction, condition), by_seed in sorted(groups.items()):
        of_seeds = [by_seed.get(seed, {}) for seed in seeds]
        row: dict[str, Any] = {
            "label_fraction": fraction,
            "condition_id": condition,
            "n_seeds": sum(record.get("macro_auroc") is not None for record in of_seeds),
            "n": _number_of_images(by_seed, fraction, condition),
            "reason": _reason(of_seeds, metrics),
            "interval_reason": _interval_reason(of_seeds),
        }
        for metric in metrics:
            values = _complete(of_seeds, metric)
            if values is not None:
                spread = seed_spread(values)
                row[f"{metric}_mean"], row[f"{metric}_sd"] = spread.mean, spread.sd
                row[f"{metric}_ci_seed_low"], row[f"{metric}_ci_seed_high"] = spread.ci_low, spread.ci_high
        for bound in _TEST_BOUNDS:
            values = _complete(of_seeds, bound)
            row[bound.replace("_ci_", "_ci_test_")] = None if values is None else statistics.mean(values)
        rows.append({name: row.get(name) for name in schema})
    return pl.DataFrame(rows, schema=schema)


def check_records(frame: pl.DataFrame, key: Sequence[str], seeds: Collection[int]) -> None:
    """Refuse rows from which an aggregate would be silently wrong.

    Raises:
        ValueError: a NaN, a repeated key, or a seed outside ``seeds``.
    """
    floats = frame.select(cs.float())
    nan = [name for name in floats.columns if floats.get_column(name).is_nan().any()]
    if nan:
        raise ValueError(f"NaN in {', '.join(nan)}: an undefined value is null with a reason")
    if frame.select(key).is_duplicated().any():
        raise ValueError(f"rows repeat a key of {', '.join(key)}: rows of one cell are unique by it")
    unknown = sorted(set(frame.get_column("seed").unique()) - set(seeds))
    if unknown:
        raise ValueError(f"rows of the seeds {unknown}, which are not among the protocol's {sorted(seeds)}")


def _complete(of_seeds: Sequence[dict[str, Any]], name: str) -> list[float] | None:
    values = [record.get(name) for record in of_seeds]
    defined = [value for value in values if value is not None]
    return defined if len(defined) == len(values) else None


def _number_of_images(by_seed: dict[int, dict[str, Any]], fraction: float, condition: str) -> int:
    counts = {record["n"] for record in by_seed.values()}
    if len(counts) > 1:
        # No seed moves the test set, so these records were measured on two of them.
        raise ValueError(
            f"records at {fraction} on {condition} count {sorted(counts)} test images, expected one number"
        )
    return int(counts.pop())


def _reason(of_seeds: Sequence[dict[str, Any]], metrics: Sequence[str]) -> str | None:
    reasons = {record.get("reason") for record in of_seeds}
    if len(reasons) == 1 and None not in reasons:
        return str(reasons.pop())
    n_defined = {metric: sum(record.get(metric) is not None for record in of_seeds) for metric in metrics}
    is_partial = any(0 < n < len(of_seeds) for n in n_defined.values())
    return "missing_seed" if is_partial or n_defined["macro_auroc"] == 0 else None


def _interval_reason(of_seeds: Sequence[dict[str, Any]]) -> str | None:
    """Return why a bound over test groups is NULL that the records were to have; records below all labels have none."""
    if all(_complete(of_seeds, bound) is not None for bound in _TEST_BOUNDS):
        return None
    reasons = {record.get("interval_reason") for record in of_seeds} - {None}
    return None if not reasons else str(reasons.pop()) if len(reasons) == 1 else "missing_seed"
