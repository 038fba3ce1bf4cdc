"""How much of the miscalibration a post-hoc map repairs, and at what price in discrimination.

What lives here: the rows of ``calibration_repair``. What stays out: fitting and accepting the maps (``probes``), whose
records are summarised here beside those of the same probes before.
Source: protocol page, section 8.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable
from typing import Any

import polars as pl

from crsbench_assets.analyses.population import analysis_frame

PRIMARY_CELLS = frozenset(
    (encoder, dataset)
    for encoder in ("dinov2_vit_l14", "medsiglip")
    for dataset in ("isic2019", "aptos2019", "chexpert")
)
"""The six tests declared before any result; an id never changes which encoder or dataset it names."""

_UNIT = ("encoder_id", "dataset_id", "method", "condition_id")


def calibration_repair(calibrated_records: pl.DataFrame, run_records: pl.DataFrame) -> pl.DataFrame:
    """Return calibration before and after repair, clean and under shift; probes on all labels, means over the seeds.

    ``relative_reduction`` is (before - after) / before of the two means, at most 1, negative where the repair does
    harm. A seed whose repair was refused counts with the identity.

    Args:
        calibrated_records: rows of the table of any cells.
        run_records: encoder_id, dataset_id, seed, label_fraction, condition_id, ece, macro_auroc, reason.

    Returns:
        One row per cell, method and condition of ``calibrated_records``, sorted by these; a cell that was not
        calibrated has none, and the table ``cells`` says why. A number is NULL where a
        seed lacks it: with the reason that all its records share, ``incomplete`` where the record before is not there,
        else ``missing_seed``. ``undefined_term`` where the ECE before is 0. ``n_seeds`` have both ECEs.
    """
    before = run_records.filter(pl.col("label_fraction") == 1.0).select(
        "encoder_id",
        "dataset_id",
        "seed",
        "condition_id",
        ece_before="ece",
        auroc_before="macro_auroc",
        reason_before=pl.col("reason").fill_null("undefined_term"),
    )
    joined = calibrated_records.join(
        before, on=["encoder_id", "dataset_id", "seed", "condition_id"], how="left"
    ).with_columns(pl.col("reason_before").fill_null("incomplete"))
    parts = joined.sort(*_UNIT, "seed").partition_by(_UNIT, as_dict=True)
    rows = []
    for key, part in parts.items():
        row = dict(zip(_UNIT, key, strict=True))
        row["is_primary"] = (row["encoder_id"], row["dataset_id"]) in PRIMARY_CELLS
        rows.append(row | _row(list(part.iter_rows(named=True))))
    return analysis_frame("calibration_repair", rows)


def _row(records: Collection[dict[str, Any]]) -> dict[str, Any]:
    """Return the summary of one unit's records, one per seed."""
    before, after = (_mean(record[name] for record in records) for name in ("ece_before", "ece"))
    floor = _mean(record["ece_floor_p95"] for record in records)
    gains = [
        None
        if None in (record["macro_auroc"], record["auroc_before"])
        else record["macro_auroc"] - record["auroc_before"]
        for record in records
    ]
    refused = [record["refusal_reason"] for record in records if not record["is_accepted"]]
    row = {
        "n_seeds": sum(None not in (record["ece_before"], record["ece"]) for record in records),
        "n_seeds_accepted": len(records) - len(refused),
        "n_seeds_no_gain": refused.count("no_gain"),
        "n_seeds_at_bound": refused.count("at_bound"),
        "ece_before": before,
        "ece_after": after,
        "ece_floor_p95": floor,
        "delta_auroc": _mean(gains),
    }
    if before and after is not None:
        row["relative_reduction"] = (before - after) / before
    return row | {"reason": _reason(records, row)}


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean over the seeds, None where a seed has no value."""
    known = list(values)
    return None if None in known else statistics.fmean(value for value in known if value is not None)


def _reason(records: Collection[dict[str, Any]], row: dict[str, Any]) -> str | None:
    """Return why a number of the row is None."""
    lacking = [
        record["reason_before"] if None in (record["ece_before"], record["auroc_before"]) else record["reason"]
        for record in records
        if None in [record[name] for name in ("ece_before", "auroc_before", "ece", "macro_auroc", "ece_floor_p95")]
    ]
    if lacking:
        shared = set(lacking)
        return (lacking[0] or "undefined_term") if len(shared) == 1 and len(lacking) == len(records) else "missing_seed"
    return "undefined_term" if row["ece_before"] == 0 else None
