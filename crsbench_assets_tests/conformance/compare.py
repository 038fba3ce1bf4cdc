"""Holds the tables of a whole home against ``plain``.

What lives here: the recomputation of macros, axes, anchors, cell scores and scores from the rows each rests on, and
the largest deviation per table. What stays out: the formulas (``plain``); logits, which the tiny benchmark covers; the
sensitivity variants of axes, intervals and rank intervals.
Source: protocol page, sections 5 to 7.

Every table is recomputed from stored rows of the table before it, so a deviation names the table that causes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from crsbench_assets_tests.conformance import plain

CONFORMANCE_TABLES = (
    "run_records",
    "label_metrics",
    "cell_axes",
    "reference_panels",
    "cell_scores",
    "crs_scores",
    "encoders",
)
"""Tables that :func:`check_home` reads."""

SCORE_KEYS = {
    "reference_panels": ["dataset_id", "axis"],
    "cell_scores": ["encoder_id", "dataset_id", "axis"],
    "crs_scores": ["encoder_id"],
}
"""Score table -> columns that name a row of one panel."""
AXIS_KEY = ["encoder_id", "dataset_id", "axis", "variant"]
SEED_KEY = [*AXIS_KEY, "seed"]

Rows = list[dict[str, Any]]


def deviation(right: float | None, found: float | None) -> float:
    """Return |right - found|; 0 where both are undefined, infinite where one is or where one is NaN."""
    if right is None or found is None:
        return 0.0 if right is None and found is None else math.inf
    return math.inf if math.isnan(right) or math.isnan(found) else abs(right - found)


def largest_deviation(right: Iterable[Mapping[str, Any]], found: Iterable[Mapping[str, Any]], key: list[str]) -> float:
    """Return the largest deviation over all numbers of the right rows; infinite where the keys or texts differ.

    Args:
        right: rows; every column beside the key is compared.
        found: rows with at least these columns.
        key: columns that name a row.

    Raises:
        ValueError: there is no right row, so nothing would be compared, or a key stands twice.
    """
    of_key, found_of_key = _by_key(right, key), _by_key(found, key)
    if not of_key:
        raise ValueError(f"found no row to compare by {', '.join(key)}, expected at least one.")
    if of_key.keys() != found_of_key.keys():
        return math.inf
    largest = 0.0
    for one, row in of_key.items():
        for name, value in row.items():
            if isinstance(value, str) or isinstance(found_of_key[one][name], str):
                largest = max(largest, 0.0 if value == found_of_key[one][name] else math.inf)
            else:
                largest = max(largest, deviation(value, found_of_key[one][name]))
    return largest


def _by_key(rows: Iterable[Mapping[str, Any]], key: list[str]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    by_key: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        one = tuple(row[name] for name in key)
        if one in by_key:
            raise ValueError(f"found two rows of {', '.join(key)} {one}, expected one.")
        by_key[one] = row
    return by_key


def check_home(frames: Mapping[str, pl.DataFrame], grid: plain.Grid = plain.CRS_1) -> dict[str, float]:
    """Return table -> largest absolute deviation of the stored rows from the plain answers.

    Expects panels as the lake stands: for a frozen panel, a home whose members were not recomputed since. Panels of
    status ``panel_mismatch`` have no score and are left out. Applicability is that of ``cell_scores``, which has rows
    for every applicable cell.

    Args:
        frames: all rows of :data:`CONFORMANCE_TABLES`.
        grid: seeds, fractions, corruptions and shift weight of the home's protocol.

    Returns:
        One entry for each of ``run_records`` (macro AUROC, classwise ECE, number of defined labels), ``cell_axes``
        (primary, and robustness under corruptions only), ``cell_axes.seed_values``, ``reference_panels``,
        ``cell_scores`` and ``crs_scores``; infinite where a row or a value
        is missing or surplus.

    Raises:
        ValueError: a table without any row to compare.
    """
    runs, labels = _by_cell(frames["run_records"]), _by_cell(frames["label_metrics"])
    axes = frames["cell_axes"].to_dicts()
    largest = {
        "run_records": max((_check_macros(runs[cell], labels.get(cell, [])) for cell in runs), default=math.inf),
        **_check_axes(runs, labels, axes, grid),
        **dict.fromkeys(SCORE_KEYS, 0.0),
    }
    scored = [row for row in frames["crs_scores"].to_dicts() if row["status"] != "panel_mismatch"]
    panel_ids = sorted({row["panel_id"] for row in scored})
    if not panel_ids:
        raise ValueError("found no panel with scores, expected at least one: compute the home's scores first.")
    candidates = {
        row["encoder_id"]
        for row in frames["encoders"].to_dicts()
        if row["role"] == "candidate" and not row["is_retired"]
    }
    for panel_id in panel_ids:
        of_panel = {name: frames[name].filter(pl.col("panel_id") == panel_id).to_dicts() for name in SCORE_KEYS}
        for table, value in _check_panel(panel_id, of_panel, axes, candidates).items():
            largest[table] = max(largest[table], value)
    return largest


def _by_cell(frame: pl.DataFrame) -> dict[plain.Cell, Rows]:
    cells: dict[plain.Cell, Rows] = {}
    for row in frame.iter_rows(named=True):
        cells.setdefault((row["encoder_id"], row["dataset_id"]), []).append(row)
    return cells


def _check_macros(runs: Rows, labels: Rows) -> float:
    key = ["seed", "label_fraction", "condition_id"]
    of_record: dict[tuple[Any, ...], Rows] = {tuple(run[name] for name in key): [] for run in runs}
    for label in labels:
        of_record.setdefault(tuple(label[name] for name in key), []).append(label)
    right = [
        {
            **dict(zip(key, record, strict=True)),
            "macro_auroc": plain.mean(label["auroc"] for label in of_labels),
            "classwise_ece": plain.mean(label["ece"] for label in of_labels),
            "n_defined_auroc": sum(label["auroc"] is not None for label in of_labels),
        }
        for record, of_labels in of_record.items()
    ]
    return largest_deviation(right, runs, key)


def _check_axes(
    runs: Mapping[plain.Cell, Rows], labels: Mapping[plain.Cell, Rows], axes: Rows, grid: plain.Grid
) -> dict[str, float]:
    shifts: dict[str, str] = {}
    for (_, dataset), of_cell in runs.items():
        for run in of_cell:
            if run["condition_id"].startswith("shift_"):
                shifts[dataset] = run["condition_id"]
    right: Rows = []
    for (encoder, dataset), of_cell in runs.items():
        found = plain.cell_axes(of_cell, labels.get((encoder, dataset), []), grid=grid, shift=shifts.get(dataset))
        for (axis, variant), (value, seed_values) in found.items():
            key = {"encoder_id": encoder, "dataset_id": dataset, "axis": axis, "variant": variant}
            right.append({**key, "value": value, "seed_values": seed_values})
    compared = {(row["axis"], row["variant"]) for row in right}
    stored = [row for row in axes if (row["axis"], row["variant"]) in compared]
    return {
        "cell_axes": largest_deviation(without_seed_values(right), stored, AXIS_KEY),
        "cell_axes.seed_values": largest_deviation(seed_rows(right, grid), seed_rows(stored, grid), SEED_KEY),
    }


def without_seed_values(axes: Rows) -> Rows:
    """Return rows of ``cell_axes`` with the mean over the seeds alone."""
    return [{name: value for name, value in row.items() if name != "seed_values"} for row in axes]


def seed_rows(axes: Rows, grid: plain.Grid) -> Rows:
    """Return one row per row of ``cell_axes`` and seed."""
    return [
        {**{name: row[name] for name in AXIS_KEY}, "seed": seed, "value": value}
        for row in axes
        for seed, value in zip(grid.seeds, row["seed_values"], strict=True)
    ]


def _check_panel(panel_id: str, of_panel: Mapping[str, Rows], axes: Rows, candidates: set[str]) -> dict[str, float]:
    (variant,) = {row["robustness_variant"] for row in of_panel["reference_panels"]}
    cells = plain.complete_cells(axes, "primary" if variant == "shift" else variant)
    applicable = {(row["encoder_id"], row["dataset_id"]) for row in of_panel["cell_scores"]}
    members = {row["encoder_id"] for row in of_panel["crs_scores"] if row["is_member"]}
    complete = {e for e, _ in applicable} - {e for e, dataset in applicable if (e, dataset) not in cells}
    # A frozen panel may be without candidates that came later; a control or an incomplete encoder is in none.
    may_be_members = complete & candidates
    if not members <= may_be_members or (panel_id == "provisional" and members != may_be_members):
        return dict.fromkeys(SCORE_KEYS, math.inf)

    right = plain.score_tables({cell: cells[cell] for cell in applicable & cells.keys()}, applicable, members)
    return {
        table: largest_deviation(right[table], [row for row in of_panel[table] if row.get("status", "ok") == "ok"], key)
        for table, key in SCORE_KEYS.items()
    }
