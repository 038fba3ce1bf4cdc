"""The analyses as sections of the report: what each asks, which rows answer, and what is drawn of them.

What lives here: the list of sections in the order of the page, and the summaries by which long tables are shown. What
stays out: reading the rows (``frames``), drawing (``figures.analyses``), what follows for a choice (``decision``), and
every statistic: those stand in the tables.
Source: protocol page, section 8.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from crsbench_assets.tables.registry import TABLES


@dataclass(frozen=True)
class Figure:
    """What is drawn of a section's rows.

    Args:
        kind: ``intervals`` (x with ``low`` and ``high``, one line per y), ``points`` (y against x) or ``matrix``
            (``value`` in row y and column x).
        x, y: columns.
        low, high: columns of the bounds of ``intervals``.
        value: column of the numbers of ``matrix``.
        series: column whose values are drawn with markers of their own; empty for one series.
        where: values that rows must have to be drawn.
        is_compared: draw the line on which x and y are equal.
    """

    kind: Literal["intervals", "points", "matrix"]
    x: str
    y: str
    low: str = ""
    high: str = ""
    value: str = ""
    series: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    is_compared: bool = False


@dataclass(frozen=True)
class Section:
    """One table of analyses on the page.

    Args:
        table: the table; its rows of the leaderboard's panel are shown.
        title: heading.
        question: what is asked, and how an answer is read.
        select: columns or summaries; ``*`` for all columns.
        rest: what follows in the query: a condition (``AND ...``), groups, and order.
        figure: what is drawn, or None.
    """

    table: str
    title: str
    question: str
    select: str = "*"
    rest: str = ""
    figure: Figure | None = None

    @property
    def is_summary(self) -> bool:
        """Whether the page shows fewer rows or columns than the table holds."""
        return bool(self.select != "*" or self.rest.startswith("AND"))

    @property
    def is_of_panel(self) -> bool:
        """Whether the table's rows belong to a panel."""
        return any(column.name == "panel_id" for column in TABLES[self.table].columns)


_REASON = "string_agg(DISTINCT reason, ', ' ORDER BY reason) AS reason"
_TAU = "count(tau_b) AS n_defined, min(tau_b) AS min_tau_b, median(tau_b) AS median_tau_b, max(tau_b) AS max_tau_b"

SECTIONS: tuple[Section, ...] = (
    Section(
        "bootstrap_ranks",
        "How firm the ranks are",
        "How often is each encoder first, or in the top 3, when seeds (seed), or seeds and test images (seed_test), "
        "are drawn again? Anchors stay as frozen.",
        "resampling, encoder_id, crs, crs_ci_low, crs_ci_high, rank_lo, rank_hi, p_best, p_top_3, p_best_enumerated, "
        "n_tier, is_in_tier, n_replicates, reason, enumeration_reason",
        "AND anchors = 'frozen' AND resampling <> 'test' ORDER BY resampling DESC, crs DESC NULLS LAST, encoder_id",
        Figure("intervals", "crs", "encoder_id", "crs_ci_low", "crs_ci_high", where={"resampling": "seed_test"}),
    ),
    Section(
        "dominance",
        "Dominance",
        "Which encoder is at least as good as another on all four axes and better on one, and how surely? "
        "Established: probability at least .95. Pairs of probability 0 that do not dominate are left out.",
        "encoder_id, other_encoder_id, is_dominating, p_dominates, is_established, reason",
        "AND (is_dominating OR p_dominates > 0) ORDER BY encoder_id, other_encoder_id",
        Figure("matrix", "other_encoder_id", "encoder_id", value="p_dominates"),
    ),
    Section(
        "crs_variants",
        "Score without shift terms",
        "Does the place of an encoder hang on the shift target, which some encoders saw in pretraining?",
        "variant, encoder_id, crs, rank, reason",
        "ORDER BY variant, rank NULLS LAST, encoder_id",
    ),
    Section(
        "panel_perturbations",
        "Other panels",
        "Would the order of the others hold if members had not been there? 1, 3 or 5 are dropped.",
        f"n_dropped, count(*) AS n_perturbations, {_TAU}, min(top_3_overlap) AS min_top_3_overlap, {_REASON}",
        "GROUP BY n_dropped ORDER BY n_dropped",
    ),
    Section(
        "insertion_trials",
        "Newcomers",
        "How far do earlier scores move when encoders join? Under the fixed reference by nothing; under "
        "renormalisation of the whole cohort they do.",
        "mode, count(DISTINCT trial) AS n_trials, count(displacement) AS n_defined, "
        "avg(displacement) AS mean_displacement, median(displacement) AS median_displacement, "
        f"max(displacement) AS max_displacement, {_REASON}",
        "GROUP BY mode ORDER BY mode DESC",
    ),
    Section(
        "rank_agreement",
        "AUROC against CRS",
        "How often do the orders by AUROC and by CRS put two encoders the opposite way, and how often surely?",
        rest="ORDER BY auroc_variant, crs_variant",
    ),
    Section(
        "rank_displacement",
        "Places by AUROC and by CRS",
        "Which encoders gain or lose places when more than AUROC counts? On the dashed line both ranks are equal.",
        rest="ORDER BY auroc_variant, crs_variant, rank_crs NULLS LAST, encoder_id",
        figure=Figure(
            "points",
            "rank_auroc",
            "rank_crs",
            where={"auroc_variant": "profile", "crs_variant": "primary"},
            is_compared=True,
        ),
    ),
    Section(
        "label_efficiency_informativeness",
        "What label efficiency adds",
        "Does label efficiency say more than AUROC at all labels? A correlation near 1 or -1 says no.",
        rest="ORDER BY quantity, level, centring",
    ),
    Section(
        "axis_correlations",
        "Correlation of the axes",
        "Do the four axes measure different things? The figure shows Pearson's correlation between encoders.",
        rest="ORDER BY level DESC, centring, dataset_id, axis, other_axis",
        figure=Figure(
            "matrix",
            "other_axis",
            "axis",
            value="pearson",
            where={"level": "encoder", "centring": "raw", "dataset_id": ""},
        ),
    ),
    Section(
        "weight_perturbations",
        "Other weights",
        "Would the order hold under other weights of the axes or of the three components?",
        "weights_of, CASE WHEN is_draw THEN 'random draws' ELSE perturbation_id END AS weights, "
        f"count(*) AS n_perturbations, {_TAU}, "
        f"avg(is_top_3_unchanged::INTEGER) AS share_top_3_unchanged, {_REASON}",
        "GROUP BY weights_of, is_draw, weights ORDER BY weights_of, is_draw DESC, weights",
    ),
    Section(
        "lodo_transfer",
        "A dataset left out",
        "Does the order on the other datasets foretell the order on a new one?",
        rest="ORDER BY dataset_id",
        figure=Figure("intervals", "spearman", "dataset_id", "spearman_ci_low", "spearman_ci_high"),
    ),
    Section(
        "mimic_transfer",
        "Transfer to the shift target",
        "Does the score from simulated corruptions foretell AUROC at the other institution?",
        rest="ORDER BY dataset_id, target",
        figure=Figure("intervals", "spearman", "target", "spearman_ci_low", "spearman_ci_high"),
    ),
    Section(
        "metric_sensitivity",
        "Other metrics",
        "Does the order hang on how an axis is measured?",
        rest="ORDER BY variant, dataset_id",
    ),
    Section(
        "estimator_dependence",
        "Other probes",
        "Does the order hang on the linear probe? Computed on request only.",
        rest="ORDER BY estimator, rank NULLS LAST, encoder_id",
    ),
    Section(
        "institutional_shift",
        "At another institution",
        "What does each encoder lose where images come from elsewhere? On the dashed line nothing is lost.",
        rest="ORDER BY dataset_id, shift_macro_auroc DESC NULLS LAST, encoder_id",
        figure=Figure("points", "source_macro_auroc", "shift_macro_auroc", series="category", is_compared=True),
    ),
    Section(
        "institutional_shift_test",
        "Medical pretraining and shift",
        "Do medically pretrained encoders hold up better at the other institution?",
        rest="ORDER BY dataset_id, quantity, unit",
    ),
    Section(
        "label_scarcity",
        "Few labels",
        "Does medical pretraining help more where labels are few? An interval of the interaction without 0 says so.",
        rest="ORDER BY dataset_id, category, label_fraction",
    ),
    Section(
        "calibration_repair",
        "Repair of calibration",
        "Does post-hoc calibration mend the ECE, on clean images and under shift? Means over encoders; under the "
        "dashed line it does.",
        "dataset_id, method, condition_id, count(ece_after) AS n_encoders, sum(n_seeds)::BIGINT AS n_seeds, "
        "sum(n_seeds_accepted)::BIGINT AS n_seeds_accepted, "
        "avg(ece_before) FILTER (WHERE ece_after IS NOT NULL) AS mean_ece_before, "
        f"avg(ece_after) AS mean_ece_after, avg(delta_auroc) AS mean_delta_auroc, {_REASON}",
        "GROUP BY dataset_id, method, condition_id ORDER BY dataset_id, condition_id, method",
        Figure("points", "mean_ece_before", "mean_ece_after", series="method", is_compared=True),
    ),
    Section(
        "corruption_miscalibration",
        "Calibration under corruption",
        "Does calibration break together with AUROC when images are corrupted?",
        rest="ORDER BY dataset_id, mean_delta_ece DESC NULLS LAST, encoder_id",
        figure=Figure("points", "mean_relative_auroc_loss", "mean_delta_ece", series="dataset_id"),
    ),
    Section(
        "specialization",
        "Specialization",
        "Are medically pretrained encoders better in their own domain than out of it, or than their generalist parent?",
        rest="ORDER BY reference, category, encoder_id, axis",
    ),
    Section(
        "selection_regret",
        "Regret of a choice",
        "What is lost on each axis by choosing by AUROC, by CRS or at random? 0 is no loss.",
        "rule, axis, chosen_encoder_id, best_encoder_id, regret, regret_ci_low, regret_ci_high, reason",
        "ORDER BY axis, rule",
        Figure("intervals", "regret", "axis", "regret_ci_low", "regret_ci_high", series="rule"),
    ),
    Section(
        "axis_reliability",
        "Reliability of the axes",
        "How much of the encoders' differences on an axis is more than error? Below .7 an axis orders mostly noise.",
        rest="ORDER BY dataset_id, axis",
    ),
)
