"""One regular step in every lane of a block: the square loss of one field.

As with `lanes`, a build puts a model's generated source in its place; `derivations.codegen.steps` says what that does.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array

from .compiled import side_by_side
from .constants import CONVERGED, FINITE, GOES_ON, IRREGULAR
from .lanes import CENTER, CURVATURE, ENERGY, EVENT, GRADIENT, LANES, LOSS, POINT, SLOPE, STEP, STEPS, TARGET

__all__ = ["newton_step"]


@side_by_side
def newton_step(state: Array, factor: Array, variance: Array, parameters: Array) -> None:
    """A step in every lane whose descent is under way: the energy is quadratic, and the first one leads to its end."""
    scale = factor[0, 0, 0]
    for n in range(LANES):
        point = state[n + POINT * LANES] - state[n + STEP * LANES]
        gradient = state[n + CENTER * LANES] + scale * point - state[n + TARGET * LANES]
        loss = 0.5 * gradient**2
        energy, slope = 0.5 * point**2 + loss, point + scale * gradient
        if state[n + EVENT * LANES] != GOES_ON:
            continue
        if np.abs(energy) <= FINITE:
            state[n + POINT * LANES], state[n + GRADIENT * LANES] = point, gradient
            state[n + SLOPE * LANES], state[n + CURVATURE * LANES] = slope, 1.0 + scale**2
            state[n + STEP * LANES] = slope / (1.0 + scale**2)
            state[n + ENERGY * LANES], state[n + LOSS * LANES] = energy, loss
            state[n + STEPS * LANES] += 1.0
        flat = np.abs(state[n + STEP * LANES]) <= 1e-11 * (1.0 + np.abs(point))
        finished = CONVERGED if flat else GOES_ON
        state[n + EVENT * LANES] = finished if np.abs(energy) <= FINITE else IRREGULAR
