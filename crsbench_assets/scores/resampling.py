"""Scores under resampled seeds, test groups, or both: what intervals of ranks, tie groups and dominance rest on.

What lives here: the axis values of every replicate, and the scores of all candidates in it. What stays out: the axes
under resampled test groups (``aggregates.replicates``), the score of many replicates (``scores.ensemble``), and what
is read off it (``scores.ranks``, ``analyses``).
Source: protocol page, sections 5, 7 and 8; Davison and Hinkley (1997), Bootstrap Methods and their Application,
sections 2.4 and 5.2. That the calibration axis is reflected, and what an absent member does, is ours.

In a replicate everything is redrawn that the resampling names, the same draw for all encoders, datasets and axes; P
compares with the members of the same replicate. A member that is no longer active or complete keeps its frozen values
in every replicate: it is compared with, and has no row of its own.

Undefined replicates. A draw of test groups that leaves a rare label without a positive image has no axes. Draws of
two datasets are independent, so which of them meet in a replicate is free: each dataset gives its complete draws
(complete for all its members, in order), as many as the dataset with fewest has. A candidate with a cell of which
fewer than 95 % of the draws are complete is left out, as is a candidate that is no member and lacks a draw in use.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench_assets.config.protocol import AXES, Protocol, ScoreRules
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.metrics.replicates import COMPLETE_SHARE
from crsbench_assets.scores.ensemble import (
    Floats,
    Scores,
    anchors_of,
    frozen_anchors,
    members_of,
    score_ensemble,
)
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.profile import is_scored

Resampling = Literal["seed", "test", "seed_test"]

RESAMPLINGS: tuple[Resampling, ...] = ("seed", "test", "seed_test")

SEED_REPLICATES = 10_000
"""Draws of the seeds where they alone are redrawn, as in the paper."""

MOST_ORDERED_DRAWS = 1_000_000
"""Largest s^s that is enumerated: up to 7 seeds."""

_CALIBRATION = AXES.index("calibration")

_CHUNK_REPLICATES = 250  # whose means stay in the cache: 0.4 MB of 15 encoders on 3 datasets


@dataclass(frozen=True)
class Candidates:
    """The active candidates that a panel can score, as they are today, and why the others have no score.

    Attributes:
        encoders: m ids of those with a complete profile on the panel's datasets, sorted.
        datasets: d ids of the panel, sorted.
        is_member: (m,).
        seed_values: axis values of every seed (s, m, d, k), NaN where an encoder has no cell.
        point: scores, b = 1; those of ``crs_scores`` but for the rounding of means.
        reasons: candidate without a score -> ``no_anchor`` or ``incomplete``.
    """

    encoders: tuple[str, ...]
    datasets: tuple[str, ...]
    is_member: NDArray[np.bool_]
    seed_values: Floats
    point: Scores
    reasons: dict[str, str]

    def subset(self, rows: NDArray[np.bool_]) -> Candidates:
        """Return some of the candidates, ``rows`` (m,), with the scores that they have among all."""
        return Candidates(
            tuple(itertools.compress(self.encoders, rows)),
            self.datasets,
            self.is_member[rows],
            self.seed_values[:, rows],
            _rows_of(self.point, rows),
            self.reasons,
        )


@dataclass(frozen=True)
class Resampled:
    """Scores of m candidates in b replicates.

    Attributes:
        encoders: m ids of the candidates with a complete profile, and replicates where test groups are redrawn; sorted.
        datasets: d ids of the panel, sorted.
        is_member: (m,).
        values: axis values of the replicates (b, m, d, k), NaN where an encoder has no cell.
        scores: of the replicates, against the frozen anchors.
        point: from today's axis values, b = 1; those of ``crs_scores`` but for the rounding of means.
    """

    encoders: tuple[str, ...]
    datasets: tuple[str, ...]
    is_member: NDArray[np.bool_]
    values: Floats
    scores: Scores
    point: Scores


def scored_candidates(cell_axes: pl.DataFrame, encoders: pl.DataFrame, panel: Panel, protocol: Protocol) -> Candidates:
    """Return the candidates that a panel can score, with their scores as they are today.

    Complete is whoever has all four axes on each of its datasets that the panel has, and on one at least.

    Args:
        cell_axes: rows of the table ``cell_axes`` of all cells.
        encoders: active encoders (encoder_id, role, dataset_ids); controls are left out.
        panel: frozen or provisional.
        protocol: the one the panel was formed under.
    """
    roles = encoders.filter(pl.col("role") == "candidate").sort("encoder_id")
    ids, datasets = tuple(roles.get_column("encoder_id")), panel.datasets
    is_applicable = np.array(
        [[d in own for d in datasets] for own in roles.get_column("dataset_ids").to_list()], dtype=bool
    )
    is_applicable = is_applicable.reshape(len(ids), len(datasets))
    rows = _scored_rows(cell_axes, ids, panel)
    places = _places(rows, len(datasets))
    values = np.full((*is_applicable.shape, len(AXES)), np.nan)
    values.reshape(-1)[places] = rows.get_column("value").to_numpy()
    seed_values = np.full((len(protocol.seeds), *values.shape), np.nan)
    seed_values.reshape(len(protocol.seeds), -1)[:, places] = _seed_values(rows, len(protocol.seeds))
    values[~is_applicable] = np.nan
    seed_values[:, ~is_applicable] = np.nan

    members = members_of(panel)
    has_dataset = np.asarray(is_applicable.any(axis=1))
    is_complete = has_dataset & (is_applicable == ~np.isnan(values).any(axis=2)).all(axis=1)
    scored = tuple(itertools.compress(ids, is_complete))
    return Candidates(
        encoders=scored,
        datasets=datasets,
        is_member=np.array([encoder in members.encoders for encoder in scored], dtype=bool),
        seed_values=seed_values[:, is_complete],
        # compared with the members as they were frozen, as `crs_scores` does
        point=_scores(
            values[None, is_complete],
            *frozen_anchors(panel),
            protocol.scores,
            np.zeros(len(scored), dtype=bool),
            members.values,
        ),
        reasons={
            encoder: "incomplete" if has_dataset[i] else "no_anchor"
            for i, encoder in enumerate(ids)
            if not is_complete[i]
        },
    )


def resampled_scores(
    resampling: Resampling,
    cell_axes: pl.DataFrame,
    axis_replicates: pl.DataFrame,
    encoders: pl.DataFrame,
    panel: Panel,
    protocol: Protocol,
    *,
    n_replicates: int | None = None,
) -> Resampled | str:
    """Return the scores of all candidates under resampling, or the reason why nothing can be resampled.

    ``seed``: s of the s seeds with replacement, the mean of their ``cell_axes.seed_values``. ``test``: one draw of
    the test groups, the mean over all seeds of ``axis_replicates.seed_values``. ``seed_test``: one draw of the test
    groups and one of the seeds.

    Under test groups the calibration axis is reflected, 2 x axis - replicate, cut to [0, 1]: an ECE is biased upward
    and its replicates once more, so replicates as they are would charge a well calibrated encoder twice. Simulated
    were two encoders of equal true score, one perfectly calibrated, the other with an ECE of 0 to .10, on 732 and
    2,500 images; ranges are over these ten settings, each averaged over 12 random panels (on a single one centring
    can do better):

    =====================  ==================  ==================  =================
    replicates             mean P(one higher)  falsely separated   95 % coverage
    =====================  ==================  ==================  =================
    reflected              .49 to .61          4 to 6 %            .90 to .96
    centred at the axis    .49 to .64          4 to 8 %            .85 to .96
    as they are            .49 to .65          3 to 9 %            .79 to .96
    =====================  ==================  ==================  =================

    Args:
        resampling: what is redrawn.
        cell_axes: rows of the table ``cell_axes`` of all cells.
        axis_replicates: rows of the table ``axis_replicates`` of all cells; ``seed`` does not read them.
        encoders: active encoders (encoder_id, role, dataset_ids); controls are left out.
        panel: frozen or provisional.
        protocol: the one the panel was formed under.
        n_replicates: None: 10,000 of ``seed``, else all that the test groups have.

    Returns:
        The scores; or ``incomplete``: no candidate has a score, ``one_seed``: the protocol has one seed and the
        seeds were to be redrawn, ``no_replicates``: no candidate has test replicates, or two candidates with a cell
        on one dataset share fewer than 95 % of its draws.
    """
    candidates = scored_candidates(cell_axes, encoders, panel, protocol)
    n_seeds = len(protocol.seeds)
    if not candidates.encoders:
        return "incomplete"
    if resampling != "test" and n_seeds == 1:
        return "one_seed"
    per_seed = candidates.seed_values[:, None]
    b = n_replicates or SEED_REPLICATES
    if resampling != "seed":
        found = _test_replicates(axis_replicates, candidates, panel, n_replicates)
        if found is None:
            return "no_replicates"
        candidates, per_seed = found
        b = per_seed.shape[1]
    counts = np.ones((b, n_seeds))
    if resampling != "test":
        drawn = keyed_generator("seed_draws", resampling, panel.panel_id).integers(n_seeds, size=(b, n_seeds))
        counts = (drawn[:, :, None] == np.arange(n_seeds)).sum(axis=1).astype(np.float64)
    return _resampled(candidates, counts, per_seed, panel, protocol.scores)


def enumerated_scores(
    cell_axes: pl.DataFrame, encoders: pl.DataFrame, panel: Panel, protocol: Protocol
) -> tuple[Resampled, Floats] | str:
    """Return the scores under every draw of the seeds: what ``seed`` draws from, exactly.

    Args:
        cell_axes: rows of the table ``cell_axes`` of all cells.
        encoders: active encoders (encoder_id, role, dataset_ids); controls are left out.
        panel: frozen or provisional.
        protocol: the one the panel was formed under.

    Returns:
        The scores, a replicate per multiset of s seeds, and how many of the s^s ordered draws it stands for (b,); or
        ``incomplete`` and ``one_seed`` as :func:`resampled_scores`, or ``not_enumerated``: s^s exceeds
        :data:`MOST_ORDERED_DRAWS`.
    """
    n_seeds = len(protocol.seeds)
    candidates = scored_candidates(cell_axes, encoders, panel, protocol)
    if not candidates.encoders:
        return "incomplete"
    if n_seeds == 1:
        return "one_seed"
    if n_seeds**n_seeds > MOST_ORDERED_DRAWS:
        return "not_enumerated"
    counts, n_ordered = seed_multisets(n_seeds)
    per_seed = candidates.seed_values[:, None]
    return _resampled(candidates, counts, per_seed, panel, protocol.scores), n_ordered


def seed_multisets(n_seeds: int) -> tuple[Floats, Floats]:
    """Return every multiset of s of s seeds, and the number of ordered draws that give it.

    Args:
        n_seeds: s, at least 1.

    Returns:
        How often each seed is drawn (q, s) with q = C(2s - 1, s), and s! / prod(counts!) (q,), which sum to s^s;
        whole numbers, exact in float64.

    Example:
        >>> counts, n_ordered = seed_multisets(2)
        >>> counts.tolist(), n_ordered.tolist()
        ([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0]], [1.0, 2.0, 1.0])
    """
    drawn = np.array(list(itertools.combinations_with_replacement(range(n_seeds), n_seeds)))
    counts = (drawn[:, :, None] == np.arange(n_seeds)).sum(axis=1)
    factorials = np.array([math.factorial(n) for n in range(n_seeds + 1)])
    return counts.astype(np.float64), (factorials[n_seeds] // factorials[counts].prod(axis=1)).astype(np.float64)


def recomputed_scores(resampled: Resampled, panel: Panel, rules: ScoreRules) -> Scores:
    """Return the scores of the replicates (b, m) with anchors from the members of each replicate.

    Args:
        resampled: replicates of the panel's candidates.
        panel: the panel; of an absent member the frozen values count.
        rules: weights of the score.
    """
    absent = _absent(resampled.encoders, panel)
    of_members = resampled.values[:, resampled.is_member]
    everywhere = np.broadcast_to(absent, (len(of_members), *absent.shape))
    anchors = anchors_of(np.concatenate([of_members, everywhere], axis=1))
    return _scores(resampled.values, *anchors, rules, resampled.is_member, absent)


def _resampled(candidates: Candidates, counts: Floats, per_seed: Floats, panel: Panel, rules: ScoreRules) -> Resampled:
    """Return the scores of the means over the drawn seeds.

    Args:
        candidates: m candidates.
        counts: how often each seed is drawn (b, s).
        per_seed: axis values (s, b, m, d, k), or (s, 1, m, d, k) where they are the same in all replicates.
        panel: the panel.
        rules: weights of the score.
    """
    b, s = counts.shape
    shape = per_seed.shape[2:]
    every = np.broadcast_to(per_seed, (s, b, *shape))
    values = np.empty((b, *shape))
    for first in range(0, b, _CHUNK_REPLICATES):
        rows = slice(first, first + _CHUNK_REPLICATES)
        # Not a matrix product, whose rounding may depend on the column: equal encoders must have equal bits.
        products = (n[rows, None, None, None] * of_seed[rows] for of_seed, n in zip(every, counts.T, strict=True))
        values[rows] = sum(products) / s
    calibration = values[..., _CALIBRATION]  # reflected replicates may lie beyond
    np.clip(calibration, 0.0, 1.0, out=calibration)
    absent = _absent(candidates.encoders, panel)
    scores = _scores(values, *frozen_anchors(panel), rules, candidates.is_member, absent)
    return Resampled(candidates.encoders, candidates.datasets, candidates.is_member, values, scores, candidates.point)


def _test_replicates(
    axis_replicates: pl.DataFrame, candidates: Candidates, panel: Panel, n_replicates: int | None
) -> tuple[Candidates, Floats] | None:
    """Return the candidates with replicates, and their axis values (s, b, m, d, k); None where there are none."""
    rows = _scored_rows(axis_replicates, candidates.encoders, panel)
    if rows.is_empty():
        return None
    s, m, d, k = candidates.seed_values.shape
    replicate = rows.get_column("replicate").to_numpy()
    b = int(replicate.max()) + 1
    # the replicates of an axis of a cell side by side, as its rows are stored: elsewhere the memory is slow to reach
    found = np.full((s, m, d, k, b), np.nan)
    found.reshape(s, -1)[:, _places(rows, d) * b + replicate] = _seed_values(rows, s)
    calibration = found[:, :, :, _CALIBRATION]
    np.subtract(2 * candidates.seed_values[..., _CALIBRATION, None], calibration, out=calibration)

    has_cell = ~np.isnan(candidates.seed_values[0, :, :, 0])
    is_complete = ~np.isnan(found).any(axis=(0, 3)) | ~has_cell[..., None]  # (m, d, b)
    is_kept = (is_complete.mean(axis=2) >= COMPLETE_SHARE).all(axis=1)
    # the members decide which draws are used, so that nobody who joins later moves a pooled number
    decides = is_kept & candidates.is_member if (is_kept & candidates.is_member).any() else is_kept
    is_shared = np.asarray(is_complete[decides].all(axis=0))  # (d, b)
    n_shared = int(is_shared.sum(axis=1).min())
    if not is_kept.any() or n_shared < COMPLETE_SHARE * b:
        return None
    n_used = min(n_shared, n_replicates or n_shared)
    used = np.argsort(~is_shared, axis=1, kind="stable")[:, :n_used]
    for j in range(d):
        is_kept = is_kept & is_complete[:, j, used[j]].all(axis=1)
    n_kept = int(is_kept.sum())
    for j in range(d):  # in place: another array of this size costs as much as the reading
        found[:, :n_kept, j, :, :n_used] = found[:, is_kept, j][..., used[j]]
    return candidates.subset(is_kept), np.moveaxis(found[:, :n_kept, ..., :n_used], -1, 1)


def _scored_rows(frame: pl.DataFrame, encoders: Sequence[str], panel: Panel) -> pl.DataFrame:
    """Return the rows of ``cell_axes`` or ``axis_replicates`` that the score of some encoders reads.

    Encoder, dataset and axis are categories in the order of ``encoders``, ``panel.datasets`` and :data:`AXES`.
    """
    categories = {"encoder_id": encoders, "dataset_id": panel.datasets, "axis": AXES}
    return (
        frame.lazy()
        .filter(is_scored(panel.conditions.robustness_variant))
        .with_columns(pl.col(name).cast(pl.Enum(ids), strict=False) for name, ids in categories.items())
        .drop_nulls(["encoder_id", "dataset_id"])
        .collect()
    )


def _places(rows: pl.DataFrame, n_datasets: int) -> NDArray[np.int64]:
    """Return where each row of :func:`_scored_rows` stands in a flat array (m, d, k)."""
    encoder, dataset, axis = (
        pl.col(name).to_physical().cast(pl.Int64) for name in ("encoder_id", "dataset_id", "axis")
    )
    return rows.select((encoder * n_datasets + dataset) * len(AXES) + axis).to_series().to_numpy()


def _seed_values(rows: pl.DataFrame, n_seeds: int) -> Floats:
    """Return the column ``seed_values`` as (s, rows), NaN where undefined."""
    return rows.get_column("seed_values").explode().to_numpy().reshape(-1, n_seeds).T


def _absent(encoders: Collection[str], panel: Panel) -> Floats:
    """Return the frozen values (a, d, k) of the members that are not among ``encoders``."""
    members = members_of(panel)
    return members.values[[member not in encoders for member in members.encoders]]


def _scores(
    values: Floats, low: Floats, high: Floats, rules: ScoreRules, is_member: NDArray[np.bool_], others: Floats
) -> Scores:
    """Return the scores of values (b, m, d, k) that are also compared with ``others`` (a, d, k), all members."""
    if not len(others):
        return score_ensemble(values, low, high, rules, is_member)
    b, m = values.shape[:2]
    everyone = np.concatenate([values, np.broadcast_to(others, (b, *others.shape))], axis=1)
    scores = score_ensemble(everyone, low, high, rules, np.append(is_member, np.ones(len(others), dtype=bool)))
    return _rows_of(scores, np.arange(m + len(others)) < m)


def _rows_of(scores: Scores, rows: NDArray[np.bool_]) -> Scores:
    return Scores(*(getattr(scores, field.name)[:, rows] for field in fields(scores)))
