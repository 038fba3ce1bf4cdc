"""What each metric column of a run record means.

What lives here: the vocabulary of the package (tasks, reasons) and one :class:`MetricSpec` per metric column,
with direction, range and definition id, in the order of the columns.
What stays out: the arithmetic (``ranking``, ``calibration``, ``ordinal``, ``compute``) and the columns' types
(``tables``).
Source: protocol page, section 5; the papers behind each definition are cited where it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Task = Literal["single_label", "ordinal", "multi_label"]
"""Single-label and ordinal logits go through softmax, multi-label logits through the logistic function."""

UndefinedReason = Literal[
    "no_images", "class_absent_train", "one_class_train", "no_labels", "no_positive", "no_negative"
]
"""Why a value of a record or of one of its labels is undefined."""

ECE_DEFINITION = "equal_width_right_closed-1"
"""Equal-width bins closed on the right, zero in the first; top-label confidence for single-label and ordinal
tasks, macro mean of the positive-class error for multi-label tasks. The number of bins is a field of the
protocol."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric column: what it says, which way is better, where it can lie.

    ``better`` is None for a level that other columns are compared with; ``high`` is None where there is no
    bound.
    """

    name: str
    description: str
    better: Literal["higher", "lower"] | None
    low: float
    high: float | None
    definition: str


METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "macro_auroc",
        "Mean over defined labels of the one-vs-rest area under the ROC curve, ties counted 1/2",
        "higher", 0.0, 1.0, "auroc_one_vs_rest_macro-1",
    ),
    MetricSpec(
        "ece",
        "Expected calibration error, equal-width bins; top-label, or macro over labels where multi-label",
        "lower", 0.0, 1.0, ECE_DEFINITION,
    ),
    MetricSpec(
        "adaptive_ece",
        "Calibration error over equal-mass bins that keep tied probabilities together; otherwise as ece",
        "lower", 0.0, 1.0, "equal_mass_ties_together-1",
    ),
    MetricSpec(
        "classwise_ece",
        "Mean over fitted classes or labels of the positive-class expected calibration error",
        "lower", 0.0, 1.0, "equal_width_right_closed_classwise-1",
    ),
    MetricSpec(
        "ece_debiased",
        "Root of the squared calibration error less its within-bin variance, 0 where negative; bins as ece",
        "lower", 0.0, 1.0, "equal_width_debiased_l2-1",
    ),
    MetricSpec(
        "brier",
        "Mean squared distance of probabilities from labels, summed over classes, or averaged over labels",
        "lower", 0.0, 2.0, "brier-1",
    ),
    MetricSpec(
        "nll",
        "Negative log-likelihood in nats; undefined where a test image's class was absent from train",
        "lower", 0.0, None, "nll_natural-1",
    ),
    MetricSpec(
        "accuracy",
        "Fraction of images whose argmax is right, or of known entries right at p >= 0.5 where multi-label",
        "higher", 0.0, 1.0, "accuracy_argmax_or_half-1",
    ),
    MetricSpec(
        "balanced_accuracy",
        "Mean recall over the classes in test, or mean over labels of the mean recall of both values",
        "higher", 0.0, 1.0, "recall_macro-1",
    ),
    MetricSpec(
        "qwk",
        "Quadratic weighted kappa of the argmax; ordinal tasks only",
        "higher", -1.0, 1.0, "kappa_quadratic-1",
    ),
    MetricSpec(
        "ordinal_mae",
        "Mean absolute difference between the argmax and the true grade, in grades; ordinal tasks only",
        "lower", 0.0, None, "mae_argmax-1",
    ),
    MetricSpec(
        "ece_floor",
        "Mean ece of a perfectly calibrated model with these probabilities and this many images",
        None, 0.0, 1.0, ECE_DEFINITION,
    ),
    MetricSpec(
        "ece_floor_p95",
        "95th percentile of that ece; an ece below it is compatible with perfect calibration",
        None, 0.0, 1.0, ECE_DEFINITION,
    ),
)  # fmt: skip
"""Every metric column of ``run_records``, in column order."""
