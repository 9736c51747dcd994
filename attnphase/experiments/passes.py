"""The two passes over the tokens of one run, in machine code: every token is read once, whatever the number of columns.

BLAS has products with one column that run at the speed of the memory, and with many; with two or three it takes several
times as long.  Sums are reordered, so that they fill vector registers; what is not finite stays so.
"""

from __future__ import annotations

from typing import Any

from numba import float32, float64, njit, void
from numpy.typing import NDArray

__all__ = ["fields", "slopes"]

_SIGNATURES = [void(x[:, ::1], x[:, ::1], x[:, ::1]) for x in (float64, float32)]
_compiled: Any = njit(_SIGNATURES, cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})


@_compiled
def fields(tokens: NDArray[Any], weights: NDArray[Any], products: NDArray[Any]) -> None:
    """Tokens (N, d) times the transpose of weights (r, d), into products (N, r)."""
    count, dimension = tokens.shape
    whole = count - count % 4
    for i in range(0, whole, 4):
        for c in range(len(weights)):
            first = second = third = fourth = products.dtype.type(0)
            for j in range(dimension):
                first += tokens[i, j] * weights[c, j]
                second += tokens[i + 1, j] * weights[c, j]
                third += tokens[i + 2, j] * weights[c, j]
                fourth += tokens[i + 3, j] * weights[c, j]
            products[i, c], products[i + 1, c], products[i + 2, c], products[i + 3, c] = first, second, third, fourth
    for i in range(whole, count):
        for c in range(len(weights)):
            first = products.dtype.type(0)
            for j in range(dimension):
                first += tokens[i, j] * weights[c, j]
            products[i, c] = first


@_compiled
def slopes(tokens: NDArray[Any], columns: NDArray[Any], sums: NDArray[Any]) -> None:
    """The transpose of columns (N, r) times tokens (N, d), added to sums (r, d)."""
    count, dimension = tokens.shape
    whole = count - count % 4
    for i in range(0, whole, 4):
        for c in range(len(sums)):
            first, second, third, fourth = columns[i, c], columns[i + 1, c], columns[i + 2, c], columns[i + 3, c]
            for j in range(dimension):
                pair = first * tokens[i, j] + second * tokens[i + 1, j]
                sums[c, j] += pair + third * tokens[i + 2, j] + fourth * tokens[i + 3, j]
    for i in range(whole, count):
        for c in range(len(sums)):
            for j in range(dimension):
                sums[c, j] += columns[i, c] * tokens[i, j]
