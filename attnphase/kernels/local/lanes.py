"""One trial of a damped Newton step in every lane of a block: the square loss of one field.

As with `local_problem`, a build puts a model's generated source in its place; `derivations.codegen.lanes` says what
that does.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array

from .compiled import side_by_side
from .constants import CONVERGED, FINITE, GOES_ON, GRADIENT_TOLERANCE, LENGTH_UNIT, STUCK

__all__ = ["LANES", "lane_losses", "newton_trial", "teacher_targets"]

LANES = 4
CENTER, TARGET, POINT, GRADIENT, SLOPE, CURVATURE, STEP, BEST, OTHER = range(9)
ENERGY, LOSS, SHIFT, STEPS, TRIES, EXPECTED, DEFINITE, WIDEST, DEEPEST, EVENT = range(9, 19)
FACTOR, VARIANCE, ROWS = range(19, 22)
TARGETS, TARGET_ENTRIES = 1, ((0, 0),)


@side_by_side
def newton_trial(state: Array, factor: Array, variance: Array, parameters: Array) -> None:
    """A step in every lane; the first trial of a descent is its starting point."""
    scale = factor[0, 0, 0]
    for n in range(LANES):
        point = state[n + POINT * LANES] - state[n + STEP * LANES]
        gradient = state[n + CENTER * LANES] + scale * point - state[n + TARGET * LANES]
        loss = 0.5 * gradient**2
        energy, slope = 0.5 * point**2 + loss, point + scale * gradient
        if np.abs(energy) <= FINITE:
            state[n + POINT * LANES], state[n + GRADIENT * LANES] = point, gradient
            state[n + SLOPE * LANES], state[n + CURVATURE * LANES] = slope, 1.0 + scale**2
            state[n + STEP * LANES] = slope / (1.0 + scale**2)
            state[n + ENERGY * LANES], state[n + LOSS * LANES] = energy, loss
            state[n + STEPS * LANES] += 1.0
        flat = slope**2 <= GRADIENT_TOLERANCE**2 * (parameters[LENGTH_UNIT] ** 2 + point**2)
        finished = CONVERGED if flat else GOES_ON
        state[n + EVENT * LANES] = finished if np.abs(energy) <= FINITE else STUCK


@side_by_side
def teacher_targets(k: Array, mixing: Array, parameters: Array, targets: Array) -> None:
    """Targets of a block from the teacher's fields, row by row."""
    for n in range(LANES):
        targets[n] = k[n]


@side_by_side
def lane_losses(h: Array, targets: Array, variance: Array, parameters: Array, losses: Array) -> None:
    """Losses of a block from its fields and targets, row by row."""
    for n in range(LANES):
        losses[n] = 0.5 * (h[n] - targets[n]) ** 2
