"""Functions for losses in Python, of symbols and, entry by entry, of arrays of symbols.

A loss may be a function of arrays of SymPy symbols.  Sums, products, ``@``, ``.T``, ``.sum()``, ``np.tril`` and loops
do to them what they do to numbers; instead of ``np.exp``, ``max`` and the like take these.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from attnphase.errors import ProblemError
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    import sympy

    from derivations.models import formula_arrays, formulas

__all__ = [
    "abs",
    "argmax",
    "cos",
    "cosh",
    "exp",
    "hardmax",
    "log",
    "max",
    "min",
    "relu",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "softmax",
    "softplus",
    "sqrt",
    "tanh",
]


def abs(x: Any) -> Any:
    """The absolute value."""
    return _entries("abs", x)


def cos(x: Any) -> Any:
    """The cosine."""
    return _entries("cos", x)


def cosh(x: Any) -> Any:
    """The hyperbolic cosine."""
    return _entries("cosh", x)


def exp(x: Any) -> Any:
    """The exponential."""
    return _entries("exp", x)


def log(x: Any) -> Any:
    """The natural logarithm."""
    return _entries("log", x)


def relu(x: Any) -> Any:
    """``max(0, x)``."""
    return _entries("relu", x)


def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``."""
    return _entries("sigmoid", x)


def sign(x: Any) -> Any:
    """1, 0 or -1."""
    return _entries("sign", x)


def sin(x: Any) -> Any:
    """The sine."""
    return _entries("sin", x)


def sinh(x: Any) -> Any:
    """The hyperbolic sine."""
    return _entries("sinh", x)


def softplus(x: Any) -> Any:
    """``log(1 + exp(x))``."""
    return _entries("softplus", x)


def sqrt(x: Any) -> Any:
    """The square root."""
    return _entries("sqrt", x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return _entries("tanh", x)


def max(a: Any, *others: Any) -> Any:
    """The largest of several; of one array, its largest entry."""
    return _extreme("max", a, others)


def min(a: Any, *others: Any) -> Any:
    """The smallest of several; of one array, its smallest entry."""
    return _extreme("min", a, others)


def softmax(x: Any, *, causal: bool = False) -> Any:
    """Return exponentials divided by their sum over the last axis.

    Parameters
    ----------
    x
        Array with one or two axes.
    causal
        Whether row a has its first a + 1 entries alone, the others being zero.

    Raises
    ------
    ProblemError
        It is no such array; or a matrix that is no square, and causal.
    """
    logits = _axes("softmax", x)
    if causal and (logits.ndim != 2 or logits.shape[0] != logits.shape[1]):
        raise ProblemError("x", f"functions.softmax is causal, but its array has the shape {logits.shape}.")
    return formula_arrays.softmax(formulas.Symbolic(), logits, causal)


def hardmax(x: Any) -> Any:
    """One at the largest entry of the last axis, else zero: ``hardmax(k[:, 0]) @ k[:, 1]`` is of one token.

    Parameters
    ----------
    x
        Array with one or two axes.

    Raises
    ------
    ProblemError
        It is no such array.
    """
    return formula_arrays.hardmax(formulas.Symbolic(), _axes("hardmax", x))


def argmax(x: Any) -> Any:
    """Return the number of the largest entry, from 0.

    Parameters
    ----------
    x
        Array with one or two axes, whose entries are counted row by row.

    Raises
    ------
    ProblemError
        It is no such array.
    """
    return formula_arrays.argmax(formulas.Symbolic(), _axes("argmax", x))


def _axes(name: str, x: Any) -> Any:
    """An array with one or two axes."""
    made = np.asarray(_symbolic(name, x), dtype=object)
    if made.ndim not in (1, 2) or not made.size:
        raise ProblemError("x", f"functions.{name} takes an array with one or two axes.")
    return made


def _entries(name: str, *values: Any) -> Any:
    """A function of numbers, of the entries of arrays."""
    return np.frompyfunc(formulas.FUNCTIONS[name], len(values), 1)(*(_symbolic(name, value) for value in values))


def _extreme(name: str, a: Any, others: tuple[Any, ...]) -> Any:
    """The extreme one of several numbers, entry by entry of arrays; or of the entries of one array."""
    values = (a, *others) if others else np.asarray(_symbolic(name, a), dtype=object).ravel().tolist()
    if not values:
        raise ProblemError("x", f"functions.{name} takes no array without entries.")
    return reduce(lambda one, other: _entries(name, one, other), values)


def _symbolic(name: str, value: Any) -> Any:
    """An array of expressions.

    Raises
    ------
    ProblemError
        It is no array of numbers and symbols.
    """
    convert: Any = np.frompyfunc(lambda entry: sympy.sympify(entry, strict=True), 1, 1)
    try:
        return convert(np.asanyarray(value, dtype=object))  # an array that refuses shapes goes on doing so
    except (TypeError, ValueError, AttributeError) as error:
        raise ProblemError(
            "x", f"functions.{name} takes numbers, symbols and arrays of these, not {value!r}."
        ) from error
