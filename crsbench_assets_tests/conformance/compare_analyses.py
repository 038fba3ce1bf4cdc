"""Holds the analyses of a whole home against their second implementation.

What lives here: which stored rows each table of section 8 is recomputed from, and the largest deviation per table.
What stays out: the formulas (``plain_analyses``, ``plain_replicates``); scores and axes (``compare``).
Source: protocol page, sections 7 and 8.

Random subsets, bases and weights are read from the tables that hold them. The draws of seeds stand in no table: they
are drawn again under the key of the implementation, and everything after the draw is recomputed.
Expects one panel whose members are all scored encoders and whose replicates are all defined, as ``crsbench demo``
makes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import variance
from typing import Any

import polars as pl

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets_tests.conformance import plain
from crsbench_assets_tests.conformance import plain_analyses as analyses
from crsbench_assets_tests.conformance import plain_replicates as resampled
from crsbench_assets_tests.conformance.compare import Rows, largest_deviation
from crsbench_assets_tests.conformance.plain_statistics import CRITICAL

ANALYSIS_KEYS = {
    "panel_perturbations": ["n_dropped", "perturbation_id"],
    "insertion_trials": ["trial", "mode", "encoder_id"],
    "weight_perturbations": ["weights_of", "perturbation_id"],
    "crs_variants": ["variant", "encoder_id"],
    "rank_agreement": ["auroc_variant", "crs_variant"],
    "rank_displacement": ["auroc_variant", "crs_variant", "encoder_id"],
    "selection_regret": ["rule", "axis"],
    "dominance": ["encoder_id", "other_encoder_id"],
    "axis_correlations": ["level", "centring", "dataset_id", "axis", "other_axis"],
    "label_efficiency_informativeness": ["quantity", "level", "centring"],
    "lodo_transfer": ["dataset_id"],
    "mimic_transfer": ["dataset_id", "target"],
    "metric_sensitivity": ["variant", "dataset_id"],
    "institutional_shift": ["encoder_id", "dataset_id"],
    "institutional_shift_test": ["dataset_id", "quantity", "unit"],
    "label_scarcity": ["dataset_id", "category", "label_fraction"],
    "specialization": ["reference", "category", "encoder_id", "parent_encoder_id", "axis"],
    "corruption_miscalibration": ["encoder_id", "dataset_id"],
    "calibration_repair": ["encoder_id", "dataset_id", "method", "condition_id"],
    "bootstrap_ranks": ["resampling", "anchors", "encoder_id"],
    "ranks": ["encoder_id"],
    "axis_reliability": ["dataset_id", "axis"],
}
"""Table -> columns that name a row of one panel."""
SOURCES = (
    "axis_replicates",
    "calibrated_records",
    "cell_axes",
    "cell_scores",
    "crs_scores",
    "datasets",
    "encoders",
    "label_metrics",
    "reference_panels",
    "run_records",
    "seed_aggregates",
)
ANALYSIS_TABLES = tuple(sorted({*ANALYSIS_KEYS, *SOURCES}))
"""Tables that :func:`check_analyses` reads."""
N_SEED_DRAWS = 10_000
RELIABLE = 0.7
ESTABLISHED = 0.95

Frames = Mapping[str, pl.DataFrame]


def check_analyses(frames: Frames) -> dict[str, float]:
    """Return table -> largest absolute deviation of the stored rows from the plain answers.

    Args:
        frames: all rows of :data:`ANALYSIS_TABLES`.

    Returns:
        One entry per table of :data:`ANALYSIS_KEYS`; infinite where a row is missing or surplus or a text differs.
    """
    # The two large tables are filtered before they become rows.
    rows = {
        name: frames[name].to_dicts() for name in ANALYSIS_TABLES if name not in {"label_metrics", "axis_replicates"}
    }
    panel = _panel(rows)
    right = _without_replicates(panel, rows, frames["label_metrics"])
    add_replicates(right, panel, rows, _replicates(panel, frames["axis_replicates"]))
    return {table: largest_deviation(right[table], rows[table], key) for table, key in ANALYSIS_KEYS.items()}


def _panel(rows: Mapping[str, Rows]) -> analyses.Panel:
    (panel_id,) = {row["panel_id"] for row in rows["crs_scores"]}
    panel = analyses.panel_of(panel_id, rows["crs_scores"], rows["reference_panels"], rows["cell_axes"])
    assert set(panel.members) == {row["encoder_id"] for row in rows["crs_scores"]}
    return panel


def _without_replicates(
    panel: analyses.Panel, rows: Mapping[str, Rows], label_metrics: pl.DataFrame
) -> dict[str, Rows]:
    encoders, records = rows["encoders"], rows["run_records"]
    shift_of = {row["dataset_id"]: row["shift_id"] for row in rows["datasets"]}
    is_compared = (pl.col("condition_id") == "clean") | pl.col("condition_id").str.starts_with("shift_")
    shift_labels = label_metrics.filter((pl.col("label_fraction") == 1.0) & is_compared).filter(
        pl.col("dataset_id").is_in([dataset for dataset, shift in shift_of.items() if shift is not None])
    )
    weights = [rows["selection_regret"][0][f"weight_{axis}"] for axis in plain.AXES]
    modality = {row["dataset_id"]: row["modality"] for row in rows["datasets"]}
    corruptions = plain.CRS_1.corruptions
    return {
        "panel_perturbations": analyses.panel_perturbations(panel, rows["panel_perturbations"]),
        "insertion_trials": analyses.insertion_trials(panel, rows["insertion_trials"]),
        "weight_perturbations": analyses.weight_perturbations(panel, rows["weight_perturbations"]),
        "crs_variants": analyses.crs_variants(panel, encoders, shift_of),
        "rank_agreement": analyses.rank_agreement(panel),
        "rank_displacement": analyses.rank_displacement(panel),
        "selection_regret": analyses.selection_regret(panel, weights),
        "dominance": analyses.dominance(panel),
        "axis_correlations": analyses.axis_correlations(panel),
        "label_efficiency_informativeness": analyses.label_efficiency_informativeness(panel),
        "lodo_transfer": analyses.lodo_transfer(panel),
        "mimic_transfer": analyses.mimic_transfer(panel, rows["institutional_shift"]),
        "metric_sensitivity": analyses.metric_sensitivity(panel, _ordinal(rows)),
        "institutional_shift": analyses.institutional_shift(shift_labels.to_dicts(), encoders),
        "institutional_shift_test": analyses.institutional_shift_test(panel, rows["institutional_shift"], encoders),
        "label_scarcity": analyses.label_scarcity(panel, rows["seed_aggregates"], encoders),
        "specialization": analyses.specialization(panel, rows["cell_scores"], encoders, modality),
        "corruption_miscalibration": analyses.corruption_miscalibration(panel, records, rows["cell_axes"], corruptions),
        "calibration_repair": analyses.calibration_repair(rows["calibrated_records"], records),
    }


def _ordinal(rows: Mapping[str, Rows]) -> dict[str, dict[str, dict[str, float]]]:
    ordinal = {row["dataset_id"] for row in rows["datasets"] if row["task"] == "ordinal"}
    found: dict[str, dict[str, dict[str, float]]] = {"qwk": {}, "ordinal_mae": {}}
    for row in rows["seed_aggregates"]:
        if row["dataset_id"] in ordinal and row["condition_id"] == "clean" and row["label_fraction"] == 1.0:
            for name, of_datasets in found.items():
                of_datasets.setdefault(row["dataset_id"], {})[row["encoder_id"]] = row[f"{name}_mean"]
    return found


# --- redrawn seeds and groups ----------------------------------------------------------------------------------------


def _replicates(
    panel: analyses.Panel, axis_replicates: pl.DataFrame
) -> dict[tuple[plain.Cell, str], list[list[float]]]:
    found: dict[tuple[plain.Cell, str], list[list[float]]] = {}
    for row in axis_replicates.sort("replicate").iter_rows(named=True):
        if row["variant"] == _variant(panel, row["axis"]):
            found.setdefault(((row["encoder_id"], row["dataset_id"]), row["axis"]), []).append(row["seed_values"])
    return found


def _variant(panel: analyses.Panel, axis: str) -> str:
    return panel.robustness if axis == "robustness" else "primary"


def seed_draws(panel_id: str, resampling: str, n_draws: int, n_seeds: int) -> list[list[int]]:
    """Return the seeds that every replicate draws, under the implementation's key."""
    drawn = keyed_generator("seed_draws", resampling, panel_id).integers(n_seeds, size=(n_draws, n_seeds))
    return [sorted(seeds) for seeds in drawn.tolist()]


def add_replicates(
    right: dict[str, Rows], panel: analyses.Panel, rows: Mapping[str, Rows], replicates: resampled.Replicates
) -> None:
    """Add what comes from replicates.

    Args:
        right: rows of ``dominance``, ``rank_agreement`` and ``selection_regret``, which get their columns; the tables
            ``bootstrap_ranks``, ``ranks`` and ``axis_reliability`` are added.
        panel: the panel.
        rows: stored rows of ``cell_axes`` and ``selection_regret``, for seed values and the user's weights.
        replicates: value of every seed in every replicate.
    """
    seed_values = {
        ((row["encoder_id"], row["dataset_id"]), row["axis"]): row["seed_values"]
        for row in rows["cell_axes"]
        if row["variant"] == _variant(panel, row["axis"])
    }
    (n_replicates,), (n_seeds,) = {len(own) for own in replicates.values()}, {len(own) for own in seed_values.values()}
    values, every_seed = panel.values(), [list(range(n_seeds))] * n_replicates
    drawn = seed_draws(panel.panel_id, "seed_test", n_replicates, n_seeds)
    crs = analyses.crs(values, panel.members)
    frozen = plain.anchors(values, panel.members)
    right["bootstrap_ranks"] = []
    for name, anchors in {"frozen": frozen, "recomputed": None}.items():
        of_seeds = resampled.enumeration(seed_values, panel.members, anchors)
        by_seed = seed_draws(panel.panel_id, "seed", N_SEED_DRAWS, n_seeds)
        by_test, by_both = (
            [draw.crs for draw in resampled.drawn_scores(replicates, seed_values, panel.members, anchors, seeds)]
            for seeds in (every_seed, drawn)
        )
        draws = {"seed": [of_seeds.scores[tuple(own)] for own in by_seed], "test": by_test, "seed_test": by_both}
        right["bootstrap_ranks"] += [
            {
                "resampling": resampling,
                "anchors": name,
                "encoder_id": encoder,
                "crs": crs[encoder],
                "reason": None,
                **own,
                **_enumerated(of_seeds if resampling == "seed" else None, encoder, own),
            }
            for resampling, of_resampling in draws.items()
            for encoder, own in resampled.firmness(of_resampling).items()
        ]
    of_both = resampled.drawn_scores(replicates, seed_values, panel.members, frozen, drawn)
    right["ranks"] = _ranks(crs, [draw.crs for draw in of_both])
    right["axis_reliability"] = _reliability(values, of_both)
    _add_to_dominance(right["dominance"], of_both)
    _add_to_rank_agreement(right["rank_agreement"], panel, of_both)
    _add_to_selection_regret(right["selection_regret"], rows["selection_regret"][0], of_both)


def _enumerated(found: resampled.Enumeration | None, encoder: str, drawn: Mapping[str, float]) -> dict[str, Any]:
    if found is None:
        names = ("n_draws_enumerated", "p_best_enumerated", "p_top_3_enumerated", "is_enumeration_agreed", "n_tier")
        return {**dict.fromkeys((*names, "is_in_tier")), "enumeration_reason": "not_enumerated"}
    exact = {"p_best": found.p_best[encoder], "p_top_3": found.p_top_3[encoder]}
    return {
        "n_draws_enumerated": found.n_draws,
        **{f"{name}_enumerated": p for name, p in exact.items()},
        "is_enumeration_agreed": all(
            abs(drawn[name] - p) <= 4.0 * math.sqrt(p * (1.0 - p) / N_SEED_DRAWS) for name, p in exact.items()
        ),
        "n_tier": len(found.tier) or None,
        "is_in_tier": encoder in found.tier if found.tier else None,
        "enumeration_reason": None if found.tier else "no_tier",
    }


def _ranks(crs: dict[str, float], draws: Sequence[Mapping[str, float]]) -> Rows:
    rank_of, firm = plain.competition_ranks(crs), resampled.firmness(draws)
    groups = resampled.tie_groups(crs, resampled.p_above(draws))
    return [
        {
            "encoder_id": encoder,
            "rank": rank,
            **{name: firm[encoder][name] for name in ("rank_lo", "rank_hi", "p_best")},
            "tie_group": groups[encoder],
            "n_ranked": len(crs),
            "reason": None,
        }
        for encoder, rank in rank_of.items()
    ]


def _reliability(values: analyses.Values, draws: Sequence[resampled.Scored]) -> Rows:
    rows: Rows = []
    for dataset in sorted({d for _, d in values}):
        cells = [cell for cell in values if cell[1] == dataset]
        for axis in plain.AXES:
            error, of_differences = resampled.error_variance(draws, cells, axis)
            between = variance([values[cell][axis] for cell in cells])
            rows.append(
                {
                    "dataset_id": dataset,
                    "axis": axis,
                    "n_encoders": len(cells),
                    "error_variance": error,
                    "between_variance": between,
                    "reliability": 1.0 - error / between,
                    "is_reliable": 1.0 - error / between >= RELIABLE,
                    "smallest_detectable_difference": CRITICAL * math.sqrt(of_differences),
                    "reason": None,
                }
            )
    return rows


def _add_to_dominance(rows: Rows, draws: Sequence[resampled.Scored]) -> None:
    dominating = resampled.p_dominates(draws)
    for row in rows:
        p = dominating[row["encoder_id"], row["other_encoder_id"]]
        row |= {"p_dominates": p, "is_established": p >= ESTABLISHED, "reason": None}


def _add_to_rank_agreement(rows: Rows, panel: analyses.Panel, draws: Sequence[resampled.Scored]) -> None:
    found = analyses.orders(panel)
    auroc_above = {name: resampled.p_above(resampled.auroc_draws(draws, name)) for name in found.auroc}
    crs_above = {name: resampled.p_above(resampled.crs_draws(draws, name)) for name in found.crs}
    for row in rows:
        auroc, crs = row["auroc_variant"], row["crs_variant"]
        row["n_resolved_reversed"] = resampled.resolved_reversals(
            found.auroc[auroc], found.crs[crs], auroc_above[auroc], crs_above[crs]
        )


def _add_to_selection_regret(rows: Rows, stored: Mapping[str, Any], draws: Sequence[resampled.Scored]) -> None:
    weights = {axis: [float(axis == other) for other in plain.AXES] for axis in plain.AXES}
    weights["weighted"] = [stored[f"weight_{axis}"] for axis in plain.AXES]
    for row in rows:
        low, high = resampled.regret_interval(draws, row["chosen_encoder_id"], weights[row["axis"]])
        row |= {"regret_ci_low": low, "regret_ci_high": high}
