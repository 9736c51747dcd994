"""Entry points for the theory where a model has few fields: nodes of a block begin together, and go on one by one.

Most descents are regular: no step is refused, no curvature negative. The first ones of a block make regular steps until
few are left; the others, and nodes that have further starts, go on in the lanes of a second block, in which a lane that
is done takes the next that waits.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.values import Nodes, Solution

from .compiled import compiled, entry
from .constants import CONVERGED, FAR, GOES_ON, IRREGULAR, LENGTH_UNIT, Starts
from .lane import (
    ALL_ROWS,
    NEXT,
    NOBODY,
    NODE,
    begin,
    goes_on,
    is_only,
    losses_in_blocks,
    occupy,
    to_rows,
)
from .lanes import (
    CENTER,
    CURVATURE,
    DEEPEST,
    ENERGY,
    EVENT,
    GRADIENT,
    LANES,
    LOSS,
    POINT,
    STEPS,
    TARGET,
    newton_trial,
    teacher_targets,
)
from .layouts import INTEGER, NODES, SOLUTION, array
from .linear_algebra import SIZE, copy, place, to_scaled
from .local_problem import COLUMNS, LABEL_FIELDS, LENGTH
from .search import start_field
from .steps import newton_step

__all__ = ["losses_at", "minimise"]

FEW = 8  # one lane in so many may still be under way where the others of its block are not
MOST_STEPS = 50  # that a block makes together: at large V rounding may let a descent go on for ever


@compiled
def put_in(first: int, starts: int, nodes: Nodes, solution: Solution, k: Array, field: Array, block: Array) -> int:
    """Put the next nodes into the lanes of a block, at the first of their starts; returns how many.

    ``k`` and ``field`` are scratch.
    """
    count = min(LANES, nodes.centers.shape[0] - first)
    to_rows(nodes.centers, first, block[CENTER * LANES :])
    to_rows(nodes.teacher_fields, first, k)
    teacher_targets(k, nodes.mixing, nodes.parameters, block[TARGET * LANES :])
    for n in range(count):
        node = first + n
        occupy(node, n, block)
        block[NEXT + n] = 1.0
        center, own, minima = nodes.centers[node], nodes.teacher_fields[node], solution.minima[node]
        start_field(0, center, own, minima, nodes.parameters, starts, field)
        to_scaled(field, center, nodes.factor, block[n + POINT * LANES :: LANES])
        begin(n, nodes.parameters[LENGTH_UNIT], block)
        # that of no loss, from which on it is seen to change
        row = CURVATURE
        for i in range(SIZE):
            for j in range(i + 1):
                block[n + row * LANES] = 1.0 if i == j else 0.0
                row += 1
    return count


@compiled
def few_go_on(count: int, block: Array) -> bool:
    """Whether few of the first lanes of a block are still under way."""
    left = 0
    for n in range(count):
        left += block[n + EVENT * LANES] == GOES_ON
    return FEW * left <= count


@compiled
def write_out(count: int, starts: int, nodes: Nodes, solution: Solution, block: Array) -> None:
    """Write what was found in those lanes of a block that have no further start; they are nobody's from then on."""
    first = int(block[NODE])
    for n in range(count):
        node, energy = first + n, block[n + ENERGY * LANES]
        if block[n + EVENT * LANES] != CONVERGED:
            continue
        only = is_only(node, starts, solution)
        if not (starts == Starts.FROM_ZERO or (starts == Starts.WARM and only)):
            continue
        solution.energies[node, 0] = energy
        solution.energies[node, 1] = energy
        place(block[n + POINT * LANES :: LANES], nodes.centers[node], nodes.factor, solution.minima[node, 0])
        copy(solution.minima[node, 0], solution.minima[node, 1])
        for a in range(LENGTH):
            for i in range(COLUMNS):
                solution.residuals[node, a, i] = -block[n + (GRADIENT + a * COLUMNS + i) * LANES]
        solution.losses[node] = block[n + LOSS * LANES]
        solution.flags[node] = int(block[n + STEPS * LANES])
        block[n + NODE] = NOBODY


@compiled
def next_waiting(lane: int, count: int, block: Array) -> int:
    """The next lane of a block, from this one on, that has not been written."""
    while lane < count and block[NODE + lane] == NOBODY:
        lane += 1
    return lane


@compiled
def hand_over(waiting: int, length: float, block: Array, lane: int, state: Array) -> None:
    """Put a lane of the block where it goes on with trials; ``length`` is the unit of these."""
    for row in range(ALL_ROWS):
        state[lane + row * LANES] = block[waiting + row * LANES]
    if state[lane + EVENT * LANES] == IRREGULAR:
        state[lane + EVENT * LANES] = GOES_ON
    if state[lane + STEPS * LANES] >= 0.0:
        state[lane + DEEPEST * LANES] = -FAR * (length * length + abs(state[lane + ENERGY * LANES]))


@entry(NODES, INTEGER, SOLUTION)
def minimise(nodes: Nodes, starts: int, solution: Solution) -> None:
    """Lowest and second-lowest minimum of the local problem of every node, from `Starts`."""
    block, state = np.zeros(ALL_ROWS * LANES), np.zeros(ALL_ROWS * LANES)
    field, k = np.empty((LENGTH, COLUMNS)), np.zeros(LENGTH * LABEL_FIELDS * LANES)
    curvature, lower = np.empty((SIZE, SIZE)), np.empty((SIZE, SIZE))
    state[NODE : NODE + LANES] = NOBODY
    # a literal has a type of its own, for which Numba compiles the functions that take it once more
    zero = INTEGER(0)
    taken, count, together, made, tried = zero, nodes.centers.shape[0], False, 0, False
    # lanes of the block that hold a node, the first of them that waits to be handed over, and busy lanes of the other
    begun, waiting, busy = zero, zero, zero
    while taken < count or waiting < begun or busy > 0:
        if together and (made == MOST_STEPS or few_go_on(begun, block)):
            write_out(begun, starts, nodes, solution, block)
            together, waiting = False, next_waiting(0, begun, block)
        if not together:
            for lane in range(LANES):
                if state[NODE + lane] != NOBODY:
                    # what has been looked at since its last trial waits for the next
                    if not tried or goes_on(lane, starts, nodes, solution, field, curvature, lower, state):
                        continue
                    busy -= 1
                if waiting < begun:
                    hand_over(waiting, nodes.parameters[LENGTH_UNIT], block, lane, state)
                    waiting = next_waiting(waiting + 1, begun, block)
                    busy += goes_on(lane, starts, nodes, solution, field, curvature, lower, state)
            tried = False
            if waiting == begun and taken < count and busy < LANES:
                begun, waiting = put_in(taken, starts, nodes, solution, k, field, block), 0
                together, made = True, 0
                taken += begun
        if together:
            newton_step(block, nodes.factor, nodes.variance, nodes.parameters)
            made += 1
        else:
            newton_trial(state, nodes.factor, nodes.variance, nodes.parameters)
            tried = True


@entry(array(3), array(3), array(2), array(1), array(1), array(1))
def losses_at(
    fields: Array, teacher_fields: Array, mixing: Array, parameters: Array, variance: Array, losses: Array
) -> None:
    """Loss of every sample at given fields (N, L, r), without any minimisation."""
    losses_in_blocks(fields, teacher_fields, mixing, parameters, variance, losses)
