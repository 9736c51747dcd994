"""Entry points of a kernel for finite d: samples with their own targets and Gram matrices.

This file is not imported: see ``newton.py``, to which its text is appended.
"""
# ruff: noqa: F821
# pyright: reportUndefinedVariable=false

import numpy as np
from numba import njit


@njit(
    "void(float64[:,:,::1], float64[:,:,::1], float64[:,:,::1], float64[:,:,::1], int64[:,::1], float64[:,:,::1],"
    "float64[::1], int64, float64[:,:,:,::1], float64[:,::1], float64[::1], float64[:,:,::1], int64[::1])",
    cache=True,
    nogil=True,
    error_model="numpy",
)
def minimise_samples(
    centers,
    teacher_fields,
    targets,
    grams,
    sites,
    factors,
    parameters,
    mode,
    minima,
    energies,
    losses,
    residuals,
    flags,
):
    """Lowest and second-lowest minimum of the local problem of every sample.

    Parameters
    ----------
    centers : (N, L, r) array
        ``omega`` of every sample.
    teacher_fields : (N, L, t) array
    targets : (N, L, x) array
        The matrix C, or what the loss takes as its target.
    grams : (N, L, L) array
        Gram matrices, where the loss uses them.
    sites : (N, L) array of int
        Of every token.
    factors : (P, r, r) array
        Lower Cholesky factors of V of every site.
    parameters : (3,) array
    mode, minima, energies, losses, residuals, flags
        As those of ``minimise`` in ``newton_nodes.py``.
    """
    factor = np.empty((LENGTH, COLUMNS, COLUMNS))
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
    for sample in range(centers.shape[0]):
        for a in range(LENGTH):
            factor[a] = factors[sites[sample, a]]
        losses[sample], flags[sample] = search(
            centers[sample],
            teacher_fields[sample],
            targets[sample],
            weights_of(grams, sample),
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
