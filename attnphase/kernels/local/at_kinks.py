"""Starts at kinks: a loss that flattens away from a kink has minima there to which no slope leads from elsewhere."""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array

from .along_kinks import add, evaluate
from .compiled import apart
from .constants import CLOSE, DISTINCT, LENGTH_UNIT, MAX_TRIES, PIVOT
from .linear_algebra import fill, in_u, inner
from .model import Record
from .starts import unsigned

__all__ = ["go_to_kink"]


@apart
def go_to_kink(m: Record, w: Record, kink: int, keeps: bool, work: Array) -> bool:
    """Move ``u`` from ``origin`` to the point of a kink that is nearest to the centre, by Newton's method.

    With ``keeps`` to a point near the origin, on all kinks on which the origin lies.  Returns False where there is no
    such point, the kink bends downwards there, or the last call for this kink led to the same point.
    """
    length, last = work[w.parameters + unsigned(LENGTH_UNIT)], w.last + kink * m.fields
    fill(w.multipliers, m.kinks, 1.0, work)  # none is held
    for i in range(m.fields):
        work[w.u + i] = work[w.origin + i]
    for step in range(MAX_TRIES):
        if not abs(evaluate(m, w, w.u, work)) < np.inf:
            return False
        for i in range(m.fields):
            work[w.trial + i] = work[w.u + i] if keeps else 0.0
        for j in range(m.kinks):
            # an orthonormal basis of the normals, in whose span the step lies, or the point
            direction, height = w.scaled + j * m.fields, -work[w.arguments + j]
            fill(direction, m.fields, 0.0, work)
            in_u(m, w, w.normals + j * m.fields, direction, work)
            size = inner(m, direction, direction, work)
            if step == 0:
                near = keeps and abs(height) <= DISTINCT * length * np.sqrt(size)
                work[w.kept + j] = 1.0 if j == kink or near else 0.0
            if work[w.kept + j] == 0.0:
                fill(direction, m.fields, 0.0, work)
                continue
            height = height if keeps else inner(m, direction, w.u, work, height)
            for c in range(j):
                along = inner(m, w.scaled + c * m.fields, direction, work)
                height -= along * work[w.change + c] if work[w.kept + c] > 0.0 else 0.0
                add(m, direction, -along, w.scaled + c * m.fields, work)
            left = inner(m, direction, direction, work)
            if not left > PIVOT * size:
                return False
            work[w.change + j] = height / np.sqrt(left)
            for i in range(m.fields):
                work[direction + i] /= np.sqrt(left)
            add(m, w.trial, work[w.change + j], direction, work)
        moved, away = 0.0, 0.0
        for i in range(m.fields):
            unit = length + abs(work[w.trial + i])
            moved = max(moved, abs(work[w.trial + i] - work[w.u + i]) / unit)
            away = max(away, abs(work[w.trial + i] - work[last + i]) / unit)
            work[w.u + i] = work[w.trial + i]
        if moved <= CLOSE:
            if work[w.weights + kink] <= 0.0 or away <= DISTINCT:
                return False
            for i in range(m.fields):
                work[last + i] = work[w.u + i]
            return True
    return False
