"""Global minimiser of the local problem: the part of a compiled kernel that does not depend on the model.

This file is not imported.  Its text is appended to the generated local problem (``loss``, ``loss_derivatives``,
``teacher_target``, ``LENGTH``, ``COLUMNS``, ``TEACHER_RANK``), that of ``newton_nodes.py`` or ``newton_samples.py``
to it, and all is compiled as one module, so that the whole Newton iteration of a sample runs in machine code.

With ``V_l = C_l C_l^T`` and ``h_l = omega_l + C_l u_l`` the energy is ``Psi(u) = |u|^2/2 + loss(omega + C u)``: well
scaled for every V, also where V vanishes or is large.
"""
# ruff: noqa: F821
# pyright: reportUndefinedVariable=false

from math import sqrt

import numpy as np

SIZE = LENGTH * COLUMNS
MAX_NEWTON = 200
GRADIENT_TOLERANCE = 1e-11
DISTINCT = 1e-5  # two minima are one if no coordinate differs by more, relative to 1 + |u|
CAPTURED = 1e-2  # a descent this close to a known minimum is taken to end there
FAR = 1e30  # growth of |u|^2, or of the energy's size on its way down, by which a descent counts as run away
RUNAWAY = -MAX_NEWTON - 1  # as in proximal.RUNAWAY
COLD, WARM, FROM_ZERO, REFRESH = 0, 1, 2, 3  # as in proximal.Starts


@compiled
def factorise(matrix, shift, lower):
    """Cholesky factor of ``matrix + shift I``; False if it is not positive definite."""
    for i in range(SIZE):
        for j in range(i + 1):
            total = matrix[i, j]
            if i == j:
                total += shift
            for c in range(j):
                total -= lower[i, c] * lower[j, c]
            if i == j:
                if not total > 1e-12:
                    return False
                lower[i, i] = sqrt(total)
            else:
                lower[i, j] = total / lower[j, j]
    return True


@compiled
def solve_factorised(lower, right, solution):
    """Solve ``lower lower^T solution = right``."""
    for i in range(SIZE):
        total = right[i]
        for c in range(i):
            total -= lower[i, c] * solution[c]
        solution[i] = total / lower[i, i]
    for i in range(SIZE - 1, -1, -1):
        total = solution[i]
        for c in range(i + 1, SIZE):
            total -= lower[c, i] * solution[c]
        solution[i] = total / lower[i, i]


@compiled
def place(u, center, factor, h):
    """``h = center + C u``."""
    for a in range(LENGTH):
        for i in range(COLUMNS):
            total = center[a, i]
            for j in range(i + 1):
                total += factor[a, i, j] * u[a * COLUMNS + j]
            h[a, i] = total


@compiled
def scale_derivatives(u, factor, gradient, hessian, slope, curvature):
    """Gradient and Hessian of ``Psi`` in u from those of the loss in h; returns the squared norm of the gradient."""
    for a in range(LENGTH):
        for j in range(COLUMNS):
            total = u[a * COLUMNS + j]
            for i in range(j, COLUMNS):
                total += factor[a, i, j] * gradient[a, i]
            slope[a * COLUMNS + j] = total
    for a in range(LENGTH):
        for j in range(COLUMNS):
            row = a * COLUMNS + j
            for b in range(a + 1):
                for l in range(COLUMNS):
                    column = b * COLUMNS + l
                    if column > row:
                        continue
                    total = 0.0
                    for i in range(j, COLUMNS):
                        for c in range(l, COLUMNS):
                            total += factor[a, i, j] * hessian[a * COLUMNS + i, b * COLUMNS + c] * factor[b, c, l]
                    if row == column:
                        total += 1.0
                    curvature[row, column] = total
    norm = 0.0
    for i in range(SIZE):
        norm += slope[i] * slope[i]
    return norm


@compiled
def near(u, minimum):
    """Whether ``u`` is within CAPTURED of a minimum in every coordinate."""
    for i in range(SIZE):
        if abs(u[i] - minimum[i]) > CAPTURED * (1.0 + abs(minimum[i])):
            return False
    return True


@compiled
def descend(
    u,
    center,
    factor,
    target,
    variance,
    parameters,
    known,
    best,
    other,
    h,
    gradient,
    hessian,
    contracted,
    slope,
    curvature,
    lower,
    step,
    trial,
):
    """Damped Newton descent from ``u`` (overwritten).

    Returns energy, loss and the number of steps, negative if the gradient did not reach its tolerance.  A descent that
    comes close to one of the ``known`` (0, 1 or 2) minima ``best`` and ``other`` stops with infinite energy, and so do
    one that begins where the energy is not finite and one that finds no bottom, the last with RUNAWAY steps.
    """
    shift = 0.0
    place(u, center, factor, h)
    value = loss_derivatives(h, target, variance, parameters, gradient, hessian, contracted)
    norm_u = 0.0
    for i in range(SIZE):
        norm_u += u[i] * u[i]
    energy = 0.5 * norm_u + value
    if not abs(energy) < np.inf:
        return np.inf, value, -1
    far, deep = FAR * (1.0 + norm_u), -FAR * (1.0 + abs(energy))
    for iteration in range(MAX_NEWTON):
        norm = scale_derivatives(u, factor, gradient, hessian, slope, curvature)
        if norm <= GRADIENT_TOLERANCE * GRADIENT_TOLERANCE * (1.0 + norm_u):
            return energy, value, iteration
        accepted = False
        norm_trial, value_trial, energy_trial = norm_u, value, energy
        for _ in range(60):
            if not factorise(curvature, shift, lower):
                shift = max(2.0 * shift, 0.1)
                continue
            solve_factorised(lower, slope, step)
            decrease = 0.0
            norm_trial = 0.0
            for i in range(SIZE):
                decrease += slope[i] * step[i]
                trial[i] = u[i] - step[i]
                norm_trial += trial[i] * trial[i]
            place(trial, center, factor, h)
            # slope and curvature keep the accepted point's derivatives, so these can be the trial's already
            value_trial = loss_derivatives(h, target, variance, parameters, gradient, hessian, contracted)
            energy_trial = 0.5 * norm_trial + value_trial
            # rounding decides below 1e-14 of the energy: accept, the gradient is the stopping rule
            if energy_trial <= energy - 1e-4 * decrease + 4e-16 * (1.0 + abs(energy)):
                accepted = True
                break
            shift = max(4.0 * shift, 0.1)
        if not accepted:
            place(u, center, factor, h)
            value = loss_derivatives(h, target, variance, parameters, gradient, hessian, contracted)
            return energy, value, -iteration - 1
        for i in range(SIZE):
            u[i] = trial[i]
        norm_u = norm_trial
        if not (norm_u < far and energy_trial > deep):
            return np.inf, value, RUNAWAY
        if (known > 0 and near(u, best)) or (known > 1 and near(u, other)):
            return np.inf, value, iteration
        shift = 0.0 if shift < 0.05 else 0.25 * shift
        value = value_trial
        energy = energy_trial
    if not factorise(curvature, 0.0, lower):
        return np.inf, value, RUNAWAY  # still on its way down where the energy is not convex
    return energy, value, -MAX_NEWTON


@compiled
def copy_start(source, start):
    """Copy a field into ``start``; always True."""
    for a in range(LENGTH):
        for i in range(COLUMNS):
            start[a, i] = source[a, i]
    return True


@compiled
def start_field(s, center, k, previous, second, mode, start):
    """Field of the s-th start; False when there are no more.

    WARM: the two lowest minima of the previous pass.  FROM_ZERO: zero alone, as in the published recipe.  COLD: omega,
    the teacher's field lifted to the student's columns with both signs, zero, the reflected omega, and omega with one
    token reflected.  REFRESH: both, so that a pass can only find lower minima.
    """
    if mode == FROM_ZERO:
        start[:] = 0.0
        return s == 0
    if mode == WARM or mode == REFRESH:
        if s > 1 and mode == WARM:
            return False
        if s > 1:
            s -= 2
        else:
            return copy_start(previous if s == 0 else second, start)
    if s >= 5 + LENGTH:
        return False
    for a in range(LENGTH):
        for i in range(COLUMNS):
            lifted = k[a, LIFT[i]]
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
def to_scaled(start, center, factor, u):
    """Solve ``C u = start - center`` token by token."""
    for a in range(LENGTH):
        for i in range(COLUMNS):
            total = start[a, i] - center[a, i]
            for j in range(i):
                total -= factor[a, i, j] * u[a * COLUMNS + j]
            u[a * COLUMNS + i] = total / factor[a, i, i]


@compiled
def search(
    center,
    k,
    target,
    variance,
    factor,
    parameters,
    mode,
    minima,
    energies,
    residual,
    best,
    other,
    u,
    h,
    start,
    gradient,
    hessian,
    contracted,
    slope,
    curvature,
    lower,
    step,
    trial,
):
    """Lowest and second-lowest minimum of one sample's local problem.

    Fills ``minima`` (2, L, r), ``energies`` (2,) and ``residual`` (L, r).  Returns the loss at the lowest minimum
    and the number of Newton steps to it, negative where the gradient did not reach its tolerance.  Where a descent
    found no bottom, the number is RUNAWAY, and the rest belongs to the lowest local minimum or else to the centre.
    """
    if closed_form(center, target, factor, h):
        best_loss = loss(h, target, variance, parameters)
        to_scaled(h, center, factor, u)
        best_energy = best_loss
        for i in range(SIZE):
            best_energy += 0.5 * u[i] * u[i]
        copy_start(h, minima[0])
        copy_start(h, minima[1])
        energies[:] = best_energy
        residual[0, 0] = u[0] / factor[0, 0, 0]
        return best_loss, 0
    best_energy = np.inf
    other_energy = np.inf
    best_loss = 0.0
    best_flag = 0
    bottomless = False
    s = 0
    while start_field(s, center, k, minima[0], minima[1], mode, start):
        if s == 1 and (mode == WARM or mode == REFRESH) and energies[0] == energies[1]:
            s += 1
            continue
        s += 1
        to_scaled(start, center, factor, u)
        known = 0 if best_energy == np.inf else (1 if other_energy == np.inf else 2)
        energy, value, flag = descend(
            u,
            center,
            factor,
            target,
            variance,
            parameters,
            known,
            best,
            other,
            h,
            gradient,
            hessian,
            contracted,
            slope,
            curvature,
            lower,
            step,
            trial,
        )
        if energy == np.inf:
            bottomless = bottomless or flag == RUNAWAY
            continue
        gap = 0.0
        if best_energy < np.inf:
            for i in range(SIZE):
                gap = max(gap, abs(u[i] - best[i]) / (1.0 + abs(best[i])))
        if best_energy == np.inf or (energy < best_energy and gap > DISTINCT):
            for i in range(SIZE):
                other[i] = best[i]
                best[i] = u[i]
            other_energy = best_energy
            best_energy = energy
            best_loss = value
            best_flag = flag
            for a in range(LENGTH):
                for i in range(COLUMNS):
                    residual[a, i] = -gradient[a, i]
        elif gap > DISTINCT and energy < other_energy:
            for i in range(SIZE):
                other[i] = u[i]
            other_energy = energy
    if best_energy == np.inf:
        bottomless = True
        best_loss = 0.0
        for i in range(SIZE):
            best[i] = 0.0
        value = loss_derivatives(center, target, variance, parameters, gradient, hessian, contracted)
        if abs(value) < np.inf:
            best_loss = value
        best_energy = best_loss
        for a in range(LENGTH):
            for i in range(COLUMNS):
                residual[a, i] = -gradient[a, i] if abs(gradient[a, i]) < np.inf else 0.0
    if other_energy == np.inf:
        other_energy = best_energy
        for i in range(SIZE):
            other[i] = best[i]
    place(best, center, factor, minima[0])
    place(other, center, factor, minima[1])
    energies[0] = best_energy
    energies[1] = other_energy
    return best_loss, RUNAWAY if bottomless else best_flag
