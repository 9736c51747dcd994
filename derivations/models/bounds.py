"""Whether a formula is finite everywhere, how fast it grows, and whether a loss falls without bound.

SymPy's assumptions settle most denominators and logarithms (``1 + z**2`` of a real z is positive).  What they leave
open is searched for zeros numerically.  How fast a loss falls is looked at along rays.  These are honest probes, no
proofs; all points are the same on every call.  Rules on the expression bound how fast a formula grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import (
    Abs,
    Add,
    Expr,
    Heaviside,
    Max,
    Mul,
    Pow,
    Symbol,
    cos,
    cosh,
    exp,
    lambdify,
    log,
    nan,
    oo,
    preorder_traversal,
    sign,
    sin,
    sinh,
    tanh,
    zoo,
)

from derivations.models.functions import NUMPY_FUNCTIONS, Modulus, Relu, Sigmoid, Sign, Softmax, Softplus, Step

__all__ = ["Fall", "fall_of", "growth_of", "singular_point"]

Array = NDArray[np.float64]

_SIZE = 3.0  # of the fields at which values are looked at
_FARTHEST = 1e4  # of a zero that is searched for
_SEARCHES, _STEPS = 96, 80
_ZERO = 1e-13  # of a denominator, relative to what it was where the search began
_NEAR = (1e-3, 1e-6, 1e-9)  # distances from a zero at which a pole must show
_IN_DECADE = 10  # points on a ray; an oscillation is seldom small at all of them
_RADII = 10.0 ** (np.arange(8 * _IN_DECADE + 1) / _IN_DECADE)
_POWER = 1.85  # a loss that falls at least so fast along a ray is taken to fall as the square
_DIRECTIONS = 96


def singular_point(expressions: Sequence[Expr], variables: Sequence[Symbol]) -> dict[Symbol, float] | None:
    """A point at which one of the expressions is not a finite number; None if none was found.

    Parameters
    ----------
    expressions : sequence of Expr
        In terms of the functions that generated code knows.
    variables : sequence of Symbol
        Real symbols.
    """
    present = _present(expressions, variables)
    if any(e.has(nan, zoo, oo, -oo) for e in expressions):
        return _named(variables, np.zeros(len(variables)))
    if not present:
        return None
    value = _compiled(expressions, present)
    for points in _ordinary_points(len(present)):
        bad = ~np.isfinite(value(points)).all(axis=0)
        if bad.any():
            return _named(present, points[:, bad.argmax()])
    zeros = [_zeros(base, present) for base in _delicate(expressions)]
    candidates = np.concatenate([np.zeros((len(present), 0)), *zeros], axis=1)
    candidates = candidates[:, np.argsort(np.abs(candidates).max(axis=0, initial=0.0), kind="stable")]
    singular = _is_singular(value, candidates)
    return _named(present, candidates[:, singular.argmax()]) if singular.any() else None


@dataclass(frozen=True)
class Fall:
    """A point on a ray along which a loss falls as the square of the distance, or faster.

    Attributes
    ----------
    point : mapping of Symbol to float
    value : float
        Of the loss there.
    """

    point: Mapping[Symbol, float]
    value: float


def fall_of(loss: Expr, fields: Sequence[Symbol], others: Sequence[Symbol]) -> Fall | None:
    """A direction of the fields in which a loss falls as their square or faster, at fixed other variables.

    Only then does the minimum of ``loss(h) + |h - omega|^2/(2 V)`` not exist for every V.  None if no such direction
    was found.
    """
    moving, still = _present([loss], fields), _present([loss], others)
    value = _compiled([loss], [*moving, *still])
    rng = np.random.default_rng(7)
    directions = _directions(len(moving), rng)
    for fixed in rng.normal(0.2, 1.3, (6, len(still))).round(2):
        rays = directions[:, :, None] * _RADII
        points = np.concatenate([rays, np.broadcast_to(fixed[:, None, None], (len(still), *rays.shape[1:]))])
        values = value(points.reshape(len(points), -1)).reshape(rays.shape[1:])
        falling = np.flatnonzero([_falls(ray) for ray in values])
        if len(falling):
            ray = int(falling[0])
            low = np.flatnonzero(np.isfinite(values[ray]) & (values[ray] < 0))
            place = int(low[min(np.searchsorted(_RADII[low], 100.0), len(low) - 1)])
            return Fall(_named([*moving, *still], points[:, ray, place]), float(values[ray, place]))
    return None


def _falls(values: Array) -> bool:
    """Whether values at `_RADII` fall at least as the power `_POWER`, as far as they are finite.

    In the last decade they are lower than their sizes in the decade before, times that power of the radii: what
    oscillates with an amplitude of a lower power is large somewhere there.
    """
    finite = np.isfinite(values)
    count = len(values) if finite.all() else int(finite.argmin())
    window = min(_IN_DECADE, count // 2)
    if window < 2:
        return False
    shares = values[:count] / _RADII[:count] ** _POWER
    last, sizes = shares[-window:].min(), np.abs(shares)
    return bool(last < -1e-11 * sizes.max() and last <= -sizes[-2 * window : -window].max())  # less is rounding


def _directions(count: int, rng: np.random.Generator) -> Array:
    """Axes, corners of the cube and random directions, (count, directions)."""
    axes = np.concatenate([np.eye(count), -np.eye(count)], axis=1)[:, : 2 * _DIRECTIONS]
    corners = np.sign(rng.normal(size=(count, _DIRECTIONS // 2)))
    free = rng.normal(size=(count, _DIRECTIONS // 2))
    return np.concatenate([axes, corners, free / np.abs(free).max(axis=0)], axis=1)


def growth_of(expression: Any, variables: Set[Symbol]) -> float | None:
    """The power p of a bound ``c (1 + |x|)^p`` on a formula's size, by rules on the expression.

    Zero where the formula is bounded; infinity where the bound is ``exp(c (1 + |x|))``, which has all Gaussian moments
    too; None where the rules tell no bound.

    Parameters
    ----------
    expression : Expr
        In terms of the functions that generated code knows.
    variables : set of Symbol
        The x; all other symbols are constants.
    """
    if not expression.free_symbols & variables:
        return 0.0
    if expression in variables:
        return 1.0
    if isinstance(expression, (Sign, Step, Sigmoid, Softmax, tanh, sin, cos)):
        return 0.0
    if isinstance(expression, Pow):
        return _growth_of_power(*expression.args, variables)
    if isinstance(expression, exp) and _with_assumptions(expression.args[0]).is_nonpositive:
        return 0.0
    if not isinstance(expression, (Add, Mul, Modulus, Relu, Softplus, exp, cosh, sinh, log)):
        return None
    powers = [growth_of(one, variables) for one in expression.args]
    known = [power for power in powers if power is not None]
    if len(known) < len(powers):
        return None
    if isinstance(expression, (exp, cosh, sinh)):
        return inf if known[0] <= 1 else None
    if isinstance(expression, log):  # log(1 + x) <= x, and of an exponential it is a line
        return min(known[0], 1.0) if _has_positive_bound(expression.args[0]) else None
    return sum(known) if isinstance(expression, Mul) else max(known)


def _growth_of_power(base: Any, power: Any, variables: Set[Symbol]) -> float | None:
    """As `growth_of`, of a power of a formula."""
    if not power.is_number or not power.is_real:
        return None
    if power.is_negative:
        return 0.0 if _has_positive_bound(base) else None
    below = growth_of(base, variables)
    return None if below is None else below * float(power)


def _has_positive_bound(expression: Any) -> bool:
    """Whether an expression is a positive number and what is nowhere negative."""
    number, rest = expression.as_coeff_Add()
    return bool(number.is_positive and _with_assumptions(rest).is_nonnegative)


def _present(expressions: Sequence[Expr], variables: Sequence[Symbol]) -> list[Symbol]:
    held = set().union(*(e.free_symbols for e in expressions))
    return [symbol for symbol in variables if symbol in held]


def _named(variables: Sequence[Symbol], point: Array) -> dict[Symbol, float]:
    return {symbol: float(x) for symbol, x in zip(variables, point, strict=True)}


def _compiled(expressions: Sequence[Expr], variables: Sequence[Symbol]) -> Callable[[Array], Array]:
    """The expressions as a function of points (variables, N), with values (expressions, N)."""
    function = lambdify(list(variables), list(expressions), [NUMPY_FUNCTIONS, "numpy"], cse=True)

    def evaluate(points: Array) -> Array:
        try:
            with np.errstate(all="ignore"):
                rows = [np.broadcast_to(np.asarray(row), points.shape[1]) for row in function(*points)]
                return np.stack([np.where(np.imag(row) == 0, np.real(row), np.nan) for row in rows]).astype(float)
        except (ArithmeticError, TypeError, ValueError):  # a number beyond double precision, or none
            return np.full((len(expressions), points.shape[1]), np.nan)

    return evaluate


def _ordinary_points(count: int) -> Iterable[Array]:
    """The origin, points with one coordinate zero, with two alike, and points in general position."""
    yield np.zeros((count, 1))
    rng = np.random.default_rng(3)
    some = rng.uniform(-_SIZE, _SIZE, (count, count)).round(2)
    np.fill_diagonal(some, 0.0)
    yield some
    yield rng.uniform(-_SIZE, _SIZE, (count, 64)).round(2)


def _delicate(expressions: Sequence[Expr]) -> list[Expr]:
    """Denominators and arguments of logarithms and of broken powers that are not known to be positive."""
    found: dict[Expr, None] = {}
    for expression in expressions:
        for node in preorder_traversal(expression):
            base = None
            if isinstance(node, Pow) and (not node.exp.is_Integer or node.exp.is_negative):
                base = node.base
            elif isinstance(node, log):
                base = node.args[0]
            if base is not None and not _with_assumptions(base).is_positive:
                found[base] = None
    return list(found)


def _with_assumptions(expression: Any) -> Any:
    """The expression in SymPy's own functions, whose signs it knows."""
    if not expression.args:
        return expression
    args = [_with_assumptions(a) for a in expression.args]
    x = args[0]
    match expression:
        case Modulus():
            return Abs(x)
        case Relu():
            return Max(0, x)
        case Sigmoid():
            return 1 / (1 + exp(-x))
        case Softplus():
            return log(1 + exp(x))
        case Softmax():
            return 1 / Add(1, *map(exp, args))
        case Sign():
            return sign(x)
        case Step():
            return Heaviside(x)
    return expression.func(*args)


def _zeros(base: Expr, variables: Sequence[Symbol]) -> Array:
    """Points (variables, N) where a function vanishes, by Newton steps along its slope."""
    evaluate = _compiled([base, *(base.diff(symbol) for symbol in variables)], variables)
    rng = np.random.default_rng(5)
    points = rng.uniform(-_SIZE, _SIZE, (len(variables), _SEARCHES))
    points[:, _SEARCHES // 2 :] *= np.logspace(0, 2.5, _SEARCHES - _SEARCHES // 2)
    scale = np.abs(evaluate(points)[0])
    for _ in range(_STEPS):
        value, *slope = evaluate(points)
        slope = np.stack(slope)
        with np.errstate(all="ignore"):
            square = (slope**2).sum(axis=0)
            step = np.where(square > 0, value / square, 0.0) * slope
        points = np.where(np.isfinite(step) & (np.abs(points) < 1e8), points - step, points)
    rounded = points.round(9)
    points = np.where(np.abs(evaluate(rounded)[0]) <= np.abs(evaluate(points)[0]), rounded, points)
    close = np.abs(evaluate(points)[0]) <= _ZERO * np.fmax(scale, 1.0)
    return points[:, close & (np.abs(points).max(axis=0) <= _FARTHEST)]


def _is_singular(value: Callable[[Array], Array], points: Array) -> NDArray[np.bool_]:
    """Which points are poles, or have points beside them where a value is not finite."""
    count, total = points.shape
    if total == 0:
        return np.zeros(0, dtype=bool)
    singular: NDArray[np.bool_] = np.asarray(~np.isfinite(value(points)).all(axis=0))
    rng = np.random.default_rng(9)
    for direction in [*rng.normal(size=(4, count)), *np.eye(count)[:8]]:
        for side in (-1.0, 1.0):
            far, near, nearest = (value(points + side * distance * direction[:, None]) for distance in _NEAR)
            singular |= ~(np.isfinite(far) & np.isfinite(near) & np.isfinite(nearest)).all(axis=0)
            with np.errstate(all="ignore"):  # not finite, as just counted
                growing = (np.abs(nearest) > np.abs(near)) & (np.abs(near) > np.abs(far))
                steady = np.abs(nearest - near) > 0.3 * np.abs(near - far)
                large = np.abs(nearest - near) > 1e-4 * (1.0 + np.abs(far))
            singular |= (growing & steady & large).any(axis=0)
    return singular
