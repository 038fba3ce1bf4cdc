"""All probes of a cell: standardise once per seed, fit every fraction, predict every condition.

What lives here: which rows a probe sees, its weights on raw vectors, and the rows of ``probe_fits``,
``probe_weights`` and ``predictions``. What stays out: the solver (``logistic``) and the splits (``data.splits``).
Source: protocol page, sections 2 and 4.
The unit of reproduction is (cell, seed): nothing of one seed depends on another. What seeds share, the eigenbasis that
preconditions their fits, is made of the pool they are drawn from, which is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crsbench_assets.config.ids import VALIDATION_CONDITION
from crsbench_assets.probes.logistic import Certificate, Design, LogisticFit, fit_logistic

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from crsbench_assets.config.cards import Task

SOFTMAX = "softmax"

_CHUNK_ROWS = 8192
"""Rows that are held in float64 at once."""


@dataclass(frozen=True)
class ProbeInputs:
    """Everything that the probes of a cell see.

    Args:
        task: kind of the labels.
        classes: k names.
        image_ids: n ids, of the rows of ``features``.
        features: float32 (n, d) clean vectors of train, validation and test images.
        labels: int8 (n, k): 1, 0, -1 unknown.
        train: seed -> row numbers of the training split, in the order whose prefixes are the label fractions.
        validation: seed -> row numbers of the validation split.
        fraction_sizes: (seed, fraction) -> number of training images, or None where the fraction is infeasible.
        test: condition -> (image ids, vectors (n_test, d)); an absent condition has no predictions.
        c, gap, sd_floor: of the protocol.
        device: device of torch that the solver runs on.
    """

    task: Task
    classes: Sequence[str]
    image_ids: Sequence[str]
    features: NDArray[np.float32]
    labels: NDArray[np.int8]
    train: Mapping[int, NDArray[np.int64]]
    validation: Mapping[int, NDArray[np.int64]]
    fraction_sizes: Mapping[tuple[int, float], int | None]
    test: Mapping[str, tuple[Sequence[str], NDArray[np.float32]]]
    c: float
    gap: float
    sd_floor: float
    device: str = "cpu"

    @property
    def problems(self) -> tuple[str, ...]:
        """Names of the separately solved problems: one softmax, or one per label."""
        return tuple(self.classes) if self.task == "multi_label" else (SOFTMAX,)

    def fractions(self, seed: int) -> list[float]:
        """Return the label fractions of a seed, ascending."""
        return sorted(fraction for s, fraction in self.fraction_sizes if s == seed)


@dataclass(frozen=True)
class Standardisation:
    """Mean and scale of the training split; ``scale`` 0 marks a dimension that is set to 0."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    def apply(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return z-scored features (n, d), computed in float64 and stored as float32."""
        import numpy as np

        z = np.empty(features.shape, dtype=np.float32)
        for rows in _chunks(len(features)):
            z[rows] = (features[rows].astype(np.float64) - self.mean) * self.scale
        return z

    def on_raw(
        self, weights: NDArray[np.float64], intercept: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the weights (k, d) and intercepts (k,) that do to raw vectors what these do to z-scored ones."""
        raw = weights * self.scale
        return raw, intercept - raw @ self.mean


def standardisation(train: NDArray[np.float32], sd_floor: float) -> Standardisation:
    """Return the z-score of a training split: mean and standard deviation (ddof 0), both float64.

    A dimension whose standard deviation is at most ``sd_floor`` times the median one says nothing and is set to 0.

    Args:
        train: (n, d), n >= 1.
        sd_floor: relative floor.
    """
    import numpy as np

    n = len(train)
    mean = sum(train[rows].sum(axis=0, dtype=np.float64) for rows in _chunks(n)) / n
    squares = sum(((train[rows].astype(np.float64) - mean) ** 2).sum(axis=0) for rows in _chunks(n))
    sd = np.sqrt(squares / n)
    alive = sd > sd_floor * np.median(sd)
    return Standardisation(np.asarray(mean), np.where(alive, 1.0 / np.where(alive, sd, 1.0), 0.0))


@dataclass(frozen=True)
class FittedProbes:
    """Rows of the three tables, without their constant columns."""

    probe_fits: pl.DataFrame
    probe_weights: pl.DataFrame
    predictions: pl.DataFrame


def fit_cell(inputs: ProbeInputs, *, on_fit: Callable[[int, float], None] | None = None) -> FittedProbes:
    """Fit and apply every probe of a cell.

    Args:
        inputs: see :class:`ProbeInputs`.
        on_fit: called with (seed, fraction) after each fit, for progress.

    Returns:
        The rows. Predictions of the validation split, which post-hoc calibration is fitted on, stand under condition
        ``validation`` at all labels.
    """
    import polars as pl

    from crsbench_assets.tables.registry import TABLES

    fits: list[dict[str, Any]] = []
    weights = [TABLES["probe_weights"].computed()]
    predictions = [TABLES["predictions"].computed()]
    pool = _pool_design(inputs)
    for seed in inputs.train:
        probes, rows = _fit_seed(inputs, seed, pool, on_fit)
        fits += rows
        weights.append(weight_rows(seed, probes, inputs))
        for condition, (ids, vectors) in inputs.test.items():
            predictions.append(prediction_rows(seed, condition, ids, probes, vectors))
        held_out = inputs.validation[seed]
        at_all = {fraction: probe for fraction, probe in probes.items() if fraction == 1.0}
        ids = [inputs.image_ids[row] for row in held_out]
        predictions.append(prediction_rows(seed, VALIDATION_CONDITION, ids, at_all, inputs.features[held_out]))
    fitted = TABLES["probe_fits"].computed(fits)
    return FittedProbes(fitted, pl.concat(weights), pl.concat(predictions))


RawProbe = tuple["NDArray[np.float64]", "NDArray[np.float64]"]
"""Weights (k, d) and intercepts (k,) on raw vectors; NaN where a class was not fitted."""


def probe_logits(probes: Mapping[float, RawProbe], vectors: NDArray[np.float32]) -> dict[float, NDArray[np.float32]]:
    """Return the logits of raw vectors by the probes of one seed.

    Args:
        probes: label fraction -> weights (k, d) and intercepts (k,) on raw vectors. All fractions share one product,
            so give all of a seed: a part of them may differ in the last bit of float64.
        vectors: float32 (n, d).

    Returns:
        label fraction -> float32 (n, k), computed in float64; NaN in columns of classes that were not fitted.
    """
    import numpy as np

    if not probes:
        return {}
    stacked = np.concatenate([weights for weights, _ in probes.values()])
    intercepts = np.concatenate([intercept for _, intercept in probes.values()])
    logits = np.empty((len(vectors), len(stacked)), dtype=np.float32)
    for rows in _chunks(len(vectors)):
        logits[rows] = vectors[rows].astype(np.float64) @ stacked.T + intercepts
    parts = np.split(logits, len(probes), axis=1)
    return dict(zip(probes, parts, strict=True))


def weight_rows(seed: int, probes: Mapping[float, RawProbe], inputs: ProbeInputs) -> pl.DataFrame:
    """Return the rows of ``probe_weights`` of one seed, without constant columns."""
    import numpy as np
    import polars as pl

    from crsbench_assets.tables.registry import TABLES

    schema = TABLES["probe_weights"].polars_schema()
    rows = []
    for fraction, (weights, intercept) in probes.items():
        is_absent = inputs.task != "multi_label" and not np.isnan(intercept).all()
        for name, w, b in zip(inputs.classes, weights, intercept, strict=True):
            row = {"seed": seed, "label_fraction": fraction, "class_name": name}
            if np.isnan(b):
                row |= {"weights": None, "intercept": None}
                row |= {"reason": "class_absent_train" if is_absent else "one_class_train"}
            else:
                row |= {"weights": w.tolist(), "intercept": float(b), "reason": None}
            rows.append(row)
    return pl.DataFrame(
        rows, schema={name: schema[name] for name in schema if name not in ("encoder_id", "dataset_id")}
    )


def raw_probes(weights: pl.DataFrame, seed: int, classes: Sequence[str], d: int) -> dict[float, RawProbe]:
    """Return the probes of one seed on vectors of width d from rows of ``probe_weights``."""
    import numpy as np
    import polars as pl

    found: dict[float, RawProbe] = {}
    of_seed = weights.filter(pl.col("seed") == seed).sort("label_fraction")
    for (fraction,), rows in of_seed.partition_by("label_fraction", as_dict=True).items():
        by_class = {row["class_name"]: row for row in rows.iter_rows(named=True)}
        w, b = np.full((len(classes), d), np.nan), np.full(len(classes), np.nan)
        for j, name in enumerate(classes):
            if by_class[name]["weights"] is not None:
                w[j], b[j] = by_class[name]["weights"], by_class[name]["intercept"]
        found[float(fraction)] = (w, b)
    return found


def _pool_design(inputs: ProbeInputs) -> Design:
    """Return a sample of all seeds' training and validation images, by which their fits are preconditioned."""
    import numpy as np

    from crsbench_assets.probes.solver import GRAM_ROWS

    rows = np.unique(np.concatenate([*inputs.train.values(), *inputs.validation.values()]))
    n_rows = min(len(rows), GRAM_ROWS)
    sample = inputs.features[rows[np.arange(n_rows) * len(rows) // n_rows]]
    return Design(standardisation(sample, inputs.sd_floor).apply(sample), device=inputs.device)


def _fit_seed(
    inputs: ProbeInputs, seed: int, pool: Design, on_fit: Callable[[int, float], None] | None
) -> tuple[dict[float, RawProbe], list[dict[str, Any]]]:
    """Return the probes of a seed by fraction, and its rows of ``probe_fits``."""
    rows = inputs.train[seed]
    z = standardisation(inputs.features[rows], inputs.sd_floor)
    design = Design(z.apply(inputs.features[rows]), device=inputs.device, like=pool)
    labels = inputs.labels[rows]
    probes: dict[float, RawProbe] = {}
    fits: list[dict[str, Any]] = []
    for fraction in inputs.fractions(seed):
        size = inputs.fraction_sizes[seed, fraction]
        common = {
            "seed": seed,
            "label_fraction": fraction,
            "n_fit": size or 0,
            "n_val": len(inputs.validation[seed]),
            "n_dims": inputs.features.shape[1],
            "n_dims_dropped": int((z.scale == 0).sum()),
        }
        if size is None:
            nothing = Certificate(None, None, None, None, None, "infeasible_fraction")
            fits += [common | _fit_row(problem, nothing, inputs.gap) for problem in inputs.problems]
            continue
        fit: LogisticFit = fit_logistic(design.prefix(size), labels[:size], inputs.task, inputs.c, gap=inputs.gap)
        probes[fraction] = z.on_raw(fit.weights, fit.intercept)
        solved = zip(inputs.problems, fit.problems, strict=True)
        fits += [common | _fit_row(problem, certificate, inputs.gap) for problem, certificate in solved]
        if on_fit:
            on_fit(seed, fraction)
    return probes, fits


def _fit_row(problem: str, certificate: Certificate, gap: float) -> dict[str, Any]:
    found = certificate.relative_gap
    return {
        "problem": problem,
        "n_iter": certificate.n_iter,
        "is_converged": None if found is None else found <= gap,
        "objective": certificate.objective,
        "grad_norm": certificate.grad_norm,
        "relative_gap": found,
        "solver": certificate.solver,
        "reason": certificate.reason,
    }


def prediction_rows(
    seed: int, condition: str, ids: Sequence[str], probes: Mapping[float, RawProbe], vectors: NDArray[np.float32]
) -> pl.DataFrame:
    """Return the rows of ``predictions`` of one seed and condition, fraction by fraction, without constant columns."""
    import numpy as np
    import polars as pl

    from crsbench_assets.tables.registry import TABLES

    if not probes:
        return TABLES["predictions"].computed()
    logits = np.concatenate(list(probe_logits(probes, vectors).values()))
    stored = pl.Series("logits", logits).cast(pl.List(pl.Float32))
    if np.isnan(logits).any():
        stored = stored.list.eval(pl.element().fill_nan(None))
    rows = pl.DataFrame(
        {
            "label_fraction": np.repeat(np.array(list(probes), dtype=np.float64), len(ids)),
            "image_id": pl.Series([*ids] * len(probes), dtype=pl.String),
            "logits": stored,
        }
    )
    constant = pl.lit(seed, dtype=pl.Int64).alias("seed"), pl.lit(condition).alias("condition_id")
    return rows.with_columns(*constant).select("seed", "label_fraction", "condition_id", "image_id", "logits")


def _chunks(n: int) -> Iterator[slice]:
    """Yield slices that cover n rows."""
    for start in range(0, n, _CHUNK_ROWS):
        yield slice(start, start + _CHUNK_ROWS)
