"""AUROC, ECE, Brier score and bootstrap, against scikit-learn and torchmetrics.

What lives here: the measurement behind ``crsbench bench metrics``. What stays out: the metrics themselves
(``crsbench_assets.metrics``).

Records: those of a CheXpert-size cell, 38,000 images and 14 labels, from float32 logits to three values per label.
scikit-learn's side calls ``roc_auc_score`` and ``brier_score_loss`` per label and bins with NumPy, since it has no ECE;
torchmetrics' side calls its multilabel AUROC, its binary calibration error per label (it has no multilabel one) and its
mean squared error, as they are called by default; without the validation of arguments they are timed beside. So are all
metrics of a record, eleven and those of its labels, on our side. Bootstrap: 1,000 replicates of one AUROC over 5,000
images in 1,642 groups, the drawing included. scikit-learn's side scores the resampled rows, or passes their weights;
its loop runs for some replicates and is scaled. One thread on each side, alternating in one run, medians of CPU time.

Run from a clone: ``crsbench bench metrics``, or ``python -m benchmarks.metrics``.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.special import expit
from sklearn.metrics import brier_score_loss, roc_auc_score

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.metrics.calibration import (
    brier_score,
    equal_width_bins,
    expected_calibration_error,
    logistic,
)
from crsbench_assets.metrics.columns import rank_columns
from crsbench_assets.metrics.compute import record_metrics
from crsbench_assets.metrics.ranking import auroc, ranking_scores
from crsbench_assets.metrics.replicates import exact_auroc_replicates, group_weights

N_IMAGES, N_LABELS, N_RECORDS = 38_000, 14, 405
N_MEASURED = 9
"""Turns of each side; every record has logits of its own."""
N_BINS = 15
N_BOOTSTRAPPED, N_GROUPS, N_REPLICATES = 5_000, 1_642, 1_000
N_LOOPED = 60
"""Replicates for which scikit-learn's loops run."""
SKLEARN_BAR, TORCHMETRICS_BAR, BOOTSTRAP_BAR = 15.0, 10.0, 40.0
"""Least ratio of the peer's CPU time to ours."""
AGREEMENT_BAR = 1e-9

Logits = NDArray[np.float32]
Labels = NDArray[np.int8]

console = Console(highlight=False, soft_wrap=True)


def run() -> int:
    """Print the figures, the ratios and their bars; return 1 where a bar is missed or a peer is absent, else 0."""
    if importlib.util.find_spec("torchmetrics") is None:
        console.print("metrics: torchmetrics is not installed; install it with `pip install 'crsbench[bench]'`.")
        return 1
    import torch
    from threadpoolctl import threadpool_limits

    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("scikit-learn", "torchmetrics", "numpy"))
    console.print(f"{', '.join(versions)}, torch {torch.__version__}; one thread on each side")
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            are_met = [*_records(), _bootstrap()]
    finally:
        torch.set_num_threads(n_threads)
    return 0 if all(are_met) else 1


def drawn_record(number: int, n: int, k: int) -> tuple[Logits, Labels]:
    """Return float32 logits and labels of which 2 to 45 % are positive."""
    generator = keyed_generator("bench metrics record", number)
    prevalence = keyed_generator("bench metrics prevalence").uniform(0.02, 0.45, k)
    labels = (generator.random((n, k)) < prevalence).astype(np.int8)
    return (generator.standard_normal((n, k)) + 1.5 * labels - 2.0).astype(np.float32), labels


def ours(logits: Logits, labels: Labels) -> NDArray[np.float64]:
    """Return AUROC, ECE and Brier score (3, k) by this project."""
    values = []
    for column in rank_columns(ranking_scores(logits, "multi_label"), labels):
        stated = column.rescored(logistic(column.scores))
        error = expected_calibration_error(equal_width_bins(stated, N_BINS))
        values.append((auroc(column), error, brier_score(stated)))
    return np.array(values).T


def by_sklearn(logits: Logits, labels: Labels) -> NDArray[np.float64]:
    """Return AUROC, ECE and Brier score (3, k) by scikit-learn, one call per label."""
    p = expit(logits.astype(np.float64))
    columns = range(labels.shape[1])
    return np.array(
        [
            [roc_auc_score(labels[:, c], logits[:, c]) for c in columns],
            [binned_error(p[:, c], labels[:, c]) for c in columns],
            [brier_score_loss(labels[:, c], p[:, c]) for c in columns],
        ]
    )


def binned_error(p: NDArray[np.float64], y: Labels) -> float:
    """Return the ECE of one label, in NumPy as it is usually written."""
    bins = np.digitize(p, np.linspace(0.0, 1.0, N_BINS + 1)[1:-1], right=True)
    n = np.bincount(bins, minlength=N_BINS)
    gaps = np.bincount(bins, p, N_BINS) - np.bincount(bins, y, N_BINS)
    filled = n > 0
    return float((n[filled] / len(p) * np.abs(gaps[filled] / n[filled])).sum())


def by_torchmetrics(logits: Logits, labels: Labels, *, validates: bool = True) -> NDArray[np.float64]:
    """Return AUROC, ECE and Brier score (3, k) by torchmetrics, in float32 as it computes."""
    import torch
    from torchmetrics.functional import mean_squared_error
    from torchmetrics.functional.classification import binary_calibration_error, multilabel_auroc

    k = labels.shape[1]
    z, y = torch.from_numpy(logits), torch.from_numpy(labels).long()
    p = torch.sigmoid(z)
    area = multilabel_auroc(z, y, num_labels=k, average=None, validate_args=validates)
    by_label = zip(p.T.contiguous(), y.T.contiguous(), strict=True)  # it warns that strided columns are slow
    errors = [binary_calibration_error(*label, n_bins=N_BINS, validate_args=validates) for label in by_label]
    squared = mean_squared_error(p, y.float(), num_outputs=k)
    return np.stack([area.numpy(), torch.stack(errors).numpy(), squared.numpy()]).astype(np.float64)


def resampled_scores(labels: Labels, scores: Logits, groups: NDArray[np.int64], *, by_weight: bool) -> list[float]:
    """Return the AUROC of the first replicates by scikit-learn: of the resampled rows, or with weights."""
    weights = group_weights("bench metrics", N_GROUPS, N_LOOPED)
    values = []
    for weight in weights:
        of_rows = weight[groups]
        if by_weight:
            values.append(float(roc_auc_score(labels, scores, sample_weight=of_rows)))
        else:
            rows = np.repeat(np.arange(len(groups)), of_rows.astype(np.int64))
            values.append(float(roc_auc_score(labels[rows], scores[rows])))
    return values


def medians(sides: dict[str, Callable[[int], object]], repeats: int) -> dict[str, float]:
    """Return the median CPU time of each side in milliseconds; the sides alternate, after one unmeasured turn."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, side in sides.items():
            started = time.process_time()
            side(repeat)
            if repeat:
                times[name].append((time.process_time() - started) * 1000.0)
    return {name: statistics.median(values) for name, values in times.items()}


def _records() -> list[bool]:
    """Time a record, compare the values, print both and return which bars are met."""
    drawn = [drawn_record(number, N_IMAGES, N_LABELS) for number in range(N_MEASURED + 1)]
    groups = np.arange(N_IMAGES) // 3
    milliseconds = medians(
        {
            "ours": lambda i: ours(*drawn[i]),
            "scikit-learn": lambda i: by_sklearn(*drawn[i]),
            "torchmetrics": lambda i: by_torchmetrics(*drawn[i]),
            "torchmetrics, not validating": lambda i: by_torchmetrics(*drawn[i], validates=False),
            "ours, all metrics": lambda i: record_metrics(*drawn[i], "multi_label", groups=groups, n_bins=N_BINS),
        },
        N_MEASURED,
    )
    for name, figure in milliseconds.items():
        console.print(
            f"{name}: {figure:.1f} ms of CPU for a record of {N_IMAGES} images and {N_LABELS} labels, "
            f"{figure * N_RECORDS / 1000:.1f} s for {N_RECORDS} of them"
        )
    values = {name: side(*drawn[0]) for name, side in (("ours", ours), ("scikit-learn", by_sklearn))}
    largest = np.abs(values["ours"] - values["scikit-learn"]).max(axis=1)
    console.print(
        f"largest difference from scikit-learn: AUROC {largest[0]:.1e}, ECE {largest[1]:.1e}, Brier {largest[2]:.1e}; "
        f"from torchmetrics, which computes in float32: {_differences(values['ours'], by_torchmetrics(*drawn[0]))}"
    )
    agrees = bool((largest <= AGREEMENT_BAR).all())
    console.print(f"metrics: equal to scikit-learn within {AGREEMENT_BAR:g}: {_verdict(agrees)}")
    are_met = [agrees]
    for peer, bar in (("scikit-learn", SKLEARN_BAR), ("torchmetrics", TORCHMETRICS_BAR)):
        ratio = milliseconds[peer] / milliseconds["ours"]
        are_met.append(ratio >= bar)
        console.print(f"metrics: {peer} takes {ratio:.1f} x our time, bar {bar:g} x: {_verdict(ratio >= bar)}")
    return are_met


def _bootstrap() -> bool:
    """Time the clustered bootstrap, compare the replicates, print both and return whether the bar is met."""
    logits, labels = drawn_record(0, N_BOOTSTRAPPED, 1)
    groups = np.sort(keyed_generator("bench metrics groups").integers(N_GROUPS, size=N_BOOTSTRAPPED))

    def all_replicates(_: int = 0) -> NDArray[np.float64]:
        weights = group_weights("bench metrics", N_GROUPS, N_REPLICATES)
        return exact_auroc_replicates(logits, labels, "multi_label", groups, weights).values

    def loop(by_weight: bool) -> list[float]:
        return resampled_scores(labels[:, 0], logits[:, 0], groups, by_weight=by_weight)

    milliseconds = medians(
        {
            "ours, exact": all_replicates,
            "scikit-learn, resampled rows": lambda _: loop(False),
            "scikit-learn, sample_weight": lambda _: loop(True),
        },
        N_MEASURED,
    )
    milliseconds = {
        name: figure if name == "ours, exact" else figure * N_REPLICATES / N_LOOPED
        for name, figure in milliseconds.items()
    }
    for name, figure in milliseconds.items():
        console.print(f"{name}: {figure:.0f} ms of CPU for {N_REPLICATES} replicates of {N_BOOTSTRAPPED} images")
    # The weights of the first replicates differ with their number, because all are drawn at once.
    weights = group_weights("bench metrics", N_GROUPS, N_LOOPED)
    exact = exact_auroc_replicates(logits, labels, "multi_label", groups, weights).values
    difference = float(np.abs(exact - loop(False)).max())
    agrees = difference <= AGREEMENT_BAR
    console.print(f"largest difference from scikit-learn's loop in {N_LOOPED} replicates: {difference:.1e}")
    ratio = milliseconds["scikit-learn, resampled rows"] / milliseconds["ours, exact"]
    is_met = agrees and ratio >= BOOTSTRAP_BAR
    console.print(
        f"metrics: scikit-learn's loop takes {ratio:.0f} x our time for the clustered bootstrap, drawing included, "
        f"bar {BOOTSTRAP_BAR:g} x: {_verdict(is_met)}"
    )
    return is_met


def _differences(values: NDArray[np.float64], others: NDArray[np.float64]) -> str:
    names = ("AUROC", "ECE", "Brier")
    largest = np.abs(values - others).max(axis=1)
    return ", ".join(f"{name} {value:.1e}" for name, value in zip(names, largest, strict=True))


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


if __name__ == "__main__":
    sys.exit(run())
