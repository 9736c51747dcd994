"""The problem of one row of weights, ``w(B, Lambda) = argmin_w r(w) + 1/2 w^T Lambda w - B^T w``: (100)-(106).

A regulariser is a penalty on single weights, or on the norm of a row, plus a quadratic part ``ridge/2 |w|^2`` that is
added to Lambda.  All functions are vectorised over leading axes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array

__all__ = ["RowRegularizer"]

_SWEEPS = 500  # of coordinate descent, or steps of the proximal gradient
_CONVERGED = 1e-13
_TINY = 1e-100  # a source that no smooth penalty makes zero


@dataclass(frozen=True, eq=False)
class RowRegularizer:
    """A convex regulariser of the rows of the weights.

    Attributes
    ----------
    name : str
    ridge : float or (r,) array
        Quadratic part of all columns, or of each, added to the curvature.
    value : callable
        The penalty without the quadratic part: of single weights, or of the norm of a row if `rowwise`.
    prox : callable
        ``prox(v, step)``, the minimiser of ``value(w) + (w - v)^2 / (2 step)``, likewise.
    kinks : tuple of (float, float, float)
        Weights at which the penalty's slope jumps, with the slopes on the left and on the right.
    rowwise : bool
        Whether the penalty is one of the row's norm.
    even : bool
        Whether signs of the weights do not matter.
    quadratic : bool
        Whether there is nothing beside the quadratic part.
    linear : bool
        Whether the penalty is linear between its kinks, of which there is one at least: means then have closed forms.
    panels, order : int
        Of the means of one column, 17 standard deviations of the source, between two kinks: how many panels of how many
        nodes each. Six are enough where the slope is linear in between, 24 where it bends sharply; many of low order
        serve kinks that are not known.
    """

    name: str
    ridge: float | Array
    value: Callable[[Array], Array]
    prox: Callable[[Array, Array], Array]
    kinks: tuple[tuple[float, float, float], ...] = ()
    rowwise: bool = False
    even: bool = True
    quadratic: bool = False
    linear: bool = False
    panels: int = 6
    order: int = 20

    @property
    def holds_zero(self) -> bool:
        """Whether the penalty has a kink at zero, at which small sources leave a weight."""
        if not self.kinks:  # of a function of the user's own no kink is known
            return not self.quadratic and bool(self.prox(np.array([_TINY]), np.ones(1))[0] == 0)
        return any(place == 0 and left < 0 < right for place, left, right in self.kinks)

    def penalty(self, w: Array) -> Array:
        """``r(w)``, the quadratic part included: (..., r) to (...)."""
        quadratic = (self.ridge / 2 * w**2).sum(axis=-1)
        if self.rowwise:
            return self.value(np.linalg.norm(w, axis=-1)) + quadratic
        return self.value(w).sum(axis=-1) + quadratic

    def margin(self, curvature: Array) -> float:
        """Smallest eigenvalue of Lambda with the ridge: positive where the row problem has its one minimum."""
        return float(np.linalg.eigvalsh(self.with_ridge(curvature)).min())

    def with_ridge(self, curvature: Array) -> Array:
        """Lambda with the ridge, (..., r, r)."""
        return curvature + self.ridge * np.eye(curvature.shape[-1])

    def zeros(self, w: Array) -> NDArray[np.bool_]:
        """Which weights vanish exactly."""
        return w == 0.0

    def minimise(self, curvature: Array, source: Array) -> Array:
        """The minimisers: Lambda (..., r, r) and B (..., r), broadcast against each other, to w (..., r)."""
        r = source.shape[-1]
        curvature = self.with_ridge(curvature)
        shape = np.broadcast_shapes(curvature.shape[:-2], source.shape[:-1])
        curvature = np.broadcast_to(curvature, (*shape, r, r))
        source = np.broadcast_to(source, (*shape, r))
        if r == 1:
            stiffness = curvature[..., 0, 0]
            return self.prox(source[..., 0] / stiffness, 1 / stiffness)[..., None]
        if self.rowwise:
            return self._rowwise(curvature.reshape(-1, r, r), source.reshape(-1, r)).reshape(*shape, r)
        return self._by_coordinates(curvature, source)

    def _by_coordinates(self, curvature: Array, source: Array) -> Array:
        """Cyclic coordinate descent: every step is exact, and zeros stay exactly zero."""
        r = source.shape[-1]
        w: Any = np.linalg.solve(curvature, source[..., None])[..., 0]
        free = np.abs(w).max(axis=-1)  # rounding is relative to this size too
        w = self.prox(w, 1 / np.diagonal(curvature, axis1=-2, axis2=-1))
        for _ in range(_SWEEPS):
            moved = np.zeros(w.shape)
            for i in range(r):
                stiffness = curvature[..., i, i]
                rest = source[..., i] - (curvature[..., i, :] * w).sum(axis=-1) + stiffness * w[..., i]
                new = self.prox(rest / stiffness, 1 / stiffness)
                moved[..., i] = new - w[..., i]
                w[..., i] = new
            if not (np.abs(moved).max(axis=-1) > _CONVERGED * np.maximum(free, np.abs(w).max(axis=-1))).any():
                break
        return w

    def _rowwise(self, curvature: Array, source: Array) -> Array:
        """``(Lambda + s/|w| I) w = B`` for a penalty ``s |w|``: Newton's method for the norm in Lambda's eigenbasis."""
        strength = self.kinks[0][2]
        active = np.linalg.norm(source, axis=-1) > strength
        values, vectors = np.linalg.eigh(curvature[active])
        along = np.einsum("nji,nj->ni", vectors, source[active])
        # the norm n solves |b_i / (n v_i + s)| = 1; the left side's inverse is concave, so that steps from below climb
        length = (np.linalg.norm(along, axis=-1) - strength) / values[:, -1]
        for _ in range(_SWEEPS):
            stiffness = length[:, None] * values + strength
            squares = (along / stiffness) ** 2
            size = np.sqrt(squares.sum(axis=-1))
            step = (size - 1) * size**2 / (squares * values / stiffness).sum(axis=-1)
            length = length + step
            if not (np.abs(step) > _CONVERGED * (length + strength / values[:, 0])).any():
                break
        scaled = along * length[:, None] / (length[:, None] * values + strength)
        w = np.zeros_like(source)
        w[active] = np.einsum("nij,nj->ni", vectors, scaled)
        return w
