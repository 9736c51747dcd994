"""The minimiser for kinks: descents from all starts of one sample, of whose ends the two lowest are kept."""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array

from .along_kinks import descend_along_kinks
from .at_kinks import go_to_kink
from .compiled import call, compiled
from .constants import RUNAWAY, Starts
from .ends import fall_back, forget, keep, write
from .linear_algebra import fill, inner, to_scaled
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


def minimise_one_by_one(model: Model, nodes: Nodes, starts: int, solution: Solution, work: Array) -> None:
    """Lowest and second-lowest minimum of the local problem of every node, from `Starts`.

    Descents begin at every start and, but for warm ones, at the kinks to which it leads; then at those to which the
    lowest minimum leads, as long as this finds lower ones.

    The flags are the numbers of Newton steps, negative where the gradient did not reach its tolerance.  Where a descent
    found no bottom, the number is RUNAWAY, and the rest belongs to the lowest local minimum or else to the centre.
    """
    m, w, (minima, energies, losses, residuals, flags) = model.numbers[0], model.places[0], solution
    target, variance, parameters = work[w.target :], work[w.variance :], work[w.parameters :]
    at_center = (work[w.center :], target, variance, parameters, work[w.gradient :], work[w.hessian :])
    given = (work[w.center :], target, work[w.factor :], work[w.h :])
    # it takes long to compile a function into others: all of this is one
    for n in range(unsigned(losses.size)):
        first, bottomless = TWO * n * m.fields, False
        take_in(m, w, n, nodes, work)
        flags[n] = 0
        if m.closed_form_at != 0 and call(m.closed_form_at, given) > 0.0:
            losses[n] = call(m.loss_at, (given[3], target, variance, parameters))
            to_scaled(m, w, work)
            copy(work, w.h, m.fields, minima, first)
            copy(work, w.h, m.fields, minima, first + m.fields)
            energies[TWO * n] = losses[n] + 0.5 * inner(m, w.u, w.u, work)
            energies[TWO * n + ONE] = energies[TWO * n]
            residuals[n * m.fields] = work[w.u] / work[w.factor]
            continue
        only = is_only(n, starts, energies)
        forget(n, energies)
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
                elif keep(m, n, energy, nodes, solution, work, w.u, w.best, w.other, w.gradient, ONE):
                    losses[n], flags[n], lower = value, flag, True
        if energies[TWO * n] == np.inf:
            bottomless = True
            fall_back(m, n, call(m.loss_derivatives_at, at_center), solution, work, w.best, w.gradient, ONE)
        write(m, model, n, work, w.factor, ONE, solution, work, w.center, w.best, w.other, ONE)
        if bottomless:
            flags[n] = RUNAWAY
