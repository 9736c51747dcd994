"""Whether a formula is finite everywhere, how fast it grows, and whether a loss falls without bound.

SymPy's assumptions settle most denominators and logarithms (``1 + z**2`` of a real z is positive).  What they leave
open is searched for zeros numerically, from all sizes, and these are looked at in many digits.  How fast a loss falls
is looked at along rays.  These are honest probes, no proofs; all points are the same on every call.  Rules on the
expression bound how fast a formula grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import Any

import mpmath
import numpy as np
from mpmath import mpf, workdps
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

from derivations.models.exactly import MPMATH_FUNCTIONS
from derivations.models.functions import NUMPY_FUNCTIONS, Modulus, Relu, Sigmoid, Sign, Softmax, Softplus, Step

__all__ = ["Fall", "fall_of", "growth_of", "singular_point"]

Array = NDArray[np.float64]

_SIZE = 3.0  # of the fields at which values are looked at first
# of fields near which zeros are searched for: numbers in formulas are at most 1e60
_SIZES = 4.0 ** np.arange(-100, 101)
_AT_EACH_SIZE = 2  # searches
_STEPS = 80
_ALMOST = 1e-3  # of a point: how far a zero may still be, that of a high power in double precision
_DIGITS = 200  # squares of the largest and of the smallest numbers differ in 240, of which few formulas have any use
_STUCK = 10  # steps in digits that come no nearer
_ACCURATE = mpf(10) ** -90  # last step, of a point: what is no zero may come as near as its rounding in squares, 1e-100
_TRIED = 16  # zeros of a denominator that are looked at in digits
_NEAR = (mpf(10) ** -3, mpf(10) ** -20, mpf(10) ** -37)  # of a zero's size, at which a pole must show
_STEADY, _SEEN = 0.3, mpf(10) ** -60  # change between the nearer two, over that before: 1 of a logarithm; rounding
_MOST_EXPONENT = 10**4  # numbers with larger ones are as good as that one: an exponential of them has too many bits
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
    delicate = _delicate(expressions)
    if not delicate:
        return None
    exact = _in_digits(expressions, present)
    with workdps(_DIGITS):
        found = [
            point for base, is_real_above in delicate.items() for point in _poles(base, is_real_above, exact, present)
        ]
    return _named(present, min(found, key=lambda point: np.abs(point).max())) if found else None


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


def _delicate(expressions: Sequence[Expr]) -> dict[Expr, bool]:
    """Denominators and arguments of logarithms and of broken powers that are not known to be positive.

    With each of them, whether there is a number where it is positive alone.
    """
    found: dict[Expr, bool] = {}
    for expression in expressions:
        for node in preorder_traversal(expression):
            if isinstance(node, Pow) and (not node.exp.is_Integer or node.exp.is_negative):
                base, is_real_above = node.base, not node.exp.is_Integer
            elif isinstance(node, log):
                base, is_real_above = node.args[0], True
            else:
                continue
            if not _with_assumptions(base).is_positive:
                found[base] = found.get(base, False) or is_real_above
    return found


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


def _poles(base: Expr, is_real_above: bool, exact: _InDigits, variables: Sequence[Symbol]) -> Iterator[Array]:
    """Points where, or beside which, a value in digits is not finite: a function vanishes or is negative there."""
    functions = [base, *(base.diff(symbol) for symbol in variables)]
    value, slope = (_in_digits(part, variables) for part in (functions[:1], functions[1:]))
    for candidate in _candidates(_compiled(functions, variables), is_real_above, len(variables)).T:
        point = [mpf(float(x)) for x in candidate]
        if exact(point) is None:
            yield candidate
            return
        zero = _polished(value, slope, point)
        if zero is None:
            continue
        rounded = np.array([float(x) for x in zero])
        if exact(zero) is None or _is_pole(exact, zero) or exact([mpf(float(x)) for x in rounded]) is None:
            yield rounded
            return


def _candidates(evaluate: Callable[[Array], Array], is_real_above: bool, count: int) -> Array:
    """Points (variables, N) where a function seems to vanish, by Newton steps from all sizes, and some where it has to.

    No unit changes a step, and whether a function vanishes is asked in digits afterwards.
    """
    rng = np.random.default_rng(5)
    points = rng.uniform(-_SIZE, _SIZE, (count, _AT_EACH_SIZE * len(_SIZES))) * np.repeat(_SIZES, _AT_EACH_SIZE)
    start = evaluate(points)[0]
    wrong = points[:, start <= 0 if is_real_above else start == 0]
    for _ in range(_STEPS):
        value, *slope = evaluate(points)
        slope = np.stack(slope)
        with np.errstate(all="ignore"):
            largest = np.abs(slope).max(axis=0)  # whose square may be no number
            along = slope / largest
            step = np.where(largest > 0, value / largest, 0.0) * (along / (along**2).sum(axis=0))
        moves = np.isfinite(step).all(axis=0)
        if not (moves & (step != 0).any(axis=0)).any():
            break
        points = np.where(moves, points - step, points)
    value, *slope = evaluate(points)
    with np.errstate(all="ignore"):
        ends = points[:, np.abs(value) <= _ALMOST * np.abs(points * np.stack(slope)).sum(axis=0)]
    found = np.concatenate([wrong, ends], axis=1)
    sizes = np.abs(found).max(axis=0, initial=0.0)
    found, sizes = found[:, (sizes > 0) & (sizes < np.inf)], sizes[(sizes > 0) & (sizes < np.inf)]
    # one of those that are the same to some digits, and some of all sizes
    _, first = np.unique(np.stack([*found / sizes, np.log2(sizes)]).round(6), axis=1, return_index=True)
    first = first[np.argsort(sizes[first], kind="stable")]
    return found[:, first[np.arange(_TRIED) * len(first) // _TRIED]] if len(first) > _TRIED else found[:, first]


_InDigits = Callable[[Sequence[Any]], "list[Any] | None"]


def _in_digits(expressions: Sequence[Expr], variables: Sequence[Symbol]) -> _InDigits:
    """The expressions as a function of a point in digits; None where one of them is no finite real number."""
    function = lambdify(list(variables), list(expressions), [_DIGITS_FUNCTIONS, "mpmath"], cse=True)

    def evaluate(point: Sequence[Any]) -> list[Any] | None:
        try:
            values = [mpmath.mpmathify(value) for value in function(*point)]
        except (ZeroDivisionError, ValueError):  # of a power, of a logarithm
            return None
        return values if all(isinstance(value, mpf) and mpmath.isfinite(value) for value in values) else None

    return evaluate


def _polished(value: _InDigits, slope: _InDigits, point: Sequence[Any]) -> Sequence[Any] | None:
    """The zero of a function beside a point, by Newton steps in digits; None if it has none there."""
    numbers, least, since, before = value(point), mpf("inf"), 0, mpf(0)
    while numbers is not None and numbers[0] and since < _STUCK:
        slopes = slope(point)
        square = sum(one**2 for one in slopes or ())
        if not square:
            return None
        step = [numbers[0] / square * one for one in slopes or ()]
        length = max(map(abs, step))
        if length <= _ACCURATE * max(map(abs, point)):
            return point
        # towards a zero of power m steps are (m - 1)/m of those before
        power = int(mpmath.nint(1 / (1 - length / before))) if 0 < length < 0.95 * before else 1
        ways = [[x - many * by for x, by in zip(point, step, strict=True)] for many in {1, power}]
        ends = [(abs(there[0]), way, there) for way in ways if (there := value(way)) is not None]
        if not ends:
            return None
        size, point, numbers = min(ends, key=lambda end: end[0])
        since = since + 1 if size >= least else 0
        least, before = min(size, least), length if power == 1 else mpf(0)
    return point if numbers is not None and not numbers[0] else None


def _is_pole(exact: _InDigits, zero: Sequence[Any]) -> bool:
    """Whether values beside a point are not finite, or change by as much or more the nearer they are."""
    size, rng = max(map(abs, zero)), np.random.default_rng(9)
    for direction in rng.normal(size=(2, len(zero))):
        for side in (-1, 1):
            beside = [
                [x + side * share * size * float(d) for x, d in zip(zero, direction, strict=True)] for share in _NEAR
            ]
            rows = [exact(point) for point in beside]
            if any(row is None for row in rows):
                return True
            for far, near, nearest in zip(*(row or [] for row in rows), strict=True):
                change = abs(nearest - near)
                if change > _STEADY * abs(near - far) and change > _SEEN * max(abs(far), abs(nearest)):
                    return True
    return False


def _exponential(x: Any) -> Any:
    """Of a number of any size, since one of another exponential may have more bits than there are."""
    return mpmath.exp(max(-_MOST_EXPONENT, min(x, _MOST_EXPONENT)))


_DIGITS_FUNCTIONS: dict[str, Any] = MPMATH_FUNCTIONS | {
    "exp": _exponential,
    "cosh": lambda x: (_exponential(x) + _exponential(-x)) / 2,
    "sinh": lambda x: (_exponential(x) - _exponential(-x)) / 2,
    "Sigmoid": lambda x: 1 / (1 + _exponential(-x)),
    "Softmax": lambda *x: 1 / (1 + mpmath.fsum(map(_exponential, x))),
    "Softplus": lambda x: max(x, mpf(0)) + mpmath.log1p(_exponential(-abs(x))),
}
