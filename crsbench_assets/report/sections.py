"""What the report shows besides its leaderboard: each section with its question, its rows and what is drawn of them.

What lives here: the sections in the order of the page, by group, and the summaries by which long tables are shown. What
stays out: reading the rows (``frames``), drawing (``figures.charts``), what follows for a choice (``decision``),
reliability diagrams (``figures.reliability``), and every statistic: those stand in the tables.
Source: protocol page, sections 5 to 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from crsbench_assets.report.figures.charts import Figure

GROUPS = {
    "decision": "Decision",
    "scores": "Scores",
    "evidence": "Evidence",
    "robustness": "Robustness of the ranking",
    "transfer": "Transfer",
    "calibration": "Calibration",
    "data": "Data",
    "provenance": "Provenance",
}
"""Headings of the groups, in the order of the page."""


@dataclass(frozen=True)
class Section:
    """One question and its rows.

    Args:
        key: anchor on the page.
        group: one of :data:`GROUPS`.
        title: heading.
        question: what is asked, and how an answer is read.
        query: SELECT of the rows.
        figures: what is drawn.
        table: whose rows they are; empty where it is named as the key.
        is_summary: the page shows fewer rows or columns than the table holds.
        empty: what no row means; empty where it means that nothing was computed.
        choices: columns by whose values the reader chooses rows.
        tolerance: column of which the reader sets the largest value, or empty.
    """

    key: str
    group: str
    title: str
    question: str
    query: str
    figures: tuple[Figure, ...] = ()
    table: str = ""
    is_summary: bool = False
    empty: str = ""
    choices: tuple[str, ...] = ()
    tolerance: str = ""

    @property
    def source(self) -> str:
        """The table whose rows are shown."""
        return self.table or self.key


_OF_PANEL = "panel_id = (SELECT panel_id FROM warehouse_info)"
_ALL = "SELECT * EXCLUDE (protocol_id, label_policy, panel_id)"
_IS_CONTROL = "encoder_id IN (SELECT encoder_id FROM encoders WHERE role = 'control')"
_REASON = "string_agg(DISTINCT reason, ', ' ORDER BY reason) AS reason"
_TAU = "count(tau_b) AS n_defined, min(tau_b) AS min_tau_b, median(tau_b) AS median_tau_b, max(tau_b) AS max_tau_b"
_PLACE = "(SELECT list(encoder_id) FROM leaderboard)"
"""Encoders in the order of the leaderboard."""

LEADERBOARD = Figure(
    "intervals",
    "crs",
    "encoder_id",
    "crs_ci_low",
    "crs_ci_high",
    series="variant",
    query=f"""
WITH bounds AS (
    FROM bootstrap_ranks WHERE {_OF_PANEL} AND resampling = 'seed_test' AND anchors = 'frozen'
)
SELECT l.encoder_id, 'primary' AS variant, l.crs, b.crs_ci_low, b.crs_ci_high
FROM leaderboard l LEFT JOIN bounds b USING (encoder_id)
UNION ALL
SELECT encoder_id, 'corruption_only', crs_corruption_only, NULL, NULL FROM leaderboard
ORDER BY list_position({_PLACE}, encoder_id), variant DESC""",
)
"""The scores, with and without shift terms; controls are lines."""

_DECISION = (
    Section(
        "cells",
        "decision",
        "What is missing",
        "Which encoder has no result on which dataset, and why? An encoder that lacks an applicable cell has no score.",
        "SELECT encoder_id, dataset_id, status, reason FROM cells WHERE status <> 'ok' "
        "ORDER BY status, dataset_id, encoder_id",
        empty="Nothing: every cell has its result.",
    ),
    Section(
        "choice",
        "decision",
        "Your domain, your labels, your tolerance",
        "Which encoders discriminate best on a dataset like yours, with as many labels as you have, at an ECE that you "
        "can bear? Clean test images, means over seeds, best first; intervals over seeds.",
        "SELECT encoder_id, macro_auroc_mean, macro_auroc_ci_seed_low, macro_auroc_ci_seed_high, ece_mean, "
        "ece_ci_seed_low, ece_ci_seed_high, dataset_id, label_fraction, reason FROM seed_aggregates "
        f"WHERE condition_id = 'clean' ORDER BY dataset_id, label_fraction DESC, {_IS_CONTROL}, "
        "macro_auroc_mean DESC NULLS LAST, encoder_id",
        table="seed_aggregates",
        is_summary=True,
        choices=("dataset_id", "label_fraction"),
        tolerance="ece_mean",
    ),
    Section(
        "selection_regret",
        "decision",
        "Regret of a choice",
        "What is lost on each axis by choosing by AUROC, by CRS or at random? 0 is no loss.",
        "SELECT rule, axis, chosen_encoder_id, best_encoder_id, regret, regret_ci_low, regret_ci_high, reason "
        f"FROM selection_regret WHERE {_OF_PANEL} ORDER BY axis, rule",
        (Figure("intervals", "regret", "axis", "regret_ci_low", "regret_ci_high", series="rule"),),
        is_summary=True,
    ),
)

_SCORES = (
    Section(
        "profiles",
        "scores",
        "Profiles",
        "Where is each encoder strong, and where weak? 0 is the panel's worst member of a dataset, 1 its best; the "
        "score is made of the means over datasets.",
        f"""
SELECT encoder_id, dataset_id, axis, z AS value, reason FROM cell_scores WHERE {_OF_PANEL}
UNION ALL
SELECT encoder_id, 'mean' AS dataset_id, name[3:] AS axis, value, NULL AS reason FROM (
    UNPIVOT (FROM crs_scores WHERE {_OF_PANEL}) ON x_discrimination, x_calibration, x_label_efficiency, x_robustness
)
ORDER BY list_position({_PLACE}, encoder_id), dataset_id = 'mean' DESC, dataset_id,
    list_position(['discrimination', 'calibration', 'label_efficiency', 'robustness'], axis)""",
        (Figure("lines", "value", "axis", series="dataset_id", panel=("encoder_id",)),),
        table="cell_scores",
    ),
    Section(
        "label_curves",
        "scores",
        "AUROC over labels",
        "How much of its AUROC does an encoder keep with fewer labels? Clean test images, means over seeds with 95 % "
        "intervals over seeds.",
        f"SELECT * EXCLUDE (protocol_id, label_policy, macro_auroc_sd) FROM label_curves "
        f"ORDER BY list_position({_PLACE}, encoder_id), dataset_id, label_fraction",
        (
            Figure(
                "lines",
                "label_fraction",
                "macro_auroc_mean",
                "macro_auroc_ci_seed_low",
                "macro_auroc_ci_seed_high",
                series="dataset_id",
                panel=("encoder_id",),
                is_log_x=True,
            ),
        ),
        table="seed_aggregates",
        is_summary=True,
    ),
    Section(
        "corruption_curves",
        "scores",
        "AUROC under corruption",
        "How fast does AUROC fall as simulated corruptions grow? Severity 0 is the clean image; all labels, means over "
        "seeds, with 95 % intervals over test groups in the table.",
        f"""
WITH found AS (
    SELECT dataset_id, encoder_id, regexp_extract(condition_id, '^(.+)-s(\\d+)$', ['corruption', 'severity']) AS c, *
    FROM seed_aggregates WHERE label_fraction = 1
), corrupted AS (
    SELECT dataset_id, encoder_id, c.corruption AS corruption, c.severity::BIGINT AS severity, macro_auroc_mean,
        macro_auroc_ci_test_low, macro_auroc_ci_test_high, ece_mean, reason
    FROM found WHERE c.corruption <> ''
), clean AS (
    SELECT f.dataset_id, f.encoder_id, k.corruption, 0::BIGINT AS severity, macro_auroc_mean, macro_auroc_ci_test_low,
        macro_auroc_ci_test_high, ece_mean, reason
    FROM found f
    JOIN (SELECT DISTINCT dataset_id, encoder_id, corruption FROM corrupted) k USING (dataset_id, encoder_id)
    WHERE condition_id = 'clean'
)
FROM clean UNION ALL FROM corrupted
ORDER BY dataset_id, list_position({_PLACE}, encoder_id), corruption, severity""",
        (
            Figure(
                "lines",
                "severity",
                "macro_auroc_mean",
                series="corruption",
                panel=("encoder_id",),
                block="dataset_id",
            ),
        ),
        table="seed_aggregates",
        is_summary=True,
    ),
    Section(
        "rank_agreement",
        "scores",
        "AUROC against CRS",
        "How often do the orders by AUROC and by CRS put two encoders the opposite way, and how often surely?",
        f"{_ALL} FROM rank_agreement WHERE {_OF_PANEL} ORDER BY auroc_variant, crs_variant",
    ),
    Section(
        "rank_displacement",
        "scores",
        "Places by AUROC and by CRS",
        "Which encoders gain or lose places when more than AUROC counts? Drawn: AUROC of the profile against the "
        "primary score, and the places that the score gives (right) or takes (left).",
        f"{_ALL} FROM rank_displacement WHERE {_OF_PANEL} "
        "ORDER BY auroc_variant, crs_variant, rank_crs NULLS LAST, encoder_id",
        (
            Figure("points", "auroc_score", "crs", where={"auroc_variant": "profile", "crs_variant": "primary"}),
            Figure(
                "bars", "rank_displacement", "encoder_id", where={"auroc_variant": "profile", "crs_variant": "primary"}
            ),
        ),
    ),
)

_EVIDENCE = (
    Section(
        "bootstrap_ranks",
        "evidence",
        "How firm the ranks are",
        "How often is each encoder first, or in the top 3, when seeds, or seeds and test images, "
        "are drawn again? Anchors stay as frozen. Intervals hold 95 % of the redrawn ranks.",
        "SELECT resampling, encoder_id, rank, b.rank_lo, b.rank_hi, b.crs, crs_ci_low, crs_ci_high, b.p_best, p_top_3, "
        "p_best_enumerated, n_tier, is_in_tier, n_replicates, b.reason, enumeration_reason "
        f"FROM bootstrap_ranks b LEFT JOIN ranks USING (encoder_id, panel_id) WHERE {_OF_PANEL} "
        "AND anchors = 'frozen' AND resampling <> 'test' ORDER BY resampling DESC, b.crs DESC NULLS LAST, encoder_id",
        (Figure("intervals", "rank", "encoder_id", "rank_lo", "rank_hi", series="resampling"),),
        is_summary=True,
    ),
    Section(
        "dominance",
        "evidence",
        "Dominance",
        "Which encoder is at least as good as another on all four axes and better on one, and how surely? "
        "Established: probability at least .95. Drawn: the row's probability of dominating the column, in percent. "
        "Pairs of probability 0 that do not dominate are left out.",
        "SELECT encoder_id, other_encoder_id, is_dominating, p_dominates, is_established, reason FROM dominance "
        f"WHERE {_OF_PANEL} AND (is_dominating OR p_dominates > 0) "
        f"ORDER BY list_position({_PLACE}, encoder_id), list_position({_PLACE}, other_encoder_id)",
        (Figure("matrix", "other_encoder_id", "encoder_id", value="p_dominates"),),
        is_summary=True,
    ),
    Section(
        "axis_reliability",
        "evidence",
        "Reliability of the axes",
        "How much of the encoders' differences on an axis is more than error? Below .7 an axis orders mostly noise.",
        f"{_ALL} FROM axis_reliability WHERE {_OF_PANEL} ORDER BY axis, dataset_id",
        (Figure("intervals", "reliability", "axis", series="dataset_id"),),
    ),
    Section(
        "axis_correlations",
        "evidence",
        "Correlation of the axes",
        "Do the four axes measure different things? Drawn: Pearson's r between encoders, in hundredths.",
        f"{_ALL} FROM axis_correlations WHERE {_OF_PANEL} ORDER BY level DESC, centring, dataset_id, axis, other_axis",
        (
            Figure(
                "matrix",
                "other_axis",
                "axis",
                value="pearson",
                where={"level": "encoder", "centring": "raw", "dataset_id": ""},
            ),
        ),
    ),
    Section(
        "label_efficiency_informativeness",
        "evidence",
        "What label efficiency adds",
        "Does label efficiency say more than AUROC at all labels? A correlation near 1 or -1 says no.",
        f"{_ALL} FROM label_efficiency_informativeness WHERE {_OF_PANEL} ORDER BY quantity, level, centring",
    ),
)

_ROBUSTNESS = (
    Section(
        "crs_variants",
        "robustness",
        "Score without shift terms",
        "Does the place of an encoder hang on the shift target (corruption only: no shift terms at all; without "
        "exposed: none of targets that the encoder saw in pretraining)?",
        f"{_ALL} FROM crs_variants WHERE {_OF_PANEL} ORDER BY variant, rank NULLS LAST, encoder_id",
    ),
    Section(
        "panel_perturbations",
        "robustness",
        "Other panels",
        "Would the order of the others hold if members had not been there? 1, 3 or 5 are dropped. Drawn: the "
        "distribution of tau-b; 1 is the same order.",
        f"SELECT n_dropped, count(*) AS n_perturbations, {_TAU}, min(top_3_overlap) AS min_top_3_overlap, {_REASON} "
        f"FROM panel_perturbations WHERE {_OF_PANEL} GROUP BY n_dropped ORDER BY n_dropped",
        (
            Figure(
                "box",
                "tau_b",
                "n_dropped",
                query="SELECT n_dropped::VARCHAR AS n_dropped, tau_b FROM panel_perturbations "
                f"WHERE {_OF_PANEL} ORDER BY panel_perturbations.n_dropped, perturbation_id",
            ),
        ),
        is_summary=True,
    ),
    Section(
        "weight_perturbations",
        "robustness",
        "Other weights",
        "Would the order hold under other weights of the axes or of the three components? Drawn: the distribution of "
        "tau-b over random draws.",
        "SELECT weights_of, CASE WHEN is_draw THEN 'random draws' ELSE perturbation_id END AS weights, "
        f"count(*) AS n_perturbations, {_TAU}, avg(is_top_3_unchanged::INTEGER) AS share_top_3_unchanged, {_REASON} "
        f"FROM weight_perturbations WHERE {_OF_PANEL} GROUP BY weights_of, is_draw, weights "
        "ORDER BY weights_of, is_draw DESC, weights",
        (
            Figure(
                "box",
                "tau_b",
                "weights_of",
                query="SELECT weights_of, tau_b FROM weight_perturbations "
                f"WHERE {_OF_PANEL} AND is_draw ORDER BY weights_of, perturbation_id",
            ),
        ),
        is_summary=True,
    ),
    Section(
        "insertion_trials",
        "robustness",
        "Newcomers",
        "How far do earlier scores move when encoders join? Under the fixed reference by nothing; under "
        "renormalisation of the whole cohort they do.",
        "SELECT mode, count(DISTINCT trial) AS n_trials, count(displacement) AS n_defined, "
        "avg(displacement) AS mean_displacement, median(displacement) AS median_displacement, "
        f"max(displacement) AS max_displacement, {_REASON} "
        f"FROM insertion_trials WHERE {_OF_PANEL} GROUP BY mode ORDER BY mode DESC",
        (
            Figure(
                "box",
                "displacement",
                "mode",
                query="SELECT mode, displacement FROM insertion_trials "
                f"WHERE {_OF_PANEL} ORDER BY mode DESC, trial, encoder_id",
            ),
        ),
        is_summary=True,
    ),
    Section(
        "metric_sensitivity",
        "robustness",
        "Other metrics",
        "Does the order hang on how an axis is measured? Tau-b of 1 is the same order.",
        f"{_ALL} FROM metric_sensitivity WHERE {_OF_PANEL} ORDER BY variant, dataset_id",
        (Figure("intervals", "tau_b", "variant"),),
    ),
    Section(
        "estimator_dependence",
        "robustness",
        "Other probes",
        "Does the order hang on the linear probe? Computed on request only.",
        f"{_ALL} FROM estimator_dependence WHERE {_OF_PANEL} ORDER BY estimator, rank NULLS LAST, encoder_id",
    ),
)

_TRANSFER = (
    Section(
        "lodo_transfer",
        "transfer",
        "A dataset left out",
        "Does the order on the other datasets foretell the order on a new one?",
        f"{_ALL} FROM lodo_transfer WHERE {_OF_PANEL} ORDER BY dataset_id",
        (Figure("intervals", "spearman", "dataset_id", "spearman_ci_low", "spearman_ci_high"),),
    ),
    Section(
        "mimic_transfer",
        "transfer",
        "Transfer to the shift target",
        "Does the score from simulated corruptions foretell AUROC at the other institution?",
        f"{_ALL} FROM mimic_transfer WHERE {_OF_PANEL} ORDER BY dataset_id, target",
        (Figure("intervals", "spearman", "target", "spearman_ci_low", "spearman_ci_high"),),
    ),
    Section(
        "institutional_shift",
        "transfer",
        "At another institution",
        "What does each encoder lose where images come from elsewhere? On the dashed line nothing is lost. An encoder "
        "that saw images of either institution is marked in the table. Controls are small and grey, and last there.",
        "SELECT * EXCLUDE (protocol_id, label_policy) REPLACE (coalesce(category, 'control') AS category) "
        f"FROM institutional_shift ORDER BY dataset_id, {_IS_CONTROL}, shift_macro_auroc DESC NULLS LAST, encoder_id",
        (Figure("points", "source_macro_auroc", "shift_macro_auroc", series="category", is_compared=True),),
    ),
    Section(
        "institutional_shift_test",
        "transfer",
        "Medical pretraining and shift",
        "Do medically pretrained encoders hold up better at the other institution?",
        f"{_ALL} FROM institutional_shift_test WHERE {_OF_PANEL} ORDER BY dataset_id, quantity, unit",
    ),
    Section(
        "label_scarcity",
        "transfer",
        "Few labels",
        "Does medical pretraining help more where labels are few? Drawn: AUROC of medical less generalist encoders, "
        "and how much more that is than at all labels; an interval of this interaction without 0 says so.",
        f"{_ALL} FROM label_scarcity WHERE {_OF_PANEL} ORDER BY dataset_id, category, label_fraction",
        (
            Figure("lines", "label_fraction", "difference", series="category", panel=("dataset_id",), is_log_x=True),
            Figure(
                "lines",
                "label_fraction",
                "interaction",
                "interaction_ci_low",
                "interaction_ci_high",
                series="category",
                panel=("dataset_id",),
                is_log_x=True,
            ),
        ),
    ),
    Section(
        "specialization",
        "transfer",
        "Specialization",
        "Are medically pretrained encoders better in their own domain than out of it, or than their generalist parent? "
        "Right of 0 they are.",
        "SELECT * EXCLUDE (protocol_id, label_policy, panel_id, category, encoder_id, reason) "
        "REPLACE (nullif(parent_encoder_id, '') AS parent_encoder_id), "
        "CASE encoder_id WHEN '' THEN category ELSE encoder_id END AS who, reason "
        f"FROM specialization WHERE {_OF_PANEL} ORDER BY reference, who, axis",
        (Figure("bars", "difference", "who", series="axis", panel=("reference",)),),
    ),
)

_CALIBRATION = (
    Section(
        "calibration_repair",
        "calibration",
        "Repair of calibration",
        "Does post-hoc calibration mend the ECE, on clean images and under shift? Under the dashed line it does; on it "
        "nothing was accepted. Controls are small and grey, and last in the table.",
        "SELECT dataset_id, condition_id, encoder_id, method, ece_before, ece_after, relative_reduction, "
        "ece_floor_p95, delta_auroc, n_seeds, n_seeds_accepted, is_primary, reason FROM calibration_repair "
        f"ORDER BY dataset_id, condition_id, {_IS_CONTROL}, encoder_id, method",
        (
            Figure(
                "points",
                "ece_before",
                "ece_after",
                series="method",
                panel=("dataset_id", "condition_id"),
                is_compared=True,
            ),
        ),
        is_summary=True,
    ),
    Section(
        "corruption_miscalibration",
        "calibration",
        "Calibration under corruption",
        "Does calibration break together with AUROC when images are corrupted?",
        f"{_ALL} FROM corruption_miscalibration WHERE {_OF_PANEL} "
        f"ORDER BY dataset_id, {_IS_CONTROL}, mean_delta_ece DESC NULLS LAST, encoder_id",
        (Figure("points", "mean_relative_auroc_loss", "mean_delta_ece", series="dataset_id"),),
    ),
)

_DATA = (
    Section(
        "datasets",
        "data",
        "Datasets",
        "What are the images, and under which terms are they used?",
        "SELECT dataset_id, name, dataset_version, modality, task, n_classes, label_policy, shift_id, licence, "
        "is_synthetic FROM datasets ORDER BY dataset_id",
        is_summary=True,
    ),
    Section(
        "splits",
        "data",
        "Splits",
        "How many images, distinct pictures (duplicates count once) and groups (patients, lesions or components of "
        "duplicates) stand in each split? The test split is the same for all seeds.",
        "SELECT dataset_id, source_id, split, min(n_images) AS min_images, max(n_images) AS max_images, "
        "min(n_pictures) AS min_pictures, max(n_pictures) AS max_pictures, "
        "min(n_groups) AS min_groups, max(n_groups) AS max_groups FROM dataset_statistics "
        "GROUP BY ALL ORDER BY dataset_id, source_id, split",
        table="dataset_statistics",
        is_summary=True,
    ),
    Section(
        "dataset_statistics",
        "data",
        "Classes and labels",
        "How many images of each split show each class or label, at home and at the shift target, and how many labels "
        "does their source state as uncertain or leave blank? Drawn: positive test images. Train and validation are "
        "those of the first seed; no seed moves the test split.",
        "SELECT dataset_id, source_id, split, class_name, n_images, n_positive, prevalence, n_unknown, n_uncertain, "
        "n_blank, reason FROM dataset_statistics LEFT JOIN datasets USING (dataset_id) "
        "WHERE seed = (SELECT min(seed) FROM dataset_statistics) "
        "ORDER BY dataset_id, CASE source_id WHEN 'primary' THEN '' ELSE source_id END, split, "
        "CASE task WHEN 'ordinal' THEN list_position(from_json(classes, '[\"VARCHAR\"]'), class_name) END, "
        "n_positive DESC, class_name",
        (
            Figure(
                "bars",
                "n_positive",
                "class_name",
                series="source_id",
                panel=("dataset_id",),
                where={"split": "test"},
            ),
        ),
        is_summary=True,
    ),
    Section(
        "quarantine",
        "data",
        "Images left out",
        "How many images were left out by the integrity checks, by a cap, or by the split that the cohort declares, "
        "and why? They are left out for every encoder alike.",
        """
SELECT dataset_id, source_id, count(*) AS n_images, reason FROM quarantine GROUP BY ALL
UNION ALL
SELECT dataset_id, 'primary' AS source_id, count(DISTINCT image_id) AS n_images, s.reason
FROM splits s ANTI JOIN (FROM quarantine WHERE source_id = 'primary') q USING (dataset_id, image_id)
WHERE split = 'left_out' GROUP BY ALL
ORDER BY ALL""",
        is_summary=True,
        empty="None.",
    ),
)

_PROVENANCE = (
    Section(
        "encoders",
        "provenance",
        "Encoders",
        "Where do the encoders come from, under which licence, and what did they see in pretraining? Inferred: the "
        "paper does not name it.",
        "SELECT encoder_id, kind, category, family, pretraining_objective, domains, licence, "
        "is_non_commercial, is_gated, hub_id, revision, exposure, same_encoder_as, is_inferred, is_synthetic "
        f"FROM encoders ORDER BY {_IS_CONTROL}, encoder_id",
        is_summary=True,
    ),
    Section(
        "reference_panels",
        "provenance",
        "Reference panel",
        "Which members hold the ends between which a score is read?",
        "SELECT dataset_id, axis, anchor_low, low_encoder_id, anchor_high, high_encoder_id, n_members, "
        f"robustness_variant, is_degenerate FROM reference_panels WHERE {_OF_PANEL} ORDER BY dataset_id, axis",
        is_summary=True,
    ),
    Section(
        "partitions",
        "provenance",
        "Versions of the tables",
        "Which versions of the code and of the tables' shapes made these numbers, and when?",
        "SELECT table_name, schema_version, code_version, count(*) AS n_partitions, sum(n_rows)::BIGINT AS n_rows, "
        "max(written_at) AS written_at FROM partitions GROUP BY ALL ORDER BY ALL",
        is_summary=True,
    ),
)

SECTIONS: tuple[Section, ...] = (
    *_DECISION, *_SCORES, *_EVIDENCE, *_ROBUSTNESS, *_TRANSFER, *_CALIBRATION, *_DATA, *_PROVENANCE,
)  # fmt: skip
