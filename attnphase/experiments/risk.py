"""The empirical risk (3) of a batch of runs, exact at finite d, in two passes over the data per gradient.

One sample's loss is a function of its local fields and its L x L Gram matrices alone: the fields are one pass over the
tokens, the gradient is another, and nothing of size n x L x d is ever formed.  Between the two, arrays of the size of
the fields stay in the caches if they are of a few thousand samples at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from attnphase.arrays import Array
from attnphase.experiments.data import Instance, Samples
from attnphase.experiments.products import fields_of, pull_back
from attnphase.experiments.trained import best_trained, of_samples
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem.units import Units
from attnphase.processes.threads import each
from attnphase.rows.regularizer import RowRegularizer
from attnphase.state_evolution.norms import conjugates_of_norms
from attnphase.state_evolution.overlaps import norm_entries
from attnphase.state_evolution.trained import TrainedPenalties

__all__ = ["Risk"]

_LEAST = 1e-3  # of the problem's unit of weights: smaller ones are measured by this
TOGETHER = 4096  # samples of several runs that go through the loss at once


@dataclass(frozen=True, eq=False)
class Risk:
    """``R(W) = sum_mu loss_mu + sum_i r(w_i)`` for every run of an instance.

    Attributes
    ----------
    samples : Samples
    loss : LocalLoss
    threads : int
        That share the runs.
    regularizer : RowRegularizer
    """

    samples: Samples
    loss: LocalLoss
    threads: int = 1
    regularizer: RowRegularizer = field(init=False)
    penalties: TrainedPenalties = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "regularizer", self.loss.problem.rows)
        object.__setattr__(self, "penalties", TrainedPenalties.of(self.loss.problem.loss))

    @classmethod
    def of(cls, instance: Instance) -> Risk:
        """The training risk of an instance."""
        return cls(instance.samples, instance.loss, instance.threads)

    def of_runs(self, runs: slice) -> Risk:
        """The risk of some runs of the batch, for one thread."""
        fields = {name: array[runs] for name, array in vars(self.samples).items()}
        return Risk(type(self.samples)(**fields), self.loss)

    @property
    def dimension(self) -> int:
        """Number d of coordinates."""
        return self.samples.tokens.shape[2]

    @property
    def is_smooth(self) -> bool:
        """Whether the regulariser is the ridge."""
        return self.regularizer.quadratic

    def fields(self, weights: Tensor) -> Tensor:
        """Local fields (S n, L, r) of all samples."""
        columns = weights.shape[2]
        return fields_of(self.samples.tokens, weights).reshape(-1, self.loss.problem.tokens.length, columns)

    def trained(self, weights: Tensor) -> Array:
        """The loss's trained parameters that minimise the risk at given weights, and the entries of Q, (S, p)."""
        return self._best(weights, self.fields(weights), slice(None))

    def _best(self, weights: Tensor, h: Tensor, part: slice) -> Array:
        """Likewise of the runs of a part, whose samples' fields are (S n, L, r)."""
        norms = np.zeros((len(weights), 0))
        if not self.loss.trained:
            return norms
        if self._norms:
            norms = norm_entries((weights.mT @ weights / self.dimension).double().cpu().numpy())
        targets, grams = self.samples.targets[part].flatten(0, 1), self.samples.grams[part].flatten(0, 1)
        return best_trained(self.loss, self.penalties, h, targets, grams, norms, self.dimension)

    @property
    def _norms(self) -> int:
        """Number of the entries of Q that the loss takes."""
        return len(self.loss.problem.loss.norms)

    def _loss_at(self, trained: Array, h: Tensor) -> tuple[LocalLoss, Tensor | float]:
        """The loss with these parameters, and what they add to the risk of every run."""
        if not self.loss.trained:
            return self.loss, 0.0
        paid = self.dimension * self.penalties.values(trained)
        return self.loss.at(of_samples(trained, h)), torch.as_tensor(paid, dtype=h.dtype, device=h.device)

    def _pull_of_norms(self, trained: Array, h: Tensor, part: slice) -> Tensor:
        """Twice the derivative of the runs' losses in ``W^T W``, the matrix D with ``dloss = Tr[D dQ]`` over d."""
        targets, grams = self.samples.targets[part].flatten(0, 1), self.samples.grams[part].flatten(0, 1)
        _, slopes, _ = self.loss.trained_slopes(h, targets, grams, of_samples(trained, h))
        sums = slopes[-self._norms :].reshape(self._norms, len(trained), -1).sum(dim=2).T.double().cpu().numpy()
        matrices = conjugates_of_norms(sums, h.shape[2])[0] / self.dimension
        return torch.as_tensor(matrices, dtype=h.dtype, device=h.device)

    def sample_losses(self, weights: Tensor) -> Tensor:
        """Losses of all samples, (S, n)."""
        return self._losses(weights)[0]

    def _losses(self, weights: Tensor) -> tuple[Tensor, Tensor | float]:
        """Losses of all samples, (S, n), and what trained parameters add to the risk."""
        h = self.fields(weights)
        loss, paid = self._loss_at(self._best(weights, h, slice(None)), h)
        values = loss.values(h, self.samples.targets.flatten(0, 1), self.samples.grams.flatten(0, 1))
        return values.reshape(self.samples.offsets.shape) + self.samples.offsets, paid

    def smooth(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Value (S,) and gradient (S, d, r) of the loss and of the regulariser's quadratic part."""
        runs = len(weights)
        size = runs if weights.is_cuda else max(1, TOGETHER // self.samples.count)
        parts = [slice(begin, begin + size) for begin in range(0, runs, size)]
        found = each(self.threads, lambda part: self._smooth(part, weights[part]), parts)
        values, gradients = zip(*found, strict=True)
        return torch.cat(values), torch.cat(gradients)

    def _smooth(self, part: slice, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Value and gradient of the runs of a part."""
        runs, columns = len(weights), weights.shape[2]
        samples = self.samples
        tokens, targets, grams = samples.tokens[part], samples.targets[part], samples.grams[part]
        h = fields_of(tokens, weights).reshape(-1, self.loss.problem.tokens.length, columns)
        trained = self._best(weights, h, part)
        loss, paid = self._loss_at(trained, h)
        losses, slopes = loss.gradients(h, targets.flatten(0, 1), grams.flatten(0, 1))
        value = paid + losses.reshape(runs, -1).sum(dim=1) + samples.offsets[part].sum(dim=1)
        gradient = pull_back(tokens, slopes.reshape(runs, -1, columns))
        gradient.addcmul_(weights, self._ridges(weights))
        if self._norms:
            gradient += weights @ self._pull_of_norms(trained, h, part)
        return value + self._ridge(weights), gradient

    def _ridges(self, weights: Tensor) -> Tensor:
        """The ridge of all columns, (), or of each, (r,)."""
        return torch.as_tensor(self.regularizer.ridge, dtype=weights.dtype, device=weights.device)

    def _ridge(self, weights: Tensor) -> Tensor:
        """Value (S,) of the regulariser's quadratic part."""
        return (self._ridges(weights) / 2 * weights.square().sum(dim=1)).sum(dim=1)

    def sharp(self, weights: Tensor) -> Tensor:
        """Value (S,) of the rest of the regulariser, which need not be smooth."""
        if self.is_smooth:
            return weights.new_zeros(len(weights))
        penalty, array = self.regularizer.value, weights.detach().cpu().double().numpy()
        if self.regularizer.rowwise:
            values = penalty((array**2).sum(axis=2) ** 0.5).sum(axis=1)
        else:
            values = penalty(array).sum(axis=(1, 2))
        return torch.as_tensor(values, dtype=weights.dtype, device=weights.device)

    def value(self, weights: Tensor) -> Tensor:
        """``R(W)`` of every run, (S,).

        Equation (D4) of the replica-symmetric page.
        """
        losses, paid = self._losses(weights)
        return losses.sum(dim=1) + paid + self._ridge(weights) + self.sharp(weights)

    def proximal_step(self, weights: Tensor, step: Tensor) -> Tensor:
        """``argmin_w sharp(w) + |w - v|^2 / (2 step)``, with a step (S,) for each run."""
        if self.is_smooth:
            return weights
        array, size = weights.detach().cpu().double().numpy(), step.detach().cpu().double().numpy()[:, None, None]
        regularizer = self.regularizer
        if regularizer.rowwise:
            norms = (array**2).sum(axis=2, keepdims=True) ** 0.5
            shrunk = regularizer.prox(norms, size)
            result = array * (shrunk / (norms + (norms == 0)))
        else:
            result = regularizer.prox(array, size)
        return torch.as_tensor(result, dtype=weights.dtype, device=weights.device)

    def sizes(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Natural sizes of the weights' columns, and of the gradients' at these weights, both (S, r).

        Weights have their root mean square, or a thousandth of their unit. The gradient's size is what weights
        of this size change of it: by the ridge, and by the second derivatives of every sample's loss, whose absolute
        values are summed. So it has the unit of the gradient, does not vanish with it, and no constant in the loss
        changes it.
        """
        size = torch.maximum(weights.square().mean(dim=1).sqrt(), _LEAST * self.units(weights))
        return size, self._ridges(weights) * size + self._by_parts(self._curved, weights, size)

    def units(self, weights: Tensor) -> Tensor:
        """Units of the weights' columns, (S, r), with the trained parameters of these weights.

        The problem's unit does not know labels that are small: from W = 0 the slopes of all samples' losses, if all had
        one sign, would lead no farther than their absolute values over those of the second derivatives.
        """
        known = torch.as_tensor(Units.of(self.loss.problem).weights).to(weights).expand(len(weights), -1)
        bent = self._ridges(weights) + self._by_parts(self._curved_at_zero, weights, torch.ones_like(known))
        reach = self._by_parts(self._steep_at_zero, weights, known) / bent
        return torch.where((reach > 0) & (reach < known), reach, known)

    def _by_parts(self, of: Callable[[slice, Tensor, Tensor], Tensor], weights: Tensor, size: Tensor) -> Tensor:
        """What is there for every column of every run, (S, r), a few runs at a time."""
        step = max(1, TOGETHER // self.samples.count)
        parts = [slice(begin, begin + step) for begin in range(0, len(weights), step)]
        return torch.cat(each(self.threads, lambda part: of(part, weights[part], size[part]), parts))

    def gradient_size(self, weights: Tensor) -> Tensor:
        """``|nabla R| / sqrt(d)`` of a gradient of its natural size, (S,)."""
        return self.sizes(weights)[1].square().sum(dim=1).sqrt()

    def curvature(self, weights: Tensor) -> Tensor:
        """Natural size of the risk's second derivatives, (S,), as powers of two; one where it vanishes."""
        size, gradient = self.sizes(weights)
        largest = (gradient / size).amax(dim=1)
        known = torch.isfinite(largest) & (largest > 0)
        return torch.where(known, torch.ldexp(torch.ones_like(largest), torch.frexp(largest)[1]), 1.0)

    def _curved(self, part: slice, weights: Tensor, size: Tensor) -> Tensor:
        """By what weights of these sizes (S, r) change the gradients of the losses of a part's runs, (S, r)."""
        tokens = self.samples.tokens[part]
        h = fields_of(tokens, weights).reshape(-1, self.loss.problem.tokens.length, weights.shape[2])
        return self._bent(part, h, self._best(weights, h, part), size)

    def _at_zero(self, part: slice, weights: Tensor) -> tuple[Tensor, Array]:
        """Fields of W = 0, and the trained parameters of these weights."""
        h = fields_of(self.samples.tokens[part], weights)
        h = h.reshape(-1, self.loss.problem.tokens.length, weights.shape[2])
        return torch.zeros_like(h), self._best(weights, h, part)

    def _curved_at_zero(self, part: slice, weights: Tensor, size: Tensor) -> Tensor:
        """Likewise at W = 0."""
        return self._bent(part, *self._at_zero(part, weights), size)

    def _steep_at_zero(self, part: slice, weights: Tensor, _: Tensor) -> Tensor:
        """Absolute values of the slopes of all samples' losses in the weights at W = 0, (S, r)."""
        h, trained = self._at_zero(part, weights)
        loss = self._loss_at(trained, h)[0]
        slopes = loss.gradients(h, self.samples.targets[part].flatten(0, 1), self.samples.grams[part].flatten(0, 1))[1]
        norms = self._norms_of_tokens(part)
        return (norms * slopes.abs().reshape(*norms.shape[:3], -1)).sum(dim=(1, 2)) / self.dimension

    def _bent(self, part: slice, h: Tensor, trained: Array, size: Tensor) -> Tensor:
        """By what weights of these sizes change the gradients at these fields."""
        samples, norms = self.samples, self._norms_of_tokens(part)
        loss, _ = self._loss_at(trained, h)
        hessian = loss.derivatives(h, samples.targets[part].flatten(0, 1), samples.grams[part].flatten(0, 1))[2].abs()
        fields = (norms * size[:, None, None, :]).reshape(len(h), -1, 1)
        slopes = (hessian @ fields).reshape(*norms.shape[:3], -1)
        return (norms * slopes).sum(dim=(1, 2)) / self.dimension

    def _norms_of_tokens(self, part: slice) -> Tensor:
        """Over the root of d, (S, n, L, 1)."""
        tokens, length = self.samples.tokens[part], self.loss.problem.tokens.length
        norms = torch.linalg.vector_norm(tokens, dim=2) / math.sqrt(self.dimension)
        return norms.reshape(len(tokens), -1, length, 1)

    def stationarity(self, weights: Tensor, gradient: Tensor, step: Tensor | None = None) -> Tensor:
        """``|nabla R| / sqrt(d)`` of every run; with a regulariser that is not smooth the length of a proximal step.

        The proximal step is divided by its size, so that it is the gradient where the regulariser is smooth; left out,
        the size is one over `curvature`.
        """
        if not self.is_smooth:
            step = 1 / self.curvature(weights) if step is None else step
            size = step[:, None, None]
            gradient = (weights - self.proximal_step(weights - size * gradient, step)) / size
        return gradient.square().sum(dim=(1, 2)).sqrt() / math.sqrt(self.dimension)
