"""Words for the columns and values of the tables, as the report says them.

What lives here: headings of columns, and the spelling of values. What stays out: what a column means (``tables``; the
page shows it beside the heading), and reasons (``tables.reasons``).
Source: protocol page, sections 5 to 8, for the terms.
"""

from __future__ import annotations

import json
from typing import Any

HEADINGS = {
    "anchor_high": "Best member", "anchor_low": "Worst member", "auroc_score": "AUROC score",
    "auroc_variant": "AUROC as", "axis": "Axis", "best_encoder_id": "Best encoder",
    "between_variance": "Variance between encoders", "category": "Category", "centring": "Centring",
    "chosen_encoder_id": "Chosen", "class_name": "Class or label", "code_version": "Code version",
    "condition_id": "Condition", "corruption": "Corruption", "crs": "CRS", "crs_ci_high": "CRS, upper 95 %",
    "crs_ci_low": "CRS, lower 95 %", "crs_variant": "CRS as", "dataset_id": "Dataset", "dataset_version": "Version",
    "delta_auroc": "Change of AUROC", "difference": "Difference", "displacement": "Displacement of CRS",
    "domains": "Domains of pretraining", "ece_after": "ECE after", "ece_before": "ECE before",
    "ece_ci_seed_high": "ECE, upper 95 % over seeds", "ece_ci_seed_low": "ECE, lower 95 % over seeds",
    "ece_floor_p95": "ECE floor, 95th percentile", "ece_mean": "ECE", "encoder_id": "Encoder",
    "enumeration_reason": "Why not enumerated", "error_variance": "Variance of error", "estimator": "Estimator",
    "exposure": "Seen in pretraining", "family": "Family", "hedges_g": "Hedges' g",
    "high_encoder_id": "Held by (best)", "hub_id": "Source", "interaction": "Interaction",
    "interaction_ci_high": "Interaction, upper 95 %", "interaction_ci_low": "Interaction, lower 95 %",
    "is_degenerate": "Degenerate", "is_dominating": "Dominates", "is_established": "Established",
    "is_gated": "Gated", "is_in_tier": "In leading tier", "is_inferred": "Inferred", "is_most_moved": "Moves most",
    "is_non_commercial": "Non-commercial", "is_primary": "Primary", "is_reliable": "Reliable",
    "is_synthetic": "Synthetic",
    "is_winner_recovered": "Winner recovered", "kind": "Kind", "label_fraction": "Share of labels",
    "label_policy": "Label policy", "level": "Level", "licence": "Licence", "low_encoder_id": "Held by (worst)",
    "macro_auroc_ci_seed_high": "AUROC, upper 95 % over seeds",
    "macro_auroc_ci_seed_low": "AUROC, lower 95 % over seeds", "macro_auroc_ci_test_high": "AUROC, upper 95 %",
    "macro_auroc_ci_test_low": "AUROC, lower 95 %", "macro_auroc_mean": "AUROC",
    "max_displacement": "Displacement, maximum", "max_groups": "Groups, most", "max_images": "Images, most",
    "max_pictures": "Pictures, most",
    "max_mean_delta_ece": "Largest mean of the dataset", "max_tau_b": "Tau-b, largest",
    "mean_absolute_crs_shift": "CRS shift, mean absolute",
    "mean_absolute_rank_displacement": "Places moved, mean absolute", "mean_crs_shift": "CRS shift, mean",
    "mean_delta_ece": "Change of ECE, mean", "mean_displacement": "Displacement, mean",
    "mean_generalist": "Mean, generalist", "mean_in_domain": "Mean in domain", "mean_medical": "Mean, medical",
    "mean_reference": "Mean, reference", "mean_relative_auroc_loss": "Relative loss of AUROC, mean",
    "median_displacement": "Displacement, median", "median_tau_b": "Tau-b, median", "method": "Method",
    "min_groups": "Groups, fewest", "min_images": "Images, fewest", "min_pictures": "Pictures, fewest",
    "min_tau_b": "Tau-b, smallest",
    "min_top_3_overlap": "Top 3 kept, smallest share", "modality": "Modality", "mode": "Reference",
    "n_cells": "Cells", "n_classes": "Classes", "n_conditions": "Conditions", "n_defined": "Defined",
    "n_defined_auroc": "Labels with AUROC", "n_dims": "Width", "n_dropped": "Members dropped", "n_encoders": "Encoders",
    "n_generalist": "Generalists", "n_images": "Images", "n_in_domain": "Cells in domain", "n_medical": "Medical",
    "n_members": "Members", "n_pairs": "Pairs", "n_partitions": "Partitions", "n_perturbations": "Perturbations",
    "n_positive": "Positives", "n_reference": "Cells, reference", "n_replicates": "Replicates",
    "n_resolved_reversed": "Surely reversed", "n_reversed": "Reversed", "n_rows": "Rows", "n_seeds": "Seeds",
    "n_seeds_accepted": "Seeds mended", "n_tier": "Size of tier", "n_trials": "Trials", "n_units": "Units",
    "n_unknown": "Unknown", "name": "Name", "other_axis": "Other axis", "other_encoder_id": "Other encoder",
    "n_blank": "Blank", "n_uncertain": "Uncertain", "prevalence": "Prevalence",
    "p_best": "P(best)", "p_best_enumerated": "P(best), enumerated", "p_dominates": "P(dominates)",
    "p_permutation": "p, permutation", "p_top_3": "P(top 3)", "p_welch": "p, Welch", "parent_encoder_id": "Parent",
    "pearson": "Pearson's r", "pearson_ci_high": "r, upper 95 %", "pearson_ci_low": "r, lower 95 %",
    "pretraining_objective": "Pretraining", "quantity": "Quantity", "rank": "Rank", "rank_auroc": "Rank by AUROC",
    "rank_crs": "Rank by CRS", "rank_displacement": "Places gained by CRS", "rank_hi": "Rank, upper 95 %",
    "rank_lo": "Rank, lower 95 %", "reason": "Reason", "reference": "Against", "regret": "Regret",
    "regret_ci_high": "Regret, upper 95 %", "regret_ci_low": "Regret, lower 95 %", "relative_gap": "Relative loss",
    "relative_reduction": "Relative reduction", "reliability": "Reliability", "resampling": "Redrawn",
    "revision": "Revision", "robustness_variant": "Robustness as", "rule": "Choosing by",
    "same_encoder_as": "Same encoder as",
    "schema_version": "Schema version", "sd_generalist": "SD, generalist", "sd_medical": "SD, medical",
    "severity": "Severity", "share_top_3_unchanged": "Top 3 unchanged, share",
    "shift_exposure": "Target in pretraining", "shift_id": "Shift target", "shift_macro_auroc": "AUROC at the target",
    "smallest_detectable_difference": "Smallest detectable difference", "source_id": "Source",
    "source_macro_auroc": "AUROC at home", "spearman": "Spearman's rho",
    "spearman_chance_p95": "rho by chance, 95th percentile", "spearman_ci_high": "rho, upper 95 %",
    "spearman_ci_low": "rho, lower 95 %", "spearman_width_calibration": "rho, width and calibration",
    "spearman_width_discrimination": "rho, width and discrimination",
    "spearman_width_label_efficiency": "rho, width and label efficiency",
    "spearman_width_robustness": "rho, width and robustness", "split": "Split", "status": "Status",
    "table_name": "Table", "target": "Target", "task": "Task", "tau_b": "Kendall's tau-b",
    "top_3_overlap": "Top 3 shared", "top_3_overlap_chance": "Top 3 by chance", "top_5_overlap": "Top 5 shared",
    "unit": "Unit", "value": "Scaled value", "variant": "Variant", "weights": "Weights",
    "weights_of": "Weights of", "welch_df": "Welch's df", "welch_t": "Welch's t", "who": "Category or encoder",
    "worst_condition_id": "Worst condition", "worst_delta_ece": "Change of ECE, worst", "written_at": "Last computed",
}  # fmt: skip
"""Headings by column."""


_VALUES = {
    "aulc": "area under the label curve", "auroc": "AUROC", "crs": "CRS", "corruption_only": "corruptions only",
    "seed": "seeds", "seed_test": "seeds and test images",
    "raw_common_datasets": "raw, on common datasets", "qwk": "quadratic weighted kappa",
    "ece_debiased": "debiased ECE", "adaptive_ece": "adaptive ECE", "brier": "Brier score",
    "ordinal_mae": "ordinal MAE",
}  # fmt: skip


def heading(column: str) -> str:
    """Return the heading of a column.

    Example:
        >>> heading("crs_ci_low")
        'CRS, lower 95 %'
    """
    return HEADINGS[column]


def spoken(column: str, value: Any) -> str:
    """Return a value of a column as text: codes without underscores, lists and maps without brackets, '' as all.

    Ids and names stay as they are.

    Example:
        >>> spoken("category", "broad_medical"), spoken("dataset_id", ""), spoken("is_reliable", True)
        ('broad medical', 'all', 'yes')
        >>> spoken("exposure", '{"ward": "not_seen"}'), spoken("encoder_id", "vit_b")
        ('ward: not seen', 'vit_b')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "not recorded"
    text = str(value) or "all"
    if column.endswith(("_id", "name")):
        return text
    if text in _VALUES:
        return _VALUES[text]
    if text[:1] + text[-1:] in ("[]", "{}"):
        parts = json.loads(text)
        pairs = [f"{key}: {part}" for key, part in parts.items()] if isinstance(parts, dict) else map(str, parts)
        text = ", ".join(pairs) or "none"
    return text.replace("_", " ")
