"""All probes of a cell: standardise once per seed, fit every fraction, predict every condition.

What lives here: which rows a probe sees, and the rows of ``probe_fits`` and ``predictions``. What stays out: the
solver (``logistic``) and the splits (``data.splits``). Source: protocol page, sections 2 and 4.
The unit of reproduction is (cell, seed): nothing of one seed depends on another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crsbench_assets.probes.logistic import Design, LogisticFit, fit_logistic

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from crsbench_assets.config.cards import Task

SOFTMAX = "softmax"


@dataclass(frozen=True)
class ProbeInputs:
    """Everything that the probes of a cell see.

    Args:
        task: kind of the labels.
        classes: k names.
        features: float (n, d) clean vectors of train, validation and test images.
        labels: int8 (n, k): 1, 0, -1 unknown.
        train: seed -> row numbers of the training split, in the order whose prefixes are the label fractions.
        n_validation: seed -> number of validation images.
        fraction_sizes: (seed, fraction) -> number of training images, or None where the fraction is infeasible.
        test: condition -> (image ids, vectors (n_test, d)); an absent condition has no records.
        c, gap, sd_floor: of the protocol.
    """

    task: Task
    classes: Sequence[str]
    features: NDArray[np.float32]
    labels: NDArray[np.int8]
    train: Mapping[int, NDArray[np.int64]]
    n_validation: Mapping[int, int]
    fraction_sizes: Mapping[tuple[int, float], int | None]
    test: Mapping[str, tuple[Sequence[str], NDArray[np.float32]]]
    c: float
    gap: float
    sd_floor: float


@dataclass(frozen=True)
class Standardisation:
    """Mean and scale of the training split; ``scale`` 0 marks a dimension that is set to 0."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    def apply(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return z-scored features, float64 (n, d)."""
        return (features.astype("float64") - self.mean) * self.scale


def standardisation(train: NDArray[np.float32], sd_floor: float) -> Standardisation:
    """Return the z-score of a training split: mean and standard deviation (ddof 0), both float64.

    A dimension whose standard deviation is at most ``sd_floor`` times the median one says nothing and is set to 0.

    Args:
        train: (n, d), n >= 1.
        sd_floor: relative floor.
    """
    import numpy as np

    values = train.astype(np.float64)
    sd = values.std(axis=0)
    alive = sd > sd_floor * np.median(sd)
    return Standardisation(values.mean(axis=0), np.where(alive, 1.0 / np.where(alive, sd, 1.0), 0.0))


def fit_cell(
    inputs: ProbeInputs, *, on_fit: Callable[[int, float], None] | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Fit and apply every probe of a cell.

    Args:
        inputs: see :class:`ProbeInputs`.
        on_fit: called with (seed, fraction) after each fit, for progress.

    Returns:
        Rows of ``probe_fits`` and of ``predictions``, without their constant columns.
    """
    import polars as pl

    from crsbench_assets.tables.registry import TABLES

    fits: list[dict[str, Any]] = []
    predictions: list[pl.DataFrame] = []
    for seed, rows in inputs.train.items():
        z = standardisation(inputs.features[rows], inputs.sd_floor)
        train = z.apply(inputs.features[rows])
        test = {name: (ids, z.apply(vectors)) for name, (ids, vectors) in inputs.test.items()}
        for fraction in sorted({f for s, f in inputs.fraction_sizes if s == seed}):
            size = inputs.fraction_sizes[seed, fraction]
            common = {
                "seed": seed,
                "label_fraction": fraction,
                "n_fit": size or 0,
                "n_val": inputs.n_validation[seed],
                "n_dims": train.shape[1],
                "n_dims_dropped": int((z.scale == 0).sum()),
            }
            if size is None:
                fits += [common | _unfitted(p, "infeasible_fraction") for p in problems(inputs)]
                continue
            outcome, weights, intercept = _fit_subset(inputs, train[:size], inputs.labels[rows[:size]])
            fits += [common | row for row in outcome]
            predictions += [
                _predictions(seed, fraction, name, ids, vectors @ weights.T + intercept)
                for name, (ids, vectors) in test.items()
            ]
            if on_fit:
                on_fit(seed, fraction)
    schema = TABLES["probe_fits"].polars_schema()
    fit_schema = {name: schema[name] for name in fits[0]}
    empty = TABLES["predictions"].empty().drop("encoder_id", "dataset_id")
    return pl.DataFrame(fits, schema=fit_schema), pl.concat([empty, *predictions])


def problems(inputs: ProbeInputs) -> list[str]:
    """Return the names of the separately solved problems: one softmax, or one per label."""
    return list(inputs.classes) if inputs.task == "multi_label" else [SOFTMAX]


def _fit_subset(
    inputs: ProbeInputs, features: NDArray[np.float64], labels: NDArray[np.int8]
) -> tuple[list[dict[str, Any]], NDArray[np.float64], NDArray[np.float64]]:
    """Return one row per problem, and weights (k, d) and intercepts (k,) with NaN where nothing was fitted."""
    import numpy as np

    k, d = labels.shape[1], features.shape[1]
    weights, intercept = np.full((k, d), np.nan), np.full(k, np.nan)
    rows: list[dict[str, Any]] = []
    if inputs.task != "multi_label":
        target = labels.argmax(axis=1)
        present = np.unique(target)
        if present.size < 2:
            return [_unfitted(SOFTMAX, "one_class_train")], weights, intercept
        fit = fit_logistic(features, np.searchsorted(present, target), present.size, inputs.c)
        weights[present], intercept[present] = fit.weights, fit.intercept
        return [_fitted(SOFTMAX, fit, inputs.gap)], weights, intercept
    everyone = Design(features)
    for j, name in enumerate(inputs.classes):
        known = labels[:, j] >= 0
        target = labels[known, j].astype(np.int64)
        if np.unique(target).size < 2:
            rows.append(_unfitted(name, "one_class_train"))
            continue
        fit = fit_logistic(everyone if known.all() else Design(features[known]), target, 1, inputs.c)
        weights[j], intercept[j] = fit.weights[0], fit.intercept[0]
        rows.append(_fitted(name, fit, inputs.gap))
    return rows, weights, intercept


def _fitted(problem: str, fit: LogisticFit, gap: float) -> dict[str, Any]:
    return {
        "problem": problem,
        "n_iter": fit.n_iter,
        "is_converged": fit.relative_gap <= gap,
        "objective": fit.objective,
        "grad_norm": fit.grad_norm,
        "relative_gap": fit.relative_gap,
        "solver": fit.solver,
        "reason": None,
    }


def _unfitted(problem: str, reason: str) -> dict[str, Any]:
    nothing = ("n_iter", "is_converged", "objective", "grad_norm", "relative_gap", "solver")
    return {"problem": problem} | dict.fromkeys(nothing) | {"reason": reason}


def _predictions(
    seed: int, fraction: float, condition: str, ids: Sequence[str], logits: NDArray[np.float64]
) -> pl.DataFrame:
    import numpy as np
    import polars as pl

    stored = pl.Series("logits", logits.astype(np.float32)).cast(pl.List(pl.Float32))
    if np.isnan(logits).any():
        stored = stored.list.eval(pl.element().fill_nan(None))
    return (
        pl.DataFrame({"image_id": pl.Series(ids, dtype=pl.String), "logits": stored})
        .with_columns(
            seed=pl.lit(seed, dtype=pl.Int64),
            label_fraction=pl.lit(fraction, dtype=pl.Float64),
            condition_id=pl.lit(condition),
        )
        .select("seed", "label_fraction", "condition_id", "image_id", "logits")
    )
