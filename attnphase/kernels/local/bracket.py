"""Descent to a minimum of the local problem of one field whose loss has kinks.

At a kink that is a minimum the slope of the energy ``Psi(u) = u^2/2 + loss(omega + C u)`` jumps from negative to
positive and is zero nowhere, so that Newton's method cannot end.  A bracket can: a minimum lies between a point with
the slope towards a second point, and that second point, if the slope there is opposite or the energy higher.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.values import Energy, Workspace

from .compiled import compiled
from .constants import FAR, GRADIENT_TOLERANCE, LENGTH_UNIT, MAX_NEWTON, RUNAWAY
from .linear_algebra import place
from .local_problem import loss_derivatives

__all__ = ["descend_to_kink"]


@compiled
def evaluate(u: float, center: Array, terms: Energy, work: Workspace) -> tuple[float, float, float]:
    """Loss, slope and curvature of the energy at ``u``, which ``work.u`` becomes."""
    target, variance, factor, parameters = terms
    work.u[0] = u
    place(work.u, center, factor, work.h)
    value = loss_derivatives(work.h, target, variance, parameters, work.gradient, work.hessian, work.contracted)
    root = factor[0, 0, 0]
    return value, u + root * work.gradient[0, 0], 1.0 + root * root * work.hessian[0, 0]


@compiled
def descend_to_kink(center: Array, terms: Energy, work: Workspace) -> tuple[float, float, int]:
    """Descent from ``work.u``: downhill until a minimum is bracketed, then Newton steps or halves of the bracket.

    Returns energy, loss and the number of steps, negative if the gradient did not reach its tolerance.  A descent that
    begins where the energy is not finite ends with infinite energy, and so does one that finds no bottom, with RUNAWAY
    steps.  At a kink ``work.gradient`` is the subgradient of the loss that belongs to the minimum, ``-u/C``.
    """
    length = terms.parameters[LENGTH_UNIT]
    unit, root = length * length, terms.factor[0, 0, 0]
    low = work.u[0]  # the end from which the energy falls towards the other
    value, slope, curvature = evaluate(low, center, terms, work)
    energy = 0.5 * low * low + value
    if not abs(energy) < np.inf:
        return np.inf, value, -1
    if abs(slope) <= GRADIENT_TOLERANCE * np.sqrt(unit + low * low):
        return energy, value, 0
    far, deep = FAR * (unit + low * low), -FAR * (unit + abs(energy))
    side = -1.0 if slope > 0.0 else 1.0
    high, bracketed, opposite = np.inf, False, False
    stride, width, point, halves = 0.0, np.inf, low, False
    for iteration in range(1, MAX_NEWTON):
        if bracketed:
            trial = point - slope / curvature if curvature > 0.0 else high
            if halves or not (min(low, high) < trial < max(low, high)):
                trial = 0.5 * (low + high)
        else:
            # steps that double end a walk down any slope
            stride = max(abs(slope) / curvature if curvature > 0.0 else abs(slope), 2.0 * stride)
            trial = low + side * stride
        point = trial
        value, slope, curvature = evaluate(trial, center, terms, work)
        reached = 0.5 * trial * trial + value
        if trial * trial >= far or reached <= deep:
            return np.inf, value, RUNAWAY
        # beyond a rise, which is more than rounding, lies another minimum
        lower = reached <= energy + GRADIENT_TOLERANCE * (unit + abs(energy))
        tolerance = GRADIENT_TOLERANCE * np.sqrt(unit + trial * trial)
        if lower and abs(slope) <= tolerance:
            return reached, value, iteration
        downhill = slope * side < 0.0
        if lower and downhill:
            low, energy = trial, reached
        else:
            high, bracketed, opposite = trial, True, abs(reached) < np.inf and not downhill
        if bracketed:
            # where a step did not halve the bracket, the next one does
            halves = not abs(high - low) <= 0.5 * width
            width = abs(high - low)
            if width <= tolerance:
                if root > 0.0:
                    work.gradient[0, 0] = -trial / root
                return reached, value, iteration if opposite else -iteration
    return energy, value, -MAX_NEWTON
