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

from .compiled import apart, call, compiled
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
from .linear_algebra import factorise, fill, in_u, inner, place, scale_derivatives
from .model import Record
from .starts import ONE, unsigned

__all__ = ["descend_along_kinks", "evaluate"]


@compiled
def evaluate(m: Record, w: Record, u: int, work: Array) -> float:
    """Loss at a point in u, with its derivatives and those of the kinks."""
    place(m, w, u, w.h, work)
    given = (work[w.h :], work[w.target :], work[w.variance :], work[w.parameters :], work[w.gradient :])
    if m.kinks == 0:  # of many fields
        return call(m.loss_derivatives_at, (*given, work[w.hessian :]))
    return call(m.kinked_derivatives_at, (*given, work[w.hessian :], work[w.multipliers :], work[w.normals :]))


@compiled
def add(m: Record, vector: int, share: float, other: int, work: Array) -> None:
    """Add a share of a vector to another."""
    for i in range(m.fields):
        work[vector + i] += share * work[other + i]


@compiled
def take(m: Record, w: Record, work: Array) -> None:
    """Make the model at ``u`` of what was evaluated there; ``slope`` is that with all multipliers zero."""
    scale_derivatives(m, w, work)
    for j in range(m.kinks):
        weight, argument, side = work[w.weights + j], work[w.arguments + j], work[w.signs + j]
        rises = weight > 0.0
        if not rises:
            work[w.multipliers + j] = -1.0 if argument < 0.0 else 1.0
            side -= work[w.multipliers + j]
        elif not -1.0 < work[w.multipliers + j] < 1.0:
            work[w.multipliers + j] = side
        work[w.offsets + j] = weight * argument if rises else 0.0
        slope = w.slopes + j * m.fields
        fill(slope, m.fields, 0.0, work)
        in_u(m, w, w.normals + j * m.fields, slope, work)
        add(m, w.slope, -side * weight, slope, work)
        for p in range(m.fields):
            work[slope + p] = weight * work[slope + p] if rises else 0.0


@compiled
def correct(m: Record, w: Record, work: Array) -> None:
    """Take the kinks' arguments that a refused trial found for those of the model where its step leads.

    A step along kinks that are curved leaves them, and the energy may rise however small it is.
    """
    for j in range(m.kinks):
        along = inner(m, w.slopes + j * m.fields, w.step, work)
        work[w.uncorrected + j] = work[w.offsets + j]
        if work[w.weights + j] > 0.0:
            work[w.offsets + j] = work[w.weights + j] * work[w.arguments + j] - along


@compiled
def stiffen(m: Record, w: Record, work: Array) -> bool:
    """Add curvature across the kinks that hold the point, where the step does not go; False where none does.

    As much as makes up for any that the matrix has there.
    """
    size, found = 0.0, False
    for i in range(m.fields):
        for c in range(i + ONE):
            size += (1.0 if c == i else 2.0) * work[w.curvature + i * m.fields + c] ** 2
    for j in range(m.kinks):
        slope = w.slopes + j * m.fields
        norm = inner(m, slope, slope, work)
        if not (-1.0 < work[w.multipliers + j] < 1.0 and norm > 0.0):
            continue
        found = True
        for i in range(m.fields):
            for c in range(i + ONE):
                work[w.curvature + i * m.fields + c] += (
                    CONVEX * np.sqrt(size) / norm * work[slope + i] * work[slope + c]
                )
    return found


@compiled
def move_held(m: Record, w: Record, work: Array) -> None:
    """Move the multipliers between -1 and 1 together: to the best of them, or until the first is at its bound."""
    for j in range(m.kinks):
        row, scaled, change = w.bounds + j * m.kinks, w.scaled + j * m.fields, 0.0
        if not -1.0 < work[w.multipliers + j] < 1.0:
            fill(row, j + ONE, 0.0, work)  # what stands there may be no number
            work[w.change + j] = 0.0
            continue
        size = inner(m, scaled, scaled, work)
        for c in range(j + ONE):
            column = w.bounds + c * m.kinks
            if work[column + c] == 0.0 and c < j:
                work[row + c] = 0.0
                continue
            total = inner(m, scaled, w.scaled + c * m.fields, work)
            for b in range(c):
                total -= work[row + b] * work[column + b]
            # kinks that are linearly dependent have a bound in the way as a rule
            work[row + c] = total / work[column + c] if c < j else np.sqrt(max(total, PIVOT * size))
        change = -inner(m, scaled, w.step, work, -work[w.offsets + j])
        for c in range(j):
            change -= work[row + c] * work[w.change + c]
        work[w.change + j] = change / work[row + j] if size > 0.0 else 0.0
    share = 1.0
    for back in range(m.kinks):
        j = m.kinks - ONE - back
        held, change = work[w.bounds + j * m.kinks + j], work[w.change + j]
        if held == 0.0:
            continue
        for c in range(j + ONE, m.kinks):
            change -= work[w.bounds + c * m.kinks + j] * work[w.change + c]
        change /= held
        work[w.change + j] = change
        if change != 0.0:
            share = min(share, ((1.0 if change > 0.0 else -1.0) - work[w.multipliers + j]) / change)
    for j in range(m.kinks):
        if work[w.bounds + j * m.kinks + j] == 0.0:
            continue
        change = share * work[w.change + j]
        work[w.multipliers + j] = min(max(work[w.multipliers + j] + change, -1.0), 1.0)
        add(m, w.step, change, w.scaled + j * m.fields, work)


@compiled
def forward(m: Record, w: Record, vector: int, work: Array) -> None:
    """Put ``lower^-1`` of a vector in its place."""
    for i in range(m.fields):
        total, row = work[vector + i], w.lower + i * m.fields
        for c in range(i):
            total -= work[row + c] * work[vector + c]
        work[vector + i] = total / work[row + i]


@compiled
def minimise_model(m: Record, w: Record, work: Array) -> float:
    """Fill in the model's multipliers, beginning with those there are, and its step; returns by how much it decreases.

    One multiplier after another, which finds the sides, in turn with all between -1 and 1 at once.
    """
    for i in range(m.fields):
        work[w.step + i] = work[w.slope + i]
    for j in range(m.kinks):
        scaled = w.scaled + j * m.fields
        add(m, w.step, work[w.multipliers + j], w.slopes + j * m.fields, work)
        for i in range(m.fields):
            work[scaled + i] = work[w.slopes + j * m.fields + i]
        forward(m, w, scaled, work)
    forward(m, w, w.step, work)
    for _ in range(MAX_NEWTON):
        moved = 0.0
        for j in range(m.kinks):
            scaled, multiplier = w.scaled + j * m.fields, work[w.multipliers + j]
            along = inner(m, scaled, w.step, work, -work[w.offsets + j])
            size = inner(m, scaled, scaled, work)
            if size == 0.0:
                continue
            change = min(max(multiplier - along / size, -1.0), 1.0) - multiplier
            work[w.multipliers + j] += change
            moved = max(moved, abs(change))
            add(m, w.step, change, scaled, work)
        if moved <= GRADIENT_TOLERANCE:
            break
        move_held(m, w, work)
    decrease = -0.5 * inner(m, w.step, w.step, work)
    for back in range(m.fields):
        i = m.fields - ONE - back
        total = -work[w.step + i]
        for c in range(i + ONE, m.fields):
            total -= work[w.lower + c * m.fields + i] * work[w.step + c]
        work[w.step + i] = total / work[w.lower + i * m.fields + i]
        decrease -= work[w.slope + i] * work[w.step + i]
    for j in range(m.kinks):
        along = inner(m, w.slopes + j * m.fields, w.step, work)
        decrease -= abs(work[w.offsets + j] + along) - abs(work[w.offsets + j])
    return decrease


@compiled
def is_minimum(m: Record, w: Record, scale: float, work: Array) -> bool:
    """Whether the slope with the multipliers vanishes, and they are those of the sides or of kinks that hold the point.

    ``scale`` is ``e^2 + |u|^2``.  Then ``gradient`` becomes the subgradient of the loss that belongs to it.
    """
    away, norm = 0.0, 0.0
    for j in range(m.kinks):
        away += (work[w.signs + j] - work[w.multipliers + j]) * work[w.offsets + j]
    for i in range(m.fields):
        total = work[w.slope + i]
        for j in range(m.kinks):
            total += work[w.multipliers + j] * work[w.slopes + j * m.fields + i]
        norm += total * total
    if not (norm <= GRADIENT_TOLERANCE * GRADIENT_TOLERANCE * scale and abs(away) <= GRADIENT_TOLERANCE * scale):
        return False
    for j in range(m.kinks):
        beyond = work[w.weights + j] * (work[w.multipliers + j] - work[w.signs + j])
        add(m, w.gradient, beyond, w.normals + j * m.fields, work)
    return True


@apart
def descend_along_kinks(m: Record, w: Record, work: Array) -> tuple[float, float, int]:
    """Descent from ``u`` by steps to the minimum of the model, damped as those of smooth losses.

    Returns energy, loss and the number of steps, negative if the gradient did not reach its tolerance.  A descent that
    begins where the energy is not finite ends with infinite energy, and so does one that finds no bottom, with RUNAWAY
    steps.  At a kink ``gradient`` is the subgradient of the loss that belongs to the minimum.  Known minima do not
    stop it, as they do descents of smooth losses: minima at kinks may lie close to each other.
    """
    unit, shift = work[w.parameters + unsigned(LENGTH_UNIT)] ** 2, 0.0
    fill(w.multipliers, m.kinks, 1.0, work)  # none is held
    value = evaluate(m, w, w.u, work)
    norm_u = inner(m, w.u, w.u, work)
    energy = 0.5 * norm_u + value
    if not abs(energy) < np.inf:
        return np.inf, value, -1
    far, deep = FAR * (unit + norm_u), -FAR * (unit + abs(energy))
    for iteration in range(MAX_NEWTON):
        take(m, w, work)
        accepted, tried, stiff, corrected = False, False, False, False
        norm_trial, value_trial, energy_trial, decrease = norm_u, value, energy, 0.0
        for _ in range(MAX_TRIES):
            if not factorise(m, w, shift, work):
                if not stiff:
                    stiff = True
                    if stiffen(m, w, work):
                        continue
                shift = max(CONVEX * shift, FIRST_SHIFT)
                continue
            gain = minimise_model(m, w, work)
            if not tried and is_minimum(m, w, unit + norm_u, work):
                return energy, value, iteration
            if not corrected:
                decrease = gain
            for i in range(m.fields):
                work[w.trial + i] = work[w.u + i] + work[w.step + i]
            norm_trial = inner(m, w.trial, w.trial, work)
            # `take` made copies of the accepted point's derivatives, so these can be the trial's already
            value_trial, tried = evaluate(m, w, w.trial, work), True
            energy_trial = 0.5 * norm_trial + value_trial
            if energy_trial <= energy - DECREASE * decrease + ROUNDING * (unit + abs(energy)):
                accepted = True
                break
            if corrected:
                corrected = False
                for j in range(m.kinks):
                    work[w.offsets + j] = work[w.uncorrected + j]
                shift = max(STEEPER * shift, FIRST_SHIFT)
            else:
                correct(m, w, work)
                corrected = True
        if not accepted:
            value = evaluate(m, w, w.u, work)
            return energy, value, -iteration - 1
        for i in range(m.fields):
            work[w.u + i] = work[w.trial + i]
        norm_u, value, energy = norm_trial, value_trial, energy_trial
        if not (norm_u < far and energy > deep):
            return np.inf, value, RUNAWAY
        shift = 0.0 if shift < NO_SHIFT else EASED * shift
    return energy, value, -MAX_NEWTON
