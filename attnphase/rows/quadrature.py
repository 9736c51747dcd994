"""Means over a row's Gaussian noise of functions of its minimiser."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.scrambling import scrambled_normals
from attnphase.rows.moments import RowMoments
from attnphase.rows.regularizer import RowRegularizer

__all__ = ["REACH", "gaussian_nodes", "panels", "quadrature_moments"]

REACH = 8.5  # standard deviations that one-dimensional rules cover
_ROWS = 32  # of one column that are integrated together: what they need stays in the processor's cache


def quadrature_moments(regularizer: RowRegularizer, mean: Array, root: Array, curvature: Array) -> RowMoments:
    """The moments of any regulariser, by `gaussian_nodes`.

    Parameters
    ----------
    regularizer : RowRegularizer
    mean : (N, r) array
        Of the sources.
    root : (N, r, r) array
        The symmetric root of their covariance.
    curvature : (N, r, r) array
        Lambda, without the regulariser's quadratic part.
    """
    together = _ROWS if mean.shape[1] == 1 else 1
    some = (slice(first, first + together) for first in range(0, len(mean), together))
    return RowMoments.of_parts(_moments_of_nodes(regularizer, mean[rows], root[rows], curvature[rows]) for rows in some)


def _moments_of_nodes(regularizer: RowRegularizer, mean: Array, root: Array, curvature: Array) -> RowMoments:
    z, weights = gaussian_nodes(regularizer, mean, root, curvature)
    w = regularizer.minimise(curvature[:, None], mean[:, None] + z @ root.mT)
    weighted = weights[..., None] * w
    return RowMoments(
        first=weighted.sum(axis=1),
        second=weighted.mT @ w,
        response=weighted.mT @ z @ np.linalg.inv(root),
        penalty=(weights * regularizer.penalty(w)).sum(axis=1),
        density=(weights * (1.0 - regularizer.zeros(w)).mean(axis=-1)).sum(axis=1),
    )


def gaussian_nodes(regularizer: RowRegularizer, mean: Array, root: Array, curvature: Array) -> tuple[Array, Array]:
    """Nodes for means over ``z ~ N(0, I_r)`` of functions of ``w(mean + root z)``.

    One column: panels of Gauss-Legendre nodes that end at the kinks of w, accurate to 1e-10 where they are known.  Two
    columns: polar coordinates, accurate to about 1e-5.  More: 16384 antithetic scrambled Sobol points, to about 1e-3.

    Parameters
    ----------
    mean : (A, r) array
    root : (A, r, r) array
    curvature : (A, r, r) array
        Lambda, without the regulariser's quadratic part.

    Returns
    -------
    z : (A, J, r) array
    weights : (A, J) array
    """
    atoms, r = mean.shape
    if r == 1:
        return _between_kinks(regularizer, mean[:, 0], root[:, 0, 0], curvature[:, 0, 0])
    nodes, weights = _polar() if r == 2 else _points(r)
    return np.broadcast_to(nodes, (atoms, *nodes.shape)), np.broadcast_to(weights, (atoms, len(weights)))


def _between_kinks(regularizer: RowRegularizer, mean: Array, root: Array, curvature: Array) -> tuple[Array, Array]:
    ends = [np.full(len(mean), -REACH), np.full(len(mean), REACH)]
    for place, left, right in regularizer.kinks:
        for slope in (left, right):
            source = slope + (curvature + regularizer.ridge) * place
            ends.append(np.clip((source - mean) / root, -REACH, REACH))
    z, weights = panels(np.stack(ends, axis=1), regularizer.panels, regularizer.order)
    return z[..., None], weights


def panels(ends: Array, count: int, order: int) -> tuple[Array, Array]:
    """Nodes (A, J) and weights for means over a normal number: between two ends (A, E) panels of Gauss-Legendre nodes.

    Parameters
    ----------
    ends : (A, E) array
        The first and the last are those of the whole interval; in any order.
    count, order : int
        Panels between two ends, and nodes in each.
    """
    edges = np.sort(ends, axis=1)
    points, weights = _gauss_legendre(order)
    fractions = np.linspace(0, 1, count + 1)
    starts = edges[:, :-1, None] + (edges[:, 1:, None] - edges[:, :-1, None]) * fractions[:-1]
    widths = (edges[:, 1:, None] - edges[:, :-1, None]) / count * np.ones(count)
    z = (starts[..., None] + widths[..., None] * (points + 1) / 2).reshape(len(ends), -1)
    mass = (widths[..., None] * weights / 2).reshape(len(ends), -1) * np.exp(-(z**2) / 2)
    return z, mass / mass.sum(axis=1, keepdims=True)


@lru_cache(maxsize=8)
def _gauss_legendre(order: int) -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(order)


@lru_cache(maxsize=1)
def _polar() -> tuple[Array, Array]:
    points, weights = _gauss_legendre(4)
    edges = np.linspace(0, REACH, 49)
    width = edges[1] - edges[0]
    radius = (edges[:-1, None] + width * (points + 1) / 2).ravel()
    mass = np.tile(width * weights / 2, len(edges) - 1) * radius * np.exp(-(radius**2) / 2)
    # an odd shift keeps nodes off the axes
    angles = 2 * np.pi * (np.arange(96) + 0.25) / 96
    z = radius[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    joint = np.repeat(mass / 96, 96)
    return z.reshape(-1, 2), joint / joint.sum()


@lru_cache(maxsize=4)
def _points(r: int) -> tuple[Array, Array]:
    half = scrambled_normals(r, 8192, np.random.default_rng(11))
    z = np.concatenate([half, -half])
    # unit covariance exactly: the response is read off E[w z]
    whiten: Any = np.linalg.inv(np.linalg.cholesky(z.T @ z / len(z)))
    return z @ whiten.T, np.full(len(z), 1 / len(z))
