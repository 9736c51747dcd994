"""Where descents begin, see `Starts`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from attnphase.arrays import Array

from .compiled import compiled
from .constants import MATCHED, Starts
from .model import Model, Record
from .values import Nodes

__all__ = ["NONE", "ONE", "TWO", "go_to_start", "is_only", "unsigned"]

unsigned: Callable[[Any], int] = cast(Any, np.uint64)
"""A place, or a count: without a sign, as that of a sum of both kinds is not known."""

NONE, ONE, TWO, FOUR, FIVE = (unsigned(number) for number in (0, 1, 2, 4, 5))


@compiled
def is_only(node: int, starts: int, energies: Array) -> bool:
    """Whether the first start of a node is the only minimum that is known of it."""
    known = starts in (Starts.WARM, Starts.REFRESH)
    return known and energies[TWO * node] == energies[TWO * node + ONE]


@compiled
def go_to_start(
    m: Record,
    model: Model,
    s: int,
    starts: int,
    node: int,
    nodes: Nodes,
    minima: Array,
    factors: Array,
    corner: int,
    stride: int,
    numbers: Array,
    u: int,
    centers: int,
    step: int,
) -> float:
    """Put the s-th start of a node into an array, from `u` on; returns its squared norm, -1 where there is none.

    These numbers are `step` apart, as are those of the centre there, and those of the Cholesky factors, which begin at
    `corner`, are `stride` apart.
    """
    known = s < TWO and starts in (Starts.WARM, Starts.REFRESH)
    kind = s - TWO if starts == Starts.REFRESH and not known else s
    if not known and (starts == Starts.WARM or (starts == Starts.FROM_ZERO and s > NONE) or kind >= FIVE + m.length):
        return -1.0
    # shares of the centre and of the teacher's field in the difference from the centre
    mirrored, lifted = 0.0, 0.0
    if starts == Starts.FROM_ZERO or NONE < kind < FOUR:
        mirrored = -1.0
    elif kind == FOUR:
        mirrored = -2.0
    if starts != Starts.FROM_ZERO and kind in (ONE, TWO):
        lifted = 1.0 if kind == ONE else -1.0
    norm = 0.0
    for c in range(m.fields):
        i, at, center = model.columns[c], u + c * step, numbers[centers + c * step]
        if known:
            total = minima[(TWO * node + s) * m.fields + c] - center
        else:
            alone = c - i + FIVE * m.columns == kind * m.columns  # its token is the one that is reflected
            total = (-2.0 if alone else mirrored) * center
            if lifted != 0.0:
                field = nodes.teacher_fields[node * m.length * m.label_fields + model.lift[c]]
                total += lifted * nodes.parameters[unsigned(MATCHED) + i] * field
        for j in range(i):
            total -= factors[corner + (c * m.columns + j) * stride] * numbers[at - (i - j) * step]
        total /= factors[corner + (c * m.columns + i) * stride]
        norm += total * total
        numbers[at] = total
    return norm
