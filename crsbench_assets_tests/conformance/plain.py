"""The axes and the score a second time, in plain Python, to check the first.

What lives here: AUROC by counting pairs, ECE by walking through bins, the four axes of a cell, anchors, profiles and
CRS, written from the protocol page alone: no array library, no import from the package, one loop per formula.
What stays out: the implementation that users run (``crsbench_assets.metrics``, ``aggregates``, ``scores``); the
comparison of the two (``compare``, ``test_conformance``); intervals and replicates.
Source: protocol page, sections 5 (macro, ECE, undefined values), 6 and 7. An undefined value is None.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

AXES = ("discrimination", "calibration", "label_efficiency", "robustness")
N_BINS = 15
EDGE_TOLERANCE = 2.0**-25
"""How far above an edge a probability still lies on it: what storing logits as float32 may move it by."""
DEGENERATE_RANGE = 1e-12
WEIGHTS = {"pareto": 0.5, "balance": 0.3, "worst": 0.2}

Row = Mapping[str, Any]
Cell = tuple[str, str]
"""Encoder and dataset."""
AxisValues = Mapping[str, float]


class Grid(NamedTuple):
    """What a cell's axes are taken over."""

    seeds: tuple[int, ...]
    label_fractions: tuple[float, ...]
    corruptions: tuple[str, ...]
    shift_weight: float


CRS_1 = Grid(
    seeds=(0, 1, 2, 3, 4),
    label_fractions=(0.01, 0.05, 0.1, 0.25, 1.0),
    corruptions=tuple(
        f"{kind}-s{severity}"
        for kind in ("gaussian_noise", "blur", "brightness", "contrast", "jpeg")
        for severity in (1, 3, 5)
    ),
    shift_weight=0.5,
)
"""The grid of the protocol ``crs-1`` (protocol page, sections 1 and 3)."""


# --- section 5: metrics of one record ------------------------------------------------------------------------------


def softmax(logits: Sequence[float | None]) -> list[float | None]:
    """Return the class probabilities of one image; None where the class was not fitted.

    >>> softmax([0.0, None, 0.0])
    [0.5, None, 0.5]
    """
    top = max(logit for logit in logits if logit is not None)
    odds = [None if logit is None else math.exp(logit - top) for logit in logits]
    total = math.fsum(odd for odd in odds if odd is not None)
    return [None if odd is None else odd / total for odd in odds]


def sigmoid(logit: float) -> float:
    """Return the probability of one independent unit."""
    return 1.0 / (1.0 + math.exp(-logit)) if logit >= 0.0 else math.exp(logit) / (1.0 + math.exp(logit))


def auroc(scores: Sequence[float], labels: Sequence[int]) -> float | None:
    """Return the share of (positive, negative) pairs in order, a tie counting 1/2; None without a pair.

    >>> auroc([-1.0, 0.0, 1.0], [1, 0, 1])
    0.5
    """
    positives = [score for score, label in zip(scores, labels, strict=True) if label == 1]
    negatives = [score for score, label in zip(scores, labels, strict=True) if label == 0]
    if not positives or not negatives:
        return None
    # Counted in half pairs, so that the count is a whole number and the share is rounded once.
    half_pairs = sum(2 * (high > low) + (high == low) for high in positives for low in negatives)
    return half_pairs / (2 * len(positives) * len(negatives))


def expected_calibration_error(probabilities: Sequence[float], outcomes: Sequence[int]) -> float | None:
    """Return the ECE over 15 bins (b/15, (b+1)/15], zero in the first; None without an image.

    The sum over bins of (images in bin / images) |mean probability - observed frequency|.

    >>> expected_calibration_error([1.0, 0.0], [0, 0])
    0.5
    """
    if not probabilities:
        return None
    bins: list[list[float]] = [[] for _ in range(N_BINS)]
    for probability, outcome in zip(probabilities, outcomes, strict=True):
        number = 0
        while probability > (number + 1) / N_BINS + EDGE_TOLERANCE:
            number += 1
        bins[number].append(probability - outcome)
    return math.fsum(abs(math.fsum(gaps)) for gaps in bins) / len(probabilities)


def measured(
    logits: Sequence[Sequence[float | None]], labels: Sequence[Sequence[int | None]], *, is_multi_label: bool
) -> dict[str, Any]:
    """Return macro AUROC, ECE and the AUROC and ECE of every class of one record.

    Args:
        logits: per image, one logit per class; None in every image where the class was not fitted.
        labels: per image, one of 1, 0, None (unknown) per class.
        is_multi_label: independent units (AUROC on logits, ECE a macro mean), else softmax (ECE of the top label;
            AUROC on probabilities, with two classes on the difference of their logits).

    Returns:
        ``macro_auroc``, ``ece``, ``n_defined_auroc``, and lists ``auroc`` and ``label_ece`` in class order.
    """
    probabilities = [
        [None if logit is None else sigmoid(logit) for logit in row] if is_multi_label else softmax(row)
        for row in logits
    ]
    scores: Sequence[Sequence[float | None]] = logits if is_multi_label else probabilities
    if not is_multi_label and len(labels[0]) == 2:
        scores = [_logit_differences(row) for row in logits]
    aurocs: list[float | None] = []
    eces: list[float | None] = []
    for k in range(len(labels[0])):
        known_scores, known_probabilities, known_labels = [], [], []
        for row, probability, label in zip(scores, probabilities, labels, strict=True):
            s_k, p_k, y_k = row[k], probability[k], label[k]
            if s_k is not None and p_k is not None and y_k is not None:
                known_scores.append(s_k)
                known_probabilities.append(p_k)
                known_labels.append(y_k)
        aurocs.append(auroc(known_scores, known_labels))
        eces.append(expected_calibration_error(known_probabilities, known_labels))
    if is_multi_label:
        ece = mean(eces)
    else:
        confidences, hits = [], []
        for row, label in zip(probabilities, labels, strict=True):
            confidence = max(p for p in row if p is not None)
            confidences.append(confidence)
            hits.append(int(label[row.index(confidence)] == 1))
        ece = expected_calibration_error(confidences, hits)
    return {
        "macro_auroc": mean(aurocs),
        "ece": ece,
        "n_defined_auroc": sum(value is not None for value in aurocs),
        "auroc": aurocs,
        "label_ece": eces,
    }


def _logit_differences(row: Sequence[float | None]) -> list[float | None]:
    one, other = row
    return [None, None] if one is None or other is None else [one - other, other - one]


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean over the defined values; None where none is.

    >>> mean([1.0, None, 0.5])
    0.75
    """
    defined = [value for value in values if value is not None]
    return fmean(defined) if defined else None


def mean_of_all(values: Sequence[float | None]) -> float | None:
    """Return the mean; None where one value is undefined or there is none."""
    return None if any(value is None for value in values) else mean(values)


# --- section 6: the four axes of a cell ----------------------------------------------------------------------------


class AxisValue(NamedTuple):
    """Mean over the seeds, and the value of every seed in order."""

    value: float | None
    seed_values: list[float | None]


def macro_ratio(numerator: Mapping[str, float], denominator: Mapping[str, float]) -> float | None:
    """Return macro / macro, both over the labels defined in both; None without such a label or at 0.

    >>> macro_ratio({"a": 0.5, "b": 0.9}, {"a": 1.0})
    0.5
    """
    common = sorted(numerator.keys() & denominator.keys())
    if not common:
        return None
    below = fmean(denominator[label] for label in common)
    return fmean(numerator[label] for label in common) / below if below > 0.0 else None


def seed_axes(
    records: Mapping[tuple[float, str], Row],
    label_aurocs: Mapping[tuple[float, str], Mapping[str, float]],
    *,
    feasible: Collection[float],
    corruptions: Sequence[str],
    shift: str | None,
    shift_weight: float,
) -> dict[tuple[str, str], float | None]:
    """Return (axis, variant) -> value of one cell and seed.

    Args:
        records: (fraction, condition) -> run record.
        label_aurocs: (fraction, condition) -> defined AUROC of every class.
        feasible: label fractions below 1 that the dataset has images for.
        corruptions: corrupted conditions, equally weighted.
        shift: shift condition of the dataset, None where it has none.
        shift_weight: weight of the shift in the primary robustness.
    """
    clean = label_aurocs.get((1.0, "clean"), {})
    record = records.get((1.0, "clean"), {})
    ece = record.get("ece")

    def drop(condition: str) -> float | None:
        kept = macro_ratio(label_aurocs.get((1.0, condition), {}), clean)
        return None if kept is None else 1.0 - kept

    corruption_drop = mean_of_all([drop(condition) for condition in corruptions])
    corruption_only = None if corruption_drop is None else 1.0 - corruption_drop
    robustness = corruption_only
    if shift is not None:
        shift_drop = drop(shift)
        robustness = (
            None
            if corruption_drop is None or shift_drop is None
            else 1.0 - ((1.0 - shift_weight) * corruption_drop + shift_weight * shift_drop)
        )
    return {
        ("discrimination", "primary"): record.get("macro_auroc"),
        ("calibration", "primary"): None if ece is None else 1.0 - ece,
        ("label_efficiency", "primary"): mean_of_all(
            [macro_ratio(label_aurocs.get((fraction, "clean"), {}), clean) for fraction in sorted(feasible)]
        ),
        ("robustness", "primary"): robustness,
        ("robustness", "corruption_only"): corruption_only,
    }


def cell_axes(
    run_records: Iterable[Row], label_metrics: Iterable[Row], *, grid: Grid, shift: str | None
) -> dict[tuple[str, str], AxisValue]:
    """Return (axis, variant) -> mean over the seeds of one cell, None where a seed has no value, and the seeds'.

    Args:
        run_records: rows of one cell.
        label_metrics: rows of the same cell.
        grid: seeds, fractions and corruptions the cell should have.
        shift: shift condition of the dataset, None where it has none.
    """
    records: dict[int, dict[tuple[float, str], Row]] = {seed: {} for seed in grid.seeds}
    aurocs: dict[int, dict[tuple[float, str], dict[str, float]]] = {seed: {} for seed in grid.seeds}
    infeasible = set()
    for row in run_records:
        records[row["seed"]][row["label_fraction"], row["condition_id"]] = row
        if row.get("reason") == "infeasible_fraction":  # a property of the dataset's fraction, hence of every seed
            infeasible.add(row["label_fraction"])
    for row in label_metrics:
        if row["auroc"] is not None:
            key = row["label_fraction"], row["condition_id"]
            aurocs[row["seed"]].setdefault(key, {})[row["class_name"]] = row["auroc"]
    feasible = [f for f in grid.label_fractions if f < 1.0 and f not in infeasible]
    per_seed = [
        seed_axes(
            records[seed],
            aurocs[seed],
            feasible=feasible,
            corruptions=grid.corruptions,
            shift=shift,
            shift_weight=grid.shift_weight,
        )
        for seed in grid.seeds
    ]
    seed_values = {key: [values[key] for values in per_seed] for key in per_seed[0]}
    return {key: AxisValue(mean_of_all(values), values) for key, values in seed_values.items()}


# --- section 7: panel and score ------------------------------------------------------------------------------------


class Anchor(NamedTuple):
    """Range of the members on one dataset and axis; the first of equal holders in id order."""

    low: float
    high: float
    low_encoder_id: str
    high_encoder_id: str
    n_members: int


class Score(NamedTuple):
    """CRS and its parts."""

    crs: float
    pareto: float
    balance: float
    worst: float


def anchors(cells: Mapping[Cell, AxisValues], members: Collection[str]) -> dict[tuple[str, str], Anchor]:
    """Return (dataset, axis) -> smallest and largest value over the members that have the cell.

    Args:
        cells: (encoder, dataset) -> value per axis, cells with a result only.
        members: ids of the panel.
    """
    found: dict[tuple[str, str], Anchor] = {}
    for dataset in sorted({dataset for encoder, dataset in cells if encoder in members}):
        for axis in AXES:
            held = sorted((e, cells[e, d][axis]) for e, d in cells if d == dataset and e in members)
            low_encoder, low = min(held, key=lambda pair: pair[1])
            high_encoder, high = max(held, key=lambda pair: pair[1])
            found[dataset, axis] = Anchor(low, high, low_encoder, high_encoder, len(held))
    return found


def position(value: float, anchor: Anchor) -> float:
    """Return z_raw, where 0 is the low and 1 the high anchor; 0.5 for everyone where they agree."""
    if anchor.high - anchor.low <= DEGENERATE_RANGE:
        return 0.5
    return (value - anchor.low) / (anchor.high - anchor.low)


def clipped(value: float) -> float:
    """Return the value, at least 0 and at most 1."""
    return min(1.0, max(0.0, value))


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether ``one`` is nowhere below ``other`` and somewhere above."""
    pairs = list(zip(one, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def score(raw: Sequence[float], clipped_profile: Sequence[float], members_raw: Sequence[Sequence[float]]) -> Score:
    """Return CRS = 0.5 P + 0.3 B + 0.2 W of one profile.

    Args:
        raw: unclipped profile, in the order of :data:`AXES`; it decides dominance.
        clipped_profile: clipped profile; it decides balance and worst axis.
        members_raw: unclipped profiles of all members, with or without the scored one.
    """
    above = sum(dominates(raw, member) for member in members_raw)
    below = sum(dominates(member, raw) for member in members_raw)
    pareto = 0.5 * (1.0 + (above - below) / len(members_raw))
    balance = 1.0 - math.sqrt(fmean((1.0 - x) ** 2 for x in clipped_profile))
    worst = min(clipped_profile)
    crs = WEIGHTS["pareto"] * pareto + WEIGHTS["balance"] * balance + WEIGHTS["worst"] * worst
    return Score(crs, pareto, balance, worst)


def cell_positions(
    cells: Mapping[Cell, AxisValues], found: Mapping[tuple[str, str], Anchor]
) -> dict[Cell, list[float]]:
    """Return (encoder, dataset) -> z_raw per axis, for the datasets that have anchors."""
    return {
        (encoder, dataset): [position(values[axis], found[dataset, axis]) for axis in AXES]
        for (encoder, dataset), values in cells.items()
        if (dataset, AXES[0]) in found
    }


def cell_scores(raw: Mapping[Cell, Sequence[float]], members: Collection[str]) -> dict[Cell, Score]:
    """Return (encoder, dataset) -> score of the cell, against the members that have it."""
    return {
        (encoder, dataset): score(
            profile,
            [clipped(z) for z in profile],
            [raw[e, d] for e, d in sorted(raw) if d == dataset and e in members],
        )
        for (encoder, dataset), profile in raw.items()
    }


def profiles(
    raw: Mapping[Cell, Sequence[float]], applicable: Collection[Cell], panel_datasets: Collection[str]
) -> dict[str, tuple[list[float], list[float], int]]:
    """Return encoder -> x_raw, x and number of datasets, for the complete encoders.

    Args:
        raw: z_raw of every cell with a result.
        applicable: cells that the grid asks for.
        panel_datasets: datasets that have anchors.
    """
    found = {}
    for encoder in sorted({encoder for encoder, _ in applicable}):
        datasets = sorted(dataset for e, dataset in applicable if e == encoder and dataset in panel_datasets)
        if not datasets or any((encoder, dataset) not in raw for dataset in datasets):
            continue
        rows = [raw[encoder, dataset] for dataset in datasets]
        x_raw = [fmean(row[k] for row in rows) for k in range(len(AXES))]
        x = [fmean(clipped(row[k]) for row in rows) for k in range(len(AXES))]
        found[encoder] = (x_raw, x, len(datasets))
    return found


def encoder_scores(
    found: Mapping[str, tuple[Sequence[float], Sequence[float], int]], members: Collection[str]
) -> dict[str, Score]:
    """Return encoder -> score of its profile against the members' profiles."""
    members_raw = [found[member][0] for member in sorted(members)]
    return {encoder: score(x_raw, x, members_raw) for encoder, (x_raw, x, _) in found.items()}


def panel_ranks(crs: Mapping[str, float], members: Collection[str]) -> dict[str, int]:
    """Return encoder -> 1 + number of members that score higher; no other encoder moves it."""
    return {encoder: 1 + sum(crs[member] > own for member in members) for encoder, own in crs.items()}


def competition_ranks(crs: Mapping[str, float]) -> dict[str, int]:
    """Return encoder -> 1 + number of encoders that score higher.

    >>> competition_ranks({"a": 0.5, "b": 0.7, "c": 0.5})
    {'a': 2, 'b': 1, 'c': 2}
    """
    return {encoder: 1 + sum(other > own for other in crs.values()) for encoder, own in crs.items()}


# --- rows of tables ------------------------------------------------------------------------------------------------


def complete_cells(axes: Iterable[Row], robustness_variant: str) -> dict[Cell, dict[str, float]]:
    """Return (encoder, dataset) -> value per axis, for the cells that have all four.

    Args:
        axes: rows of ``cell_axes``.
        robustness_variant: ``primary``, or ``corruption_only`` where a panel goes without the shift target.
    """
    cells: dict[Cell, dict[str, float]] = {}
    for row in axes:
        wanted = robustness_variant if row["axis"] == "robustness" else "primary"
        if row["variant"] == wanted and row["value"] is not None:
            cells.setdefault((row["encoder_id"], row["dataset_id"]), {})[row["axis"]] = row["value"]
    return {cell: of_axes for cell, of_axes in cells.items() if len(of_axes) == len(AXES)}


def score_tables(
    cells: Mapping[Cell, AxisValues], applicable: Collection[Cell], members: Collection[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of ``reference_panels``, ``cell_scores`` and ``crs_scores`` that have a score.

    Args:
        cells: the complete cells.
        applicable: cells that the grid asks for.
        members: ids of the panel.
    """
    found = anchors(cells, members)
    raw = cell_positions(cells, found)
    of_cells = cell_scores(raw, members)
    of_profiles = profiles(raw, applicable, {dataset for dataset, _ in found})
    of_encoders = encoder_scores(of_profiles, members)
    ranks = panel_ranks({encoder: own.crs for encoder, own in of_encoders.items()}, members)
    return {
        "reference_panels": [
            {
                "dataset_id": dataset,
                "axis": axis,
                "anchor_low": anchor.low,
                "anchor_high": anchor.high,
                "low_encoder_id": anchor.low_encoder_id,
                "high_encoder_id": anchor.high_encoder_id,
                "n_members": anchor.n_members,
            }
            for (dataset, axis), anchor in found.items()
        ],
        "cell_scores": [
            {
                "encoder_id": encoder,
                "dataset_id": dataset,
                "axis": axis,
                "z_raw": raw[encoder, dataset][k],
                "z": clipped(raw[encoder, dataset][k]),
                **of_cells[encoder, dataset]._asdict(),
            }
            for encoder, dataset in sorted(raw)
            for k, axis in enumerate(AXES)
        ],
        "crs_scores": [
            {
                "encoder_id": encoder,
                **own._asdict(),
                **{f"x_{axis}": of_profiles[encoder][1][k] for k, axis in enumerate(AXES)},
                "rank_panel": ranks[encoder],
                "n_datasets": of_profiles[encoder][2],
            }
            for encoder, own in of_encoders.items()
        ],
    }
