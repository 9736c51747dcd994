"""Linear algebra of one sample's small matrices, and the change of variables ``h = omega + C u``."""

from __future__ import annotations

from math import sqrt

from attnphase.arrays import Array

from .compiled import compiled
from .constants import PIVOT
from .local_problem import COLUMNS, LENGTH

__all__ = ["SIZE", "copy", "factorise", "place", "scale_derivatives", "squared_norm", "to_scaled"]

SIZE = LENGTH * COLUMNS


@compiled
def factorise(matrix: Array, shift: float, lower: Array) -> bool:
    """Cholesky factor of ``matrix + shift I``; False if it is not positive definite."""
    for i in range(SIZE):
        for j in range(i + 1):
            total = matrix[i, j]
            if i == j:
                total += shift
            for c in range(j):
                total -= lower[i, c] * lower[j, c]
            if i == j:
                if not total > PIVOT:
                    return False
                lower[i, i] = sqrt(total)
            else:
                lower[i, j] = total / lower[j, j]
    return True


@compiled
def place(u: Array, center: Array, factor: Array, h: Array) -> None:
    """``h = center + C u``."""
    for a in range(LENGTH):
        for i in range(COLUMNS):
            total = center[a, i]
            for j in range(i + 1):
                total += factor[a, i, j] * u[a * COLUMNS + j]
            h[a, i] = total


@compiled
def to_scaled(start: Array, center: Array, factor: Array, u: Array) -> None:
    """Solve ``C u = start - center`` token by token."""
    for a in range(LENGTH):
        for i in range(COLUMNS):
            total = start[a, i] - center[a, i]
            for j in range(i):
                total -= factor[a, i, j] * u[a * COLUMNS + j]
            u[a * COLUMNS + i] = total / factor[a, i, i]


@compiled
def scale_derivatives(u: Array, factor: Array, gradient: Array, hessian: Array, slope: Array, curvature: Array) -> None:
    """Gradient and Hessian of ``Psi`` in u, ``slope`` and ``curvature``, from those of the loss in h."""
    for a in range(LENGTH):
        for j in range(COLUMNS):
            total = u[a * COLUMNS + j]
            for i in range(j, COLUMNS):
                total += factor[a, i, j] * gradient[a, i]
            slope[a * COLUMNS + j] = total
    for a in range(LENGTH):
        for j in range(COLUMNS):
            row = a * COLUMNS + j
            for b in range(a + 1):
                for l in range(COLUMNS):
                    column = b * COLUMNS + l
                    if column > row:
                        continue
                    total = 0.0
                    for i in range(j, COLUMNS):
                        for c in range(l, COLUMNS):
                            total += factor[a, i, j] * hessian[a * COLUMNS + i, b * COLUMNS + c] * factor[b, c, l]
                    if row == column:
                        total += 1.0
                    curvature[row, column] = total


@compiled
def squared_norm(vector: Array) -> float:
    """Sum of the squares of the entries."""
    norm = 0.0
    for i in range(SIZE):
        norm += vector[i] * vector[i]
    return norm


@compiled
def copy(source: Array, target: Array) -> None:
    """Copy fields (L, r)."""
    for a in range(LENGTH):
        for i in range(COLUMNS):
            target[a, i] = source[a, i]
