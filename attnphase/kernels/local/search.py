"""The minimiser for kinks: descents from all starts of one sample, of whose ends the two lowest are kept."""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array

from .along_kinks import descend_along_kinks
from .at_kinks import go_to_kink
from .compiled import call, compiled
from .constants import DISTINCT, LENGTH_UNIT, RUNAWAY, Starts
from .linear_algebra import fill, inner, place, to_scaled
from .model import Model, Record
from .starts import NONE, ONE, TWO, go_to_start, is_only, unsigned
from .values import Nodes, Solution

__all__ = ["minimise_one_by_one", "take_in"]

_MOST_STARTS = unsigned(7)  # of REFRESH, beside those with one token reflected: two known minima, and those of COLD


@compiled
def copy(source: Array, first: int, count: int, target: Array, place: int) -> None:
    """Copy numbers from one array into another."""
    for i in range(count):
        target[place + i] = source[first + i]


@compiled
def take_in(m: Record, w: Record, n: int, nodes: Nodes, work: Array) -> None:
    """Put into the work's arrays what the energy of a node depends on."""
    square = m.columns * m.columns
    copy(nodes.centers, n * m.fields, m.fields, work, w.center)
    copy(nodes.parameters, NONE, unsigned(nodes.parameters.size), work, w.parameters)
    if nodes.sites.size > 0:
        each = m.length * m.target_columns
        copy(nodes.targets, n * each, each, work, w.target)
        copy(nodes.variance, n * m.length * m.length, m.length * m.length, work, w.variance)
        for a in range(m.length):
            copy(nodes.factor, nodes.sites[n * m.length + a] * square, square, work, w.factor + a * square)
        return
    k, target = nodes.teacher_fields[n * m.length * m.label_fields :], work[w.target :]
    call(m.teacher_target_at, (k, nodes.mixing, nodes.parameters, target))
    copy(nodes.variance, NONE, m.length, work, w.variance)
    copy(nodes.factor, NONE, unsigned(nodes.factor.size), work, w.factor)  # none where nothing is minimised


@compiled
def keep(
    m: Record, w: Record, energy: float, energies: Array, at: int, residuals: Array, residual: int, work: Array
) -> bool:
    """Keep the end of a descent if it is one of the two lowest minima; returns whether it is the lowest."""
    gap, length = 0.0, work[w.parameters + unsigned(LENGTH_UNIT)]
    for p in range(m.fields):
        best = work[w.best + p]
        gap = max(gap, abs(work[w.u + p] - best) / (length + abs(best)))
    if (energies[at] < np.inf and not gap > DISTINCT) or not energy < energies[at + ONE]:
        return False
    lowest = energy < energies[at]
    energies[at + ONE] = energies[at] if lowest else energy
    copy(work, w.best if lowest else w.u, m.fields, work, w.other)
    if lowest:
        energies[at] = energy
        copy(work, w.u, m.fields, work, w.best)
        for p in range(m.fields):
            residuals[residual + p] = -work[w.gradient + p]
    return lowest


@compiled
def fall_back(m: Record, w: Record, residuals: Array, residual: int, work: Array) -> float:
    """Take the centre where no descent found a bottom; returns the loss there, or zero where it is not finite."""
    target, variance, parameters, gradient = (
        work[w.target :],
        work[w.variance :],
        work[w.parameters :],
        work[w.gradient :],
    )
    value = call(m.loss_derivatives_at, (work[w.center :], target, variance, parameters, gradient, work[w.hessian :]))
    for p in range(m.fields):
        work[w.best + p] = 0.0
        residuals[residual + p] = -gradient[p] if abs(gradient[p]) < np.inf else 0.0
    return value if abs(value) < np.inf else 0.0


def minimise_one_by_one(model: Model, nodes: Nodes, starts: int, solution: Solution, work: Array) -> None:
    """Lowest and second-lowest minimum of the local problem of every node, from `Starts`.

    Descents begin at every start and, but for warm ones, at the kinks to which it leads; then at those to which the
    lowest minimum leads, as long as this finds lower ones.

    The flags are the numbers of Newton steps, negative where the gradient did not reach its tolerance.  Where a descent
    found no bottom, the number is RUNAWAY, and the rest belongs to the lowest local minimum or else to the centre.
    """
    m, w, (minima, energies, losses, residuals, flags) = model.numbers[0], model.places[0], solution
    given = (work[w.center :], work[w.target :], work[w.factor :], work[w.h :])
    # it takes long to compile a function into others: all of this is one
    for n in range(unsigned(losses.size)):
        at, residual, first, bottomless = TWO * n, n * m.fields, TWO * n * m.fields, False
        take_in(m, w, n, nodes, work)
        flags[n] = 0
        if m.closed_form_at != 0 and call(m.closed_form_at, given) > 0.0:
            losses[n] = call(m.loss_at, (given[3], given[1], work[w.variance :], work[w.parameters :]))
            to_scaled(m, w, work)
            copy(work, w.h, m.fields, minima, first)
            copy(work, w.h, m.fields, minima, first + m.fields)
            energies[at] = losses[n] + 0.5 * inner(m, w.u, w.u, work)
            energies[at + ONE] = energies[at]
            residuals[residual] = work[w.u] / work[w.factor]
            continue
        only = is_only(n, starts, energies)
        energies[at] = np.inf
        energies[at + ONE] = np.inf
        kinks = m.kinks if starts not in (Starts.WARM, Starts.FROM_ZERO) else NONE
        fill(w.last, m.kinks * m.fields, np.inf, work)
        onward, lower = False, False
        for s in range(_MOST_STARTS + m.length + kinks):
            if not onward and (
                go_to_start(m, model, s, starts, n, nodes, minima, work, w.factor, ONE, work, w.u, w.center, ONE) < 0.0
            ):
                onward, lower = True, kinks > NONE
            if onward and not lower:
                break
            if s == ONE and only:
                continue
            copy(work, w.best if onward else w.u, m.fields, work, w.origin)
            lower = False
            for j in range(ONE if onward else NONE, kinks + ONE):
                if j > NONE and not go_to_kink(m, w, j - ONE, onward, work):
                    continue
                energy, value, flag = descend_along_kinks(m, w, work)
                if energy == np.inf:
                    bottomless = bottomless or flag == RUNAWAY
                elif keep(m, w, energy, energies, at, residuals, residual, work):
                    losses[n], flags[n], lower = value, flag, True
        if energies[at] == np.inf:
            bottomless = True
            losses[n] = fall_back(m, w, residuals, residual, work)
            energies[at] = losses[n]
        if energies[at + ONE] == np.inf:
            energies[at + ONE] = energies[at]
            copy(work, w.best, m.fields, work, w.other)
        for minimum in range(TWO):
            place(m, w, w.best if minimum == NONE else w.other, w.h, work)
            copy(work, w.h, m.fields, minima, first + minimum * m.fields)
        if bottomless:
            flags[n] = RUNAWAY
