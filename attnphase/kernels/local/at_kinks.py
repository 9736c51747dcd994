"""Starts at kinks: a loss that flattens away from a kink has minima there to which no slope leads from elsewhere."""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.values import Energy, Workspace

from .along_kinks import evaluate
from .compiled import compiled
from .constants import CLOSE, DISTINCT, LENGTH_UNIT, MAX_TRIES, PIVOT
from .linear_algebra import SIZE, squared_norm
from .local_problem import COLUMNS, KINKS

__all__ = ["go_to_kink"]


@compiled
def normal_in_u(kink: int, factor: Array, normals: Array, normal: Array) -> None:
    """Fill in a kink's normal, the derivatives of its argument in u."""
    for p in range(SIZE):
        a, i = divmod(p, COLUMNS)
        normal[p] = 0.0
        for c in range(i, COLUMNS):
            normal[p] += factor[a, c, i] * normals[kink, a * COLUMNS + c]


@compiled
def go_to_kink(kink: int, keeps: bool, center: Array, terms: Energy, work: Workspace) -> bool:
    """Move ``work.u`` from ``kinks.base`` to the point of a kink that is nearest to the centre, by Newton's method.

    With ``keeps`` to a point near the base, on all kinks on which the base lies.  Returns False where there is no such
    point, the kink bends downwards there, or the last call for this kink led to the same point.
    """
    kinks, u, trial, length = work.kinks, work.u, work.trial, terms.parameters[LENGTH_UNIT]
    basis, heights = kinks.scaled, kinks.change
    kinks.multipliers[:] = 1.0  # none is held
    for i in range(SIZE):
        u[i] = kinks.base[i]
    for step in range(MAX_TRIES):
        if not abs(evaluate(u, center, terms, work)) < np.inf:
            return False
        for i in range(SIZE):
            trial[i] = u[i] if keeps else 0.0
        for j in range(KINKS):
            # an orthonormal basis of the normals, in whose span the step lies, or the point
            direction, height = basis[j], -kinks.arguments[j]
            normal_in_u(j, terms.factor, kinks.normals, direction)
            size = squared_norm(direction)
            if step == 0:
                near = DISTINCT * length * np.sqrt(size)
                kinks.kept[j] = j == kink or (keeps and abs(height) <= near)
            if not kinks.kept[j]:
                direction[:] = 0.0
                continue
            for i in range(SIZE):
                height += 0.0 if keeps else direction[i] * u[i]
            for c in range(j):
                along = 0.0
                for i in range(SIZE):
                    along += basis[c, i] * direction[i]
                height -= along * heights[c] if kinks.kept[c] else 0.0
                for i in range(SIZE):
                    direction[i] -= along * basis[c, i]
            left = squared_norm(direction)
            if not left > PIVOT * size:
                return False
            heights[j] = height / np.sqrt(left)
            for i in range(SIZE):
                direction[i] /= np.sqrt(left)
                trial[i] += heights[j] * direction[i]
        moved, apart = 0.0, 0.0
        for i in range(SIZE):
            unit = length + abs(trial[i])
            moved = max(moved, abs(trial[i] - u[i]) / unit)
            apart = max(apart, abs(trial[i] - kinks.last[kink, i]) / unit)
            u[i] = trial[i]
        if moved <= CLOSE:
            if kinks.weights[kink] <= 0.0 or apart <= DISTINCT:
                return False
            for i in range(SIZE):
                kinks.last[kink, i] = u[i]
            return True
    return False
