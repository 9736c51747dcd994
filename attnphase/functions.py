"""Functions for losses in Python, of symbols and, entry by entry, of arrays of symbols.

A loss may be a function of arrays of SymPy symbols.  Sums, products, ``@``, ``.T``, ``.sum()``, ``np.tril`` and loops
do to them what they do to numbers; instead of ``np.exp``, ``max`` and the like take these.

Type checkers see arrays of symbols as ``NDArray[Any]``, a symbol as ``float``, and the result of a loss as ``Any``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

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

_X = TypeVar("_X", bound="NDArray[Any] | sympy.Expr | float")
_Axes = NDArray[Any] | Sequence[Any]


def abs(x: _X) -> _X:
    """The absolute value."""
    return _entries("abs", x)


def cos(x: _X) -> _X:
    """The cosine."""
    return _entries("cos", x)


def cosh(x: _X) -> _X:
    """The hyperbolic cosine."""
    return _entries("cosh", x)


def exp(x: _X) -> _X:
    """The exponential."""
    return _entries("exp", x)


def log(x: _X) -> _X:
    """The natural logarithm."""
    return _entries("log", x)


def relu(x: _X) -> _X:
    """``max(0, x)``."""
    return _entries("relu", x)


def sigmoid(x: _X) -> _X:
    """``1 / (1 + exp(-x))``."""
    return _entries("sigmoid", x)


def sign(x: _X) -> _X:
    """1, 0 or -1."""
    return _entries("sign", x)


def sin(x: _X) -> _X:
    """The sine."""
    return _entries("sin", x)


def sinh(x: _X) -> _X:
    """The hyperbolic sine."""
    return _entries("sinh", x)


def softplus(x: _X) -> _X:
    """``log(1 + exp(x))``."""
    return _entries("softplus", x)


def sqrt(x: _X) -> _X:
    """The square root."""
    return _entries("sqrt", x)


def tanh(x: _X) -> _X:
    """The hyperbolic tangent."""
    return _entries("tanh", x)


@overload
def max(a: _Axes) -> float: ...
@overload
def max(a: Any, *others: Any) -> Any: ...
def max(a: Any, *others: Any) -> Any:
    """The largest of several; of one array, its largest entry."""
    return _extreme("max", a, others)


@overload
def min(a: _Axes) -> float: ...
@overload
def min(a: Any, *others: Any) -> Any: ...
def min(a: Any, *others: Any) -> Any:
    """The smallest of several; of one array, its smallest entry."""
    return _extreme("min", a, others)


def softmax(x: _Axes, *, causal: bool = False) -> NDArray[Any]:
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


def hardmax(x: _Axes) -> NDArray[Any]:
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


def argmax(x: _Axes) -> float:
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


def __dir__() -> list[str]:
    return __all__
