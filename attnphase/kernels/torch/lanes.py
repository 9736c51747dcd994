"""Many local problems side by side: a descent from one start of one node is a lane, on the last axis of every array.

As in the compiled minimiser the descents run in ``u`` with ``h = omega + C u`` and ``V = C C^T``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from attnphase.kernels.local.constants import LENGTH_UNIT

__all__ = ["Lanes", "Point"]


@dataclass(frozen=True, eq=False)
class Lanes:
    """Local problems with the lanes on the last axis; an array without that axis is of all lanes alike.

    Attributes
    ----------
    module : module
        The generated loss.
    parameters : (4 + r,) tensor
    center : (L, r, N) tensor
        ``omega``.
    target : (L, x, N) tensor
    weights : (L, L, N) or (L,) tensor
    factor : (L, r, r, N) or (L, r, r, 1) tensor
        Lower Cholesky factors of V.
    """

    module: ModuleType
    parameters: Tensor
    center: Tensor
    target: Tensor
    weights: Tensor
    factor: Tensor

    @property
    def length_unit(self) -> Tensor:
        """That of the points u."""
        return self.parameters[LENGTH_UNIT]

    def take(self, index: Tensor) -> Lanes:
        """Some of the lanes."""
        return Lanes(
            self.module,
            self.parameters,
            self.center[..., index],
            self.target[..., index],
            self.weights[..., index] if self.weights.ndim > 1 else self.weights,
            self.factor[..., index] if self.factor.shape[-1] > 1 else self.factor,
        )

    def place(self, u: Tensor) -> Tensor:
        """``h = omega + C u``."""
        h = self.center.clone()
        for j in range(u.shape[1]):
            h[:, j:].addcmul_(self.factor[:, j:, j], u[:, j, None])
        return h

    def scaled(self, h: Tensor) -> Tensor:
        """Solve ``C u = h - omega``."""
        u = h - self.center
        for i in range(u.shape[1]):
            known = (self.factor[:, i, :i] * u[:, :i]).sum(dim=1)
            u[:, i] = (u[:, i] - known) / self.factor[:, i, i]
        return u

    def at(self, u: Tensor) -> Point:
        """Everything that a descent needs to know at ``u``."""
        length, columns, count = u.shape
        size = length * columns
        h = self.place(u)
        gradient, hessian = torch.empty_like(u), u.new_empty((size, size, count))
        scratch = u.new_empty((size, count))
        value = self.module.loss_derivatives(h, self.target, self.weights, self.parameters, gradient, hessian, scratch)
        slope, inner, curvature = u.clone(), torch.zeros_like(hessian), torch.zeros_like(hessian)
        blocks, inner, outer = (x.view(length, columns, length, columns, count) for x in (hessian, inner, curvature))
        for i in range(columns):
            row = self.factor[:, i, : i + 1]  # C is lower triangular
            slope[:, : i + 1].addcmul_(row, gradient[:, i, None])
            inner[:, : i + 1].addcmul_(row[:, :, None, None], blocks[:, i, None])
        for i in range(columns):
            outer[..., : i + 1, :].addcmul_(inner[..., i, None, :], self.factor[:, i, : i + 1])
        curvature.diagonal().add_(1.0)
        norm = u.square().sum(dim=(0, 1))
        return Point(u, 0.5 * norm + value, value, gradient, slope.reshape(size, count), curvature, norm)


@dataclass(frozen=True, eq=False)
class Point:
    """Where N lanes stand.

    Attributes
    ----------
    u : (L, r, N) tensor
    energy, value : (N,) tensors
        ``Psi`` and the loss.
    gradient : (L, r, N) tensor
        Of the loss in h.
    slope, curvature : (L r, N) and (L r, L r, N) tensors
        Gradient and Hessian of ``Psi`` in u.
    norm : (N,) tensor
        ``|u|^2``.
    """

    u: Tensor
    energy: Tensor
    value: Tensor
    gradient: Tensor
    slope: Tensor
    curvature: Tensor
    norm: Tensor

    def take(self, index: Tensor) -> Point:
        """Some of the lanes."""
        return Point(*(x[..., index] for x in vars(self).values()))

    def moved(self, to: Point, lanes: Tensor) -> Point:
        """The other point in lanes where a step is accepted."""
        pairs = zip(vars(to).values(), vars(self).values(), strict=True)
        return Point(*(torch.where(lanes, new, old) for new, old in pairs))
