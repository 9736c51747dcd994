"""Linear algebra of one sample's small matrices, and the change of variables ``h = omega + C u``.

All numbers of a sample are in one array, ``work``; ``w`` says where in it, see `attnphase.kernels.local.model`.
"""

from __future__ import annotations

from math import sqrt

from attnphase.arrays import Array

from .compiled import compiled
from .constants import PIVOT
from .model import Record
from .starts import ONE

__all__ = ["factorise", "fill", "in_u", "inner", "place", "scale_derivatives", "to_scaled"]


@compiled
def factorise(m: Record, w: Record, shift: float, work: Array) -> bool:
    """Cholesky factor of the curvature, plus the shift on its diagonal; False if it is not positive definite."""
    for i in range(m.fields):
        row = w.lower + i * m.fields
        for j in range(i + ONE):
            column, total = w.lower + j * m.fields, work[w.curvature + i * m.fields + j]
            if i == j:
                total += shift
            for c in range(j):
                total -= work[row + c] * work[column + c]
            if i > j:
                work[row + j] = total / work[column + j]
            elif total > PIVOT:
                work[row + i] = sqrt(total)
            else:
                return False
    return True


@compiled
def place(m: Record, w: Record, u: int, h: int, work: Array) -> None:
    """``h = center + C u``."""
    for a in range(m.length):
        for i in range(m.columns):
            p = a * m.columns + i
            total = work[w.center + p]
            for j in range(i + ONE):
                total += work[w.factor + p * m.columns + j] * work[u + a * m.columns + j]
            work[h + p] = total


@compiled
def to_scaled(m: Record, w: Record, work: Array) -> None:
    """Solve ``C u = h - center`` token by token."""
    for a in range(m.length):
        for i in range(m.columns):
            p = a * m.columns + i
            total = work[w.h + p] - work[w.center + p]
            for j in range(i):
                total -= work[w.factor + p * m.columns + j] * work[w.u + a * m.columns + j]
            work[w.u + p] = total / work[w.factor + p * m.columns + i]


@compiled
def in_u(m: Record, w: Record, gradient: int, result: int, work: Array) -> None:
    """Add to a vector a gradient in u, from that in h."""
    for a in range(m.length):
        for i in range(m.columns):
            total = work[result + a * m.columns + i]
            for q in range(a * m.columns + i, (a + ONE) * m.columns):
                total += work[w.factor + q * m.columns + i] * work[gradient + q]
            work[result + a * m.columns + i] = total


@compiled
def scale_derivatives(m: Record, w: Record, work: Array) -> None:
    """Gradient and Hessian of ``Psi`` in u, ``slope`` and ``curvature``, from those of the loss in h."""
    for p in range(m.fields):
        work[w.slope + p] = work[w.u + p]
    in_u(m, w, w.gradient, w.slope, work)
    for a in range(m.length):
        for i in range(m.columns):
            row = a * m.columns + i
            for b in range(a + ONE):
                for j in range(m.columns if b < a else i + ONE):
                    total, column = 0.0, b * m.columns + j
                    for p in range(row, (a + ONE) * m.columns):
                        for q in range(column, (b + ONE) * m.columns):
                            share = work[w.factor + p * m.columns + i] * work[w.hessian + p * m.fields + q]
                            total += share * work[w.factor + q * m.columns + j]
                    work[w.curvature + row * m.fields + column] = total + 1.0 if row == column else total


@compiled
def inner(m: Record, one: int, other: int, work: Array, total: float = 0.0) -> float:
    """Inner product of two vectors, added to a number."""
    for i in range(m.fields):
        total += work[one + i] * work[other + i]
    return total


@compiled
def fill(first: int, count: int, value: float, work: Array) -> None:
    """Make numbers all the same."""
    for i in range(count):
        work[first + i] = value
