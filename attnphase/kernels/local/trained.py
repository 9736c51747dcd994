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

from .along_kinks import add, descend_along_kinks, evaluate
from .compiled import call, compiled
from .constants import PIVOT
from .linear_algebra import factorise, fill, in_u, inner, scale_derivatives, to_scaled
from .model import Model, Record
from .search import copy, take_in
from .starts import NONE, unsigned
from .values import Nodes

__all__ = ["trained_slopes_at"]


@compiled
def keep_on_kinks(m: Record, w: Record, crossed: Array, moved: Array, work: Array) -> None:
    """Let fields follow the kinks that hold them, and no other way: ``moved`` (n, L r) is by how much, in u.

    Fills in an orthonormal basis of these kinks' normals, to which the last columns of ``crossed``, derivatives (n, m)
    of the kinks' arguments, are changed.  A kink whose normal the others span is left out: not all of them can be
    followed.
    """
    count = unsigned(moved.shape[0])
    for j in range(m.kinks):
        direction = w.scaled + j * m.fields
        fill(direction, m.fields, 0.0, work)
        in_u(m, w, w.normals + j * m.fields, direction, work)
        size = inner(m, direction, direction, work)
        work[w.kept + j] = 1.0 if -1.0 < work[w.multipliers + j] < 1.0 else 0.0
        for c in range(j):
            if work[w.kept + j] * work[w.kept + c] == 0.0:
                continue
            along = inner(m, w.scaled + c * m.fields, direction, work)
            add(m, direction, -along, w.scaled + c * m.fields, work)
            for i in range(count):
                crossed[i, m.fields + j] -= along * crossed[i, m.fields + c]
        left = inner(m, direction, direction, work)
        if not left > PIVOT * size:
            work[w.kept + j] = 0.0
        if work[w.kept + j] == 0.0:
            continue
        for a in range(m.fields):
            work[direction + a] /= np.sqrt(left)
        for i in range(count):
            crossed[i, m.fields + j] /= np.sqrt(left)
            for a in range(m.fields):
                moved[i, a] -= crossed[i, m.fields + j] * work[direction + a]


@compiled
def project(m: Record, w: Record, rows: Array, work: Array) -> None:
    """Take from the rows (p, L r) what lies across the kinks that hold; the curvature becomes the identity there."""
    for j in range(m.kinks):
        basis, total = w.scaled + j * m.fields, 1.0
        if work[w.kept + j] == 0.0:
            continue
        for a in range(m.fields):
            work[w.trial + a] = inner(m, w.curvature + a * m.fields, basis, work)
            total += work[basis + a] * work[w.trial + a]
        for a in range(m.fields):
            one, image = work[basis + a], work[w.trial + a]
            for c in range(m.fields):
                change = total * one * work[basis + c] - one * work[w.trial + c] - image * work[basis + c]
                work[w.curvature + a * m.fields + c] += change
        for i in range(unsigned(rows.shape[0])):
            along = 0.0
            for a in range(m.fields):
                along += rows[i, a] * work[basis + a]
            for a in range(m.fields):
                rows[i, a] -= along * work[basis + a]


@compiled
def follow(m: Record, w: Record, crossed: Array, curvatures: Array, scratch: Array, work: Array) -> None:
    """Turn second derivatives at fixed fields, ``curvatures`` (p, p), into those where the fields follow.

    Those of the first n parameters, by ``scratch`` (3, n, L r).  Where the energy has no minimum the fields follow the
    kinks alone.
    """
    moved, pulled, rows = scratch[0], scratch[1], scratch[2]
    count = unsigned(moved.shape[0])
    scale_derivatives(m, w, work)
    for a in range(m.fields):
        for c in range(a):
            work[w.curvature + c * m.fields + a] = work[w.curvature + a * m.fields + c]
    moved[:] = 0.0
    keep_on_kinks(m, w, crossed, moved, work)
    for i in range(count):
        for a in range(m.fields):
            work[w.h + a] = crossed[i, a]
        fill(w.trial, m.fields, 0.0, work)
        in_u(m, w, w.h, w.trial, work)
        for a in range(m.fields):
            pulled[i, a] = work[w.trial + a]
            rows[i, a] = pulled[i, a]
            for c in range(m.fields):
                rows[i, a] += work[w.curvature + a * m.fields + c] * moved[i, c]
    for i in range(count):
        for l in range(count):
            for a in range(m.fields):
                curvatures[i, l] += moved[i, a] * rows[l, a] + pulled[i, a] * moved[l, a]
    project(m, w, rows, work)
    if not factorise(m, w, 0.0, work):
        return
    for i in range(count):
        for a in range(m.fields):
            row = w.lower + a * m.fields
            for c in range(a):
                rows[i, a] -= work[row + c] * rows[i, c]
            rows[i, a] /= work[row + a]
    for i in range(count):
        for l in range(count):
            for a in range(m.fields):
                curvatures[i, l] -= rows[i, a] * rows[l, a]


def trained_slopes_at(
    model: Model,
    nodes: Nodes,
    fields: Array,
    slopes: Array,
    curvatures: Array,
    crossed: Array,
    scratch: Array,
    work: Array,
) -> None:
    """Derivatives (N, p) and (N, p, p) of samples' lowest energies, whose proximal points are the fields (N, L, r).

    Second derivatives in the first n parameters are those where the proximal points follow.  For scratch there are
    ``crossed`` (p, L r + m) and ``scratch`` (3, n, L r).
    """
    m, w = model.numbers[0], model.places[0]
    for n in range(unsigned(slopes.shape[0])):
        take_in(m, w, n, nodes, work)
        copy(fields, n * m.fields, m.fields, work, w.h)
        to_scaled(m, w, work)
        # a descent that begins at a proximal point ends there, and has found the multipliers of the kinks that hold it
        if m.kinks > NONE and descend_along_kinks(m, w, work)[0] == np.inf:  # there is no minimum
            copy(fields, n * m.fields, m.fields, work, w.h)
            to_scaled(m, w, work)
            fill(w.multipliers, m.kinks, 1.0, work)
        evaluate(m, w, w.u, work)
        given = (work[w.h :], work[w.target :], work[w.variance :], work[w.parameters :], work[w.signs :])
        call(m.trained_derivatives_at, (*given, slopes[n], curvatures[n], crossed))
        follow(m, w, crossed, curvatures[n], scratch, work)
