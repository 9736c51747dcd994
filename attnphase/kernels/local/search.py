"""Global minimiser of one sample's local problem: descents from all starts, of whose ends the two lowest are kept."""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.values import Energy, Found, Kinks, Workspace

from .along_kinks import descend_along_kinks
from .at_kinks import go_to_kink
from .compiled import allocating, compiled
from .constants import DISTINCT, LENGTH_UNIT, MATCHED, RUNAWAY, Starts
from .linear_algebra import SIZE, copy, place, to_scaled
from .local_problem import COLUMNS, KINKS, LABEL_FIELDS, LENGTH, LIFT, closed_form, loss, loss_derivatives

__all__ = ["MOST_STARTS", "empty_target", "search", "start_field", "workspace"]

MOST_STARTS = 7 + LENGTH  # of REFRESH: two known minima, and those of COLD


@allocating
def kinks() -> Kinks:
    """Arrays for what there is of every kink."""
    table = np.empty((4, KINKS))
    return Kinks(
        table,
        table[0],
        table[1],
        table[2],
        table[3],
        np.empty((KINKS, SIZE)),
        np.empty(KINKS),
        np.empty(KINKS),
        np.empty((KINKS, SIZE)),
        np.empty((KINKS, SIZE)),
        np.empty(SIZE),
        np.empty((KINKS, KINKS)),
        np.empty(KINKS),
        np.empty(SIZE),
        np.empty((KINKS, SIZE)),
        np.empty(KINKS, dtype=np.bool_),
    )


@allocating
def workspace() -> Workspace:
    """Arrays for the descents of any number of samples, one after another."""
    return Workspace(
        np.empty(SIZE),
        np.empty((LENGTH, COLUMNS)),
        np.empty((LENGTH, COLUMNS)),
        np.empty((SIZE, SIZE)),
        np.empty(SIZE),
        np.empty(SIZE),
        np.empty((SIZE, SIZE)),
        np.empty((SIZE, SIZE)),
        np.empty(SIZE),
        np.empty(SIZE),
        np.empty(SIZE),
        kinks(),
    )


@allocating
def empty_target() -> Array:
    """Room for what the teacher makes of its fields."""
    return np.empty((LENGTH, max(LENGTH, LABEL_FIELDS)))


@compiled
def start_field(s: int, center: Array, k: Array, minima: Array, parameters: Array, starts: int, start: Array) -> bool:
    """Field of the s-th start of `Starts`; False when there are no more.  ``minima`` are those of the previous pass."""
    if starts == Starts.FROM_ZERO:
        start[:] = 0.0
        return s == 0
    if starts in (Starts.WARM, Starts.REFRESH):
        if s < 2:
            copy(minima[s], start)
            return True
        if starts == Starts.WARM:
            return False
        s -= 2
    if s >= 5 + LENGTH:
        return False
    for a in range(LENGTH):
        for i in range(COLUMNS):
            lifted = parameters[MATCHED + i] * k[a, LIFT[i]]
            if s == 0:
                start[a, i] = center[a, i]
            elif s == 1:
                start[a, i] = lifted
            elif s == 2:
                start[a, i] = -lifted
            elif s == 3:
                start[a, i] = 0.0
            elif s == 4:
                start[a, i] = -center[a, i]
            else:
                start[a, i] = -center[a, i] if a == s - 5 else center[a, i]
    return True


@compiled
def distance(u: Array, minimum: Array, length: float) -> float:
    """Largest difference of a coordinate, relative to the unit of length + |u|."""
    gap = 0.0
    for i in range(SIZE):
        gap = max(gap, abs(u[i] - minimum[i]) / (length + abs(minimum[i])))
    return gap


@compiled
def fill_in(center: Array, terms: Energy, found: Found, work: Workspace) -> float:
    """Minimum of a problem whose proximal point, in ``work.h``, the model gives; returns the loss."""
    h, u, factor, residual = work.h, work.u, terms.factor, found.residual
    value = loss(h, terms.target, terms.variance, terms.parameters)
    to_scaled(h, center, factor, u)
    energy = value
    for i in range(SIZE):
        energy += 0.5 * u[i] * u[i]
    copy(h, found.minima[0])
    copy(h, found.minima[1])
    found.energies[:] = energy
    residual[0, 0] = u[0] / factor[0, 0, 0]
    return value


@compiled
def fall_back(center: Array, terms: Energy, found: Found, work: Workspace) -> float:
    """Take the centre where no descent found a bottom; returns the loss there, or zero where it is not finite."""
    best, gradient, residual = work.best, work.gradient, found.residual
    for i in range(SIZE):
        best[i] = 0.0
    value = loss_derivatives(
        center,
        terms.target,
        terms.variance,
        terms.parameters,
        gradient,
        work.hessian,
        work.contracted,
    )
    for a in range(LENGTH):
        for i in range(COLUMNS):
            residual[a, i] = -gradient[a, i] if abs(gradient[a, i]) < np.inf else 0.0
    return value if abs(value) < np.inf else 0.0


@compiled
def keep(energy: float, length: float, found: Found, work: Workspace) -> bool:
    """Keep the end of a descent if it is one of the two lowest minima; returns whether it is the lowest."""
    energies = found.energies
    if energies[0] < np.inf and not distance(work.u, work.best, length) > DISTINCT:
        return False
    if energy < energies[0]:
        energies[1], energies[0] = energies[0], energy
        for i in range(SIZE):
            work.other[i], work.best[i] = work.best[i], work.u[i]
        for a in range(LENGTH):
            for i in range(COLUMNS):
                found.residual[a, i] = -work.gradient[a, i]
        return True
    if energy < energies[1]:
        energies[1] = energy
        for i in range(SIZE):
            work.other[i] = work.u[i]
    return False


@compiled
def search(center: Array, k: Array, terms: Energy, starts: int, found: Found, work: Workspace) -> tuple[float, int]:
    """Lowest and second-lowest minimum of one sample's local terms.

    Descents begin at every start and, but for warm ones, at the kinks to which it leads; then at those to which the
    lowest minimum leads, as long as this finds lower ones.

    Fills all of ``found``, in which a warm pass begins.  Returns the loss at the lowest minimum and the number of
    Newton steps to it, negative where the gradient did not reach its tolerance.  Where a descent found no bottom, the
    number is RUNAWAY, and the rest belongs to the lowest local minimum or else to the centre.
    """
    if closed_form(center, terms.target, terms.factor, work.h):
        return fill_in(center, terms, found, work), 0
    energies, best_loss, best_flag, bottomless = found.energies, 0.0, 0, False
    only = starts in (Starts.WARM, Starts.REFRESH) and energies[0] == energies[1]
    energies[:] = np.inf
    kinks = KINKS if starts not in (Starts.WARM, Starts.FROM_ZERO) else 0
    work.kinks.last[:] = np.inf
    onward, lower = False, False
    for s in range(MOST_STARTS + kinks):
        if not onward and not start_field(s, center, k, found.minima, terms.parameters, starts, work.h):
            onward, lower = True, kinks > 0
        if onward and not lower:
            break
        if s == 1 and only:
            continue
        to_scaled(work.h, center, terms.factor, work.u)
        for i in range(SIZE):
            work.kinks.base[i] = work.best[i] if onward else work.u[i]
        lower = False
        for j in range(1 if onward else 0, kinks + 1):
            if j > 0 and not go_to_kink(j - 1, onward, center, terms, work):
                continue
            energy, value, flag = descend_along_kinks(center, terms, work)
            if energy == np.inf:
                bottomless = bottomless or flag == RUNAWAY
            elif keep(energy, terms.parameters[LENGTH_UNIT], found, work):
                best_loss, best_flag, lower = value, flag, True
    if energies[0] == np.inf:
        bottomless = True
        best_loss = fall_back(center, terms, found, work)
        energies[0] = best_loss
    if energies[1] == np.inf:
        energies[1] = energies[0]
        for i in range(SIZE):
            work.other[i] = work.best[i]
    place(work.best, center, terms.factor, found.minima[0])
    place(work.other, center, terms.factor, found.minima[1])
    return best_loss, RUNAWAY if bottomless else best_flag
