"""``mlp``: a head with one hidden layer, stopped where held-out loss is smallest.

What lives here: the network, its training, and the choice of the number of steps. What stays out: the folds
(``folds``).

One hidden layer of 128 rectified units (initial weights N(0, 2/d): He et al. 2015, arXiv:1502.01852), output weights
from 0 and output offsets from the frequencies of the subset, AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101)
with a constant rate. The number of steps regularises: it is chosen by the same folds and the same loss as C in
``tuned_c``, then all images are trained for as many steps (Goodfellow, Bengio and Courville 2016, Deep Learning,
algorithm 7.2). No label outside of the budget is read. Every draw is NumPy's and keyed by names, so that torch's
generators play no part. Source: protocol page, section 8; width, rate and grid are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.probes.estimators.folds import chosen_setting, fold_numbers, held_out_loss
from crsbench_assets.probes.estimators.interface import CHUNK_ROWS, Selection, trainable_columns

if TYPE_CHECKING:
    import torch

    from crsbench_assets.config.cards import Task

N_HIDDEN = 128
BATCH_SIZE = 256
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-2
MOMENTA = (0.9, 0.999)
EPSILON = 1e-8

GRID = tuple(10 * 2**i for i in range(9))
"""Steps from 10 to 2,560, doubling."""

MAX_EPOCHS = 8
"""A grid ends with the passes over the subset that its last setting takes, but not below :data:`MIN_LAST_STEPS`."""

MIN_LAST_STEPS = 160
DEFAULT_STEPS = 20
"""Steps where the subset is too small for two folds."""


class Perceptron:
    """One network while it is trained.

    Args:
        features: tensor (n, d) of the label subset, shared by all networks.
        labels: int8 (n, k) of the same.
        rows: row numbers of the images that it is trained on; no label of the others is read.
        task: kind of the labels.
        names: key of its initial weights and of its batches.
    """

    def __init__(
        self,
        features: torch.Tensor,
        labels: NDArray[np.int8],
        rows: NDArray[np.int64],
        task: Task,
        names: tuple[object, ...],
    ) -> None:
        import torch

        self.n_steps = 0
        self.task: Task = task
        self.fitted = trainable_columns(labels[rows], task)
        self._features, self._rows, self._names = features, rows, names
        self._order, self._epoch = np.empty(0, dtype=np.int64), 0
        if not self.fitted.any():
            return
        columns = labels[rows][:, self.fitted]
        self._labels = torch.from_numpy(columns.astype(np.float32)).to(features.device)
        d, k = features.shape[1], columns.shape[1]
        hidden = keyed_generator("mlp", *names, "weights").standard_normal((d, N_HIDDEN), dtype=np.float32)
        n_positive = (columns == 1).sum(axis=0)
        n_other = (columns == 0).sum(axis=0) if task == "multi_label" else len(rows)
        initial = (hidden * np.sqrt(2.0 / d), np.zeros(N_HIDDEN), np.zeros((N_HIDDEN, k)), np.log(n_positive / n_other))
        self._shapes = [values.shape for values in initial]
        flat = np.concatenate([values.ravel() for values in initial]).astype(np.float32)
        self._parameters = torch.from_numpy(flat).to(features.device)
        self._first_moment, self._second_moment = (torch.zeros_like(self._parameters) for _ in range(2))

    def train(self, n_steps: int) -> None:
        """Train until ``n_steps`` steps were made in all."""
        while self.fitted.any() and self.n_steps < n_steps:
            self.n_steps += 1
            gradient = self._gradient(self._batch())
            self._first_moment.lerp_(gradient, 1.0 - MOMENTA[0])
            self._second_moment.mul_(MOMENTA[1]).addcmul_(gradient, gradient, value=1.0 - MOMENTA[1])
            first_bias, second_bias = (1.0 - momentum**self.n_steps for momentum in MOMENTA)
            scale = (self._second_moment / second_bias).sqrt_().add_(EPSILON)
            self._parameters.mul_(1.0 - LEARNING_RATE * WEIGHT_DECAY)
            self._parameters.addcdiv_(self._first_moment, scale, value=-LEARNING_RATE / first_bias)

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return float64 logits (n, k), NaN in columns that were not fitted."""
        import torch

        z = np.full((len(features), len(self.fitted)), np.nan)
        if not self.fitted.any():
            return z
        for start in range(0, len(features), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            part = torch.from_numpy(np.ascontiguousarray(features[rows], dtype=np.float32))
            z[rows, self.fitted] = self._outputs(part.to(self._features.device))[1].double().cpu().numpy()
        return z

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return hidden weights (d, h) and offsets (h,), outer weights (h, k) and offsets (k,) that lie in a vector."""
        import torch

        parts = torch.split(flat, [int(np.prod(shape)) for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _outputs(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rectified units (n, h) and the logits (n, k)."""
        hidden, hidden_offsets, outer, offsets = self._views(self._parameters)
        units = (features @ hidden + hidden_offsets).relu_()
        return units, units @ outer + offsets

    def _batch(self) -> NDArray[np.int64]:
        """Return places in ``rows``: every image once, then all again in another order."""
        n = len(self._rows)
        if n <= BATCH_SIZE:
            return np.arange(n)
        if len(self._order) < BATCH_SIZE:
            order = keyed_generator("mlp", *self._names, "epoch", self._epoch).permutation(n)
            self._order = np.concatenate([self._order, order])
            self._epoch += 1
        places, self._order = np.split(self._order, [BATCH_SIZE])
        return places

    def _gradient(self, places: NDArray[np.int64]) -> torch.Tensor:
        """Return the gradient of the batch's mean loss, the sum over labels for multi-label."""
        import torch

        device = self._features.device
        features = self._features[torch.from_numpy(self._rows[places]).to(device)]
        labels = self._labels[torch.from_numpy(places).to(device)]
        units, logits = self._outputs(features)
        if self.task == "multi_label":
            by_logits = torch.where(labels >= 0, logits.sigmoid() - labels, 0.0) / len(places)
        else:
            by_logits = (logits.softmax(dim=1) - labels) / len(places)
        by_units = by_logits @ self._views(self._parameters)[2].T
        by_units[units <= 0] = 0.0
        parts = (features.T @ by_units, by_units.sum(dim=0), units.T @ by_logits, by_logits.sum(dim=0))
        return torch.cat([part.reshape(-1) for part in parts])


@dataclass(frozen=True)
class PerceptronModel:
    """A trained network."""

    network: Perceptron
    selection: Selection

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return float64 logits (n, k), NaN in columns that were not fitted."""
        return self.network.logits(features)


@dataclass(frozen=True)
class PerceptronHead:
    """Small head with one hidden layer; ``device``: of torch."""

    device: str = "cpu"
    name: str = "mlp"

    def fit(
        self,
        features: NDArray[np.float32],
        labels: NDArray[np.int8],
        task: Task,
        *,
        groups: NDArray[np.int64],
        names: tuple[object, ...],
    ) -> PerceptronModel:
        """See :class:`~crsbench_assets.probes.estimators.interface.Estimator`.

        The networks of the folds are trained side by side, step by step, so that the scan can end early.
        """
        import torch

        stored = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32)).to(self.device)
        final = Perceptron(stored, labels, np.arange(len(labels)), task, (*names, "all"))
        if not final.fitted.any():
            return PerceptronModel(final, Selection(None))
        folds = fold_numbers(labels, groups, task, names)
        selection = Selection(float(DEFAULT_STEPS))
        if folds is not None:
            n_folds = int(folds.max()) + 1
            networks = [
                Perceptron(stored, labels, np.flatnonzero(folds != fold), task, (*names, fold))
                for fold in range(n_folds)
            ]

            def loss_of(n_steps: float) -> float:
                held_out = np.empty(labels.shape)
                for fold, network in enumerate(networks):
                    network.train(int(n_steps))
                    rows = np.flatnonzero(folds == fold)
                    held_out[rows] = network.logits(features[rows])
                return held_out_loss(held_out, labels, task)

            last = max(MIN_LAST_STEPS, MAX_EPOCHS * len(features) // BATCH_SIZE)
            n_steps, loss = chosen_setting((float(n) for n in GRID if n <= last), loss_of)
            selection = Selection(n_steps, n_folds, loss) if np.isfinite(loss) else selection
        assert selection.setting is not None
        final.train(int(selection.setting))
        return PerceptronModel(final, selection)
