"""Entry points of a kernel for the theory: nodes that share the diagonal of D.

This file is not imported: see ``newton.py``, to which its text is appended.
"""
# ruff: noqa: F821
# pyright: reportUndefinedVariable=false

import numpy as np
from numba import njit


@njit(
    "void(float64[:,:,::1], float64[:,:,::1], float64[:,:,::1], float64[:,::1], float64[::1], float64[::1], int64,"
    "float64[:,:,:,::1], float64[:,::1], float64[::1], float64[:,:,::1], int64[::1])",
    cache=True,
    nogil=True,
    error_model="numpy",
)
def minimise(
    centers, teacher_fields, factor, mixing, parameters, variance, mode, minima, energies, losses, residuals, flags
):
    """Lowest and second-lowest minimum of the local problem of every sample.

    Parameters
    ----------
    centers : (N, L, r) array
        ``omega`` of every sample.
    teacher_fields : (N, L, t) array
    factor : (L, r, r) array
        Lower Cholesky factor of V.
    mixing, parameters, variance : (L, L), (3,) and (L,) arrays
        Parameters of the loss: the matrix A; omega and the temperatures of student and teacher; the diagonal of D.
    mode : int
        COLD, WARM, FROM_ZERO or REFRESH: the starting points.
    minima : (N, 2, L, r) array, in and out
    energies : (N, 2) array, out
        Their values of ``Psi``; both the same if only one minimum was found.
    losses : (N,) array, out
        Loss at the lowest minimum.
    residuals : (N, L, r) array, out
        ``g = V^-1 (prox - omega)``, computed as minus the gradient of the loss, which needs no division.
    flags : (N,) array, out
        Newton steps, negative where the gradient did not reach its tolerance.
    """
    u = np.empty(SIZE)
    h = np.empty((LENGTH, COLUMNS))
    start = np.empty((LENGTH, COLUMNS))
    gradient = np.empty((LENGTH, COLUMNS))
    hessian = np.empty((SIZE, SIZE))
    contracted = np.empty(SIZE)
    slope = np.empty(SIZE)
    curvature = np.empty((SIZE, SIZE))
    lower = np.empty((SIZE, SIZE))
    step = np.empty(SIZE)
    trial = np.empty(SIZE)
    best = np.empty(SIZE)
    other = np.empty(SIZE)
    target = np.empty((LENGTH, max(LENGTH, TEACHER_RANK)))
    for sample in range(centers.shape[0]):
        teacher_target(teacher_fields[sample], mixing, parameters, target)
        losses[sample], flags[sample] = search(
            centers[sample],
            teacher_fields[sample],
            target,
            variance,
            factor,
            parameters,
            mode,
            minima[sample],
            energies[sample],
            residuals[sample],
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
        )


@njit(
    "void(float64[:,:,::1], float64[:,:,::1], float64[:,::1], float64[::1], float64[::1], float64[::1])",
    cache=True,
    nogil=True,
    error_model="numpy",
)
def losses_at(fields, teacher_fields, mixing, parameters, variance, losses):
    """Loss of every sample at given fields (N, L, r), without any minimisation."""
    target = np.empty((LENGTH, max(LENGTH, TEACHER_RANK)))
    for sample in range(fields.shape[0]):
        teacher_target(teacher_fields[sample], mixing, parameters, target)
        losses[sample] = loss(fields[sample], target, variance, parameters)


@njit(
    "void(float64[:,:,::1], float64[:,::1], float64[::1], float64[:,:,::1])",
    cache=True,
    nogil=True,
    error_model="numpy",
)
def targets_at(teacher_fields, mixing, parameters, targets):
    """Teacher's target of every sample, (N, L, L) (or (N, L, t) for a scalar loss)."""
    for sample in range(teacher_fields.shape[0]):
        teacher_target(teacher_fields[sample], mixing, parameters, targets[sample])
