"""The shapes of the analysis tables: complete, named by the rules, and never a bare NULL."""

from __future__ import annotations

from collections import Counter

import pytest

from crsbench_assets.tables import columns
from crsbench_assets.tables.analyses import ANALYSIS_TABLES
from crsbench_assets.tables.cohorts import COHORT_TABLES
from crsbench_assets.tables.results import RESULT_TABLES
from crsbench_assets.tables.schema import ColumnSpec, TableSpec
from crsbench_assets.tables.scores import PUBLICATION_TABLES, SCORE_TABLES

# Protocol page, sections 6 and 8, in their order, with the key of every table.
KEYS = {
    "axis_reliability": ("panel_id", "dataset_id", "axis"),
    "crs_variants": ("panel_id", "variant", "encoder_id"),
    "bootstrap_ranks": ("panel_id", "resampling", "anchors", "encoder_id"),
    "dominance": ("panel_id", "encoder_id", "other_encoder_id"),
    "panel_perturbations": ("panel_id", "n_dropped", "perturbation_id"),
    "insertion_trials": ("panel_id", "trial", "mode", "encoder_id"),
    "rank_agreement": ("panel_id", "auroc_variant", "crs_variant"),
    "rank_displacement": ("panel_id", "auroc_variant", "crs_variant", "encoder_id"),
    "label_efficiency_informativeness": ("panel_id", "quantity", "level", "centring"),
    "axis_correlations": ("panel_id", "level", "centring", "dataset_id", "axis", "other_axis"),
    "weight_perturbations": ("panel_id", "weights_of", "perturbation_id"),
    "lodo_transfer": ("panel_id", "dataset_id"),
    "mimic_transfer": ("panel_id", "dataset_id", "target"),
    "metric_sensitivity": ("panel_id", "variant", "dataset_id"),
    "estimator_dependence": ("panel_id", "estimator", "encoder_id"),
    "institutional_shift": ("encoder_id", "dataset_id"),
    "institutional_shift_test": ("panel_id", "dataset_id", "quantity", "unit"),
    "label_scarcity": ("panel_id", "dataset_id", "category", "label_fraction"),
    "calibration_repair": ("encoder_id", "dataset_id", "method", "condition_id"),
    "corruption_miscalibration": ("panel_id", "encoder_id", "dataset_id"),
    "depth_sweep": ("encoder_id", "dataset_id", "depth"),
    "specialization": ("panel_id", "reference", "category", "encoder_id", "parent_encoder_id", "axis"),
    "lora_transfer": ("panel_id", "lora_panel_id"),
    "prompting": ("encoder_id", "dataset_id", "mode", "prompt_id"),
    "selection_regret": ("panel_id", "rule", "axis"),
}

# Quantities that these sections name and a reader looks for by name.
QUANTITIES = {
    "axis_reliability": {"reliability", "is_reliable", "smallest_detectable_difference"},
    "crs_variants": {"crs", "rank"},
    "bootstrap_ranks": {
        "p_best",
        "p_top_3",
        "crs_ci_low",
        "crs_ci_high",
        "p_best_enumerated",
        "n_tier",
        "rank_lo",
        "rank_hi",
    },
    "dominance": {"is_dominating", "p_dominates"},
    "panel_perturbations": {"tau_b", "top_3_overlap"},
    "insertion_trials": {"displacement"},
    "rank_agreement": {"n_reversed", "n_resolved_reversed", "tau_b", "spearman", "mean_absolute_rank_displacement"},
    "rank_displacement": {"rank_auroc", "rank_crs", "rank_displacement"},
    "label_efficiency_informativeness": {"pearson", "spearman"},
    "axis_correlations": {
        "pearson",
        "pearson_ci_low",
        "pearson_ci_high",
        "spearman",
        "spearman_ci_low",
        "spearman_ci_high",
    },
    "weight_perturbations": {"tau_b", "is_top_3_unchanged", "weight_discrimination", "weight_worst"},
    "lodo_transfer": {
        "spearman",
        "spearman_ci_low",
        "spearman_chance_p95",
        "top_3_overlap_chance",
        "is_winner_recovered",
    },
    "mimic_transfer": {"spearman", "top_3_overlap"},
    "metric_sensitivity": {"tau_b", "top_3_overlap", "top_5_overlap", "mean_crs_shift", "mean_absolute_crs_shift"},
    "estimator_dependence": {"crs", "tau_b", "top_3_overlap", "is_most_moved", "spearman_width_calibration"},
    "institutional_shift": {"source_macro_auroc", "shift_macro_auroc", "relative_gap", "shift_exposure"},
    "institutional_shift_test": {"p_welch", "welch_df", "hedges_g", "p_permutation", "sd_medical", "sd_generalist"},
    "label_scarcity": {"difference", "interaction", "interaction_ci_low", "interaction_ci_high"},
    "calibration_repair": {
        "ece_before",
        "ece_after",
        "ece_floor_p95",
        "delta_auroc",
        "n_seeds_no_gain",
        "n_seeds_at_bound",
    },
    "corruption_miscalibration": {"mean_delta_ece", "worst_delta_ece", "mean_relative_auroc_loss", "pearson"},
    "depth_sweep": {"macro_auroc", "ece", "is_chosen", "gain", "gain_ci_low", "gain_ci_high", "is_flagged"},
    "specialization": {"mean_in_domain", "mean_reference"},
    "lora_transfer": {"tau_b", "spearman", "top_3_overlap"},
    "prompting": {"accuracy", "accuracy_parsed", "parse_rate", "majority_accuracy", "balanced_accuracy", "macro_f1"},
    "selection_regret": {"regret", "regret_ci_low", "regret_ci_high", "weight_robustness"},
}

# Integers that count nothing: ranks, differences of ranks, running numbers.
NOT_COUNTED = {"rank", "rank_lo", "rank_hi", "rank_auroc", "rank_crs", "rank_displacement", "trial"}

each_table = pytest.mark.parametrize("spec", ANALYSIS_TABLES, ids=lambda spec: spec.name)


def nullable_values(spec: TableSpec) -> list[ColumnSpec]:
    return [column for column in spec.columns if column.nullable and column.type != "text"]


def test_the_tables_are_those_of_the_protocol_in_its_order() -> None:
    assert [spec.name for spec in ANALYSIS_TABLES] == list(KEYS)


def test_no_other_table_has_one_of_their_names() -> None:
    names = Counter(
        s.name for s in (*COHORT_TABLES, *RESULT_TABLES, *SCORE_TABLES, *PUBLICATION_TABLES, *ANALYSIS_TABLES)
    )
    assert [name for name, times in names.items() if times > 1] == []


@each_table
def test_grain_key_and_quantities(spec: TableSpec) -> None:
    assert spec.grain == "whole"
    assert spec.key == KEYS[spec.name]
    assert QUANTITIES[spec.name] <= set(spec.column_names)


@each_table
def test_no_key_is_null(spec: TableSpec) -> None:
    assert [c.name for c in spec.columns if c.name in spec.key and c.nullable] == []
    assert ("panel_id" in spec.column_names) == (spec.key[0] == "panel_id")


@each_table
def test_a_nullable_value_has_a_reason_beside_it(spec: TableSpec) -> None:
    assert nullable_values(spec), "every analysis has a value that may be undefined"
    assert columns.REASON in spec.columns


@each_table
def test_names_follow_the_rules(spec: TableSpec) -> None:
    for column in spec.columns:
        where = f"{spec.name}.{column.name}"
        assert column.name == column.name.lower(), where
        assert (column.type == "boolean") == column.name.startswith(("is_", "has_")), where
        assert (column.type == "integer") == (column.name.startswith("n_") or column.name in {"n", *NOT_COUNTED}), where
        if column.name.endswith("_id"):
            assert column.type == "text", where
        if "percent" in column.name or column.name.endswith(("_lower", "_upper")):
            pytest.fail(f"{where}: fractions, never percent; bounds are _ci_low and _ci_high")


@each_table
def test_bounds_are_ordered_and_probabilities_and_intervals_are_bounded(spec: TableSpec) -> None:
    by_name = {column.name: column for column in spec.columns}
    for name, column in by_name.items():
        where = f"{spec.name}.{name}"
        if column.low is not None and column.high is not None:
            assert column.low < column.high, where
        if name.startswith("n_"):
            assert column.low == 0, where
        if name.startswith("p_"):
            assert (column.low, column.high) == (0, 1), where
        if name.endswith("_ci_low"):
            upper, point = by_name[name.replace("_ci_low", "_ci_high")], by_name[name.removesuffix("_ci_low")]
            assert (column.low, column.high) == (upper.low, upper.high) == (point.low, point.high), where


@each_table
def test_descriptions_read_as_sentences(spec: TableSpec) -> None:
    assert spec.description.startswith("One row per ")
    assert spec.description.endswith(".")
    for column in spec.columns:
        assert len(column.description) > 3, f"{spec.name}.{column.name}"
        assert not column.description.endswith("."), f"{spec.name}.{column.name}"


def test_one_name_has_one_type_in_all_tables() -> None:
    types: dict[str, set[str]] = {}
    for spec in (*COHORT_TABLES, *RESULT_TABLES, *SCORE_TABLES, *PUBLICATION_TABLES, *ANALYSIS_TABLES):
        for column in spec.columns:
            types.setdefault(column.name, set()).add(column.type)
    assert {name: found for name, found in types.items() if len(found) > 1} == {}


@each_table
def test_an_empty_table_has_the_columns_in_both_formats(spec: TableSpec) -> None:
    assert spec.empty().columns == spec.arrow_schema().names == list(spec.column_names)
