"""The problem of one row of weights, ``w(B, Lambda) = argmin_w r(w) + 1/2 w^T Lambda w - B^T w``: (100)-(106).

A regulariser is a penalty on single weights, or on the norm of a row, plus a quadratic part ``ridge/2 |w|^2`` that is
added to Lambda.  All functions are vectorised over leading axes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, qmc

from attnphase.arrays import Array
from attnphase.problem import Problem, Regularizer

__all__ = ["RowRegularizer", "gaussian_nodes", "problem_rows", "row_regularizer"]

_SWEEPS = 500  # of coordinate descent, or steps of the proximal gradient
_CONVERGED = 1e-13
_REACH = 8.5  # standard deviations that one-dimensional rules cover


@dataclass(frozen=True, eq=False)
class RowRegularizer:
    """A convex regulariser of the rows of the weights.

    Attributes
    ----------
    name : str
    ridge : float
        Quadratic part, added to the curvature.
    value : callable
        The penalty without the quadratic part: of single weights, or of the norm of a row if `rowwise`.
    prox : callable
        ``prox(v, step)``, the minimiser of ``value(w) + (w - v)^2 / (2 step)``, likewise.
    kinks : tuple of (float, float, float)
        Weights at which the penalty's slope jumps, with the slopes on the left and on the right.
    rowwise : bool
        Whether the penalty is one of the row's norm.
    even : bool
        Whether signs of the weights do not matter.
    exact : bool
        Whether `kinks` are all there are; otherwise integration uses finer panels.
    """

    name: str
    ridge: float
    value: Callable[[Array], Array]
    prox: Callable[[Array, Array], Array]
    kinks: tuple[tuple[float, float, float], ...] = ()
    rowwise: bool = False
    even: bool = True
    exact: bool = True

    def penalty(self, w: Array) -> Array:
        """``r(w)``, the quadratic part included: (..., r) to (...)."""
        quadratic = self.ridge / 2 * (w**2).sum(axis=-1)
        if self.rowwise:
            return self.value(np.linalg.norm(w, axis=-1)) + quadratic
        return self.value(w).sum(axis=-1) + quadratic

    def margin(self, curvature: Array) -> float:
        """Smallest eigenvalue of ``Lambda + ridge I``: positive where the row problem has its one minimum."""
        return float(np.linalg.eigvalsh(curvature).min()) + self.ridge

    def zeros(self, w: Array) -> NDArray[np.bool_]:
        """Which weights vanish exactly."""
        return w == 0.0

    def minimise(self, curvature: Array, source: Array) -> Array:
        """The minimisers: Lambda (..., r, r) and B (..., r), broadcast against each other, to w (..., r)."""
        r = source.shape[-1]
        curvature = curvature + self.ridge * np.eye(r)
        shape = np.broadcast_shapes(curvature.shape[:-2], source.shape[:-1])
        curvature = np.broadcast_to(curvature, (*shape, r, r))
        source = np.broadcast_to(source, (*shape, r))
        if r == 1:
            stiffness = curvature[..., 0, 0]
            return self.prox(source[..., 0] / stiffness, 1 / stiffness)[..., None]
        if self.rowwise:
            return self._rowwise(curvature.reshape(-1, r, r), source.reshape(-1, r)).reshape(*shape, r)
        return self._by_coordinates(curvature, source)

    def _by_coordinates(self, curvature: Array, source: Array) -> Array:
        """Cyclic coordinate descent: every step is exact, and zeros stay exactly zero."""
        r = source.shape[-1]
        w: Any = np.linalg.solve(curvature, source[..., None])[..., 0]
        w = self.prox(w, 1 / np.diagonal(curvature, axis1=-2, axis2=-1))
        for _ in range(_SWEEPS):
            largest = 0.0
            for i in range(r):
                stiffness = curvature[..., i, i]
                rest = source[..., i] - (curvature[..., i, :] * w).sum(axis=-1) + stiffness * w[..., i]
                new = self.prox(rest / stiffness, 1 / stiffness)
                largest = max(largest, float(np.abs(new - w[..., i]).max(initial=0.0)))
                w[..., i] = new
            if largest <= _CONVERGED * (1.0 + float(np.abs(w).max(initial=0.0))):
                break
        return w

    def _rowwise(self, curvature: Array, source: Array) -> Array:
        """``(Lambda + s/|w| I) w = B`` for a penalty ``s |w|``: bisection for the norm in the eigenbasis of Lambda."""
        strength = self.kinks[0][2]
        values, vectors = np.linalg.eigh(curvature)
        along = np.einsum("nji,nj->ni", vectors, source)
        size = np.linalg.norm(source, axis=-1)
        active = size > strength
        low, high = np.zeros(len(source)), np.maximum(size - strength, 0.0) / values[:, 0]
        # the norm n solves sum_i (b_i / (n v_i + s))^2 = 1, whose left side falls in n
        for _ in range(200):
            middle = (low + high) / 2
            excess = ((along / (middle[:, None] * values + strength)) ** 2).sum(axis=-1) > 1
            low, high = np.where(excess, middle, low), np.where(excess, high, middle)
            if np.all(high - low <= 1e-15 * high + 1e-300):
                break
        length = (low + high) / 2
        scaled = along * (length / 1.0)[:, None] / (length[:, None] * values + strength)
        return np.where(active[:, None], np.einsum("nij,nj->ni", vectors, scaled), 0.0)


def problem_rows(problem: Problem) -> RowRegularizer:
    """The regulariser of a problem.

    Raises
    ------
    ProblemError
        The problem came with data and names a function of a module.
    """
    problem.require_functions()
    return row_regularizer(problem.regularizer, problem.columns)


def row_regularizer(regularizer: Regularizer, columns: int) -> RowRegularizer:
    """A regulariser that a user gave, for rows of so many weights; a problem's is that of `problem_rows`."""
    kind, strength = regularizer.kind, regularizer.strength
    ridge = float(getattr(regularizer, "ridge", None) or 0.0)
    if kind == "ridge":
        return RowRegularizer(kind, float(strength), np.zeros_like, lambda v, step: v)
    if kind in ("lasso", "elastic-net"):
        return _absolute(kind, float(strength), ridge)
    if kind == "group-lasso":
        # in one column the norm is the absolute value
        one = _absolute(kind, float(strength), ridge)
        return one if columns == 1 else RowRegularizer(kind, ridge, one.value, one.prox, one.kinks, rowwise=True)
    from attnphase.rows.own import load_expression, load_prox

    if kind == "expression":
        return load_expression(regularizer.expression, ridge)
    return load_prox(regularizer.prox, ridge)


def _absolute(name: str, strength: float, ridge: float) -> RowRegularizer:
    def soft(v: Array, step: Array) -> Array:
        return np.sign(v) * np.maximum(np.abs(v) - strength * step, 0.0)

    return RowRegularizer(name, ridge, lambda w: strength * np.abs(w), soft, ((0.0, -strength, strength),))


def newton_prox(
    slope: Callable[[Array], Array], curvature: Callable[[Array], Array], kinks: Any
) -> Callable[..., Array]:
    """Proximal operator of a convex function from its derivatives: exact at kinks, safeguarded Newton elsewhere."""

    def prox(v: Array, step: Array) -> Array:
        v, step = np.broadcast_arrays(np.asarray(v, dtype=float), np.asarray(step, dtype=float))
        low, high = np.full(v.shape, -np.inf), np.full(v.shape, np.inf)
        result, done = np.empty(v.shape), np.zeros(v.shape, dtype=bool)
        for place, left, right in kinks:
            # 0 in [left, right] + (place - v) / step
            at = (v - place) / step
            hit = (at >= left) & (at <= right) & ~done
            result[hit], done = place, done | hit
            low = np.where(at > right, np.maximum(low, place), low)
            high = np.where(at < left, np.minimum(high, place), high)

        def excess(w: Array) -> Array:
            return slope(w) + (w - v) / step

        # bracket the root of an increasing function
        reach = np.maximum(1e-3, np.abs(v)) + step * np.abs(slope(np.where(np.isfinite(low), low + 1e-9, v)))
        lower = np.where(np.isfinite(low), low, v - reach)
        upper = np.where(np.isfinite(high), high, v + reach)
        for _ in range(60):
            grow = (excess(lower) > 0) & ~np.isfinite(low)
            lower = np.where(grow, lower - reach, lower)
            shrink = (excess(upper) < 0) & ~np.isfinite(high)
            upper = np.where(shrink, upper + reach, upper)
            reach = 2 * reach
            if not (grow | shrink).any():
                break
        w = np.clip(v, lower, upper)
        w = np.where((w == lower) | (w == upper), (lower + upper) / 2, w)
        moved = upper - lower
        for _ in range(100):
            value = excess(w)
            lower, upper = np.where(value < 0, w, lower), np.where(value >= 0, w, upper)
            with np.errstate(over="ignore", invalid="ignore"):
                new = w - value / (curvature(w) + 1 / step)
            # a step that does not halve the last one crawls, as down an exponential: bisect instead
            quick = np.abs(new - w) <= np.maximum(moved / 2, 4e-15 * (1 + np.abs(w)))
            new = np.where((new >= lower) & (new <= upper) & quick, new, (lower + upper) / 2)
            moved = np.abs(new - w)
            w = new
            if np.all((moved <= 1e-15 * (1 + np.abs(w))) | done):
                break
        return np.where(done, result, w)

    return prox


# ------------------------------------------------------------------------------------------------------ quadrature


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
    # a formula may bend sharply without a kink
    count = {"expression": 24, "prox": 96}.get(regularizer.name, 6)
    points, weights = np.polynomial.legendre.leggauss(20 if regularizer.exact else 6)
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
