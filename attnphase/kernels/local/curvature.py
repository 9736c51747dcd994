"""Entry point for the theory's stability: how the residuals of samples answer to their centres, squared and summed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.kernels.local.values import Nodes

from .compiled import compiled, entry
from .layouts import INTEGER, NODES, array
from .linear_algebra import SIZE
from .local_problem import COLUMNS, LENGTH, loss_derivatives, teacher_target
from .search import empty_target

__all__ = ["squares_at"]


@compiled
def eliminate(matrix: Array, right: Array) -> None:
    """Put ``matrix^-1 right`` in place of ``right``, by elimination with the largest pivots; both are overwritten."""
    for c in range(SIZE):
        pivot = c
        for i in range(c + 1, SIZE):
            if abs(matrix[i, c]) > abs(matrix[pivot, c]):
                pivot = i
        for j in range(SIZE):
            matrix[c, j], matrix[pivot, j] = matrix[pivot, j], matrix[c, j]
            right[c, j], right[pivot, j] = right[pivot, j], right[c, j]
        for i in range(SIZE):
            if i == c:
                continue
            share = matrix[i, c] / matrix[c, c]
            for j in range(SIZE):
                matrix[i, j] -= share * matrix[c, j]
                right[i, j] -= share * right[c, j]
    for c in range(SIZE):
        for j in range(SIZE):
            right[c, j] /= matrix[c, c]


@entry(NODES, array(1), array(1, INTEGER), array(7), array(4))
def squares_at(nodes: Nodes, weights: Array, replicates: NDArray[np.int64], squares: Array, slopes: Array) -> None:
    """Add weighted squares of ``dg/domega`` of nodes, whose centres are proximal points, to their replicates' sums.

    ``dg/domega = -(I + H V)^-1 H`` with the Hessian H of the loss, of one with kinks what it is beside them. In
    ``squares`` (S, L, r, r, L, r, r) both indices of ``g_k`` stand before those of ``omega_l``. To ``slopes``
    (S, L, r, r) go the weighted ``-dg_k/domega_k``.
    """
    fields, teacher_fields, roots, mixing, parameters, variance = nodes
    target, gradient, contracted = empty_target(), np.empty((LENGTH, COLUMNS)), np.empty(SIZE)
    response, factor, V = np.empty((SIZE, SIZE)), np.empty((SIZE, SIZE)), np.zeros((LENGTH, COLUMNS, COLUMNS))
    for a in range(LENGTH):
        for i in range(COLUMNS):
            for j in range(COLUMNS):
                for c in range(COLUMNS):
                    V[a, i, j] += roots[a, i, c] * roots[a, j, c]
    for sample in range(fields.shape[0]):
        teacher_target(teacher_fields[sample], mixing, parameters, target)
        loss_derivatives(fields[sample], target, variance, parameters, gradient, response, contracted)
        for i in range(SIZE):
            for a in range(LENGTH):
                for j in range(COLUMNS):
                    total = 1.0 if i == a * COLUMNS + j else 0.0
                    for c in range(COLUMNS):
                        total += response[i, a * COLUMNS + c] * V[a, c, j]
                    factor[i, a * COLUMNS + j] = total
        eliminate(factor, response)
        weight, replicate = weights[sample], replicates[sample]
        for k in range(LENGTH):
            for i in range(COLUMNS):
                for j in range(COLUMNS):
                    slopes[replicate, k, i, j] += weight * response[k * COLUMNS + i, k * COLUMNS + j]
            for l in range(LENGTH):
                for i in range(COLUMNS):
                    for a in range(COLUMNS):
                        for j in range(COLUMNS):
                            left = weight * response[k * COLUMNS + i, l * COLUMNS + j]
                            for b in range(COLUMNS):
                                product = left * response[k * COLUMNS + a, l * COLUMNS + b]
                                squares[replicate, k, i, a, l, j, b] += product
