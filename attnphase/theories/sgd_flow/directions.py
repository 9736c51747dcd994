"""The rates' linear part: their Jacobian at a state, its eigenvalues, and whether a state at rest is about to leave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.problem.units import power_of_two
from attnphase.theories.sgd_flow.rates import Dynamics

__all__ = ["EVEN", "STEP", "eigenvalues", "growth", "jacobian", "kicks"]

EVEN = 1e-6
"""Real part of an eigenvalue, over eta and the pace of the state, up to which a direction does not grow."""

STEP = 1e-5
"""Of differences, relative to the natural sizes of a state's numbers."""


def jacobian(dynamics: Dynamics, state: Array) -> Array:
    """Derivatives of the rates by differences, in all directions, whatever symmetry the state has.

    Covariances are only ever made larger: those of gradient flow vanish in the end.
    """
    free = replace(dynamics, sector=None, evaluations=0, _known=None, _known_loss=None)
    means = dynamics.rows.points * dynamics.rows.columns
    ways = kicks(dynamics, state)
    here, changes = free.rate(state), []
    for number, kick in enumerate(STEP * ways.T):
        ahead = free.rate(state + kick)
        if number < means:
            changes.append((ahead - free.rate(state - kick)) / 2)
        else:
            changes.append((4 * ahead - free.rate(state + 2 * kick) - 3 * here) / 2)
    dynamics.evaluations += free.evaluations
    slopes: Array = np.linalg.solve(ways.T, np.stack(changes) / STEP).T.astype(float, copy=False)
    return slopes


def eigenvalues(dynamics: Dynamics, state: Array) -> NDArray[np.complex128]:
    """Of the Jacobian, per unit of ``eta tau``, by falling real part."""
    values: NDArray[np.complex128] = np.linalg.eigvals(_scaled(dynamics, state)[0]).astype(np.complex128)
    return values[np.lexsort((-values.imag, -values.real))]


def growth(dynamics: Dynamics, state: Array, least: float) -> tuple[float, float]:
    """How fast a state that hardly moves would leave, and how far it is on its way.

    Parameters
    ----------
    least : float
        Real part of an eigenvalue, per unit of ``eta tau``, from which on a direction grows.

    Returns
    -------
    rate : float
        The largest real part of an eigenvalue.
    gone : float
        What the rate along the growing directions says of the distance from the stationary point along them, as a
        share of the state; zero where a symmetry of the start keeps it from leaving.
    """
    matrix, sizes = _scaled(dynamics, state)
    values, vectors = (np.asarray(x, dtype=np.complex128) for x in np.linalg.eig(matrix))
    rate, growing = float(values.real.max()), values.real > least
    if not growing.any():
        return rate, 0.0
    moving = dynamics.rate(state) / dynamics.eta / sizes
    parts = np.linalg.lstsq(vectors, moving.astype(vectors.dtype), rcond=None)[0]
    return rate, float(np.abs(vectors[:, growing] @ (parts[growing] / values[growing])).max())


def _scaled(dynamics: Dynamics, state: Array) -> tuple[Array, Array]:
    """The Jacobian over eta, of a state's numbers in units of their sizes, and these sizes."""
    sizes = power_of_two(dynamics.sizes(state))
    return jacobian(dynamics, state) / dynamics.eta * sizes / sizes[:, None], sizes


def kicks(dynamics: Dynamics, state: Array) -> Array:
    """Directions as columns, as long as a state's numbers are large.

    They are the means' entries, and for every covariance matrices that are positive semidefinite.
    """
    rows, ways, sizes = dynamics.rows, np.eye(len(state)), dynamics.sizes(state)
    means = rows.points * rows.columns
    for column in range(means, len(state)):
        matrices = rows.unpack(ways[:, column])[1]
        i, j = np.argwhere(matrices.any(axis=0))[0]
        if i != j:
            matrices[matrices.any(axis=(1, 2))] += np.diag(np.isin(np.arange(rows.columns), (i, j)).astype(float))
            ways[:, column] = rows.pack(np.zeros((rows.points, rows.columns, 1)), matrices)
    return sizes[:, None] * ways
