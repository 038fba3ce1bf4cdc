"""Many panels at once: the score of a whole cohort under replicates, subsets and other values.

What lives here: a panel's members in arrays, anchors of any values, and the score of all encoders of every replicate
in one pass. What stays out: the score of one encoder that is published (``scores.crs``; the same numbers, but for the
rounding of its means), and what the replicates are (``analyses``). Source: protocol page, sections 7 and 8.

Shapes: b replicates, m encoders, d datasets, k axes. An encoder without a cell on a dataset has NaN there, in every
replicate. Sums run in the order of the datasets, so equal encoders have equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crsbench_assets.config.protocol import AXES, ScoreRules
from crsbench_assets.scores.components import (
    balance,
    clinical_reliability_score,
    worst_axis,
    z_scores,
)
from crsbench_assets.scores.panel import Panel

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cohort:
    """Encoders with their cells on the datasets of a panel.

    Attributes:
        encoders: m ids, sorted.
        datasets: d ids, sorted.
        values: axis values (m, d, k), NaN where the encoder has no cell.
    """

    encoders: tuple[str, ...]
    datasets: tuple[str, ...]
    values: Floats


@dataclass(frozen=True)
class Scores:
    """Scores of b replicates of m encoders, as :mod:`crsbench_assets.scores.components` defines them.

    Attributes:
        x_raw: unclipped profiles (b, m, k).
        x: clipped profiles (b, m, k).
        pareto: (b, m).
        balance: (b, m).
        worst: (b, m).
        crs: (b, m).
    """

    x_raw: Floats
    x: Floats
    pareto: Floats
    balance: Floats
    worst: Floats
    crs: Floats


def members_of(panel: Panel) -> Cohort:
    """Return the members of a panel with the values that they were frozen with."""
    values = np.full((len(panel.members), len(panel.datasets), len(AXES)), np.nan)
    row = {member: i for i, member in enumerate(panel.members)}
    for j, dataset in enumerate(panel.datasets):
        for member, of_cell in panel.values[dataset].items():
            values[row[member], j] = [of_cell[axis] for axis in AXES]
    return Cohort(panel.members, panel.datasets, values)


def frozen_anchors(panel: Panel) -> tuple[Floats, Floats]:
    """Return the low and high anchors (d, k) of a panel."""
    by_dataset = [[panel.anchors[dataset][axis] for axis in AXES] for dataset in panel.datasets]
    low = np.array([[anchor.low for anchor in row] for row in by_dataset])
    high = np.array([[anchor.high for anchor in row] for row in by_dataset])
    return low, high


def anchors_of(values: Floats) -> tuple[Floats, Floats]:
    """Return the low and high anchors (..., d, k) that some members would give.

    Args:
        values: axis values of the members (..., m, d, k), NaN where a member has no cell. A dataset without any cell
            has NaN anchors and moves no score.
    """
    is_there = ~np.isnan(values)
    low = np.where(is_there, values, np.inf).min(axis=-3)
    high = np.where(is_there, values, -np.inf).max(axis=-3)
    is_empty = ~is_there.any(axis=-3)
    return np.where(is_empty, np.nan, low), np.where(is_empty, np.nan, high)


def score_ensemble(
    values: Floats, low: Floats, high: Floats, rules: ScoreRules, is_member: NDArray[np.bool_] | None = None
) -> Scores:
    """Return the scores of all encoders in every replicate.

    Args:
        values: axis values (b, m, d, k), NaN where an encoder has no cell; every encoder has one somewhere.
        low: low anchors (d, k), or (b, d, k) where they differ between replicates.
        high: high anchors, likewise.
        rules: weights of the score.
        is_member: which encoders (m,) the others are compared with for P, in the same replicate; None: all.

    Returns:
        Scores of shapes (b, m) and (b, m, k), larger is better.

    Raises:
        ValueError: an encoder without any cell, or a cell with some axes only.
    """
    has_cell = ~np.isnan(values[0, :, :, 0])
    if not has_cell.any(axis=1).all() or (np.isnan(values) == has_cell[None, :, :, None]).any():
        raise ValueError("every encoder needs a cell, and every cell all axes in all replicates")
    b, m, d, k = values.shape
    total_raw, total = np.zeros((b, m, k)), np.zeros((b, m, k))
    for j in range(d):
        rows = has_cell[:, j]
        if not rows.any():
            continue
        bounds = [anchor[..., j, :] if anchor.ndim == 2 else anchor[:, None, j, :] for anchor in (low, high)]
        z_raw = z_scores(values[:, rows, j], *bounds, degenerate_range=rules.degenerate_range)
        total_raw[:, rows] += z_raw
        total[:, rows] += np.clip(z_raw, 0.0, 1.0)
    n_datasets = has_cell.sum(axis=1)[None, :, None]
    x_raw, x = total_raw / n_datasets, total / n_datasets
    pareto = pareto_scores(x_raw, is_member)
    balanced = balance(x, [rules.axis_weights[axis] for axis in AXES])
    worst = worst_axis(x)
    weights = [rules.dominance_weight, rules.balance_weight, rules.worst_weight]
    return Scores(x_raw, x, pareto, balanced, worst, clinical_reliability_score(pareto, balanced, worst, weights))


def dominance_of_pairs(x_raw: Floats) -> NDArray[np.bool_]:
    """Return for every ordered pair (b, m, m) of a replicate whether the first dominates the second.

    Args:
        x_raw: unclipped profiles (b, m, k).
    """
    b, m, k = x_raw.shape
    is_as_good = np.ones((b, m, m), dtype=bool)
    for axis in range(k):
        column = x_raw[:, :, axis]
        is_as_good &= column[:, :, None] >= column[:, None, :]
    # as good on all axes both ways is equal on all, and nothing else is
    return np.asarray(is_as_good & ~is_as_good.swapaxes(1, 2))


def pareto_scores(x_raw: Floats, is_member: NDArray[np.bool_] | None = None) -> Floats:
    """Return P (b, m) of every encoder against the members of its replicate (``components.pareto_score``).

    Args:
        x_raw: unclipped profiles (b, m, k).
        is_member: which encoders (m,) count; None: all.
    """
    is_dominating = dominance_of_pairs(x_raw)
    if is_member is not None:
        won, lost, n_members = is_dominating[:, :, is_member], is_dominating[:, is_member], int(is_member.sum())
    else:
        won, lost, n_members = is_dominating, is_dominating, x_raw.shape[1]
    return np.asarray(0.5 * (1 + (won.sum(axis=2) - lost.sum(axis=1)) / n_members))


def ranks_of_replicates(scores: Floats) -> NDArray[np.int64]:
    """Return competition ranks (b, m) of scores (b, m): 1 + the number of strictly larger ones."""
    return np.asarray(1 + (scores[:, None, :] > scores[:, :, None]).sum(axis=2), dtype=np.int64)


def top_shares(scores: Floats, k: int) -> Floats:
    """Return every encoder's share (b, m), in [0, 1], of the k first places: ties share the places that they tie for.

    Args:
        scores: (b, m), larger is better.
        k: number of places, 1 to m.

    Returns:
        Shares; those of a replicate sum to k.

    Example:
        >>> top_shares(np.array([[0.9, 0.5, 0.5, 0.1]]), 2).tolist()
        [[1.0, 0.5, 0.5, 0.0]]
    """
    n_better = ranks_of_replicates(scores) - 1
    n_tied = (scores[:, None, :] == scores[:, :, None]).sum(axis=2)
    return np.asarray(np.clip((k - n_better) / n_tied, 0.0, 1.0))
