"""The two passes over the tokens of one run, in machine code: every token is read once, whatever the number of columns.

BLAS has products with one column that run at the speed of the memory, and with many; with two or three it takes several
times as long.  Two columns go along together, for which a token is read once from the nearest cache too.  Sums are
reordered, so that they fill vector registers; what is not finite stays so.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from .compiled import side_by_side

__all__ = ["token_fields_32", "token_fields_64", "token_slopes_32", "token_slopes_64"]


@side_by_side
def fields(tokens: NDArray[Any], weights: NDArray[Any], products: NDArray[Any]) -> None:
    """Tokens (N, d) times the transpose of weights (r, d), into products (N, r)."""
    count, dimension = tokens.shape
    whole, paired, zero = count - count % 4, len(weights) - len(weights) % 2, products.dtype.type(0)
    for i in range(0, whole, 4):
        for c in range(0, paired, 2):
            first = second = third = fourth = fifth = sixth = seventh = eighth = zero
            for j in range(dimension):
                left, right = weights[c, j], weights[c + 1, j]
                first += tokens[i, j] * left
                second += tokens[i + 1, j] * left
                third += tokens[i + 2, j] * left
                fourth += tokens[i + 3, j] * left
                fifth += tokens[i, j] * right
                sixth += tokens[i + 1, j] * right
                seventh += tokens[i + 2, j] * right
                eighth += tokens[i + 3, j] * right
            products[i, c], products[i + 1, c], products[i + 2, c], products[i + 3, c] = first, second, third, fourth
            products[i, c + 1], products[i + 1, c + 1] = fifth, sixth
            products[i + 2, c + 1], products[i + 3, c + 1] = seventh, eighth
        for c in range(paired, len(weights)):
            first = second = third = fourth = zero
            for j in range(dimension):
                first += tokens[i, j] * weights[c, j]
                second += tokens[i + 1, j] * weights[c, j]
                third += tokens[i + 2, j] * weights[c, j]
                fourth += tokens[i + 3, j] * weights[c, j]
            products[i, c], products[i + 1, c], products[i + 2, c], products[i + 3, c] = first, second, third, fourth
    for i in range(whole, count):
        for c in range(len(weights)):
            first = zero
            for j in range(dimension):
                first += tokens[i, j] * weights[c, j]
            products[i, c] = first


@side_by_side
def slopes(tokens: NDArray[Any], columns: NDArray[Any], sums: NDArray[Any]) -> None:
    """The transpose of columns (N, r) times tokens (N, d), added to sums (r, d)."""
    count, dimension = tokens.shape
    whole, paired = count - count % 4, len(sums) - len(sums) % 2
    for i in range(0, whole, 4):
        for c in range(0, paired, 2):
            first, second, third, fourth = columns[i, c], columns[i + 1, c], columns[i + 2, c], columns[i + 3, c]
            fifth, sixth = columns[i, c + 1], columns[i + 1, c + 1]
            seventh, eighth = columns[i + 2, c + 1], columns[i + 3, c + 1]
            for j in range(dimension):
                pair = first * tokens[i, j] + second * tokens[i + 1, j]
                sums[c, j] += pair + third * tokens[i + 2, j] + fourth * tokens[i + 3, j]
                pair = fifth * tokens[i, j] + sixth * tokens[i + 1, j]
                sums[c + 1, j] += pair + seventh * tokens[i + 2, j] + eighth * tokens[i + 3, j]
        for c in range(paired, len(sums)):
            first, second, third, fourth = columns[i, c], columns[i + 1, c], columns[i + 2, c], columns[i + 3, c]
            for j in range(dimension):
                pair = first * tokens[i, j] + second * tokens[i + 1, j]
                sums[c, j] += pair + third * tokens[i + 2, j] + fourth * tokens[i + 3, j]
    for i in range(whole, count):
        for c in range(len(sums)):
            for j in range(dimension):
                sums[c, j] += columns[i, c] * tokens[i, j]


def token_fields_64(tokens: NDArray[Any], weights: NDArray[Any], products: NDArray[Any]) -> None:
    """`fields`, as Python calls it."""
    fields(tokens, weights, products)


def token_slopes_64(tokens: NDArray[Any], columns: NDArray[Any], sums: NDArray[Any]) -> None:
    """`slopes`, as Python calls it."""
    slopes(tokens, columns, sums)


token_fields_32, token_slopes_32 = token_fields_64, token_slopes_64
