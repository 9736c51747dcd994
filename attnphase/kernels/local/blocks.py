"""Entry points for the theory where a model has some fields: nodes side by side, one in each lane of a block.

A block goes on until its last descent has ended; a lane that is done takes the next node.
"""

from __future__ import annotations

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.local.values import Nodes, Solution

from .compiled import entry
from .lane import ALL_ROWS, NOBODY, NODE, goes_on, load, losses_in_blocks, next_start, to_rows
from .lanes import LANES, TARGETS, newton_trial, teacher_targets
from .layouts import INTEGER, NODES, SOLUTION, array
from .linear_algebra import SIZE
from .local_problem import COLUMNS, LABEL_FIELDS, LENGTH

__all__ = ["losses_at", "minimise"]


@entry(NODES, INTEGER, SOLUTION)
def minimise(nodes: Nodes, starts: int, solution: Solution) -> None:
    """Lowest and second-lowest minimum of the local problem of every node, from `Starts`."""
    state, field = np.zeros(ALL_ROWS * LANES), np.empty((LENGTH, COLUMNS))
    curvature, lower = np.empty((SIZE, SIZE)), np.empty((SIZE, SIZE))
    k, targets = np.zeros(LENGTH * LABEL_FIELDS * LANES), np.zeros(TARGETS * LANES)
    state[NODE : NODE + LANES] = NOBODY
    taken, busy, count = 0, 0, nodes.centers.shape[0]
    while taken < count or busy > 0:
        for lane in range(LANES):
            if state[NODE + lane] != NOBODY:
                if goes_on(lane, starts, nodes, solution, field, curvature, lower, state):
                    continue
                busy -= 1
            if taken < count:
                if taken % LANES == 0:
                    to_rows(nodes.teacher_fields, taken, k)
                    teacher_targets(k, nodes.mixing, nodes.parameters, targets)
                load(nodes.centers, taken, lane, targets, state)
                next_start(lane, starts, nodes, solution, field, state)
                taken += 1
                busy += 1
        newton_trial(state, nodes.factor, nodes.variance, nodes.parameters)


@entry(array(3), array(3), array(2), array(1), array(1), array(1))
def losses_at(
    fields: Array, teacher_fields: Array, mixing: Array, parameters: Array, variance: Array, losses: Array
) -> None:
    """Loss of every sample at given fields (N, L, r), without any minimisation."""
    losses_in_blocks(fields, teacher_fields, mixing, parameters, variance, losses)
