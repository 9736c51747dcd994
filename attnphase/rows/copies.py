"""Two copies of a row of weights, which share a part of the noise in their sources."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.scrambling import scrambled_normals
from attnphase.rows.regularizer import RowRegularizer

__all__ = ["row_responses", "row_spread"]

_POINTS = {1: 4096, 2: 1024}  # scrambled Sobol points and their mirror images, by the number of columns
_DIFFERENCE = 1e-4  # of a source, in units of its standard deviation


def row_spread(regularizer: RowRegularizer, mean: Array, root: Array, curvature: Array, own: Array) -> Array:
    """``1/2 E (w - w')(w - w')^T`` of two minimisers whose sources have `own` of their covariance each for themselves.

    Parameters
    ----------
    mean, root, curvature : (N, r), (N, r, r) and (N, r, r) arrays
        As of `attnphase.rows.quadrature.quadrature_moments`.
    own : (N, r, r) array
        Not larger than the covariance ``root^2``.

    Returns
    -------
    (N, r, r) array
    """
    spread = np.empty_like(root)
    z, other = np.split(_normals(2 * mean.shape[1]), 2, axis=1)

    def one_copy(n: int) -> tuple[Array, Array]:
        source = mean[n] + z @ root[n]
        return source, regularizer.minimise(curvature[n], source)

    here, (source, minimiser) = 0, one_copy(0)
    for n, one in enumerate(own):
        # the replicates at one point have all but `own` in common
        if not all(np.array_equal(x[n], x[here]) for x in (mean, root, curvature)):
            here, (source, minimiser) = n, one_copy(n)
        # the second source given the first is Gaussian
        pulled = np.linalg.solve(root[n], one)
        values, vectors = np.linalg.eigh(2 * one - pulled.T @ pulled)
        apart = other @ (vectors * np.sqrt(np.clip(values, 0.0, None))).T - z @ pulled
        step = regularizer.minimise(curvature[n], source + apart) - minimiser
        spread[n] = step.T @ step / (2 * len(step))
    return spread


def row_responses(regularizer: RowRegularizer, mean: Array, root: Array, curvature: Array) -> Array:
    """``E w' (x) w'`` for the minimisers' derivatives in their sources: (N, r, r, r, r), ``E w'_ac w'_be`` at abce."""
    r = mean.shape[1]
    squares = np.empty((len(mean), r, r, r, r))
    for n in range(len(mean)):
        source = mean[n] + _normals(r) @ root[n]
        step = _DIFFERENCE * np.sqrt(np.trace(root[n] @ root[n]) / r)
        slopes = np.stack(
            [
                (regularizer.minimise(curvature[n], source + e) - regularizer.minimise(curvature[n], source - e))
                for e in step * np.eye(r)
            ],
            axis=-1,
        ) / (2 * step)
        flat = slopes.reshape(len(slopes), -1)
        squares[n] = (flat.T @ flat / len(flat)).reshape(r, r, r, r).transpose(0, 2, 1, 3)
    return squares


@lru_cache(maxsize=8)
def _normals(dimensions: int) -> Array:
    points = _POINTS[1] if dimensions <= 2 else _POINTS[2]
    half = scrambled_normals(dimensions, points, np.random.default_rng(0))
    return np.concatenate([half, -half])
