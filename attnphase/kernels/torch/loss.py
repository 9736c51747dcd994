"""The loss of single samples as tensors: the generated torch print of a problem's model, in batches."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch import Tensor

from attnphase.kernels.key import model_numbers, trained_places
from attnphase.kernels.reference import torch_module
from attnphase.problem.problem import Problem

__all__ = ["LocalLoss"]

_CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class LocalLoss:
    """Loss of N samples at finite d as a function of their local fields, with its derivatives.

    Attributes
    ----------
    problem : Problem
    device : torch.device
    dtype : torch.dtype
    """

    problem: Problem
    device: torch.device = _CPU
    dtype: torch.dtype = torch.float64
    module: ModuleType = field(init=False)
    parameters: Tensor = field(init=False)
    mixing: Tensor = field(init=False)
    trained: tuple[int, ...] = field(init=False)  # places of what is trained, and behind it of Q
    _clusters: Tensor = field(init=False)  # number of every site's

    def __post_init__(self) -> None:
        problem = self.problem
        options = {"device": self.device, "dtype": self.dtype}
        object.__setattr__(self, "module", torch_module(problem))
        object.__setattr__(self, "parameters", torch.tensor(model_numbers(problem), **options))
        object.__setattr__(self, "trained", tuple(trained_places(problem)))
        object.__setattr__(self, "mixing", torch.tensor(problem.mixing_matrix, **options))
        object.__setattr__(self, "_clusters", torch.tensor([cluster for _, cluster in problem.sites], **options))

    def at(self, trained: Tensor) -> LocalLoss:
        """The loss with other values (p,) of what is trained and of Q, or (p, N) of every sample, which it keeps."""
        other, several = copy(self), trained.shape[1:]
        parameters = self.parameters.reshape(-1, *(1,) * len(several)).expand(-1, *several).clone()
        parameters[list(self.trained)] = trained
        object.__setattr__(other, "parameters", parameters)
        object.__setattr__(other, "trained", ())
        return other

    @property
    def has_grams(self) -> bool:
        """Whether the loss takes Gram matrices."""
        return self.problem.loss.form.has_grams

    @property
    def target_shape(self) -> tuple[int, int]:
        """Shape of one sample's target: (L, L), of outputs (L, v), or (L, label fields)."""
        length = self.problem.tokens.length
        if self.problem.loss.form.has_grams:
            return length, length
        return length, self.problem.loss.value_columns or self.module.LABEL_FIELDS

    @property
    def noise_shape(self) -> tuple[int, int]:
        """Shape of the noise on one sample's labels: (L, L) on its target, or (L, t) on the teacher's fields."""
        width = self.problem.teacher_columns if self.problem.loss.form.noisy_fields else self.problem.tokens.length
        return self.problem.tokens.length, width

    def targets(self, k: Tensor, sites: Tensor, noise: Tensor | None = None) -> Tensor:
        """What the teacher makes of its fields: (N, L, t) to (N, *target_shape); with ``noise`` (N, *noise_shape).

        The tokens' ``sites`` (N, L), or the same (L,) for all, tell their clusters.
        """
        if noise is not None and self.problem.loss.form.noisy_fields:
            k = k + noise
        elif self.module.NOISE:
            k = torch.cat([k, k.new_zeros((len(k), *self.noise_shape)) if noise is None else noise], dim=2)
        if k.shape[2] < self.module.LABEL_FIELDS:
            k = torch.cat([k, self._clusters[sites].expand(k.shape[:2])[..., None]], dim=2)
        target = k.new_zeros((*self.target_shape, len(k)))
        self.module.teacher_target(k.movedim(0, -1).contiguous(), self.mixing, self.parameters, target)
        return target.movedim(-1, 0)

    def values(self, h: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Losses (N,) at fields (N, L, r).

        ``targets`` (N, ...) and ``weights`` (N, L, L) hold C and G of every sample.
        """
        fields, targets, weights = self._trailing(h, targets, weights)
        return self.module.loss(fields, targets, weights, self.parameters).expand(len(h))

    def gradients(self, h: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (N,) and their gradients (N, L, r)."""
        fields, targets, weights = self._trailing(h, targets, weights)
        gradient = torch.empty_like(fields)
        losses = self.module.loss_gradient(fields, targets, weights, self.parameters, gradient)
        return losses, gradient.movedim(-1, 0)

    def derivatives(self, h: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Losses (N,), gradients (N, L, r) and Hessians (N, L r, L r)."""
        fields, targets, weights = self._trailing(h, targets, weights)
        size = fields.shape[0] * fields.shape[1]
        gradient, hessian = torch.empty_like(fields), fields.new_empty((size, size, len(h)))
        losses = self.module.loss_derivatives(fields, targets, weights, self.parameters, gradient, hessian)
        return losses, gradient.movedim(-1, 0), hessian.movedim(-1, 0)

    def trained_slopes(self, h: Tensor, targets: Tensor, weights: Tensor, trained: Tensor) -> tuple[Tensor, ...]:
        """Losses (N,) at values (p, N) of what is trained and of Q, and derivatives (p, N) and (p, p, N) in them."""
        fields, targets, weights = self._trailing(h, targets, weights)
        parameters, count = self.at(trained).parameters, len(self.trained)
        slopes, curvatures = fields.new_empty((count, len(h))), fields.new_empty((count, count, len(h)))
        losses = self.module.loss(fields, targets, weights, parameters).expand(len(h))
        self.module.trained_slopes(fields, targets, weights, parameters, slopes, curvatures)
        return losses, slopes, curvatures

    def _trailing(self, h: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The generated code wants the samples on the last axis."""
        return _last(h), _last(targets), _last(weights)


def _last(values: Tensor) -> Tensor:
    return values.movedim(0, -1).contiguous()
