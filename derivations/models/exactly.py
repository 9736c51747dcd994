"""Expressions as functions in double precision and in the digits that mpmath works in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray
from sympy import default_sort_key, lambdify

from derivations.algebra.digits import Exact, exact
from derivations.models.functions import KINKED, NUMPY_FUNCTIONS

__all__ = ["MPMATH_FUNCTIONS", "Printed"]

Array = NDArray[np.float64]

MPMATH_FUNCTIONS: dict[str, Any] = {
    "Modulus": abs,
    "Relu": lambda x: max(x, mpmath.mpf(0)),
    "Step": lambda x: mpmath.mpf(1 if x > 0 else 0),
    "Sign": mpmath.sign,
    "Sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "Softmax": lambda *x: 1 / (1 + mpmath.fsum(map(mpmath.exp, x))),
    "Softplus": lambda x: mpmath.log(1 + mpmath.exp(x)),
}
"""As `derivations.models.functions.NUMPY_FUNCTIONS`."""


@dataclass(frozen=True, eq=False)
class Printed:
    """Expressions of some symbols, compiled.

    Attributes
    ----------
    double, kinks : callable
        Of points (N, F): the values (N, M), and the arguments (N, K) of all functions with kinks or jumps.
    exact : callable
        The values as numbers of mpmath.
    has_kinks : bool
    """

    double: Callable[[Array], Array]
    exact: Callable[[Array], Exact]
    kinks: Callable[[Array], Array]
    has_kinks: bool

    @classmethod
    def of(cls, entries: Sequence[Any], symbols: Sequence[Any]) -> Printed:
        """Those of expressions in functions of `derivations.models.functions`."""
        own = {*symbols}
        nodes = {node for entry in entries for node in entry.atoms(*KINKED) if node.free_symbols & own}
        arguments = sorted({node.args[0] for node in nodes}, key=default_sort_key)
        in_digits = lambdify(symbols, list(entries), [MPMATH_FUNCTIONS, "mpmath"], cse=True)

        def values(points: Array) -> Exact:
            found = np.empty((len(points), len(entries)), dtype=object)
            for row, point in zip(found, exact(points), strict=True):
                row[:] = [mpmath.mpf(value) for value in in_digits(*point)]
            return found

        return cls(_in_double(entries, symbols), values, _in_double(arguments, symbols), bool(arguments))


def _in_double(expressions: Sequence[Any], symbols: Sequence[Any]) -> Callable[[Array], Array]:
    compiled = lambdify(symbols, list(expressions), [NUMPY_FUNCTIONS, "numpy"], cse=True)

    def values(points: Array) -> Array:
        found = np.empty((len(points), len(expressions)))
        for column, value in zip(found.T, compiled(*points.T), strict=True):
            column[:] = value
        return found

    return values
