"""Return state-evolution points of losses of one field by quadrature: references of `benchmarks.hundred`.

Nothing here comes from the package: neither its integration rules, nor its starts, nor its minimisers. Tokens are
Gaussian with one variance, the penalty is the ridge, and student and teacher have one column. The equations are
(7)-(8) of arXiv:2402.03902 for L = 1, where all local problems are convex, so that there is one fixed point.

- Labels are integrated out. Where the label is a sign, its law given ω is a normal distribution function; where it is
  the field itself, the residual is Gaussian.
- The proximal operator is a closed form, or the root of a monotone function, by bisection.
- Means over the Gaussian field are Gauss-Legendre sums on panels. Panels end at all kinks, and their lengths follow
  each scale of the integrand: the field's, the label's and the loss's.
- The fixed point is a root of F(x) - x in the logarithms of (θ, V, ρ q / θ² - 1), after damped steps.

A loss of the sums of L tokens' fields is the loss of one token of variance L σ², since the sum of the tokens is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root
from scipy.special import expit, ndtr

__all__ = ["HUBER_WIDTH", "LOSSES", "Scalar", "scalar_reference"]

Array = NDArray[np.float64]

HUBER_WIDTH = 0.5
"""Residual at which Huber's loss becomes linear."""
LOSSES = ("square", "huber", "logistic", "hinge")

_REACH = 12.0  # standard deviations: beyond, a Gaussian's mass is 2e-33
_FINER = 16  # panels reach from the widest scale to the narrowest in factors of two, at most so many below it
_BISECTIONS = 60
_DAMPED = 300
_TOLERANCE = 1e-14
_ACCEPTED = 1e-10  # relative, of the residual
_NO_STEP = 1e-30  # V at which the proximal point is ω


@dataclass(frozen=True)
class Scalar:
    """A problem of one field.

    Attributes
    ----------
    loss : str
        One of `LOSSES`.
    length : int
        Tokens whose fields' sums the loss is of.
    sigma, ridge, alpha, noise : float
        Standard deviation of the tokens' entries, λ, n/d, and variance of the noise on the teacher's field.
    """

    loss: str
    length: int
    sigma: float
    ridge: float
    alpha: float
    noise: float = 0.0

    @property
    def variance(self) -> float:
        """Of the sum of the tokens' entries."""
        return self.length * self.sigma**2


@dataclass(frozen=True)
class _Means:
    """Means over the fields: of g², of -dg/dω, of dg/d(mean of k), of the loss at the proximal point."""

    squared: float
    slope: float
    response: float
    loss: float


def panels(scales: list[float], kinks: list[float], order: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on panels over ±12 of the largest scale, that end at zero and at all kinks."""
    widest = max(scales)
    narrowest = max(min(scales), widest * 2.0**-_FINER)
    steps = int(np.ceil(np.log2(widest / narrowest))) + 3
    half = [0.0, *(_REACH * widest * 2.0 ** -np.arange(steps + 3))]
    spread = np.arange(-_REACH, _REACH + 0.5) * widest
    around = [kink + sign * edge for kink in kinks for sign in (1, -1) for edge in half]
    edges = np.unique([*half, *(-edge for edge in half), *spread, *around])
    edges = edges[np.abs(edges) <= _REACH * widest]
    nodes, weights = np.polynomial.legendre.leggauss(order)
    middle, length = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    return (middle[:, None] + length[:, None] * nodes).ravel(), (length[:, None] * weights).ravel()


def density(x: Array) -> Array:
    """Of the standard normal."""
    return np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def _logistic(omega: Array, V: float) -> tuple[Array, Array, Array]:
    """g, -dg/dω and the loss at the proximal point, of log(1 + exp(-h))."""
    low, high = omega.copy(), omega + V
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        above = middle - omega - V * expit(-middle) > 0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    h = (low + high) / 2
    for _ in range(3):
        h = h - (h - omega - V * expit(-h)) / (1 + V * expit(h) * expit(-h))
    curvature = expit(h) * expit(-h)
    return expit(-h), curvature / (1 + V * curvature), np.logaddexp(0, -h)


def _hinge(omega: Array, V: float) -> tuple[Array, Array, Array]:
    """The same of max(0, 1 - h)."""
    g = np.clip((1 - omega) / V, 0, 1)
    return g, ((g > 0) & (g < 1)) / V, np.maximum(1 - omega - V * g, 0)


def _classification(problem: Scalar, order: int, x: Array) -> _Means:
    """Means for labels that are signs: by symmetry twice those with the label 1."""
    theta, V, excess = x
    q = theta**2 * (1 + excess) / problem.variance
    width = np.sqrt(problem.noise + problem.variance * excess / (1 + excess))
    local, kinks = (_hinge, [1.0, 1.0 - V]) if problem.loss == "hinge" else (_logistic, [0.0, -V])
    omega, weights = panels([np.sqrt(q), width * q / theta, 1.0], kinks, order)
    weights = 2 * weights * density(omega / np.sqrt(q)) / np.sqrt(q)
    share = ndtr(theta / q * omega / width)
    g, slope, loss = local(omega, V)
    tilted = density(theta / q * omega / width) / width
    return _Means(weights @ (share * g**2), weights @ (share * slope), weights @ (tilted * g), weights @ (share * loss))


def _regression(problem: Scalar, order: int, x: Array) -> _Means:
    """Means for labels that are fields: the residual y - ω is Gaussian, and g a function of it."""
    theta, V, excess = x
    width = np.sqrt(problem.noise + ((problem.variance - theta) ** 2 + theta**2 * excess) / problem.variance)
    bend = np.inf if problem.loss == "square" else HUBER_WIDTH * (1 + V)
    kinks = [bend, -bend] if bend < _REACH * width else []
    u, weights = panels([width], kinks, order)
    weights = weights * density(u / width) / width
    g = np.clip(u / (1 + V), -bend / (1 + V), bend / (1 + V))
    slope = float(weights @ (np.abs(u) < bend)) / (1 + V)
    return _Means(weights @ g**2, slope, slope, weights @ _residual_loss(problem.loss, u - V * g))


def _residual_loss(loss: str, residual: Array) -> Array:
    if loss == "square":
        return residual**2 / 2
    within = np.minimum(np.abs(residual), HUBER_WIDTH)
    return within * (np.abs(residual) - within / 2)


def _means(problem: Scalar, order: int, x: Array) -> _Means:
    return (_classification if problem.loss in ("logistic", "hinge") else _regression)(problem, order, x)


def image(problem: Scalar, order: int, x: Array) -> Array:
    """F(x) of x = (θ, V, ρ q / θ² - 1): the last is positive, and small where the student nearly is the teacher."""
    means, gamma = _means(problem, order, x), problem.variance
    q_hat, V_hat, theta_hat = problem.alpha * np.array([means.squared, means.slope, means.response])
    R = 1 / (problem.ridge + gamma * V_hat)
    return np.array([gamma**2 * R * theta_hat, gamma * R, q_hat / (gamma * theta_hat**2)])


def observed(problem: Scalar, order: int, x: Array) -> dict[str, float]:
    """Overlaps of one token, training loss over d, and test error for one token.

    The test error is twice the mean loss of a fresh sample, whose label has no noise.
    """
    theta, V, excess = x
    q = theta**2 * (1 + excess) / problem.variance
    length, clean = problem.length, replace(problem, noise=0.0)
    return {
        "q": q / length,
        "V": V / length,
        "theta": theta / length,
        "training_loss": problem.alpha * _means(problem, order, x).loss + problem.ridge / 2 * q / problem.variance,
        "test_error": 2 * _means(clean, order, np.array([theta, _NO_STEP, excess])).loss / length,
    }


def fixed_point(problem: Scalar, order: int, start: Array | None = None) -> Array:
    """The fixed point, as `image` has it.

    Raises
    ------
    ArithmeticError
        No root was found.
    """
    x = np.array([problem.variance / 2, 1.0, 1.0]) if start is None else start
    for _ in range(0 if start is not None else _DAMPED):
        x = np.sqrt(x * image(problem, order, x))

    def equations(logs: Array) -> Array:
        return np.log(image(problem, order, np.exp(logs))) - logs

    found = root(equations, np.log(x), method="hybr", tol=_TOLERANCE)
    residual = np.abs(equations(found.x)).max()
    if not residual < _ACCEPTED:
        raise ArithmeticError(f"{problem}: residual {residual:.0e}")
    return np.exp(found.x)


def scalar_reference(problem: Scalar) -> tuple[dict[str, float], dict[str, float]]:
    """Values, and their errors: the change from 24 to 40 nodes in each panel, and a bound on rounding."""
    coarse = fixed_point(problem, 24)
    first, second = (observed(problem, order, fixed_point(problem, order, coarse)) for order in (24, 40))
    return second, {name: abs(second[name] - first[name]) + _ACCEPTED * abs(second[name]) for name in second}
