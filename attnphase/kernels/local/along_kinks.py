"""Descent to a minimum of the local problem whose loss has kinks.

At a kink that is a minimum the slope jumps and is zero nowhere, so that Newton's method alone cannot end.

With the arguments ``c`` of the kinks the loss is smooth in ``h`` and ``|c|``.  A step minimises the energy's model:
quadratic in the step, with kinks ``w |c + c' d|`` where the weight ``w`` of ``|c|`` is positive; a kink that bends
downwards is no minimum, and there the side is kept.  Of the model's minimum

    min_d  p.d + d.B d/2 + sum_j |e_j + a_j.d| = max_{|s| <= 1}  e.s - |p + sum_j s_j a_j|^2/2  in the metric of B^-1

the multipliers s say which kinks hold it.  B is the curvature with these multipliers: then the steps are Newton's for
the minimum and its multipliers, also on kinks that are curved.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.values import Energy, Workspace

from .compiled import compiled
from .constants import (
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
    PIVOT,
    ROUNDING,
    RUNAWAY,
    STEEPER,
)
from .linear_algebra import SIZE, factorise, place, scale_derivatives, squared_norm
from .local_problem import COLUMNS, KINKS, kinked_derivatives, loss_derivatives

__all__ = ["descend_along_kinks"]


@compiled
def evaluate(u: Array, center: Array, terms: Energy, work: Workspace) -> float:
    """Loss at ``u``, with its derivatives and those of the kinks in ``work``."""
    target, variance, factor, parameters = terms
    kinks = work.kinks
    place(u, center, factor, work.h)
    if KINKS == 0:  # of many fields
        return loss_derivatives(work.h, target, variance, parameters, work.gradient, work.hessian, work.contracted)
    return kinked_derivatives(
        work.h, target, variance, parameters, work.gradient, work.hessian, kinks.table, kinks.normals
    )


@compiled
def take(factor: Array, work: Workspace) -> None:
    """Make the model at ``work.u`` of what was evaluated there; ``work.slope`` is that with all multipliers zero."""
    kinks = work.kinks
    scale_derivatives(work.u, factor, work.gradient, work.hessian, work.slope, work.curvature)
    for j in range(KINKS):
        weight, argument, side = kinks.weights[j], kinks.arguments[j], kinks.signs[j]
        rises = weight > 0.0
        if not rises:
            kinks.multipliers[j] = -1.0 if argument < 0.0 else 1.0
            side -= kinks.multipliers[j]
        elif not -1.0 < kinks.multipliers[j] < 1.0:
            kinks.multipliers[j] = side
        kinks.offsets[j] = weight * argument if rises else 0.0
        for p in range(SIZE):
            a, i = divmod(p, COLUMNS)
            total = 0.0
            for c in range(i, COLUMNS):
                total += factor[a, c, i] * kinks.normals[j, a * COLUMNS + c]
            work.slope[p] -= side * weight * total
            kinks.slopes[j, p] = weight * total if rises else 0.0


@compiled
def correct(work: Workspace) -> None:
    """Take the kinks' arguments that a refused trial found for those of the model where its step leads.

    A step along kinks that are curved leaves them, and the energy may rise however small it is.
    """
    kinks = work.kinks
    for j in range(KINKS):
        along = 0.0
        for i in range(SIZE):
            along += kinks.slopes[j, i] * kinks.step[i]
        kinks.uncorrected[j] = kinks.offsets[j]
        if kinks.weights[j] > 0.0:
            kinks.offsets[j] = kinks.weights[j] * kinks.arguments[j] - along


@compiled
def stiffen(work: Workspace) -> bool:
    """Add curvature across the kinks that hold the point, where the step does not go; False where none does.

    As much as makes up for any that the matrix has there.
    """
    kinks, size, found = work.kinks, 0.0, False
    for i in range(SIZE):
        for c in range(i + 1):
            size += (1.0 if c == i else 2.0) * work.curvature[i, c] ** 2
    for j in range(KINKS):
        norm = squared_norm(kinks.slopes[j])
        if not (-1.0 < kinks.multipliers[j] < 1.0 and norm > 0.0):
            continue
        found = True
        for i in range(SIZE):
            for c in range(i + 1):
                work.curvature[i, c] += CONVEX * np.sqrt(size) / norm * kinks.slopes[j, i] * kinks.slopes[j, c]
    return found


@compiled
def move_held(work: Workspace) -> None:
    """Move the multipliers between -1 and 1 together: to the best of them, or until the first is at its bound."""
    step, scaled, multipliers = work.kinks.step, work.kinks.scaled, work.kinks.multipliers
    lower, change = work.kinks.lower, work.kinks.change
    for j in range(KINKS):
        change[j] = 0.0
        if not -1.0 < multipliers[j] < 1.0:
            for c in range(j + 1):  # what stands there may be no number
                lower[j, c] = 0.0
            continue
        change[j] = work.kinks.offsets[j]
        for i in range(SIZE):
            change[j] -= scaled[j, i] * step[i]
        size = squared_norm(scaled[j])
        for c in range(j + 1):
            if lower[c, c] == 0.0 and c < j:
                lower[j, c] = 0.0
                continue
            total = 0.0
            for i in range(SIZE):
                total += scaled[j, i] * scaled[c, i]
            for b in range(c):
                total -= lower[j, b] * lower[c, b]
            # kinks that are linearly dependent have a bound in the way as a rule
            lower[j, c] = total / lower[c, c] if c < j else np.sqrt(max(total, PIVOT * size))
        for c in range(j):
            change[j] -= lower[j, c] * change[c]
        change[j] = change[j] / lower[j, j] if size > 0.0 else 0.0
    share = 1.0
    for j in range(KINKS - 1, -1, -1):
        if lower[j, j] == 0.0:
            continue
        for c in range(j + 1, KINKS):
            change[j] -= lower[c, j] * change[c]
        change[j] /= lower[j, j]
        if change[j] != 0.0:
            share = min(share, ((1.0 if change[j] > 0.0 else -1.0) - multipliers[j]) / change[j])
    for j in range(KINKS):
        if lower[j, j] == 0.0:
            continue
        multipliers[j] = min(max(multipliers[j] + share * change[j], -1.0), 1.0)
        for i in range(SIZE):
            step[i] += share * change[j] * scaled[j, i]


@compiled
def minimise_model(work: Workspace) -> float:
    """Fill in the model's multipliers, beginning with those there are, and its step; returns by how much it decreases.

    One multiplier after another, which finds the sides, in turn with all between -1 and 1 at once.
    """
    lower, step, kinks = work.lower, work.kinks.step, work.kinks
    multipliers, offsets, slopes, scaled = kinks.multipliers, kinks.offsets, kinks.slopes, kinks.scaled
    for i in range(SIZE):
        total = work.slope[i]
        for j in range(KINKS):
            total += multipliers[j] * slopes[j, i]
            own = slopes[j, i]
            for c in range(i):
                own -= lower[i, c] * scaled[j, c]
            scaled[j, i] = own / lower[i, i]
        for c in range(i):
            total -= lower[i, c] * step[c]
        step[i] = total / lower[i, i]
    for _ in range(MAX_NEWTON):
        moved = 0.0
        for j in range(KINKS):
            along, size = -offsets[j], 0.0
            for i in range(SIZE):
                along += scaled[j, i] * step[i]
                size += scaled[j, i] * scaled[j, i]
            if size == 0.0:
                continue
            change = min(max(multipliers[j] - along / size, -1.0), 1.0) - multipliers[j]
            multipliers[j] += change
            moved = max(moved, abs(change))
            for i in range(SIZE):
                step[i] += change * scaled[j, i]
        if moved <= GRADIENT_TOLERANCE:
            break
        move_held(work)
    decrease = -0.5 * squared_norm(step)
    for i in range(SIZE - 1, -1, -1):
        total = -step[i]
        for c in range(i + 1, SIZE):
            total -= lower[c, i] * step[c]
        step[i] = total / lower[i, i]
        decrease -= work.slope[i] * step[i]
    for j in range(KINKS):
        along = 0.0
        for i in range(SIZE):
            along += slopes[j, i] * step[i]
        decrease -= abs(offsets[j] + along) - abs(offsets[j])
    return decrease


@compiled
def is_minimum(scale: float, work: Workspace) -> bool:
    """Whether the slope with the multipliers vanishes, and they are those of the sides or of kinks that hold the point.

    ``scale`` is ``e^2 + |u|^2``.  Then ``work.gradient`` becomes the subgradient of the loss that belongs to it.
    """
    kinks, apart, norm = work.kinks, 0.0, 0.0
    for j in range(KINKS):
        apart += (kinks.signs[j] - kinks.multipliers[j]) * kinks.offsets[j]
    for i in range(SIZE):
        total = work.slope[i]
        for j in range(KINKS):
            total += kinks.multipliers[j] * kinks.slopes[j, i]
        norm += total * total
    if not (norm <= GRADIENT_TOLERANCE * GRADIENT_TOLERANCE * scale and abs(apart) <= GRADIENT_TOLERANCE * scale):
        return False
    for j in range(KINKS):
        beyond = kinks.weights[j] * (kinks.multipliers[j] - kinks.signs[j])
        for i in range(SIZE):
            work.gradient[i // COLUMNS, i % COLUMNS] += beyond * kinks.normals[j, i]
    return True


@compiled
def descend_along_kinks(center: Array, terms: Energy, work: Workspace) -> tuple[float, float, int]:
    """Descent from ``work.u`` by steps to the minimum of the model, damped as those of smooth losses.

    Returns energy, loss and the number of steps, negative if the gradient did not reach its tolerance.  A descent that
    begins where the energy is not finite ends with infinite energy, and so does one that finds no bottom, with RUNAWAY
    steps.  At a kink ``work.gradient`` is the subgradient of the loss that belongs to the minimum.  Known minima do not
    stop it, as they do descents of smooth losses: minima at kinks may lie close to each other.
    """
    u, trial, kinks, length = work.u, work.trial, work.kinks, terms.parameters[LENGTH_UNIT]
    unit, shift = length * length, 0.0
    kinks.multipliers[:] = 1.0  # none is held
    value = evaluate(u, center, terms, work)
    norm_u = squared_norm(u)
    energy = 0.5 * norm_u + value
    if not abs(energy) < np.inf:
        return np.inf, value, -1
    far, deep = FAR * (unit + norm_u), -FAR * (unit + abs(energy))
    for iteration in range(MAX_NEWTON):
        take(terms.factor, work)
        accepted, tried, stiff, corrected = False, False, False, False
        norm_trial, value_trial, energy_trial, decrease = norm_u, value, energy, 0.0
        for _ in range(MAX_TRIES):
            if not factorise(work.curvature, shift, work.lower):
                if not stiff:
                    stiff = True
                    if stiffen(work):
                        continue
                shift = max(CONVEX * shift, FIRST_SHIFT)
                continue
            gain = minimise_model(work)
            if not tried and is_minimum(unit + norm_u, work):
                return energy, value, iteration
            if not corrected:
                decrease = gain
            for i in range(SIZE):
                trial[i] = u[i] + kinks.step[i]
            norm_trial = squared_norm(trial)
            # `take` made copies of the accepted point's derivatives, so these can be the trial's already
            value_trial, tried = evaluate(trial, center, terms, work), True
            energy_trial = 0.5 * norm_trial + value_trial
            if energy_trial <= energy - DECREASE * decrease + ROUNDING * (unit + abs(energy)):
                accepted = True
                break
            if corrected:
                corrected = False
                for j in range(KINKS):
                    kinks.offsets[j] = kinks.uncorrected[j]
                shift = max(STEEPER * shift, FIRST_SHIFT)
            else:
                correct(work)
                corrected = True
        if not accepted:
            value = evaluate(u, center, terms, work)
            return energy, value, -iteration - 1
        for i in range(SIZE):
            u[i] = trial[i]
        norm_u, value, energy = norm_trial, value_trial, energy_trial
        if not (norm_u < far and energy > deep):
            return np.inf, value, RUNAWAY
        shift = 0.0 if shift < NO_SHIFT else EASED * shift
    return energy, value, -MAX_NEWTON
