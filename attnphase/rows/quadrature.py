"""Means over a row's Gaussian noise of functions of its minimiser."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from scipy.stats import norm, qmc

from attnphase.arrays import Array
from attnphase.rows.regularizer import RowRegularizer

__all__ = ["gaussian_nodes"]

_REACH = 8.5  # standard deviations that one-dimensional rules cover


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
        return _panels(regularizer, mean[:, 0], root[:, 0, 0], curvature[:, 0, 0])
    nodes, weights = _polar() if r == 2 else _points(r)
    return np.broadcast_to(nodes, (atoms, *nodes.shape)), np.broadcast_to(weights, (atoms, len(weights)))


def _panels(regularizer: RowRegularizer, mean: Array, root: Array, curvature: Array) -> tuple[Array, Array]:
    ends = [np.full(len(mean), -_REACH), np.full(len(mean), _REACH)]
    for place, left, right in regularizer.kinks:
        for slope in (left, right):
            source = slope + (curvature + regularizer.ridge) * place
            ends.append(np.clip((source - mean) / root, -_REACH, _REACH))
    edges = np.sort(np.stack(ends, axis=1), axis=1)
    count = regularizer.panels
    points, weights = np.polynomial.legendre.leggauss(regularizer.order)
    fractions = np.linspace(0, 1, count + 1)
    starts = edges[:, :-1, None] + (edges[:, 1:, None] - edges[:, :-1, None]) * fractions[:-1]
    widths = (edges[:, 1:, None] - edges[:, :-1, None]) / count * np.ones(count)
    z = starts[..., None] + widths[..., None] * (points + 1) / 2
    mass = widths[..., None] * weights / 2 * norm.pdf(z)
    z, mass = z.reshape(len(mean), -1), mass.reshape(len(mean), -1)
    return z[..., None], mass / mass.sum(axis=1, keepdims=True)


@lru_cache(maxsize=1)
def _polar() -> tuple[Array, Array]:
    points, weights = np.polynomial.legendre.leggauss(4)
    edges = np.linspace(0, _REACH, 49)
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
    uniform = qmc.Sobol(r, scramble=True, rng=np.random.default_rng(11)).random(8192)
    half = norm.ppf(np.clip(uniform, 2.0**-40, 1 - 2.0**-40))
    z = np.concatenate([half, -half])
    # unit covariance exactly: the response is read off E[w z]
    whiten: Any = np.linalg.inv(np.linalg.cholesky(z.T @ z / len(z)))
    return z @ whiten.T, np.full(len(z), 1 / len(z))
