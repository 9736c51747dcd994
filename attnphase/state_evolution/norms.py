"""Q = W^T W / d as an order parameter, of losses that take it: its conjugate, and the step of the map in it.

The objective at given Q, F(Q), is the minimum of ``alpha E[loss] + (lambda/2) |W|^2 / d`` over weights with these
products.  By the envelope theorem ``dF = Tr[(lambda I + Q_hat - mu) dQ]/2`` with ``Q_hat = 2 alpha E[D]``,
``dloss = Tr[D dQ]`` at the proximal points, and the multiplier mu of ``W^T W / d = Q``, which stands in place of
``lambda I`` in the rows' problems.  A fixed point has ``mu = lambda I + Q_hat``.

The map holds Q and takes a Newton step in it.  With ``lambda I + Q_hat`` in the rows' problems instead, small weights,
at which Q_hat is small, would grow without bound.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnphase.arrays import Array
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.gauge import ROUNDING, ROUNDS
from attnphase.state_evolution.overlaps import Conjugates, norm_entries, norm_matrix
from attnphase.state_evolution.prior import Prior, symmetric
from attnphase.state_evolution.trained import newton_step

__all__ = ["conjugates_of_norms", "held"]


def conjugates_of_norms(slopes: Array, columns: int) -> Array:
    """``Q_hat = 2 alpha E[D]`` (1, S, r, r), by slopes of ``alpha E[loss]`` in the entries of Q, (S, n).

    D has half of a slope off the diagonal, as the entry stands twice in Q.
    """
    return (norm_matrix(slopes, columns) * (1 + np.eye(columns)))[None]


def held(prior: Prior, conjugates: Conjugates) -> Conjugates:
    """Conjugates whose images have the Q where they were found, and the next Q.

    Conjugates stay where weights vanish in some direction, and no multiplier holds Q.
    """
    if conjugates.at is None:
        return conjugates
    (Q, bend), columns = conjugates.at, prior.kernels.columns
    without = replace(conjugates, Q_hat=0 * conjugates.Q_hat)
    curvature, squares = prior.curvature(without), symmetric(prior.source_squares(conjugates))
    mean = np.einsum("a,asij->sij", prior.spectrum.weights, squares)
    if not (np.isfinite(curvature).all() and np.isfinite(squares).all() and _full(Q) and _full(mean)):
        return conjugates
    multiplier, response = _multiplier(prior.spectrum.weights, curvature, squares, mean, Q)
    target = conjugates.Q_hat[0] + prior.strength * np.eye(columns)
    twice = _twice(columns)
    slopes = norm_entries((target - multiplier) * (2 - np.eye(columns))) / 2
    stiffness = bend + twice.T @ np.linalg.inv(response) @ twice / 2
    steps = np.stack([newton_step(slope, one) for slope, one in zip(slopes, stiffness, strict=True)])
    ridge = multiplier - prior.strength * np.eye(columns)
    return replace(conjugates, Q_hat=ridge[None], norms=norm_entries(_moved(Q, norm_matrix(steps, columns)))[None])


def _multiplier(weights: Array, curvature: Array, squares: Array, mean: Array, Q: Array) -> tuple[Array, Array]:
    """The mu (S, r, r) of ``sum_a w_a R_a S_a R_a = Q``, ``R_a = (mu + C_a)^-1``, and the derivative of -Q in it.

    It is the minimum of the convex ``sum_a w_a Tr S_a R_a + Tr mu Q``, by Newton's method from what holds on one atom.

    Parameters
    ----------
    weights : (A,) array
    curvature, squares : (A, S, r, r) arrays
        C and S.
    mean : (S, r, r) array
        Of the squares over the atoms.
    Q : (r, r) array
    """
    size, root = len(Q), matrix_root(mean)
    middle = np.einsum("a,asij->sij", weights, curvature)
    shift = np.maximum(np.linalg.eigvalsh(middle - curvature).max(axis=(0, -1)), 0.0)
    start = root @ np.linalg.inv(matrix_root(symmetric(root @ Q @ root))) @ root - middle
    multiplier = symmetric(start) + shift[:, None, None] * np.eye(size)

    def cost(at: Array) -> Array:
        whole = at + curvature
        inside = np.linalg.eigvalsh(whole).min(axis=(0, -1)) > 0
        whole[:, ~inside] = np.eye(size)
        value = np.einsum("a,asij,asji->s", weights, squares, np.linalg.inv(whole)) + np.einsum("sij,ji->s", at, Q)
        return np.where(inside, value, np.inf)

    value, response = cost(multiplier), np.empty((len(multiplier), size**2, size**2))
    for _ in range(ROUNDS):
        R = np.linalg.inv(multiplier + curvature)
        norms = R @ squares @ R
        response = np.einsum("a,asik,asjl->sijkl", weights, R, norms) + np.einsum(
            "a,asik,asjl->sijkl", weights, norms, R
        )
        response = response.reshape(-1, size**2, size**2)
        excess = np.einsum("a,asij->sij", weights, norms) - Q
        if (np.abs(excess) <= ROUNDING * np.abs(Q).max()).all():
            break
        step = symmetric(np.linalg.solve(response, excess.reshape(-1, size**2, 1)).reshape(excess.shape))
        reached = cost(multiplier + step)
        for _ in range(ROUNDS):
            rises = ~(reached <= value + ROUNDING * np.abs(value))
            if not rises.any():
                break
            step[rises] /= 2
            reached = cost(multiplier + step)
        multiplier, value = multiplier + step, reached
    return multiplier, response


def _moved(Q: Array, steps: Array) -> Array:
    """Q (r, r) after steps (S, r, r): of Q itself upwards, and of ``Q^(-1/2)`` downwards, which keeps it positive."""
    root = matrix_root(Q)
    inverse = np.linalg.inv(root)
    shares, axes = np.linalg.eigh(symmetric(inverse @ steps @ inverse))
    factors = np.where(shares > 0, 1 + shares, 1 / (1 - np.minimum(shares, 0.0) / 2) ** 2)
    return symmetric(root @ (axes * factors[..., None, :]) @ axes.mT @ root)


def _twice(columns: int) -> Array:
    """From independent entries of a symmetric matrix to all of them, (r^2, n)."""
    return norm_matrix(np.eye(columns * (columns + 1) // 2), columns).reshape(-1, columns**2).T


def _full(matrices: Array) -> bool:
    """Whether symmetric matrices (..., r, r) are positive definite, as far as rounding tells."""
    values = np.linalg.eigvalsh(matrices)
    return bool((values[..., 0] > ROUNDING * values[..., -1]).all())
