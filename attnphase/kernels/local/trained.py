"""Entry point for trained parameters of the loss: derivatives of a sample's lowest energy in them.

The minimum over the fields h of ``Psi(h, b)`` is a function of the parameters b.  By the envelope theorem its slope is
the derivative of the loss at the proximal point.  Where kinks hold this point that has no value, but the loss has one
with the kinks' multipliers s in place of their signs.

The second derivative is that of the quadratic model in the fields and b, with all kinks that hold the point kept at
zero: the proximal point follows b along them.  Of the entries of Q it is that at fixed fields.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.values import Energy, Nodes, Workspace

from .along_kinks import descend_along_kinks, evaluate
from .at_kinks import normal_in_u
from .compiled import compiled, entry
from .constants import PIVOT
from .layouts import INTEGER, NODES, array
from .linear_algebra import SIZE, factorise, scale_derivatives, squared_norm, to_scaled
from .local_problem import KINKS, teacher_target, trained_derivatives
from .search import empty_target, workspace

__all__ = ["trained_slopes_at"]


@compiled
def multipliers_at(h: Array, center: Array, terms: Energy, work: Workspace) -> None:
    """Evaluate the loss at a proximal point, with the multipliers of the kinks that hold it.

    A descent that begins there ends there, and has found them.
    """
    to_scaled(h, center, terms.factor, work.u)
    if KINKS > 0:
        energy, _, _ = descend_along_kinks(center, terms, work)
        if energy == np.inf:  # there is no minimum
            to_scaled(h, center, terms.factor, work.u)
            work.kinks.multipliers[:] = 1.0
    evaluate(work.u, center, terms, work)


@compiled
def keep_on_kinks(factor: Array, heights: Array, moved: Array, work: Workspace) -> None:
    """Let fields follow the kinks that hold them, and no other way: ``moved`` (n, L r) is by how much, in u.

    Fills in an orthonormal basis of these kinks' normals, to which the ``heights`` (n, m), derivatives of the kinks'
    arguments, are changed.  A kink whose normal the others span is left out: not all of them can be followed.
    """
    basis, kinks, count = work.kinks.scaled, work.kinks, moved.shape[0]
    for j in range(KINKS):
        direction = basis[j]
        normal_in_u(j, factor, kinks.normals, direction)
        size = squared_norm(direction)
        kinks.kept[j] = -1.0 < kinks.multipliers[j] < 1.0
        for c in range(j):
            if not (kinks.kept[j] and kinks.kept[c]):
                continue
            along = 0.0
            for a in range(SIZE):
                along += basis[c, a] * direction[a]
            for a in range(SIZE):
                direction[a] -= along * basis[c, a]
            for i in range(count):
                heights[i, j] -= along * heights[i, c]
        left = squared_norm(direction)
        kinks.kept[j] = kinks.kept[j] and left > PIVOT * size
        if not kinks.kept[j]:
            continue
        for a in range(SIZE):
            direction[a] /= np.sqrt(left)
        for i in range(count):
            heights[i, j] /= np.sqrt(left)
            for a in range(SIZE):
                moved[i, a] -= heights[i, j] * direction[a]


@compiled
def project(matrix: Array, rows: Array, work: Workspace) -> None:
    """Take from the rows (p, L r) what lies across the kinks that hold; the matrix becomes the identity there."""
    basis, image = work.kinks.scaled, work.trial
    for j in range(KINKS):
        if not work.kinks.kept[j]:
            continue
        total = 1.0
        for a in range(SIZE):
            image[a] = 0.0
            for c in range(SIZE):
                image[a] += matrix[a, c] * basis[j, c]
            total += basis[j, a] * image[a]
        for a in range(SIZE):
            for c in range(SIZE):
                matrix[a, c] += total * basis[j, a] * basis[j, c] - basis[j, a] * image[c] - image[a] * basis[j, c]
        for i in range(rows.shape[0]):
            along = 0.0
            for a in range(SIZE):
                along += rows[i, a] * basis[j, a]
            for a in range(SIZE):
                rows[i, a] -= along * basis[j, a]


@compiled
def follow(factor: Array, crossed: Array, curvatures: Array, scratch: Array, work: Workspace) -> None:
    """Turn second derivatives at fixed fields, ``curvatures`` (p, p), into those where the fields follow.

    Those of the first n parameters, by ``scratch`` (3, n, L r).  Where the energy has no minimum the fields follow the
    kinks alone.
    """
    moved, in_u, rows = scratch[0], scratch[1], scratch[2]
    matrix, count = work.curvature, scratch.shape[1]
    scale_derivatives(work.u, factor, work.gradient, work.hessian, work.slope, matrix)
    for a in range(SIZE):
        for c in range(a):
            matrix[c, a] = matrix[a, c]
    moved[:] = 0.0
    keep_on_kinks(factor, crossed[:, SIZE:], moved, work)
    for i in range(count):
        normal_in_u(i, factor, crossed, in_u[i])
        for a in range(SIZE):
            rows[i, a] = in_u[i, a]
            for c in range(SIZE):
                rows[i, a] += matrix[a, c] * moved[i, c]
    for i in range(count):
        for l in range(count):
            for a in range(SIZE):
                curvatures[i, l] += moved[i, a] * rows[l, a] + in_u[i, a] * moved[l, a]
    project(matrix, rows, work)
    if not factorise(matrix, 0.0, work.lower):
        return
    for i in range(count):
        for a in range(SIZE):
            for c in range(a):
                rows[i, a] -= work.lower[a, c] * rows[i, c]
            rows[i, a] /= work.lower[a, a]
    for i in range(count):
        for l in range(count):
            for a in range(SIZE):
                curvatures[i, l] -= rows[i, a] * rows[l, a]


@entry(NODES, array(3), INTEGER, array(2), array(3))
def trained_slopes_at(nodes: Nodes, fields: Array, followed: int, slopes: Array, curvatures: Array) -> None:
    """Derivatives (N, p) and (N, p, p) of samples' lowest energies, whose proximal points are the fields (N, L, r).

    Second derivatives in the first, `followed`, parameters are those where the proximal points follow.
    """
    work, target, count = workspace(), empty_target(), slopes.shape[1]
    terms = Energy(target, nodes.variance, nodes.factor, nodes.parameters)
    crossed, scratch = np.empty((count, SIZE + KINKS)), np.empty((3, followed, SIZE))
    for n in range(fields.shape[0]):
        teacher_target(nodes.teacher_fields[n], nodes.mixing, nodes.parameters, target)
        multipliers_at(fields[n], nodes.centers[n], terms, work)
        signs, parameters = work.kinks.signs, nodes.parameters
        trained_derivatives(work.h, target, nodes.variance, parameters, signs, slopes[n], curvatures[n], crossed)
        follow(nodes.factor, crossed, curvatures[n], scratch, work)
