"""Losses of samples at given fields, the centres, and what follows from the losses' derivatives there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array

from .compiled import call, compiled
from .linear_algebra import fill
from .model import Model
from .search import take_in
from .starts import ONE, unsigned
from .values import Nodes

__all__ = ["gains_at", "losses_one_by_one", "slopes_at", "squares_at", "targets_at"]


def targets_at(model: Model, nodes: Nodes, targets: Array) -> None:
    """Teacher's target of every sample, (N, L, L) (or (N, L, t) for a scalar loss)."""
    m = model.numbers[0]
    width, labels = m.length * m.target_columns, m.length * m.label_fields
    for n in range(unsigned(targets.size) // width):
        k, target = nodes.teacher_fields[n * labels :], targets[n * width :]
        call(m.teacher_target_at, (k, nodes.mixing, nodes.parameters, target))


def losses_one_by_one(model: Model, nodes: Nodes, losses: Array, work: Array) -> None:
    """Loss of every sample, without any minimisation."""
    m, w = model.numbers[0], model.places[0]
    for n in range(unsigned(losses.size)):
        take_in(m, w, n, nodes, work)
        given = (work[w.center :], work[w.target :], work[w.variance :], work[w.parameters :])
        losses[n] = call(m.loss_at, given)


def slopes_at(model: Model, nodes: Nodes, losses: Array, residuals: Array, work: Array) -> None:
    """Loss (N,) of every sample, and ``g = -dloss/dh`` (N, L, r)."""
    m, w = model.numbers[0], model.places[0]
    for n in range(unsigned(losses.size)):
        take_in(m, w, n, nodes, work)
        given = (work[w.center :], work[w.target :], work[w.variance :], work[w.parameters :])
        losses[n] = call(m.loss_gradient_at, (*given, work[w.gradient :]))
        for p in range(m.fields):
            residuals[n * m.fields + p] = -work[w.gradient + p]


def gains_at(model: Model, nodes: Nodes, squares: Array, losses: Array, work: Array) -> None:
    """By noise of variance one: the gain of ``g g^T`` (N, L, r, r) of every token, and that of the loss (N,) or (0,).

    Of the teacher's fields (N, L, t) there are none of the noise.  For a loss that is quadratic in the noise the
    differences are its derivatives.
    """
    m, w = model.numbers[0], model.places[0]
    parameters, labels, ahead, clean = nodes.parameters, work[w.labels :], work[w.gradient :], work[w.slope :]
    each = m.fields * m.columns
    for n in range(unsigned(squares.size) // each):
        given = (nodes.centers[n * m.fields :], work[w.target :], nodes.variance, parameters)
        for a in range(m.length):
            for i in range(m.label_fields):
                known = (n * m.length + a) * m.teacher_rank + i
                labels[a * m.label_fields + i] = nodes.teacher_fields[known] if i < m.teacher_rank else 0.0
        call(m.teacher_target_at, (labels, nodes.mixing, parameters, given[1]))
        without, gain = call(m.loss_gradient_at, (*given, clean)), 0.0
        fill(n * each, each, 0.0, squares)
        for number in range(m.length * m.noise):
            place = number // m.noise * m.label_fields + m.teacher_rank + number % m.noise
            labels[place] = 1.0
            call(m.teacher_target_at, (labels, nodes.mixing, parameters, given[1]))
            total = call(m.loss_gradient_at, (*given, ahead))
            for p in range(m.fields):
                for j in range(m.columns):
                    q = p - model.columns[p] + j
                    change = (ahead[p] - clean[p]) * (ahead[q] - clean[q])
                    squares[n * each + p * m.columns + j] += change
            labels[place] = -1.0
            call(m.teacher_target_at, (labels, nodes.mixing, parameters, given[1]))
            gain += 0.5 * (total + call(m.loss_at, given)) - without
            labels[place] = 0.0
        if losses.size > 0:
            losses[n] = gain


@compiled
def eliminate(size: int, matrix: Array, right: Array) -> None:
    """Put ``matrix^-1 right`` in place of ``right``, by elimination with the largest pivots; both are overwritten."""
    for c in range(size):
        pivot = c
        for i in range(c + ONE, size):
            if abs(matrix[i * size + c]) > abs(matrix[pivot * size + c]):
                pivot = i
        for j in range(size):
            one, other = c * size + j, pivot * size + j
            matrix[one], matrix[other] = matrix[other], matrix[one]
            right[one], right[other] = right[other], right[one]
        for i in range(size):
            if i == c:
                continue
            share = matrix[i * size + c] / matrix[c * size + c]
            for j in range(size):
                matrix[i * size + j] -= share * matrix[c * size + j]
                right[i * size + j] -= share * right[c * size + j]
    for c in range(size):
        for j in range(size):
            right[c * size + j] /= matrix[c * size + c]


def squares_at(
    model: Model,
    nodes: Nodes,
    weights: Array,
    replicates: NDArray[np.uint64],
    squares: Array,
    slopes: Array,
    work: Array,
) -> None:
    """Add weighted squares of ``dg/domega`` of nodes, whose centres are proximal points, to their replicates' sums.

    ``dg/domega = -(I + H V)^-1 H`` with the Hessian H of the loss, of one with kinks what it is beside them. In
    ``squares`` (S, L, r, r, L, r, r) both indices of ``g_k`` stand before those of ``omega_l``. To ``slopes``
    (S, L, r, r) go the weighted ``-dg_k/domega_k``.
    """
    m, w = model.numbers[0], model.places[0]
    r, size, response, matrix, V = m.columns, m.fields, work[w.hessian :], work[w.curvature :], work[w.lower :]
    for p in range(size):
        for j in range(r):
            V[p * r + j] = 0.0
            for c in range(r):
                V[p * r + j] += nodes.factor[p * r + c] * nodes.factor[(p - model.columns[p] + j) * r + c]
    for n in range(unsigned(weights.size)):
        take_in(m, w, n, nodes, work)
        given = (work[w.center :], work[w.target :], work[w.variance :], work[w.parameters :], work[w.gradient :])
        call(m.loss_derivatives_at, (*given, response))
        for i in range(size):
            for q in range(size):
                total, j = 1.0 if i == q else 0.0, model.columns[q]
                for c in range(r):
                    total += response[i * size + q - j + c] * V[(q - j + c) * r + j]
                matrix[i * size + q] = total
        eliminate(size, matrix, response)
        replicate = replicates[n] * size
        for p in range(size):
            i = model.columns[p]
            for j in range(r):
                slopes[(replicate + p) * r + j] += weights[n] * response[p * size + p - i + j]
            for q in range(size):
                j, left = model.columns[q], weights[n] * response[p * size + q]
                for a in range(r):
                    for b in range(r):
                        place = (((replicate + p) * r + a) * size + q) * r + b
                        squares[place] += left * response[(p - i + a) * size + q - j + b]
