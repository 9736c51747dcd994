"""A user's regulariser, given as a formula of one weight: kinks, convexity, and source of its derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from mpmath import workdps
from scipy.optimize import brentq
from sympy import Expr, Symbol, lambdify, solveset
from sympy.sets import FiniteSet, Reals

from derivations.algebra.digits import same, values_in_digits
from derivations.models.bounds import singular_point
from derivations.models.exactly import Printed
from derivations.models.formulas import FormulaError, parse_formula, shortened
from derivations.models.functions import KINKED, NUMPY_FUNCTIONS, Sign, Step
from derivations.models.parity import unchanged_by_rule

__all__ = ["ConvexPenalty", "RegularizerError"]

_W = Symbol("w", real=True)
_LEAST = 1e-60  # weight at which something may happen: numbers in formulas are at most 1e60
_SCALES = np.logspace(-60, 60, 241)  # on which it is asked whether it is even
_SIZES = 2.0 ** (np.arange(-200 * 32, 200 * 32 + 1) / 32)  # where convexity is looked at and roots are: no unit counts
_SAMPLES = np.concatenate([-_SIZES[::-1], _SIZES])


class RegularizerError(ValueError):
    """A formula that is no convex regulariser; the sentence says why."""


@dataclass(frozen=True)
class ConvexPenalty:
    """A convex function of one weight.

    Attributes
    ----------
    expression : Expr
        Of the symbol ``w``.
    """

    expression: Expr

    @classmethod
    def of(cls, text: str) -> ConvexPenalty:
        """Read and check a formula.

        Raises
        ------
        RegularizerError
            It cannot be read, is not finite, has an undefined derivative, or is not convex; says where.
        """
        try:
            expression: Any = parse_formula(text, {"w": _W})
        except FormulaError as error:
            raise RegularizerError(f"{shortened(text)!r} cannot be used: {error}") from None
        penalty = cls(expression)
        penalty._check(shortened(text))
        return penalty

    @property
    def kinks(self) -> tuple[tuple[float, float, float], ...]:
        """Where the slope jumps: (weight, slope on the left, slope on the right)."""
        slope = self.numeric[1]
        found = []
        for place in sorted(self._places):
            step = 1e-9 * (abs(place) or _LEAST)
            near, far = (slope(place + size * step * np.array([-1.0, 1.0])) for size in (1, 2))
            left, right = (float(side) for side in 2 * near - far)
            # a slope that is continuous but steep changes less between nearer points
            nearest = slope(place + step / 16 * np.array([-1.0, 1.0]))
            jumps = nearest[1] - nearest[0] > (near[1] - near[0]) / 2
            if jumps and right - left > 1e-6 * (abs(left) + abs(right)):
                found.append((place, left, right))
        return tuple(found)

    @property
    def _places(self) -> set[float]:
        """Where arguments of functions with kinks vanish."""
        return set[float]().union(*(_roots(node.args[0]) for node in self.expression.atoms(*KINKED)))

    @cached_property
    def numeric(self) -> tuple[Any, Any, Any]:
        """The penalty, its slope and its curvature as NumPy functions of an array, almost everywhere."""
        functions = []
        expression: Any = self.expression
        for _ in range(3):
            functions.append(_vectorised(lambdify(_W, expression, [NUMPY_FUNCTIONS, "numpy"])))
            expression = expression.diff(_W)
        return tuple(functions)

    @property
    def even(self) -> bool:
        """Whether the sign of the weight does not matter: by a rule, or in digits at many sizes and beside kinks."""
        if unchanged_by_rule([self.expression], {_W: (-1, _W)}):
            return True
        value = self.numeric[0]
        arguments = [node.args[0] for node in self.expression.atoms(*KINKED)]
        kinks = sorted({0.0, *(abs(place) for one in arguments for place in _roots(one))})
        between = [(one + other) / 2 for one, other in pairwise(kinks)]
        w = np.array([*_SCALES, *between, 2 * kinks[-1] or 1.0])
        with np.errstate(all="ignore"):
            w = w[np.isfinite(value(w)) & np.isfinite(value(-w))]
        printed = Printed.of([self.expression], [_W])
        values, needed = values_in_digits(lambda: printed.exact(w[:, None]))
        with workdps(needed):
            images = printed.exact(-w[:, None])
        # a pair of points is compared by what it varies by beside its neighbours
        scales = np.searchsorted(_SCALES, w).clip(1, len(_SCALES) - 1)
        return all(same(values[own], images[own], digits=needed) for own in (scales == n for n in np.unique(scales)))

    def _check(self, text: str) -> None:
        if not self.expression.has(_W):
            raise RegularizerError(f"{text!r} does not depend on w.")
        if self.expression.has(Step, Sign):
            raise RegularizerError(f"{text!r} jumps, and a convex function does not.")
        try:
            value, slope, curvature = (f(_SAMPLES) for f in self.numeric)
        except (OverflowError, TypeError):  # whole numbers that no array holds
            raise RegularizerError(f"{text!r} holds too large numbers.") from None
        for name, numbers in (("it", value), ("its slope", slope), ("its second derivative", curvature)):
            bad = ~np.isfinite(numbers) & (np.abs(_SAMPLES) < 100) & (np.abs(_SAMPLES) > 1e-6)
            if bad.any():
                raise RegularizerError(f"{name} is not finite at w = {_SAMPLES[bad][0]:.3g}.")
        pole = singular_point([self.expression], [_W])
        if pole is not None:
            raise RegularizerError(f"it is not finite at w = {pole[_W]:.3g}.")
        finite = np.isfinite(slope) & np.isfinite(curvature)
        w, slope, curvature = _SAMPLES[finite], slope[finite], curvature[finite]
        drop = np.diff(slope)
        size = np.maximum(np.abs(slope[1:]), np.abs(slope[:-1]))
        places = np.array(sorted(self._places))
        holds = np.searchsorted(places, w[1:], side="right") > np.searchsorted(places, w[:-1])
        # slopes that cancel may fall by rounding, which bends nothing
        concave = (drop < -1e-9 * size) & (holds | (np.minimum(curvature[1:], curvature[:-1]) < 0))
        if concave.any():
            where = w[:-1][concave]
            place = float(where[np.abs(where).argmin()])
            raise RegularizerError(f"it is not convex: its slope falls at w = {place:.3g}.")


def _roots(argument: Any) -> set[float]:
    """Where a function of w changes sign or touches zero."""
    if not argument.has(*KINKED):
        roots: Any = solveset(argument, _W, Reals)
        if isinstance(roots, FiniteSet):
            places: Any = list(roots)
            return {float(root) for root in places}
    function = _vectorised(lambdify(_W, argument, [NUMPY_FUNCTIONS, "numpy"]))
    inner = [_roots(node.args[0]) for node in argument.atoms(*KINKED)]
    ordered = np.unique([*_SAMPLES, 0.0, *set[float]().union(*inner)])
    values = function(ordered)
    found = set(ordered[values == 0].tolist())
    for i in np.flatnonzero(np.sign(values[1:]) * np.sign(values[:-1]) < 0):
        ends = float(ordered[i]), float(ordered[i + 1])
        root: Any = brentq(lambda w: float(function(w)), *ends, xtol=min(map(abs, ends)) * 1e-15 or 1e-75)
        rounded = float(f"{root:.12g}")
        found.add(rounded if float(function(rounded)) == 0 else root)
    return found


def _vectorised(function: Any) -> Any:
    def evaluate(w: Any) -> Any:
        with np.errstate(all="ignore"):  # far out a formula may overflow, which its users look for
            return np.broadcast_to(np.asarray(function(w), dtype=float), np.shape(w))

    return evaluate
