"""What formulas do to arrays of expressions, or of numbers of terms: as NumPy does, in one and two dimensions.

Arrays are NumPy's, of objects; the functions take an algebra, which knows how to add up its entries.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derivations.models.formula_lines import FormulaError, unparsed

__all__ = [
    "ARRAY_FUNCTIONS",
    "argmax",
    "array",
    "check_shapes",
    "elementwise",
    "entry",
    "extreme",
    "hardmax",
    "matmul",
    "softmax",
]

Array = NDArray[Any]


def array(rows: Any) -> Array:
    """Nested sequences as an array of objects."""
    sizes = (len(rows), *((len(rows[0]),) if len(rows) and isinstance(rows[0], (list, tuple)) else ()))
    made = np.empty(sizes, dtype=object)
    for place in np.ndindex(*sizes):
        value = rows
        for index in place:
            value = value[index]
        made[place] = value
    return made


def elementwise(function: Callable[..., Any], node: ast.AST, *values: Any) -> Any:
    """A function of numbers, entry by entry where there are arrays, whose shapes are made the same as NumPy does.

    Raises
    ------
    FormulaError
        The shapes do not go together.
    """
    if not any(isinstance(value, np.ndarray) for value in values):
        return function(*values)
    check_shapes([value.shape for value in values if isinstance(value, np.ndarray)], repr(unparsed(node)))
    try:
        return np.frompyfunc(function, len(values), 1)(*values)
    except FormulaError:
        raise
    except ValueError as error:
        if "broadcast" not in str(error):
            raise
        shapes = " and ".join(_shape(value) for value in values)
        raise FormulaError(f"{unparsed(node)!r} takes {shapes}, which do not go together.") from None


def check_shapes(shapes: Sequence[tuple[int, ...]], what: str) -> None:
    """Refuse a row and a column with one axis fewer or more, of which NumPy makes a matrix: one of them is a slip.

    Raises
    ------
    FormulaError
        The sentence begins with `what` takes them.
    """
    try:
        made = np.broadcast_shapes(*shapes)
    except ValueError:
        return
    if len({*map(len, shapes)}) > 1 and np.prod(made) > max(map(np.prod, shapes)):
        raise FormulaError(
            f"{what} takes arrays of shapes {' and '.join(map(str, shapes))}, of which NumPy makes a matrix of shape"
            f" {made}: index both alike, as in h[:, 0] - k[:, 0], or give both two axes, as in h[:, :1] - k[:, :1].T."
        )


def matmul(algebra: Any, left: Any, right: Any, node: ast.AST) -> Any:
    """``left @ right``.

    Raises
    ------
    FormulaError
        One is a number, or the shapes do not go together.
    """
    if not (isinstance(left, np.ndarray) and isinstance(right, np.ndarray)) or left.shape[-1] != right.shape[0]:
        raise FormulaError(
            f"{unparsed(node)!r} multiplies {_shape(left)} with {_shape(right)}, which do not go together."
        )
    rows = left if left.ndim == 2 else left[None]
    columns = right.T if right.ndim == 2 else right[None]
    made = np.empty((len(rows), len(columns)), dtype=object)
    for a, row in enumerate(rows):
        for b, column in enumerate(columns):
            made[a, b] = algebra.total([algebra.product(x, y) for x, y in zip(row, column, strict=True)])
    made = made if left.ndim == 2 else made[0]
    return made if right.ndim == 2 else made[..., 0]


def softmax(algebra: Any, x: Array, causal: bool = False) -> Array:
    """The softmax over the last axis; if causal, row a has its first a + 1 entries alone, the others being zero."""
    if x.ndim == 1:
        return array(_shares(algebra, x))
    seen = [row[: a + 1] if causal else row for a, row in enumerate(x)]
    return array([[*_shares(algebra, row), *[algebra.number(0)] * (x.shape[1] - len(row))] for row in seen])


def _shares(algebra: Any, row: Any) -> list[Any]:
    return [
        algebra.share([algebra.difference(other, own) for b, other in enumerate(row) if b != a])
        for a, own in enumerate(row)
    ]


def _softmax(algebra: Any, node: ast.Call, x: Any, *, causal: bool = False) -> Array:
    """``softmax(x)``."""
    _check_array(node, x)
    if causal and (x.ndim != 2 or x.shape[0] != x.shape[1]):
        raise FormulaError(f"{unparsed(node)!r} is causal, but takes {_shape(x)} and no square.")
    return softmax(algebra, x, causal)


def hardmax(algebra: Any, x: Array) -> Array:
    """One at the largest entry of the last axis, else zero, by the signs of differences: a softmax without noise."""
    values = [1] * x.shape[-1]
    return array(_highest(algebra, x, values) if x.ndim == 1 else [_highest(algebra, row, values) for row in x])


def _highest(algebra: Any, row: Any, values: Sequence[int]) -> list[Any]:
    """Of each entry its value if it is the largest, else zero."""
    one, half = algebra.number(1), algebra.number(0.5)

    def over(own: Any, other: Any) -> Any:
        return algebra.product(half, algebra.sum(one, algebra.call("sign", algebra.difference(own, other))))

    return [
        reduce(algebra.product, [over(own, other) for b, other in enumerate(row) if b != a], algebra.number(value))
        for a, (own, value) in enumerate(zip(row, values, strict=True))
    ]


def _hardmax(algebra: Any, node: ast.Call, x: Any) -> Array:
    """``hardmax(x)``."""
    return hardmax(algebra, _check_array(node, x))


def argmax(algebra: Any, x: Array) -> Any:
    """The number of the largest entry, from 0."""
    return algebra.total(_highest(algebra, [*x.flat], range(x.size)))


def _argmax(algebra: Any, node: ast.Call, x: Any) -> Any:
    """``argmax(x)``."""
    return argmax(algebra, _check_array(node, x))


def total(algebra: Any, node: ast.Call, x: Any, axis: int | None = None) -> Any:
    """``sum(x)``, of all entries or along an axis."""
    if axis is None:
        return algebra.total([*x.flat]) if isinstance(x, np.ndarray) else x
    _check_array(node, x)
    if not -x.ndim <= axis < x.ndim:
        raise FormulaError(f"{unparsed(node)!r} has the axis {axis}, but takes {_shape(x)}.")
    along = np.moveaxis(x, axis, -1)
    return algebra.total([*along]) if x.ndim == 1 else array([algebra.total([*row]) for row in along])


def mean(algebra: Any, node: ast.Call, x: Any, axis: int | None = None) -> Any:
    """``mean(x)``, of all entries or along an axis."""
    if not isinstance(x, np.ndarray):
        return total(algebra, node, x, axis)
    sums = total(algebra, node, x, axis)
    count = algebra.number(_check_array(node, x).size if axis is None else x.shape[axis])
    return elementwise(lambda one: algebra.quotient(one, count, node), node, sums)


def tril(algebra: Any, node: ast.Call, x: Any) -> Array:
    """``tril(x)``: zero above the diagonal."""
    if _check_array(node, x).ndim != 2:
        raise FormulaError(f"{unparsed(node)!r} takes {_shape(x)}, but tril takes a matrix.")
    return array([[one if b <= a else algebra.number(0) for b, one in enumerate(row)] for a, row in enumerate(x)])


def extreme(name: str) -> Callable[..., Any]:
    """``max(x)`` or ``min(x)`` of all entries, or entry by entry of several."""

    def function(algebra: Any, node: ast.Call, x: Any, *others: Any) -> Any:
        if others:
            return reduce(lambda a, b: elementwise(lambda *pair: algebra.call(name, *pair), node, a, b), others, x)
        return reduce(
            lambda a, b: algebra.call(name, a, b), _check_array(node, x).flat if isinstance(x, np.ndarray) else [x]
        )

    return function


def eye(algebra: Any, node: ast.Call, size: int) -> Array:
    """``eye(L)``: the identity matrix."""
    return array([[algebra.number(int(a == b)) for b in range(size)] for a in range(size)])


ARRAY_FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int | None, tuple[str, ...]]] = {
    "softmax": (_softmax, 1, 1, ("causal",)),
    "sum": (total, 1, 2, ("axis",)),
    "mean": (mean, 1, 2, ("axis",)),
    "tril": (tril, 1, 1, ()),
    "max": (extreme("max"), 1, None, ()),
    "min": (extreme("min"), 1, None, ()),
    "eye": (eye, 1, 1, ()),
    "argmax": (_argmax, 1, 1, ()),
    "hardmax": (_hardmax, 1, 1, ()),
}
"""Functions by name, with the fewest and the most arguments that they take, None of any number, and their keywords."""


def entry(value: Any, index: Any, node: ast.Subscript) -> Any:
    """``value[index]``.

    Raises
    ------
    FormulaError
        There is no such entry.
    """
    if not isinstance(value, np.ndarray):
        raise FormulaError(f"{unparsed(node)!r} has an index, but {unparsed(node.value)!r} is one number.")
    try:
        return value[index]
    except (IndexError, ValueError):
        raise FormulaError(f"{unparsed(node)!r} does not exist: {unparsed(node.value)!r} is {_shape(value)}.") from None


def _check_array(node: ast.Call, value: Any) -> Array:
    if not isinstance(value, np.ndarray):
        raise FormulaError(f"{unparsed(node)!r} takes one number, but {unparsed(node.func)} takes an array.")
    if not value.size:
        raise FormulaError(f"{unparsed(node)!r} takes an array without entries.")
    return value


def _shape(value: Any) -> str:
    """What a message calls a value."""
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else "one number"
