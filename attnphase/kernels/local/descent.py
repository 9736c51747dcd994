"""One damped Newton descent to a minimum of one sample's local problem.

With ``V_l = C_l C_l^T`` and ``h_l = omega_l + C_l u_l`` the energy is ``Psi(u) = |u|^2/2 + loss(omega + C u)``: well
scaled for every V, also where V vanishes or is large.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.values import Energy, Workspace

from .compiled import compiled
from .constants import (
    CAPTURED,
    CLOSE,
    CONVEX,
    DECREASE,
    EASED,
    FAR,
    FIRST_SHIFT,
    GRADIENT_TOLERANCE,
    LENGTH_UNIT,
    MAX_NEWTON,
    MAX_TRIES,
    NO_SHIFT,
    ROUNDING,
    RUNAWAY,
    STEEPER,
)
from .linear_algebra import SIZE, factorise, place, scale_derivatives, solve_factorised, squared_norm
from .local_problem import COLUMNS, loss_derivatives

__all__ = ["descend"]


@compiled
def near(u: Array, minimum: Array) -> bool:
    """Whether ``u`` is within CAPTURED of a minimum."""
    apart, size = 0.0, 0.0
    for i in range(SIZE):
        apart += (u[i] - minimum[i]) ** 2
        size += minimum[i] ** 2
    return apart <= CAPTURED * CAPTURED * size


@compiled
def arrives(step: Array, tried: float, curvature: Array, before: Array, scale: float) -> bool:
    """Whether a step leads to the minimum: it is small, and the slope it leaves is below the tolerance.

    That slope is half of how much the curvature changes along the step, times the step; by how much it has changed
    along the step before, of squared length ``tried``, in proportion.  ``scale`` is ``e^2 + |u|^2``.  Only lower
    triangles are read.
    """
    length, left = squared_norm(step), 0.0
    for i in range(SIZE):
        bend = 0.0
        for j in range(SIZE):
            a, b = max(i, j), min(i, j)
            bend += (curvature[a, b] - before[a, b]) * step[j]
        left += bend * bend
    small = length <= CLOSE * CLOSE * scale
    return small and left * length <= (2.0 * GRADIENT_TOLERANCE) ** 2 * scale * tried


@compiled
def arrive(step: Array, factor: Array, u: Array, gradient: Array, hessian: Array) -> float:
    """Take a last step, by the derivatives where it begins; returns by how much it changes half of ``|u|^2``."""
    change = 0.0
    for i in range(SIZE):
        total = 0.0
        for j in range(SIZE):
            b, c = divmod(j, COLUMNS)
            moved = 0.0
            for l in range(c + 1):
                moved += factor[b, c, l] * step[b * COLUMNS + l]
            total += hessian[max(i, j), min(i, j)] * moved
        gradient[i // COLUMNS, i % COLUMNS] -= total
    for i in range(SIZE):
        change -= step[i] * (u[i] - 0.5 * step[i])
        u[i] -= step[i]
    return change


@compiled
def descend(center: Array, terms: Energy, work: Workspace, known: int) -> tuple[float, float, int]:
    """Damped Newton descent from ``work.u``, which is overwritten.

    Returns energy, loss and the number of steps, negative if the gradient did not reach its tolerance.  A descent that
    comes close to one of the ``known`` (0, 1 or 2) minima ``best`` and ``other`` stops with infinite energy, and so do
    one that begins where the energy is not finite and one that finds no bottom, the last with RUNAWAY steps.
    """
    target, variance, factor, parameters = terms
    u, h, gradient, hessian, contracted, slope, curvature, before, lower, trial, best, other, _ = work
    length = parameters[LENGTH_UNIT]
    unit, shift, tried = length * length, 0.0, 0.0
    place(u, center, factor, h)
    value = loss_derivatives(h, target, variance, parameters, gradient, hessian, contracted)
    norm_u = squared_norm(u)
    energy = 0.5 * norm_u + value
    if not abs(energy) < np.inf:
        return np.inf, value, -1
    far, deep = FAR * (unit + norm_u), -FAR * (unit + abs(energy))
    for iteration in range(MAX_NEWTON):
        for i in range(SIZE):
            for j in range(i + 1):
                before[i, j] = curvature[i, j]
        scale_derivatives(u, factor, gradient, hessian, slope, curvature)
        if squared_norm(slope) <= GRADIENT_TOLERANCE * GRADIENT_TOLERANCE * (unit + norm_u):
            return energy, value, iteration
        accepted = False
        norm_trial, value_trial, energy_trial = norm_u, value, energy
        for _ in range(MAX_TRIES):
            if not factorise(curvature, shift, lower):
                shift = max(CONVEX * shift, FIRST_SHIFT)
                continue
            solve_factorised(lower, slope, trial)  # the step
            decrease = 0.0
            for i in range(SIZE):
                decrease += slope[i] * trial[i]
            if iteration > 0 and shift == 0.0 and arrives(trial, tried, curvature, before, unit + norm_u):
                change = arrive(trial, factor, u, gradient, hessian)
                return energy - 0.5 * decrease, value - 0.5 * decrease - change, iteration + 1
            for i in range(SIZE):
                trial[i] = u[i] - trial[i]
            norm_trial = squared_norm(trial)
            place(trial, center, factor, h)
            # slope and curvature keep the accepted point's derivatives, so these can be the trial's already
            value_trial = loss_derivatives(h, target, variance, parameters, gradient, hessian, contracted)
            energy_trial = 0.5 * norm_trial + value_trial
            # rounding decides below 1e-14 of the energy: accept, the gradient is the stopping rule
            if energy_trial <= energy - DECREASE * decrease + ROUNDING * (unit + abs(energy)):
                accepted = True
                break
            shift = max(STEEPER * shift, FIRST_SHIFT)
        if not accepted:
            place(u, center, factor, h)
            value = loss_derivatives(h, target, variance, parameters, gradient, hessian, contracted)
            return energy, value, -iteration - 1
        tried = 0.0
        for i in range(SIZE):
            tried += (trial[i] - u[i]) ** 2
            u[i] = trial[i]
        norm_u, value, energy = norm_trial, value_trial, energy_trial
        if not (norm_u < far and energy > deep):
            return np.inf, value, RUNAWAY
        if (known > 0 and near(u, best)) or (known > 1 and near(u, other)):
            return np.inf, value, iteration
        shift = 0.0 if shift < NO_SHIFT else EASED * shift
    if not factorise(curvature, 0.0, lower):
        return np.inf, value, RUNAWAY  # still on its way down where the energy is not convex
    return energy, value, -MAX_NEWTON
