"""The batched solver: many logistic problems on the same features, each solved to a certified gap.

What lives here: the two losses, preconditioned L-BFGS in the precision of the stored features, Newton steps with exact
gradients for what float32 leaves, dense Newton steps for small problems, and the exact gradient that certifies all of
them. What stays out: labels, tasks and the reference solver (``logistic``). Tensors in and out, on any device.

All problems share each pass over the features. L-BFGS (Nocedal and Wright 2006, Numerical Optimization, algorithm 7.4)
starts from the inverse of ``C M x G + I``, with G the Gram matrix of the features and M the mean curvature of the loss
by the logits: one eigenbasis of G serves all problems, and those of M are k x k. The line search works on logits, so
that a step costs one product forward and one back. What float32 leaves is corrected by Newton steps whose gradient is
summed in float64 and whose systems are solved by conjugate gradients in the stored precision (iterative refinement:
Higham 2002, Accuracy and Stability of Numerical Algorithms, chapter 12). Source: protocol page, section 4.

Shapes: P problems of K rows each (K = 1 for independent units, k for a softmax), n images, width r. A *state* is
float64 (P, K, r + 1): weights and, last, the intercept at the mean image (``c = b + mean . w``), which nearly decouples
it from the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

CHUNK_ROWS = 1024
SUM_BLOCK = 32
FEW_VALUES = 8192
"""Values up to which a copy in float64 takes less time than the calls that avoid it."""
GRAM_BLOCKS = 4
"""Rows widened to float64, or added to the Gram matrix, at a time: no second copy of the features."""
GRAM_ROWS = 24576
"""Rows that make the preconditioner: with a third as many, 14 labels on 768 dimensions take 3 iterations more."""
MEMORY = 10
MAX_ITERATIONS = 500
MAX_REFINEMENTS = 12
MAX_CONJUGATE_GRADIENTS = 200
MAX_TRIALS = 20
PROGRESS = 0.7
NOISE, PATIENCE, PLATEAU = 1e-6, 10, 60
"""Iterations without :data:`PROGRESS` of the gap after which a problem is left: few where float32 may have nothing more
to give, many above that, because the gradients of nearly separable problems do not fall steadily."""
AIM = 0.7
"""Share of the gap to aim at: the estimate in the stored precision is not exact."""
SLOPE_REDUCTION = 0.4
"""A step is accepted where the slope along it has fallen to this share."""
REFRESHES = (0, 3, 10, 30)
"""Iterations at which the curvature M is measured anew."""
NEWTON_MAX_COEFFICIENTS = 400
NEWTON_MAX_PRODUCTS = 1e8
"""Below both, a dense Hessian (rows x coefficients^2 products) is cheaper than many short passes."""


class Space:
    """Features as the solver sees them: in an orthonormal basis of their row space where that is smaller.

    The penalty does not see rotations and pays for every weight outside of the row space without gain, so with fewer
    images than dimensions the optimum is found among n weights per row instead of d, exactly.

    Args:
        features: (n, d), float32 or float64, n >= 1.
        like: d rows or more of the same distribution, such as those that these are drawn from. Their eigenbasis
            preconditions these too, if these are at least d: a few iterations more cost less than a basis of one's own.
    """

    def __init__(self, features: Tensor, like: Space | None = None) -> None:
        n, d = features.shape
        self.features, self.like = features, like
        self.basis: Tensor | None = None
        self.exact = features
        if n < d:
            self.basis, triangle = torch.linalg.qr(features.double().T)
            self.exact = triangle.T.contiguous()
        self.fast = self.exact.to(features.dtype)
        self.n, self.width = self.fast.shape
        self.mean = (self.fast.new_full((1, n), 1.0 / n) @ self.fast)[0].double()
        zero, one = self.mean.new_zeros(1), self.mean.new_ones(1)
        # by the entries of a state: what the intercept adds to a weight's derivative, what is penalised, and the free
        # intercept; a handful of images is fitted as fast as its small operations follow each other
        self._offset = torch.cat([self.mean, zero])
        self.penalty = torch.cat([torch.ones_like(self.mean), zero])
        self._free_intercept = torch.cat([-self.mean, one])

    @cached_property
    def eigen(self) -> tuple[Tensor, Tensor, Tensor]:
        """Eigenvalues of the covariance of (a strided sample of) the rows, or of rows like them; eigenvectors V and V'.

        Both in rows of memory, because a product of a few rows with either is fastest so.
        """
        if self.like is not None and self.basis is None:
            return self.like.eigen
        n_rows = min(self.n, GRAM_ROWS)
        index = torch.arange(n_rows, device=self.fast.device) * self.n // n_rows
        buffer = self.fast.new_empty(min(CHUNK_ROWS, n_rows), self.width)
        upper = self.fast.new_zeros(self.width, self.width)
        mean, block = self.mean.to(self.fast.dtype), -(-self.width // GRAM_BLOCKS)
        for start in range(0, n_rows, CHUNK_ROWS):
            part = index[start : start + CHUNK_ROWS]
            rows = torch.index_select(self.fast, 0, part, out=buffer[: part.numel()]).sub_(mean)
            for left in range(0, self.width, block):
                upper[left : left + block, left:].addmm_(rows[:, left : left + block].T, rows[:, left:])
        values, vectors = torch.linalg.eigh(upper.div_(n_rows), UPLO="U")
        return values.clamp(min=0.0), vectors.contiguous(), vectors.T.contiguous()

    def logits(self, state: Tensor) -> Tensor:
        """Return the logits (P K, n) of a state in the stored precision."""
        weights = state[:, :, :-1].to(self.fast.dtype).view(-1, self.width)
        intercept = state.view(-1, self.width + 1) @ self._free_intercept
        # this order and a transposition are faster than the narrow product that would give the rows at once
        product = self.fast @ weights.T
        return product.T.contiguous().add_(intercept.to(product.dtype)[:, None])

    def gradient(self, residual: Tensor, state: Tensor, c: float) -> Tensor:
        """Return the gradient by a state, from the derivatives ``residual`` (P K, n) of the loss by the logits."""
        p, k, _ = state.shape
        total = _sums(residual)[:, None]
        flat = torch.cat([residual @ self.fast, total], dim=1).addcmul_(total, self._offset, value=-1)
        gradient = flat.mul_(c).view(p, k, -1)
        if k > 1:
            # the derivatives of a softmax sum to 0; only the penalty would hold back what rounding adds to the sum
            gradient -= gradient.mean(dim=1, keepdim=True)
        return gradient.addcmul_(state, self.penalty)

    def squared_norm(self, gradient: Tensor) -> Tensor:
        """Return the squared norms (P,) of the gradient by weights and free intercept, from the one by a state."""
        return torch.addcmul(gradient, gradient[:, :, -1:], self._offset).square().sum(dim=(1, 2))

    def free(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (P, K, r) and free intercepts (P, K) of a state."""
        weights = state[:, :, :-1]
        return weights, state[:, :, -1] - weights @ self.mean


class Units:
    """Independent logistic units: P problems of one row.

    Args:
        sign: (P, n): 1, -1, and 0 where the label is unknown, which is no term of the loss.
    """

    def __init__(self, sign: Tensor) -> None:
        self.sign = sign
        self.n_problems, self.n_rows = sign.shape[0], 1

    def keep(self, index: Tensor) -> Units:
        """Return some of the problems."""
        return Units(self.sign[index])

    def images(self, rows: slice) -> Units:
        """Return the problems on some images, in float64."""
        return Units(self.sign[:, rows].double())

    def start(self) -> Tensor:
        """Return the logits of the prevalences (P, 1), float64."""
        positive = (self.sign > 0).sum(dim=1, dtype=torch.float64)
        negative = (self.sign < 0).sum(dim=1, dtype=torch.float64)
        return (positive / negative).log()[:, None]

    def value(self, logits: Tensor) -> Tensor:
        """Return the summed losses (P,), float64."""
        n_unknown = (self.sign == 0).sum(dim=1, dtype=torch.float64)
        losses = torch.nn.functional.logsigmoid(self.sign * logits)
        return -_sums(losses) - n_unknown * math.log(2.0)

    def residual(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the derivatives of the losses by the logits (P, n)."""
        # -s sigmoid(-s z) and not p - y: what is left of a well separated image keeps its digits
        return torch.mul(self.sign, logits, out=out).neg_().sigmoid_().mul_(self.sign).neg_()

    def curvature(self, residual: Tensor, out: Tensor | None = None) -> Tensor:
        """Return p (1 - p), 0 where the label is unknown (P, n)."""
        return torch.abs(residual, out=out).addcmul_(residual, residual, value=-1)

    def hessian_product(self, residual: Tensor, direction: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the second derivatives at ``residual`` times a direction of logits (P, n)."""
        return self.curvature(residual, out).mul_(direction)

    def mean_curvature(self, residual: Tensor) -> Tensor:
        """Return M (P, 1, 1), float64."""
        return (_sums(self.curvature(residual)) / residual.shape[1])[:, None, None]

    def hessian(self, features: Tensor, residual: Tensor) -> Tensor:
        """Return the dense second derivatives of the losses by the weights (P, r, r)."""
        return (features.T * self.curvature(residual)[:, None, :]) @ features


class Softmax:
    """One softmax: a single problem of k rows.

    Args:
        onehot: (k, n): 1 for the class of the image, else 0.
    """

    def __init__(self, onehot: Tensor) -> None:
        self.onehot = onehot
        self.n_problems, self.n_rows = 1, onehot.shape[0]

    def keep(self, index: Tensor) -> Softmax:
        """Return the problem itself: there is no other."""
        return self

    def images(self, rows: slice) -> Softmax:
        """Return the problem on some images, in float64."""
        return Softmax(self.onehot[:, rows].double())

    def start(self) -> Tensor:
        """Return the centred logarithms of the class frequencies (1, k), float64."""
        logs = self.onehot.sum(dim=1, dtype=torch.float64).log()
        return (logs - logs.mean())[None]

    def value(self, logits: Tensor) -> Tensor:
        """Return the summed loss (1,), float64."""
        own = (logits * self.onehot).sum(dim=0)
        return _sums((logits.logsumexp(dim=0) - own)[None])

    def residual(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the derivatives of the loss by the logits (k, n)."""
        # minus the sum of the others and not p - 1: what is left of a well separated image keeps its digits
        others = torch.softmax(logits, 0, out=out)
        others.addcmul_(others, self.onehot, value=-1)
        return others.addcmul_(self.onehot, others.sum(dim=0), value=-1)

    def hessian_product(self, residual: Tensor, direction: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the second derivatives at ``residual`` times a direction of logits (k, n)."""
        p = residual + self.onehot
        weighted = torch.mul(p, direction, out=out)
        return weighted.addcmul_(p, weighted.sum(dim=0), value=-1)

    def mean_curvature(self, residual: Tensor) -> Tensor:
        """Return M (1, k, k), float64."""
        p = residual + self.onehot
        return (torch.diag(_sums(p) / p.shape[1]) - (p @ p.T).double() / p.shape[1])[None]

    def hessian(self, features: Tensor, residual: Tensor) -> Tensor:
        """Return the dense second derivatives of the loss by the weights (1, k r, k r)."""
        p = residual + self.onehot
        k, width = p.shape[0], features.shape[1]
        weighted = (p[:, None, :] * features.T).reshape(k * width, -1)
        full = -(weighted @ weighted.T)
        for j in range(k):
            block = slice(j * width, (j + 1) * width)
            full[block, block] += weighted[block] @ features
        return full[None]


Loss = Units | Softmax


@dataclass
class Exact:
    """The objective (P,) and its gradients by weights (P, K, r) and intercepts (P, K), summed in float64."""

    objective: Tensor
    by_weights: Tensor
    by_intercept: Tensor

    @property
    def grad_norm(self) -> Tensor:
        """Norm of the gradient (P,)."""
        return (self.by_weights.square().sum(dim=(1, 2)) + self.by_intercept.square().sum(dim=1)).sqrt()

    @property
    def relative_gap(self) -> Tensor:
        """Half of the squared norm by max(1, objective) (P,): the certified gap (``logistic.Certificate``)."""
        return 0.5 * self.grad_norm.square() / self.objective.clamp(min=1.0)

    def keep(self, index: Tensor) -> Exact:
        """Return some of the problems."""
        return Exact(self.objective[index], self.by_weights[index], self.by_intercept[index])


def exact_gradient(
    features: Tensor, loss: Loss, weights: Tensor, intercept: Tensor, c: float, residual: Tensor | None = None
) -> Exact:
    """Return the objective and its gradient, a few rows at a time in float64.

    Args:
        features: (n, r), of any precision.
        loss: P problems of K rows on n images.
        weights: float64 (P, K, r).
        intercept: float64 (P, K).
        c: weight of the loss.
        residual: (P K, n), filled with the derivatives of the loss by the logits where given.
    """
    p, k, width = weights.shape
    flat, shift = weights.reshape(p * k, width), intercept.reshape(p * k, 1)
    found = Exact(0.5 * weights.square().sum(dim=(1, 2)), weights.clone(), torch.zeros_like(intercept))
    # one buffer: fresh memory for every chunk would take longer than the products
    buffer = weights.new_empty(min(CHUNK_ROWS, features.shape[0]), width)
    for start in range(0, features.shape[0], CHUNK_ROWS):
        rows = slice(start, min(start + CHUNK_ROWS, features.shape[0]))
        part, wide = loss.images(rows), buffer[: rows.stop - rows.start].copy_(features[rows])
        logits = (wide @ flat.T).T.contiguous().add_(shift)
        found.objective += c * part.value(logits)
        slope = part.residual(logits)
        if residual is not None:
            residual[:, rows] = slope.to(residual.dtype)
        found.by_weights += c * (slope @ wide).view(p, k, width)
        found.by_intercept += c * slope.sum(dim=1).view(p, k)
    return found


@dataclass
class Solution:
    """Weights (P, K, d), intercepts (P, K), what certifies them, iterations (P,), and how each was found."""

    weights: Tensor
    intercept: Tensor
    exact: Exact
    n_iter: Tensor
    how: list[str]


def solve(space: Space, loss: Loss, c: float, gap: float) -> Solution:
    """Return the solution of every problem, with its exact gradient; nothing is raised where the gap is missed.

    Args:
        space: of the n images.
        loss: on the same images; every problem has at least two values or classes.
        c: weight of the loss, > 0.
        gap: relative gap to reach.
    """
    coefficients = loss.n_rows * space.width
    products = loss.n_problems * space.n * coefficients**2
    if coefficients <= NEWTON_MAX_COEFFICIENTS and products <= NEWTON_MAX_PRODUCTS:
        state, n_iter = newton(space, loss, c, gap)
        weights, intercept = space.free(state)
        exact = None
        how = ["newton-float64"] * loss.n_problems
    else:
        state, n_iter = lbfgs(space, loss, c, gap)
        weights, intercept, exact, n_steps = refine(space, loss, *space.free(state), c, gap)
        name = f"lbfgs-{str(space.fast.dtype).removeprefix('torch.')}"
        how = [f"{name}+newton-cg" if steps else name for steps in n_steps.tolist()]
        n_iter = n_iter + n_steps
    intercept = _centred(intercept)
    if space.basis is not None:
        weights = weights @ space.basis.T
    if exact is None or space.basis is not None:
        exact = exact_gradient(space.features, loss, weights, intercept, c)
    return Solution(weights, intercept, exact, n_iter, how)


def lbfgs(space: Space, loss: Loss, c: float, gap: float) -> tuple[Tensor, Tensor]:
    """Return states and iterations (P,); a problem leaves the batch at the gap, or without progress."""
    k = loss.n_rows
    start = state = _start(space, loss)
    final, n_iter = state.clone(), torch.full((loss.n_problems,), MAX_ITERATIONS, device=state.device)
    index = torch.arange(loss.n_problems, device=state.device)
    logits = space.logits(state)
    residual = loss.residual(logits)
    gradient = space.gradient(residual, state, c)
    objective = _objective(loss, state, logits, c)
    precondition = _Preconditioner(space, loss, residual, c)
    pairs = _Pairs(state)
    # what decides of each problem lies beside the device: a few numbers, looked at in every iteration
    least, best, waited = objective.cpu().numpy(), np.full(loss.n_problems, np.inf), np.zeros(loss.n_problems)
    for iteration in range(MAX_ITERATIONS):
        half = 0.5 * space.squared_norm(gradient).cpu().numpy()
        if (half <= AIM * gap * np.maximum(least, 1.0)).any():
            # objectives fall, so an old one never ends a problem too late: a new one is computed where it decides
            least = _objective(loss, state, logits, c).cpu().numpy()
        estimate = half / np.maximum(least, 1.0)
        waited = np.where(estimate < PROGRESS * best, 0, waited + 1)
        best = np.fmin(best, estimate)
        done = (estimate <= AIM * gap) | (waited > np.where(best < NOISE, PATIENCE, PLATEAU))
        if done.any():
            ended, left = (torch.from_numpy(np.flatnonzero(part)).to(index.device) for part in (done, ~done))
            final[index[ended]], n_iter[index[ended]] = state[ended], iteration
            if done.all():
                break
            index, least, best, waited = index[left], least[~done], best[~done], waited[~done]
            state, gradient, loss = state[left], gradient[left], loss.keep(left)
            rows = _rows(left, k)
            logits, residual = logits[rows], residual[rows]
            pairs.keep(left)
            precondition.keep(left)
        if iteration in REFRESHES:
            precondition = _Preconditioner(space, loss, residual, c)
        direction = pairs.direction(gradient, precondition)
        slope = _dot(gradient, direction)
        if (slope >= 0).any():
            pairs.forget(slope >= 0)
            direction = pairs.direction(gradient, precondition)
            slope = _dot(gradient, direction)
        step = _line_search(space, loss, c, state, direction, slope, logits, residual)
        moved = step[:, None, None] * direction
        state = state + moved
        before, gradient = gradient, space.gradient(residual, state, c)
        pairs.append(moved, gradient - before)
    else:
        final[index] = state
    # overflow, which only features far from standardised reach: the exact steps begin at the start
    is_finite = final.isfinite().flatten(1).all(dim=1)
    return torch.where(is_finite[:, None, None], final, start), n_iter


def refine(
    space: Space, loss: Loss, weights: Tensor, intercept: Tensor, c: float, gap: float
) -> tuple[Tensor, Tensor, Exact, Tensor]:
    """Return better weights and intercepts, their exact gradients, and the iterations spent (P,).

    Newton steps from exact gradients; a problem that is within the gap is left as it is.
    """
    k = loss.n_rows
    weights, intercept = weights.clone(), _centred(intercept)
    n_iter = torch.zeros(loss.n_problems, dtype=torch.int64, device=weights.device)
    residual = space.fast.new_empty(loss.n_problems * k, space.n)
    found = exact_gradient(space.exact, loss, weights, intercept, c, residual)
    index = torch.arange(loss.n_problems, device=weights.device)
    here, w, b = found, weights, intercept
    for _ in range(MAX_REFINEMENTS):
        left = (here.relative_gap > gap).nonzero()[:, 0]
        if not left.numel():
            break
        index, loss, here, w, b = index[left], loss.keep(left), here.keep(left), w[left], b[left]
        residual = residual[_rows(left, k)]
        step, used = _newton_direction(space, loss, residual, here, c, gap)
        n_iter[index] += used
        slope = (here.by_weights * step[0]).sum(dim=(1, 2)) + (here.by_intercept * step[1]).sum(dim=1)
        length = torch.ones_like(slope)
        for _ in range(MAX_TRIALS):
            w_there = w + length[:, None, None] * step[0]
            b_there = _centred(b + length[:, None] * step[1])
            there = exact_gradient(space.exact, loss, w_there, b_there, c, residual)
            # close to the optimum the objective has no digits left to fall by, and the gradient decides
            fell = there.objective <= here.objective + 1e-4 * length * slope
            is_open = ~(fell | (there.relative_gap < here.relative_gap))
            if not is_open.any():
                break
            length = torch.where(is_open, 0.5 * length, length)
        here, w, b = there, w_there, b_there
        better = ~is_open
        if not better.any():
            break
        place = index[better]
        weights[place], intercept[place] = w[better], b[better]
        for name in ("objective", "by_weights", "by_intercept"):
            getattr(found, name)[place] = getattr(here, name)[better]
    return weights, intercept, found, n_iter


def newton(space: Space, loss: Loss, c: float, gap: float) -> tuple[Tensor, Tensor]:
    """Return states and iterations (P,) of Newton's method with dense Hessians, in float64.

    It goes well below the gap, because the last steps are quadratic and cost nothing.
    """
    loss = loss.images(slice(None))
    p, k, width = loss.n_problems, loss.n_rows, space.width + 1
    features = torch.cat([space.exact.double() - space.mean, space.mean.new_ones(space.n, 1)], dim=1)
    penalty = torch.cat([space.mean.new_ones(space.width), space.mean.new_zeros(1)])

    def evaluated(state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = state.reshape(p * k, width) @ features.T
        residual = loss.residual(logits)
        return _objective(loss, state, logits, c), penalty * state + c * (residual @ features).view(p, k, -1), residual

    state = _start(space, loss)
    n_iter = torch.zeros(p, dtype=torch.int64, device=state.device)
    objective, gradient, residual = evaluated(state)
    for _ in range(MAX_ITERATIONS):
        is_open = 0.5 * space.squared_norm(gradient) > 1e-4 * gap * objective.clamp(min=1.0)
        if not is_open.any():
            break
        hessian = c * loss.hessian(features, residual) + torch.diag(penalty.repeat(k))
        if k > 1:
            # equal shifts of all intercepts change nothing: any curvature along them makes the matrix definite
            corner = hessian[:, width - 1 :: width, width - 1 :: width]
            corner += corner.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
        direction = -_solved(hessian, gradient.reshape(p, -1)).view(p, k, width)
        slope = _dot(gradient, direction)
        length = is_open.double()
        for _ in range(MAX_TRIALS):
            trial = evaluated(state + length[:, None, None] * direction)
            fell = trial[0] <= objective + 1e-4 * length * slope + 1e-15 * objective
            if fell.all():
                break
            length = torch.where(fell, length, 0.5 * length)
        n_iter += is_open
        state = state + length[:, None, None] * direction
        stalled = trial[0] >= objective
        objective, gradient, residual = trial
        if (stalled | ~is_open).all():
            break
    return state, n_iter


class _Preconditioner:
    """Inverse of ``n C M x G + I`` and, for the intercept at the mean image, of ``n C M``, problem by problem."""

    def __init__(self, space: Space, loss: Loss, residual: Tensor, c: float) -> None:
        values, self.vectors, self.transposed = space.eigen
        m, self.rotation = torch.linalg.eigh(loss.mean_curvature(residual))
        m = m.clamp(min=0.0) * (space.n * c)
        self.scale = (1.0 / (m[:, :, None] * values.double() + 1.0)).to(values.dtype)
        # the intercepts of a softmax have a direction without curvature, in which there is no gradient either
        is_curved = m > 1e-9 * m.amax(dim=1, keepdim=True)
        self.intercept_scale = torch.where(is_curved, 1.0 / m, 0.0)

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the preconditioned gradient (P, K, r + 1)."""
        p, k, _ = gradient.shape
        rotated = self.rotation.mT @ gradient
        body = rotated[:, :, :-1].to(self.vectors.dtype).view(p * k, -1) @ self.vectors
        body = body.view(p, k, -1).mul_(self.scale).view(p * k, -1) @ self.transposed
        joined = torch.cat([body.view(p, k, -1), rotated[:, :, -1:] * self.intercept_scale[:, :, None]], dim=2)
        conditioned: Tensor = self.rotation @ joined
        return conditioned

    def keep(self, index: Tensor) -> None:
        """Forget the other problems."""
        self.rotation, self.scale = self.rotation[index], self.scale[index]
        self.intercept_scale = self.intercept_scale[index]


class _Pairs:
    """The last steps and changes of the gradient, of which L-BFGS makes its direction (P, MEMORY, K (r + 1)).

    The two loops of the textbook are triangular systems in the inner products of steps and changes (Byrd, Nocedal and
    Schnabel 1994, Mathematical Programming 63, 129-156): a few batched products instead of forty small ones. A new
    pair takes the place of the oldest, so small matrices are turned until the oldest comes first.
    """

    def __init__(self, state: Tensor) -> None:
        p, k, width = state.shape
        self.n = 0
        self.steps = state.new_zeros(p, MEMORY, k * width)
        self.changes = torch.zeros_like(self.steps)
        self.products = state.new_zeros(p, MEMORY, MEMORY)
        """Inner products of steps (rows) and changes."""

    def append(self, moved: Tensor, change: Tensor) -> None:
        """Add a pair, an empty one where rounding left no curvature."""
        is_curved = _dot(moved, change) > 1e-12 * (_dot(change, change) * _dot(moved, moved)).sqrt()
        step, change = (part.flatten(1) * is_curved[:, None] for part in (moved, change))
        place, self.n = self.n % MEMORY, self.n + 1
        self.steps[:, place], self.changes[:, place] = step, change
        self.products[:, place] = (self.changes @ step[:, :, None])[:, :, 0]
        self.products[:, :, place] = (self.steps @ change[:, :, None])[:, :, 0]

    def keep(self, index: Tensor) -> None:
        """Forget the other problems."""
        self.steps, self.changes, self.products = (part[index] for part in (self.steps, self.changes, self.products))

    def forget(self, problems: Tensor) -> None:
        """Start again with some problems."""
        for part in (self.steps, self.changes, self.products):
            part[problems] = 0.0

    def direction(self, gradient: Tensor, precondition: _Preconditioner) -> Tensor:
        """Return the direction of descent (P, K, r + 1)."""
        if not self.n:
            return -precondition(gradient)
        oldest = self.n % MEMORY
        system = self.products.roll((-oldest, -oldest), (1, 2)).triu()
        diagonal = system.diagonal(dim1=1, dim2=2)
        diagonal += diagonal == 0  # an empty pair gets the coefficient 0
        q = gradient.flatten(1)[:, :, None]
        first = torch.linalg.solve_triangular(system, (self.steps @ q).roll(-oldest, 1), upper=True)
        r = precondition((q - self.changes.mT @ first.roll(oldest, 1)).view(gradient.shape)).flatten(1)[:, :, None]
        right = diagonal[:, :, None] * first - (self.changes @ r).roll(-oldest, 1)
        second = torch.linalg.solve_triangular(system.mT, right, upper=False).roll(oldest, 1)
        return -torch.baddbmm(r, self.steps.mT, second).view(gradient.shape)


def _line_search(
    space: Space,
    loss: Loss,
    c: float,
    state: Tensor,
    direction: Tensor,
    slope: Tensor,
    logits: Tensor,
    residual: Tensor,
) -> Tensor:
    """Move ``logits`` and ``residual`` along the direction, in place, and return the steps (P,).

    Newton's method on the step, kept inside of a bracket. The work is done in place because fresh memory for every
    product would take as long as the product.
    """
    p, k = loss.n_problems, loss.n_rows
    along = space.logits(direction)
    product = torch.empty_like(along)
    penalised = direction * space.penalty
    quadratic, linear = _dot(penalised, direction), _dot(penalised, state)

    def curvature() -> Tensor:
        loss.hessian_product(residual, along, out=product)
        return quadratic + c * _sums(product.mul_(along)).view(p, k).sum(dim=1)

    step, reached = -slope / curvature(), torch.zeros_like(slope)
    low, high = reached, torch.full_like(step, torch.inf)
    for trial in range(MAX_TRIALS):
        logits.addcmul_((step - reached).repeat_interleave(k)[:, None].to(along.dtype), along)
        reached = step
        loss.residual(logits, out=residual)
        here = linear + step * quadratic + c * _sums(torch.mul(residual, along, out=product)).view(p, k).sum(dim=1)
        is_open = here.abs() > SLOPE_REDUCTION * slope.abs()
        if trial == MAX_TRIALS - 1 or not is_open.any():
            break
        low, high = torch.where(here < 0, step, low), torch.where(here >= 0, step, high)
        tried = step - here / curvature()
        middle = torch.where(high.isinf(), 4.0 * step, 0.5 * (low + high))
        is_inside = (tried > low) & (tried < high) & (tried <= 10.0 * step)
        step = torch.where(is_open, torch.where(is_inside, tried, middle), step)
    return reached


def _newton_direction(
    space: Space, loss: Loss, residual: Tensor, here: Exact, c: float, gap: float
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return steps of weights and intercepts, and the conjugate-gradient iterations (P,) that they took.

    The products are of the stored precision: a problem stops where the step should reach the gap, or where float32 has
    no more digits, and the next exact gradient tells what is left.
    """
    precondition = _Preconditioner(space, loss, residual, c)
    shift = here.by_intercept[:, :, None]
    left = -torch.cat([here.by_weights - shift * space.mean, shift], dim=2)
    target = torch.maximum(0.1 * gap * here.objective.clamp(min=1.0), 1e-10 * space.squared_norm(left))
    state = torch.zeros_like(left)
    n_iter = torch.zeros(left.shape[0], dtype=torch.int64, device=left.device)
    direction = conditioned = precondition(left)
    product = _dot(left, conditioned)
    for _ in range(MAX_CONJUGATE_GRADIENTS):
        is_open = space.squared_norm(left) > target
        if not is_open.any():
            break
        n_iter += is_open
        image = space.gradient(loss.hessian_product(residual, space.logits(direction)), direction, c)
        curvature = _dot(direction, image)
        length = torch.where(is_open & (curvature > 0), product / curvature, 0.0)[:, None, None]
        state = state + length * direction
        left = left - length * image
        conditioned = precondition(left)
        before, product = product, _dot(left, conditioned)
        direction = conditioned + torch.where(before > 0, product / before, 0.0)[:, None, None] * direction
    return space.free(state), n_iter


def _solved(matrix: Tensor, right: Tensor) -> Tensor:
    """Return the solutions (P, m) of positive definite systems (P, m, m), (P, m)."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed.any():
        # definite but for rounding: any small multiple of the diagonal turns it into a direction of descent
        diagonal = matrix.diagonal(dim1=1, dim2=2)
        factor = torch.linalg.cholesky_ex(matrix + torch.diag_embed(1e-10 * diagonal + 1e-14 * diagonal.amax()))[0]
    solution: Tensor = torch.cholesky_solve(right[:, :, None], factor)
    return solution[:, :, 0]


def _start(space: Space, loss: Loss) -> Tensor:
    intercept = loss.start()[:, :, None]
    return torch.cat([intercept.new_zeros(*intercept.shape[:2], space.width), intercept], dim=2)


def _objective(loss: Loss, state: Tensor, logits: Tensor, c: float) -> Tensor:
    return 0.5 * state[:, :, :-1].square().sum(dim=(1, 2)) + c * loss.value(logits)


def _centred(intercept: Tensor) -> Tensor:
    """Return the intercepts of a softmax with sum 0, those of units as they are."""
    return intercept - intercept.mean(dim=1, keepdim=True) if intercept.shape[1] > 1 else intercept.clone()


def _sums(values: Tensor) -> Tensor:
    """Return the sums of rows (rows, n) in float64: short stretches in the stored precision, then their sums exactly.

    A sum in float64 of float32 values would first copy them all.
    """
    n = values.shape[1]
    if n <= FEW_VALUES:
        short: Tensor = values.sum(dim=1, dtype=torch.float64)
        return short
    whole = n - n % SUM_BLOCK
    blocks = values[:, :whole].reshape(values.shape[0], -1, SUM_BLOCK).sum(dim=2)
    total: Tensor = blocks.sum(dim=1, dtype=torch.float64) + values[:, whole:].sum(dim=1, dtype=torch.float64)
    return total


def _dot(a: Tensor, b: Tensor) -> Tensor:
    products: Tensor = a * b
    return products.sum(dim=(1, 2))


def _rows(problems: Tensor, k: int) -> Tensor:
    """Return the numbers of the rows of some problems of k rows each."""
    return (problems[:, None] * k + torch.arange(k, device=problems.device)).reshape(-1)
